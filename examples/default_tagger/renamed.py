"""Gold rows once more with other names: what a tagger must learn is the place of a name, not the name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from corpora import Mark, Row
from varied.organizations import SECRETS as ORGANIZATIONS
from varied.people import SECRETS as PEOPLE
from varied.places import SECRETS as PLACES
from varied.scene import Scene

_DRAWN = {"PERSON": PEOPLE, "LOCATION": PLACES, "ORGANIZATION": ORGANIZATIONS}
_KEPT = 0.15
"""Share of the names that stay what they are, so that old and new stand in one row."""


def renamed(rows: Iterable[Row], seed: int) -> Iterator[Row]:
    """Every row that names somebody, some place or some body, with most of the names drawn anew."""
    draw = random.Random(seed)
    for text, spans in rows:
        if any(label in _DRAWN for _, _, label in spans):
            yield _renamed(text, sorted(spans), draw)


def _renamed(text: str, spans: list[Mark], draw: random.Random) -> Row:
    scene = Scene(draw)
    pieces: list[str] = []
    moved: list[Mark] = []
    position = length = 0
    for start, end, label in spans:
        value = text[start:end]
        if label in _DRAWN and draw.random() >= _KEPT:
            value = _like(value, _another(scene, label, value))
        pieces += (text[position:start], value)
        length += start - position
        moved.append((length, length + len(value), label))
        length, position = length + len(value), end
    return "".join(pieces) + text[position:], moved


def _another(scene: Scene, label: str, value: str) -> str:
    kind = None
    if label == "PERSON":
        kind = scene.one("full", "full", "initials") if " " in value else scene.one("first", "last")
    return _DRAWN[label][(label, kind)](scene)


def _like(old: str, new: str) -> str:
    """``new`` in the letters' case of ``old``."""
    if old.islower():
        return new.lower()
    return new.upper() if old.isupper() and len(old) > 4 else new

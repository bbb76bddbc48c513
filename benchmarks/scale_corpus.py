"""The corpus of ``benchmarks/scale.py``: dialogues of short turns, deterministic, streamed to files.

Turn number n is a function of n alone.  Of a hundred turns 30 repeat an earlier turn, drawn from all turns
before them, so that texts repeat over the whole length of a corpus of any size; 8 are stock phrases; the
others say something new.  A quarter of the new ones hold a number, an eighth a name, and a twentieth nothing
but a number, so that some texts are equal only once they are masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from redactory.detectors import Detection, Span

TURNS = 8
"""Turns of a dialogue: a dialogue is a document, a turn a point."""
FILES = 8
_REPEATS, _STOCK = 30, 8
_MASK64 = (1 << 64) - 1
_WORDS = (
    *("order", "parcel", "invoice", "address", "account", "delivery", "refund", "screen", "cable", "window"),
    *("garden", "ticket", "train", "hotel", "morning", "evening", "week", "month", "price", "colour"),
    *("size", "shop", "door", "road", "bridge", "river", "table", "chair", "light", "water"),
    *("small", "large", "green", "blue", "early", "late", "broken", "missing", "wrong", "heavy"),
    *("open", "closed", "new", "old", "second", "last", "next", "sent", "came", "went"),
    *("asked", "found", "lost", "paid", "moved", "changed", "waited", "called", "looked", "needed"),
    *("wanted", "kept", "left"),
)
_NAMES = (
    *("Anders", "Berit", "Carla", "Dmitri", "Esther", "Farid", "Greta", "Hiro", "Ines", "Jonas"),
    *("Kaya", "Lionel", "Mona", "Nadia"),
)
_STOCK_PHRASES = (
    "thanks, goodbye",
    "hello, how can i help you",
    "one moment please",
    "is there anything else",
    "no, that is all",
    "have a nice day",
    "let me look that up",
    "yes",
)
_SPANS = re.compile(rf"(?P<number>\d[\d-]*)|\b(?:{'|'.join(_NAMES)})\b")


class RecordedSpans:
    """In place of engines: the numbers and names of this corpus, which are known by how it was made."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text, at about a microsecond."""
        for text in texts:
            spans = tuple(
                Span(*match.span(), "NUMBER" if match["number"] else "PERSON", 1.0, "recorded")
                for match in _SPANS.finditer(text)
            )
            yield Detection(spans, spans)


def write_corpus(folder: Path, points: int) -> list[Path]:
    """Write ``points`` turns (rounded up to whole dialogues) in :data:`FILES` JSONL files; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    dialogues = -(-points // TURNS)
    bounds = [dialogues * number // FILES for number in range(FILES + 1)]
    paths = []
    for number in range(FILES):
        path = folder / f"dialogues-{number:02d}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_line(dialogue) for dialogue in range(bounds[number], bounds[number + 1]))
        paths.append(path)
    return paths


def turn(number: int) -> str:
    """The text of turn ``number``."""
    while True:
        mixed = _mixed(number)
        kind = mixed % 100
        if kind < _STOCK:
            return _STOCK_PHRASES[(mixed >> 32) % len(_STOCK_PHRASES)]
        if kind >= _STOCK + _REPEATS or number == 0:
            return _new(number, mixed >> 8)
        # an earlier turn, each as likely as another
        number = ((mixed >> 8) * number) >> 56


def _new(number: int, mixed: int) -> str:
    kind = mixed % 40
    if kind < 2:
        return f"my number is {mixed >> 20 & 0xFFFFFF}"
    phrases = _FRAGMENTS
    said = (
        f"{phrases[mixed >> 8 & 1023]} {phrases[mixed >> 18 & 1023]} "
        f"{phrases[mixed >> 28 & 1023]} {phrases[number & 1023]} {phrases[number >> 10 & 1023]}"
    )
    if kind < 12:
        return f"{said} {mixed >> 38 & 0xFFFF}-{number % 100:02d}"
    return f"{said} with {_NAMES[mixed >> 38 & 7]}" if kind < 17 else said


def _line(dialogue: int) -> str:
    first = dialogue * TURNS
    said = "\n".join(f"{('Agent', 'Customer')[n % 2]}: {turn(n)}" for n in range(first, first + TURNS))
    # a user has about three dialogues
    user = _mixed(dialogue) % (dialogue // 3 + 1)
    return json.dumps({"id": f"d{dialogue:010d}", "user_id": f"u{user:09d}", "text": said}) + "\n"


def _mixed(number: int) -> int:
    """SplitMix64: a number to 64 bits that look random."""
    value = (number + 1) * 0x9E3779B97F4A7C15 & _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31


def _fragments() -> tuple[str, ...]:
    picks = (_mixed(number + (1 << 40)) for number in range(1024))
    return tuple(f"{_WORDS[p % len(_WORDS)]} {_WORDS[(p >> 20) % len(_WORDS)]}" for p in picks)


_FRAGMENTS = _fragments()

"""Rows of varied English with the place of every sensitive thing.

What counts as sensitive is told in :mod:`varied`.  Row n depends on the seed and on n
alone, so a longer corpus begins with the shorter one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from varied import addresses, numbers, online, organizations, people, places, times
from varied.grammar import Grammar, Node, Piece, parse
from varied.noise import join, noisy, trimmed
from varied.plain import PLAIN
from varied.scene import Scene

_PROSE = (
    "news.txt", "encyclopedia.txt", "people_talk.txt", "medical_hr.txt", "legal.txt", "web.txt",
    "finance.txt", "travel.txt", "chat_customer.txt",
)  # fmt: skip
_Template = tuple[Node, ...]


@dataclass(frozen=True)
class Templates:
    """``secretive`` and ``plain``: file's name -> its templates with and without sensitive slots."""

    grammar: Grammar
    secretive: dict[str, tuple[_Template, ...]]
    plain: dict[str, tuple[_Template, ...]]


@cache
def templates() -> Templates:
    """Every template of the package, parsed once.  Raises ``ValueError`` for an unknown slot."""
    sections: dict[str, list[_Template]] = {}
    files: dict[str, list[_Template]] = {}
    folder = Path(__file__).with_name("templates")
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".txt"):
            files[file.name] = _read(file.read_text(encoding="utf-8"), sections)
    secret = {}
    for module in (addresses, numbers, online, organizations, people, places, times):
        secret.update(module.SECRETS)
    grammar = Grammar(sections, PLAIN, secret)
    for nodes in [line for lines in (*files.values(), *sections.values()) for line in lines]:
        for slot in grammar.unknown(nodes):
            raise ValueError(f"varied templates: nothing fills {{{slot.name}:{slot.sort}}}")
    secretive = {name: tuple(t for t in lines if grammar.secretive(t)) for name, lines in files.items()}
    plain = {name: tuple(t for t in lines if not grammar.secretive(t)) for name, lines in files.items()}
    return Templates(
        grammar,
        {name: lines for name, lines in secretive.items() if lines},
        {name: lines for name, lines in plain.items() if lines},
    )


def _read(text: str, sections: dict[str, list[_Template]]) -> list[_Template]:
    rows: list[_Template] = []
    here = rows
    for line in text.splitlines():
        if line.startswith("@") and line[1:].isidentifier():
            here = rows if line == "@row" else sections.setdefault(line[1:], [])
        elif line.strip() and not line.startswith("%"):
            here.append(parse(line))
    return rows


def varied_rows(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """``rows`` texts, each {id, text, spans}; ``spans`` are [{start, end, label}] in code points, in order,
    not overlapping, with no white space at either end.
    """
    told = templates()
    for number in range(rows):
        draw = random.Random(f"varied-{seed}-{number}")
        text, spans = join(noisy(_pieces(told, draw), draw))
        yield {"id": f"varied-{seed}-{number}", "text": text, "spans": spans}


def _one(told: Templates, kinds: dict[str, tuple[_Template, ...]], draw: random.Random) -> list[Piece]:
    """One template, a file being drawn by the root of its size so that small sorts of text are not lost."""
    names = tuple(kinds)
    name = draw.choices(names, [len(kinds[each]) ** 0.75 for each in names])[0]
    return told.grammar.expand(draw.choice(kinds[name]), Scene(draw))


def _secretive(told: Templates, draw: random.Random) -> list[Piece]:
    return _one(told, told.secretive, draw)


def _plain(told: Templates, draw: random.Random) -> list[Piece]:
    return _one(told, told.plain, draw)


def _joined(told: Templates, draw: random.Random, *makers: Callable[..., list[Piece]]) -> list[Piece]:
    between = draw.choice((" ", " ", " ", "\n", "\n\n", " - ", "; "))
    pieces: list[Piece] = []
    for make in makers:
        made = trimmed(make(told, draw))
        if pieces:
            pieces.append(Piece(between))
        pieces += made
    return pieces


def _passage(told: Templates, draw: random.Random) -> list[Piece]:
    """Several templates of one file about the same person, as a longer text of one sort would run."""
    name = draw.choice(_PROSE)
    scene = Scene(draw)
    pieces: list[Piece] = []
    for number in range(draw.choice((2, 3, 3, 4, 5, 6))):
        kinds = told.plain if draw.random() < 0.3 and name in told.plain else told.secretive
        made = trimmed(told.grammar.expand(draw.choice(kinds[name]), scene))
        pieces += [Piece(draw.choice((" ", " ", " ", "\n")) if number else ""), *made]
    return pieces


def _talk(told: Templates, draw: random.Random) -> list[Piece]:
    """A few turns of two speakers."""
    speakers = draw.choice(
        (
            ("USR: ", "SYS: "),
            ("Customer: ", "Agent: "),
            ("", ""),
            ("- ", "- "),
            ("A: ", "B: "),
            ("> ", ""),
            ("User: ", "Bot: "),
        )
    )
    pieces: list[Piece] = []
    for number in range(draw.choice((2, 3, 4, 5, 6))):
        kinds = told.plain if draw.random() < 0.45 else told.secretive
        chosen = [name for name in kinds if name.startswith(("chat", "short", "talk"))]
        made = trimmed(told.grammar.expand(draw.choice(kinds[draw.choice(chosen)]), Scene(draw)))
        pieces += [Piece(("\n" if number else "") + speakers[number % 2]), *made]
    return pieces


def _pieces(told: Templates, draw: random.Random) -> list[Piece]:
    kind = draw.random()
    if kind < 0.42:
        return _secretive(told, draw)
    if kind < 0.50:
        return _passage(told, draw)
    if kind < 0.58:
        return _joined(told, draw, _secretive, _secretive)
    if kind < 0.62:
        return _joined(
            told, draw, *draw.choice(((_plain, _secretive), (_secretive, _plain), (_plain, _secretive, _plain)))
        )
    if kind < 0.67:
        return _talk(told, draw)
    if kind < 0.87:
        return _plain(told, draw)
    return _joined(told, draw, *[_plain] * draw.choice((2, 2, 3, 4)))

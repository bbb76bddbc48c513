"""Noise over a whole row: casing, typos, spacing, quotes, markdown.

Noise works on pieces, never on a text with offsets beside it: a piece that grows or shrinks (``ß`` in
capitals is ``SS``) moves nothing, because places are only counted when the pieces are joined.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from varied.grammar import Piece

_WORD = re.compile(r"(?<![\w@./'’-])[a-z]{4,}(?![\w@/'’-])")
_ROWS_LOWER, _ROWS_UPPER, _ROWS_TITLE = 0.15, 0.06, 0.03
_NAMES_LOWER = 0.04
_START = re.compile(r"(^|[\s(\"“/-])(\w)")
_Change = Callable[[list[Piece], random.Random], list[Piece]]


def join(pieces: Sequence[Piece]) -> tuple[str, list[dict[str, Any]]]:
    """The text of the pieces, and {start, end, label} of every sensitive one, in code points."""
    text = ""
    spans: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.label is not None:
            spans.append({"start": len(text), "end": len(text) + len(piece.text), "label": piece.label})
        text += piece.text
    return text, spans


def trimmed(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces without empty ones and without white space at the row's ends."""
    kept = [piece for piece in pieces if piece.text]
    if kept and kept[0].label is None:
        kept[0] = Piece(kept[0].text.lstrip())
    if kept and kept[-1].label is None:
        kept[-1] = Piece(kept[-1].text.rstrip())
    return [piece for piece in kept if piece.text]


def noisy(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    """The pieces as somebody might really have written them; labels and their order stay."""
    for share, change in _CHANGES:
        if draw.random() < share:
            pieces = change(pieces, draw)
    return cased(trimmed(pieces), draw)


def cased(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    """The row as it is, all lower, ALL CAPS, Title Case, or only its sensitive pieces lower."""
    kind = draw.random()
    if kind < _ROWS_LOWER:
        return [Piece(piece.text.lower(), piece.label) for piece in pieces]
    kind -= _ROWS_LOWER
    if kind < _ROWS_UPPER:
        return [Piece(piece.text.upper(), piece.label) for piece in pieces]
    kind -= _ROWS_UPPER
    if kind < _ROWS_TITLE:
        return _titled(pieces)
    if kind - _ROWS_TITLE < _NAMES_LOWER:
        return [Piece(piece.text.lower() if piece.label else piece.text, piece.label) for piece in pieces]
    return pieces


def _titled(pieces: list[Piece]) -> list[Piece]:
    told: list[Piece] = []
    before = " "
    for piece in pieces:
        text = _START.sub(lambda match: match[1] + match[2].upper(), piece.text)
        if not before.isspace() and piece.text[0] == text[0].lower():
            text = piece.text[0] + text[1:]
        told.append(Piece(text, piece.label))
        before = piece.text[-1]
    return told


def _plainly(change: Callable[[str, random.Random], str]) -> _Change:
    """``change`` over the plain pieces only."""

    def changed(pieces: list[Piece], draw: random.Random) -> list[Piece]:
        return [piece if piece.label else Piece(change(piece.text, draw)) for piece in pieces]

    return changed


def _typos(text: str, draw: random.Random) -> str:
    def typo(match: re.Match[str]) -> str:
        word = match[0]
        if draw.random() > 0.15:
            return word
        at = draw.randrange(1, len(word) - 1)
        return draw.choice(
            (
                word[:at] + word[at + 1 :],
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at] + word[at:],
                word[:at] + draw.choice("aeioutnrs") + word[at + 1 :],
            )
        )

    return _WORD.sub(typo, text)


def _short_forms(text: str, draw: random.Random) -> str:
    forms = {
        "you": "u",
        "are": "r",
        "please": "pls",
        "thanks": "thx",
        "because": "bc",
        "and": "&",
        "your": "ur",
        "with": "w/",
        "people": "ppl",
        "tomorrow": "tmrw",
    }
    return re.sub(r"\b(?:" + "|".join(forms) + r")\b", lambda m: forms[m[0]] if draw.random() < 0.6 else m[0], text)


def _tight_commas(text: str, draw: random.Random) -> str:
    return text.replace(", ", "," if draw.random() < 0.7 else " ,")


def _doubled(text: str, draw: random.Random) -> str:
    return re.sub(r"(?<=\S) (?=\S)", lambda _: "  " if draw.random() < 0.2 else " ", text)


def _broken(text: str, draw: random.Random) -> str:
    return re.sub(r"(?<=[.!?,]) ", lambda _: "\n" if draw.random() < 0.5 else " ", text)


def _exclaimed(text: str, draw: random.Random) -> str:
    return re.sub(r"[.!](?= |$)", lambda m: draw.choice(("!", "!!", "...", "…", " .", m[0])), text)


def _stressed(text: str, draw: random.Random) -> str:
    """A plain word here and there in capitals, or with a capital that no grammar asks for."""

    def stress(match: re.Match[str]) -> str:
        if draw.random() > 0.15:
            return match[0]
        return match[0].upper() if draw.random() < 0.4 else match[0].capitalize()

    return _WORD.sub(stress, text)


def _careless(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    """No capital at the beginning, and i for I."""
    told = [Piece(re.sub(r"\bI\b", "i", text), None) if label is None else Piece(text, label) for text, label in pieces]
    if told and told[0].label is None:
        told[0] = Piece(told[0].text[:1].lower() + told[0].text[1:])
    return told


def _curly(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    told = []
    for text, label in pieces:
        text = re.sub(r"(^|[\s(])\"", r"\1“", text).replace('"', "”").replace("'", "’")
        told.append(Piece(text, label))
    return told


def _unended(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    *rest, last = pieces
    return pieces if last.label else [*rest, Piece(last.text.rstrip().rstrip(".!"))]


def _marked(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    """Markdown, HTML or quotes around the sensitive pieces; ``*`` and the like stay plain."""
    left, right = draw.choice(
        (
            ("**", "**"),
            ("*", "*"),
            ("_", "_"),
            ("`", "`"),
            ("<b>", "</b>"),
            ('"', '"'),
            ("'", "'"),
            ("(", ")"),
            ("[", "]"),
            ("“", "”"),
            ("<", ">"),
        )
    )
    told: list[Piece] = []
    for piece in pieces:
        wrapped = piece.label is not None and draw.random() < 0.6
        told += [Piece(left), piece, Piece(right)] if wrapped else [piece]
    return told


def _prefixed(pieces: list[Piece], draw: random.Random) -> list[Piece]:
    prefix = draw.choice(
        (
            "Customer: ",
            "Agent: ",
            "USR: ",
            "SYS: ",
            "User: ",
            "Assistant: ",
            "Q: ",
            "A: ",
            "> ",
            ">> ",
            "- ",
            "* ",
            "• ",
            "1. ",
            "2) ",
            "# ",
            "Note: ",
            "RE: ",
            "FYI ",
            "(1) ",
            "Human: ",
            "bot: ",
            "me: ",
            "<p>",
            "\t",
            "a) ",
            "### ",
            "| ",
            "... ",
            "[user] ",
            "Caller: ",
            "- \\[ ] ".replace("\\", ""),
        )
    )
    return [Piece(prefix), *pieces]


_CHANGES: tuple[tuple[float, _Change], ...] = (
    (0.07, _plainly(lambda text, draw: text.replace("'", ""))),
    (0.10, _plainly(_typos)),
    (0.04, _plainly(_short_forms)),
    (0.04, _plainly(_tight_commas)),
    (0.04, _plainly(_doubled)),
    (0.05, _plainly(_broken)),
    (0.05, _plainly(_exclaimed)),
    (0.06, _plainly(_stressed)),
    (0.06, _careless),
    (0.18, _unended),
    (0.06, _curly),
    (0.05, _marked),
    (0.09, _prefixed),
)

"""Texts that break tokenizers."""

from __future__ import annotations

from collections.abc import Iterable

from redactory.detectors.engine import Reading

NASTY = (
    "I don't know Anna, she's gonna leave",
    "😀 Anna 👨‍👩‍👧 Maria!!",
    "\u200fAnna\u200e lives\u202e in Oslo",
    "مرحبا يا أحمد في دمشق",
    "\u200b",
    "An\u200bna",
    "\x00 Anna \x07\x00",
    "cafe\u0301 José ﬁne ½ 株式会社",
    "\x1f\x1c Anna\x85\u2028Robert\u00a0\u3000",
    "Anna\r\n\r\nRobert\n\tOslo \n",
    "x" * 1_000 + " Anna",
    "(" * 400 + "'" * 400,
    "a\u0301" * 200,
    "[SEP] Anna [PAD] <s> </s> [UNK] ##na ▁ Ġ",
    "<MASK> lives in <MASK>",
)

EMPTY = ("", " ", "\n", " \t\r\n\u00a0\u3000\u2028")


def covered_by(reading: Reading, text: str) -> bool:
    """Whether the scored tokens leave out nothing but white space, in order, and spans lie on them."""
    reached = 0
    for start, end, probability, _ in reading.plain:
        if not (reached <= start < end <= len(text) and 0 <= probability <= 1):
            return False
        if text[reached:start].strip():
            return False
        reached = end
    starts, ends = {p.start for p in reading.plain}, {p.end for p in reading.plain}
    whole = all(s.start in starts and s.end in ends and 0 <= s.score <= 1 for s in reading.spans)
    return whole and not text[reached:].strip()


def alone(readings: Iterable[Reading]) -> Reading:
    """The one reading of a batch of one."""
    (reading,) = readings
    return reading

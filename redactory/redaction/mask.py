"""Masking: one token, and a pure function of a text and the spans beside it."""

from __future__ import annotations

from collections.abc import Iterable

MASK = "<MASK>"
"""The one token for a redaction and for a duplicate alike (CRT, appendix A.6, item 4)."""


def merge_intervals(text: str, intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of ``intervals`` (code points, end exclusive), sorted and disjoint.

    Intervals that overlap, touch, or have only white space between them become one.  n log n in
    their number.  ``ValueError`` for an interval that is empty or outside the text.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if not 0 <= start < end <= len(text):
            raise ValueError(f"interval [{start}, {end}) does not lie in a text of {len(text)} code points")
        if merged and (start <= merged[-1][1] or text[merged[-1][1] : start].isspace()):
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def mask(text: str, intervals: Iterable[tuple[int, int]]) -> str:
    """``text`` with each merged interval replaced by :data:`MASK`; no masked character survives."""
    pieces: list[str] = []
    position = 0
    for start, end in merge_intervals(text, intervals):
        pieces += (text[position:start], MASK)
        position = end
    return "".join(pieces) + text[position:]

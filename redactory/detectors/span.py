"""A span: where, what, how sure, by whom."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that said so."""

    start: int
    end: int
    label: str
    score: float
    detector: str

"""A span: where, what, how sure, by whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that said so."""

    start: int
    end: int
    label: str
    score: float
    detector: str


# The one interface of engines: texts in; spans and, where the engine can, plain-confidence out.


TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED = "too_long", "pattern_timeout", "engine_error", "misaligned"
"""Reason codes of texts that could not be processed."""


class Plain(NamedTuple):
    """Code points [start, end) of one token and the probability that it is plain, outside every entity."""

    start: int
    end: int
    probability: float
    detector: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything engines say about one text, before any policy.

    ``allowed`` holds places that an allow list vouches for.  ``failure`` is a reason code when the text
    could not be processed; then the other fields mean nothing.
    """

    spans: tuple[Span, ...] = ()
    plain: tuple[Plain, ...] = ()
    allowed: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    def shifted(self, by: int) -> Reading:
        """The same reading with every place moved to the right, for a window of a longer text."""
        if not by or self.failure:
            return self
        return Reading(
            tuple(s._replace(start=s.start + by, end=s.end + by) for s in self.spans),
            tuple(p._replace(start=p.start + by, end=p.end + by) for p in self.plain),
            tuple((start + by, end + by) for start, end in self.allowed),
        )


class Finds(NamedTuple):
    """What one part of an engine (a model, a recognizer, a list) can find, told without loading it.

    ``language`` is that of the running text it was made for, None where that is not known.  ``asked_for``
    holds those of its ``labels`` that are masked because the configuration names the part.
    """

    part: str
    labels: frozenset[str]
    language: str | None = None
    asked_for: frozenset[str] = frozenset()


class Engine(Protocol):
    """Reads texts; the reading of a text is a function of that text alone, never of its batch.

    An engine that raises is asked again for each text alone, and a text it cannot read alone has failed.
    """

    def read(self, texts: Sequence[str]) -> list[Reading]: ...


def joined(readings: Iterable[Reading]) -> Reading:
    """What several engines, or several windows, say of one text; a failure of one is a failure of all."""
    readings = list(readings)
    for reading in readings:
        if reading.failure is not None:
            return Reading(failure=reading.failure)
    if len(readings) == 1:
        return readings[0]
    return Reading(
        tuple(span for reading in readings for span in reading.spans),
        tuple(token for reading in readings for token in reading.plain),
        tuple(place for reading in readings for place in reading.allowed),
    )

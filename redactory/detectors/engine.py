"""The one interface of engines: what they read in one text."""

from __future__ import annotations

from dataclasses import dataclass

from redactory.detectors.span import Span


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything the engines say about one text, before any policy.

    ``plain`` holds, for each token that an engine scored, (start, end, probability that the token is
    plain, that is outside every entity).  ``failure`` is a reason code when the text could not be
    processed; then the other fields mean nothing.
    """

    spans: tuple[Span, ...] = ()
    plain: tuple[tuple[int, int, float], ...] = ()
    failure: str | None = None

"""Routing: a point's side is a function of its own text and its own hits, of nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from redactory.detectors import Detection
from redactory.redaction.mask import MASK, mask, merge_intervals

PUBLIC, PRIVATE = "public", "private"
MASK_REASON = "mask:IN_TEXT"
_STANDING = re.compile(re.escape(MASK))


@dataclass(frozen=True, slots=True)
class Fate:
    """F(s), the whole per-point pipeline on one text (``docs/guarantees.md``, what a miss is).

    ``side`` is public or private; ``text`` is masked by π; ``reasons`` say why a point is private, as
    ``detector:LABEL``; ``failure`` is the reason code of a quarantined point, whose text is empty and
    which counts as private.  ``masks`` is how many masks stand in the text because of π.
    """

    side: str
    text: str
    reasons: tuple[str, ...]
    masks: int = 0
    failure: str | None = None


def route(text: str, detection: Detection) -> Fate:
    """The fate of one point: CRT, Algorithm 1, lines 2 to 4, with redaction before deduplication."""
    if detection.failure is not None:
        return Fate(PRIVATE, "", (), 0, detection.failure)
    intervals = [(span.start, span.end) for span in detection.strict]
    reasons = {f"{s.detector}:{s.label}" for s in (*detection.strict, *detection.conservative)}
    masks = len(merge_intervals(text, intervals))
    # it must not matter whether a mask is ours or stood in the raw text (CRT, A.6, item 4): both make the
    # point private, and both become one mask with a neighbour
    standing = [match.span() for match in _STANDING.finditer(text)]
    if standing:
        reasons.add(MASK_REASON)
        intervals += standing
    masked = mask(text, intervals) if intervals else text
    return Fate(PRIVATE if reasons else PUBLIC, masked, tuple(sorted(reasons)), masks)


def fates(texts: Sequence[str], detections: Sequence[Detection]) -> list[Fate]:
    """:func:`route` for many texts."""
    return [route(text, detection) for text, detection in zip(texts, detections, strict=True)]

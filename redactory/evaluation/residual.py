"""Residual identifiers: what an engine that had no part in masking still finds in the shards.

An engine overlooks the same thing twice; another one overlooks other things.  It takes plain words for names
too, and marks days and numbers that are nobody's: what cannot point at anybody is left out, so that what is
listed can be looked through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

from redactory.detectors.engine import Reading
from redactory.detectors.settings import SUSPECTED_LABELS
from redactory.detectors.span import Span
from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.redaction.values import tells

Reader = Callable[[Sequence[str]], Sequence[Reading]]
MOST_LISTED = 100
_CHUNK = 256


def residual_identifiers(
    read: Reader,
    points: Sequence[tuple[str, str]],
    most: int = 5_000,
    seed: int = 0,
    progress: Progress = silent,
    words: Set[str] | None = None,
) -> dict[str, Any]:
    """What ``read`` finds in ``points`` ((point id, text as released)), on a sample of at most ``most``.

    A hit that touches a mask is none: masking was there already; nor is one of ordinary ``words``, or of
    a label that is only suspected by default (``SUSPECTED_LABELS``).

    Returns {points, looked_at, failed, held, share: {value, low, high} (Clopper-Pearson, 95 % two-sided),
    labels: {label: hits}, listed: [{point_id, labels}]}; ``listed`` names at most 100 points, without their
    text. A text that the engine could not read counts in ``failed`` and in no share.
    """
    order = RandomStream.from_seed(seed).permutation("residual identifiers", 0, len(points))[:most]
    drawn = [points[int(place)] for place in sorted(order)]
    labels: Counter[str] = Counter()
    listed: list[dict[str, Any]] = []
    held = failed = 0
    for start in range(0, len(drawn), _CHUNK):
        some = drawn[start : start + _CHUNK]
        for (point_id, text), reading in zip(some, read([text for _, text in some]), strict=True):
            if reading.failure is not None:
                failed += 1
                continue
            found = Counter(s.label for s in reading.spans if _is_telling(text, s, words))
            labels.update(found)
            held += bool(found)
            if found and len(listed) < MOST_LISTED:
                listed.append({"point_id": point_id, "labels": dict(sorted(found.items()))})
        progress("residual identifiers", min(start + _CHUNK, len(drawn)), len(drawn), "points")
    read_at_all = len(drawn) - failed
    return {
        "points": len(points),
        "looked_at": len(drawn),
        "failed": failed,
        "held": held,
        "share": _share(held, read_at_all),
        "labels": dict(labels.most_common()),
        "listed": listed,
    }


def _share(held: int, read: int) -> dict[str, float | None]:
    if not read:
        return {"value": None, "low": None, "high": None}
    return {
        "value": held / read,
        "low": lower_bound(held, read, 0.975),
        "high": upper_bound(held, read, 0.975),
    }


def _is_telling(text: str, span: Span, words: Set[str] | None) -> bool:
    if span.label in SUSPECTED_LABELS or _on_mask(text, span.start, span.end):
        return False
    return words is None or tells(text[span.start : span.end], words)


def _on_mask(text: str, start: int, end: int) -> bool:
    place = text.find(MASK, max(start - len(MASK) + 1, 0))
    return place != -1 and place < end

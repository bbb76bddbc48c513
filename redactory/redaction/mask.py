"""Masking and routing: one token, and a split that follows from a text and its own hits alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from redactory.detectors import Detection

# Masking: one token, and a pure function of a text and the spans beside it.


MASK = "<MASK>"
"""The one token for a redaction and for a duplicate alike (CRT, appendix A.6, item 4).

:func:`mask` puts it into examples, :func:`redactory.redaction.replacements.plan_edits` into copies of files.
"""


def merge_intervals(text: str, intervals: Iterable[tuple[int, int]], near: bool = True) -> list[tuple[int, int]]:
    """The union of ``intervals`` (code points, end exclusive), sorted and disjoint.

    Intervals that overlap become one, and those that are ``near``: that touch, or have only white space
    between them.  n log n in their number.  ``ValueError`` for one that is empty or outside the text.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if not 0 <= start < end <= len(text):
            raise ValueError(f"interval [{start}, {end}) is outside a text of {len(text)} code points")
        reached = merged[-1][1] if merged else 0
        if merged and (start < reached or (near and not text[reached:start].strip())):
            merged[-1] = (merged[-1][0], max(reached, end))
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


# Routing: a point's side is a function of its own text and its own hits, or of those of its whole document.


PUBLIC, PRIVATE = "public", "private"
TURN_MARK, ROLE_MARK = "\x1e", "\x1f"
"""What stands between two texts of one document, and behind the role of whoever said one."""
MASK_REASON, DOCUMENT_REASON = "mask:IN_TEXT", "document:PRIVATE"
_LITERAL_MASK = re.compile(re.escape(MASK))


@dataclass(frozen=True, slots=True)
class RoutingDecision:
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


def route(text: str, detection: Detection) -> RoutingDecision:
    """The fate of one point: CRT, Algorithm 1, lines 2 to 4, with redaction before deduplication."""
    if detection.failure is not None:
        return RoutingDecision(PRIVATE, "", (), 0, detection.failure)
    intervals = [(span.start, span.end) for span in detection.strict]
    reasons = {f"{s.detector}:{s.label}" for s in (*detection.strict, *detection.conservative)}
    masks = len(merge_intervals(text, intervals))
    # it must not matter whether a mask is ours or stood in the raw text (CRT, A.6, item 4): both make the
    # point private, and both become one mask with a neighbour
    standing = [match.span() for match in _LITERAL_MASK.finditer(text)]
    if standing:
        reasons.add(MASK_REASON)
        intervals += standing
    masked = mask(text, intervals) if intervals else text
    return RoutingDecision(PRIVATE if reasons else PUBLIC, masked, tuple(sorted(reasons)), masks)


_IN_WORDS = {
    MASK_REASON: f"{MASK} was already in the text",
    DOCUMENT_REASON: "another example of its document is private",
    "count:FEW": "too few users wrote it",
    "rule:DIGIT": "a digit",
    "rule:SYMBOL": "a sign of an address, as @",
    "rule:CAPITAL": "a capital away from the start of a sentence",
    "rule:NAME": "a word on the list of given names",
    "rule:WORD": "a word that is not in the word list",
    "rule:EVERYTHING": "every example is private, as configured",
}


def describe_reason(reason: str) -> str:
    """What a reason of a private point means; nothing where the label says it: an engine found that."""
    detector, _, label = reason.rpartition(":")
    if label == "UNSURE":
        return "a word that the engine is unsure about"
    return _IN_WORDS.get(reason, "a value found elsewhere in its document" if detector == "known" else "")


def merge_document_decisions(decisions: Sequence[RoutingDecision]) -> list[RoutingDecision]:
    """The fates of all points of one document that decides as a whole (``release.unit: document``).

    With one private point, or one that was not processed, all are private.
    """
    if all(fate.side == PUBLIC for fate in decisions):
        return list(decisions)
    return [
        replace(fate, side=PRIVATE, reasons=(DOCUMENT_REASON,)) if fate.side == PUBLIC else fate for fate in decisions
    ]

"""Mask spans with one token, and route examples to a split by their own text and spans alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from redactory.detectors import Detection

MASK = "<MASK>"
"""The token for redactions and duplicates alike (CRT, appendix A.6, item 4).

:func:`mask_intervals` puts it into examples, :func:`redactory.redaction.replacements.plan_edits` into copies of files.
"""


def merge_intervals(text: str, intervals: Iterable[tuple[int, int]], merge_near: bool = True) -> list[tuple[int, int]]:
    """Merge ``intervals`` (code points, end exclusive) into sorted disjoint ones.

    Intervals that overlap are merged, and also ``merge_near`` ones: adjacent, or separated only by white space. Time n
    log n. ``ValueError`` for an interval that is empty or outside the text.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if not 0 <= start < end <= len(text):
            raise ValueError(f"interval [{start}, {end}) is outside a text of {len(text)} code points")
        reached = merged[-1][1] if merged else 0
        if merged and (start < reached or (merge_near and not text[reached:start].strip())):
            merged[-1] = (merged[-1][0], max(reached, end))
        else:
            merged.append((start, end))
    return merged


class Edit(NamedTuple):
    """Code points [start, end) of a text, the new text, and the kind of the old one."""

    start: int
    end: int
    new: str
    kind: str = ""


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply sorted, disjoint ``edits`` to ``text``."""
    pieces, position = list[str](), 0
    for edit in edits:
        pieces += (text[position : edit.start], edit.new)
        position = edit.end
    return "".join(pieces) + text[position:]


def mask_intervals(text: str, intervals: Iterable[tuple[int, int]]) -> str:
    """Replace each merged interval of ``text`` by :data:`MASK`; no masked character survives."""
    return apply_edits(text, (Edit(start, end, MASK) for start, end in merge_intervals(text, intervals)))


PUBLIC, PRIVATE = "public", "private"
TURN_MARK, ROLE_MARK = "\x1e", "\x1f"
"""Separates two texts of one document, and follows the role of a speaker."""
MASK_REASON, DOCUMENT_REASON = "mask:IN_TEXT", "document:PRIVATE"
_LITERAL_MASK = re.compile(re.escape(MASK))


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """F(s), the result of the per-example pipeline on one text (``docs/guarantees.md``, what a miss is).

    ``split`` is public or private; ``text`` is masked by π; ``reasons`` explain a private example, as
    ``detector:LABEL``; ``failure`` is the reason code of a quarantined example, whose text is empty and which counts as
    private. ``masks`` counts the masks that π put into the text.
    """

    split: str
    text: str
    reasons: tuple[str, ...]
    masks: int = 0
    failure: str | None = None


def route_example(text: str, detection: Detection) -> RoutingDecision:
    """Decide the split of one example: CRT, Algorithm 1, lines 2 to 4, with redaction before deduplication."""
    if detection.failure is not None:
        return RoutingDecision(PRIVATE, "", (), 0, detection.failure)
    intervals = [(span.start, span.end) for span in detection.strict]
    reasons = {f"{s.detector}:{s.label}" for s in (*detection.strict, *detection.conservative)}
    masks = len(merge_intervals(text, intervals))
    # a mask in the raw text must count like ours (CRT, A.6, item 4): both make the
    # example private, and both merge with a neighbouring mask
    literal_masks = [match.span() for match in _LITERAL_MASK.finditer(text)]
    if literal_masks:
        reasons.add(MASK_REASON)
        intervals += literal_masks
    masked = mask_intervals(text, intervals) if intervals else text
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
    """Explain a reason of a private example; empty for an engine's label, which explains itself."""
    detector, _, label = reason.rpartition(":")
    if label == "UNSURE":
        return "a word that the engine is unsure about"
    return _IN_WORDS.get(reason, "a value found elsewhere in its document" if detector == "known" else "")


def merge_document_decisions(decisions: Sequence[RoutingDecision]) -> list[RoutingDecision]:
    """Merge the decisions of one document (``release.unit: document``): all private if one is private or failed."""
    if all(decision.split == PUBLIC for decision in decisions):
        return list(decisions)
    return [
        replace(decision, split=PRIVATE, reasons=(DOCUMENT_REASON,)) if decision.split == PUBLIC else decision
        for decision in decisions
    ]

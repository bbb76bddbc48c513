"""What a finished curation should make its owner look at: rows that were not used, a side that is empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redactory.pipelines.readers.documents import rejected_as

_SHOWN = 3


def curated_hints(result: dict[str, Any]) -> Iterator[str]:
    """Sentences, none where nothing strikes; ``result`` is what ``redactory curate`` prints."""
    commonest = sorted(result["rejected_by_reason"].items(), key=lambda entry: -entry[1])[:_SHOWN]
    for reason, count in commonest:
        yield rejected_as(reason, count)
    if not result["rows"]:
        yield "The input has no rows: see whether input.path names the right files."
    elif not result["documents"]:
        yield "No row could be used: 'redactory describe' shows the first of them."
    elif result["public"] and not result["private"] + result["quarantined"]:
        yield (
            "Every point is public: nothing was found to protect. See whether detect.language is that of the "
            "text; 'redactory explain TEXT' shows what is found in one."
        )
    elif result["private"] and not result["public"] + result["quarantined"]:
        yield (
            "Every point is private: a model has no public text to learn words from. 'redactory explain "
            "TEXT' shows why; the rules are set in detect.conservative."
        )

"""Exact canary exposure: the rank of a planted number among all that could have stood in its place.

CRT, Definition 9 (after Carlini et al., 2019): exposure = log2 |R| - log2 rank, R all strings of as many
digits.  Nothing is sampled: the digits are walked as a trie, in which each prefix is read by the model once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.trie import continuation_log_probs
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel

_PLACE = "{digits}"
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")


def canary_exposure(
    model: LanguageModel,
    canaries: Mapping[str, Any],
    copies_left: Sequence[int] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Exposure of every inserted canary and of every control canary, exact over all 10^digits candidates.

    ``canaries`` is what ``write_simulation`` put beside the corpus: {template, inserted, control, copies}.
    A candidate's score is the log probability of its digits after the template's words before them; ties
    count as the middle of their ranks, so that a model that knows nothing gives every canary one bit.

    Returns {highest_exposure, mean_exposure, control_highest_exposure, control_mean_exposure, candidates,
    largest_possible, copies, canaries: [{index, inserted, rank, exposure}]}, a figure over no canary being
    null.  Digits stand for secrets and are not told: ``index`` counts within the inserted or the
    control canaries.  ``copies_left`` (:func:`canary_copies_left`) is shown beside each inserted canary.

    Raises ``InputError`` for canaries that do not fit the template or each other.
    """
    inserted, control = list(canaries["inserted"]), list(canaries["control"])
    before, digits = _checked(str(canaries["template"]), inserted + control, copies_left, len(inserted))
    scores = continuation_log_probs(model, before, digits, progress)
    rows = [
        _canary(scores, number, index, planted)
        for numbers, planted in ((inserted, True), (control, False))
        for index, number in enumerate(numbers)
    ]
    for row, left in zip(rows, copies_left or (), strict=False):
        row["copies_left"] = left
    planted_bits = [row["exposure"] for row in rows if row["inserted"]]
    control_bits = [row["exposure"] for row in rows if not row["inserted"]]
    return {
        "highest_exposure": max(planted_bits, default=None),
        "mean_exposure": _mean(planted_bits),
        "control_highest_exposure": max(control_bits, default=None),
        "control_mean_exposure": _mean(control_bits),
        "candidates": len(scores),
        "largest_possible": math.log2(len(scores)),
        "copies": canaries["copies"],
        "copies_left": sum(copies_left) if copies_left is not None else None,
        "canaries": rows,
    }


def middle_rank(scores: NDArray[np.float64], candidate: int) -> float:
    """Rank of ``scores[candidate]``, 1 the highest; equal scores share the middle of their ranks."""
    score = scores[candidate]
    above, equal = int(np.count_nonzero(scores > score)), int(np.count_nonzero(scores == score))
    return above + (equal + 1) / 2


def canary_copies_left(folders: Iterable[Path], canaries: Mapping[str, Any]) -> list[int]:
    """For each inserted canary, in how many points of the data ``folders`` it still stands.

    Given the folders that a model was trained on, this is what it could see of it: of the shards,
    what masking and deduplication left; of the vault, every copy.
    """
    wanted = set(canaries["inserted"])
    found: Counter[str] = Counter()
    for folder in folders:
        for batch in read_batches(folder, ["text"]):
            for text in batch.column(0).to_pylist():
                found.update(wanted.intersection(_NUMBER.findall(str(text))))
    return [found[number] for number in canaries["inserted"]]


def _canary(scores: NDArray[np.float64], number: str, index: int, planted: bool) -> dict[str, Any]:
    rank = middle_rank(scores, int(number))
    exposure = math.log2(len(scores)) - math.log2(rank)
    return {"index": index, "inserted": planted, "rank": rank, "exposure": exposure}


def _checked(
    template: str, numbers: list[str], copies_left: Sequence[int] | None, inserted: int
) -> tuple[str, int]:
    """The words before the digits, and how many digits there are."""
    lengths = {len(number) for number in numbers}
    if not template.endswith(_PLACE):
        raise InputError(f"canaries: the template must end with {_PLACE}")
    if len(lengths) != 1 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise InputError("canaries: at least one number, all of decimal digits, as many in each")
    if copies_left is not None and len(copies_left) != inserted:
        raise InputError("canaries: copies_left must have one count for each inserted canary")
    return template.removesuffix(_PLACE), lengths.pop()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

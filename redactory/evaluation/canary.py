"""Canary exposure: the rank of a planted number among all that could have stood in its place.

CRT, Definition 9 (after Carlini et al., 2019): exposure = log2 |R| - log2 rank, R all strings of as many
digits.  Up to a million of them nothing is sampled: the digits are walked as a trie, in which each prefix is
read by the model once.  A larger R is sampled (``extrapolation.py``).
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

from redactory.evaluation.canary_sets import CanarySet, canary_sets, with_missed
from redactory.evaluation.exposure_intervals import exposure_against_chance
from redactory.evaluation.extrapolation import extrapolated_exposure
from redactory.evaluation.trie import continuation_log_probs, given_log_probs
from redactory.evaluation.weighted_sample import drawn_numbers
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel

EXACT = "exact"
EXACT_UP_TO = 10**6
SAMPLES = 20_000
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")


def canary_exposure(
    model: LanguageModel,
    canaries: Mapping[str, Any],
    copies_left: Sequence[int] | None = None,
    progress: Progress = silent,
    samples: int = SAMPLES,
    seed: int = 0,
    missed: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Exposure of every inserted canary and of every control canary among all 10^digits candidates.

    ``canaries`` is what ``write_simulation`` put beside the corpus: {template, inserted, control, copies,
    missed?}, or {"sets": [such]} for several templates.  A candidate's score is the log probability of its
    digits after the template's words before them; ties count as the middle of their ranks, so that a model
    that knows nothing gives every canary one bit.  Exact up to 10^6 candidates; of more, ``samples`` are
    drawn (``extrapolated_exposure``), and what they cannot tell is null with a reason.

    Returns {highest_exposure, mean_exposure, control_highest_exposure, control_mean_exposure, candidates
    (null where sets differ), largest_possible, method, copies, copies_left, missed, highest_exposure_missed,
    highest_exposure_caught, chance, intervals, canaries: [{set, index, inserted, missed?, rank, exposure,
    ...}]}, bits all; a figure over no canary, or over one without exposure, is null.  ``chance`` and
    ``intervals`` are those of ``exposure_against_chance``.  Digits stand for secrets and are not told:
    ``index`` counts within the inserted or the control canaries of its set.  ``copies_left``
    (:func:`canary_copies_left`, over all sets) is shown beside each inserted canary; ``missed`` says which
    of them π missed, in place of what the file says.

    Raises ``InputError`` for canaries that do not fit the template or each other.
    """
    sets = canary_sets(canaries)
    sets = sets if missed is None else with_missed(sets, missed)
    planted = sum(len(one.inserted) for one in sets)
    if copies_left is not None and len(copies_left) != planted:
        raise InputError("canaries: copies_left must have one count for each inserted canary")
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(sets):
        found = _exposures(model, one, samples, seed, progress)
        rows += [{**({"set": number} if len(sets) > 1 else {}), **row} for row in found]
    for row, left in zip((row for row in rows if row["inserted"]), copies_left or (), strict=False):
        row["copies_left"] = left
    return _summary(sets, rows, copies_left)


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
    inserted = [number for one in canary_sets(canaries) for number in one.inserted]
    wanted = set(inserted)
    found: Counter[str] = Counter()
    for folder in folders:
        for batch in read_batches(folder, ["text"]):
            for text in batch.column(0).to_pylist():
                found.update(wanted.intersection(_NUMBER.findall(str(text))))
    return [found[number] for number in inserted]


def _exposures(
    model: LanguageModel, one: CanarySet, samples: int, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """A row for each canary of a set, the inserted ones first."""
    if one.candidates <= EXACT_UP_TO:
        scores = continuation_log_probs(model, one.before, one.digits, progress)
        ranks = [middle_rank(scores, int(number)) for number in one.inserted + one.control]
        most = math.log2(len(scores))
        figures = [{"rank": rank, "exposure": most - math.log2(rank)} for rank in ranks]
    else:
        figures = _sampled(model, one, samples, seed, progress)
    rows = []
    for place, figure in enumerate(figures):
        planted = place < len(one.inserted)
        index = place if planted else place - len(one.inserted)
        missed = {"missed": index in one.missed} if planted and one.missed else {}
        rows.append({"index": index, "inserted": planted, **missed, **figure})
    return rows


def _sampled(
    model: LanguageModel, one: CanarySet, samples: int, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    stream = RandomStream.from_seed(seed)
    draws = stream.uniform("canary candidates", 0, samples * one.digits)
    digits = (draws * 10.0).astype(np.uint8).reshape(samples, one.digits) + ord("0")
    strings = [row.tobytes().decode("ascii") for row in digits]
    scores = given_log_probs(model, one.before, [*one.inserted, *one.control, *strings], progress)
    planted = len(one.inserted) + len(one.control)
    drawn = drawn_numbers(model, one.before, one.digits, samples, stream)
    return extrapolated_exposure(scores[planted:], scores[:planted], one.candidates, drawn)


def _summary(
    sets: Sequence[CanarySet], rows: list[dict[str, Any]], copies_left: Sequence[int] | None
) -> dict[str, Any]:
    planted = [row["exposure"] for row in rows if row["inserted"]]
    control = [row["exposure"] for row in rows if not row["inserted"]]
    known = None not in planted + control
    spaces, copies = {one.candidates for one in sets}, {one.copies for one in sets}
    methods = {row.get("method", EXACT) for row in rows}
    missed = [row["exposure"] for row in rows if row.get("missed")]
    caught = [row["exposure"] for row in rows if row["inserted"] and not row.get("missed")]
    return {
        "highest_exposure": _highest(planted),
        "mean_exposure": _mean(planted),
        "control_highest_exposure": _highest(control),
        "control_mean_exposure": _mean(control),
        "candidates": spaces.pop() if len(spaces) == 1 else None,
        "largest_possible": max(math.log2(one.candidates) for one in sets),
        "method": methods.pop() if len(methods) == 1 else "mixed",
        "copies": copies.pop() if len(copies) == 1 else None,
        "copies_left": sum(copies_left) if copies_left is not None else None,
        "missed": sum(len(one.missed) for one in sets),
        "highest_exposure_missed": _highest(missed),
        "highest_exposure_caught": _highest(caught),
        **exposure_against_chance(planted if known else (), control if known else ()),
        "reasons": sorted({row["reason"] for row in rows if row.get("reason")}),
        "canaries": rows,
    }


def _highest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None

"""Canary exposure: the rank of a planted number among all that could have stood in its place."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redactory.evaluation.continuations import (
    Scores,
    continuation_log_probs,
    drawn_numbers,
    given_log_probs,
)
from redactory.evaluation.extrapolation import extrapolated_exposure
from redactory.evaluation.statistics import figure, percentiles
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel

PLACE = "{digits}"
EXACT, EXACT_UP_TO = "exact", 10**6
SAMPLES = 20_000
_RESAMPLES = 2_000
_NATS = math.log(2.0)
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")


@dataclass(frozen=True)
class CanarySet:
    """Numbers of ``digits`` digits after the words ``before``; ``missed`` are indices of ``inserted``."""

    before: str
    digits: int
    inserted: tuple[str, ...] = field(repr=False)
    control: tuple[str, ...] = field(repr=False)
    copies: int
    missed: frozenset[int] = frozenset()

    @property
    def candidates(self) -> int:
        """|R|: all numbers of as many digits."""
        return int(10**self.digits)


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
    planted = sum(len(one.inserted) for one in sets)
    if missed is not None:
        if len(missed) != planted:
            raise InputError("canaries: missed must say of each inserted canary whether it was")
        said = iter(missed)
        sets = [replace(o, missed=frozenset(n for n in range(len(o.inserted)) if next(said))) for o in sets]
    if copies_left is not None and len(copies_left) != planted:
        raise InputError("canaries: copies_left must have one count for each inserted canary")
    rows: list[dict[str, Any]] = []
    left = iter(copies_left or ())
    for number, one in enumerate(sets):
        for place, found in enumerate(_exposures(model, one, samples, seed, progress)):
            inserted = place < len(one.inserted)
            index = place if inserted else place - len(one.inserted)
            row = {"set": number} if len(sets) > 1 else {}
            row |= {"index": index, "inserted": inserted}
            row |= {"missed": index in one.missed} if inserted and one.missed else {}
            rows.append(row | found | ({"copies_left": next(left)} if inserted and copies_left else {}))
    return _summary(sets, rows, copies_left)


def canary_sets(canaries: Mapping[str, Any]) -> list[CanarySet]:
    """The sets of a canary file: {template, inserted, control, copies, missed?}, or {"sets": [such]}.

    ``InputError`` for canaries that do not fit their template or each other.
    """
    sets = canaries.get("sets", [canaries])
    if not sets:
        raise InputError("canaries: at least one set is needed")
    try:
        return [_set(one) for one in sets]
    except (KeyError, TypeError, AttributeError):
        raise InputError("canaries: each set needs template, inserted, control and copies") from None


def _set(one: Mapping[str, Any]) -> CanarySet:
    template = str(one["template"])
    inserted, control = tuple(one["inserted"]), tuple(one["control"])
    numbers = inserted + control
    if not template.endswith(PLACE) or template.count(PLACE) != 1:
        raise InputError(f"canaries: the template must end with {PLACE}")
    lengths = {len(number) for number in numbers}
    if len(lengths) != 1 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise InputError("canaries: at least one number, all of decimal digits, as many in each")
    missed = frozenset(one.get("missed", ()))
    if not missed <= set(range(len(inserted))):
        raise InputError("canaries: missed must hold indices of inserted canaries")
    before = template.removesuffix(PLACE)
    return CanarySet(before, lengths.pop(), inserted, control, int(one["copies"]), missed)


def canary_copies_left(folders: Iterable[Path], canaries: Mapping[str, Any]) -> list[int]:
    """For each inserted canary, in how many points of the data ``folders`` it still stands.

    Given the folders that a model was trained on, this is what it could see of it: of the shards,
    what masking and deduplication left; of the vault, every copy.
    """
    inserted = [number for one in canary_sets(canaries) for number in one.inserted]
    wanted, found = set(inserted), Counter[str]()
    for folder in folders:
        for batch in read_batches(folder, ["text"]):
            for text in batch.column(0).to_pylist():
                found.update(wanted.intersection(_NUMBER.findall(str(text))))
    return [found[number] for number in inserted]


def middle_rank(scores: Scores, candidate: int) -> float:
    """Rank of ``scores[candidate]``, 1 the highest; equal scores share the middle of their ranks."""
    score = scores[candidate]
    above, equal = int(np.count_nonzero(scores > score)), int(np.count_nonzero(scores == score))
    return above + (equal + 1) / 2


def _exposures(
    model: LanguageModel, one: CanarySet, samples: int, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """Rank and exposure of each canary of a set, the inserted ones first."""
    numbers = one.inserted + one.control
    if one.candidates <= EXACT_UP_TO:
        scores = continuation_log_probs(model, one.before, one.digits, progress)
        ranks = [middle_rank(scores, int(number)) for number in numbers]
        return [{"rank": rank, "exposure": math.log2(len(scores)) - math.log2(rank)} for rank in ranks]
    stream = RandomStream.from_seed(seed)
    draws = stream.uniform("canary candidates", 0, samples * one.digits)
    digits = (draws * 10.0).astype(np.uint8).reshape(samples, one.digits) + ord("0")
    strings = [row.tobytes().decode("ascii") for row in digits]
    scores = given_log_probs(model, one.before, [*numbers, *strings], progress)
    drawn = drawn_numbers(model, one.before, one.digits, samples, stream)
    return extrapolated_exposure(scores[len(numbers) :], scores[: len(numbers)], one.candidates, drawn)


def _summary(
    sets: Sequence[CanarySet], rows: list[dict[str, Any]], copies_left: Sequence[int] | None
) -> dict[str, Any]:
    planted = [row["exposure"] for row in rows if row["inserted"]]
    control = [row["exposure"] for row in rows if not row["inserted"]]
    missed = [row["exposure"] for row in rows if row.get("missed")]
    caught = [row["exposure"] for row in rows if row["inserted"] and not row.get("missed")]
    known = None not in planted + control
    spaces, copies = {one.candidates for one in sets}, {one.copies for one in sets}
    methods = {row.get("method", EXACT) for row in rows}
    return {
        "highest_exposure": _over(planted, max),
        "mean_exposure": _over(planted, _mean),
        "control_highest_exposure": _over(control, max),
        "control_mean_exposure": _over(control, _mean),
        "candidates": spaces.pop() if len(spaces) == 1 else None,
        "largest_possible": max(math.log2(one.candidates) for one in sets),
        "method": methods.pop() if len(methods) == 1 else "mixed",
        "copies": copies.pop() if len(copies) == 1 else None,
        "copies_left": sum(copies_left) if copies_left is not None else None,
        "missed": sum(len(one.missed) for one in sets),
        "highest_exposure_missed": _over(missed, max),
        "highest_exposure_caught": _over(caught, max),
        **exposure_against_chance(planted if known else (), control if known else ()),
        "reasons": sorted({row["reason"] for row in rows if row.get("reason")}),
        "canaries": rows,
    }


def _over(values: Sequence[float | None], of: Any) -> float | None:
    return of(values) if values and None not in values else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# How high exposures are by chance alone, and how far planted canaries lie above those never planted.


def exposure_against_chance(
    inserted: Sequence[float], control: Sequence[float], confidence: float = 0.95
) -> dict[str, Any]:
    """What to hold the exposures (bits) of ``inserted`` canaries against.

    Returns {confidence, chance, intervals}.  ``chance`` is the law of as many canaries that were never seen:
    {highest_expected, highest_95, mean_expected} in bits, and {highest_p_value, mean_p_value}, how probable
    it gives a highest or a mean exposure of at least what was found.  ``intervals`` are {mean_exposure,
    control_mean_exposure, mean_difference, highest_difference}, each {value, low, high} in bits, a percentile
    bootstrap over the canaries of each arm.  They say how far canaries differ within this one model; other
    trainings differ more.  Of a highest exposure a bootstrap is rough (its interval never reaches above what
    was found): go by ``chance``.  A figure over no canary is null.
    """
    planted, never = (np.asarray(bits, np.float64) for bits in (inserted, control))
    found = _differences(planted[None], never[None])
    drawn = _differences(_resampled(planted, "inserted"), _resampled(never, "control"))
    intervals = {name: figure(None) for name in found}
    for name, values in drawn.items():
        own = found[name]
        if own is not None and values is not None:
            low, high = percentiles(values, confidence).tolist()
            intervals[name] = figure(float(own[0]), low, high)
    return {"confidence": confidence, "chance": _chance(planted), "intervals": intervals}


def highest_quantile(canaries: int, confidence: float = 0.95) -> float:
    """The bits that the highest of ``canaries`` unseen ones stays below with probability ``confidence``."""
    return -math.log2(-math.expm1(math.log(confidence) / canaries))


def _chance(bits: Scores) -> dict[str, float | None]:
    """An unseen canary's exposure is exponential: P(at least b bits) = 2⁻ᵇ."""
    # on first use: scipy takes a fifth of a second
    from scipy.special import gammaincc

    count = len(bits)
    if not count:
        names = ("highest_expected", "highest_95", "mean_expected", "highest_p_value", "mean_p_value")
        return dict.fromkeys(names)
    highest, total = float(bits.max()), float(bits.sum()) * _NATS
    return {
        "highest_expected": sum(1.0 / k for k in range(1, count + 1)) / _NATS,
        "highest_95": highest_quantile(count),
        "mean_expected": 1.0 / _NATS,
        "highest_p_value": -math.expm1(count * math.log1p(-(2.0**-highest))) if highest > 0.0 else 1.0,
        "mean_p_value": float(gammaincc(count, max(total, 0.0))),
    }


def _differences(planted: Scores, never: Scores) -> dict[str, Scores | None]:
    """Each figure of m resamples of the two arms, [m, K] and [m, L]; None where an arm is empty."""
    some, others = planted.shape[1] > 0, never.shape[1] > 0
    both = some and others
    return {
        "mean_exposure": planted.mean(1) if some else None,
        "control_mean_exposure": never.mean(1) if others else None,
        "mean_difference": planted.mean(1) - never.mean(1) if both else None,
        "highest_difference": planted.max(1) - never.max(1) if both else None,
    }


def _resampled(bits: Scores, arm: str) -> Scores:
    draws = RandomStream.from_seed(0).uniform(f"exposure {arm}", 0, _RESAMPLES * len(bits))
    return bits[(draws * len(bits)).astype(np.int64)].reshape(_RESAMPLES, len(bits))

"""Canaries as their file holds them: one template with its numbers, or several."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.candidates import (
    continuation_log_probs,
    drawn_numbers,
    extrapolated_exposure,
    given_log_probs,
)
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel


PLACE = "{digits}"


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


def with_missed(sets: Sequence[CanarySet], missed: Sequence[bool]) -> list[CanarySet]:
    """The sets with what π in fact missed, one a canary that was inserted, over all sets in order."""
    if len(missed) != sum(len(one.inserted) for one in sets):
        raise InputError("canaries: missed must say of each inserted canary whether it was")
    said = iter(missed)
    return [replace(one, missed=frozenset(n for n in range(len(one.inserted)) if next(said))) for one in sets]


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
    return CanarySet(
        template.removesuffix(PLACE), lengths.pop(), inserted, control, int(one["copies"]), missed
    )


# How high exposures are by chance alone, and how far planted canaries lie above those never planted.


RESAMPLES, SEED = 2_000, 0
_NATS = math.log(2.0)


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
    return {
        "confidence": confidence,
        "chance": _chance(planted),
        "intervals": _intervals(planted, never, confidence),
    }


def highest_quantile(canaries: int, confidence: float = 0.95) -> float:
    """The bits that the highest of ``canaries`` unseen ones stays below with probability ``confidence``."""
    return -math.log2(-math.expm1(math.log(confidence) / canaries))


def _chance(bits: NDArray[np.float64]) -> dict[str, float | None]:
    count = len(bits)
    if not count:
        names = ("highest_expected", "highest_95", "mean_expected", "highest_p_value", "mean_p_value")
        return dict.fromkeys(names)
    return {
        "highest_expected": sum(1.0 / k for k in range(1, count + 1)) / _NATS,
        "highest_95": highest_quantile(count),
        "mean_expected": 1.0 / _NATS,
        "highest_p_value": _highest_tail(float(bits.max()), count),
        "mean_p_value": _erlang_tail(float(bits.sum()) * _NATS, count),
    }


def _highest_tail(bits: float, count: int) -> float:
    """P(the highest of ``count`` is at least ``bits``)."""
    return 1.0 if bits <= 0.0 else -math.expm1(count * math.log1p(-(2.0**-bits)))


def _erlang_tail(total: float, count: int) -> float:
    """P(the sum of ``count`` exponentials of mean 1 is at least ``total``)."""
    if total <= 0.0:
        return 1.0
    k = np.arange(count, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    terms = k * math.log(total) - total - log_factorial
    return min(1.0, float(np.exp(terms).sum()))


def _intervals(
    planted: NDArray[np.float64], never: NDArray[np.float64], confidence: float
) -> dict[str, dict[str, float | None]]:
    first, second = _resampled(planted, "inserted"), _resampled(never, "control")
    found, drawn = _figures(planted[None], never[None]), _figures(first, second)
    tail = 100.0 * (1.0 - confidence) / 2.0
    intervals: dict[str, dict[str, float | None]] = {}
    for name, values in drawn.items():
        if values is None:
            intervals[name] = {"value": None, "low": None, "high": None}
            continue
        low, high = np.percentile(values, [tail, 100.0 - tail])
        value = found[name]
        assert value is not None
        intervals[name] = {"value": float(value[0]), "low": float(low), "high": float(high)}
    return intervals


def _figures(
    planted: NDArray[np.float64], never: NDArray[np.float64]
) -> dict[str, NDArray[np.float64] | None]:
    """Each figure of m resamples of the two arms, [m, K] and [m, L]; None where an arm is empty."""
    some, others = planted.shape[1] > 0, never.shape[1] > 0
    both = some and others
    return {
        "mean_exposure": planted.mean(1) if some else None,
        "control_mean_exposure": never.mean(1) if others else None,
        "mean_difference": planted.mean(1) - never.mean(1) if both else None,
        "highest_difference": planted.max(1) - never.max(1) if both else None,
    }


def _resampled(bits: NDArray[np.float64], arm: str) -> NDArray[np.float64]:
    if not len(bits):
        return np.empty((RESAMPLES, 0))
    draws = RandomStream.from_seed(SEED).uniform(f"exposure {arm}", 0, RESAMPLES * len(bits))
    found: NDArray[np.float64] = bits[(draws * len(bits)).astype(np.int64)].reshape(RESAMPLES, len(bits))
    return found


# Canary exposure: the rank of a planted number among all that could have stood in its place.


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

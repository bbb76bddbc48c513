"""Canary exposure: the rank of a planted number among all that could have stood in its place."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from redactory.evaluation.continuations import (
    DrawnNumbers,
    Scores,
    continuation_log_probs,
    drawn_numbers,
    given_log_probs,
)
from redactory.evaluation.statistics import figure, percentiles, resampled_sums
from redactory.foundation.errors import InputError
from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel


PLACE = "{digits}"
EXACT, EXACT_UP_TO = "exact", 10**6
SAMPLES = 20_000
_NATS = math.log(2.0)
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")

SAMPLED, WEIGHTED, EXTRAPOLATED = "sampled", "weighted", "extrapolated"
LEAST_ABOVE = 30
"""So many of the sample must score higher than a canary for its share to be the estimate."""
LEAST_SAMPLE = 2_000
_LARGEST_MISFIT, _LARGEST_SKEWNESS = 0.5, 0.99
_RESAMPLES, _RESAMPLES_OF_LAW = 2_000, 200
_TWO_SIDED = 1.959964


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


# A space too large to rank whole: from a sample, from the model's draws, or by a fitted law.


def extrapolated_exposure(
    sample: Scores,
    scores: Scores,
    candidates: int,
    drawn: DrawnNumbers | None = None,
    confidence: float = 0.95,
) -> list[dict[str, Any]]:
    """Exposure (bits) of canaries with these ``scores`` [K] among ``candidates``, which are all equally long.

    Scores are natural log probabilities.  ``sample`` [n] are those of candidates drawn uniformly with
    replacement, ``drawn`` those of candidates that the model drew.  Each canary is {exposure, low, high,
    at_least, method, rank, reason}; ``method`` is the first of these that can be used:

    - "sampled": at least 30 of ``sample`` score higher; their share (ties half), with its Clopper-Pearson
      interval;
    - "weighted": at least 30 of ``drawn`` do, weighted by how probable it was to draw them, from
      ``at_least`` to a normal bound; or fewer, but ``at_least`` is within a bit of the largest possible;
    - "extrapolated": the fitted law's, at most log2 of ``candidates``, with a percentile bootstrap of it;
    - null, where the law does not fit, with the reason.

    ``at_least`` is what holds without any law, one-sided at ``confidence`` for each of its sources.

    An extrapolated figure is rough: nothing checks the law beyond the sample, and its interval holds the
    fit's error alone, not the law's.  It may not be used to show that a model keeps a secret, nor to compare
    models that differ by a few bits; and it places a canary against the bulk of the candidates: other
    numbers known by heart, which a rank would count, it does not see.
    """
    ordered, law = np.sort(sample), fitted(sample)
    return [_one(ordered, float(score), candidates, drawn, law, confidence) for score in scores]


def _one(
    ordered: Scores,
    score: float,
    candidates: int,
    drawn: DrawnNumbers | None,
    law: Extrapolation,
    confidence: float,
) -> dict[str, Any]:
    n, most = len(ordered), math.log2(candidates)

    def bits(share: float) -> float:
        """-log2 of a share of the candidates; none ranks before the first."""
        return most if share <= 2.0**-most else max(0.0, -math.log2(share))

    above = n - int(np.searchsorted(ordered, score, "right"))
    reached = n - int(np.searchsorted(ordered, score, "left"))
    # no more candidates than 1/p can have a probability of p
    shares = [upper_bound(reached, n, confidence), math.exp(min(-score, 700.0)) / candidates]
    before = None if drawn is None else likelier(drawn, score, confidence)
    if before is not None:
        shares.append((1.0 + before.most) / candidates)
    at_least = bits(min(shares))
    found: dict[str, Any] = dict.fromkeys(("exposure", "low", "high", "method", "rank"))
    found["at_least"] = at_least
    if above >= LEAST_ABOVE or reached == n:
        sides = 1.0 - (1.0 - confidence) / 2.0
        low, high = bits(upper_bound(reached, n, sides)), bits(lower_bound(above, n, sides))
        value = bits((above + reached) / 2.0 / n)
        found |= {"exposure": value, "low": low, "high": high, "method": SAMPLED}
    elif before is not None and (before.high is not None or at_least >= most - 1.0):
        # candidates that are seldom drawn weigh much: a low end from the draws' own spread would be too high
        value = max(bits((1.0 + before.count) / candidates), at_least)
        high = most if before.low is None else bits((1.0 + before.low) / candidates)
        found |= {"exposure": value, "low": at_least, "high": high, "method": WEIGHTED}
    elif law.law is not None:
        # none of the law's figures is below what holds without it
        every = [float(one.exposure(np.asarray([score]))[0]) for one in (law.law, *law.others)]
        value, *others = (min(most, max(at_least, figure)) for figure in every)
        low, high = percentiles(others, confidence).tolist()
        found |= {"exposure": value, "low": low, "high": high, "method": EXTRAPOLATED}
    return {**found, "reason": law.reason if found["exposure"] is None else None}


@dataclass(frozen=True)
class Before:
    """How many candidates are likelier than a canary: ``count``, at most ``most`` (one-sided), within
    ``low``-``high``.

    ``hits`` of the numbers drawn were; where they weigh as little as fewer than 30 equal ones, there are no
    two-sided bounds.
    """

    hits: int
    count: float
    most: float
    low: float | None
    high: float | None


def likelier(drawn: DrawnNumbers, score: float, confidence: float = 0.95) -> Before:
    """How many candidates are likelier than one with log probability ``score``.

    A number that is drawn and likelier weighs at most 1/p(s), as q is never below p: so many times the upper
    Clopper-Pearson bound of the share drawn is an upper bound, and 1/p(s) itself is one.
    """
    n = len(drawn.log_p)
    above = drawn.log_p > score
    hits = int(above.sum())
    weights = np.where(above, np.exp(-drawn.log_q), 0.0)
    count = float(weights.mean())
    most = upper_bound(hits, n, confidence) * math.exp(min(-score, 700.0))
    # a few heavy draws among many light ones tell as little as few
    if weights.sum() ** 2 < LEAST_ABOVE * (weights**2).sum() or hits < LEAST_ABOVE:
        return Before(hits, count, most, None, None)
    error = _TWO_SIDED * float(weights.std()) / math.sqrt(n)
    return Before(hits, count, most, max(0.0, count - error), count + error)


class SkewNormal(NamedTuple):
    """Location, scale and shape."""

    location: float
    scale: float
    shape: float

    def exposure(self, scores: Scores) -> Scores:
        """-log2 P(a draw is at least as high), for each of ``scores``."""
        from scipy.stats import skewnorm

        tail = skewnorm.sf(scores, self.shape, self.location, self.scale)
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log2(np.clip(tail, 0.0, 1.0)))


@dataclass(frozen=True)
class Extrapolation:
    """A law for the scores of all candidates; ``law`` is None where none may be used, and ``reason`` says
    why.

    ``misfit`` is the largest distance (bits) between fit and sample over the sample's upper tail.
    """

    law: SkewNormal | None
    others: tuple[SkewNormal, ...]
    misfit: float | None
    reason: str | None


def fitted(sample: Scores) -> Extrapolation:
    """A skew-normal law of ``sample`` [n] by its first three moments, checked on a half it has not seen.

    It may not be used where the two halves' tails disagree: at the scores that 30, 100, 300, ... of the
    checked half reach, the fit to the other half must give the exposure within half a bit and twice the
    sampling error.  What lies further out than the sample is not checked by anything.
    """
    if len(sample) < LEAST_SAMPLE:
        reason = f"the sample has fewer than {LEAST_SAMPLE:,} candidates: too few to fit a law to"
        return Extrapolation(None, (), None, reason)
    if float(np.ptp(sample)) == 0.0:
        return Extrapolation(None, (), None, "all candidates of the sample have the same score")
    half = len(sample) // 2
    tail = np.sort(sample[half:])[::-1]
    counts = [k for k in (30, 100, 300, 1_000, 3_000, 10_000, 30_000) if k <= len(tail) // 10]
    exposures = _by_moments(sample[:half]).exposure(tail[np.asarray(counts) - 1])
    distances = [abs(bits - math.log2(len(tail) / k)) for k, bits in zip(counts, exposures, strict=True)]
    allowed = [_LARGEST_MISFIT + 2.0 / (math.sqrt(k) * math.log(2.0)) for k in counts]
    misfit, most, above = max(zip(distances, allowed, counts, strict=True), key=lambda row: row[0] - row[1])
    if not misfit <= most:
        return Extrapolation(
            None,
            (),
            misfit,
            f"the upper tail of the sample is not skew-normal: the fit is off by {misfit:.1f} bits where "
            f"{above} lie",
        )
    others = tuple(_of_sums(sums, sample) for sums in resampled_sums(_powers(sample), _RESAMPLES_OF_LAW))
    return Extrapolation(_by_moments(sample), others, misfit, None)


def _powers(sample: Scores) -> Scores:
    """Count and powers of the standardised scores: sums over them give a fit."""
    z = (sample - sample.mean()) / sample.std()
    return np.stack([np.ones_like(z), z, z**2, z**3], 1)


def _by_moments(sample: Scores) -> SkewNormal:
    return _of_sums(_powers(sample).sum(0), sample)


def _of_sums(sums: Scores, sample: Scores) -> SkewNormal:
    """The law whose mean, variance and skewness are those that ``sums`` of the standardised scores give."""
    first, second, third = (sums[1:] / sums[0]).tolist()
    variance = max(second - first**2, 1e-12)
    skewness = (third - 3.0 * first * variance - first**3) / variance**1.5
    skewness = min(_LARGEST_SKEWNESS, max(-_LARGEST_SKEWNESS, skewness))
    root = abs(skewness) ** (2.0 / 3.0)
    delta = math.copysign(
        math.sqrt(math.pi / 2.0 * root / (root + (2.0 - math.pi / 2.0) ** (2.0 / 3.0))), skewness
    )
    delta = min(0.99999, max(-0.99999, delta))
    scale = math.sqrt(variance / (1.0 - 2.0 * delta**2 / math.pi))
    location = first - scale * delta * math.sqrt(2.0 / math.pi)
    spread, centre = float(sample.std()), float(sample.mean())
    return SkewNormal(centre + spread * location, spread * scale, delta / math.sqrt(1.0 - delta**2))

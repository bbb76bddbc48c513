"""Measure canary exposure: the rank of a planted number among all candidates."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import scipy

from redactory import training
from redactory.evaluation.continuations import SampledNumbers, Scores, sample_numbers, score_all_numbers, score_strings
from redactory.evaluation.statistics import compute_percentile_interval, make_estimate
from redactory.foundation.errors import InputError
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_values

DIGITS_PLACEHOLDER = "{digits}"
EXACT, MAX_EXACT_CANDIDATES = "exact", 10**6
SAMPLED, WEIGHTED = "sampled", "weighted"
MIN_SAMPLES_ABOVE = 30
"""Minimum number of samples scored higher than a canary for their share to be the estimate."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")
_RESAMPLES = 2_000
_NORMAL_QUANTILE = 1.959964
_JOINED_DIGITS_REASON = "the tokenizer merges digits, and too few of the sample score higher: only at_least is known"


@dataclass(frozen=True)
class CanarySet:
    """Numbers of ``digits`` digits after a prefix; ``missed`` are indices of ``inserted``."""

    prefix: str
    digits: int
    inserted: tuple[str, ...] = field(repr=False)
    control: tuple[str, ...] = field(repr=False)
    copies: int
    missed_indices: frozenset[int] = frozenset()

    @property
    def candidate_count(self) -> int:
        """|R|: the number of candidates with as many digits."""
        return int(10**self.digits)


def measure_canary_exposure(
    model: training.LanguageModel,
    canaries: Mapping[str, Any],
    copies_left: Sequence[int] | None = None,
    progress: Progress = ignore_progress,
    samples: int = 20_000,
    seed: int = 0,
    missed: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Measure the exposure (bits) of every inserted and control canary among all 10^digits candidates.

    ``canaries`` is the file that ``simulate`` writes beside the corpus: {template, inserted, control, copies, missed?},
    or {"sets": [such]}. ``copies_left`` (:func:`count_canary_copies`) and ``missed`` have an entry for each inserted
    canary of all sets. A candidate's score is the log probability of its digits after the template's words; ties get
    the middle of their ranks. Exact up to 10^6 candidates; above that, ``samples`` are drawn
    (:func:`estimate_exposure_from_sample`).

    Returns highest and mean exposures of each kind of canary, {candidates, largest_possible, method, copies,
    copies_left, missed, chance, intervals (:func:`compare_exposure_with_chance`), reasons} and one row per canary;
    unknown values are null. It contains no digits: ``index`` counts within the inserted or the control canaries of a
    set. ``InputError`` for canaries that do not match the template or each other.
    """
    sets, rows = parse_canary_sets(canaries), list[dict[str, Any]]()
    for number, canary_set in enumerate(sets):
        first_control = len(canary_set.inserted)
        for position, exposure in enumerate(_measure_exposures(model, canary_set, samples, seed, progress)):
            inserted = position < first_control
            place = {"index": position if inserted else position - first_control, "inserted": inserted}
            rows.append(({"set": number} if len(sets) > 1 else {}) | place | exposure)
    ours, controls = ([row for row in rows if row["inserted"] == is_inserted] for is_inserted in (True, False))
    if missed is None:
        missed = [index in group.missed_indices for group in sets for index in range(len(group.inserted))]
    for name, entries in (("missed", missed), ("copies_left", copies_left)):
        if entries is not None and len(entries) != len(ours):
            raise InputError(f"canaries: {name} must have one entry for each inserted canary")
        for row, entry in zip(ours, entries or (), strict=False):
            row[name] = entry

    def compute_statistic(statistic: Callable[[list[float]], float], canary_rows: list[dict[str, Any]]) -> float | None:
        exposures = [row["exposure"] for row in canary_rows]
        return statistic(exposures) if exposures and None not in exposures else None

    is_known = all(row["exposure"] is not None for row in rows)
    known_ours, known_controls = ([row["exposure"] for row in group if is_known] for group in (ours, controls))
    return {
        "highest_exposure": compute_statistic(max, ours),
        "mean_exposure": compute_statistic(fmean, ours),
        "control_highest_exposure": compute_statistic(max, controls),
        "control_mean_exposure": compute_statistic(fmean, controls),
        "candidates": _get_common_value((canary_set.candidate_count for canary_set in sets), None),
        "largest_possible": max(math.log2(canary_set.candidate_count) for canary_set in sets),
        "method": _get_common_value((row.get("method", EXACT) for row in rows), "mixed"),
        "copies": _get_common_value((canary_set.copies for canary_set in sets), None),
        "copies_left": sum(copies_left) if copies_left is not None else None,
        "missed": sum(missed),
        "highest_exposure_missed": compute_statistic(max, [row for row in ours if row["missed"]]),
        "highest_exposure_caught": compute_statistic(max, [row for row in ours if not row["missed"]]),
        **compare_exposure_with_chance(known_ours, known_controls),
        "reasons": sorted({row["reason"] for row in rows if row.get("reason")}),
        "canaries": rows,
    }


def _get_common_value(values: Iterable[Any], default: Any) -> Any:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else default


def parse_canary_sets(canaries: Mapping[str, Any]) -> list[CanarySet]:
    """Parse the sets of a canary file: {template, inserted, control, copies, missed?}, or {"sets": [such]}.

    ``InputError`` for canaries that do not match their template or each other.
    """
    try:
        sets = [_parse_canary_set(entry) for entry in canaries.get("sets", [canaries])]
    except (KeyError, TypeError, AttributeError):
        raise InputError("canaries: each set needs template, inserted, control and copies") from None
    if not sets:
        raise InputError("canaries: needs at least one set")
    return sets


def _parse_canary_set(entry: Mapping[str, Any]) -> CanarySet:
    template, inserted, control = str(entry["template"]), tuple(entry["inserted"]), tuple(entry["control"])
    if not template.endswith(DIGITS_PLACEHOLDER) or template.count(DIGITS_PLACEHOLDER) != 1:
        raise InputError(f"canaries: the template must end with {DIGITS_PLACEHOLDER}")
    lengths = {len(number) for number in inserted + control}
    if len(lengths) != 1 or not all(n.isascii() and n.isdecimal() for n in inserted + control):
        raise InputError("canaries: needs at least one number; all must have equally many decimal digits")
    missed = frozenset(entry.get("missed", ()))
    if not missed <= set(range(len(inserted))):
        raise InputError("canaries: missed must contain indices of inserted canaries")
    prefix = template.removesuffix(DIGITS_PLACEHOLDER)
    return CanarySet(prefix, lengths.pop(), inserted, control, int(entry["copies"]), missed)


def count_canary_copies(folders: Iterable[Path], canaries: Mapping[str, Any]) -> list[int]:
    """Count the examples of the data ``folders`` that contain each inserted canary.

    In the folders that a model was trained on, this is what the model could see: in shards, the copies left after
    masking and deduplication; in the vault, every copy.
    """
    inserted = [number for canary_set in parse_canary_sets(canaries) for number in canary_set.inserted]
    wanted, copies = set(inserted), Counter[str]()
    for folder in folders:
        for (text,) in read_values(folder, "text"):
            copies.update(wanted.intersection(_NUMBER.findall(text)))
    return [copies[number] for number in inserted]


def _measure_exposures(
    model: training.LanguageModel, canary_set: CanarySet, samples: int, seed: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    numbers = canary_set.inserted + canary_set.control
    if canary_set.candidate_count <= MAX_EXACT_CANDIDATES:
        # 1 is the highest score; ties share the middle of their ranks
        ranks = scipy.stats.rankdata(-score_all_numbers(model, canary_set.prefix, canary_set.digits, progress))
        for rank in ranks[[int(number) for number in numbers]].tolist():
            yield {"rank": rank, "exposure": math.log2(len(ranks)) - math.log2(rank)}
        return
    stream = RandomStream.from_seed(seed)
    draws = stream.uniform("canary candidates", 0, samples * canary_set.digits)
    digits = (draws * 10.0).astype(np.uint8).reshape(samples, canary_set.digits) + ord("0")
    strings = [row.tobytes().decode("ascii") for row in digits]
    scores = score_strings(model, canary_set.prefix, [*numbers, *strings], progress)
    drawn = sample_numbers(model, canary_set.prefix, canary_set.digits, samples, stream)
    yield from estimate_exposure_from_sample(
        scores[len(numbers) :], scores[: len(numbers)], canary_set.candidate_count, drawn
    )


# Exposures by chance, and the difference between planted and never planted canaries.


def compare_exposure_with_chance(
    inserted: Sequence[float], control: Sequence[float], confidence: float = 0.95
) -> dict[str, Any]:
    """Compare the exposures (bits) of ``inserted`` canaries with chance: {confidence, chance, intervals}.

    ``chance`` is the distribution for as many canaries that were never trained on, and its probability of a highest or
    mean exposure of at least the observed one. ``intervals`` {mean_exposure, control_mean_exposure, mean_difference,
    highest_difference}, each {value, low, high}, are a percentile bootstrap over the canaries within this one model. It
    is rough for a highest exposure: use ``chance``. Without canaries a metric is null.
    """
    planted, never = np.asarray(inserted, np.float64), np.asarray(control, np.float64)
    rng = np.random.default_rng(0)

    def estimate(statistic: Callable[..., Scores], *groups: Scores) -> dict[str, Any]:
        if not all(map(len, groups)):
            return make_estimate(None)
        resampled = statistic(*(rng.choice(group, (_RESAMPLES, len(group))) for group in groups))
        (value,) = statistic(*(group[None] for group in groups))
        return make_estimate(float(value), *compute_percentile_interval(resampled, confidence).tolist())

    intervals = {
        "mean_exposure": estimate(lambda ours: ours.mean(1), planted),
        "control_mean_exposure": estimate(lambda theirs: theirs.mean(1), never),
        "mean_difference": estimate(lambda ours, theirs: ours.mean(1) - theirs.mean(1), planted, never),
        "highest_difference": estimate(lambda ours, theirs: ours.max(1) - theirs.max(1), planted, never),
    }
    return {"confidence": confidence, "chance": _compute_chance_metrics(planted), "intervals": intervals}


def compute_chance_quantile(canaries: int, confidence: float = 0.95) -> float:
    """Return the bits that the highest of ``canaries`` unseen ones stays below with probability ``confidence``."""
    return -math.log2(-math.expm1(math.log(confidence) / canaries))


def _compute_chance_metrics(bits: Scores) -> dict[str, float | None]:
    """Return the chance metrics: an unseen canary has exposure ≥ b bits with probability 2⁻ᵇ."""
    count, nats = len(bits), math.log(2.0)
    if not count:
        return dict.fromkeys(("highest_expected", "highest_95", "mean_expected", "highest_p_value", "mean_p_value"))
    highest, total = float(bits.max()), float(bits.sum()) * nats
    return {
        "highest_expected": sum(1.0 / k for k in range(1, count + 1)) / nats,
        "highest_95": compute_chance_quantile(count),
        "mean_expected": 1.0 / nats,
        "highest_p_value": -math.expm1(count * math.log1p(-(2.0**-highest))) if highest > 0.0 else 1.0,
        "mean_p_value": float(scipy.special.gammaincc(count, max(total, 0.0))),
    }


# Candidate spaces too large to rank completely: a uniform sample, or samples of the model.


def estimate_exposure_from_sample(
    sample: Scores,
    scores: Scores,
    candidates: int,
    model_samples: SampledNumbers | None = None,
    confidence: float = 0.95,
) -> Iterator[dict[str, Any]]:
    """Yield {exposure, low, high, at_least, method, rank, reason} in bits of canaries with ``scores`` [K].

    Scores are natural log probabilities. ``sample`` [n] are those of candidates drawn uniformly with replacement,
    ``model_samples`` those that the model drew. ``method`` is "sampled" if at least 30 of ``sample`` score higher:
    their share (ties half), with its Clopper-Pearson interval. Otherwise it is "weighted": the model's higher-scoring
    samples, weighted by their probability of being drawn; null without them, with a reason. ``at_least`` is a valid
    lower bound for any estimate, one-sided at ``confidence`` for each of its sources.
    """
    n, max_bits, ordered = len(sample), math.log2(candidates), np.sort(sample)

    def to_bits(share: float) -> float:
        """Return -log2 of a share of the candidates; no rank is below the first."""
        return max_bits if share <= 2.0**-max_bits else max(0.0, -math.log2(share))

    for score in map(float, scores):
        above = n - int(np.searchsorted(ordered, score, "right"))
        reached = n - int(np.searchsorted(ordered, score, "left"))
        # at most 1/p candidates can have a probability of p
        shares = [clopper_pearson_upper(reached, n, confidence), math.exp(min(-score, 700.0)) / candidates]
        before = None if model_samples is None else count_likelier_candidates(model_samples, score, confidence)
        if before is not None:
            shares.append((1.0 + before[1]) / candidates)
        at_least = to_bits(min(shares))
        row: dict[str, Any] = dict.fromkeys(("exposure", "low", "high", "method", "rank", "reason"))
        row["at_least"] = at_least
        if above >= MIN_SAMPLES_ABOVE or reached == n:
            sides = 1.0 - (1.0 - confidence) / 2.0
            low = to_bits(clopper_pearson_upper(reached, n, sides))
            high = to_bits(clopper_pearson_lower(above, n, sides))
            value = to_bits((above + reached) / 2.0 / n)
            row |= {"exposure": value, "low": low, "high": high, "method": SAMPLED}
        elif before is not None:
            # rarely drawn candidates have large weights: a low end from the draws' spread would be too high
            count, _, fewest = before
            value = max(to_bits((1.0 + count) / candidates), at_least)
            high = max_bits if fewest is None else to_bits((1.0 + fewest) / candidates)
            row |= {"exposure": value, "low": at_least, "high": high, "method": WEIGHTED}
        else:
            row["reason"] = _JOINED_DIGITS_REASON
        yield row


def count_likelier_candidates(
    model_samples: SampledNumbers, score: float, confidence: float = 0.95
) -> tuple[float, float, float | None]:
    """Count the candidates that are likelier than one with log probability ``score``.

    Returns the count, its one-sided upper and its two-sided lower bound; None for the latter if the weights are worth
    fewer than 30 equal draws. A drawn, likelier number weighs at most 1/p(s), because q is never below p. So 1/p(s)
    times the upper Clopper-Pearson bound of their share is an upper bound, and so is 1/p(s) itself.
    """
    n, is_above = len(model_samples.model_log_probs), model_samples.model_log_probs > score
    weights = np.where(is_above, np.exp(-model_samples.sampling_log_probs), 0.0)
    count = float(weights.mean())
    upper = clopper_pearson_upper(int(is_above.sum()), n, confidence) * math.exp(min(-score, 700.0))
    # a few heavy draws among many light ones are worth no more than a few
    if weights.sum() ** 2 < MIN_SAMPLES_ABOVE * (weights**2).sum() or is_above.sum() < MIN_SAMPLES_ABOVE:
        return count, upper, None
    return count, upper, max(0.0, count - _NORMAL_QUANTILE * float(weights.std()) / math.sqrt(n))

"""Canary exposure: the rank of a planted number among all that could have stood in its place."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redactory.evaluation.continuations import (
    DrawnNumbers,
    Scores,
    continuation_log_probs,
    drawn_numbers,
    given_log_probs,
)
from redactory.evaluation.statistics import figure, percentiles
from redactory.foundation.errors import InputError
from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.shards import read_values

if TYPE_CHECKING:
    from redactory.training import LanguageModel

PLACE = "{digits}"
EXACT, EXACT_UP_TO = "exact", 10**6
SAMPLED, WEIGHTED = "sampled", "weighted"
SAMPLES = 20_000
LEAST_ABOVE = 30
"""So many of the sample must score higher than a canary for its share to be the estimate."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")
_RESAMPLES = 2_000
_TWO_SIDED = 1.959964
_JOINED = "the tokenizer merges digits, and too few of the sample score higher: only at_least is known"


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
    """Exposure (bits) of every inserted and every control canary among all 10^digits candidates.

    ``canaries`` is what ``simulate`` put beside the corpus: {template, inserted, control, copies,
    missed?}, or {"sets": [such]}; ``copies_left`` (:func:`canary_copies_left`) and ``missed`` have an entry
    for each inserted canary of all sets.  A candidate's score is the log probability of its digits after the
    template's words; ties count as the middle of their ranks.  Exact up to 10^6 candidates; of more,
    ``samples`` are drawn (:func:`sampled_exposure`).

    Returns highest and mean exposures of each kind of canary, {candidates, largest_possible, method, copies,
    copies_left, missed, chance, intervals (:func:`exposure_against_chance`), reasons} and a row a canary;
    what cannot be said is null.  No digits: ``index`` counts within the inserted or the control canaries of
    a set.  ``InputError`` for canaries that do not fit the template or each other.
    """
    sets = canary_sets(canaries)
    for name, entries in (("missed", missed), ("copies_left", copies_left)):
        if entries is not None and len(entries) != sum(len(one.inserted) for one in sets):
            raise InputError(f"canaries: {name} must have one entry for each inserted canary")
    if missed is not None:
        said = iter(missed)
        sets = [replace(o, missed=frozenset(n for n in range(len(o.inserted)) if next(said))) for o in sets]
    rows, left = list[dict[str, Any]](), iter(copies_left or ())
    for number, one in enumerate(sets):
        for row in _rows(one, _exposures(model, one, samples, seed, progress)):
            more = {"copies_left": next(left)} if row["inserted"] and copies_left else {}
            rows.append(({"set": number} if len(sets) > 1 else {}) | row | more)

    def over(of: Callable[[list[float]], float], inserted: bool, missed: bool | None = None) -> float | None:
        ours = (r for r in rows if r["inserted"] == inserted)
        chosen = [r["exposure"] for r in ours if missed is None or bool(r.get("missed")) == missed]
        return of(chosen) if chosen and None not in chosen else None

    known = [] if any(row["exposure"] is None for row in rows) else rows
    ours, controls = ([r["exposure"] for r in known if r["inserted"] == own] for own in (True, False))
    return {
        "highest_exposure": over(max, True),
        "mean_exposure": over(_mean, True),
        "control_highest_exposure": over(max, False),
        "control_mean_exposure": over(_mean, False),
        "candidates": _common((one.candidates for one in sets), None),
        "largest_possible": max(math.log2(one.candidates) for one in sets),
        "method": _common((row.get("method", EXACT) for row in rows), "mixed"),
        "copies": _common((one.copies for one in sets), None),
        "copies_left": sum(copies_left) if copies_left is not None else None,
        "missed": sum(len(one.missed) for one in sets),
        "highest_exposure_missed": over(max, True, missed=True),
        "highest_exposure_caught": over(max, True, missed=False),
        **exposure_against_chance(ours, controls),
        "reasons": sorted({row["reason"] for row in rows if row.get("reason")}),
        "canaries": rows,
    }


def _rows(one: CanarySet, exposures: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a canary of a set, with its index among the inserted ones or among the controls."""
    for place, found in enumerate(exposures):
        inserted = place < len(one.inserted)
        index = place if inserted else place - len(one.inserted)
        missed = {"missed": index in one.missed} if inserted and one.missed else {}
        yield {"index": index, "inserted": inserted} | missed | found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _common(values: Iterable[Any], otherwise: Any) -> Any:
    """The one value that all are."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else otherwise


def canary_sets(canaries: Mapping[str, Any]) -> list[CanarySet]:
    """The sets of a canary file: {template, inserted, control, copies, missed?}, or {"sets": [such]}.

    ``InputError`` for canaries that do not fit their template or each other.
    """
    try:
        sets = [_set(one) for one in canaries.get("sets", [canaries])]
    except (KeyError, TypeError, AttributeError):
        raise InputError("canaries: each set needs template, inserted, control and copies") from None
    if not sets:
        raise InputError("canaries: needs at least one set")
    return sets


def _set(one: Mapping[str, Any]) -> CanarySet:
    template, inserted, control = str(one["template"]), tuple(one["inserted"]), tuple(one["control"])
    if not template.endswith(PLACE) or template.count(PLACE) != 1:
        raise InputError(f"canaries: the template must end with {PLACE}")
    lengths = {len(number) for number in inserted + control}
    if len(lengths) != 1 or not all(n.isascii() and n.isdecimal() for n in inserted + control):
        raise InputError("canaries: needs at least one number; all must have equally many decimal digits")
    missed = frozenset(one.get("missed", ()))
    if not missed <= set(range(len(inserted))):
        raise InputError("canaries: missed must contain indices of inserted canaries")
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
        for (text,) in read_values(folder, "text"):
            found.update(wanted.intersection(_NUMBER.findall(text)))
    return [found[number] for number in inserted]


def middle_rank(scores: Scores, candidate: int) -> float:
    """Rank of ``scores[candidate]``, 1 the highest; equal scores share the middle of their ranks."""
    score = scores[candidate]
    above, equal = int(np.count_nonzero(scores > score)), int(np.count_nonzero(scores == score))
    return above + (equal + 1) / 2


def _exposures(
    model: LanguageModel, one: CanarySet, samples: int, seed: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Rank and exposure of each canary of a set, the inserted ones first."""
    numbers = one.inserted + one.control
    if one.candidates <= EXACT_UP_TO:
        scores = continuation_log_probs(model, one.before, one.digits, progress)
        for number in numbers:
            rank = middle_rank(scores, int(number))
            yield {"rank": rank, "exposure": math.log2(len(scores)) - math.log2(rank)}
        return
    stream = RandomStream.from_seed(seed)
    draws = stream.uniform("canary candidates", 0, samples * one.digits)
    digits = (draws * 10.0).astype(np.uint8).reshape(samples, one.digits) + ord("0")
    strings = [row.tobytes().decode("ascii") for row in digits]
    scores = given_log_probs(model, one.before, [*numbers, *strings], progress)
    drawn = drawn_numbers(model, one.before, one.digits, samples, stream)
    yield from sampled_exposure(scores[len(numbers) :], scores[: len(numbers)], one.candidates, drawn)


# How high exposures are by chance alone, and how far planted canaries lie above those never planted.


def exposure_against_chance(
    inserted: Sequence[float], control: Sequence[float], confidence: float = 0.95
) -> dict[str, Any]:
    """What to hold the exposures (bits) of ``inserted`` canaries against: {confidence, chance, intervals}.

    ``chance`` is the law of as many canaries that were never seen, and how probable it makes a highest or a
    mean exposure of at least what was found.  ``intervals`` {mean_exposure, control_mean_exposure,
    mean_difference, highest_difference}, each {value, low, high}, are a percentile bootstrap over the
    canaries within this one model; of a highest exposure it is rough: go by ``chance``.  A figure over no
    canary is null.
    """
    planted, never = np.asarray(inserted, np.float64), np.asarray(control, np.float64)
    found = _differences(planted[None], never[None])
    drawn = _differences(_resampled(planted, "inserted"), _resampled(never, "control"))
    names = ("mean_exposure", "control_mean_exposure", "mean_difference", "highest_difference")
    intervals = {
        name: figure(float(found[name][0]), *percentiles(drawn[name], confidence).tolist())
        if name in found
        else figure(None)
        for name in names
    }
    return {"confidence": confidence, "chance": _chance(planted), "intervals": intervals}


def highest_quantile(canaries: int, confidence: float = 0.95) -> float:
    """The bits that the highest of ``canaries`` unseen ones stays below with probability ``confidence``."""
    return -math.log2(-math.expm1(math.log(confidence) / canaries))


def _chance(bits: Scores) -> dict[str, float | None]:
    """An unseen canary's exposure is exponential: P(at least b bits) = 2⁻ᵇ."""
    # on first use: scipy takes a fifth of a second
    from scipy.special import gammaincc

    count, nats = len(bits), math.log(2.0)
    if not count:
        names = ("highest_expected", "highest_95", "mean_expected", "highest_p_value", "mean_p_value")
        return dict.fromkeys(names)
    highest, total = float(bits.max()), float(bits.sum()) * nats
    return {
        "highest_expected": sum(1.0 / k for k in range(1, count + 1)) / nats,
        "highest_95": highest_quantile(count),
        "mean_expected": 1.0 / nats,
        "highest_p_value": -math.expm1(count * math.log1p(-(2.0**-highest))) if highest > 0.0 else 1.0,
        "mean_p_value": float(gammaincc(count, max(total, 0.0))),
    }


def _differences(planted: Scores, never: Scores) -> dict[str, Scores]:
    """Each figure of m resamples of the two arms, [m, K] and [m, L]; none of an arm that is empty."""
    found = {}
    if planted.shape[1]:
        found["mean_exposure"] = planted.mean(1)
    if never.shape[1]:
        found["control_mean_exposure"] = never.mean(1)
    if len(found) == 2:
        found["mean_difference"] = planted.mean(1) - never.mean(1)
        found["highest_difference"] = planted.max(1) - never.max(1)
    return found


def _resampled(bits: Scores, arm: str) -> Scores:
    draws = RandomStream.from_seed(0).uniform(f"exposure {arm}", 0, _RESAMPLES * len(bits))
    return bits[(draws * len(bits)).astype(np.int64)].reshape(_RESAMPLES, len(bits))


# A space too large to rank whole: from a uniform sample, or from what the model itself draws.


def sampled_exposure(
    sample: Scores, scores: Scores, candidates: int, drawn: DrawnNumbers | None = None, confidence: float = 0.95
) -> Iterator[dict[str, Any]]:
    """{exposure, low, high, at_least, method, rank, reason} in bits of canaries with these ``scores`` [K].

    Scores are natural log probabilities; ``sample`` [n] are those of candidates drawn uniformly with
    replacement, ``drawn`` those that the model drew.  ``method`` is "sampled" where at least 30 of ``sample``
    score higher: their share (ties half), with its Clopper-Pearson interval; else "weighted": ``drawn`` that
    score higher, weighted by how probable it was to draw them; null without ``drawn``, with a reason.
    ``at_least`` holds whatever the estimate, one-sided at ``confidence`` for each of its sources.
    """
    n, most, ordered = len(sample), math.log2(candidates), np.sort(sample)

    def bits(share: float) -> float:
        """-log2 of a share of the candidates; none ranks before the first."""
        return most if share <= 2.0**-most else max(0.0, -math.log2(share))

    for score in map(float, scores):
        above = n - int(np.searchsorted(ordered, score, "right"))
        reached = n - int(np.searchsorted(ordered, score, "left"))
        # no more candidates than 1/p can have a probability of p
        shares = [upper_bound(reached, n, confidence), math.exp(min(-score, 700.0)) / candidates]
        before = None if drawn is None else likelier(drawn, score, confidence)
        if before is not None:
            shares.append((1.0 + before.most) / candidates)
        at_least = bits(min(shares))
        found: dict[str, Any] = dict.fromkeys(("exposure", "low", "high", "method", "rank", "reason"))
        found["at_least"] = at_least
        if above >= LEAST_ABOVE or reached == n:
            sides = 1.0 - (1.0 - confidence) / 2.0
            low, high = bits(upper_bound(reached, n, sides)), bits(lower_bound(above, n, sides))
            value = bits((above + reached) / 2.0 / n)
            found |= {"exposure": value, "low": low, "high": high, "method": SAMPLED}
        elif before is not None:
            # candidates that are seldom drawn weigh much: a low end from the draws' spread would be too high
            value = max(bits((1.0 + before.count) / candidates), at_least)
            high = most if before.low is None else bits((1.0 + before.low) / candidates)
            found |= {"exposure": value, "low": at_least, "high": high, "method": WEIGHTED}
        else:
            found["reason"] = _JOINED
        yield found


@dataclass(frozen=True)
class Before:
    """How many candidates are likelier than a canary: ``count``, at most ``most`` (one-sided).

    ``low`` is a two-sided bound; None where the draws weigh as little as fewer than 30 equal ones.
    """

    count: float
    most: float
    low: float | None


def likelier(drawn: DrawnNumbers, score: float, confidence: float = 0.95) -> Before:
    """How many candidates are likelier than one with log probability ``score``.

    A number that is drawn and likelier weighs at most 1/p(s), as q is never below p: so many times the upper
    Clopper-Pearson bound of the share drawn is an upper bound, and 1/p(s) itself is one.
    """
    n, above = len(drawn.log_p), drawn.log_p > score
    weights = np.where(above, np.exp(-drawn.log_q), 0.0)
    count = float(weights.mean())
    most = upper_bound(int(above.sum()), n, confidence) * math.exp(min(-score, 700.0))
    # a few heavy draws among many light ones tell as little as few
    if weights.sum() ** 2 < LEAST_ABOVE * (weights**2).sum() or above.sum() < LEAST_ABOVE:
        return Before(count, most, None)
    return Before(count, most, max(0.0, count - _TWO_SIDED * float(weights.std()) / math.sqrt(n)))

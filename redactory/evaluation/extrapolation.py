"""Exposure in a space too large to rank whole: from a sample, from the model's draws, or by a fitted law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redactory.evaluation.continuations import DrawnNumbers, Scores
from redactory.evaluation.statistics import percentiles, resampled_sums
from redactory.foundation.intervals import lower_bound, upper_bound

SAMPLED, WEIGHTED, EXTRAPOLATED = "sampled", "weighted", "extrapolated"
LEAST_ABOVE = 30
"""So many of the sample must score higher than a canary for its share to be the estimate."""
LEAST_SAMPLE = 2_000
_LARGEST_MISFIT, _LARGEST_SKEWNESS = 0.5, 0.99
_RESAMPLES = 200
_TWO_SIDED = 1.959964


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
    others = tuple(_of_sums(sums, sample) for sums in resampled_sums(_powers(sample), _RESAMPLES))
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

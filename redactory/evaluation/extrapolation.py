"""Exposure in a space that is too large to rank whole: from a sample, and beyond it by a skew-normal fit.

Carlini et al. (2019), section 4.3: exposure is -log2 of the probability that a candidate drawn at random is
at least as likely as the canary.  Where enough of a uniform sample is, that share is the estimate; else what
the model draws itself is weighted (``weighted_sample.py``); and where that says too little, the scores' law
is continued by a skew-normal one fitted to the uniform sample, if that fits its upper tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.bootstrap import resampled_sums
from redactory.evaluation.weighted_sample import DrawnNumbers, likelier
from redactory.foundation.intervals import lower_bound, upper_bound

SAMPLED, WEIGHTED, EXTRAPOLATED = "sampled", "weighted", "extrapolated"
LEAST_ABOVE = 30
"""So many of the sample must score higher than a canary for its share to be the estimate."""
LEAST_SAMPLE = 2_000
_LARGEST_MISFIT = 0.5
_RESAMPLES = 200
_LARGEST_SKEWNESS = 0.99
_FEW = "the sample has fewer than {least:,} candidates: too few to fit a law to"
_FLAT = "all candidates of the sample have the same score"
_MISFIT = (
    "the upper tail of the sample is not skew-normal: the fit is off by {bits:.1f} bits where {above} lie"
)


class SkewNormal(NamedTuple):
    """Location, scale and shape."""

    location: float
    scale: float
    shape: float

    def exposure(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
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


def fitted(sample: NDArray[np.float64]) -> Extrapolation:
    """A skew-normal law of ``sample`` [n] by its first three moments, checked on a half it has not seen.

    It may not be used where the two halves' tails disagree: at the scores that 30, 100, 300, ... of the
    checked half reach, the fit to the other half must give the exposure within half a bit and twice the
    sampling error.  What lies further out than the sample is not checked by anything.
    """
    if len(sample) < LEAST_SAMPLE:
        return Extrapolation(None, (), None, _FEW.format(least=LEAST_SAMPLE))
    if float(np.ptp(sample)) == 0.0:
        return Extrapolation(None, (), None, _FLAT)
    half = len(sample) // 2
    misfit, above, allowed = _misfit(_by_moments(sample[:half]), np.sort(sample[half:])[::-1])
    if not misfit <= allowed:
        return Extrapolation(None, (), misfit, _MISFIT.format(bits=misfit, above=above))
    others = tuple(_of_sums(sums, sample) for sums in resampled_sums(_powers(sample), _RESAMPLES))
    return Extrapolation(_by_moments(sample), others, misfit, None)


def extrapolated_exposure(
    sample: NDArray[np.float64],
    scores: NDArray[np.float64],
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
    ordered = np.sort(sample)
    law = fitted(sample)
    return [_one(ordered, float(score), candidates, drawn, law, confidence) for score in scores]


def _one(
    ordered: NDArray[np.float64],
    score: float,
    candidates: int,
    drawn: DrawnNumbers | None,
    law: Extrapolation,
    confidence: float,
) -> dict[str, Any]:
    n, most = len(ordered), math.log2(candidates)
    above = n - int(np.searchsorted(ordered, score, "right"))
    reached = n - int(np.searchsorted(ordered, score, "left"))
    before = None if drawn is None else likelier(drawn, score, confidence)
    at_least = _bits(upper_bound(reached, n, confidence), most)
    # no more candidates than 1/p can have a probability of p
    at_least = max(at_least, _bits(math.exp(min(-score, 700.0)) / candidates, most))
    if before is not None:
        at_least = max(at_least, _bits((1.0 + before.most) / candidates, most))
    found: dict[str, Any] = dict.fromkeys(("exposure", "low", "high", "method", "rank"))
    found["at_least"] = at_least
    if above >= LEAST_ABOVE or reached == n:
        sides = 1.0 - (1.0 - confidence) / 2.0
        low, high = upper_bound(reached, n, sides), lower_bound(above, n, sides)
        value = _bits((above + reached) / 2.0 / n, most)
        found |= {"exposure": value, "low": _bits(low, most), "high": _bits(high, most), "method": SAMPLED}
    elif before is not None and (before.high is not None or at_least >= most - 1.0):
        value = _bits((1.0 + before.count) / candidates, most)
        # candidates that are seldom drawn weigh much: a low end from the draws' own spread would be too high
        low = at_least
        high = most if before.low is None else _bits((1.0 + before.low) / candidates, most)
        found |= {"exposure": max(value, low), "low": low, "high": high, "method": WEIGHTED}
    elif law.law is not None:
        found |= _by_law(law, law.law, score, at_least, most, confidence)
    return {**found, "reason": law.reason if found["exposure"] is None else None}


def _by_law(
    law: Extrapolation, main: SkewNormal, score: float, at_least: float, most: float, confidence: float
) -> dict[str, Any]:
    """The law's figures, none of them below what holds without it."""
    every = [float(one.exposure(np.asarray([score]))[0]) for one in (main, *law.others)]
    within = [min(most, max(at_least, figure)) for figure in every]
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = (float(figure) for figure in np.percentile(within[1:], [tail, 100.0 - tail]))
    value = within[0]
    return {"exposure": value, "low": low, "high": high, "method": EXTRAPOLATED}


def _bits(share: float, most: float) -> float:
    """-log2 of a share of the candidates; none ranks before the first."""
    return most if share <= 2.0**-most else max(0.0, -math.log2(share))


def _misfit(law: SkewNormal, tail: NDArray[np.float64]) -> tuple[float, int, float]:
    """The worst distance in bits over the upper tail of ``tail`` (highest first), where, and what is
    allowed."""
    counts = [k for k in (30, 100, 300, 1_000, 3_000, 10_000, 30_000) if k <= len(tail) // 10]
    exposures = law.exposure(tail[np.asarray(counts) - 1])
    rows = []
    for k, exposure in zip(counts, exposures, strict=True):
        distance = abs(float(exposure) - math.log2(len(tail) / k))
        rows.append((distance, k, _LARGEST_MISFIT + 2.0 / (math.sqrt(k) * math.log(2.0))))
    return max(rows, key=lambda row: row[0] - row[2])


def _powers(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Count and powers of the standardised scores: sums over them give a fit."""
    z = (sample - sample.mean()) / sample.std()
    return np.stack([np.ones_like(z), z, z**2, z**3], 1)


def _by_moments(sample: NDArray[np.float64]) -> SkewNormal:
    return _of_sums(_powers(sample).sum(0), sample)


def _of_sums(sums: NDArray[np.float64], sample: NDArray[np.float64]) -> SkewNormal:
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

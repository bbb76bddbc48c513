"""Epsilons from privacy events, by privacy loss distributions; what is not known is refused.

Figures are pessimistic: dp_accounting's distributions are rounded so that epsilon is never too
small (``docs/guarantees.md``, "Substitution", "Groups of points").
"""

from __future__ import annotations

import math
from functools import lru_cache

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanism import PoissonGaussian, Relation

DISCRETIZATION = 1e-4
GROUP_DISCRETIZATION = 2e-3
_RELATIONS = {
    Relation.SUBSTITUTION: NeighboringRelation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
_NEGLIGIBLE_MASS = 1e-30
_LARGEST_EPSILON = 500.0
_HOPELESS_RATIO = 20.0
_CHAIN_SPLITS = (0.2, 0.5, 0.8)


def epsilon(
    mechanism: PoissonGaussian,
    steps: int,
    delta: float,
    relation: Relation,
    discretization: float = DISCRETIZATION,
) -> float | None:
    """Epsilon of ``steps`` adaptive steps at ``delta`` in (0, 1); ``None`` where it is not finite.

    No steps cost nothing.  ``discretization`` is the grid of the privacy loss (for σ >= 1; wider for
    less noise, whose losses range further): coarser is faster and gives a larger epsilon.
    """
    if steps == 0:
        return 0.0
    grid = discretization * max(1.0, 1.0 / mechanism.noise_multiplier)
    accountant = _composed(
        mechanism.sampling_rate, mechanism.noise_multiplier, steps, _RELATIONS[relation], grid
    )
    return _finite(accountant.get_epsilon(delta))


def group_epsilon(mechanism: PoissonGaussian, steps: int, delta: float, points: int) -> float | None:
    """Epsilon when ``points`` K >= 2 points are exchanged at once; ``None`` where none finite is found.

    K points go and K others come: with MoG_K the T-fold mixture of Gaussians with sensitivities
    0..K and weights Bin(K, q), H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a H_{e^b}(R‖Q) through the world R
    without the K points; the smallest a + b over a few splits of ``delta``
    (``docs/guarantees.md``, "Groups of points").  Nothing is searched where K/σ is over 20: such
    noise protects no group.
    """
    if steps == 0:
        return 0.0
    ratio = points / mechanism.noise_multiplier
    if ratio > _HOPELESS_RATIO:
        return None
    grid = GROUP_DISCRETIZATION * max(1.0, ratio)  # the range of losses grows with K/σ: as many cells
    one_side = _composed_group(mechanism.sampling_rate, mechanism.noise_multiplier, steps, points, grid)
    best = math.inf
    for share in _CHAIN_SPLITS:
        first = one_side.get_epsilon(share * delta)
        if first < _LARGEST_EPSILON:
            best = min(best, first + one_side.get_epsilon((1.0 - share) * delta * math.exp(-first)))
    return _finite(best)


def calibrate_noise(
    target: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    discretization: float = 1e-3,
    points: int = 1,
) -> float:
    """The noise multiplier σ, to four decimals upwards, whose substitution epsilon is at most ``target``.

    Bisection on :func:`epsilon`, or, where one exchanged point exchanges ``points`` rows, on
    :func:`group_epsilon`.  ``GuaranteeError`` where no σ below 10,000 reaches the target.
    """

    def spent(noise_multiplier: float) -> float:
        mechanism = PoissonGaussian(sampling_rate, noise_multiplier, 1.0, 1.0)
        if points > 1:
            found = group_epsilon(mechanism, steps, delta, points)
        else:
            found = epsilon(mechanism, steps, delta, Relation.SUBSTITUTION, discretization)
        return math.inf if found is None else found

    low, high = 0.1, 1.0
    while spent(high) > target:
        low, high = high, 2.0 * high
        if high > 10_000:
            raise GuaranteeError("no noise multiplier below 10000 reaches the target epsilon")
    while high - low > 5e-5:
        middle = (low + high) / 2.0
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return math.ceil(high * 1e4) / 1e4


@lru_cache(maxsize=8)
def _composed(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    relation: NeighboringRelation,
    discretization: float,
) -> PLDAccountant:
    event = SelfComposedDpEvent(
        PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(noise_multiplier)), steps
    )
    return _compose(event, relation, discretization)


@lru_cache(maxsize=8)
def _composed_group(
    sampling_rate: float, noise_multiplier: float, steps: int, points: int, discretization: float
) -> PLDAccountant:
    weights = [float(stats.binom.pmf(count, points, sampling_rate)) for count in range(points)]
    kept = {float(count): weight for count, weight in enumerate(weights) if weight > _NEGLIGIBLE_MASS}
    kept[float(points)] = 1.0 - math.fsum(kept.values())  # what was dropped or rounded off moves to K
    if kept[float(points)] <= 0.0:
        kept[float(points)] = float(sampling_rate) ** points
    event = MixtureOfGaussiansDpEvent(noise_multiplier, list(kept), list(kept.values()))
    return _compose(SelfComposedDpEvent(event, steps), NeighboringRelation.ADD_OR_REMOVE_ONE, discretization)


def _compose(event: object, relation: NeighboringRelation, discretization: float) -> PLDAccountant:
    accountant = PLDAccountant(relation, discretization)
    if not accountant.supports(event):
        raise GuaranteeError("the accountant does not know this event under this relation")
    return accountant.compose(event)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

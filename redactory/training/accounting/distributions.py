"""The main accountant: dp_accounting's privacy loss distributions, composed; the last ones are kept.

Of Poisson sampling the curves of a step are computed here, for all losses at once; what it makes of them by
itself, one loss after the other, is the same and takes ten times as long.

They are pessimistic: rounded so that epsilon is never too small.  What dp_accounting does not know
under a relation is refused, never approximated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as losses

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.exchange import exchange_step
from redactory.training.accounting.mixtures import Shifts, group_shifts, mixture_step
from redactory.training.accounting.spending import Spendings
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian

RELATIONS = {
    Relation.SUBSTITUTION: NeighboringRelation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
Distribution = Any
"""dp_accounting's PrivacyLossDistribution; the package has no types."""


@lru_cache(maxsize=1024)
def epsilon_at(spent: Spendings, relation: Relation, grid: float, delta: float) -> float:
    """The least epsilon of :func:`composed` at ``delta``; ``inf`` where there is none."""
    return float(composed(spent, relation, grid).get_epsilon_for_delta(delta))


@lru_cache(maxsize=1024)
def group_epsilon_at(spent: Spendings, points: int, grid: float, delta: float) -> float:
    """The least epsilon of :func:`composed_group` at ``delta``; ``inf`` where there is none."""
    return float(composed_group(spent, points, grid).get_epsilon_for_delta(delta))


@lru_cache(maxsize=32)
def composed(spent: Spendings, relation: Relation, grid: float) -> Distribution:
    """The distribution of all of ``spent`` for one exchanged row, on a grid of losses of width ``grid``."""
    if any(one.rows != 1 for one in spent):
        raise GuaranteeError("one exchanged point exchanges several rows: a group is accounted otherwise")
    parts = [_step(one.mechanism, relation, grid).self_compose(one.steps) for one in spent if one.steps]
    return _product(parts)


@lru_cache(maxsize=32)
def composed_group(spent: Spendings, points: int, grid: float) -> Distribution:
    """``points`` points there against not there, each standing in ``rows`` rows of what was trained on.

    A mixture of Gaussians with sensitivities 0..K and weights Bin(K, q) a step
    (``docs/guarantees.md``, "Groups of points").
    """
    parts = [
        _group_step(one.mechanism, points * one.rows, grid).self_compose(one.steps)
        for one in spent
        if one.steps
    ]
    return _product(parts)


@lru_cache(maxsize=16)
def _step(mechanism: Mechanism, relation: Relation, grid: float) -> Distribution:
    match mechanism:
        case PoissonGaussian() if relation == Relation.SUBSTITUTION:
            return exchange_step(mechanism.noise_multiplier, mechanism.sampling_rate, grid)
        case PoissonGaussian():
            # written out: the second accountant is told the law of a point by another part of the code
            point = Shifts((0.0, 1.0), (1.0 - mechanism.sampling_rate, mechanism.sampling_rate))
            return mixture_step(((1.0, point),), mechanism.noise_multiplier, grid)
        case TruncatedPoissonGaussian():
            return losses.from_truncated_subsampled_gaussian_mechanism(
                dataset_size=mechanism.points,
                sampling_probability=mechanism.sampling_rate,
                truncated_batch_size=mechanism.truncated_batch_size,
                noise_multiplier=mechanism.noise_multiplier,
                value_discretization_interval=grid,
                neighboring_relation=RELATIONS[relation],
            )
        case _:
            raise GuaranteeError("the accountant does not know this mechanism")


@lru_cache(maxsize=16)
def _group_step(mechanism: Mechanism, points: int, grid: float) -> Distribution:
    if not isinstance(mechanism, PoissonGaussian):
        raise GuaranteeError("groups under a truncated sampler have the revealed bound only")
    shifts = group_shifts(mechanism.sampling_rate, points)
    return mixture_step(((1.0, shifts),), mechanism.noise_multiplier, grid)


def _product(parts: list[Distribution]) -> Distribution:
    if not parts:
        return losses.identity()
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return whole

"""Rényi accounting: an upper bound where it is valid, refused where it is not.

dp_accounting's Rényi accountant does not know Poisson sampling under substitution, and its figures for
unsampled mechanisms under that relation take the sensitivity for half of what it is; it is never
asked (``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.spending import Spendings
from redactory.training.mechanism import PoissonGaussian, Relation

ORDERS = (*(1.0 + tenth / 10.0 for tenth in range(1, 100)), *range(11, 256))


def renyi_epsilon(
    spent: Spendings, delta: float, relation: Relation, orders: Sequence[float] = ORDERS
) -> float | None:
    """An upper bound of epsilon; ``GuaranteeError`` for any relation but ``ADD_OR_REMOVE``."""
    if relation is not Relation.ADD_OR_REMOVE:
        raise GuaranteeError("Rényi accounting is valid for one point there or not, never for substitution")
    found = float(_composed(spent, tuple(orders)).get_epsilon(delta))
    return found if math.isfinite(found) else None


@lru_cache(maxsize=8)
def _composed(spent: Spendings, orders: tuple[float, ...]) -> RdpAccountant:
    accountant = RdpAccountant(list(orders), NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _without_warnings():
        for one in spent:
            if not isinstance(one.mechanism, PoissonGaussian) or one.rows != 1:
                raise GuaranteeError("Rényi accounting knows Poisson sampling of single points only")
            event = PoissonSampledDpEvent(
                one.mechanism.sampling_rate, GaussianDpEvent(one.mechanism.noise_multiplier)
            )
            accountant.compose(event, one.steps)
    return accountant


@contextmanager
def _without_warnings() -> Iterator[None]:
    """dp_accounting warns of every order that it leaves out; the bound holds with those that it keeps."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)

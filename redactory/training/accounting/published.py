"""What the papers print, computed as they do: AS PUBLISHED, NOT A GUARANTEE.

Kept so that published tables can be told from sound figures.  None of these numbers is a theorem about
a training (``docs/guarantees.md``, "As published, not a guarantee").
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.spending import Spendings
from redactory.training.mechanism import PoissonGaussian, Relation

# Rényi accounting: an upper bound where it is valid, refused where it is not.


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


NOTE = "as published, not a guarantee"
_LARGEST_EXPONENT = 500.0


def crt_confidentiality(spent: Spendings, delta: float) -> float | None:
    """CRT, Theorem 8.1: the Rényi epsilon of one point there or not, for an exchange."""
    return renyi_epsilon(spent, delta, Relation.ADD_OR_REMOVE)


def crt_group(epsilon: float, delta: float, detected: float, secrets: int) -> tuple[float, float]:
    """CRT, Theorem 8.2: (γ̃mε, γ̃m·e^(γ̃mε)·δ) for m unique secrets of which π *detects* the share γ̃."""
    factor = detected * secrets
    if factor * epsilon > 700.0:
        return factor * epsilon, math.inf
    return factor * epsilon, factor * math.exp(factor * epsilon) * delta


def amplified(epsilon: float, gamma: float) -> float:
    """log(1 + γ(e^ε − 1))."""
    if epsilon > _LARGEST_EXPONENT:
        return epsilon + math.log(gamma) if gamma else 0.0
    return math.log1p(gamma * math.expm1(epsilon))


def crt_bayesian(spent: Spendings, delta: float, gamma: float) -> float | None:
    """CRT, Theorem 8.3 as the authors' notebook computes it: log(1 + γ(exp(ε_RDP(δ/γ)) − 1))."""
    if gamma <= 0.0 or delta / gamma >= 1.0:
        return 0.0
    found = renyi_epsilon(spent, delta / gamma, Relation.ADD_OR_REMOVE)
    return None if found is None else amplified(found, gamma)


def crt_published(
    spent: Spendings, delta: float, gamma: float, delta_2: float | None, secrets: tuple[int, ...]
) -> dict[str, Any]:
    """Theorem 8.1 to 8.3 under their label; the group figures with π's recall as the detected share."""
    single = crt_confidentiality(spent, delta)
    groups = {
        str(count): None if single is None else crt_group(single, delta, 1.0 - gamma, count)[0]
        for count in secrets
    }
    return {
        "note": NOTE,
        "epsilon": single,
        "epsilon_bayesian": crt_bayesian(spent, delta, gamma),
        "delta_bayesian": delta + (delta_2 or 0.0),
        "epsilon_group": groups,
        "why_not": {
            "epsilon": "accounts for a point there or not, while a secret is exchanged for its mask",
            "epsilon_bayesian": "the same, and takes the recall of a sample for the recall",
            "epsilon_group": "shrinks with the share that is missed, and counts unique secrets, not points",
        },
    }

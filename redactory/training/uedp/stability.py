"""Which selection of points is stable, and under what: rules by name, all others refused.

A rule is stable where taking a unit away changes a bounded number of kept points.  Proofs and
counterexamples: ``docs/explanation/uedp.md``, "Contribution bounding"; tests try every proof by brute force.
"""

from __future__ import annotations

from dataclasses import dataclass

from redactory.foundation.errors import GuaranteeError
from redactory.training.units.relations import Adjacency

NONE, GREEDY, ALL_KEEP, R_LOC = "none", "greedy", "all-keep", "r-loc"
_UNSTABLE = {
    (GREEDY, Adjacency.REMOVAL): "a removed user's one point can make the choice flip along a whole path",
    (
        GREEDY,
        Adjacency.USER_REMOVAL,
    ): "a removed user's one point can make the choice flip along a whole path",
    (ALL_KEEP, Adjacency.REMOVAL): "removing one hub entity lets a point of each of its users in",
    (ALL_KEEP, Adjacency.USER_REMOVAL): "a removed user frees places in each of her entities' lists, "
    "whose number is not bounded",
    (R_LOC, Adjacency.REMOVAL): "removing one hub entity lets a point of each of its users in",
}
_STABLE = {
    (NONE, Adjacency.FIXED_GRAPH),
    (NONE, Adjacency.REMOVAL),
    (GREEDY, Adjacency.FIXED_GRAPH),
    (ALL_KEEP, Adjacency.FIXED_GRAPH),
    (R_LOC, Adjacency.FIXED_GRAPH),
    (R_LOC, Adjacency.USER_REMOVAL),
}
_LOOKS_AT_TEXT = {
    "text-hash": "its order follows from the texts",
    "shortest": "its order follows from the texts",
    "longest": "its order follows from the texts",
    "lowest-loss": "it looks at the losses of a model",
    "highest-loss": "it looks at the losses of a model",
}
RULES = (NONE, GREEDY, ALL_KEEP, R_LOC)


@dataclass(frozen=True)
class Affected:
    """How many kept points differ: ``gone`` become null or vanish, ``come`` others take their place."""

    gone: int
    come: int = 0


def check_stable(rule: str, adjacency: Adjacency) -> None:
    """``GuaranteeError``, by name and reason, unless ``rule`` is proved stable under ``adjacency``."""
    if (rule, adjacency) in _STABLE:
        return
    if rule in _LOOKS_AT_TEXT:
        why = _LOOKS_AT_TEXT[rule]
    elif rule in RULES:
        why = _UNSTABLE.get((rule, adjacency), "no bound is proved")
    else:
        raise GuaranteeError(f"selection rule {rule!r} is not known; the rules are {', '.join(RULES)}")
    raise GuaranteeError(f"selection rule {rule!r} is not stable under {adjacency.value}: {why}")

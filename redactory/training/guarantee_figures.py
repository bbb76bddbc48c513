"""The figures of a guarantee, each confirmed by a second accountant, each null with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spendings, epsilon_of, group_epsilon_of, removal_epsilon_of
from redactory.training.accounting.figures import truncated
from redactory.training.accounting.second import Bracket
from redactory.training.accounting.second_opinion import (
    ALLOWANCE,
    GROUP_ALLOWANCE,
    bracket,
    confirmed,
    group_bracket,
    removal_bracket,
)
from redactory.training.confidentiality import bayesian_epsilon
from redactory.training.mechanism import Relation

EPSILONS = (
    "epsilon",
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "epsilon_substitution",
    "epsilon_add_remove",
    "epsilon_group",
)
NOT_FINITE = "no finite epsilon at this delta: the noise is too small for so many steps"
NO_GROUP_FIGURE = "where a size has no figure, none below 4096 was found: the noise protects no such group"
NOT_MEASURED = "recall not measured"
NO_GROUP_OF_SEVERAL = "groups under a truncated sampler are accounted for one training at a time"
POLICIES_UNUSED = (
    "the policies are not used by this trainer: epsilon_substitution is the figure for a secret in a "
    "point of the private side; the vocabulary, taken from public/, is outside of it"
)


@dataclass(frozen=True)
class Claim:
    """What figures are computed from.

    ``relation`` is what a secret and its mask are to the noised points; ``gamma`` and ``delta_2`` are the
    upper bounds of :class:`~redactory.training.confidentiality.MissRates`; ``by_policy`` says whether the
    policies decide what is noised, as in ``crt``.  ``across`` says that a point of one training moves rows of
    another one: then a row that goes from the one comes to the other.
    """

    spent: Spendings
    delta: float
    group_sizes: tuple[int, ...] = ()
    relation: Relation = Relation.SUBSTITUTION
    gamma: float = 1.0
    delta_2: float | None = None
    by_policy: bool = True
    across: bool = False

    @property
    def rows(self) -> int:
        """The most rows that one exchanged point exchanges in any training."""
        return max((one.rows for one in self.spent), default=1)

    @property
    def dropped(self) -> bool:
        """Whether a secret and its mask are a row there and a row gone, in every training."""
        return self.relation is Relation.ADD_OR_REMOVE and self.rows == 1

    @property
    def _missed(self) -> Relation:
        return Relation.ADD_OR_REMOVE if self.dropped else Relation.SUBSTITUTION

    @property
    def allowance(self) -> float:
        """What share of a figure the main accountant's grid may add to it."""
        return ALLOWANCE if self.rows == 1 else GROUP_ALLOWANCE

    def curve(self, delta: float) -> float | None:
        """Epsilon of one named secret that the strict policy missed, at ``delta``."""
        if delta >= 1.0:
            return 0.0
        return epsilon_of(self.spent, delta, self._missed)

    def second_curve(self, delta: float) -> Bracket:
        """The second accountant's bounds of :meth:`curve`."""
        if delta >= 1.0:
            return Bracket(0.0, 0.0)
        return bracket(self.spent, delta, self._missed)


@dataclass
class Figures:
    """``values`` of :data:`EPSILONS`, ``reasons`` for those that are null, ``second`` opinions as bounds."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, value: float | None, second: Bracket | None, reason: str = NOT_FINITE) -> None:
        """Take ``value`` for ``name``, once ``second`` confirms it."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if second is not None:
            self.second[name] = _outward(second)


def refused(group_sizes: tuple[int, ...], reason: str) -> Figures:
    """No figure at all, for one reason."""
    values: dict[str, Any] = dict.fromkeys(EPSILONS)
    values["epsilon_group"] = {str(size): None for size in group_sizes}
    return Figures(values, dict.fromkeys(EPSILONS, reason), {})


def figures_of(claim: Claim) -> Figures:
    """Every figure of ``claim``; ``GuaranteeError`` where the two accountants disagree about one."""
    found = Figures()
    # under rule S2 a point that goes leaves its place to another: one row is exchanged, none just gone
    alone = Relation.ADD_OR_REMOVE if claim.rows == 1 else Relation.SUBSTITUTION
    one_row = tuple(one if claim.across else dataclasses.replace(one, rows=1) for one in claim.spent)
    for name, spent, relation in (
        ("epsilon_substitution", claim.spent, Relation.SUBSTITUTION),
        ("epsilon_add_remove", one_row, alone),
    ):
        value, second = epsilon_of(spent, claim.delta, relation), bracket(spent, claim.delta, relation)
        found.put(name, confirmed(value, second, name, claim.allowance), second)
    own = "epsilon_add_remove" if claim.dropped else "epsilon_substitution"
    found.put("epsilon", found.values[own], None)
    found.second["epsilon"] = found.second[own]
    _groups(claim, found)
    _by_policy(claim, found)
    return found


def _groups(claim: Claim, found: Figures) -> None:
    values: dict[str, float | None] = {}
    seconds: dict[str, Any] = {}
    main = removal_epsilon_of if claim.dropped else group_epsilon_of
    other = removal_bracket if claim.dropped else group_bracket
    several = truncated(claim.spent) and len([one for one in claim.spent if one.steps]) > 1
    for size in claim.group_sizes:
        if several:
            values[str(size)] = None
            continue
        value = main(claim.spent, claim.delta, size)
        if value is not None and not truncated(claim.spent):
            second = other(claim.spent, claim.delta, size)
            confirmed(value, second, f"a group of {size}", GROUP_ALLOWANCE)
            seconds[str(size)] = _outward(second)
        values[str(size)] = value
    found.values["epsilon_group"] = values
    found.second["epsilon_group"] = seconds
    if None in values.values():
        found.reasons["epsilon_group"] = NO_GROUP_OF_SEVERAL if several else NO_GROUP_FIGURE


def _by_policy(claim: Claim, found: Figures) -> None:
    """``epsilon_confidentiality`` (every secret) and ``epsilon_bayesian`` (secrets that a policy catches)."""
    if not claim.by_policy:
        for name in ("epsilon_confidentiality", "epsilon_bayesian"):
            found.put(name, None, None, POLICIES_UNUSED)
        return
    _amplified(claim, found, "epsilon_bayesian", 0.0)
    if claim.delta_2 is None:
        reason = f"{NOT_MEASURED}: delta_2 may be above delta"
        found.put("epsilon_confidentiality", None, None, reason)
    elif claim.delta <= claim.delta_2:
        reason = (
            f"delta {claim.delta:g} is not above {claim.delta_2:.3g}, the upper bound of the share of "
            "secrets that both policies miss: for those there is no guarantee"
        )
        found.put("epsilon_confidentiality", None, None, reason)
    else:
        _amplified(claim, found, "epsilon_confidentiality", claim.delta_2)


def _amplified(claim: Claim, found: Figures, name: str, delta_2: float) -> None:
    def side(upper: bool) -> Callable[[float], float | None]:
        def at(delta: float) -> float | None:
            second = claim.second_curve(delta)
            value = second.upper if upper else second.lower
            return value if math.isfinite(value) else None

        return at

    value = bayesian_epsilon(claim.curve, claim.delta, claim.gamma, delta_2)
    low, high = (bayesian_epsilon(side(upper), claim.delta, claim.gamma, delta_2) for upper in (False, True))
    second = Bracket(math.inf if low is None else low, math.inf if high is None else high)
    found.put(name, confirmed(value, second, name, claim.allowance), second)


def _outward(second: Bracket) -> dict[str, float | None]:
    """Bounds that are the same on every machine: four decimals, outwards."""
    upper = math.ceil(second.upper * 1e4) / 1e4 if math.isfinite(second.upper) else None
    lower = math.floor(second.lower * 1e4) / 1e4 if math.isfinite(second.lower) else None
    return {"lower": lower, "upper": upper}


def require_reasons(values: dict[str, Any], reasons: dict[str, str]) -> None:
    """``GuaranteeError`` where a figure is null without a reason."""
    missing = [name for name, value in values.items() if value is None and name not in reasons]
    if missing:
        raise GuaranteeError(f"no reason is given for {', '.join(missing)}")

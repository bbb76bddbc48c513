"""The figures of a guarantee, each confirmed by a second accountant, each null with its reason."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spendings, epsilon_of, group_epsilon_of, removal_epsilon_of
from redactory.training.accounting.figures import truncated
from redactory.training.accounting.second import Bracket
from redactory.training.accounting.second_opinion import (
    NOT_FINITE,
    Stated,
    bracket,
    group_bracket,
    removal_bracket,
    stated,
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
    """``values`` of :data:`EPSILONS`, ``reasons`` for those that are null, ``second`` opinions as bounds.

    ``alone`` are the names of figures that no second accountant computed.
    """

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)

    def state(self, name: str, found: Stated) -> None:
        """Take what may be stated for ``name``."""
        self.put(name, found.value, found.second, found.reason or NOT_FINITE)

    def put(self, name: str, value: float | None, second: Bracket | None, reason: str = NOT_FINITE) -> None:
        """Take ``value`` for ``name``, which ``second`` holds."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if second is not None:
            self.second[name] = outward(second)


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
        found.state(name, one_exchanged(spent, claim.delta, relation, name))
    own = "epsilon_add_remove" if claim.dropped else "epsilon_substitution"
    found.put("epsilon", found.values[own], None, found.reasons.get(own, NOT_FINITE))
    if own in found.second:
        found.second["epsilon"] = found.second[own]
    _groups(claim, found)
    _by_policy(claim, found)
    return found


def one_exchanged(spent: Spendings, delta: float, relation: Relation, what: str) -> Stated:
    """Epsilon of one point under ``relation``, computed twice."""
    return stated(
        lambda at: epsilon_of(spent, at, relation), lambda at: bracket(spent, at, relation), delta, what
    )


def one_removed(spent: Spendings, delta: float, what: str) -> Stated:
    """Epsilon of one unit whose points are null in the other world, computed twice where that is known."""
    if truncated(spent):
        value = removal_epsilon_of(spent, delta, 1)
        return Stated(value, None, NOT_FINITE if value is None else None)
    return stated(
        lambda at: removal_epsilon_of(spent, at, 1), lambda at: removal_bracket(spent, at, 1), delta, what
    )


def _groups(claim: Claim, found: Figures) -> None:
    values: dict[str, float | None] = {}
    seconds: dict[str, Any] = {}
    reasons: list[str] = []
    several = truncated(claim.spent) and len([one for one in claim.spent if one.steps]) > 1
    for size in claim.group_sizes:
        if several:
            values[str(size)] = None
            continue
        if truncated(claim.spent):
            main = removal_epsilon_of if claim.dropped else group_epsilon_of
            values[str(size)] = main(claim.spent, claim.delta, size)
            found.alone[:] = ["epsilon_group"]
            continue
        one = _group(claim, size)
        values[str(size)] = one.value
        if one.value is not None and one.second is not None:
            seconds[str(size)] = outward(one.second)
        elif one.reason not in (None, NOT_FINITE):
            reasons.append(f"{size} points: {one.reason}")
    found.values["epsilon_group"] = values
    found.second["epsilon_group"] = seconds
    if None in values.values():
        why = NO_GROUP_OF_SEVERAL if several else NO_GROUP_FIGURE
        found.reasons["epsilon_group"] = "; ".join([why, *reasons])


def _group(claim: Claim, size: int) -> Stated:
    main = removal_epsilon_of if claim.dropped else group_epsilon_of
    other = removal_bracket if claim.dropped else group_bracket
    return stated(
        lambda at: main(claim.spent, at, size),
        lambda at: other(claim.spent, at, size),
        claim.delta,
        f"a group of {size}",
    )


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
    inner = (claim.delta - delta_2) / claim.gamma if claim.gamma > 0.0 else math.inf
    missed = stated(claim.curve, claim.second_curve, inner, name)

    def amplified(epsilon: float | None) -> float | None:
        return bayesian_epsilon(lambda _: epsilon, claim.delta, claim.gamma, delta_2)

    second = missed.second
    if second is not None:
        low, high = (amplified(one) or 0.0 for one in (second.lower, second.upper))
        second = Bracket(low, high)
    found.state(name, Stated(amplified(missed.value), second, missed.reason))


def outward(second: Bracket) -> dict[str, float | None]:
    """Bounds that are the same on every machine: four decimals, outwards."""
    upper = math.ceil(second.upper * 1e4) / 1e4 if math.isfinite(second.upper) else None
    lower = math.floor(second.lower * 1e4) / 1e4 if math.isfinite(second.lower) else None
    return {"lower": lower, "upper": upper}


def require_reasons(values: dict[str, Any], reasons: dict[str, str]) -> None:
    """``GuaranteeError`` where a figure is null without a reason."""
    missing = [name for name, value in values.items() if value is None and name not in reasons]
    if missing:
        raise GuaranteeError(f"no reason is given for {', '.join(missing)}")

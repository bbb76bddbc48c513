"""The figures of a guarantee, each confirmed by a second accountant, each null with its reason."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import (
    Spending,
    Spendings,
    epsilon_of,
    group_epsilon_of,
    removal_epsilon_of,
)
from redactory.training.accounting.figures import truncated
from redactory.training.accounting.mixtures import group_curve
from redactory.training.accounting.published import crt_published
from redactory.training.accounting.second import Bracket
from redactory.training.accounting.second_opinion import (
    NOT_FINITE,
    Stated,
    bracket,
    group_bracket,
    one_exchanged,
    removal_bracket,
    stated,
)
from redactory.training.guarantee.confidentiality import MissRates, bayesian_epsilon
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.guarantee.words import WORDS
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.uedp.algorithm1 import (
    Algorithm1Figures,
    as_published,
    confirmed_figure,
    spread_curve,
)
from redactory.training.uedp.algorithm1 import figures_of as algorithm1_figures
from redactory.training.uedp.bounded_accounting import (
    BoundedTraining,
    affected,
    bounded_training,
    conditions_of,
    curve,
    local,
    zero_out,
)
from redactory.training.uedp.bounding import NONE, R_LOC
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.settings import Adjacency, Figure, relation

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


LARGEST_SECOND, SECOND_WORTH = 500.0, 24.0
"""Largest epsilon, and K/σ, of a unit for which the second accountant is asked: beyond, none protects."""


@dataclass(frozen=True)
class Claim:
    """What the figures of secrets and points are computed from: one training's spec, or several together.

    ``relation`` is what a secret and its mask are to the noised points; ``gamma`` and ``delta_2`` are the
    upper bounds of :class:`MissRates`; ``by_policy`` says whether the policies decide what is noised.
    ``across`` says that a point of one training moves rows of another one: then a row that goes from the one
    comes to the other.
    """

    spent: Spendings
    delta: float
    group_sizes: tuple[int, ...] = ()
    relation: Relation = Relation.SUBSTITUTION
    gamma: float = 1.0
    delta_2: float | None = None
    by_policy: bool = True
    across: bool = False

    @classmethod
    def of(cls, spec: TrainingSpec) -> Claim:
        """The claim of one training."""
        return cls(
            spent=(spec.spending,) if spec.spending else (),
            delta=spec.delta,
            group_sizes=spec.settings.group_sizes,
            relation=spec.relation,
            gamma=spec.rates.gamma,
            delta_2=spec.rates.delta_2,
            by_policy=spec.trainer.by_policy,
        )

    @property
    def rates(self) -> MissRates:
        """What the policies miss."""
        return MissRates(self.gamma, self.delta_2)

    @property
    def rows(self) -> int:
        """The most rows that one exchanged point exchanges in any training."""
        return max((one.rows for one in self.spent), default=1)

    @property
    def dropped(self) -> bool:
        """Whether a secret and its mask are a row there and a row gone, in every training."""
        return self.relation is Relation.ADD_OR_REMOVE and self.rows == 1

    @property
    def missed(self) -> Relation:
        """What a missed secret and its mask are: as ``relation`` says, but under a rule of several rows."""
        return Relation.ADD_OR_REMOVE if self.dropped else Relation.SUBSTITUTION

    @property
    def as_published(self) -> dict[str, Any] | None:
        """What the paper's formulas would say, for CRT's own mechanism only."""
        own = all(isinstance(one.mechanism, PoissonGaussian) and one.rows == 1 for one in self.spent)
        if not (self.spent and own and self.by_policy) or self.dropped:
            return None
        return crt_published(self.spent, self.delta, self.gamma, self.delta_2, self.group_sizes)

    def curve(self, delta: float) -> float | None:
        """Epsilon of one named secret that the strict policy missed, at ``delta``."""
        if delta >= 1.0:
            return 0.0
        return epsilon_of(self.spent, delta, self.missed)

    def second_curve(self, delta: float) -> Bracket:
        """The second accountant's bounds of :meth:`curve`."""
        if delta >= 1.0:
            return Bracket(0.0, 0.0)
        return bracket(self.spent, delta, self.missed)


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
    for name, spent, between in (
        ("epsilon_substitution", claim.spent, Relation.SUBSTITUTION),
        ("epsilon_add_remove", one_row, alone),
    ):
        found.state(name, one_exchanged(spent, claim.delta, between, name))
    own = "epsilon_add_remove" if claim.dropped else "epsilon_substitution"
    found.put("epsilon", found.values[own], None, found.reasons.get(own, NOT_FINITE))
    if own in found.second:
        found.second["epsilon"] = found.second[own]
    _groups(claim, found)
    _by_policy(claim, found)
    return found


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


# The figures of users and entities: the same for a plan and for a card.


@dataclass(frozen=True)
class UnitFigures:
    """``figures`` with ``epsilon_sound``, ``epsilon_user_removal``, ``epsilon_as_published`` and ``curve``.

    ``relation`` is the main figure's, ``facts`` what it was computed from (adjacency, K or M, rule, caps);
    ``no_second`` says why no second accountant was asked, where none was.
    """

    relation: str
    figures: Figures
    facts: dict[str, Any]
    no_second: str | None = None


def unit_figures(spec: TrainingSpec) -> UnitFigures:
    """What a training that hides users or entities guarantees; ``GuaranteeError`` where they disagree."""
    if isinstance(spec.mechanism, PoissonUsersGaussian):
        return _of_users(spec, spec.mechanism)
    return _of_points(spec)


def bounded_of(spec: TrainingSpec) -> BoundedTraining:
    """The constants of ``uedp-bounded`` as its accountant takes them."""
    assert spec.mechanism is not None
    found = bounded_training(spec.settings, spec.mechanism.noise_multiplier, spec.steps)
    return dataclasses.replace(found, sampling_rate=spec.mechanism.sampling_rate)


def _of_points(spec: TrainingSpec) -> UnitFigures:
    """C1, C2 where it is stable, and the curve C0 (``docs/explanation/uedp.md``)."""
    own, delta, found = spec.settings.bounding, spec.delta, Figures()
    training = bounded_of(spec)
    held = conditions_of(spec.settings, isinstance(spec.mechanism, PoissonGaussian))
    size = None if own.rule == NONE else affected(training).gone
    main = zero_out(training, held, delta)
    _confirmed(found, main, training, size or 0)
    protect = spec.protect
    if own.rule == R_LOC and own.entities_per_point is not None:
        vanishing = local(training, held, delta, own.entities_per_point)
    else:
        name = relation(protect, Adjacency.USER_REMOVAL)
        vanishing = Figure(None, delta, name, WORDS["units"]["only_r_loc"])
    found.put("epsilon_user_removal", vanishing.epsilon, None, vanishing.reason or "")
    found.put("epsilon_as_published", None, None, WORDS["units"]["not_published"])
    groups = curve(training, held, delta)
    found.values["curve"] = {str(count): one.epsilon for count, one in groups.items()}
    found.alone += ["curve", *(["epsilon_user_removal"] if vanishing.epsilon is not None else [])]
    lacking = next((one.reason for one in groups.values() if one.reason is not None), None)
    if lacking is not None:
        found.reasons["curve"] = lacking
    over = next(iter(groups.values())).relation.replace("at most 1 points", "at most K points")
    facts = {
        "adjacency": main.relation,
        "adjacency_user_removal": vanishing.relation,
        "adjacency_curve": over,
        "K": size,
        "rule": own.rule,
        "k_user": own.k_user,
        "k_entity": own.k_entity,
        "entities_per_point": own.entities_per_point,
    }
    return UnitFigures(main.relation, found, facts, WORDS["units"]["no_second"])


def _confirmed(found: Figures, figure: Figure, training: BoundedTraining, points: int) -> None:
    """Take ``figure``, of ``points`` K, once the second accountant confirms it.

    Where K/σ is over 24, or epsilon over 500, none is asked: the figure is then a bound of the exact pair's,
    and protects nobody.
    """
    name, rate, sigma = "epsilon_sound", training.sampling_rate, training.noise_multiplier
    if figure.epsilon is None or figure.epsilon >= LARGEST_SECOND or points / sigma > SECOND_WORTH:
        found.put(name, figure.epsilon, None, figure.reason or "")
        found.alone += [name] if figure.epsilon is not None else []
        return
    spent = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), training.steps),)
    main = group_curve(points, rate, sigma, training.steps)
    found.state(name, stated(main, lambda delta: removal_bracket(spent, delta, points), figure.delta, name))


def _of_users(spec: TrainingSpec, mechanism: PoissonUsersGaussian) -> UnitFigures:
    """The least of the proved bounds, what the papers print, and the curve over users or their spread."""
    terms, found = (mechanism, spec.steps, spec.delta, spec.protect), Figures()
    figure, second = confirmed_figure(*terms)
    found.put("epsilon_sound", figure.epsilon, second, figure.reason or "")
    published = as_published(mechanism, spec.steps, spec.delta)
    found.values["epsilon_as_published"] = published.value
    if published.reason is not None:
        found.reasons["epsilon_as_published"] = published.reason
    found.values["curve"] = {str(size): epsilon for size, epsilon in spread_curve(*terms).items()}
    if None in found.values["curve"].values():
        found.reasons["curve"] = "where there is no figure, none was found for so little noise"
    found.put("epsilon_user_removal", None, None, WORDS["units"]["only_bounded"])
    found.alone = ["curve"] if second or figure.epsilon is None else ["epsilon_sound", "curve"]
    no_second = None
    if second is None:
        why = WORDS["units"]["no_second_of_entities"]
        no_second = why if figure.epsilon is not None else "there is no figure to confirm"
    facts = {"adjacency": figure.relation, **_extent(spec, mechanism, algorithm1_figures(*terms))}
    return UnitFigures(figure.relation, found, facts, no_second)


def _extent(spec: TrainingSpec, mechanism: PoissonUsersGaussian, bounds: Algorithm1Figures) -> dict[str, Any]:
    """Public constants of the sampling; M with its source, where an entity's users count."""
    own, spread = mechanism.entities, bounds.spread
    of_users = spec.protect.value == "users"
    facts: dict[str, Any] = {"users": mechanism.users, "K": None, "M": None, "M_source": None}
    if own is not None:
        facts |= {
            "entity_rate": own.entity_rate,
            "extended_rate": own.extended_rate if own.estimator == "f_E+" else None,
            "estimator": own.estimator,
            "rule": own.rule,
        }
    if spread is not None and not of_users:
        facts |= {"M": spread.users, "M_source": spread.source.value}
    facts["bounds"] = {"revealed": bounds.revealed, "chain": bounds.chain, "all_rule": bounds.all_rule}
    facts["curve_meaning"] = WORDS["units"]["group_curve" if of_users else "spread_curve"]
    return facts

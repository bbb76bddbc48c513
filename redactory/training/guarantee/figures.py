"""The figures of a guarantee, each confirmed by a second accountant, each null with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redactory.foundation.bounds import format_upper, round_down, round_up
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spending, Spendings, group_epsilon_of, removal_epsilon_of
from redactory.training.accounting.figures import epsilon_curve
from redactory.training.accounting.losses import group_curve
from redactory.training.accounting.pairs import threshold_loss
from redactory.training.accounting.published import crt_published
from redactory.training.accounting.second import (
    NOT_FINITE,
    Bracket,
    Stated,
    group_bracket,
    one_exchanged,
    removal_bracket,
    stated,
)
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.spec import TrainingSpec, bayesian_epsilon
from redactory.training.mechanism import BandedGaussian, PoissonGaussian, PoissonUsersGaussian, Relation
from redactory.training.uedp.algorithm1 import NO_SHARE, as_published, confirmed_figure, spread_curve, spread_of
from redactory.training.uedp.algorithm1 import figures_of as algorithm1_figures
from redactory.training.uedp.bounded_accounting import BoundedTraining, affected, curve, local, zero_out
from redactory.training.uedp.bounding import NONE, R_LOC
from redactory.training.units import Adjacency, Figure, Protect, relation

EPSILONS = (
    *("epsilon", "epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution"),
    *("epsilon_add_remove", "epsilon_group"),
)
NO_GROUP_FIGURE = "sizes without an epsilon: none below 4096 was found; the noise protects no such group"
NOT_MEASURED = "recall not measured"
NO_GROUP_OF_BANDS = "no epsilon is proved for several examples under correlated noise"
NO_GROUP_COUNTED = "public by count is accounted for one exchanged example; for several there is no epsilon"
POLICIES_UNUSED = (
    "this trainer does not use the policies: epsilon_substitution covers a secret in an example of the "
    "private split, but not a vocabulary taken from public/"
)
LARGEST_SECOND, SECOND_WORTH = 500.0, 24.0
"""Largest epsilon, and K/σ, of a unit for which the second accountant is asked: beyond, none protects."""


@dataclass
class Figures:
    """``values`` by name, ``reasons`` for those that are null, ``second`` opinions as bounds.

    ``alone`` are the names of figures that no second accountant computed.  Of users and entities there are
    also the main figure's ``relation``, and the ``facts`` that it was computed from (adjacency, K or M, rule,
    caps); ``no_second`` says why no second accountant was asked, where none was.
    """

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    relation: str = "none"
    facts: dict[str, Any] = field(default_factory=dict)
    no_second: str | None = None

    def state(self, name: str, found: Stated) -> None:
        """Take what may be stated for ``name``."""
        self.put(name, found.value, found.second, found.reason or NOT_FINITE)

    def put(self, name: str, value: Any, second: Bracket | None = None, reason: str = NOT_FINITE) -> None:
        """Take ``value`` for ``name``, which ``second`` holds."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if second is not None:
            self.second[name] = outward(second)

    def copy(self, name: str, to: str) -> None:
        """Say of ``to`` what is said of ``name``."""
        for what in (self.values, self.reasons, self.second):
            if name in what:
                what[to] = what[name]


def refused(names: tuple[str, ...], reason: str, group_sizes: tuple[int, ...] = ()) -> Figures:
    """None of the figures ``names``, for one reason."""
    values: dict[str, Any] = dict.fromkeys(names)
    if "epsilon_group" in names:
        values["epsilon_group"] = {str(size): None for size in group_sizes}
    return Figures(values, dict.fromkeys(names, reason))


def outward(second: Bracket) -> dict[str, float | None]:
    """Bounds that are the same on every machine: four decimals, outwards."""
    upper = round_up(second.upper, places=4) if math.isfinite(second.upper) else None
    lower = round_down(second.lower, places=4) if math.isfinite(second.lower) else None
    return {"lower": lower, "upper": upper}


def require_reasons(values: dict[str, Any], reasons: dict[str, str]) -> None:
    """``GuaranteeError`` where a figure is null without a reason."""
    missing = [name for name, value in values.items() if value is None and name not in reasons]
    if missing:
        raise GuaranteeError(f"there is no reason for {', '.join(missing)}")


# Secrets and points.


@dataclass(frozen=True)
class Claim:
    """What the figures of secrets and points are computed from: one training's spec, or several together.

    ``relation`` is what a secret and its mask are to the noised points; ``gamma`` and ``delta_2`` are the
    upper bounds of :class:`MissRates`; ``by_policy`` says whether the policies decide what is noised.
    ``across`` says that a point of one training moves rows of another one: then a row that goes from the one
    comes to the other.  ``counted`` says that counts decided what is public: what they cost is in ``spent``.
    """

    spent: Spendings
    delta: float
    group_sizes: tuple[int, ...] = ()
    relation: Relation = Relation.SUBSTITUTION
    gamma: float = 1.0
    delta_2: float | None = None
    by_policy: bool = True
    across: bool = False
    counted: bool = False

    @classmethod
    def of(cls, spec: TrainingSpec) -> Claim:
        """The claim of one training."""
        return cls(
            (*spec.spent, *spec.beside) if spec.spending else (),
            spec.delta,
            spec.settings.group_sizes,
            Relation.SUBSTITUTION if spec.beside else spec.relation,
            spec.rates.gamma,
            spec.rates.delta_2,
            spec.trainer.by_policy,
            counted=bool(spec.beside),
        )

    @property
    def single(self) -> bool:
        """Whether one exchanged point exchanges one row in every training, and nothing else."""
        return not self.counted and all(one.rows == 1 for one in self.spent)

    @property
    def missed(self) -> Relation:
        """What a missed secret and its mask are: as ``relation`` says, but under a rule of several rows."""
        return self.relation if self.single else Relation.SUBSTITUTION

    @property
    def as_published(self) -> dict[str, Any] | None:
        """What the paper's formulas would say, for CRT's own mechanism only."""
        own = self.single and all(isinstance(one.mechanism, PoissonGaussian) for one in self.spent)
        if not (self.spent and own and self.by_policy) or self.missed is Relation.ADD_OR_REMOVE:
            return None
        return crt_published(self.spent, self.delta, self.gamma, self.delta_2, self.group_sizes)


def figures_of(claim: Claim) -> Figures:
    """Every figure of ``claim``; ``GuaranteeError`` where the two accountants disagree about one."""
    found = Figures()
    # under rule S2 a point that goes leaves its place to another: one row is exchanged, none just gone
    alone = Relation.ADD_OR_REMOVE if claim.single else Relation.SUBSTITUTION
    one_row = tuple(one if claim.across else replace(one, rows=1) for one in claim.spent)
    for name, spent, between in (
        ("epsilon_substitution", claim.spent, Relation.SUBSTITUTION),
        ("epsilon_add_remove", one_row, alone),
    ):
        if claim.counted and found.values:
            # a point that goes makes room for another text of its user: it is an exchange as well
            found.copy("epsilon_substitution", name)
        else:
            found.state(name, one_exchanged(spent, claim.delta, between, name))
    missed = claim.missed is Relation.ADD_OR_REMOVE
    found.copy("epsilon_add_remove" if missed else "epsilon_substitution", "epsilon")
    _groups(claim, found)
    _by_policy(claim, found)
    return found


def one_removed(spent: Spendings, delta: float, what: str, points: int = 1) -> Stated:
    """Epsilon of ``points`` units whose points are null in the other world, computed twice if known."""
    return stated(
        lambda at: removal_epsilon_of(spent, at, points),
        lambda at: removal_bracket(spent, at, points),
        delta,
        what,
        threshold_loss(spent),
    )


def _group(claim: Claim, size: int) -> Stated:
    if any(isinstance(one.mechanism, BandedGaussian) for one in claim.spent):
        return Stated(None, None, NO_GROUP_OF_BANDS)
    if claim.missed is Relation.ADD_OR_REMOVE:
        return one_removed(claim.spent, claim.delta, f"a group of {size}", size)
    return stated(
        lambda at: group_epsilon_of(claim.spent, at, size),
        lambda at: group_bracket(claim.spent, at, size),
        claim.delta,
        f"a group of {size}",
    )


def _groups(claim: Claim, found: Figures) -> None:
    name = "epsilon_group"
    if claim.counted:
        found.values[name] = {str(size): None for size in claim.group_sizes}
        found.reasons |= {name: NO_GROUP_COUNTED} if claim.group_sizes else {}
        return
    values, seconds, reasons = found.values.setdefault(name, {}), found.second.setdefault(name, {}), []
    for size in claim.group_sizes:
        one = _group(claim, size)
        values[str(size)] = one.value
        if one.value is not None and one.second is not None:
            seconds[str(size)] = outward(one.second)
        elif one.reason not in (None, NOT_FINITE):
            reasons.append(f"{size} examples: {one.reason}")
    if None in values.values():
        found.reasons[name] = "; ".join([NO_GROUP_FIGURE, *reasons])


def _by_policy(claim: Claim, found: Figures) -> None:
    """``epsilon_confidentiality`` (every secret) and ``epsilon_bayesian`` (secrets that a policy catches)."""
    refusal = None
    if claim.counted:
        # no detector is trusted: of every secret what holds of any exchange
        found.copy("epsilon_substitution", "epsilon_confidentiality")
        if claim.by_policy and claim.gamma == 1.0:
            found.copy("epsilon_substitution", "epsilon_bayesian")
        elif claim.by_policy:
            _amplified(claim, found, "epsilon_bayesian", 0.0)
        else:
            found.put("epsilon_bayesian", None, None, POLICIES_UNUSED)
        return
    if not claim.by_policy:
        found.put("epsilon_confidentiality", None, None, POLICIES_UNUSED)
        found.put("epsilon_bayesian", None, None, POLICIES_UNUSED)
        return
    if claim.delta_2 is None:
        refusal = f"{NOT_MEASURED}: delta_2 may be above delta"
    elif claim.delta <= claim.delta_2:
        refusal = (
            f"delta {format_upper(claim.delta)} is not above {format_upper(claim.delta_2, 3)}, the upper "
            "bound on the share of secrets that both policies miss: those have no guarantee"
        )
    _amplified(claim, found, "epsilon_bayesian", 0.0)
    if refusal is None:
        _amplified(claim, found, "epsilon_confidentiality", claim.delta_2 or 0.0)
    else:
        found.put("epsilon_confidentiality", None, None, refusal)


def _amplified(claim: Claim, found: Figures, name: str, delta_2: float) -> None:
    inner = (claim.delta - delta_2) / claim.gamma if claim.gamma > 0.0 else math.inf
    if inner >= 1.0:
        found.put(name, 0.0, Bracket(0.0, 0.0))
        return
    missed = one_exchanged(claim.spent, inner, claim.missed, name)

    def amplified(epsilon: float | None) -> float | None:
        return bayesian_epsilon(lambda _: epsilon, claim.delta, claim.gamma, delta_2)

    second = missed.second
    if second is not None:
        second = Bracket(*(amplified(one) or 0.0 for one in (second.lower, second.upper)))
    found.state(name, Stated(amplified(missed.value), second, missed.reason))


# Users and entities: the same for a plan and for a card.


UNIT_FIGURES = ("epsilon", "epsilon_sound", "epsilon_user_removal", "epsilon_as_published", "curve")


def unit_figures(spec: TrainingSpec) -> Figures:
    """What a training that hides users or entities guarantees; ``GuaranteeError`` where they disagree."""
    own, found = spec.mechanism, Figures()
    if isinstance(own, PoissonUsersGaussian):
        _of_users(spec, own, found)
    else:
        _of_points(spec, found)
    found.put("epsilon", found.values["epsilon_sound"], None, found.reasons.get("epsilon_sound", ""))
    if spec.selection is not None:
        with_public(found, [spec], spec.delta)
    return found


WITH_PUBLIC = "epsilon_with_public"


def with_public(found: Figures, specs: Sequence[TrainingSpec], delta: float) -> None:
    """Put into ``found`` what one user has of all models and the texts that are public by count together.

    ``docs/guarantees.md``, "Public by count", "Users": a null user gives no text.  Every selection is spent
    once, however many models its run has.
    """
    selections = {one.selection.id: one.selection.of_user() for one in specs if one.selection is not None}
    spent, name = [one.spending for one in specs], WITH_PUBLIC
    why = None
    if any(one.protect is not Protect.USERS for one in specs):
        why = WORDS["counted"]["no_entities"]
    elif any(one.settings.units.duplicates == "merge" for one in specs):
        why = WORDS["counted"]["merged"]
    elif None in spent or "epsilon_sound" in found.reasons:
        why = found.reasons.get("epsilon_sound", WORDS["counted"]["no_pair"])
    if why is not None:
        found.put(name, None, None, why)
        return
    found.state(name, one_removed((*filter(None, spent), *selections.values()), delta, name))


def bounded_of(spec: TrainingSpec) -> BoundedTraining:
    """The constants of ``uedp-bounded`` as its accountant takes them."""
    assert spec.mechanism is not None
    found = BoundedTraining.of(spec.settings, spec.mechanism.noise_multiplier, spec.steps)
    return replace(found, sampling_rate=spec.mechanism.sampling_rate)


def _of_points(spec: TrainingSpec, found: Figures) -> None:
    """C1, C2 where it is stable, and the curve C0 (``docs/explanation/uedp.md``)."""
    own, words, training = spec.settings.bounding, WORDS["units"], bounded_of(spec)
    size = None if own.rule == NONE else affected(training).gone
    main = zero_out(training, spec.delta)
    rate, sigma, points = training.sampling_rate, training.noise_multiplier, size or 0
    if main.epsilon is None or main.epsilon >= LARGEST_SECOND or points / sigma > SECOND_WORTH:
        # the figure is then a bound of the exact pair's, and protects nobody
        found.put("epsilon_sound", main.epsilon, None, main.reason or "")
        found.alone += ["epsilon_sound"] if main.epsilon is not None else []
    else:
        exact = group_curve(points, rate, sigma, training.steps)
        spent = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), training.steps),)
        found.state(
            "epsilon_sound", stated(exact, lambda at: removal_bracket(spent, at, points), spec.delta, "epsilon_sound")
        )
    if own.rule == R_LOC and own.entities_per_point is not None:
        vanishing = local(training, spec.delta)
    else:
        name = relation(spec.protect, Adjacency.USER_REMOVAL)
        vanishing = Figure(None, spec.delta, name, words["only_r_loc"])
    found.put("epsilon_user_removal", vanishing.epsilon, None, vanishing.reason or "")
    found.put("epsilon_as_published", None, None, words["not_published"])
    groups = curve(training, spec.delta)
    found.values["curve"] = {str(count): one.epsilon for count, one in groups.items()}
    found.alone += ["curve", *(["epsilon_user_removal"] if vanishing.epsilon is not None else [])]
    lacking = [one.reason for one in groups.values() if one.reason is not None]
    if lacking:
        found.reasons["curve"] = lacking[0]
    found.relation, found.no_second = main.relation, words["no_second"]
    found.facts = {
        "adjacency": main.relation,
        "adjacency_user_removal": vanishing.relation,
        "adjacency_curve": groups[1].relation.replace("at most 1 points", "at most K points"),
        "K": size,
        **own.model_dump(include={"rule", "k_user", "k_entity", "entities_per_point"}),
    }


def _of_users(spec: TrainingSpec, mechanism: PoissonUsersGaussian, found: Figures) -> None:
    """The least of the proved bounds, what the papers print, and the curve over users or their spread."""
    terms, words = (mechanism, spec.steps, spec.delta, spec.protect), WORDS["units"]
    figure, second = confirmed_figure(*terms)
    found.put("epsilon_sound", figure.epsilon, second, figure.reason or "")
    published = as_published(mechanism, spec.steps, spec.delta)
    found.put("epsilon_as_published", published, None, NO_SHARE)
    found.values["curve"] = {str(size): epsilon for size, epsilon in spread_curve(*terms).items()}
    if None in found.values["curve"].values():
        found.reasons["curve"] = "no epsilon: none was found for so little noise"
    found.put("epsilon_user_removal", None, None, words["only_bounded"])
    found.alone = ["curve"] if second or figure.epsilon is None else ["epsilon_sound", "curve"]
    found.relation = figure.relation
    if second is None:
        found.no_second = words["no_second_of_entities"] if figure.epsilon else "there is no epsilon to confirm"
    own, bounds, of_users = mechanism.entities, algorithm1_figures(*terms), spec.protect.value == "users"
    facts = found.facts
    facts |= {"adjacency": figure.relation, "users": mechanism.users, "K": None, "M": None, "M_source": None}
    if own is not None:
        facts |= {
            "entity_rate": own.entity_rate,
            "related_entity_rate": own.related_entity_rate if own.estimator == "f_E+" else None,
            "estimator": own.estimator,
            "rule": own.rule,
        }
    if (spread := spread_of(mechanism)) is not None and not of_users:
        facts |= {"M": spread[0], "M_source": spread[1]}
    facts["bounds"] = {"revealed": bounds.revealed, "chain": bounds.chain, "all_rule": bounds.all_rule}
    facts["curve_meaning"] = words["group_curve" if of_users else "spread_curve"]


# Epsilon while a training runs: looked up on a curve that is composed before its steps are.


Remark = Callable[[int], str]
"""From the number of noisy steps that were made to what the progress line says of them."""
_UNIT_FIGURES = 8


def no_remark(steps: int) -> str:
    """For a training without noise."""
    return ""


def live_epsilon(spec: TrainingSpec) -> Remark:
    """An upper bound of what was spent so far, for one secret or unit; the card's figure is the exact one."""
    spending, delta = spec.spending, spec.delta
    counted = spec.selection is not None
    unbounded = spec.trainer.hides_units and spec.settings.bounding.rule == NONE
    if spending is None or spec.start or counted or unbounded:
        return no_remark
    if spec.trainer.hides_units and not spec.trainer.samples_users:
        return _of_units(spec)
    curve = epsilon_curve(spending, delta, spec.relation if spending.rows == 1 else Relation.SUBSTITUTION)
    return lambda steps: f", ε ≤ {format_upper(curve.at(steps), 3)}"


def _of_units(spec: TrainingSpec) -> Remark:
    """Of K points: each figure takes a second, so few are composed, and each bounds the steps below it."""
    own, known, stride = bounded_of(spec), dict[int, float](), math.ceil(spec.steps / _UNIT_FIGURES)

    def remark(done: int) -> str:
        count = min(spec.steps, stride * math.ceil(done / stride))
        if count not in known:
            known[count] = group_curve(spec.rows, own.sampling_rate, own.noise_multiplier, count)(spec.delta)
        return f", ε ≤ {format_upper(known[count], 3)}"

    return remark

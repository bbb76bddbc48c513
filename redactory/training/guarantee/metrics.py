"""Compute the metrics of a guarantee. A second accountant confirms each epsilon; a missing value has a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redactory.foundation.bounds import format_upper, round_down, round_up
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spending, Spendings, compute_group_epsilon, compute_removal_epsilon
from redactory.training.accounting.confirmation import (
    NO_FINITE_EPSILON,
    ConfirmedEpsilon,
    bound_group_epsilon,
    confirm_epsilon,
    confirm_single_epsilon,
)
from redactory.training.accounting.curves import make_group_epsilon_curve
from redactory.training.accounting.dominating_pairs import compute_failure_delta
from redactory.training.accounting.epsilons import compute_epsilon_curve
from redactory.training.accounting.published_epsilons import describe_published_crt
from redactory.training.accounting.verification import EpsilonBounds, bound_removal_epsilon
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.spec import TrainingSpec, compute_bayesian_epsilon
from redactory.training.mechanisms.mechanism import PoissonGaussian, PoissonUsersGaussian, Relation
from redactory.training.uedp.bounded_accounting import (
    BoundedTraining,
    compute_epsilon_by_example_count,
    compute_user_removal_epsilon,
    compute_zero_out_epsilon,
    count_affected_examples,
)
from redactory.training.uedp.federated_accounting import (
    NO_SHARE_REASON,
    compute_epsilon_by_user_count,
    compute_published_federated_epsilon,
    confirm_federated_epsilon,
    get_max_users_per_entity,
)
from redactory.training.unit_settings import PrivacyUnit

EPSILON_NAMES = (
    *("epsilon", "epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution"),
    *("epsilon_add_remove", "epsilon_group"),
)
NO_GROUP_EPSILON = "sizes without an epsilon: none below 4096 was found; the noise protects no such group"
RECALL_NOT_MEASURED = "recall not measured"
NO_COUNTED_GROUP_EPSILON = "public by count is accounted for one exchanged example; for several there is no epsilon"
POLICIES_UNUSED_REASON = (
    "this trainer does not use the policies: epsilon_substitution covers a secret in an example of the "
    "private split, but not a vocabulary taken from public/"
)
MAX_VERIFIED_EPSILON, MAX_VERIFIED_RATIO = 500.0, 24.0
"""Limits of epsilon, and of K/σ, above which the second accountant is not run: such a value protects nobody."""


@dataclass
class Metrics:
    """Hold metrics by name: ``values``, ``reasons`` for null values, ``bounds`` of the second accountant.

    ``unconfirmed`` lists epsilons that were computed once; ``no_bounds_reason`` says why it was not run. For users
    and entities, ``relation`` belongs to the main epsilon and ``facts`` are its inputs (adjacency, K or M, rule, caps).
    """

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    unconfirmed: list[str] = field(default_factory=list)
    relation: str = "none"
    facts: dict[str, Any] = field(default_factory=dict)
    no_bounds_reason: str | None = None
    _confirmed: dict[tuple[Any, ...], ConfirmedEpsilon] = field(default_factory=dict, repr=False, compare=False)

    def confirm_once(self, spendings: Spendings, delta: float, relation: Relation, name: str) -> ConfirmedEpsilon:
        """Confirm the epsilon of one example; several metrics may need the same one, and each takes half a second."""
        key = (spendings, delta, relation)
        if key not in self._confirmed:
            self._confirmed[key] = confirm_single_epsilon(spendings, delta, relation, name)
        return self._confirmed[key]

    def set_confirmed_epsilon(self, name: str, confirmed: ConfirmedEpsilon) -> None:
        """Set ``name`` to the confirmed epsilon with its bounds and reason."""
        self.set_value(name, confirmed.value, confirmed.bounds, confirmed.reason or NO_FINITE_EPSILON)
        if confirmed.is_computed_once:
            self.unconfirmed.append(name)

    def set_value(
        self, name: str, value: Any, bounds: EpsilonBounds | None = None, reason: str = NO_FINITE_EPSILON
    ) -> None:
        """Set ``name`` to ``value``, with the second accountant's ``bounds``, or a ``reason`` if it is None."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if bounds is not None:
            self.bounds[name] = round_bounds_outwards(bounds)

    def copy_value(self, name: str, target: str) -> None:
        """Copy value, reason and bounds of ``name`` to ``target``."""
        for mapping in (self.values, self.reasons, self.bounds):
            if name in mapping:
                mapping[target] = mapping[name]


def make_null_metrics(names: tuple[str, ...], reason: str, group_sizes: tuple[int, ...] = ()) -> Metrics:
    """Make metrics in which all of ``names`` are null for the same reason."""
    values: dict[str, Any] = dict.fromkeys(names)
    if "epsilon_group" in names:
        values["epsilon_group"] = {str(size): None for size in group_sizes}
    return Metrics(values, dict.fromkeys(names, reason))


def round_bounds_outwards(bounds: EpsilonBounds) -> dict[str, float | None]:
    """Round bounds outwards to four decimals, so that they are the same on every machine."""
    upper = round_up(bounds.upper, places=4) if math.isfinite(bounds.upper) else None
    lower = round_down(bounds.lower, places=4) if math.isfinite(bounds.lower) else None
    return {"lower": lower, "upper": upper}


def require_reasons(values: dict[str, Any], reasons: dict[str, str]) -> None:
    """Raise ``GuaranteeError`` if a metric is null without a reason."""
    unexplained = [name for name, value in values.items() if value is None and name not in reasons]
    if unexplained:
        raise GuaranteeError(f"there is no reason for {', '.join(unexplained)}")


# Sensitive spans and examples.


@dataclass(frozen=True)
class EpsilonInputs:
    """Inputs of the epsilons of sensitive spans and examples: one training, or several composed.

    ``relation`` is that of a sensitive span to its mask in the noised examples.  ``gamma`` and ``delta_2`` are the
    upper bounds of :class:`MissRates`; ``uses_policy`` is true if the policies decide what is noised.
    ``is_cross_run``: an example of one training moves rows of another one, so a row that leaves one enters the other.
    ``is_counted``: counts decided what is public; ``spendings`` includes their cost.
    """

    spendings: Spendings
    delta: float
    group_sizes: tuple[int, ...] = ()
    relation: Relation = Relation.SUBSTITUTION
    gamma: float = 1.0
    delta_2: float | None = None
    uses_policy: bool = True
    is_cross_run: bool = False
    is_counted: bool = False

    @classmethod
    def from_spec(cls, spec: TrainingSpec) -> EpsilonInputs:
        """Make the inputs of one training."""
        return cls(
            (*spec.total_spendings, *spec.selection_spendings) if spec.spending else (),
            spec.delta,
            spec.settings.group_sizes,
            Relation.SUBSTITUTION if spec.selection_spendings else spec.relation,
            spec.rates.gamma,
            spec.rates.delta_2,
            spec.trainer.uses_policy,
            is_counted=bool(spec.selection_spendings),
        )

    @property
    def is_single_row(self) -> bool:
        """Whether exchanging one example exchanges exactly one row in every training, and nothing else."""
        return not self.is_counted and all(spending.rows == 1 for spending in self.spendings)

    @property
    def missed_span_relation(self) -> Relation:
        """The relation of a missed sensitive span to its mask: ``relation``, or substitution if several rows change."""
        return self.relation if self.is_single_row else Relation.SUBSTITUTION

    @property
    def published_crt_epsilons(self) -> dict[str, Any] | None:
        """The epsilons of the paper's formulas; None for any mechanism except CRT's own."""
        is_poisson = self.is_single_row and all(
            isinstance(spending.mechanism, PoissonGaussian) for spending in self.spendings
        )
        if (
            not (self.spendings and is_poisson and self.uses_policy)
            or self.missed_span_relation is Relation.ADD_OR_REMOVE
        ):
            return None
        return describe_published_crt(self.spendings, self.delta, self.gamma, self.delta_2, self.group_sizes)


def compute_epsilons(inputs: EpsilonInputs) -> Metrics:
    """Compute every metric of ``inputs``; ``GuaranteeError`` if the two accountants disagree."""
    metrics = Metrics()
    # under rule S2 another example replaces a removed one: a row is exchanged, never only removed
    add_remove_relation = Relation.ADD_OR_REMOVE if inputs.is_single_row else Relation.SUBSTITUTION
    one_row = tuple(spending if inputs.is_cross_run else replace(spending, rows=1) for spending in inputs.spendings)
    for name, spendings, between in (
        ("epsilon_substitution", inputs.spendings, Relation.SUBSTITUTION),
        ("epsilon_add_remove", one_row, add_remove_relation),
    ):
        if inputs.is_counted and metrics.values:
            # a removed example makes room for another text of its user: this is an exchange, too
            metrics.copy_value("epsilon_substitution", name)
        else:
            metrics.set_confirmed_epsilon(name, metrics.confirm_once(spendings, inputs.delta, between, name))
    is_removal = inputs.missed_span_relation is Relation.ADD_OR_REMOVE
    metrics.copy_value("epsilon_add_remove" if is_removal else "epsilon_substitution", "epsilon")
    _add_group_epsilons(inputs, metrics)
    _add_policy_epsilons(inputs, metrics)
    return metrics


def confirm_removal_epsilon(spendings: Spendings, delta: float, name: str, group_size: int = 1) -> ConfirmedEpsilon:
    """Compute epsilon of ``group_size`` units whose examples are null in the other world, with both accountants."""
    return confirm_epsilon(
        lambda at: compute_removal_epsilon(spendings, at, group_size),
        lambda at: bound_removal_epsilon(spendings, at, group_size),
        delta,
        name,
        compute_failure_delta(spendings),
    )


def _confirm_group_epsilon(inputs: EpsilonInputs, group_size: int) -> ConfirmedEpsilon:
    if inputs.missed_span_relation is Relation.ADD_OR_REMOVE:
        return confirm_removal_epsilon(inputs.spendings, inputs.delta, f"a group of {group_size}", group_size)
    return confirm_epsilon(
        lambda at: compute_group_epsilon(inputs.spendings, at, group_size),
        lambda at: bound_group_epsilon(inputs.spendings, at, group_size),
        inputs.delta,
        f"a group of {group_size}",
    )


def _add_group_epsilons(inputs: EpsilonInputs, metrics: Metrics) -> None:
    name = "epsilon_group"
    if inputs.is_counted:
        metrics.values[name] = {str(size): None for size in inputs.group_sizes}
        metrics.reasons |= {name: NO_COUNTED_GROUP_EPSILON} if inputs.group_sizes else {}
        return
    values, seconds, reasons = metrics.values.setdefault(name, {}), metrics.bounds.setdefault(name, {}), []
    for size in inputs.group_sizes:
        confirmed = _confirm_group_epsilon(inputs, size)
        values[str(size)] = confirmed.value
        if confirmed.value is not None and confirmed.bounds is not None:
            seconds[str(size)] = round_bounds_outwards(confirmed.bounds)
            metrics.unconfirmed += [f"{name} {size}"] if confirmed.is_computed_once else []
        elif confirmed.reason not in (None, NO_FINITE_EPSILON):
            reasons.append(f"{size} examples: {confirmed.reason}")
    if None in values.values():
        metrics.reasons[name] = "; ".join([NO_GROUP_EPSILON, *reasons])


def _add_policy_epsilons(inputs: EpsilonInputs, metrics: Metrics) -> None:
    """Add ``epsilon_confidentiality`` (every secret) and ``epsilon_bayesian`` (secrets that a policy catches)."""
    refusal = None
    if inputs.is_counted:
        # no detector is trusted: every sensitive span has the epsilon of an exchange
        metrics.copy_value("epsilon_substitution", "epsilon_confidentiality")
        if inputs.uses_policy and inputs.gamma == 1.0:
            metrics.copy_value("epsilon_substitution", "epsilon_bayesian")
        elif inputs.uses_policy:
            _add_amplified_epsilon(inputs, metrics, "epsilon_bayesian", 0.0)
        else:
            metrics.set_value("epsilon_bayesian", None, None, POLICIES_UNUSED_REASON)
        return
    if not inputs.uses_policy:
        metrics.set_value("epsilon_confidentiality", None, None, POLICIES_UNUSED_REASON)
        metrics.set_value("epsilon_bayesian", None, None, POLICIES_UNUSED_REASON)
        return
    if inputs.delta_2 is None:
        refusal = f"{RECALL_NOT_MEASURED}: delta_2 may be above delta"
    elif inputs.delta <= inputs.delta_2:
        refusal = (
            f"delta {format_upper(inputs.delta)} is not above {format_upper(inputs.delta_2, 3)}, the upper "
            "bound on the share of secrets that both policies miss: those have no guarantee"
        )
    _add_amplified_epsilon(inputs, metrics, "epsilon_bayesian", 0.0)
    if refusal is None:
        _add_amplified_epsilon(inputs, metrics, "epsilon_confidentiality", inputs.delta_2 or 0.0)
    else:
        metrics.set_value("epsilon_confidentiality", None, None, refusal)


def _add_amplified_epsilon(inputs: EpsilonInputs, metrics: Metrics, name: str, delta_2: float) -> None:
    inner = (inputs.delta - delta_2) / inputs.gamma if inputs.gamma > 0.0 else math.inf
    if inner >= 1.0:
        metrics.set_value(name, 0.0, EpsilonBounds(0.0, 0.0))
        return
    confirmed = metrics.confirm_once(inputs.spendings, inner, inputs.missed_span_relation, name)

    def compute_amplified_epsilon(epsilon: float | None) -> float | None:
        return compute_bayesian_epsilon(lambda _: epsilon, inputs.delta, inputs.gamma, delta_2)

    bounds = confirmed.bounds
    if bounds is not None:
        bounds = EpsilonBounds(*(compute_amplified_epsilon(one) or 0.0 for one in (bounds.lower, bounds.upper)))
    amplified = replace(confirmed, value=compute_amplified_epsilon(confirmed.value), bounds=bounds)
    metrics.set_confirmed_epsilon(name, amplified)


# Users and entities, for plans and cards.


UNIT_METRIC_NAMES = ("epsilon", "epsilon_sound", "epsilon_user_removal", "epsilon_as_published", "curve")


def compute_unit_metrics(spec: TrainingSpec) -> Metrics:
    """Compute the metrics of a training that protects units; ``GuaranteeError`` if the accountants disagree."""
    mechanism, metrics = spec.mechanism, Metrics()
    if isinstance(mechanism, PoissonUsersGaussian):
        _add_federated_metrics(spec, mechanism, metrics)
    else:
        _add_bounded_metrics(spec, metrics)
    metrics.set_value("epsilon", metrics.values["epsilon_sound"], None, metrics.reasons.get("epsilon_sound", ""))
    if spec.selection is not None:
        add_user_epsilon_with_public_texts(metrics, [spec], spec.delta)
    return metrics


WITH_PUBLIC_NAME = "epsilon_with_public"


def add_user_epsilon_with_public_texts(metrics: Metrics, specs: Sequence[TrainingSpec], delta: float) -> None:
    """Add one user's epsilon for all models and the texts that are public by count together.

    A null user contributes no text (``docs/guarantees.md``, "Public by count", "Users").  Each selection is spent once,
    however many models its run has.
    """
    selections = {
        spec.selection.id: spec.selection.compute_user_spending() for spec in specs if spec.selection is not None
    }
    spendings, name = [spec.spending for spec in specs], WITH_PUBLIC_NAME
    reason = None
    if any(spec.protected_unit is not PrivacyUnit.USERS for spec in specs):
        reason = WORDS["counted"]["no_entities"]
    elif any(spec.settings.units.duplicates == "merge" for spec in specs):
        reason = WORDS["counted"]["merged"]
    elif None in spendings or "epsilon_sound" in metrics.reasons:
        reason = metrics.reasons.get("epsilon_sound", WORDS["counted"]["no_pair"])
    if reason is not None:
        metrics.set_value(name, None, None, reason)
        return
    all_spendings = (*filter(None, spendings), *selections.values())
    metrics.set_confirmed_epsilon(name, confirm_removal_epsilon(all_spendings, delta, name))


def make_bounded_training(spec: TrainingSpec) -> BoundedTraining:
    """Make the accountant's constants of a ``uedp-bounded`` training."""
    assert spec.mechanism is not None
    training = BoundedTraining.from_settings(spec.settings, spec.mechanism.noise_multiplier, spec.steps)
    return replace(training, sampling_rate=spec.mechanism.sampling_rate)


def _add_bounded_metrics(spec: TrainingSpec, metrics: Metrics) -> None:
    """Add C1, C2 if it is stable, and the curve C0 (``docs/explanation/uedp.md``)."""
    bounding, texts, training = spec.settings.bounding, WORDS["units"], make_bounded_training(spec)
    size = None if bounding.rule == "none" else count_affected_examples(training)
    main = compute_zero_out_epsilon(training, spec.delta)
    rate, sigma, points = training.sampling_rate, training.noise_multiplier, size or 0
    if main.epsilon is None or main.epsilon >= MAX_VERIFIED_EPSILON or points / sigma > MAX_VERIFIED_RATIO:
        # the epsilon is then an upper bound of the exact pair's, and protects nobody
        metrics.set_value("epsilon_sound", main.epsilon, None, main.reason or "")
        metrics.unconfirmed += ["epsilon_sound"] if main.epsilon is not None else []
    else:
        exact = make_group_epsilon_curve(points, rate, sigma, training.steps)
        spendings = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), training.steps),)
        metrics.set_confirmed_epsilon(
            "epsilon_sound",
            confirm_epsilon(
                exact, lambda at: bound_removal_epsilon(spendings, at, points), spec.delta, "epsilon_sound"
            ),
        )
    vanishing = compute_user_removal_epsilon(training, spec.delta)
    metrics.set_value("epsilon_user_removal", vanishing.epsilon, None, vanishing.reason or "")
    metrics.set_value("epsilon_as_published", None, None, texts["not_published"])
    groups = compute_epsilon_by_example_count(training, spec.delta)
    metrics.values["curve"] = {str(count): unit_epsilon.epsilon for count, unit_epsilon in groups.items()}
    metrics.unconfirmed += ["curve", *(["epsilon_user_removal"] if vanishing.epsilon is not None else [])]
    lacking = [unit_epsilon.reason for unit_epsilon in groups.values() if unit_epsilon.reason is not None]
    if lacking:
        metrics.reasons["curve"] = lacking[0]
    metrics.relation, metrics.no_bounds_reason = main.relation, texts["no_second"]
    metrics.facts = {
        "adjacency": main.relation,
        "adjacency_user_removal": vanishing.relation,
        "adjacency_curve": groups[1].relation.replace("at most 1 examples", "at most K examples"),
        "K": size,
        **bounding.model_dump(include={"rule", "k_user", "k_entity", "entities_per_point"}),
    }


def _add_federated_metrics(spec: TrainingSpec, mechanism: PoissonUsersGaussian, metrics: Metrics) -> None:
    """Add the smallest proved bound, the published epsilon, and the curve over users or their spread."""
    arguments, texts = (mechanism, spec.steps, spec.delta, spec.protected_unit), WORDS["units"]
    epsilon, bounds = confirm_federated_epsilon(*arguments)
    metrics.set_value("epsilon_sound", epsilon.epsilon, bounds, epsilon.reason or "")
    published = compute_published_federated_epsilon(mechanism, spec.steps, spec.delta)
    metrics.set_value("epsilon_as_published", published, None, NO_SHARE_REASON)
    epsilons = compute_epsilon_by_user_count(*arguments)
    metrics.values["curve"] = {str(size): epsilon for size, epsilon in epsilons.items()}
    if None in metrics.values["curve"].values():
        metrics.reasons["curve"] = "no epsilon: none was found for so little noise"
    metrics.set_value("epsilon_user_removal", None, None, texts["only_bounded"])
    metrics.unconfirmed = ["curve"] if bounds or epsilon.epsilon is None else ["epsilon_sound", "curve"]
    metrics.relation = epsilon.relation
    if bounds is None:
        metrics.no_bounds_reason = (
            texts["no_second_of_entities"] if epsilon.epsilon else "there is no epsilon to confirm"
        )
    entities, of_users = mechanism.entities, spec.protected_unit.value == "users"
    facts = metrics.facts
    facts |= {"adjacency": epsilon.relation, "users": mechanism.users, "K": None, "M": None, "M_source": None}
    if entities is not None:
        facts |= {
            "entity_rate": entities.entity_rate,
            "related_entity_rate": entities.related_entity_rate or None,
            "estimator": entities.estimator,
        }
    if (spread := get_max_users_per_entity(mechanism)) is not None and not of_users:
        facts |= {"M": spread[0], "M_source": spread[1]}
    facts["curve_meaning"] = texts["group_curve" if of_users else "spread_curve"]


# Epsilon while a training runs, from a curve that is composed in advance.


RemarkFunction = Callable[[int], str]
"""Takes the number of finished noisy steps and returns the remark for the progress line."""
_UNIT_CURVE_POINTS = 8


def make_empty_remark(steps: int) -> str:
    """Return no remark: for a training without noise."""
    return ""


def make_epsilon_remark_function(spec: TrainingSpec) -> RemarkFunction:
    """Make the remark with an upper bound of epsilon so far, for one secret or unit; the card has the exact one."""
    spending, delta = spec.spending, spec.delta
    is_counted = spec.selection is not None
    is_unbounded = spec.trainer.hides_units and spec.settings.bounding.rule == "none"
    if spending is None or spec.start or is_counted or is_unbounded:
        return make_empty_remark
    if spec.trainer.hides_units and not spec.trainer.samples_users:
        return _make_unit_epsilon_remark_function(spec)
    curve = compute_epsilon_curve(spending, delta, spec.relation if spending.rows == 1 else Relation.SUBSTITUTION)
    return lambda steps: f", ε ≤ {format_upper(curve.get_upper_bound(steps), 3)}"


def _make_unit_epsilon_remark_function(spec: TrainingSpec) -> RemarkFunction:
    """Make the remark for K examples, from a few composed epsilons: each takes a second and bounds earlier steps."""
    training, epsilons = make_bounded_training(spec), dict[int, float]()
    stride = math.ceil(spec.steps / _UNIT_CURVE_POINTS)

    def format_epsilon_remark(finished_steps: int) -> str:
        count = min(spec.steps, stride * math.ceil(finished_steps / stride))
        if count not in epsilons:
            epsilons[count] = make_group_epsilon_curve(
                spec.exchanged_row_count, training.sampling_rate, training.noise_multiplier, count
            )(spec.delta)
        return f", ε ≤ {format_upper(epsilons[count], 3)}"

    return format_epsilon_remark

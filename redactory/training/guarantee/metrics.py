"""Compute the metrics of a guarantee. Each epsilon is proved and checked; a missing value has a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redactory.foundation.bounds import format_upper, round_down, round_up
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import ConfirmedEpsilon, Spendings, compare_examples, compare_units, confirm_epsilon
from redactory.training.accounting.comparisons import NO_FINITE_EPSILON, NO_PROVED_EPSILON
from redactory.training.accounting.published_epsilons import describe_published_crt
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.spec import TrainingSpec, compute_bayesian_epsilon
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.mechanisms.users import PoissonUsersGaussian, get_users_mechanism
from redactory.training.trainers import TRAINERS
from redactory.training.uedp.bounded_accounting import (
    CURVE_SIZES,
    BoundedTraining,
    confirm_epsilon_by_example_count,
    confirm_user_removal_epsilon,
    confirm_zero_out_epsilon,
    count_affected_examples,
)
from redactory.training.uedp.federated_accounting import (
    NO_SHARE_REASON,
    compute_published_federated_epsilon,
    confirm_epsilon_by_user_count,
    confirm_federated_epsilon,
    get_max_users_per_entity,
    name_federated_relation,
)
from redactory.training.unit_settings import Adjacency, PrivacyUnit, make_relation_name

EPSILON_NAMES = (
    *("epsilon", "epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution"),
    *("epsilon_add_remove", "epsilon_group"),
)
NO_GROUP_EPSILON = "sizes without an epsilon: none below 4096 was found; the noise protects no such group"
RECALL_NOT_MEASURED = "recall not measured"
NO_COUNTED_GROUP_EPSILON = "public by count is accounted for one exchanged example; for several there is no epsilon"
POLICIES_UNUSED_REASON = (
    "the policies do not decide what is noised: epsilon_substitution covers a secret like every part of an example"
)


@dataclass
class Metrics:
    """Hold metrics by name: ``values``, ``reasons`` for null values, proved ``bounds``.

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

    def set_confirmed_epsilon(self, name: str, confirmed: ConfirmedEpsilon) -> None:
        """Set ``name`` to the confirmed epsilon with its bounds and reason."""
        self.set_value(name, confirmed.value, confirmed.bounds, confirmed.reason or NO_FINITE_EPSILON)
        if confirmed.is_computed_once:
            self.unconfirmed.append(name)

    def set_value(
        self, name: str, value: Any, bounds: EpsilonBounds | None = None, reason: str = NO_FINITE_EPSILON
    ) -> None:
        """Set ``name`` to ``value``, with proved ``bounds``, or a ``reason`` if it is None."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if bounds is not None:
            self.bounds[name] = round_bounds_outwards(bounds)

    def set_epsilons_by_size(self, name: str, epsilons: Mapping[int, ConfirmedEpsilon], missing: str) -> None:
        """Set ``name`` to the confirmed epsilons of groups by their size; ``missing`` is the reason if one is None."""
        self.values[name] = {str(size): confirmed.value for size, confirmed in epsilons.items()}
        bounds = {str(size): confirmed.bounds for size, confirmed in epsilons.items()}
        if known := {size: round_bounds_outwards(both) for size, both in bounds.items() if both is not None}:
            self.bounds[name] = known
        self.unconfirmed += [f"{name} {size}" for size, confirmed in epsilons.items() if confirmed.is_computed_once]
        lacking = {size: confirmed.reason for size, confirmed in epsilons.items() if confirmed.reason is not None}
        unusual = [f"{size}: {reason}" for size, reason in lacking.items() if reason != NO_FINITE_EPSILON]
        if lacking:
            self.reasons[name] = "; ".join([missing, *unusual])

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


def find_unproved_reason(reasons: Mapping[str, str]) -> str | None:
    """Return the reason if ``epsilon`` is null because the noise is too small: then nothing is guaranteed."""
    reason = reasons.get("epsilon")
    return reason if reason in (NO_FINITE_EPSILON, NO_PROVED_EPSILON) else None


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
        is_published = self.spendings and self.is_single_row and self.uses_policy
        if not is_published or self.missed_span_relation is Relation.ADD_OR_REMOVE:
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
            metrics.set_confirmed_epsilon(
                name, confirm_epsilon(compare_examples(spendings, between), inputs.delta, name)
            )
    is_removal = inputs.missed_span_relation is Relation.ADD_OR_REMOVE
    metrics.copy_value("epsilon_add_remove" if is_removal else "epsilon_substitution", "epsilon")
    _add_group_epsilons(inputs, metrics)
    _add_policy_epsilons(inputs, metrics)
    return metrics


def _add_group_epsilons(inputs: EpsilonInputs, metrics: Metrics) -> None:
    name = "epsilon_group"
    if inputs.is_counted:
        metrics.values[name] = {str(size): None for size in inputs.group_sizes}
        metrics.reasons |= {name: NO_COUNTED_GROUP_EPSILON} if inputs.group_sizes else {}
        return
    is_removal = inputs.missed_span_relation is Relation.ADD_OR_REMOVE
    compared = {size: compare_units(inputs.spendings, size, 0 if is_removal else size) for size in inputs.group_sizes}
    confirmed = {size: confirm_epsilon(one, inputs.delta, f"a group of {size}") for size, one in compared.items()}
    metrics.set_epsilons_by_size(name, confirmed, NO_GROUP_EPSILON)


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
        refusal = (
            f"{RECALL_NOT_MEASURED}, so delta may not be above delta_2, the share of secrets that both policies miss"
        )
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
    confirmed = confirm_epsilon(compare_examples(inputs.spendings, inputs.missed_span_relation), inner, name)

    def compute_amplified_epsilon(epsilon: float | None) -> float | None:
        return compute_bayesian_epsilon(lambda _: epsilon, inputs.delta, inputs.gamma, delta_2)

    bounds = confirmed.bounds
    if bounds is not None:
        bounds = EpsilonBounds(*(compute_amplified_epsilon(one) or 0.0 for one in (bounds.lower, bounds.upper)))
    amplified = replace(confirmed, value=compute_amplified_epsilon(confirmed.value), bounds=bounds)
    metrics.set_confirmed_epsilon(name, amplified)


# Users and entities, for plans and cards.


UNIT_METRIC_NAMES = ("epsilon", "epsilon_sound", "epsilon_user_removal", "epsilon_as_published", "curve")


def compute_unit_metrics(spec: TrainingSpec, curve_sizes: Sequence[int] = CURVE_SIZES) -> Metrics:
    """Compute the metrics of a training that protects units; ``GuaranteeError`` if the accountants disagree.

    ``curve_sizes`` are the numbers of examples on the curve of ``uedp-bounded``.
    """
    metrics = Metrics()
    if spec.trainer.samples_users:
        _add_federated_metrics(spec, get_users_mechanism(spec.mechanism), metrics)
    else:
        _add_bounded_metrics(spec, metrics, curve_sizes)
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
    metrics.set_confirmed_epsilon(name, confirm_epsilon(compare_units(all_spendings, 1), delta, name))


def make_bounded_training(spec: TrainingSpec) -> BoundedTraining:
    """Make the accountant's constants of a ``uedp-bounded`` training."""
    assert spec.mechanism is not None
    training = BoundedTraining.from_settings(spec.settings, spec.mechanism.noise_multiplier, spec.steps)
    return replace(training, sampling_rate=spec.mechanism.sampling_rate)


def _add_bounded_metrics(spec: TrainingSpec, metrics: Metrics, curve_sizes: Sequence[int]) -> None:
    """Add C1, C2 if it is stable, and the curve C0 (``docs/explanation/uedp.md``)."""
    bounding, texts, training = spec.settings.bounding, WORDS["units"], make_bounded_training(spec)
    metrics.set_confirmed_epsilon("epsilon_sound", confirm_zero_out_epsilon(training, spec.delta))
    metrics.set_confirmed_epsilon("epsilon_user_removal", confirm_user_removal_epsilon(training, spec.delta))
    metrics.set_value("epsilon_as_published", None, None, texts["not_published"])
    curve = confirm_epsilon_by_example_count(training, spec.delta, curve_sizes)
    metrics.set_epsilons_by_size("curve", curve, NO_GROUP_EPSILON)
    metrics.relation = make_relation_name(training.protect, Adjacency.FIXED_GRAPH)
    metrics.facts = {
        "adjacency": metrics.relation,
        "adjacency_user_removal": make_relation_name(training.protect, Adjacency.USER_REMOVAL),
        "adjacency_curve": f"any units with at most K examples, {Adjacency.FIXED_GRAPH.value}",
        "K": None if bounding.rule == "none" else count_affected_examples(training),
        **bounding.model_dump(include={"rule", "k_user", "k_entity", "entities_per_point"}),
    }


def _add_federated_metrics(spec: TrainingSpec, mechanism: PoissonUsersGaussian, metrics: Metrics) -> None:
    """Add the smallest proved bound, the published epsilon, and the curve over users or their spread."""
    arguments, texts = (mechanism, spec.steps, spec.delta, spec.protected_unit), WORDS["units"]
    metrics.set_confirmed_epsilon("epsilon_sound", confirm_federated_epsilon(*arguments))
    published = compute_published_federated_epsilon(mechanism, spec.steps, spec.delta)
    metrics.set_value("epsilon_as_published", published, None, NO_SHARE_REASON)
    metrics.set_epsilons_by_size("curve", confirm_epsilon_by_user_count(*arguments), NO_GROUP_EPSILON)
    metrics.set_value("epsilon_user_removal", None, None, texts["only_bounded"])
    metrics.relation = name_federated_relation(mechanism, spec.protected_unit)
    if not metrics.bounds:
        metrics.no_bounds_reason = (
            "there is no epsilon to confirm"
            if metrics.values["epsilon_sound"] is None
            else texts["no_second_of_entities"]
        )
    entities, of_users = mechanism.entities, spec.protected_unit.value == "users"
    facts = metrics.facts
    facts |= {"adjacency": metrics.relation, "users": mechanism.users, "K": None, "M": None, "M_source": None}
    if entities is not None:
        facts |= {
            "entity_rate": entities.entity_rate,
            "related_entity_rate": entities.related_entity_rate or None,
            "estimator": entities.estimator,
        }
    if (spread := get_max_users_per_entity(mechanism)) is not None and not of_users:
        facts |= {"M": spread[0], "M_source": spread[1]}
    facts["curve_meaning"] = texts["group_curve" if of_users else "spread_curve"]


# Meanings, for pages.


_TITLES = {
    "epsilon": "One named sensitive span that the strict policy missed",
    "epsilon_confidentiality": "Every sensitive span of the corpus",
    "epsilon_bayesian": "Sensitive spans that at least one policy catches",
    "coverage_failure": "Share of sensitive spans without any guarantee, at most",
    "epsilon_substitution": "One private example exchanged for another",
    "epsilon_add_remove": "For information: one example added or removed",
}
_EXAMPLE_TITLES = {"epsilon_substitution": "One example exchanged for another"}
_POLICY_NAMES = ("epsilon_confidentiality", "epsilon_bayesian", "coverage_failure")
_COUNTED_TITLES = {
    "epsilon": "One named sensitive span, whether a policy found it or not",
    "epsilon_confidentiality": "Every sensitive span that is in one example",
    "coverage_failure": "Share of such spans without any guarantee, at most",
    "epsilon_substitution": "The text of one example exchanged for another",
}
_UNITS_TITLES = {
    "epsilon_sound": "The privacy unit above",
    "epsilon_user_removal": "The same, if the user's examples are removed",
    "epsilon_with_public": "The model and the public texts together",
    "epsilon_as_published": "As published, not a guarantee",
}


def select_titles(card: Mapping[str, Any]) -> dict[str, str]:
    """Select the metrics that apply to the trainer of a ``card`` or plan, with their meanings."""
    trainer = TRAINERS.get(card.get("trainer", ""))
    if "epsilon_sound" in card:
        removal = trainer is None or not trainer.samples_users
        is_stated = {"epsilon_user_removal": removal, "epsilon_as_published": card.get("epsilon_as_published")}
        return {name: title for name, title in _UNITS_TITLES.items() if name in card and is_stated.get(name, True)}
    is_counted = "selection" in card
    if trainer.uses_policy if trainer else card["reasons"].get("epsilon_bayesian") != POLICIES_UNUSED_REASON:
        return _TITLES | (_COUNTED_TITLES if is_counted else {})
    # each part of an example has the example's epsilon
    unused = {name for name in _POLICY_NAMES if card[name] is None} | (set() if is_counted else {"epsilon"})
    titles = _TITLES | (_COUNTED_TITLES if is_counted else _EXAMPLE_TITLES)
    return {name: title for name, title in titles.items() if name not in unused}


# Epsilon while a training runs.


EpsilonFunction = Callable[[int], float | None]
"""Takes the number of finished noisy steps and returns an upper bound of epsilon so far, if there is one."""
_REPORTED_STEPS = 4
"""Numbers of steps whose epsilon is proved: each takes up to a second, and bounds all earlier ones."""


def make_epsilon_function(spec: TrainingSpec) -> EpsilonFunction:
    """Make the function that bounds epsilon so far, for one secret or unit."""
    spending, delta = spec.spending, spec.delta
    is_counted = spec.selection is not None
    is_unbounded = spec.trainer.hides_units and spec.settings.bounding.rule == "none"
    if spending is None or spec.failure_reason or spec.start or is_counted or is_unbounded:
        return lambda steps: None
    trainer, mechanism, rows = spec.trainer, spec.mechanism, spec.exchanged_row_count
    stride, epsilons = max(1, math.ceil(spec.steps / _REPORTED_STEPS)), dict[int, float | None]()
    assert mechanism is not None

    def compute_epsilon(finished_steps: int) -> float | None:
        count = min(spec.steps, stride * math.ceil(finished_steps / stride))
        if count not in epsilons:
            comparison = trainer.compare_worlds(mechanism, count, rows, unit=spec.protected_unit)
            epsilons[count] = confirm_epsilon(comparison, delta, "the steps so far").value
        return epsilons[count]

    return compute_epsilon

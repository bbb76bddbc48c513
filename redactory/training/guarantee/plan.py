"""Compute what a training would cost before it runs: its spec from the settings, epsilons by the card's own code.

No setting is suggested from a count of private examples: settings are public constants (``docs/guarantees.md``,
"Sampling and constants"). A plan's epsilon is the one that the card would state if the training keeps the
conditions that the plan lists; the card says whether it did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.count_selection import CountSelection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.expected_accuracy import predict_accuracy
from redactory.training.guarantee.metrics import (
    EpsilonInputs,
    compute_epsilons,
    compute_unit_metrics,
    make_bounded_training,
    require_reasons,
)
from redactory.training.guarantee.remarks import TrainingFacts, judge_noise, make_remarks
from redactory.training.guarantee.spec import MissRates, TrainingSpec, compute_bayesian_epsilon
from redactory.training.guarantee.sweep import compare_networks, sweep_epsilons, sweep_sampling_rates
from redactory.training.mechanisms.users import PoissonUsersGaussian, get_users_mechanism
from redactory.training.parameter_counts import count_max_parameters
from redactory.training.settings import TrainSettings
from redactory.training.trainers import get_trainer
from redactory.training.uedp.bounded_accounting import (
    CURVE_SIZES,
    count_affected_examples,
    list_candidate_caps,
    suggest_cap,
)
from redactory.training.uedp.federated_accounting import compute_paper_noise_scale, compute_published_federated_epsilon
from redactory.training.unit_settings import PrivacyUnit

_CURVE_POINTS, _UNIT_CURVE_POINTS = 12, 8
"""How many points the approximate curves have."""


@dataclass(frozen=True)
class PlanInputs:
    """Numbers for a plan besides the settings; each is public, or None.

    ``steps`` replaces ``epochs``; ``points`` are the noised examples, or the corpus's, and ``users`` its users;
    ``gamma`` and ``delta_2`` bound what the policies miss. ``accuracy`` is a classifier's accuracy without noise.
    With ``bayesian`` the target ``train.epsilon`` is for a secret that at least one policy catches.
    """

    steps: int | None = None
    points: int | None = None
    users: int | None = None
    gamma: float = 1.0
    delta_2: float | None = None
    bayesian: bool = False
    accuracy: float | None = None

    def __post_init__(self) -> None:
        counts = (("step", self.steps), ("example", self.points), ("user", self.users))
        problems = (
            *((n is not None and n < 1, f"there must be at least one {what}") for what, n in counts),
            (not 0.0 <= self.gamma <= 1.0, "gamma must be between 0 and 1"),
            (not 0.0 <= (self.accuracy or 0.0) <= 1.0, "accuracy must be between 0 and 1"),
            (not 0.0 <= (self.delta_2 or 0.0) <= 1.0, "delta_2 must be between 0 and 1"),
            ((self.delta_2 or 0.0) > self.gamma, "delta_2 must be at most gamma"),
            (self.bayesian and self.gamma == 0.0, "with gamma 0 the Bayesian epsilon is 0 with any noise"),
        )
        if messages := [problem for is_wrong, problem in problems if is_wrong]:
            raise ConfigurationError("; ".join(messages))


def compute_max_kept_examples(settings: TrainSettings, inputs: PlanInputs) -> int | None:
    """Return min(n, k_u·U), how many examples caps keep at most; None if unknown."""
    cap = settings.bounding.k_user
    if inputs.points is None or cap is None or inputs.users is None:
        return inputs.points
    return min(inputs.points, cap * inputs.users)


def plan_guarantee(
    settings: TrainSettings,
    inputs: PlanInputs | None = None,
    dedup: Mapping[str, Any] | None = None,
    with_steps_curve: bool = False,
    selection: CountSelection | None = None,
    start: TrainingSpec | None = None,
    with_epsilon_sweep: bool = False,
) -> dict[str, Any]:
    """Return metrics, the noise beside the batch, a sweep of rates and steps, and epsilon against steps, as JSON.

    ``dedup`` is the ``rule`` of the private split and its ``group_size``; ``with_steps_curve`` adds the curve of a
    trainer that hides units, too; ``start`` is the model of the same run that it continues; ``with_epsilon_sweep`` adds
    other targets. Metrics are proved; sweeps and curves are approximate. ``ConfigurationError``
    if nothing is noised, ``GuaranteeError`` if no noise reaches the target or the accountants disagree.
    """
    inputs, trainer = inputs or PlanInputs(), get_trainer(settings)
    dedup = dedup or {"rule": "S1", "group_size": 1}
    if trainer.noised_folder is None:
        raise ConfigurationError(f"train.trainer {trainer.name} has no privacy mechanism: nothing to plan")
    target = _find_bayesian_target(settings, inputs.gamma) if inputs.bayesian else settings
    rates = MissRates(inputs.gamma, 0.0 if selection else inputs.delta_2)
    spec = TrainingSpec.from_settings(
        target, dedup, inputs.steps, rates=rates, seeded=False, selection=selection, start=start
    )
    spec = replace(spec, settings=settings)
    if start is not None and spec.refusal_reason is not None:
        raise ConfigurationError(f"train.model.folder: {spec.refusal_reason}; give weights that are public")
    if trainer.uses_policy and spec.refusal_reason is not None:
        hint = "" if settings.has_whole_conversations else "; dedup.mode exact has a proof"
        raise ConfigurationError(f"nothing to plan: {spec.refusal_reason}{hint}")
    assert spec.mechanism is not None
    common = {
        "trainer": trainer.name,
        "delta": spec.delta,
        "sampling_rate": spec.mechanism.sampling_rate,
        "steps": spec.steps,
        "epochs": round(spec.steps * spec.mechanism.sampling_rate, 6),
        "noise_multiplier": spec.mechanism.noise_multiplier,
        "noise_calibrated": settings.noise_multiplier is None,
        "recipe": settings.describe_choices(),
    }
    plan = _plan_unit_level_metrics(spec, inputs) if trainer.hides_units else _plan_example_level_metrics(spec, inputs)
    parameters, examples = plan["parameters"], compute_max_kept_examples(settings, inputs)
    accuracy = predict_accuracy(spec, examples, inputs.accuracy)
    plan |= {
        "accuracy": accuracy,
        "verdict": judge_noise(spec, parameters, (accuracy or {}).get("retained_share"), examples),
        "sweep": sweep_sampling_rates(spec, plan["epsilon"], parameters),
        "networks": compare_networks(spec),
    }
    if with_epsilon_sweep:
        plan["epsilon_sweep"] = sweep_epsilons(spec, plan["epsilon"], parameters, examples)
    if trainer.hides_units and with_steps_curve:
        plan["steps_curve"] = _estimate_unit_steps_curve(spec, plan["epsilon"])
    return {**common, **plan}


def _find_bayesian_target(settings: TrainSettings, gamma: float) -> TrainSettings:
    """Return ``settings`` with epsilon and delta of a missed secret whose Bayesian epsilon is the target."""
    if not get_trainer(settings).uses_policy:
        raise ConfigurationError(f"{settings.trainer} has no Bayesian epsilon")
    # log(1 + γ(e^ε − 1)) = target, and ε is that of δ/γ
    missed = math.log1p(math.expm1(settings.epsilon) / gamma)
    return settings.model_copy(update={"epsilon": missed, "delta": min(settings.delta / gamma, 1.0 - 1e-9)})


# Secrets and examples.


def _plan_example_level_metrics(spec: TrainingSpec, inputs: PlanInputs) -> dict[str, Any]:
    assert spec.mechanism is not None
    batch, points, rate = spec.settings.expected_batch_size, inputs.points, spec.mechanism.sampling_rate
    parameters = count_max_parameters(spec.settings)
    claim = EpsilonInputs.from_spec(spec)
    metrics = compute_epsilons(claim)
    metrics.set_value(
        "coverage_failure",
        spec.rates.delta_2 if claim.uses_policy else None,
        None,
        WORDS["recall_unknown" if claim.uses_policy else "no_policies"],
    )
    return {
        "unit": WORDS["counted"]["unit"] if claim.is_counted else spec.privacy_unit_description,
        "relation": spec.relation.value,
        "private_examples": points,
        "expected_batch": batch,
        "noise_to_batch": spec.mechanism.noise_multiplier / batch,
        "examples_drawn": None if points is None else rate * points,
        "parameters": parameters,
        "remarks": make_remarks(spec, TrainingFacts(points, parameters=parameters)),
        "gamma": inputs.gamma,
        "delta_2": spec.rates.delta_2,
        **metrics.values,
        "reasons": metrics.reasons,
        "second": metrics.bounds,
        "as_published": claim.published_crt_epsilons,
        "curve": _estimate_example_steps_curve(spec, metrics.values),
    }


def _estimate_example_steps_curve(spec: TrainingSpec, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Estimate the epsilons at up to 12 numbers of steps; the last ones are the plan's own."""
    if spec.selection_spendings or spec.start is not None:
        return []  # of these steps alone it would be too low
    delta, gamma, uses_policy = spec.delta, spec.rates.gamma, spec.trainer.uses_policy
    rows = []
    for steps in _list_evenly_spaced_steps(spec.steps, _CURVE_POINTS):
        row: dict[str, Any] = {"steps": steps, "epsilon": _estimate_epsilon(spec, steps, delta)}
        if uses_policy:
            row["epsilon_bayesian"] = compute_bayesian_epsilon(
                partial(_estimate_epsilon, spec, steps), delta, gamma, 0.0
            )
        rows.append(row if steps < spec.steps else {name: values.get(name, steps) for name in row})
    return rows


def _estimate_epsilon(spec: TrainingSpec, steps: int, delta: float) -> float | None:
    """Approximate epsilon after ``steps`` steps; None if not finite."""
    assert spec.mechanism is not None
    comparison = spec.trainer.compare_worlds(spec.mechanism, steps, spec.exchanged_row_count, unit=spec.protected_unit)
    epsilon = comparison.approximate_epsilon(delta)
    return epsilon if math.isfinite(epsilon) else None


def _list_evenly_spaced_steps(total: int, max_points: int) -> list[int]:
    """Return at most ``max_points`` numbers of steps up to ``total``, evenly spread."""
    return sorted({max(1, round(total * index / max_points)) for index in range(1, max_points + 1)}) if total else []


# Users and entities.


def _plan_unit_level_metrics(spec: TrainingSpec, inputs: PlanInputs) -> dict[str, Any]:
    # without a cap the curve is all that is promised
    has_curve = spec.settings.bounding.rule == "none"
    metrics = compute_unit_metrics(spec, CURVE_SIZES if has_curve else spec.settings.group_sizes)
    values, reasons = dict(metrics.values), dict(metrics.reasons)
    published: dict[str, Any] = {}
    if spec.trainer.samples_users:
        mechanism, texts = get_users_mechanism(spec.mechanism), WORDS["units"]
        expected = mechanism.users * mechanism.sampling_rate
        entries = {
            "users": mechanism.users,
            "user_rate": mechanism.sampling_rate,
            "expected_users": expected,
            "noise": compute_paper_noise_scale(mechanism),
            "noise_to_batch": mechanism.noise_multiplier / expected,
            **({"K": 1} if spec.protected_unit is PrivacyUnit.USERS else {}),
            "assumes": [
                *texts["assumed_of_users"],
                *([] if mechanism.entities is None else texts["assumed_of_entities"]),
            ],
        }
        main = values["epsilon_as_published"]
        published["as_published"] = main and _describe_published_epsilons(spec, mechanism, main)
        values["epsilon_as_published"] = main and main["epsilon"]
        for state in (values, reasons):
            state.pop("epsilon_user_removal")  # the main epsilon is already about removing a user
        if not metrics.bounds:
            reasons["second"] = metrics.no_bounds_reason or ""
    else:
        assert spec.mechanism is not None
        batch = spec.settings.expected_batch_size
        entries = {
            "users": inputs.users,
            "points": inputs.points,
            "kept_at_most": compute_max_kept_examples(spec.settings, inputs),
            "expected_batch": batch,
            "noise_to_batch": spec.mechanism.noise_multiplier / batch,
            "assumes": WORDS["units"]["assumed_of_examples"],
            "choices": _sweep_caps(spec, inputs, batch, values["epsilon"]),
        }
    require_reasons(values, reasons)
    parameters = count_max_parameters(spec.settings)
    return {
        "privacy_unit": spec.protected_unit.value,
        "unit": spec.units_description,
        **metrics.facts,
        **values,
        **published,
        "reasons": reasons,
        "second": metrics.bounds,
        "parameters": parameters,
        "remarks": make_remarks(
            spec,
            TrainingFacts(compute_max_kept_examples(spec.settings, inputs), users=inputs.users, parameters=parameters),
        ),
        **entries,
    }


def _sweep_caps(
    spec: TrainingSpec, inputs: PlanInputs, batch: float, planned_epsilon: float | None
) -> list[dict[str, Any]]:
    """List caps at the same noise and expected batch: what each keeps at most, and its epsilon, estimated.

    Up to k = n/U epsilon does not depend on k, so more examples cost nothing.
    """
    users, points = inputs.users, inputs.points
    if users is None or points is None or spec.settings.bounding.rule == "none":
        return []
    suggested, rows, planned_training = suggest_cap(points, users), [], make_bounded_training(spec)
    for cap in list_candidate_caps(suggested):
        kept_examples = min(points, cap * users)
        training = replace(
            planned_training,
            sampling_rate=min(1.0, batch / kept_examples),
            k_user=None if spec.protected_unit is PrivacyUnit.ENTITIES else cap,
            k_entity=None if spec.protected_unit is PrivacyUnit.USERS else cap,
        )
        row: dict[str, Any] = {
            "k": cap,
            "suggested": cap == suggested,
            "kept_at_most": kept_examples,
            "K": count_affected_examples(training),
        }
        epsilon = training.compare_worlds(row["K"]).approximate_epsilon(spec.delta)
        stated = planned_epsilon if training == planned_training else epsilon if math.isfinite(epsilon) else None
        rows.append({**row, "sampling_rate": training.sampling_rate, "epsilon": stated})
    return rows


def _describe_published_epsilons(
    spec: TrainingSpec, mechanism: PoissonUsersGaussian, published_main: dict[str, Any]
) -> dict[str, Any]:
    """Describe what the papers would print, with its label; in ``all``, for every estimator that can be computed."""
    estimators = ["user-level", *([] if mechanism.entities is None else ["f_E"])]
    every = {
        estimator: compute_published_federated_epsilon(mechanism, spec.steps, spec.delta, estimator)
        for estimator in estimators
    }
    return {
        **{key: value for key, value in published_main.items() if key != "delta"},
        "why_not": WORDS["published"]["why_not"][published_main["estimator"]],
        "all": {
            name: estimator_entry["epsilon"] for name, estimator_entry in every.items() if estimator_entry is not None
        },
    }


def _estimate_unit_steps_curve(spec: TrainingSpec, last: float | None) -> list[dict[str, Any]]:
    """Estimate epsilon, and compute the published one, at up to eight numbers of steps; the ``last`` is the plan's."""
    rows = []
    for count in _list_evenly_spaced_steps(spec.steps, _UNIT_CURVE_POINTS):
        published = None
        if spec.trainer.samples_users:
            mechanism = get_users_mechanism(spec.mechanism)
            published = (compute_published_federated_epsilon(mechanism, count, spec.delta) or {}).get("epsilon")
        epsilon = last
        if count < spec.steps and spec.settings.bounding.rule != "none":
            epsilon = _estimate_epsilon(spec, count, spec.delta)
        rows.append({"steps": count, "epsilon": epsilon, "epsilon_as_published": published})
    return rows

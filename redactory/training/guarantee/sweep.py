"""Which sampling rate, and how many steps: the noise that each pair needs for one epsilon, and what it costs.

How much noise a step has says little: what counts is what all steps give together.  Were every clipped
gradient a vector of norm C in one direction, T noisy means of B points would add up to T·C, and their noise
to a vector of norm about σC√d·√T/B, with d trainable parameters.  So the noise to signal of a whole training
is σ√d/(B√T): no training has a better one.  SGD with the best step size is off the optimum by at most

    D·C·√(1/T + σ²d/(B²T)),

D the distance to it (Bassily, Smith and Thakurta 2014, for a convex loss): many steps, and little noise in
all.  A network feels less of the noise, for few of its d dimensions matter: at one cost, an LSTM on dialogues
was the better the more steps it made, in the order of this bound with a third of the noise to signal. The best
step size, of Adam or with little noise, is proportional to 1/√T.

All noise here is approximate (``accounting.approximation``), and no promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.guarantee.expected_accuracy import predict_accuracy
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.mechanisms.mechanism import Mechanism
from redactory.training.models.settings import BagSettings, BiLstmSettings, FrozenEncoderSettings, LstmSettings
from redactory.training.parameter_counts import count_max_parameters

_RATE_FACTORS, _COST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
_WIDTHS = (32, 64, 128, 200)
_EFFECTIVE_NOISE_SHARE = 1.0 / 3.0
_ERROR_FACTOR = 1.05
"""Errors within this factor of the least count as equal: then more steps are better."""


@dataclass(frozen=True)
class SweepRow:
    """One pair at the target epsilon.

    ``noise_to_signal`` is that of the whole training, and ``error`` the bound of the module docstring over D·C, with a
    third of the noise: None if d is unknown. ``cost`` is in gradients of one example, ``computation`` over the plan's;
    ``learning_rate`` is the plan's, scaled to these steps. ``selected`` rows are the plan, and the least error for each
    computation.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float
    noise_to_signal: float | None
    error: float | None
    cost: float
    computation: float = 1.0
    learning_rate: float = 0.0
    planned: bool = False
    best: bool = False
    selected: bool = False


def make_sweep_row(mechanism: Mechanism, steps: int, parameters: int | None) -> SweepRow:
    """Describe ``steps`` steps of ``mechanism`` for a model with this many trainable ``parameters``."""
    sigma, batch, ratio, error = mechanism.noise_multiplier, mechanism.normaliser, None, None
    if parameters is not None:
        ratio = compute_noise_to_signal(sigma, batch, steps, parameters)
        error = math.hypot(steps**-0.5, _EFFECTIVE_NOISE_SHARE * ratio)
    return SweepRow(mechanism.sampling_rate, steps, sigma, ratio, error, batch * steps)


def compute_noise_to_signal(noise_multiplier: float, batch: float, steps: int, parameters: int) -> float:
    """Return σ√d/(B√T), the smallest that a whole training can have."""
    return noise_multiplier * math.sqrt(parameters / max(steps, 1)) / batch


def sweep_sampling_rates(spec: TrainingSpec, epsilon: float | None, parameters: int | None) -> list[dict[str, Any]]:
    """List pairs of sampling rate and steps that reach ``epsilon`` for half to 16 times the computation.

    Ordered by cost, then by rate; the best one that costs no more than the plan is marked, if d is known. Empty if
    there is nothing to sweep: samples of users, no epsilon, a model to start from.
    """
    mechanism = _get_swept_mechanism(spec)
    if not epsilon or mechanism is None:
        return []
    rows = []
    for computation, rate, steps in _iterate_rates_and_steps(mechanism.sampling_rate, spec.steps):
        is_planned = (rate, steps) == (mechanism.sampling_rate, spec.steps)
        noise = mechanism.noise_multiplier if is_planned else _find_noise(spec, epsilon, rate, steps)
        if noise is not None:
            batch = mechanism.normaliser * rate / mechanism.sampling_rate
            changed = replace(mechanism, sampling_rate=rate, noise_multiplier=noise, normaliser=batch)
            row = make_sweep_row(changed, steps, parameters)
            learning_rate = spec.settings.dp_learning_rate * math.sqrt(spec.steps / steps)
            rows.append(replace(row, computation=computation, learning_rate=learning_rate, planned=is_planned))
    best, groups = _find_best_row(rows), groupby(rows, lambda row: row.computation)
    selected = [best, *(min(group, key=lambda row: row.error or 0.0) for _, group in groups)]
    return [asdict(replace(row, best=row is best, selected=row.planned or row in selected)) for row in rows]


def sweep_epsilons(
    spec: TrainingSpec, planned_epsilon: float | None, parameters: int | None, examples: int | None
) -> list[dict[str, Any]]:
    """List noise, noise to signal, error and what is left of the accuracy at several targets, at one rate and steps."""
    mechanism, rows = _get_swept_mechanism(spec), list[dict[str, Any]]()
    if not planned_epsilon or mechanism is None:
        return []
    for epsilon in sorted({*_EPSILONS, round(planned_epsilon, 2)}):
        is_planned, rate = epsilon == round(planned_epsilon, 2), mechanism.sampling_rate
        noise = mechanism.noise_multiplier if is_planned else _find_noise(spec, epsilon, rate, spec.steps)
        if noise is None:
            continue
        changed = replace(mechanism, noise_multiplier=noise)
        row = make_sweep_row(changed, spec.steps, parameters)
        accuracy = predict_accuracy(replace(spec, mechanism=changed), examples) or {}
        effects = {"noise_to_signal": row.noise_to_signal, "error": row.error}
        effects["retained_share"] = accuracy.get("retained_share")
        rows.append({"epsilon": epsilon, "noise_multiplier": noise, **effects, "planned": is_planned})
    return rows


def compare_networks(spec: TrainingSpec) -> list[dict[str, Any]]:
    """List other networks with their parameters, noise to signal and error in the plan's steps: epsilon is the same.

    A smaller network feels less noise, and can learn less without noise.
    """
    mechanism, settings = _get_swept_mechanism(spec), spec.settings
    if mechanism is None:
        return []
    models: list[Any] = [LstmSettings(kind="lstm", embedding_size=size, hidden_size=size) for size in _WIDTHS]
    if settings.task == "classify":
        models = [FrozenEncoderSettings(kind="encoder"), *(BagSettings(kind="bag", embedding_size=n) for n in (16, 64))]
        models.append(BiLstmSettings(kind="bilstm"))
    rows = []
    for model in (settings.model, *(other for other in models if other != settings.model)):
        parameters = count_max_parameters(settings.model_copy(update={"model": model}))
        row = make_sweep_row(mechanism, spec.steps, parameters)
        width = getattr(model, "hidden_size", getattr(model, "embedding_size", None))
        name = model.kind + (f" {width}" if width else "")
        values = {"noise_to_signal": row.noise_to_signal, "error": row.error, "planned": model == settings.model}
        rows.append({"network": name, "parameters": parameters, **values})
    return rows


def _get_swept_mechanism(spec: TrainingSpec) -> Mechanism | None:
    """Return the mechanism; None for samples of users, a model to start from, no steps or no proved pair."""
    is_fixed = spec.start is not None or not spec.steps or spec.trainer.samples_users or spec.spending is None
    return None if is_fixed else spec.mechanism


def _find_best_row(rows: list[SweepRow]) -> SweepRow | None:
    """Return the row with the most steps among those of nearly the smallest error, at most at the plan's cost."""
    plan = next(row for row in rows if row.planned)
    known = [(row.error, row) for row in rows if row.error is not None and row.cost <= 1.05 * plan.cost]
    least = min((error for error, _ in known), default=0.0)
    near = [row for error, row in known if error <= _ERROR_FACTOR * least]
    return max(near, key=lambda row: row.steps, default=None)


def _iterate_rates_and_steps(rate: float, steps: int) -> Iterator[tuple[float, float, int]]:
    """Yield the computation, and rates and steps around the plan's, by cost; no rate above 1, at least one step."""
    for cost in _COST_FACTORS:
        for factor in _RATE_FACTORS:
            count = steps * cost / factor
            if rate * factor <= 1.0 and count >= 1.0:
                yield cost, rate * factor, round(count)


def _find_noise(spec: TrainingSpec, epsilon: float, rate: float, steps: int) -> float | None:
    """Return about the smallest noise multiplier for ``epsilon``, not below it; None if there is none."""
    settings = spec.settings.model_copy(update={"sampling_rate": rate, "epsilon": epsilon})
    rows, beside = spec.exchanged_row_count, spec.selection_spendings
    try:
        return spec.trainer.calibrate_noise(settings, steps, rows, beside, is_proved=False)
    except GuaranteeError:
        return None

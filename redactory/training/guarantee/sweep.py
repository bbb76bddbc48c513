"""Which sampling rate, and how many steps: the noise that each pair needs for one epsilon, and what it costs.

How much noise a step has says little: what counts is what all steps give together.  Were every clipped
gradient a vector of norm C in one direction, T noisy means of B points would add up to T·C, and their noise
to a vector of norm about σC√d·√T/B, with d trainable parameters.  So the noise to signal of a whole training
is σ√d/(B√T): no training has a better one.  SGD with the best step size is off the optimum by at most

    D·C·√(1/T + σ²d/(B²T)),

D the distance to it (Bassily, Smith and Thakurta 2014, for a convex loss): many steps, and little noise in
all.  A network feels less of the noise, for few of its d dimensions matter: at one cost, an LSTM on dialogues
was the better the more steps it made, in the order of this bound with a third of the noise to signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.mechanisms.mechanism import Mechanism

_RATE_FACTORS, _COST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0)
_EFFECTIVE_NOISE_SHARE = 1.0 / 3.0
_ERROR_FACTOR = 1.05
"""Errors within this factor of the least count as equal: then more steps are better."""


@dataclass(frozen=True)
class SweepRow:
    """One pair at the target epsilon;
    ``noise_per_coordinate`` is the deviation of the noise on each coordinate of the mean gradient, σC over the
    normaliser, ``noise`` the norm of all of it, √d times that. ``noise_to_signal`` is that of the whole training,
    and ``error`` the bound of the module docstring over D·C, with a third of the noise. Values that need d are None
    if it is unknown. ``cost`` is in gradients of one example.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float
    noise_per_coordinate: float
    noise: float | None
    noise_to_signal: float | None
    error: float | None
    cost: float
    planned: bool = False
    best: bool = False


def make_sweep_row(mechanism: Mechanism, steps: int, parameters: int | None) -> SweepRow:
    """Describe ``steps`` steps of ``mechanism`` for a model with this many trainable ``parameters``."""
    sigma, batch = mechanism.noise_multiplier, mechanism.normaliser
    coordinate_noise, whole, ratio, error = sigma * mechanism.clip_norm / batch, None, None, None
    if parameters is not None:
        whole = coordinate_noise * math.sqrt(parameters)
        ratio = compute_noise_to_signal(sigma, batch, steps, parameters)
        error = math.hypot(steps**-0.5, _EFFECTIVE_NOISE_SHARE * ratio)
    return SweepRow(mechanism.sampling_rate, steps, sigma, coordinate_noise, whole, ratio, error, batch * steps)


def compute_noise_to_signal(noise_multiplier: float, batch: float, steps: int, parameters: int) -> float:
    """Return σ√d/(B√T), the smallest that a whole training can have."""
    return noise_multiplier * math.sqrt(parameters / max(steps, 1)) / batch


def sweep_sampling_rates(spec: TrainingSpec, epsilon: float | None, parameters: int | None) -> list[dict[str, Any]]:
    """List pairs of sampling rate and steps that reach ``epsilon`` for half, the same and twice the computation.

    Ordered by cost, then by rate; the best one that costs no more than the plan is marked, if d is known. Empty if
    there is nothing to sweep: samples of users, no epsilon, a model to start from.
    """
    mechanism = spec.mechanism
    if (
        not epsilon
        or spec.start is not None
        or not spec.steps
        or mechanism is None
        or spec.trainer.samples_users
        or spec.spending is None
    ):
        return []
    rows = []
    for rate, steps in _iterate_rates_and_steps(mechanism.sampling_rate, spec.steps):
        is_planned = (rate, steps) == (mechanism.sampling_rate, spec.steps)
        noise = mechanism.noise_multiplier if is_planned else _find_noise(spec, epsilon, rate, steps)
        if noise is not None:
            batch = mechanism.normaliser * rate / mechanism.sampling_rate
            changed = replace(mechanism, sampling_rate=rate, noise_multiplier=noise, normaliser=batch)
            rows.append(replace(make_sweep_row(changed, steps, parameters), planned=is_planned))
    best = _find_best_row(rows)
    return [asdict(replace(row, best=row is best)) for row in rows]


def _find_best_row(rows: list[SweepRow]) -> SweepRow | None:
    """Return the row with the most steps among those of nearly the smallest error, at most at the plan's cost."""
    plan = next(row for row in rows if row.planned)
    known = [(row.error, row) for row in rows if row.error is not None and row.cost <= 1.05 * plan.cost]
    least = min((error for error, _ in known), default=0.0)
    near = [row for error, row in known if error <= _ERROR_FACTOR * least]
    return max(near, key=lambda row: row.steps, default=None)


def _iterate_rates_and_steps(rate: float, steps: int) -> Iterator[tuple[float, int]]:
    """Yield powers of two around the plan's own, by cost; no rate above 1, at least one step."""
    for cost in _COST_FACTORS:
        for factor in _RATE_FACTORS:
            count = steps * cost / factor
            if rate * factor <= 1.0 and count >= 1.0:
                yield rate * factor, round(count)


def _find_noise(spec: TrainingSpec, epsilon: float, rate: float, steps: int) -> float | None:
    """Return about the smallest noise multiplier for ``epsilon``, not below it; None if there is none."""
    settings = spec.settings.model_copy(update={"sampling_rate": rate, "epsilon": epsilon})
    rows, beside = spec.exchanged_row_count, spec.selection_spendings
    try:
        return spec.trainer.calibrate_noise(settings, steps, rows, beside, is_proved=False)
    except GuaranteeError:
        return None

"""Plans of the trainings that hide users and entities: from numbers, a configuration, a finished run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.evaluation.plots import UNITS, epsilon_plot
from redactory.foundation.files import write_text
from redactory.redaction import RunFolder, is_finished
from redactory.training.units.settings import UNITS_PROTECTED

if TYPE_CHECKING:
    from redactory.pipelines.config import Config
    from redactory.training.settings import TrainSettings
    from redactory.training.uedp.planning import Plan

UNIT_TRAINERS = UNITS_PROTECTED
COUNTED = (
    "counted in the private part of the run: no epsilon covers these numbers, so do not publish them; a cap "
    "or a rate that is taken from them follows the graph (train.bounding.constants: graph), and no user's "
    "removal is stated with it"
)


def plan_units(numbers: dict[str, Any], plot: str | Path | None = None) -> dict[str, Any]:
    """The forecast of ``numbers``: the fields of ``BoundedRequest`` or ``FederatedRequest``."""
    from redactory.training.uedp.forecast_bounded import BoundedRequest, forecast_bounded
    from redactory.training.uedp.forecast_federated import FederatedRequest, forecast_federated

    curves = plot is not None
    if numbers["trainer"] == "uedp-bounded":
        result = forecast_bounded(BoundedRequest(**numbers), curves)
    else:
        result = forecast_federated(FederatedRequest(**numbers), curves)
    return _drawn(result, plot)


def plan_units_of(config: Config, plot: str | Path | None = None) -> dict[str, Any]:
    """The forecast of ``config``; where its run is finished, also how many points each cap keeps in it."""
    settings, run = config.train.resolved(), RunFolder(Path(config.output))
    if settings.trainer != "uedp-bounded":
        return _drawn(_federated(settings, plot is not None), plot)
    result = plan_units(_bounded(settings), plot)
    if is_finished(run):
        result["corpus"] = _corpus(run, settings)
    return result


def _bounded(settings: TrainSettings) -> dict[str, Any]:
    from redactory.training.sampling import steps_an_epoch

    own = settings.bounding
    return {
        "trainer": settings.trainer,
        "delta": settings.delta,
        "protect": settings.units.protect.value,
        "sampling_rate": settings.sampling_rate,
        "steps": settings.epochs * steps_an_epoch(settings.sampling_rate),
        "noise": settings.noise_multiplier,
        "target": None if settings.noise_multiplier else settings.epsilon,
        "k_user": own.k_user,
        "k_entity": own.k_entity,
        "rule": own.rule,
        "entities_per_point": own.entities_per_point,
        "missed_mentions": settings.units.missed_mentions,
        "public_constants": own.constants == "public",
        "batch": settings.expected_batch_size,
    }


def _federated(settings: TrainSettings, curves: bool) -> dict[str, Any]:
    """With the very mechanism that would be trained with."""
    from redactory.training.uedp.federated_noise import (
        federated_mechanism,
        federated_steps_per_epoch,
        protected,
    )
    from redactory.training.uedp.forecast_federated import FederatedTraining, federated_forecast

    own = settings.federated
    training = FederatedTraining(
        federated_mechanism(settings),
        settings.epochs * federated_steps_per_epoch(own),
        settings.delta,
        protected(settings),
        own.sensitive_share,
        settings.noise_multiplier is None and own.noise_scale is None,
        own.noise_form,
    )
    return federated_forecast(training, curves)


def _corpus(run: RunFolder, settings: TrainSettings) -> dict[str, Any]:
    """What each cap keeps of a finished run's points, and of which labels; noise for the target epsilon."""
    from redactory.training.sampling import steps_an_epoch
    from redactory.training.uedp.lists import read_units
    from redactory.training.uedp.planning import Budget, plan

    steps = settings.epochs * steps_an_epoch(settings.sampling_rate)
    budget = Budget(settings.epsilon, settings.delta, round(settings.expected_batch_size), steps)
    found: Plan = plan(read_units(run, settings.units), settings.units.protect, budget=budget)
    return {"note": COUNTED, "target": settings.epsilon, **asdict(found)}


def _drawn(result: dict[str, Any], plot: str | Path | None) -> dict[str, Any]:
    """``result``, its curve over steps drawn into the file ``plot`` where one is asked for."""
    if plot is None:
        return result
    title = f"{result['trainer']}: {result['adjacency']}, delta = {result['delta']:g}"
    write_text(Path(plot), epsilon_plot(result["steps_curve"], title, UNITS))
    return {**result, "plot": str(plot)}

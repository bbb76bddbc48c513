"""Plans of the trainings that hide users and entities: from numbers, a configuration, a finished run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.dedup.rules import rule_of
from redactory.evaluation.plots import UNITS, epsilon_plot, require_matplotlib
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import write_text
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.train import measured_last, points_learnt
from redactory.redaction import RunFolder, is_finished
from redactory.training.units.settings import UNITS_PROTECTED

if TYPE_CHECKING:
    from redactory.pipelines.config import Config
    from redactory.training.planner import PlanRequest
    from redactory.training.settings import TrainSettings
    from redactory.training.uedp.bounded_accounting import Plan


UNIT_TRAINERS = UNITS_PROTECTED
COUNTED = (
    "counted in the private part of the run: no epsilon covers these numbers, so do not publish them; a cap "
    "or a rate that is taken from them follows the graph (train.bounding.constants: graph), and no user's "
    "removal is stated with it"
)


def plan_units(numbers: dict[str, Any], plot: str | Path | None = None) -> dict[str, Any]:
    """The forecast of ``numbers``: the fields of ``BoundedRequest`` or ``FederatedRequest``."""
    from redactory.training.uedp.forecast import BoundedRequest, forecast_bounded
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
    from redactory.training.uedp.federated import (
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
    from redactory.training.uedp.bounded_accounting import Budget, plan
    from redactory.training.uedp.units import read_units

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


# Plan: what a training would cost, from a configuration or from numbers, before anything is trained.


LDP = "ldp"


def plan(
    config: Given | None = None,
    *,
    output: str | Path | None = None,
    plot: str | Path | None = None,
    progress: Progress = silent,
    **numbers: Any,
) -> dict[str, Any]:
    """Epsilon, noise, ratio to the batch and what would improve it, of the training of ``config``.

    Without ``config`` the ``numbers`` are those of :class:`~redactory.training.planner.PlanRequest`, or,
    where ``trainer`` is one that hides users or entities, of
    :class:`~redactory.training.uedp.forecast.BoundedRequest` or
    :class:`~redactory.training.uedp.forecast_federated.FederatedRequest`, or, where it is ``ldp``, of
    :class:`~redactory.training.ldp.forecast.LdpRequest`, which draws no plot.  With it
    they come from the section ``train``, and from the run where it is finished: its private points and
    its measured recall, or its users and entities.  ``plot`` is an SVG file to write, epsilon against steps.
    Nothing is trained.
    """
    require_training_packages()
    if plot is not None:
        require_matplotlib()
    if config is not None and numbers:
        raise ConfigurationError(f"a plan takes a configuration or numbers, not both: {', '.join(numbers)}")
    with waiting(progress, "account noise"):
        return _planned(config, output, plot, numbers)


def _planned(
    config: Given | None, output: str | Path | None, plot: str | Path | None, numbers: dict[str, Any]
) -> dict[str, Any]:
    from redactory.training.planner import PlanRequest, plan_training

    if config is None:
        if numbers.get("trainer") in UNIT_TRAINERS:
            return plan_units(numbers, plot)
        if numbers.get("trainer") == LDP:
            return _of_messages(numbers, plot)
        request = PlanRequest(**numbers)
    else:
        loaded = load_config(config, output=output)
        if loaded.train.trainer in UNIT_TRAINERS:
            return plan_units_of(loaded, plot)
        request = _of_config(loaded)
    result = plan_training(request)
    if plot is not None:
        told = f"{request.trainer}: q = {request.sampling_rate:g}, noise {result['noise_multiplier']:g}"
        write_text(Path(plot), epsilon_plot(result["curve"], f"{told}, delta = {request.delta:g}"))
        result["plot"] = str(plot)
    return result


def _of_messages(numbers: dict[str, Any], plot: str | Path | None) -> dict[str, Any]:
    from redactory.training.ldp.forecast import LdpRequest, forecast_ldp

    if plot is not None:
        raise ConfigurationError("a plan of messages (ldp) has no steps to plot: leave out plot")
    return forecast_ldp(LdpRequest(**numbers))


def _of_config(config: Config) -> PlanRequest:
    from redactory.training.confidentiality import MissRates
    from redactory.training.planner import PlanRequest
    from redactory.training.sampling import steps_an_epoch

    run, settings = RunFolder(Path(config.output)), config.train.resolved()
    if settings.trainer not in ("crt", "crt-drop", "dpsgd"):
        raise ConfigurationError(
            f"train.trainer {settings.trainer} has no privacy mechanism: nothing to plan"
        )
    by_policy = settings.trainer != "dpsgd"
    rule = rule_of(config.dedup, "private")
    if by_policy and rule.group_size is None:
        raise ConfigurationError(
            f"dedup: rule {rule.name} has no stability proof, so no epsilon can be planned: dedup.mode exact "
            "has one"
        )
    finished = is_finished(run)
    recall = settings.recall or (measured_last(run) if finished else None)
    rates = MissRates(1.0, None) if recall is None else MissRates.measured(recall)
    return PlanRequest(
        trainer=settings.trainer,
        sampling_rate=settings.sampling_rate,
        steps=settings.epochs * steps_an_epoch(settings.sampling_rate),
        delta=settings.delta,
        noise=settings.noise_multiplier,
        target=None if settings.noise_multiplier else settings.epsilon,
        private_points=(points_learnt(run, settings.trainer)[0] or None) if finished else None,
        batch=settings.expected_batch_size,
        gamma=rates.gamma,
        delta_2=0.0 if config.detect.conservative.flags_everything else rates.delta_2,
        group_sizes=settings.group_sizes,
        rows=(rule.group_size or 1) if by_policy else 1,
        truncated_batch_size=settings.truncated_batch_size,
        dataset_size=settings.dataset_size,
    )


# Budget: what the trainings that name one budget have booked, held against its limit.


def budget(config: Given) -> dict[str, Any]:
    """What was spent of the budget that ``config`` names in ``train.budget``; nothing is written.

    Returns {budget, unit, epsilon, delta, spent, trainings: [{training, steps, delta, epsilon_after}]}:
    ``epsilon`` is the limit, ``spent`` what all trainings cost one unit together, at the configured
    ``delta``, rounded up; ``epsilon_after`` what was spent once that training was booked.  What is left is
    not their difference: what trainings cost together is less than the sum (``docs/guarantees.md``,
    "Several models").

    ``ConfigurationError`` where no budget is named, ``GuaranteeError`` where the file counts another unit
    or at another delta, or is no budget, ``CheckFailed`` where it was changed.
    """
    settings = load_config(config).train
    if settings.budget is None:
        raise ConfigurationError("train.budget: no budget is named here: give its path and its epsilon")
    require_training_packages()
    from redactory.training.budget import Budget, cost_of
    from redactory.training.guarantee import unit_of

    named = settings.budget
    return {"budget": str(named.path), **Budget(named, unit_of(settings), cost_of(settings)).told()}

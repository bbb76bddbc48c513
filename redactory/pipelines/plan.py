"""Plan: what a training would cost, from a configuration or from numbers, before anything is trained.

Trainings that hide users and entities are planned by :mod:`redactory.pipelines.plan_units`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.dedup.rules import rule_of
from redactory.evaluation.plots import epsilon_plot, require_matplotlib
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import write_text
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.plan_units import UNIT_TRAINERS, plan_units, plan_units_of
from redactory.pipelines.train import measured_last
from redactory.pipelines.train_checks import points_learnt
from redactory.redaction import RunFolder, is_finished

if TYPE_CHECKING:
    from redactory.training.planner import PlanRequest

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
    :class:`~redactory.training.uedp.forecast_bounded.BoundedRequest` or
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

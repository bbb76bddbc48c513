"""Prefect flows around the plain functions; parameters, results, logs and artifacts hold no text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from redactory.flows.prefect_tasks import open_stage_map, run_as_task
from redactory.flows.server import expand_template, load_time_zone
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import CheckFailed, RedactoryError, pluralize
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation import curate as curation
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.models import require_training_packages
from redactory.pipelines.modeling import run as whole
from redactory.pipelines.modeling.train import check_device
from redactory.pipelines.operations import verify as verification
from redactory.pipelines.operations.incremental import has_date_placeholder
from redactory.pipelines.operations.nightly import nightly as plain_nightly
from redactory.redaction import RunFolder, is_finished

DECISIONS = ("public", "private", "duplicate", "quarantined")
progress_listener: ContextVar[Progress] = ContextVar("listener", default=ignore_progress)
"""The progress listener of this process; not a parameter, because Prefect stores parameters."""


def get_progress() -> Progress:
    """Return the progress listener; Prefect pickles the flows' bodies, which cannot hold a context variable."""
    return progress_listener.get()


def curate_with_tasks(settings: Config, *, dask: str | None, **options: Any) -> dict[str, Any]:
    """Run ``redactory.curate`` with a task for each part, in local processes or on the Dask workers of ``dask``."""
    # a worker is in another directory
    settings = settings.model_copy(update={"output": str(Path(settings.output).absolute())})
    run = RunFolder(Path(settings.output))

    def curate_over_workers() -> dict[str, Any]:
        with nullcontext() if is_finished(run) else open_stage_map(dask, settings, run) as stage_map:
            return dict(curation.curate(settings, stage_map=stage_map, **options))

    return run_with_sealed_traceback(run.state, curate_over_workers)


def log_flow_outcome(flow: Any, run: Any, state: Any) -> None:
    """Print one line on standard error for each scheduled run; Prefect calls it at the end of a flow.

    A run started by a command prints nothing here: the command prints its result.
    """
    if run.deployment_id is None:
        return
    result = state.result(raise_on_failure=False)
    if not state.is_completed():
        # only our own messages are known to hold no text
        outcome = f"{state.name.lower()}{f': {result}' if isinstance(result, RedactoryError) else ''}"
    elif "nights" in result:
        nights = [f"{Path(night['run'] or '').name} {night['state']}".strip() for night in result["nights"]]
        outcome = f"{', '.join(nights)}: {result['job']}"
    else:
        decisions = ", ".join(f"{result[decision]:,} {decision}" for decision in DECISIONS)
        counts = f"{pluralize(result['rows'], 'row')}, {pluralize(result['examples'], 'example')}"
        outcome = f"{counts} ({decisions}): {result['run']}"
    name = f"{flow.name} {Path(run.parameters['config']).stem}"
    print(f"{run.expected_start_time:%Y-%m-%dT%H:%M:%SZ} {name}: {outcome}", file=sys.stderr, flush=True)


def make_flow_decorator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Prefect's flow decorator with the settings that all flows share."""
    ended = ("on_completion", "on_failure", "on_crashed", "on_cancellation")
    hooks: Any = {when: [log_flow_outcome] for when in ended}
    return flow(name=name, persist_result=False, log_prints=False, validate_parameters=False, **hooks)


@make_flow_decorator("curate")
def curate(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """Run ``redactory.curate`` with a Prefect task for each part of each stage.

    ``output`` may contain ``{start}`` and ``{date}``, the time for which the run was scheduled (``timezone``). ``dask``
    is the address of a Dask scheduler whose workers run the tasks; None for ``workers`` processes on this machine.
    """
    options: dict[str, Any] = {"dask": dask, "verify": verify, "resume": resume, "progress": get_progress()}
    return _run_job(partial(_curate_and_publish, config, **options), config, output, workers, timezone)


@make_flow_decorator("run")
def run(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """Run ``redactory.run`` with the parameters of ``curate``; its parts and later steps are tasks."""

    def run_steps(settings: Config) -> dict[str, Any]:
        require_training_packages()
        check_device(settings)
        options: dict[str, Any] = {"dask": dask, "resume": resume, "progress": get_progress()}
        curated = _curate_and_publish(config, settings, verify=False, **options)
        step = partial(run_as_task, RunFolder(Path(curated["run"])).state)
        result = whole.run(settings, resume=True, step=step, progress=get_progress())
        publish_guarantee(config, result["model"])
        if verify:
            require_verified_run(Path(result["run"]))
        return result

    return _run_job(run_steps, config, output, workers, timezone)


def _curate_and_publish(
    config: str, settings: Config, *, dask: str | None, verify: bool, **options: Any
) -> dict[str, Any]:
    """Curate with tasks, publish the counts, and verify the run if requested."""
    result = curate_with_tasks(settings, dask=dask, **options)
    publish_run(config, result)
    if verify:
        require_verified_run(Path(result["run"]))
    return result


def _run_job(
    work: Callable[[Config], dict[str, Any]], config: str, output: str | None, workers: int | None, timezone: str
) -> dict[str, Any]:
    """Call ``work`` with the settings of a run that was scheduled for the time of this flow, and seal its errors."""
    forbid_core_dumps()

    def load_settings() -> Config:
        settings = load_config(config, workers=workers)
        place = expand_template(output or str(settings.output), flow_run.scheduled_start_time, timezone)
        return load_config(settings, output=place)

    # no run folder exists yet to seal an error in, and a configuration may hold names
    settings = run_with_hidden_error_text(
        f"the configuration could be read; check with: redactory curate {config} --dry-run", load_settings
    )
    return run_with_sealed_traceback(RunFolder(Path(settings.output)).state, work, settings)


@make_flow_decorator("nightly")
def nightly(
    config: str,
    output: str,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """Run ``redactory.nightly`` with a Prefect task for each part of each stage; ``output`` is the job.

    ``{date}`` in the input's path is the day, in ``timezone``, for which the run was scheduled. With ``verify`` a run
    is verified before it is judged. A held run fails the flow, because somebody has to decide.
    """
    forbid_core_dumps()

    def run_and_publish() -> dict[str, Any]:
        scheduled_time = flow_run.scheduled_start_time.astimezone(load_time_zone(timezone))
        result = plain_nightly(
            config,
            output=output,
            date=scheduled_time.date().isoformat() if has_date_placeholder(load_config(config)) else None,
            workers=workers,
            curate_run=partial(_curate_and_publish, config, dask=dask, verify=verify),
            progress=get_progress(),
        )
        held = [Path(run_record["run"]).name for run_record in result["nights"] if run_record["state"] == "held"]
        if held:
            raise CheckFailed(f"{', '.join(held)} is held; see: redactory release list {output}")
        return result

    return run_with_hidden_error_text("the scheduled run is still at work", run_and_publish)


def require_verified_run(run: Path) -> None:
    """Verify a finished run in a separate task; ``CheckFailed`` if a check fails."""

    def list_failed_checks() -> list[str]:
        return [check["name"] for check in verification.verify(run)["checks"] if not check["ok"]]

    if failed := run_as_task(RunFolder(run).state, "verify", list_failed_checks):
        raise CheckFailed(f"{run} failed: {', '.join(failed)}; see redactory verify {run}")


# Artifacts in Prefect's interface: counts, codes, metrics and paths.


def publish_run(config: str, result: dict[str, Any]) -> None:
    """Publish the counts of a finished run and the path of its report; one history per configuration."""
    rows = [(kind, result[kind]) for kind in ("rows", "documents", "rejected", "examples", *DECISIONS)]
    for title in ("rejected", "quarantined"):
        rows += [(f"{title}: `{code}`", n) for code, n in sorted(result[f"{title}_by_reason"].items())]
    report = Path(result["report"]).resolve().as_uri()
    _publish("examples", config, f"`{result['run']}`: [report]({report})", rows)


def publish_guarantee(config: str, model: dict[str, Any]) -> None:
    """Publish the epsilons of the model's guarantee, each null with its reason."""
    card = model["guarantee"]
    names = ["epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution", "coverage_failure"]
    if "epsilon_sound" in card:
        names = ["epsilon_sound", "epsilon_user_removal"]
    reasons = card.get("reasons", {})
    values = ((name, card.get(name), reasons.get(name, "not stated")) for name in names)
    rows = [
        (f"`{name}`", f"none: {reason}" if value is None else format_upper(value)) for name, value, reason in values
    ]
    _publish("guarantee", config, f"`{model.get('model', '')}`", rows)


def _publish(kind: str, config: str, title: str, rows: Iterable[tuple[str, Any]]) -> None:
    name = re.sub("[^a-z0-9]+", "-", Path(config).stem.lower()).strip("-") or "run"
    table = ["| item | value |", "|---|---:|", *(f"| {item} | {value} |" for item, value in rows)]
    create_markdown_artifact("\n".join([title, "", *table]), key=f"{kind}-{name}")

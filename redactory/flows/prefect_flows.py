"""Prefect flows around the plain functions; parameters, results, logs and artifacts hold no text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

import redactory
from redactory.detectors import compute_policy_hashes
from redactory.flows.prefect_tasks import open_stage_map, run_as_task
from redactory.flows.server import expand_template, has_placeholder, list_runs, load_time_zone
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import CheckFailed, RedactoryError, pluralize
from redactory.foundation.keys import load_digest_key
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation import curate as curation
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.finish import summarize_run
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.models import require_training_packages
from redactory.pipelines.modeling import run as whole
from redactory.pipelines.modeling import train as training
from redactory.pipelines.modeling.train import check_device
from redactory.pipelines.operations import verify as verification
from redactory.pipelines.operations.incremental import has_date_placeholder
from redactory.pipelines.operations.nightly import nightly as plain_nightly
from redactory.pipelines.readers import find_sources
from redactory.redaction import RunFolder, is_finished, list_broken_files, read_manifest
from redactory.redaction.encryption import load_configured_service
from redactory.redaction.sealing import SIGNED_BY, describe_configured_signer

DECISIONS = ("public", "private", "duplicate", "quarantined")
progress_listener: ContextVar[Progress] = ContextVar("listener", default=ignore_progress)
"""The progress listener of this process; not a parameter, because Prefect stores parameters."""


def get_progress() -> Progress:
    """Return the progress listener; Prefect pickles the flows' bodies, which cannot hold a context variable."""
    return progress_listener.get()


@dataclass(frozen=True)
class FlowJob:
    """The parameters of a flow as Prefect stores them, and their resolved values."""

    config: str
    template: str
    settings: Config
    dask: str | None = None

    @property
    def run_folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(Path(self.settings.output))


def _load_job(config: str, output: str | None, workers: int | None, timezone: str, dask: str | None = None) -> FlowJob:
    forbid_core_dumps()

    def resolve_job() -> FlowJob:
        settings = load_config(config, workers=workers)
        template = output or str(settings.output)
        place = expand_template(template, flow_run.scheduled_start_time, timezone)
        return FlowJob(config, template, load_config(settings, output=place), dask)

    # no run folder exists yet to seal an error in, and a configuration may hold names
    return run_with_hidden_error_text(
        f"the configuration could be read; check with: redactory curate {config} --dry-run", resolve_job
    )


def curate_with_tasks(settings: Config, *, dask: str | None, **options: Any) -> dict[str, Any]:
    """Run ``redactory.curate`` with a task for each part, in local processes or on the Dask workers of ``dask``."""
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
    scheduled_time, parameters, result = run.expected_start_time, run.parameters, state.result(raise_on_failure=False)
    if state.is_completed():
        outcome = _format_outcome(result, expand_template(parameters["output"], scheduled_time, parameters["timezone"]))
    else:
        # only our own messages are known to hold no text
        outcome = f"{state.name.lower()}{f': {result}' if isinstance(result, RedactoryError) else ''}"
    line = f"{scheduled_time:%Y-%m-%dT%H:%M:%SZ} {flow.name} {Path(parameters['config']).stem}: {outcome}"
    print(line, file=sys.stderr, flush=True)


def _format_outcome(result: dict[str, Any], folder: str) -> str:
    if "nights" in result:
        runs = ((Path(night["run"]).name if night["run"] else "", night["state"]) for night in result["nights"])
        return f"{', '.join(' '.join(filter(None, run)) for run in runs)}: {result['job']}"
    if result.get("run", folder) != folder:
        return f"unchanged input; kept the earlier run: {result['run']}"
    decisions = ", ".join(f"{result[decision]:,} {decision}" for decision in DECISIONS)
    return f"{pluralize(result['rows'], 'row')}, {pluralize(result['examples'], 'example')} ({decisions}): {folder}"


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
    """Run ``redactory.curate`` with a Prefect task for each partition of each stage.

    ``output`` may contain ``{start}`` and ``{date}``, the time for which the run was scheduled (``timezone``). If such
    a folder already holds a run of the same content, its summary is the result. ``dask`` (``local`` or a scheduler's
    address) runs the tasks of partitions on Dask workers.
    """
    job = _load_job(config, output, workers, timezone, dask)

    def curate_and_publish() -> dict[str, Any]:
        result = _curate_or_reuse(job, resume)
        if verify:
            require_verified_run(RunFolder(Path(result["run"])))
        return result

    return run_with_sealed_traceback(job.run_folder.state, curate_and_publish)


@make_flow_decorator("train")
def train(
    config: str,
    output: str | None = None,
    trainer: str | None = None,
    name: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run ``redactory.train`` as one task."""
    job = _load_job(config, output, None, "UTC")
    overrides: dict[str, Any] = {"trainer": trainer, "name": name, "workers": workers}
    changes = {key: value for key, value in overrides.items() if value}

    def train_and_publish() -> dict[str, Any]:
        work = partial(training.train, job.settings, progress=get_progress(), **changes)
        result: dict[str, Any] = run_as_task(job.run_folder.state, "train", work)
        publish_guarantee(job.config, result)
        return result

    return run_with_sealed_traceback(job.run_folder.state, train_and_publish)


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
    """Run ``redactory.run`` with the parameters of ``curate``; its partitions and later steps are tasks."""
    job = _load_job(config, output, workers, timezone, dask)

    def run_steps() -> dict[str, Any]:
        require_training_packages()
        check_device(job.settings)
        run_folder = RunFolder(Path(_curate_or_reuse(job, resume)["run"]))

        step = partial(run_as_task, run_folder.state)
        result = whole.run(
            job.settings, output=run_folder.root, resume=True, step=step, progress=get_progress()
        )
        publish_guarantee(job.config, result["model"])
        if verify:
            require_verified_run(run_folder)
        return result

    return run_with_sealed_traceback(job.run_folder.state, run_steps)


@make_flow_decorator("nightly")
def nightly(
    config: str,
    output: str,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """Run ``redactory.nightly`` with a Prefect task for each partition of each stage; ``output`` is the job.

    ``{date}`` in the input's path is the day, in ``timezone``, for which the run was scheduled. With ``verify`` a run
    is verified before it is judged. A held run fails the flow, because somebody has to decide.
    """
    forbid_core_dumps()

    def curate_and_publish(settings: Config, **options: Any) -> dict[str, Any]:
        result = curate_with_tasks(settings, dask=dask, **options)
        publish_run(config, result, False)
        if verify:
            require_verified_run(RunFolder(Path(result["run"])))
        return result

    def run_and_publish() -> dict[str, Any]:
        scheduled_time = flow_run.scheduled_start_time.astimezone(load_time_zone(timezone))
        result = plain_nightly(
            config,
            output=output,
            date=scheduled_time.date().isoformat() if has_date_placeholder(load_config(config)) else None,
            workers=workers,
            curate_run=curate_and_publish,
            progress=get_progress(),
        )
        held = [Path(run_record["run"]).name for run_record in result["nights"] if run_record["state"] == "held"]
        if held:
            raise CheckFailed(f"{', '.join(held)} is held; see: redactory release list {output}")
        return result

    return run_with_hidden_error_text("the scheduled run is still at work", run_and_publish)


def require_verified_run(run: RunFolder) -> None:
    """Verify a finished run in a separate task; ``CheckFailed`` if a check fails."""

    def list_failed_checks() -> list[str]:
        verification_result = verification.verify(run.root)
        return [check["name"] for check in verification_result["checks"] if not check["ok"]]

    if failed := run_as_task(run.state, "verify", list_failed_checks):
        raise CheckFailed(f"{run.root} failed: {', '.join(failed)}; see redactory verify {run.root}")


# Reuse of a run with the same input and policies.


def _curate_or_reuse(job: FlowJob, resume: bool) -> dict[str, Any]:
    """Return the summary of a new curation, or of a kept run of the same content."""
    reusable_run = None if resume and job.run_folder.journal.exists() else find_reusable_run(job.settings, job.template)
    if reusable_run is not None:
        result = summarize_run(reusable_run)
    else:
        result = curate_with_tasks(job.settings, dask=job.dask, resume=resume, progress=get_progress())
    publish_run(job.config, result, reusable_run is not None)
    return result


def find_reusable_run(settings: Config, template: str) -> RunFolder | None:
    """Return the latest complete run of this content among the runs of ``template``, if each has a folder.

    A run with an index depends on earlier runs too, so it is never reused.
    """
    if settings.dedup.index or not has_placeholder(template):
        return None
    service = load_configured_service()
    content = {
        "version": redactory.__version__,
        "configuration": settings.compute_curation_hash(),
        "policies": compute_policy_hashes(settings.detect),
        "inputs": [s.compute_fingerprint() for s in find_sources(settings.input.path, settings.input.format)],
        "key": load_digest_key().fingerprint,
        "encrypted_by": None if service is None else service.name,
        "signed_by": describe_configured_signer(),
    }
    for run in map(RunFolder, list_runs(template)):
        with suppress(RedactoryError, OSError):
            is_same = is_finished(run) and _extract_run_dependencies(read_manifest(run)) == content
            if is_same and not list_broken_files(run):
                return run
    return None


def _extract_run_dependencies(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the shards of a finished run depend on."""
    return {
        "version": manifest["versions"]["redactory"],
        "configuration": manifest["configuration_hash"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "inputs": [{k: v for k, v in entry.items() if k != "rows"} for entry in manifest["inputs"]],
        "key": manifest["key"]["fingerprint"],
        "encrypted_by": (manifest["encryption"] or {}).get("wrapped_by"),
        "signed_by": manifest.get(SIGNED_BY),
    }


# Artifacts in Prefect's interface: counts, codes, metrics and paths.


def publish_run(config: str, result: dict[str, Any], reused: bool) -> None:
    """Publish the counts of a finished run and the path of its report; one history per configuration."""
    rows = [(kind, result[kind]) for kind in ("rows", "documents", "rejected", "examples", *DECISIONS)]
    for title in ("rejected", "quarantined"):
        rows += [(f"{title}: `{code}`", n) for code, n in sorted(result[f"{title}_by_reason"].items())]
    note = " (unchanged input; kept the earlier run)" if reused else ""
    table = ["| item | count |", "|---|---:|", *(f"| {what} | {count:,} |" for what, count in rows)]
    report = Path(result["report"]).resolve().as_uri()
    _publish("examples", config, [f"`{result['run']}`{note}: [report]({report})", "", *table])


def publish_guarantee(config: str, model: dict[str, Any]) -> None:
    """Publish the epsilons of the model's guarantee, each null with its reason."""
    card = model["guarantee"]
    epsilons = ["epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution", "coverage_failure"]
    if "epsilon_sound" in card:
        epsilons = ["epsilon_sound", "epsilon_user_removal"]
    lines = ["| metric | value |", "|---|---|"]
    for key in epsilons:
        value, reason = card.get(key), card.get("reasons", {}).get(key, "not stated")
        lines.append(f"| `{key}` | {f'none: {reason}' if value is None else format_upper(value)} |")
    _publish("guarantee", config, lines)


def _publish(kind: str, config: str, lines: list[str]) -> None:
    name = re.sub("[^a-z0-9]+", "-", Path(config).stem.lower()).strip("-") or "run"
    create_markdown_artifact("\n".join(lines), key=f"{kind}-{name}")

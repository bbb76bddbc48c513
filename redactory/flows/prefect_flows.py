"""Prefect flows around the plain functions; parameters, results, logs and artifacts hold no text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

import redactory
from redactory.detectors import policy_hashes
from redactory.flows.dask_map import tasks_on_dask
from redactory.flows.prefect_tasks import as_task, quiet_task, tasks_in_processes
from redactory.flows.server import place_of, zone_of
from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import CheckFailed, InputError, RedactoryError, SealedError, some, upwards
from redactory.foundation.keys import load_digest_key
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import Progress, silent
from redactory.pipelines import curate as curation
from redactory.pipelines import run as whole
from redactory.pipelines import train as training
from redactory.pipelines import verify as verification
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config
from redactory.pipelines.maps import StageMap
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.nightly import nightly as plain_nightly
from redactory.pipelines.readers import find_sources
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.train import check_device
from redactory.pipelines.watermark import is_dated
from redactory.redaction import RunFolder, broken_files, is_finished, read_manifest
from redactory.redaction.keyservice import configured_service
from redactory.redaction.sealing import SIGNED_BY, configured_signer

FATES = ("public", "private", "duplicate", "quarantined")
listener: ContextVar[Progress] = ContextVar("listener", default=silent)
"""Who hears of progress in this process; no parameter, since Prefect stores parameters."""


@dataclass(frozen=True)
class Job:
    """What a flow was asked for: the parameters that Prefect stores, and what they come to here and now."""

    config: str
    template: str
    settings: Config
    dask: str | None = None

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(Path(self.settings.output))

    @property
    def name(self) -> str:
        """What the histories of this job are kept under in Prefect's interface."""
        return Path(self.config).stem

    @contextmanager
    def stage_map(self) -> Iterator[StageMap]:
        """The map whose parts are tasks: in processes of this machine, or on workers of Dask."""
        if self.dask is None:
            spread = tasks_in_processes(self.settings.workers, self.run.state)
        else:
            spread = tasks_on_dask(self.dask, self.settings, self.run)
        with spread as stage_map:
            yield stage_map


def _job(config: str, output: str | None, workers: int | None, timezone: str, dask: str | None = None) -> Job:
    unexpected = None
    try:
        settings = load_config(config, workers=workers)
        template = output or str(settings.output)
        place = place_of(template, flow_run.scheduled_start_time, timezone)
        return Job(config, template, load_config(settings, output=Path(place)), dask)
    except RedactoryError:
        raise
    except Exception as error:
        # there is no run folder yet to seal it in; a configuration holds lists of names
        unexpected = type(error).__name__
    raise SealedError(
        f"unexpected {unexpected} while the configuration was read: redactory curate {config} --dry-run"
    )


# The flows.


def say_how_it_ended(flow: Any, run: Any, state: Any) -> None:
    """One line on standard error for each run that a schedule started; Prefect calls it at the end of a flow.

    A run that a command started says nothing here: the command prints its result.
    """
    if run.deployment_id is None:
        return
    due, asked, result = run.expected_start_time, run.parameters, state.result(raise_on_failure=False)
    if state.is_completed():
        said = _summary(result, place_of(asked["output"], due, asked["timezone"]))
    else:
        # only messages of our own are known to hold no text
        said = f"{state.name.lower()}{f': {result}' if isinstance(result, RedactoryError) else ''}"
    line = f"{due:%Y-%m-%dT%H:%M:%SZ} {flow.name} {Path(asked['config']).stem}: {said}"
    print(line, file=sys.stderr, flush=True)


def _summary(result: dict[str, Any], place: str) -> str:
    if "nights" in result:
        runs = (
            (Path(night["run"]).name if night["run"] else "", night["state"]) for night in result["nights"]
        )
        return f"{', '.join(' '.join(filter(None, run)) for run in runs)}: {result['job']}"
    if result.get("run", place) != place:
        return f"unchanged input, the earlier run stands: {result['run']}"
    fates = ", ".join(f"{result[fate]:,} {fate}" for fate in FATES)
    return f"{some(result['rows'], 'row')}, {some(result['points'], 'point')} ({fates}): {place}"


def quiet_flow(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Prefect's decorator with what every flow of ours has."""
    ended = ("on_completion", "on_failure", "on_crashed", "on_cancellation")
    hooks: Any = {when: [say_how_it_ended] for when in ended}
    return flow(name=name, persist_result=False, log_prints=False, validate_parameters=False, **hooks)


@quiet_flow("curate")
def curate(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """``redactory.curate`` with a Prefect task for each partition of each stage.

    ``output`` may hold ``{start}`` and ``{date}``, which stand for when the run was due (``timezone``).
    Where a run of the same content is kept already in such a folder, its summary is the result.
    ``dask`` (``local`` or a scheduler's address) has the tasks of partitions run by workers of Dask.
    """
    forbid_core_dumps()
    job = _job(config, output, workers, timezone, dask)

    def body() -> dict[str, Any]:
        curated = _curated(job, resume)
        if verify:
            check_verified(RunFolder(Path(curated["run"])))
        return curated

    return sealed(job.run.state, body)


@quiet_flow("train")
def train(
    config: str,
    output: str | None = None,
    trainer: str | None = None,
    name: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """``redactory.train`` as one task."""
    forbid_core_dumps()
    job = _job(config, output, None, "UTC")
    asked: dict[str, Any] = {"trainer": trainer, "name": name, "workers": workers}
    changes = {key: value for key, value in asked.items() if value}

    def body() -> dict[str, Any]:
        progress = listener.get()
        trained: dict[str, Any] = as_task(
            job.run.state, "train", lambda: dict(training.train(job.settings, progress=progress, **changes))
        )
        publish_promise(job.name, trained)
        return trained

    return sealed(job.run.state, body)


@quiet_flow("curate-and-train")
def curate_and_train(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """``redactory.run``, with the parameters of ``curate``: its partitions and each later step are tasks."""
    forbid_core_dumps()
    job = _job(config, output, workers, timezone, dask)

    def body() -> dict[str, Any]:
        require_training_packages()
        check_device(job.settings)
        run = RunFolder(Path(_curated(job, resume)["run"]))

        def step(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            done: dict[str, Any] = as_task(run.state, name, work)
            return done

        result = whole.run(job.settings, output=run.root, resume=True, step=step, progress=listener.get())
        publish_promise(job.name, result["model"])
        if verify:
            check_verified(run)
        return result

    return sealed(job.run.state, body)


@quiet_flow("nightly")
def nightly(
    config: str,
    output: str,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """``redactory.nightly`` with a Prefect task for each partition of each stage; ``output`` is the job.

    ``{date}`` in the input's path is the day, in ``timezone``, on which the run was due.  With ``verify`` a
    run is verified before it is judged.  A run that is held fails the flow: somebody has to look.
    """
    forbid_core_dumps()

    def curating(own: Config, **more: Any) -> dict[str, Any]:
        job = Job(config, output, own, dask)
        with job.stage_map() as stage_map:
            summary = dict[str, Any](sealed(job.run.state, curation.curate, own, stage_map=stage_map, **more))
        publish_run(job.name, summary, False)
        if verify:
            check_verified(job.run)
        return summary

    def body() -> dict[str, Any]:
        due = flow_run.scheduled_start_time.astimezone(zone_of(timezone))
        result = plain_nightly(
            config,
            output=output,
            date=due.date().isoformat() if is_dated(load_config(config)) else None,
            workers=workers,
            curating=curating,
            progress=listener.get(),
        )
        held = [Path(night["run"]).name for night in result["nights"] if night["state"] == "held"]
        if held:
            raise CheckFailed(f"{', '.join(held)} is held: redactory release list {output}")
        return result

    return wordless("the scheduled run was at work", body)


def check_verified(run: RunFolder) -> None:
    """Verify a finished run in a task of its own; ``CheckFailed`` where it does not hold."""

    def checks() -> list[str]:
        found = verification.verify(run.root)
        return [check["name"] for check in found["checks"] if not check["ok"]]

    if failed := as_task(run.state, "verify", checks):
        raise CheckFailed(f"{run.root} does not hold: {', '.join(failed)}; see redactory verify {run.root}")


# A run of the same input under the same policies is not made twice.


def _curated(job: Job, resume: bool) -> dict[str, Any]:
    """The summary of the curation: made now, or remembered of a run that is still there.

    Prefect remembers it under a key of the content, and does not look whether the run is still there.
    """
    content = content_of(job.settings)
    # what a run with an index keeps follows from the runs before it, too
    key = None if job.settings.dedup.index else content_key(content, job.template)
    attempts = 0
    remembered: dict[str, Any] = {
        "cache_policy": CacheKeyFnPolicy(cache_key_fn=lambda context, parameters: key) if key else NO_CACHE,
        "persist_result": key is not None,
        "result_serializer": "json",
        # it waits for partitions, which count by themselves
        "tags": [],
        "retry_condition_fn": _unreadable,
    }

    @quiet_task("curation", **remembered)
    def body() -> dict[str, Any]:
        nonlocal attempts
        attempts += 1
        # not in here: with Dask this function goes to workers, as the context of their tasks
        return sealed(job.run.state, _curation, job, resume or attempts > 1)

    summary: dict[str, Any] = body()
    reused = not attempts
    if reused and not still_there(summary, content):
        summary, reused = body.with_options(refresh_cache=True)(), False
    publish_run(job.name, summary, reused)
    return summary


def _curation(job: Job, resume: bool) -> dict[str, Any]:
    with job.stage_map() as stage_map:
        curated = curation.curate(job.settings, resume=resume, stage_map=stage_map, progress=listener.get())
        return dict(curated)


def _unreadable(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Reading the input may fail for a while; a part that fails was tried again on its own."""
    return isinstance(state.data, InputError)


def content_of(settings: Config) -> dict[str, Any]:
    """What the shards of a curation follow from, as it is now, in the manifest's words."""
    service = configured_service()
    return {
        "version": redactory.__version__,
        "configuration": settings.curation_hash(),
        "policies": policy_hashes(settings.detect),
        "inputs": [s.fingerprint() for s in find_sources(settings.input.path, settings.input.format)],
        "key": load_digest_key().fingerprint,
        "encrypted_by": None if service is None else service.name,
        "signed_by": configured_signer(),
    }


def content_key(content: dict[str, Any], place: str) -> str | None:
    """Hex sha256 of the content and of where its runs are kept; None under a key of this process alone.

    ``place`` may hold placeholders: runs of one template stand in for each other, others do not.
    """
    return None if load_digest_key().fresh else hash_of({**content, "place": place})


def still_there(summary: dict[str, Any], content: dict[str, Any]) -> bool:
    """Whether the run that a remembered summary speaks of is whole and of this content, file by file."""
    run = RunFolder(Path(summary["run"]))
    try:
        if not is_finished(run) or broken_files(run):
            return False
        manifest = read_manifest(run)
    except (RedactoryError, OSError):
        return False
    return content == {
        "version": manifest["versions"]["redactory"],
        "configuration": manifest["configuration_hash"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "inputs": [{k: v for k, v in entry.items() if k != "rows"} for entry in manifest["inputs"]],
        "key": manifest["key"]["fingerprint"],
        "encrypted_by": (manifest["encryption"] or {}).get("wrapped_by"),
        "signed_by": manifest.get(SIGNED_BY),
    }


# What Prefect's interface shows of a run: counts, codes, figures and paths.


def publish_run(name: str, summary: dict[str, Any], reused: bool) -> None:
    """The counts of a finished run, and where its report lies; one history for each ``name``."""
    rows = [(kind, summary[kind]) for kind in ("rows", "documents", "rejected", "points", *FATES)]
    for title in ("rejected", "quarantined"):
        rows += [(f"{title}: `{code}`", n) for code, n in sorted(summary[f"{title}_by_reason"].items())]
    note = " (unchanged input: the earlier run stands)" if reused else ""
    table = ["| of | count |", "|---|---:|", *(f"| {what} | {count:,} |" for what, count in rows)]
    create_markdown_artifact("\n".join([f"`{summary['run']}`{note}", "", *table]), key=_key("points", name))
    report = Path(summary["report"]).resolve()
    create_link_artifact(report.as_uri(), link_text=str(report), key=_key("report", name))


def publish_promise(name: str, model: dict[str, Any]) -> None:
    """The figures of the trained model's guarantee, each null with its reason."""
    card = model["guarantee"]
    figures: tuple[str, ...] = (
        "epsilon_confidentiality",
        "epsilon_bayesian",
        "epsilon_substitution",
        "coverage_failure",
    )
    if "epsilon_sound" in card:
        figures = ("epsilon_sound", "epsilon_user_removal")
    lines = ["| figure | value |", "|---|---|"]
    for key in figures:
        value, reason = card.get(key), card.get("reasons", {}).get(key, "not stated")
        lines.append(f"| `{key}` | {f'none: {reason}' if value is None else upwards(value)} |")
    create_markdown_artifact("\n".join(lines), key=_key("guarantee", name))


def _key(what: str, name: str) -> str:
    """Prefect's keys are lower-case letters, digits and dashes."""
    return f"{what}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'run'}"

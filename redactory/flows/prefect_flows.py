"""What Prefect's interface shows of a run: the flow of points, the report, the guarantee.

Counts, codes, figures and paths: no text.
"""

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

from redactory.flows.dask_map import with_dask
from redactory.flows.prefect_tasks import WorkerPool, quiet_task, step_as_task, tasks_over
from redactory.flows.reuse import content_key, content_of, still_there
from redactory.flows.server import place_of, zone_of
from redactory.foundation.errors import (
    CheckFailed,
    InputError,
    RedactoryError,
    SealedError,
    some,
    upwards,
)
from redactory.foundation.files import make_private_folder
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
from redactory.pipelines.nightly import nightly as plain
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.train import check_device
from redactory.pipelines.watermark import is_dated
from redactory.redaction import RunFolder

FATES = (
    ("rows", ("documents", "rejected")),
    ("points", ("public", "private", "duplicate", "quarantined")),
)
PROMISES = (
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "epsilon_substitution",
    "coverage_failure",
)
PROMISES_OF_UNITS = ("epsilon_sound", "epsilon_user_removal")


def publish_run(name: str, summary: dict[str, Any], reused: bool) -> None:
    """The flow of points of a finished run, and where its report lies; one history for each ``name``."""
    lines = ["| of | count | share |", "|---|---:|---:|"]
    for kind, fates in FATES:
        lines.append(f"| **{kind}** | {summary[kind]:,} | |")
        lines += [
            f"| {fate} | {summary[fate]:,} | {_share(summary[fate], summary[kind])} |" for fate in fates
        ]
    for title in ("rejected", "quarantined"):
        reasons = summary[f"{title}_by_reason"]
        lines += [f"| {title}: `{code}` | {count:,} | |" for code, count in sorted(reasons.items())]
    told = f"`{summary['run']}`" + (" (unchanged input: the earlier run stands)" if reused else "")
    create_markdown_artifact(
        "\n".join([told, "", *lines]), key=_key("points", name), description="Flow of points"
    )
    report = Path(summary["report"]).resolve()
    create_link_artifact(
        report.as_uri(), link_text=str(report), key=_key("report", name), description="Report of the run"
    )


def publish_promise(name: str, model: dict[str, Any]) -> None:
    """The figures of the trained model's guarantee, each null with its reason."""
    card = model["guarantee"]
    reasons = card.get("reasons", {})
    keys = PROMISES_OF_UNITS if "epsilon_sound" in card else PROMISES
    lines = ["| figure | value |", "|---|---|"]
    lines += [f"| `{key}` | {_figure(card.get(key), reasons.get(key))} |" for key in keys]
    create_markdown_artifact(
        "\n".join(lines), key=_key("guarantee", name), description="Guarantee of the model"
    )


def _figure(value: float | None, reason: str | None) -> str:
    return f"none: {reason or 'not stated'}" if value is None else upwards(value)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else ""


def _key(what: str, name: str) -> str:
    """Prefect's keys are lower-case letters, digits and dashes."""
    return f"{what}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'run'}"


# One line on standard error for each run that a schedule started: the process goes on, and is watched.


def say_how_it_ended(flow: Any, run: Any, state: Any) -> None:
    """Prefect calls it with a flow, its run and the state that the run ended in.

    A run that a command started says nothing here: the command prints its result.
    """
    if run.deployment_id is None:
        return
    due, asked = run.expected_start_time, run.parameters
    result = state.result(raise_on_failure=False)
    if state.is_completed():
        place = place_of(asked["output"], due, asked["timezone"])
        told = _nights(result) if "nights" in result else _result(result, place)
    else:
        # only messages of our own are known to hold no text
        told = f"{state.name.lower()}: {result}" if isinstance(result, RedactoryError) else state.name.lower()
    print(
        f"{due:%Y-%m-%dT%H:%M:%SZ} {flow.name} {Path(asked['config']).stem}: {told}",
        file=sys.stderr,
        flush=True,
    )


def _result(result: dict[str, Any], place: str) -> str:
    if result.get("run", place) != place:
        return f"unchanged input, the earlier run stands: {result['run']}"
    fates = ", ".join(
        f"{result[fate]:,} {fate}" for fate in ("public", "private", "duplicate", "quarantined")
    )
    return f"{some(result['rows'], 'row')}, {some(result['points'], 'point')} ({fates}): {place}"


def _nights(result: dict[str, Any]) -> str:
    """What became of each night; a run that was held has ended the flow by then."""
    told = [
        night["state"] if night["run"] is None else f"{Path(night['run']).name} {night['state']}"
        for night in result["nights"]
    ]
    return f"{', '.join(told)}: {result['job']}"


# Prefect flows around the plain functions.


listener: ContextVar[Progress] = ContextVar("listener", default=silent)
"""Who hears of progress in this process; no parameter, since Prefect stores parameters."""


@dataclass(frozen=True)
class Asked:
    """What a flow was asked for: the parameters that Prefect stores, and what they come to here and now."""

    config: str
    template: str
    settings: Config
    resume: bool
    dask: str | None = None

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(Path(self.settings.output))

    @property
    def name(self) -> str:
        """What the histories of this job are kept under in Prefect's interface."""
        return Path(self.config).stem


def quiet_flow(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Prefect's decorator with what every flow of ours has."""
    ended: list[Any] = [say_how_it_ended]
    return flow(
        name=name,
        persist_result=False,
        log_prints=False,
        validate_parameters=False,
        on_completion=ended,
        on_failure=ended,
        on_crashed=ended,
        on_cancellation=ended,
    )


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
    asked = _asked(config, output, resume, workers, timezone, dask)
    return sealed(asked.run.state, _curate, asked, verify)


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
    asked = _asked(config, output, True, None, "UTC")
    changes = {"trainer": trainer, "name": name, "workers": workers}
    return sealed(asked.run.state, _train, asked, {key: value for key, value in changes.items() if value})


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
    asked = _asked(config, output, resume, workers, timezone, dask)
    return sealed(asked.run.state, _curate_and_train, asked, verify)


def _asked(
    config: str,
    output: str | None,
    resume: bool,
    workers: int | None,
    timezone: str,
    dask: str | None = None,
) -> Asked:
    unexpected = None
    try:
        settings = load_config(config, workers=workers)
        template = output or str(settings.output)
        place = place_of(template, flow_run.scheduled_start_time, timezone)
        return Asked(config, template, load_config(settings, output=Path(place)), resume, dask)
    except RedactoryError:
        raise
    except Exception as error:
        # there is no run folder yet to seal it in; a configuration holds lists of names
        unexpected = type(error).__name__
    raise SealedError(
        f"unexpected {unexpected} while the configuration was read: redactory describe {config}"
    )


def _curate(asked: Asked, verify: bool) -> dict[str, Any]:
    curated = _curated(asked)
    if verify:
        check_verified(RunFolder(Path(curated["run"])))
    return curated


def _train(asked: Asked, changes: dict[str, Any]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        return dict(training.train(asked.settings, progress=listener.get(), **changes))

    trained = step_as_task(asked.run.state)("train", work)
    publish_promise(asked.name, trained)
    return trained


def _curate_and_train(asked: Asked, verify: bool) -> dict[str, Any]:
    require_training_packages()
    check_device(asked.settings)
    run = RunFolder(Path(_curated(asked)["run"]))
    result = whole.run(
        asked.settings, output=run.root, resume=True, step=step_as_task(run.state), progress=listener.get()
    )
    publish_promise(asked.name, result["model"])
    if verify:
        check_verified(run)
    return result


def _curated(asked: Asked) -> dict[str, Any]:
    """The summary of the curation: made now, or remembered of a run that is still there."""
    content = content_of(asked.settings)
    # what a run with an index keeps follows from the runs before it, too
    key = None if asked.settings.dedup.index else content_key(content, asked.template)
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
        return sealed(asked.run.state, _curation, asked, asked.resume or attempts > 1)

    summary: dict[str, Any] = body()
    reused = not attempts
    if reused and not still_there(summary, content):
        summary, reused = body.with_options(refresh_cache=True)(), False
    publish_run(asked.name, summary, reused)
    return summary


def _curation(asked: Asked, resume: bool) -> dict[str, Any]:
    with task_map(asked) as stage_map:
        curated = curation.curate(asked.settings, resume=resume, stage_map=stage_map, progress=listener.get())
        return dict(curated)


@contextmanager
def task_map(asked: Asked) -> Iterator[StageMap]:
    """The map whose parts are tasks: in processes of this machine, or on workers of Dask."""
    if asked.dask is None:
        with WorkerPool(asked.settings.workers) as pool:
            yield tasks_over(pool, asked.run.state)
        return
    on_dask, tasks_on = with_dask(asked.dask)
    make_private_folder(asked.run.root)
    make_private_folder(asked.run.state)
    with on_dask(asked.dask, asked.settings, asked.run.cluster) as workers:
        yield tasks_on(workers)


def _unreadable(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Reading the input may fail for a while; a part that fails was tried again on its own."""
    return isinstance(state.data, InputError)


def check_verified(run: RunFolder) -> None:
    """Verify a finished run in a task of its own; ``CheckFailed`` where it does not hold."""

    @quiet_task("verify")
    def body() -> list[str]:
        found = sealed(run.state, verification.verify, run.root)
        return [check["name"] for check in found["checks"] if not check["ok"]]

    failed: list[str] = body()
    if failed:
        raise CheckFailed(f"{run.root} does not hold: {', '.join(failed)}; see redactory verify {run.root}")


# The nightly job as a Prefect flow: ``redactory.nightly``, whose curations are tasks.


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
    return wordless("the night was at work", _nightly, config, output, workers, timezone, verify, dask)


def _nightly(
    config: str, output: str, workers: int | None, timezone: str, verify: bool, dask: str | None
) -> dict[str, Any]:
    settings = load_config(config)
    due = flow_run.scheduled_start_time.astimezone(zone_of(timezone))
    name = Path(config).stem

    def curating(own: Config, **more: Any) -> dict[str, Any]:
        asked = Asked(config, output, own, True, dask)
        with task_map(asked) as stage_map:
            summary = dict[str, Any](
                sealed(asked.run.state, curation.curate, own, stage_map=stage_map, **more)
            )
        publish_run(name, summary, False)
        if verify:
            check_verified(asked.run)
        return summary

    result = plain(
        config,
        output=output,
        date=due.date().isoformat() if is_dated(settings) else None,
        workers=workers,
        curating=curating,
        progress=listener.get(),
    )
    held = [Path(night["run"]).name for night in result["nights"] if night["state"] == "held"]
    if held:
        raise CheckFailed(f"{', '.join(held)} is held: redactory release list {output}")
    return result

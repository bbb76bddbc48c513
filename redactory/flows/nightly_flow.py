"""The nightly job as a Prefect flow: ``redactory.nightly``, whose curations are tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from redactory.flows.artifacts import publish_run
from redactory.flows.prefect_flows import Asked, check_verified, listener, quiet_flow, task_map
from redactory.flows.run_place import zone_of
from redactory.foundation.core_dumps import forbid_core_dumps
from redactory.foundation.errors import CheckFailed
from redactory.pipelines import curate as curation
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config
from redactory.pipelines.nightly.dates import is_dated
from redactory.pipelines.nightly.night import nightly as plain
from redactory.pipelines.sealed import sealed, wordless


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

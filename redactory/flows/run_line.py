"""One line on standard error for each run that a schedule started: the process goes on, and is watched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from redactory.flows.run_place import place_of
from redactory.foundation.errors import RedactoryError
from redactory.foundation.wording import some


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

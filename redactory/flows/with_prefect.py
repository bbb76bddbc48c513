"""Starting a flow from the command line, with Prefect's home in the run's private area."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from redactory.flows.environment import settle_prefect
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress
from redactory.pipelines.loading import load_config
from redactory.pipelines.output_folder import check_output
from redactory.redaction import RunFolder


def start_flow(
    flow: str, config: str, output: str | Path | None, progress: Progress, /, **settings: Any
) -> dict[str, Any]:
    """Run the flow ``flow`` of :mod:`redactory.flows.prefect_flows` here and return its result."""
    loaded = load_config(config, output=output)
    run = RunFolder(Path(loaded.output))
    if flow != "train":
        check_output(run, resume=bool(settings.get("resume")))
    settle_prefect(run.state / "prefect")
    prefect_flows = our_flows()
    token = prefect_flows.listener.set(progress)
    try:
        result: dict[str, Any] = getattr(prefect_flows, flow)(config, str(run.root), **settings)
        return result
    finally:
        prefect_flows.listener.reset(token)


def flow_at(entrypoint: str) -> Any:
    """The flow of that dotted name; as :func:`our_flows`."""
    our_flows()
    module, _, function = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), function)


def our_flows() -> ModuleType:
    """:mod:`redactory.flows.prefect_flows`; Prefect reads its settings here, so they are settled before."""
    try:
        from redactory.flows import prefect_flows
    except ImportError:
        raise ConfigurationError("this needs Prefect: pip install 'redactory[flows]'") from None
    return prefect_flows

"""Leaks put in on purpose: each hands a text to Prefect in a way that our flows must never have.

``leak:KIND,KIND=TEXT`` as what fails in a step; the gap in TEXT becomes the kind.  The step then succeeds,
unless one of them raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from redactory.flows import prefect_flows

PREFIX = "leak:"


def begin(what: str) -> Callable[[], None]:
    """Put the leaks in; gives back what takes them out."""
    kinds, _, text = what.removeprefix(PREFIX).partition("=")
    patch = pytest.MonkeyPatch()
    for kind in kinds.split(","):
        LEAKS[kind](patch, text.format(kind))
    return patch.undo


def _log(patch: pytest.MonkeyPatch, text: str) -> None:
    real = prefect_flows.curation.curate

    def talks(*args: Any, **settings: Any) -> Any:
        get_run_logger().info("curating %s", text)
        return real(*args, **settings)

    patch.setattr(prefect_flows.curation, "curate", talks)


def _exception(patch: pytest.MonkeyPatch, text: str) -> None:
    def fails(*args: Any, **settings: Any) -> Any:
        raise ValueError(f"cannot curate {text}")

    def unsealed(state: Any, work: Any, *args: Any, **settings: Any) -> Any:
        return work(*args, **settings)

    patch.setattr(prefect_flows.curation, "curate", fails)
    patch.setattr(prefect_flows, "run_with_sealed_traceback", unsealed)


def _artifact(patch: pytest.MonkeyPatch, text: str) -> None:
    def publish(name: str, *_: Any) -> None:
        create_markdown_artifact(f"| a row |\n|---|\n| {text} |", key="sample")

    patch.setattr(prefect_flows, "publish_run", publish)


def _result(patch: pytest.MonkeyPatch, text: str) -> None:
    real = prefect_flows.curation.curate

    def quotes(*args: Any, **settings: Any) -> Any:
        return {**real(*args, **settings), "sample": text}

    patch.setattr(prefect_flows.curation, "curate", quotes)
    # what a flow gives is kept nowhere, unless it asks for that
    patch.setattr(prefect_flows, "curate", prefect_flows.curate.with_options(persist_result=True))


def _run_name(patch: pytest.MonkeyPatch, text: str) -> None:
    patch.setattr(prefect_flows, "curate", prefect_flows.curate.with_options(flow_run_name=text))


LEAKS: dict[str, Callable[[pytest.MonkeyPatch, str], None]] = {
    "log": _log,
    "exception": _exception,
    "artifact": _artifact,
    "result": _result,
    "run name": _run_name,
}

"""With a Prefect server: what is tried again, and what the server's API shows of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect_dask import DaskTaskRunner

import redactory
from redactory.flows import prefect_flows, prefect_tasks
from redactory.foundation.errors import CheckFailed, SealedError
from redactory.pipelines.curation.stages import examples as stages
from redactory.redaction import RunFolder, list_parts
from tests.child_processes import start_child_process
from tests.conftest import KEY
from tests.flows.conftest import QUIET
from tests.flows.leak_search import Search
from tests.flows.local_server import COMMAND, Server
from tests.flows.small_job import NAME, small_job

pytestmark = pytest.mark.slow

WORDS = "words of the corpus"


class Unsteady:
    """``segment_documents``, which fails in partition 1 while failures are left."""

    __name__ = "segment_documents"
    real, failures = staticmethod(stages.segment_documents), 0

    def __call__(self, job: Any, partition: int) -> Any:
        if partition == 1 and self.failures:
            self.failures -= 1
            raise OSError(f"no space left beside the {WORDS}")
        return self.real(job, partition)

    def __reduce__(self) -> Any:
        # workers are threads of this process
        return _the_unsteady, ()


UNSTEADY = Unsteady()


def _the_unsteady() -> Unsteady:
    return UNSTEADY


@pytest.fixture
def unsteady(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unsteady]:
    """Flows of this process, whose workers are its threads."""
    threads = {**QUIET, "n_workers": 2, "processes": False}
    monkeypatch.setattr(prefect_tasks, "_make_task_runner", lambda *_: DaskTaskRunner(cluster_kwargs=threads))
    monkeypatch.setattr(prefect_tasks, "require_secure_address", lambda *_: None)
    monkeypatch.setattr(prefect_tasks, "RETRY_SECONDS", [0.1, 0.1])
    monkeypatch.setattr(stages, "segment_documents", UNSTEADY)
    with server.in_this_process():
        yield UNSTEADY


def _run(config: Path) -> dict[str, Any]:
    template = str(config.parent / "runs" / "{start}")
    result: dict[str, Any] = prefect_flows.curate(str(config), template, resume=True, workers=2, verify=True)
    return result


def _data(run: str | Path) -> list[bytes]:
    return [part.read_bytes() for folder in RunFolder(Path(run)).data_folders for part in list_parts(folder)]


def test_an_unsteady_part_is_tried_again_and_costs_no_byte(server: Server, unsteady: Unsteady, tmp_path: Path) -> None:
    config = small_job(tmp_path, "steady")
    unsteady.failures = 2
    first = _run(config)
    assert first["rows"] == 9
    assert unsteady.failures == 0
    redactory.curate(config, output=tmp_path / "plain")
    assert _data(first["run"]) == _data(tmp_path / "plain")
    [flow] = server.flow_runs(config)
    assert flow["state_type"] == "COMPLETED"
    shown = _artifacts(server, flow)["examples-steady"]
    assert all(f"| {name} | {first[name]} |" in shown for name in ("rows", "examples", "public", "private"))
    assert Path(first["report"]).as_uri() in shown
    assert NAME not in shown


def _artifacts(server: Server, flow: dict[str, Any]) -> dict[str, str]:
    found = server.ask("/artifacts/filter", {"flow_runs": {"id": {"any_": [flow["id"]]}}})
    return {artifact["key"]: artifact["data"] for artifact in found}


def test_a_part_that_keeps_failing_fails_the_run_without_a_word(
    server: Server, unsteady: Unsteady, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_job(tmp_path, "hopeless")
    unsteady.failures = 4
    with pytest.raises(SealedError, match="the traceback is sealed"):
        _run(config)
    # three tries
    assert unsteady.failures == 1
    unsteady.failures = 0
    [flow] = server.flow_runs(config)
    assert flow["state_type"] == "FAILED"
    assert WORDS not in json.dumps([flow, server.task_runs(flow)])
    assert WORDS not in "".join(capfd.readouterr())


def test_a_refusal_is_not_tried_again(server: Server, unsteady: Unsteady, tmp_path: Path) -> None:
    config = small_job(tmp_path, "refused")
    with config.with_name("rows.jsonl").open("a") as file:
        file.write("broken\n" * 40)
    with pytest.raises(CheckFailed, match="max_rejected_share"):
        _run(config)
    [flow] = server.flow_runs(config)
    assert {run["run_count"] for run in server.task_runs(flow)} <= {1}


def test_a_served_job_runs_until_it_is_stopped(server: Server, tmp_path: Path) -> None:
    config = small_job(tmp_path, "served")
    command = [*COMMAND, "schedule", str(config), "--json"]
    options: dict[str, Any] = {"env": {**server.environment, "REDACTORY_KEY": KEY}, "cwd": tmp_path}
    with start_child_process(command, stdout=subprocess.PIPE, **options) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["server"] == server.url
        assert server.run_deployment("served")["state_type"] == "COMPLETED"
        process.terminate()
        assert process.wait(60) in (0, 143)
    [run] = (tmp_path / "runs").iterdir()
    redactory.curate(config, output=tmp_path / "plain")
    assert _data(run) == _data(tmp_path / "plain")


# That a leak would be found.


def _fail(text: str) -> None:
    raise ValueError(text)


LEAKS: dict[str, Callable[[str], object]] = {
    "log": lambda text: get_run_logger().info("curating %s", text),
    "artifact": lambda text: create_markdown_artifact(f"| {text} |", key="sample"),
    "exception": _fail,
}


@pytest.mark.parametrize("kinds", [("log", "artifact", "result", "run name"), ("exception",)])
def test_leaks_that_are_put_in_on_purpose_are_found(
    server: Server, unsteady: Unsteady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    texts = {kind: f"Wilhelmina {kind} Featherstone" for kind in kinds}
    real = prefect_flows.curation.curate

    def talks(*arguments: Any, **settings: Any) -> Any:
        for kind in LEAKS.keys() & texts.keys():
            LEAKS[kind](texts[kind])
        return {**real(*arguments, **settings), "sample": texts["result"]}

    monkeypatch.setattr(prefect_flows.curation, "curate", talks)
    monkeypatch.setattr(prefect_flows, "run_with_sealed_traceback", lambda state, work, *rest: work(*rest))
    leaky = prefect_flows.curate.with_options(persist_result=True, flow_run_name=texts.get("run name"))
    monkeypatch.setattr(prefect_flows, "curate", leaky)
    talking = {PREFECT_LOGGING_TO_API_ENABLED: True, PREFECT_LOCAL_STORAGE_PATH: server.home / "storage"}
    with temporary_settings(talking), suppress(ValueError):
        _run(small_job(tmp_path, "leaky"))
    search, missing = Search(texts.values()), set(texts.values())
    for _ in range(60):
        missing -= {value for hits in search.below(server.home).values() for value, _ in hits}
        if not missing:
            return
        time.sleep(0.5)
    raise AssertionError(missing)

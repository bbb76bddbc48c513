"""With a Prefect server: what is tried again, what is not run twice, and what the server's API shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_dask import DaskTaskRunner

import redactory
from redactory.flows import prefect_flows, prefect_tasks
from redactory.foundation.errors import CheckFailed, SealedError
from redactory.pipelines.curation.stages import examples as stages
from redactory.redaction import RunFolder, list_parts
from tests.flows.conftest import QUIET
from tests.flows.local_server import Server
from tests.flows.small_job import NAME, small_job

pytestmark = pytest.mark.slow

WORDS = "words of the corpus"


class Unsteady:
    """``segment_documents``, which fails in partition 1 while failures are left."""

    __name__ = "segment_documents"
    real, failures = staticmethod(stages.segment_documents), 0

    def __call__(self, job: Any, partitions: int, partition: int) -> Any:
        if partition == 1 and self.failures:
            self.failures -= 1
            raise OSError(f"no space left beside the {WORDS}")
        return self.real(job, partitions, partition)

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

    # unchanged input is not run again, unless the run is not whole; a new row is a new run
    assert _run(config)["run"] == first["run"]
    assert "unchanged input" in _artifacts(server, server.flow_runs(config)[1])["examples-steady"]
    (Path(first["run"]) / "public" / "part-00000.parquet").unlink()
    again = _run(config)
    assert again["run"] != first["run"]
    with config.with_name("rows.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "A new row."}\n')
    assert _run(config)["rows"] == 10


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

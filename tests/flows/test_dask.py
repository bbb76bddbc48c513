"""The map over Dask workers, on a cluster of two processes: the bytes of one process, whatever happens."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Security

from redactory.flows import prefect_tasks as module
from redactory.flows.prefect_tasks import RemoteTask, WorkerRequirements, find_worker_problem, open_stage_map
from redactory.flows.server import check_dask_address
from redactory.foundation.errors import ConfigurationError, RunStateError, SealedError
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.stage_context import StageMap, Task, get_task_name, map_serially
from redactory.redaction import RunFolder
from tests.flows.conftest import QUIET
from tests.flows.dask_cases import Killer, Quoting
from tests.flows.local_server import Server
from tests.pipelines.support import ALLOW_UNCOVERED, DigitDetector, read_data_bytes, write_rows

ENCRYPTION_KEY = "an encryption key of the tests, of 32 bytes or more"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """30 documents in 4 partitions, with repeated and nearly repeated lines."""
    texts = ["my number is {n}\nhello there all of you", "call {n} now or never again", "hello there all of us"]
    rows = [{"id": f"d{i}", "user_id": f"u{i % 5}", "text": texts[i % 3].format(n=i)} for i in range(30)]
    return {
        "input": str(write_rows(tmp_path_factory.mktemp("corpus") / "rows.jsonl", rows)),
        "output": str(tmp_path_factory.mktemp("runs") / "unused"),
        "segment": {"mode": "line"},
        "partition": {"documents": 8},
        "detect": {"tagger": None, "patterns": None, "conservative": {"rules": []}},
        "release": ALLOW_UNCOVERED,
    }


@pytest.fixture(scope="module")
def plain(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every data file of the run of one process."""
    run = tmp_path_factory.mktemp("plain") / "run"
    curate(config, output=run, detector=DigitDetector())
    return read_data_bytes(run)


@pytest.fixture(scope="module")
def stage_map(
    server: Server, cluster: LocalCluster, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StageMap]:
    run = RunFolder(tmp_path_factory.mktemp("place") / "run")
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "RETRY_SECONDS", [0.1])
    with server.in_this_process(), open_stage_map(cluster.scheduler_address, load_config(config), run) as opened:
        yield opened
    patch.undo()
    assert not run.cluster.exists()


def test_two_workers_write_the_bytes_of_one_process(
    stage_map: StageMap, config: Any, plain: Any, tmp_path: Path
) -> None:
    curate(config, output=tmp_path / "run", detector=DigitDetector(), stage_map=stage_map)
    assert read_data_bytes(tmp_path / "run") == plain


def test_a_relative_folder_is_refused(
    stage_map: StageMap, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunStateError, match="needs an absolute path"):
        curate(config, output="run", detector=DigitDetector(), stage_map=stage_map)


@pytest.mark.slow
def test_lost_workers_cost_no_byte_and_a_part_that_kills_all_ends_the_run(
    stage_map: StageMap, config: Any, plain: Any, tmp_path: Path
) -> None:
    once, always = tmp_path / "once", tmp_path / "always"
    once.mkdir()
    always.mkdir()
    curate(config, output=tmp_path / "run", detector=Killer(once, 1), stage_map=stage_map)
    assert len(list(once.iterdir())) == 1
    assert read_data_bytes(tmp_path / "run") == plain
    run = tmp_path / "killed"
    with pytest.raises(SealedError, match=r"detect_texts: every worker .* was lost .killed, or out of memory"):
        curate(config, output=run, detector=Killer(always, 2**30), stage_map=stage_map)
    curate(config, output=run, resume=True, detector=DigitDetector())
    assert read_data_bytes(run) == plain


def test_an_error_is_sealed_where_it_happened(
    stage_map: StageMap, cluster: LocalCluster, config: Any, tmp_path: Path
) -> None:
    with pytest.raises(SealedError) as raised:
        curate(config, output=tmp_path / "run", detector=Quoting(), stage_map=stage_map)
    assert "unexpected ValueError; the traceback is sealed in state/traceback-" in str(raised.value)
    assert "number" not in str(raised.value)
    assert raised.value.__context__ is None
    assert [p for p in (tmp_path / "run" / "state").glob("traceback-*") if "number is" in p.read_text()]
    # nor did the scheduler or a worker hear of it
    with Client(cluster, set_as_default=False) as client:
        logs = {**client.get_worker_logs(), "scheduler": client.get_scheduler_logs()}
    assert "my number is" not in str(logs)


def test_a_task_in_transit_shows_no_key_and_no_list(tmp_path: Path) -> None:
    requirements = WorkerRequirements(tmp_path, "a list of names", ())
    assert "names" not in repr(RemoteTask(RunFolder(tmp_path), tmp_path, requirements, b"a list of names"))


@pytest.mark.parametrize("lost", [True, False])
def test_a_worker_given_up_for_lost_that_goes_on_changes_nothing(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(module, "_find_local_worker_problem", lambda requirements: None)
    run, saved, late = RunFolder(tmp_path / "run"), tmp_path / "saved", list[Task]()

    def noting(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        if get_task_name(task) == "detect_texts":
            shutil.copytree(run.work, saved)
            late.append(task)
        return map_serially(task, numbers)

    curate(config, output=run.root, detector=DigitDetector(), stage_map=noting)
    # everything that the part reads is there once more: nothing but the fence stops it
    shutil.copytree(saved, run.work)
    before = _files(run.root)
    staging = tmp_path / "run" / "staging"
    remote = RemoteTask(run, staging, WorkerRequirements(tmp_path, "", ()), pickle.dumps(late[0]))
    if lost:
        with pytest.raises(RunStateError, match="after its stage had ended"):
            module.run_remote_part(0, remote)
        assert _files(run.root) == before
    else:
        staging.mkdir()
        assert module.run_remote_part(0, remote)[1].stage == "detect"
        assert _files(run.root) != before


def _files(run: Path) -> dict[str, bytes]:
    return {str(p): b"" if p.is_dir() else p.read_bytes() for p in run.rglob("*")}


# Who may take part.


def _worker(address: str = "tcp://127.0.0.1:1", threads: int = 1) -> Any:
    return SimpleNamespace(address=address, state=SimpleNamespace(nthreads=threads))


@pytest.fixture
def requirements(config: Any, tmp_path: Path) -> WorkerRequirements:
    detect = load_config(config).detect.model_dump_json()
    return WorkerRequirements(tmp_path, detect, tuple(module._collect_environment_facts(detect).items()))


def test_a_worker_without_what_the_run_needs_is_refused(
    requirements: WorkerRequirements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_worker_problem(requirements, _worker()) is None
    elsewhere = dataclasses.replace(requirements, folder=tmp_path / "not here")
    other_models = dataclasses.replace(requirements, facts=(("the strict policy", "of other models"),))
    for needed, worker, says in (
        (requirements, _worker("tcp://10.0.0.1:1"), "write tls://HOST:PORT"),
        (requirements, _worker(threads=2), "--nthreads 1"),
        (elsewhere, _worker(), "must share the run folder"),
        (other_models, _worker(), "has the strict policy .* started with of other models: give it the same"),
    ):
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(find_worker_problem(needed, worker))
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    assert "has encryption key" in str(find_worker_problem(requirements, _worker()))
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    monkeypatch.setattr(module, "collect_versions", lambda: {"packages": {"spacy": "99.0"}})
    assert "has " in str(find_worker_problem(requirements, _worker()))


def test_a_worker_that_joined_later_is_checked_before_its_first_part(
    requirements: WorkerRequirements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "get_worker", lambda: _worker(threads=2))
    with pytest.raises(ConfigurationError, match="several threads"):
        module.run_remote_part(0, RemoteTask(RunFolder(tmp_path), tmp_path, requirements, b"is not unpacked"))


def test_every_worker_is_checked_before_the_first_part(
    cluster: LocalCluster, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "collect_versions", lambda: {"packages": {"spacy": "99.0"}})
    run = RunFolder(tmp_path / "run")
    with (
        pytest.raises(ConfigurationError, match=r"the worker on .* has spacy 3.*started with 99\.0"),
        open_stage_map(cluster.scheduler_address, load_config(config), run),
    ):
        pass
    assert not run.cluster.exists()


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("tcp://10.1.2.3:8786", "write tls://HOST:PORT"),
        ("tcp://scheduler:8786", "write tls://HOST:PORT"),
        ("tcp://0.0.0.0:8786", "write tls://HOST:PORT"),
        ("scheduler:8786", "is not a scheduler address"),
        ("tls://scheduler", "is not a scheduler address"),
        *((safe, None) for safe in ("local", "tcp://127.0.0.1:1", "tcp://[::1]:1", "tls://scheduler:8786")),
    ],
)
def test_another_machine_is_spoken_to_with_tls_alone(address: str, refusal: str | None) -> None:
    if refusal is None:
        check_dask_address(address)
        return
    with pytest.raises(ConfigurationError, match=refusal):
        check_dask_address(address)


@pytest.mark.slow
def test_with_certificates_and_not_without(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 2.0)
    run, settings, security = RunFolder(tmp_path / "run"), load_config(config), Security.temporary()
    certificates = {}
    for key in ("ca_file", "client_cert", "client_key"):
        file = tmp_path / key
        file.write_text(getattr(security, f"tls_{key}"))
        certificates["distributed.comm.tls." + key.replace("client_", "client.").replace("_", "-")] = str(file)
    with LocalCluster(n_workers=1, security=security, processes=False, **QUIET) as running:
        address = running.scheduler_address
        for wrong in (address, "tcp://127.0.0.1:9"):
            with pytest.raises(ConfigurationError, match="no usable scheduler"), open_stage_map(wrong, settings, run):
                pass
        with dask.config.set(certificates), open_stage_map(address, settings, run):
            assert run.cluster.exists()
    assert not run.cluster.exists()

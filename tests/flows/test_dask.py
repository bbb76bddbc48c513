"""A run over Dask, on a real cluster of two worker processes: the bytes of one process, whatever happens."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import dask
import pytest
from distributed import Client, LocalCluster, Security

from redactory.flows import dask_map as module
from redactory.flows.dask_map import (
    DaskWorkers,
    EnvironmentFact,
    check_dask_address,
    start_dask_workers,
    wait_for_report,
    wrap_with_dask,
)
from redactory.foundation.errors import ConfigurationError, RunStateError, SealedError
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.share import fetch
from redactory.pipelines.curation.stage_context import StageMap, Task, get_task_name, map_serially, run_timed_task
from redactory.pipelines.operations.verify import verify
from redactory.redaction import RunFolder
from tests.flows.conftest import QUIET
from tests.flows.dask_cases import Killer, Quoting, Waiter
from tests.flows.local_server import Server
from tests.flows.small_job import small_job
from tests.pipelines.leaving import BUCKET, s3_server
from tests.pipelines.support import ALLOW_UNCOVERED, DigitDetector, read_data_bytes, write_rows

SETTINGS: dict[str, Any] = {
    "segment": {"mode": "line"},
    "partition": {"documents": 8},
    "detect": {"tagger": None, "patterns": None, "conservative": {"rules": []}},
    "release": ALLOW_UNCOVERED,
}
HERE: dict[str, Any] = {"processes": False}
"""A worker in this process, where it is not about processes."""
ENCRYPTION_KEY = "an encryption key of the tests, of 32 bytes or more"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """30 documents in 4 partitions, with repeated and nearly repeated lines."""
    texts = ["my number is {n}\nhello there all of you", "call {n} now or never again", "hello there all of us"]
    rows = [{"id": f"d{i}", "user_id": f"u{i % 5}", "text": texts[i % 3].format(n=i)} for i in range(30)]
    return {
        "input": str(write_rows(tmp_path_factory.mktemp("corpus") / "rows.jsonl", rows)),
        "output": str(tmp_path_factory.mktemp("runs") / "unused"),
        **SETTINGS,
    }


@pytest.fixture(scope="module")
def plain(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every data file of the run of one process."""
    run = tmp_path_factory.mktemp("plain") / "run"
    curate(config, output=run, detector=DigitDetector())
    return read_data_bytes(run)


@pytest.fixture(scope="module")
def workers(
    somebodys: LocalCluster, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaskWorkers]:
    run = RunFolder(tmp_path_factory.mktemp("place") / "run")
    with start_dask_workers(somebodys.scheduler_address, load_config(config), run) as looked_at:
        yield looked_at
    assert not run.cluster.exists()


def _backwards(inner: StageMap) -> StageMap:
    return lambda task, numbers: inner(task, numbers[::-1])


def test_two_workers_write_the_bytes_of_one_process(
    workers: DaskWorkers, config: Any, plain: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    # workers are at work elsewhere, and get what this process means by a relative path
    monkeypatch.chdir(tmp_path)
    curate(config, output="run", detector=DigitDetector(), stage_map=workers)
    assert read_data_bytes(tmp_path / "run") == plain
    assert not RunFolder(tmp_path / "run").staging.exists()
    assert verify("run")["ok"]


def test_neither_order_nor_a_worker_that_is_killed_changes_a_byte(
    workers: DaskWorkers, config: Any, plain: Any, tmp_path: Path
) -> None:
    (tmp_path / "marks").mkdir()
    killer = Killer(tmp_path / "marks", 1)
    curate(config, output=tmp_path / "run", detector=killer, stage_map=_backwards(workers))
    assert len(list(killer.marks.iterdir())) == 1
    assert read_data_bytes(tmp_path / "run") == plain


@pytest.mark.slow
def test_a_part_that_kills_every_worker_ends_the_run_which_resumes(
    workers: DaskWorkers, config: Any, plain: Any, tmp_path: Path
) -> None:
    (tmp_path / "marks").mkdir()
    detector = Killer(tmp_path / "marks", 2**30)
    with pytest.raises(SealedError, match=r"detect_texts.*worker.* was lost .killed, or out of memory"):
        curate(config, output=tmp_path / "run", detector=detector, stage_map=workers)
    workers.client.wait_for_workers(2)
    curate(config, output=tmp_path / "run", resume=True, detector=DigitDetector())
    assert read_data_bytes(tmp_path / "run") == plain


@pytest.mark.slow
def test_partitions_are_tasks_on_workers(server: Server, somebodys: LocalCluster, tmp_path: Path) -> None:
    job, run = small_job(tmp_path, "spread"), tmp_path / "run"
    asked = ("curate", job, "--prefect", "--dask", somebodys.scheduler_address, "--out", run)
    told = server.redactory(*asked, cwd=tmp_path)
    curate(job, output=tmp_path / "plain")
    assert read_data_bytes(run) == read_data_bytes(tmp_path / "plain")
    assert not RunFolder(run).cluster.exists()
    runs = server.ask("/flow_runs/filter", {"sort": "START_TIME_DESC"})
    [flow] = [found for found in runs if found["parameters"].get("config") == str(job)]
    assert flow["parameters"]["dask"] == somebodys.scheduler_address
    tasks = server.tasks(flow, "write_shards-2")
    assert all(tasks[f"{name}-{n}"]["run_count"] == 1 for name in ("detect_texts", "write_shards") for n in range(3))
    assert told["rows"] == 9


def test_an_error_is_sealed_where_it_happened(workers: DaskWorkers, config: Any, tmp_path: Path) -> None:
    with pytest.raises(SealedError) as told:
        curate(config, output=tmp_path / "run", detector=Quoting(), stage_map=workers)
    assert "unexpected ValueError; the traceback is sealed in state/traceback-" in str(told.value)
    assert "number" not in str(told.value)
    assert [p for p in (tmp_path / "run" / "state").glob("traceback-*") if "number is" in p.read_text()]
    # nor did the scheduler or a worker hear of it
    logs = {**workers.client.get_worker_logs(), "scheduler": workers.client.get_scheduler_logs()}
    assert "my number is" not in str(logs)


# ------------------------------------------------------------------ a worker that was given up for lost


def _late(workers: DaskWorkers, fenced: bool, config: Any, folder: Path) -> tuple[Any, dict[str, bytes], Path]:
    """A part of detection that ends after its run has ended; its outcome, and the run's files before that."""
    run, waiter = folder / "run", Waiter(folder / "here", folder / "go")
    late: list[Any] = []

    def given_up(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        if get_task_name(task) == "detect_texts":
            job, *fixed = task.args  # type: ignore[attr-defined]
            slow = functools.partial(
                task.func,  # type: ignore[attr-defined]
                dataclasses.replace(job, detector=waiter),
                *fixed,
            )
            with workers.open_submitter(slow) as send:
                late.append(send(0) if fenced else workers.client.submit(run_timed_task, slow, 0, pure=False))
                _until(waiter.here.exists)
        return map_serially(task, numbers)

    curate(config, output=run, detector=DigitDetector(), stage_map=given_up)
    before = _files(run)
    waiter.go.touch()
    return late[0], before, run


def _files(run: Path) -> dict[str, bytes]:
    return {str(p): b"" if p.is_dir() else p.read_bytes() for p in run.rglob("*")}


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_given_up_for_lost_that_goes_on_changes_nothing(
    workers: DaskWorkers, config: Any, tmp_path: Path
) -> None:
    future, before, run = _late(workers, True, config, tmp_path)
    with pytest.raises(RunStateError, match="after its stage had ended"):
        wait_for_report(future)
    assert _files(run) == before


def test_without_the_fence_it_would(workers: DaskWorkers, config: Any, tmp_path: Path) -> None:
    future, before, run = _late(workers, False, config, tmp_path)
    assert future.result().stage == "detect"
    assert _files(run) != before


# ------------------------------------------------------------------ who may take part


def _refused(address: str, config: Any, folder: Path, match: str) -> None:
    run = RunFolder(folder)
    with pytest.raises(ConfigurationError, match=match), start_dask_workers(address, load_config(config), run):
        pass
    assert not run.cluster.exists()


def test_other_versions_are_refused(somebodys: Any, config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    newer = {"packages": {"spacy": "99.0"}}
    monkeypatch.setattr(module, "collect_versions", lambda: newer)
    _refused(somebodys.scheduler_address, config, tmp_path, r"the worker on .* has spacy 3.*started with 99\.0")


def test_a_command_that_ends_leaves_another_one_its_files(somebodys: Any, config: Any, tmp_path: Path) -> None:
    run, asked = RunFolder(tmp_path / "run"), load_config(config)
    with start_dask_workers(somebodys.scheduler_address, asked, run) as first:
        with start_dask_workers(somebodys.scheduler_address, asked, run) as second:
            assert second.requirements.probe != first.requirements.probe
        assert not second.requirements.probe.exists()
        assert first.requirements.probe.exists()
    assert not run.cluster.exists()


def test_a_worker_that_joined_later_is_looked_at_before_its_first_part(
    workers: DaskWorkers, config: Any, tmp_path: Path
) -> None:
    terms = dataclasses.replace(
        workers.requirements, facts=(EnvironmentFact("the strict policy", "of other models", "fix"),)
    )
    stage_map = DaskWorkers(workers.client, terms)
    with pytest.raises(ConfigurationError, match=r"has the strict policy .* started with of other models: fix"):
        curate(config, output=tmp_path / "run", detector=DigitDetector(), stage_map=stage_map)


@pytest.mark.parametrize(("theirs", "match"), [("nothing", "cannot access"), ("a copy", "sees a different")])
def test_a_folder_that_is_another_one_there_is_refused(
    somebodys: Any, config: Any, tmp_path: Path, monkeypatch: Any, theirs: str, match: str
) -> None:
    # one path, and each process sees its own working directory there: as with two machines' disks
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "state").mkdir(parents=True)
    own = there / "state" / "dask" / "0000000000000000"
    own.mkdir(parents=True)
    if theirs == "a copy":
        monkeypatch.setattr(module.secrets, "token_hex", lambda size: "0" * 2 * size)
        (own / "probe").write_bytes(b"of another run")
    monkeypatch.chdir(here)
    with Client(somebodys, set_as_default=False) as client:
        before = client.run(os.getcwd)
        client.run(os.chdir, there)
        try:
            _refused(somebodys.scheduler_address, config, Path("/proc/self/cwd"), f"{match} /proc/self/cwd/state")
        finally:
            client.run(os.chdir, next(iter(before.values())))


def test_from_a_store_to_a_store_by_workers_that_have_the_encryption_key_and_no_others(
    somebodys: Any, config: Any, plain: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    monkeypatch.setenv("REDACTORY_WORK", str(tmp_path / "work"))
    address, folder = somebodys.scheduler_address, tmp_path / "dask"
    _refused(address, config, folder, "has encryption key none, .*: its environment must set the same")
    with s3_server() as server, Client(somebodys, set_as_default=False) as client:
        client.run(_set_key, ENCRYPTION_KEY[::-1])
        _refused(address, config, folder, "has encryption key .*, but the run was started with .*: its environment")
        boto3.client("s3", endpoint_url=server).upload_file(config["input"], BUCKET, "corpus/rows.jsonl")
        stored = {**config, "input": f"s3://{BUCKET}/corpus/*.jsonl", "output": f"s3://{BUCKET}/runs/x"}
        client.run(_set_key, ENCRYPTION_KEY)
        try:
            told = wrap_with_dask(curate, address)(stored, detector=DigitDetector())
        finally:
            client.run(_set_key, None)
        fetch(stored["output"], tmp_path / "back")
    found = read_data_bytes(tmp_path / "back")
    assert found == read_data_bytes(Path(told["run"]))
    for name, data in plain.items():
        # what is private is encrypted, under a key of the run's own
        assert (found[name] == data) == name.startswith("public/"), name
    assert verify(told["run"])["ok"]


def _set_key(value: str | None) -> None:
    if value is None:
        del os.environ["REDACTORY_ENCRYPTION_KEY"]
    else:
        os.environ["REDACTORY_ENCRYPTION_KEY"] = value


def test_a_worker_of_many_threads_is_refused(config: Any, tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, protocol="tcp://", **{**QUIET, **HERE, "threads_per_worker": 2}) as cluster:
        _refused(cluster.scheduler_address, config, tmp_path / "dask", "uses 2 threads: start workers with --nt")


TLS_ALONE, NO_ADDRESS = "write tls://HOST:PORT", "is not a scheduler address"


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        *((f"tcp://{host}:8786", TLS_ALONE) for host in ("10.1.2.3", "scheduler", "0.0.0.0", "[2001:db8::1]")),
        *((wrong, NO_ADDRESS) for wrong in ("scheduler:8786", "inproc://1", "tls://scheduler", "ws://127.0.0.1:1", "")),
        *((safe, None) for safe in ("local", "tcp://127.0.0.1:1", "tcp://[::1]:1", "tls://scheduler:8786")),
    ],
)
def test_another_machine_is_spoken_to_with_tls_alone(address: str, refusal: str | None) -> None:
    if refusal is None:
        check_dask_address(address)
        return
    with pytest.raises(ConfigurationError, match=refusal):
        check_dask_address(address)


def test_with_certificates_and_not_without(config: Any, plain: Any, tmp_path: Path) -> None:
    security = Security.temporary()
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        (tmp_path / name).write_text(getattr(security, name))
    certificates = {
        "distributed.comm.tls.ca-file": str(tmp_path / "tls_ca_file"),
        "distributed.comm.tls.client.cert": str(tmp_path / "tls_client_cert"),
        "distributed.comm.tls.client.key": str(tmp_path / "tls_client_key"),
    }
    with LocalCluster(n_workers=1, security=security, **QUIET, **HERE) as cluster:
        address = cluster.scheduler_address
        _refused(address, config, tmp_path / "dask", "needs certificates: set Dask's distributed.comm.tls")
        with dask.config.set(certificates):
            by_command = wrap_with_dask(curate, address)
            told = by_command(config, output=tmp_path / "run", detector=DigitDetector())
            again = by_command(config, output=tmp_path / "run", resume=True)
    assert told["examples"] == again["examples"]
    assert read_data_bytes(tmp_path / "run") == plain
    assert not RunFolder(tmp_path / "run").cluster.exists()


def test_a_scheduler_that_is_not_there_is_told_of(config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("redactory.flows.dask_map.CONNECT_TIMEOUT", 0.2)
    _refused("tcp://127.0.0.1:9", config, tmp_path / "dask", "no usable scheduler at tcp://127.0.0.1:9")


def test_a_key_that_is_none_leaves_no_folder(config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "nope.key"))
    with pytest.raises(ConfigurationError, match=r"REDACTORY_SIGNING_KEY_FILE: .* cannot be read"):
        wrap_with_dask(curate, "local")(config, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()

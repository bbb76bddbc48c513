"""What every test shares: one digest key, no network, a small simulated corpus, one curated run of it."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.child_processes import end_with_parent
from tests.machine import CommandMachine, start_machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
# two threads of numerics that share a core would spin while they wait: thirty times the work of a small step
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PREFECT_TESTS = {f"tests/flows/test_{name}.py" for name in ("dask", "server", "topology")}
SLOWEST_GROUPS = ("prefect", "tests/docs/test_blocks.py", "tests/flows/test_leaks.py")
_SHARED_MEMORY, _MIN_FREE_BYTES = Path("/dev/shm"), 4 << 30
KEY = "a key of the tests, 32 bytes long"
LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", "0.0.0.0", None, b"localhost", b"127.0.0.1"}


# nothing is timed: a test that takes long on a busy machine has not failed
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# the tree of commands is the same for every test that calls one: built once a process
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]


class GroupedFileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """A process takes all tests of a file, and those of all files that share one Prefect server."""

    def _split_scope(self, nodeid: str) -> str:
        return _test_group(nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-memory", action="store_true", help="what tests write lies in memory, if it fits")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With ``--in-memory`` a folder for all that tests write: a disk is waited for at each file."""
    if hasattr(config, "workerinput") or not config.getoption("--in-memory"):
        return
    has_room = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > _MIN_FREE_BYTES
    place = tempfile.mkdtemp(prefix="redactory-tests-", dir=_SHARED_MEMORY if has_room else None)
    config.option.basetemp = os.path.join(place, "files")
    services = ExitStack()
    services.callback(shutil.rmtree, place, ignore_errors=True)
    services.enter_context(end_with_parent(Path(place)))
    config.add_cleanup(services.close)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupedFileScheduling:
    return GroupedFileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, and each group in one piece: its services end with its last test."""
    rank = {group: place for place, group in enumerate(SLOWEST_GROUPS)}
    items.sort(key=lambda item: rank.get(_test_group(item.nodeid), len(rank)))


def is_prefect_test(item: pytest.Item) -> bool:
    """Whether a test is of the files that share one Prefect server."""
    return _test_group(item.nodeid) == "prefect"


def _test_group(nodeid: str) -> str:
    file = nodeid.split("::")[0]
    return "prefect" if file in PREFECT_TESTS else file


def pytest_collection_finish() -> None:
    """What collection has imported stays: it is not looked through again whenever memory is tidied."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _test_key() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("REDACTORY_KEY", KEY)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Any look-up of a host but this machine fails the test that made it."""
    real = socket.getaddrinfo

    def local_only(host: object, *args: object, **kwargs: object) -> object:
        assert host in LOCAL_HOSTS or host == socket.gethostname(), "a test looked up a host"
        return real(host, *args, **kwargs)  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(socket, "getaddrinfo", local_only)
    yield
    patch.undo()


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns a hundred times as often: what one leaves half done, another one meets."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 simulated dialogues with 3 canaries, 4 copies each."""
    import redactory

    out = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    redactory.simulate(out, 60, 7, 3, 4)
    return out


@pytest.fixture(scope="session")
def curated(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ``corpus`` with the real engines; tests must not change it."""
    import redactory

    run = tmp_path_factory.mktemp("curated") / "run"
    redactory.curate({"input": str(corpus), "segment": {"mode": "turn"}, "partition": {"documents": 25}}, output=run)
    return run


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandMachine]:
    """Commands as people type them, without the seconds that a process takes to start."""
    with start_machine(tmp_path_factory.mktemp("machine")) as running:
        yield running

"""What the tests of flows share: one Prefect server, and a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import dask
import pytest
from distributed import LocalCluster

from tests.conftest import is_prefect_test
from tests.flows.local_server import Server, local_server

QUIET: dict[str, Any] = {
    "dashboard_address": None,
    "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
    "silence_logs": 60,
    "threads_per_worker": 1,
}
_SERVICES = ExitStack()
"""What runs beside the tests of one group, and keeps a core busy: ended with the group's last test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """The services are ended where a test of another group comes next."""
    yield
    if nextitem is not None and not is_prefect_test(nextitem):
        _SERVICES.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server with its services; files that use it are ``PREFECT_TESTS`` of ``tests/conftest.py``."""
    yield _SERVICES.enter_context(local_server(tmp_path_factory.mktemp("server")))
    _SERVICES.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler at an address of this machine, and two worker processes of one thread."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), LocalCluster(n_workers=2, **QUIET) as running:
        yield running

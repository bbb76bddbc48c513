"""What the tests of flows share: one Prefect server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.local_server import Server, local_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server with its services."""
    with local_server(tmp_path_factory.mktemp("server")) as running:
        yield running

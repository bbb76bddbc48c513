"""A Prefect server of our own, on the loopback address, behind a password, at home in a private folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redactory.flows.environment import ADDRESS, CLIENT_PASSWORD, SERVER_PASSWORD, new_password
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import write_text

HOST = "127.0.0.1"
_READY_SECONDS, _END_SECONDS = 120.0, 20.0


def settle_own_server(home: Path, port: int) -> Path:
    """Tell this process and its children where the server will be; the file that holds its password.

    Prefect reads it when it is imported, so this comes before.  ``ConfigurationError`` where the port is
    taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise ConfigurationError(
                f"--port: {port} is taken; name another one, or the server that listens there in {ADDRESS}"
            ) from None
    password = os.environ.get(SERVER_PASSWORD) or new_password()
    os.environ[SERVER_PASSWORD] = os.environ[CLIENT_PASSWORD] = password
    os.environ[ADDRESS] = f"http://{HOST}:{port}/api"
    kept = home / "password"
    write_text(kept, password + "\n")
    return kept


@contextmanager
def own_server(port: int) -> Iterator[None]:
    """Serve Prefect's API and interface on ``port`` until the context ends."""
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    # a task that meets the limit asks again so soon, not after half a minute
    environment = {"PREFECT_SERVER_TASKS_TAG_CONCURRENCY_SLOT_WAIT_SECONDS": "1", **os.environ}
    # a session of its own: an interrupt at the terminal ends the runs first, and the server here
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            _wait(server)
            yield
        finally:
            server.terminate()
            try:
                server.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait(server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{os.environ[ADDRESS]}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RunStateError("the Prefect server did not start; name one that runs in PREFECT_API_URL")

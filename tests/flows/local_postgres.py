"""A real PostgreSQL server for tests: Debian's binaries, a folder of its own, the loopback address."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.child_processes import end_with_parent
from tests.flows.local_server import free_port

MISSING = "PostgreSQL's server is not installed: apt-get install postgresql (or make postgresql, as root)"
DEBIAN = Path("/usr/lib/postgresql")
USER, DATABASE = "prefect", "prefect"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # what it holds is gone after the test: a crash of the machine may take it
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # everything that is asked of it is logged, so that the log is searched too
    "log_statement": "all",
}


@dataclass(frozen=True)
class Postgres:
    """A running server: its folder, its port, the password of its one user."""

    root: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """What Prefect is told."""
        return f"postgresql+asyncpg://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def log(self) -> bytes:
        """Every statement with its parameters."""
        return (self.root / "log").read_bytes()

    def dump(self) -> bytes:
        """The whole database as text (``pg_dump``)."""
        return self._client("pg_dump", "--inserts", DATABASE)

    def ask(self, statement: str) -> list[str]:
        """The rows of an SQL statement, as ``psql`` prints them bare."""
        return self._client("psql", "-AtX", "-c", statement, DATABASE).decode().splitlines()

    def _client(self, program: str, *arguments: str) -> bytes:
        at = ("-h", "127.0.0.1", "-p", str(self.port), "-U", USER)
        done = subprocess.run(
            [binary(program), *at, *arguments],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


def binary(program: str) -> str:
    """A program of PostgreSQL: Debian keeps the server's out of the PATH, one folder a version."""
    debian = sorted(DEBIAN.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which(program)
    assert found, MISSING
    return found


@contextmanager
def local_postgres() -> Iterator[Postgres]:
    """A server until the context ends; nothing of it is left."""
    # pytest's folders are closed to the user that it runs as
    with tempfile.TemporaryDirectory(prefix="redactory-postgres-", dir="/tmp") as folder, end_with_parent(Path(folder)):
        server = Postgres(Path(folder), free_port(), secrets.token_urlsafe(12))
        data, password = server.root / "data", server.root / "password"
        password.write_text(server.password)
        if os.geteuid() == 0:
            for path in (server.root, password):
                shutil.chown(path, "postgres", "postgres")
        asked = ("--no-sync", "--auth=scram-sha-256", f"--username={USER}", f"--pwfile={password}")
        _as_nobody_special("initdb", "-D", str(data), "-E", "UTF8", "--locale=C", *asked)
        with (data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
        control = ("-D", str(data), "-w", "-t", "60")
        _as_nobody_special("pg_ctl", *control, "-l", str(server.root / "log"), "-o", f"-p {server.port}", "start")
        try:
            server._client("createdb", DATABASE)
            yield server
        finally:
            _as_nobody_special("pg_ctl", *control, "-m", "immediate", "stop")


def _as_nobody_special(program: str, *arguments: str) -> None:
    """Run a program of the server's, which refuses root, as the user that Debian made for it."""
    drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    # nothing is read from it: a server that goes on would keep a pipe open
    with tempfile.TemporaryFile() as told:
        command = [*drop, binary(program), *arguments]
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=told, stderr=told, check=False)
        told.seek(0)
        assert done.returncode == 0, f"{program}: {told.read().decode()}"

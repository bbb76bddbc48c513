"""Commands as people type them, carried out by a process that has everything imported (``warm.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.child_processes import start_child_process

_WARM_SCRIPT = Path(__file__).with_name("warm.py")


@dataclass(frozen=True)
class CommandMachine:
    """``commands`` holds ``redactory`` and ``python``: put it first on a PATH."""

    commands: Path

    def redactory(self, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command of the command line with this process's environment; it may fail."""
        command = [str(self.commands / "redactory"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@contextmanager
def start_machine(folder: Path) -> Iterator[CommandMachine]:
    """A machine whose process lives until the context ends; its socket and its clients lie in ``folder``."""
    address = str(folder / "socket")
    for name in ("redactory", "python"):
        client = folder / name
        client.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {_WARM_SCRIPT} ask {address} {name} "$@"\n')
        client.chmod(0o700)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with start_child_process([sys.executable, str(_WARM_SCRIPT), "serve", address], env=environment) as server:
        while not os.path.exists(address):
            assert server.poll() is None
            time.sleep(0.1)
        yield CommandMachine(folder)

"""Processes and folders that end with the process that made them, however that ends (SIGKILL too)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# the pipe's other end is closed with its process; by then nobody is left who could put things away
_WATCH_SCRIPT = """
read -r _
test -n "$2" && kill -s KILL -- "-$2"
test -n "$1" || exit
rm -rf "$1"
# processes of several may need a moment until they find that they are alone
sleep 15
rm -rf "$1"
"""


@contextmanager
def end_with_parent(folder: Path | None = None, group: int | None = None) -> Iterator[None]:
    """Should this process end before the context: remove ``folder`` and kill the process ``group``.

    What happens at the context's end is the caller's to do.
    """
    reading, writing = os.pipe()
    command = ["sh", "-c", _WATCH_SCRIPT, "sh", str(folder or ""), str(group or "")]
    # in a session of its own: Ctrl-C is for those whom it watches
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    watcher = subprocess.Popen(command, stdin=reading, **quiet)  # type: ignore[call-overload]
    os.close(reading)
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()
        os.close(writing)


@contextmanager
def start_child_process(
    command: list[str], patience: float = 60.0, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, which is ended with the context, or with this process.

    After ``patience`` seconds its group is killed.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    with end_with_parent(group=process.pid):
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
            # what it has started may go on
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

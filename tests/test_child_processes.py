"""What a test starts ends with it, however it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# a server that Ctrl-C does not reach, and one that another process started
_CODE = """
import pathlib, signal, subprocess, sys, time
from tests.child_processes import end_with_parent, start_child_process
# a shell starts what it does not wait for with Ctrl-C ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = pathlib.Path(sys.argv[1])
code = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"
with end_with_parent(folder), start_child_process([sys.executable, '-c', code], stdout=subprocess.PIPE) as server:
    print(server.pid, int(server.stdout.readline()), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_test_that_is_stopped(tmp_path: Path, stop: signal.Signals) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    (folder / "file").write_text("x")
    command = [sys.executable, "-c", _CODE, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as test:
        assert test.stdout is not None
        started = [Path("/proc") / number for number in test.stdout.readline().decode().split()]
        assert len(started) == 2
        assert all(map(Path.exists, started))
        test.send_signal(stop)
    # as long as it takes on a busy machine; folders that a stopped test can tidy itself, it does
    while any(map(_is_alive, started)) or (folder.exists() and stop != signal.SIGINT):
        time.sleep(0.02)


def _is_alive(process: Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except OSError:
        return False

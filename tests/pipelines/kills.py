"""Runs that are killed at random moments by ``kill -9``, and what is left of their processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.pipelines.faults import state_of

_MAIN = "from redactory.flows.cli import main; main()"


def write_config(rows: Path, file: Path, **settings: Any) -> Path:
    """A configuration whose engines load in no time."""
    detect = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}
    config = {"input": str(rows), "segment": {"mode": "line"}, "detect": detect, "workers": 2, **settings}
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def start(config: Path, run: Path) -> subprocess.Popen[bytes]:
    """``redactory curate --resume`` in a session of its own, so that all its processes can be counted."""
    command = [sys.executable, "-c", _MAIN, "curate", str(config), "--out", str(run), "--resume", "--json"]
    with (run.parent / "said").open("wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)


def finish(config: Path, run: Path) -> float:
    """Resume ``run`` to its end; the seconds that it took."""
    begun = time.monotonic()
    process = start(config, run)
    assert process.wait() == 0, (run.parent / "said").read_text(encoding="utf-8")
    all_gone(process.pid)
    return time.monotonic() - begun


def killed_at(config: Path, run: Path, seconds: float) -> bool:
    """Begin, or go on with, ``run`` and kill its first process after so long; whether it was at work."""
    process = start(config, run)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    at_work = process.poll() is None
    process.kill()
    process.wait()
    all_gone(process.pid)
    return at_work


def all_gone(session: int) -> None:
    """Wait until every process of a session has ended; workers must not outlive the run that is killed."""
    deadline = time.monotonic() + 60
    while alive := list(_of_session(session)):
        assert time.monotonic() < deadline, f"{len(alive)} processes outlive their run"
        time.sleep(0.02)


def random_moments(seed: int, least: float, most: float) -> Iterator[float]:
    """Seconds at which to kill, the same for the same seed."""
    source = random.Random(seed)
    while True:
        yield source.uniform(least, most)


def stages_done(run: Path) -> str:
    """How far a killed run had come: its last stage in the journal."""
    journal = run / "state" / "journal.jsonl"
    if (run / "_SUCCESS").exists():
        return "finished"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    last = [json.loads(line)["body"].get("stage", "begun") for line in lines]
    return str(last[-1]) if last else "nothing"


def as_undisturbed(run: Path, undisturbed: dict[str, Any]) -> None:
    """The run is the undisturbed one, byte by byte and count by count, and nothing else lies in it."""
    assert state_of(run) == undisturbed
    assert not [p for p in run.rglob("*") if p.name.startswith(".tmp-")]
    assert not (run / "state" / "work").exists()
    assert not (run / "state" / "lock").exists()


def _of_session(session: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        state, own = _state_of(int(entry))
        if own == session and state != "Z":
            yield int(entry)


def is_alive(process: int) -> bool:
    """Whether a process is there, and no more than an entry that nobody has asked after."""
    return _state_of(process)[0] not in ("", "Z")


def _state_of(process: int) -> tuple[str, int]:
    """A process's state and its session; an empty state for one that has gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0
    state, _, _, session = fields.rpartition(")")[2].split()[:4]
    return state, int(session)


class Died(BaseException):
    """Nobody catches it, as nobody catches a kill; what is to be tidied in any case is."""


_CHANGES = ("replace", "rename", "symlink", "unlink", "rmdir", "mkdir", "write")


class Moments:
    """Counts the calls that change the disk for good, and ends what runs at one of them."""

    def __init__(self, at: int | None, end: Callable[[], None]) -> None:
        self.passed, self._at, self._end = 0, at, end
        self._own = {
            name: getattr(os, name) for name in ("replace", "rename", "symlink", "unlink", "rmdir", "mkdir", "write")
        }

    def __enter__(self) -> Moments:
        for name, own in self._own.items():
            setattr(os, name, lambda *a, _own=own, **k: self._pass(a[0]) or _own(*a, **k))
        return self

    def __exit__(self, *_: object) -> None:
        for name, own in self._own.items():
            setattr(os, name, own)

    def _pass(self, what: Any) -> None:
        # a process that dies gives its locks back; one that goes on after its death would not
        if str(what).endswith("lock"):
            return
        self.passed += 1
        if self.passed - 1 == self._at:
            self._end()


def died() -> None:
    """An end in this process."""
    raise Died


def die() -> None:
    """What the system does to a process that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], Any], at: int) -> bool:
    """Whether a process that did ``work`` was killed at a moment, and had not ended before."""
    child = os.fork()
    if child == 0:
        try:
            with Moments(at, die):
                work()
            os._exit(0)
        finally:
            # an error, too, must not lead the child on through the tests
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), at
    return code != 0

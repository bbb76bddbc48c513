"""Hooks: an operator's own commands, told how a night ended.

A hook gets facts without text: in its environment and, as one JSON object, on its standard input.  It gets
no key of Redactory's: no variable that begins with ``REDACTORY_`` is handed on.  What it prints is thrown
away, for it may be anything.  Whatever it does, the night stays as it ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redactory.pipelines.releases.log import Event
from redactory.pipelines.settings.nightly import HookSettings
from redactory.redaction import RunFolder
from redactory.redaction.job_folder import JobFolder

OWN = "REDACTORY_"
_CALLED = {
    Event.FAILED: "on_failure",
    Event.RELEASED: "on_release",
    Event.APPROVED: "on_release",
    Event.HELD: "on_held",
}
_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Called:
    """How a hook's command ended: ``code`` is None where it could not be started or took too long."""

    hook: str
    code: int | None
    seconds: float
    problem: str | None = None

    @property
    def good(self) -> bool:
        """Whether it ended with 0."""
        return self.code == 0


def hook_of(hooks: HookSettings | None, event: Event) -> str | None:
    """The hook that is configured for ``event``; None where none is."""
    name = _CALLED.get(event)
    return name if name and hooks is not None and getattr(hooks, name) else None


def call_hooks(
    hooks: HookSettings, event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]
) -> list[str]:
    """Call what is configured for ``event``; the hooks that failed, each with its exit code or its problem.

    ``facts`` are free of text.  Never raises.
    """
    hook = hook_of(hooks, event)
    if hook is None:
        return []
    done = call(hook, getattr(hooks, hook), message(event, job, run, facts), hooks.timeout_seconds)
    return [] if done.good else [f"{hook} ({done.problem or f'exit code {done.code}'})"]


def message(event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook is told."""
    return {"event": event.value, "job": str(job.root), "run": str(run.root), **facts}


def call(hook: str, command: Sequence[str], told: Mapping[str, Any], timeout: float) -> Called:
    """Run ``command`` with what it is ``told``; after ``timeout`` seconds it is ended, with its children."""
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(told),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no command"
        return Called(hook, None, time.monotonic() - start, f"it cannot be started: {words}")
    with process:
        try:
            process.communicate(json.dumps(told, default=str).encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            return Called(hook, None, time.monotonic() - start, f"it took longer than {timeout:g} s")
    return Called(hook, process.returncode, time.monotonic() - start)


def _environment(told: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    facts = {name.upper(): told.get(name) for name in ("event", "run", "job", "manifest", "error")}
    # a value with a zero byte could not be handed on
    return kept | {f"{OWN}{n}": str(v).replace("\x00", "") for n, v in facts.items() if v is not None}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    # what it left behind holds no pipe open for us
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()

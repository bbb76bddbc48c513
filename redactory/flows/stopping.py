"""SIGTERM, by which schedulers and service managers stop a process: ended in order, as by Ctrl-C."""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE
from redactory.foundation.progress import Progress

Work = Literal["curate", "run", "nightly"]
"""What a scheduled job does at each time."""


EXIT_CODE = 128 + signal.SIGTERM
_asked = threading.Event()


class Stopped(KeyboardInterrupt):
    """SIGTERM came: whatever ends a work in order where it is interrupted ends it now."""


def end_in_order() -> None:
    """From now on SIGTERM raises :class:`Stopped` where this process is at work; a second one ends it.

    Where the signal is ignored or somebody else answers it, and in any thread but the main one, all stays as
    it is.
    """
    _asked.clear()
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def was_asked() -> bool:
    """Whether SIGTERM has come: an error that follows, of a worker that was ended with us, is its doing."""
    return _asked.is_set()


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _asked.set()
    raise Stopped


# JSON logs: one object a line for what a command does, for machines that watch it.


VARIABLE, STANDARD_ERROR = "REDACTORY_LOG", "-"
_LOGGER = logging.getLogger("redactory.events")
_EVERY_SECONDS = 5.0
_FIELDS = "redactory_fields"
_TOLD = ("run", "job", "state", "ok", "seconds", "resumed")
_COUNTS = ("rows", "documents", "rejected", "points", "public", "private", "duplicate", "quarantined")
_start = time.monotonic()


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        told = {"time": when.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        return json.dumps({**told, "event": record.getMessage(), **getattr(record, _FIELDS, {})}, default=str)


def begin(target: str | None, command: str | None) -> None:
    """Log to the file ``target`` (added to, mode 0600), or to standard error; else as the variable says.

    ``ConfigurationError`` where the file cannot be written, or the variable has a value that is not known.
    """
    global _start
    end()
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "json"):
        raise ConfigurationError(f"{VARIABLE}: the one form of log is 'json'; set it to that, or to nothing")
    target = target or (STANDARD_ERROR if asked else None)
    if target is None:
        return
    _LOGGER.addHandler(_handler(target))
    _LOGGER.setLevel(logging.INFO)
    # Prefect's own handlers would print it too
    _LOGGER.propagate = False
    _start = time.monotonic()
    event("begin", command=command, process=os.getpid())


def end() -> None:
    """Log no more."""
    for handler in list(_LOGGER.handlers):
        _LOGGER.removeHandler(handler)
        handler.close()


def is_on() -> bool:
    """Whether anybody asked for it."""
    return bool(_LOGGER.handlers)


def on_terminal() -> bool:
    """Whether the log goes where progress would be shown."""
    return any(not isinstance(handler, logging.FileHandler) for handler in _LOGGER.handlers)


def event(name: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Log one line; nothing where it is off.  ``fields`` must be free of text."""
    if is_on():
        _LOGGER.log(level, name, extra={_FIELDS: {k: v for k, v in fields.items() if v is not None}})


def result(value: Mapping[str, Any], name: str = "result") -> None:
    """Log what is no text of a command's result: names of runs, counts, seconds; of each night."""
    if not is_on():
        return
    counts = {k: v for k, v in {**value, **(value.get("counts") or {})}.items() if k in _COUNTS}
    told = {k: value[k] for k in _TOLD if isinstance(value.get(k), str | int | float)}
    failed = value.get("hooks_failed") or None
    event(
        name,
        **told,
        counts={k: v for k, v in counts.items() if isinstance(v, int)} or None,
        hooks_failed=failed,
    )
    for night in value.get("nights", ()):
        result(night, "night")


def ended(code: int, error: str | None = None) -> None:
    """Log how the command ended, and close the log."""
    level = logging.INFO if code == 0 else logging.ERROR
    event("end", level, exit_code=code, error=error, seconds=round(time.monotonic() - _start, 3))
    end()


class Told:
    """A listener that logs the end of each work, and every few seconds how far it is; ``also`` hears it."""

    def __init__(self, also: Progress) -> None:
        self._also = also
        self._begun: dict[str, float] = {}
        self._last = time.monotonic()

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        self._also(work, done, total, unit)
        now = time.monotonic()
        begun = self._begun.setdefault(work, now)
        if done == total:
            del self._begun[work]
        elif now - self._last < _EVERY_SECONDS:
            return
        self._last = now
        name = "done" if done == total else "progress"
        # what follows a comma is a remark
        event(
            name, stage=work, count=done, total=total, unit=unit.split(",")[0], seconds=round(now - begun, 3)
        )


def _handler(target: str) -> logging.Handler:
    handler: logging.Handler
    if target == STANDARD_ERROR:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            Path(target).touch(mode=PRIVATE_FILE)
            handler = logging.FileHandler(target, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"--log-json: {target} cannot be written: {error.strerror}; give a place in a "
                "folder that you may write"
            ) from None
    handler.setFormatter(_OneLine())
    return handler

"""JSON logs: one object a line for what a command does, for machines that watch it."""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE

VARIABLE, STANDARD_ERROR = "REDACTORY_LOG", "-"
_LOGGER = logging.getLogger("redactory.events")
_FIELDS = "redactory_fields"
_NAMED = ("run", "job", "state", "ok", "seconds", "resumed")
_COUNTS = ("rows", "documents", "rejected", "points", "public", "private", "duplicate", "quarantined")
_start = time.monotonic()
_command: str | None = None


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
            timespec="milliseconds"
        )
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**line, **getattr(record, _FIELDS, {})}, default=str)


def begin(target: str | None, command: str | None) -> None:
    """Log to the file ``target`` (added to, mode 0600), or to standard error; else as the variable says.

    ``ConfigurationError`` where the file cannot be written, or the variable has an unknown value.
    """
    global _start, _command
    end()
    _command = command
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "json"):
        raise ConfigurationError(f"{VARIABLE}: the one form of log is 'json'; set it to that, or to nothing")
    target = target or (STANDARD_ERROR if asked else None)
    if target is None:
        return
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
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    # Prefect's own handlers would print it too
    _LOGGER.propagate = False
    _start = time.monotonic()
    event("begin", command=command, process=os.getpid())


def command() -> str | None:
    """The command that was begun last."""
    return _command


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
    """Log what is no text of a command's result: names of runs, counts, seconds; of each scheduled run."""
    counts = {k: v for k, v in {**value, **(value.get("counts") or {})}.items() if k in _COUNTS}
    fields = {k: value[k] for k in _NAMED if isinstance(value.get(k), str | int | float)}
    fields["counts"] = {k: v for k, v in counts.items() if isinstance(v, int)} or None
    event(name, **fields, hooks_failed=value.get("hooks_failed") or None)
    for night in value.get("nights", ()):
        result(night, "night")


def progress(work: str, done: int, total: int | None, unit: str, seconds: float) -> None:
    """Log how far ``work`` is, or its end."""
    # what follows a comma is a remark
    unit = unit.split(",")[0]
    name = "done" if done == total else "progress"
    event(name, stage=work, count=done, total=total, unit=unit, seconds=round(seconds, 3))


def ended(code: int, error: str | None = None) -> None:
    """Log how the command ended, and close the log."""
    level = logging.INFO if code == 0 else logging.ERROR
    event("end", level, exit_code=code, error=error, seconds=round(time.monotonic() - _start, 3))
    end()

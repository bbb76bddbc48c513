"""Machine-readable JSON log of a command: one object per line."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE

LOG_VARIABLE, STANDARD_ERROR = "REDACTORY_LOG", "-"
_LOGGED_FIELDS = ("run", "job", "state", "ok", "seconds", "resumed")
_LOGGED_COUNTS = ("rows", "documents", "rejected", "examples", "public", "private", "duplicate", "quarantined")
_target: Path | None = None
"""The file to append to; ``-`` is standard error, None is no log."""
_start = time.monotonic()
current_command: str | None = None


def start_log(target: str | None, command: str | None) -> None:
    """Start the log: the file ``target`` (appended, mode 0600), standard error, or as the variable says.

    ``ConfigurationError`` if the file cannot be written, or the variable has an unknown value.
    """
    global _target, _start, current_command
    _target, _start, current_command = None, time.monotonic(), command
    log_format = os.environ.get(LOG_VARIABLE, "")
    if log_format not in ("", "json"):
        raise ConfigurationError(f"{LOG_VARIABLE}: the only log format is 'json'; set it to that, or to nothing")
    if target is None and not log_format:
        return
    _target = Path(STANDARD_ERROR)
    if target is not None and target != STANDARD_ERROR:
        _target = Path(target).absolute()
        try:
            _target.touch(mode=PRIVATE_FILE)
            _target.open("a").close()
        except OSError as error:
            raise ConfigurationError(
                f"--log-json: {target} cannot be written: {error.strerror}; choose a file in a writable folder"
            ) from None
    log_event("begin", command=command, process=os.getpid())


def stop_log() -> None:
    """Stop logging."""
    global _target
    _target = None


def is_enabled() -> bool:
    """Whether logging was requested."""
    return _target is not None


def is_on_stderr() -> bool:
    """Return whether the log uses the stream of the progress display."""
    return _target == Path(STANDARD_ERROR)


def log_event(name: str, level: str = "info", /, **fields: Any) -> None:
    """Log one line if the log is on; ``fields`` must not contain text."""
    if _target is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    present_fields = {key: value for key, value in fields.items() if value is not None}
    line = json.dumps({"time": now, "level": level, "event": name, **present_fields}, default=str) + "\n"
    # a command continues if its log can no longer be written
    with suppress(OSError), nullcontext(sys.stderr) if is_on_stderr() else _target.open("a") as stream:
        stream.write(line)
        stream.flush()


def log_result(value: Mapping[str, Any], name: str = "result") -> None:
    """Log a command's result without text: names of runs, counts, seconds; of each scheduled run."""
    counts = {k: v for k, v in {**value, **(value.get("counts") or {})}.items() if k in _LOGGED_COUNTS}
    fields = {k: value[k] for k in _LOGGED_FIELDS if isinstance(value.get(k), str | int | float)}
    fields["counts"] = {k: v for k, v in counts.items() if isinstance(v, int)} or None
    log_event(name, **fields, hooks_failed=value.get("hooks_failed") or None)
    for scheduled_run in value.get("nights", ()):
        log_result(scheduled_run, "night")


def log_progress(work: str, done_count: int, total: int | None, unit: str, seconds: float) -> None:
    """Log the progress of ``work``, or its end."""
    unit = unit.split(",")[0]
    name = "done" if done_count == total else "progress"
    log_event(name, stage=work, count=done_count, total=total, unit=unit, seconds=round(seconds, 3))


def log_exit(code: int, error: str | None = None) -> None:
    """Log how the command ended, and close the log."""
    level = "info" if code == 0 else "error"
    log_event("end", level, exit_code=code, error=error, seconds=round(time.monotonic() - _start, 3))
    stop_log()

"""Seal unexpected errors: the traceback goes to the private area, a text-free error to the outside.

An exception's message and attributes can quote the corpus and must not reach a log or an orchestrator's database. In an
encrypted run the traceback is encrypted too.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from redactory.foundation.errors import RedactoryError, SealedError
from redactory.foundation.files import TEMPORARY_PREFIX, make_private_folder
from redactory.redaction.encryption import write_secret

_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}\d+-")
_FIXES = {
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.EDQUOT: ("the disk is full for this user", "make room, or have the quota raised"),
    errno.EFBIG: ("a file exceeds the size limit", "raise the limit (ulimit -f)"),
    errno.EROFS: ("{} cannot be written", "mount its file system for writing"),
    errno.EPERM: ("{} belongs to another user", "give a folder that this user owns"),
    errno.EACCES: ("{} cannot be written", "give this user the right to write there"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}
"""Errors of the system that the user can fix: the problem, and the fix."""
P = ParamSpec("P")
R = TypeVar("R")


def run_with_sealed_traceback(state: Path, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``work``; write the traceback of an unexpected error to ``state``, and raise a ``SealedError`` that names it.

    The traceback is encrypted if the run is.
    """

    def write_traceback(error: BaseException) -> str:
        reference = f"traceback-{secrets.token_hex(4)}.txt"
        # a traceback can quote text that UTF-8 cannot hold
        quoted = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        try:
            write_secret(make_private_folder(state) / reference, quoted)
            traceback_note = f"the traceback is sealed in state/{reference}"
        except RedactoryError as unwritten:
            # the key of an encrypted run is not available: nothing is written unencrypted
            traceback_note = f"its traceback was not written ({unwritten})"
        except Exception as unwritten:
            cause = _describe_cause(unwritten) or type(unwritten).__name__
            traceback_note = f"its traceback could not be written ({cause})"
        return f"{_describe_failure(error, state.parent)}; {traceback_note}"

    return _run_with_sanitized_errors(write_traceback, work, *args, **kwargs)


def run_with_hidden_error_text(activity: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``work``; replace an unexpected error by its type, line of code and ``activity``; write no traceback.

    For work without a run folder, so without a key to encrypt a traceback.
    """

    def describe_error(error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__, limit=-1)
        place = f" at {Path(frames[0].filename).name}:{frames[0].lineno}" if frames else ""
        return _describe_failure(error, None, f"{place} while {activity}")

    return _run_with_sanitized_errors(describe_error, work, *args, **kwargs)


def _run_with_sanitized_errors(
    describe_error: Callable[[BaseException], str], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run ``work``; raise a ``SealedError`` with the text of ``describe_error``, unchained, for any foreign error."""
    sanitized: RedactoryError
    try:
        return work(*args, **kwargs)
    except RedactoryError as error:
        # our messages contain no text, but the frames do
        sanitized = error.with_traceback(None)
        sanitized.__cause__ = sanitized.__context__ = None
    except (Exception, SystemExit) as error:
        # SystemExit of a library is printed at exit, and can quote text as well
        sanitized = SealedError(describe_error(error))
    raise sanitized


def _describe_failure(error: BaseException, root: Path | None, place: str = "") -> str:
    """Describe an error without its text and, unless it has to be reported, its fix."""
    cause, retry = _describe_cause(error, root), "run the command again (with --resume if it has it)"
    if isinstance(error, BrokenExecutor):
        return f"{cause}: {retry}, with fewer --workers"
    number = error.errno if isinstance(error, OSError) else None
    is_in_run = _find_path_in_run(error, root) is not None
    # outside of a run the file may only be read, like a model
    if number in _FIXES and (number != errno.EACCES or is_in_run):
        problem, fix = _FIXES[number]
        location = "the run folder" if is_in_run else "a file system"
        return f"{problem.format(location)} ({cause}): {fix}, and {retry}"
    return f"unexpected {type(error).__name__}{f' ({cause})' if cause else ''}{place}"


def _describe_cause(error: BaseException, root: Path | None = None) -> str | None:
    """Describe an error without its message: the system's text, and the file below ``root``."""
    if isinstance(error, BrokenExecutor):
        return "a worker process was lost: killed, or out of memory"
    if not isinstance(error, OSError) or error.errno is None:
        return None
    path = _find_path_in_run(error, root)
    return os.strerror(error.errno) + ("" if path is None else f": {_TEMPORARY.sub('', path)}")


def _find_path_in_run(error: BaseException, root: Path | None) -> str | None:
    """Return the path of an error's file relative to ``root``; None if it names none there."""
    filename = getattr(error, "filename", None)
    if root is None or not isinstance(filename, str | bytes):
        return None
    path = Path(os.fsdecode(filename))
    return str(path.relative_to(root)) if path.is_relative_to(root) else None

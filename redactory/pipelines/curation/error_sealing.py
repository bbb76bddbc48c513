"""Unexpected errors, sealed: the traceback into the private area, a text-free error to the outside.

An exception's message can quote the corpus, and so can its attributes; nothing of it may reach a log
or an orchestrator's database.  In an encrypted run the traceback is encrypted too.
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
    errno.EACCES: ("{} cannot be written", "give this user the right to write there"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}
"""What the system refuses and the user can mend: what it is, and what to do."""
P = ParamSpec("P")
R = TypeVar("R")


def run_sealed(state: Path, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``work(*args, **kwargs)``; any error but our own becomes a ``SealedError`` with a reference.

    The traceback is written into ``state``, encrypted where the run is.
    """

    def put_away(error: BaseException) -> str:
        reference = f"traceback-{secrets.token_hex(4)}.txt"
        # a traceback can quote text that UTF-8 cannot hold
        quoted = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        try:
            write_secret(make_private_folder(state) / reference, quoted)
            place = f"the traceback is sealed in state/{reference}"
        except RedactoryError as unwritten:
            # an encrypted run whose key is not to be had: nothing of it is written in the open
            place = f"its traceback was not written ({unwritten})"
        except Exception as unwritten:
            place = f"its traceback could not be written ({_describe_cause(unwritten) or type(unwritten).__name__})"
        return f"{_describe_failure(error, state.parent)}; {place}"

    return _reraise_sanitized(put_away, work, *args, **kwargs)


def hide_error_text(activity: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """As :func:`run_sealed`, where no run folder is there whose key the traceback could be
    encrypted with.

    Nothing of it is written; the error names the kind, its place, and ``activity`` was being done.
    """

    def say(error: BaseException) -> str:
        last = traceback.extract_tb(error.__traceback__, limit=-1)
        place = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
        return _describe_failure(error, None, f"{place} while {activity}")

    return _reraise_sanitized(say, work, *args, **kwargs)


def _reraise_sanitized(
    message: Callable[[BaseException], str], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """``work(*args, **kwargs)``; of any error but our own only its ``message`` is left.

    The new error is raised outside the handler, so that it drags no chain of the old one along.
    """
    sanitized: RedactoryError
    try:
        return work(*args, **kwargs)
    except RedactoryError as error:
        # our own message is free of text, but the frames it carries are not
        sanitized = error.with_traceback(None)
        sanitized.__cause__ = sanitized.__context__ = None
    except (Exception, SystemExit) as error:
        # what a library ends a process with is printed on the way out, and can quote text as well
        sanitized = SealedError(message(error))
    raise sanitized


def _describe_failure(error: BaseException, root: Path | None, place: str = "") -> str:
    """What happened, and where it is nothing that has to be reported, the mend."""
    cause, retry = _describe_cause(error, root), "run the command again (with --resume if it has it)"
    if isinstance(error, BrokenExecutor):
        return f"{cause}: {retry}, with fewer --workers"
    number = error.errno if isinstance(error, OSError) else None
    location = (
        "the run folder" if root is not None and _relative_error_path(error, root) is not None else "a file system"
    )
    # what may not be opened outside of a run may as well be read only, like a model
    if number in _FIXES and (number != errno.EACCES or location == "the run folder"):
        problem, fix = _FIXES[number]
        return f"{problem.format(location)} ({cause}): {fix}, and {retry}"
    return f"unexpected {type(error).__name__}{f' ({cause})' if cause else ''}{place}"


def _describe_cause(error: BaseException, root: Path | None = None) -> str | None:
    """What can be said of an error without its message: the system's words, and which file below ``root``."""
    if isinstance(error, BrokenExecutor):
        return "a worker process was lost: killed, or out of memory"
    if not isinstance(error, OSError) or error.errno is None:
        return None
    inside = None if root is None else _relative_error_path(error, root)
    words = os.strerror(error.errno)
    return words if inside is None else f"{words}: {_TEMPORARY.sub('', str(inside))}"


def _relative_error_path(error: BaseException, root: Path) -> Path | None:
    """Which file below ``root`` an error is of; None where it names none there."""
    filename = getattr(error, "filename", None)
    path = Path(os.fsdecode(filename)) if isinstance(filename, str | bytes) else None
    return path.relative_to(root) if path is not None and path.is_relative_to(root) else None

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
_MENDS = {
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


def sealed(state: Path, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
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
            place = f"its traceback could not be written ({_cause(unwritten) or type(unwritten).__name__})"
        return f"{_what(error, state.parent)}; {place}"

    return _without_frames(put_away, work, *args, **kwargs)


def wordless(what: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """As :func:`sealed`, where no run folder is there whose key the traceback could be encrypted with.

    Nothing of it is written; the error names the kind, its place, and ``what`` was being done.
    """

    def say(error: BaseException) -> str:
        last = traceback.extract_tb(error.__traceback__, limit=-1)
        place = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
        return _what(error, None, f"{place} while {what}")

    return _without_frames(say, work, *args, **kwargs)


def _without_frames(
    message: Callable[[BaseException], str], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """``work(*args, **kwargs)``; of any error but our own only its ``message`` is left.

    The new error is raised outside the handler, so that it drags no chain of the old one along.
    """
    own: RedactoryError
    try:
        return work(*args, **kwargs)
    except RedactoryError as error:
        # our own message is free of text, but the frames it carries are not
        own = error.with_traceback(None)
        own.__cause__ = own.__context__ = None
    except (Exception, SystemExit) as error:
        # what a library ends a process with is printed on the way out, and can quote text as well
        own = SealedError(message(error))
    raise own


def _what(error: BaseException, root: Path | None, place: str = "") -> str:
    """What happened, and where it is nothing that has to be reported, the mend."""
    cause, again = _cause(error, root), "run the command again (with --resume if it has it)"
    if isinstance(error, BrokenExecutor):
        return f"{cause}: {again}, with fewer --workers"
    number = error.errno if isinstance(error, OSError) else None
    where = "the run folder" if root is not None and _below(error, root) is not None else "a file system"
    # what may not be opened outside of a run may as well be read only, like a model
    if number in _MENDS and (number != errno.EACCES or where == "the run folder"):
        what, mend = _MENDS[number]
        return f"{what.format(where)} ({cause}): {mend}, and {again}"
    return f"unexpected {type(error).__name__}{f' ({cause})' if cause else ''}{place}"


def _cause(error: BaseException, root: Path | None = None) -> str | None:
    """What can be said of an error without its message: the system's words, and which file below ``root``."""
    if isinstance(error, BrokenExecutor):
        return "a worker process was lost: killed, or out of memory"
    if not isinstance(error, OSError) or error.errno is None:
        return None
    inside = None if root is None else _below(error, root)
    words = os.strerror(error.errno)
    return words if inside is None else f"{words}: {_TEMPORARY.sub('', str(inside))}"


def _below(error: BaseException, root: Path) -> Path | None:
    """Which file below ``root`` an error is of; None where it names none there."""
    named = getattr(error, "filename", None)
    path = Path(os.fsdecode(named)) if isinstance(named, str | bytes) else None
    return path.relative_to(root) if path is not None and path.is_relative_to(root) else None

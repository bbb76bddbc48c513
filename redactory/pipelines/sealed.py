"""Unexpected errors, sealed: the traceback into the private area, a text-free error to the outside.

An exception's message can quote the corpus, and so can its attributes; nothing of it may reach a log
or an orchestrator's database.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from redactory.foundation.errors import RedactoryError, SealedError
from redactory.foundation.files import make_private_folder, write_text

P = ParamSpec("P")
R = TypeVar("R")


def sealed(state: Path, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``work(*args, **kwargs)``; any error but our own becomes a ``SealedError`` with a reference.

    The new error is raised outside the handler, so that it drags no chain of the old one along.
    """
    failed: SealedError | None = None
    try:
        return work(*args, **kwargs)
    except RedactoryError as error:
        # our own message is free of text, but the frames it carries are not
        own = error.with_traceback(None)
        own.__cause__ = own.__context__ = None
    except Exception as error:
        own = None
        reference = secrets.token_hex(4)
        kind = type(error).__name__
        try:
            make_private_folder(state)
            write_text(state / f"traceback-{reference}.txt", traceback.format_exc())
            place = f"the traceback is sealed in state/traceback-{reference}.txt"
        except OSError as unwritten:
            place = f"its traceback could not be written ({unwritten.strerror})"
        failed = SealedError(f"unexpected {kind}; {place}")
    raise own or failed or AssertionError("unreachable")

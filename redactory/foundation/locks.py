"""A lock that survives crashes: the kernel holds it for a process, and takes it back when that ends."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redactory.foundation.errors import RunStateError
from redactory.foundation.files import open_own

_LONGEST = 1 << 12
"""Bytes of a holder's name."""
_PAUSE = 0.05
"""Seconds between two attempts at a lock that is waited for."""


@contextmanager
def only_one(path: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of the file ``path`` for ``what``, with the holder's name in it; it is gone afterwards.

    Waits up to ``patience`` seconds for it.  Raises ``RunStateError`` that names the holder where another
    process has it, on this machine or on another one that shares the folder; where the file system has no
    locks; and where the file, or its folder, is a link or somebody else's (:func:`open_own`).  What a
    crashed holder left counts for nothing.
    """
    descriptor = _acquired(path, what, time.monotonic() + patience)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_myself()).encode() + b"\n", 0)
        yield
    finally:
        # unlinked while it is held: whoever waits at the old file finds that it is not the lock any more
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock of the file ``path``; False where it cannot be known."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except (OSError, RunStateError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _acquired(path: Path, what: str, deadline: float) -> int:
    while True:
        try:
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            raise RunStateError(
                f"{what}: its folder went away while it was being locked; ask again"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                return descriptor
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
            raise RunStateError(f"{what} is being written by {holder}: wait for it, or stop it") from None
        except OSError as error:
            os.close(descriptor)
            raise RunStateError(
                f"{path} cannot be locked ({error.strerror}), so that two runs could not be told apart: "
                "put the folder on a file system that has locks"
            ) from None
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one that lies at ``path``."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _myself() -> dict[str, object]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": now}


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, _LONGEST, 0))
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        # it has not written its name yet, or is ending right now
        return "another process"

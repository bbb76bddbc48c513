"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import datetime
import errno
import fcntl
import fnmatch
import json
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.foundation.errors import RunStateError

TEMPORARY_PREFIX = ".tmp-"
PRIVATE_FOLDER, PRIVATE_FILE, PUBLIC_FILE = 0o700, 0o600, 0o644
_staged: ContextVar[tuple[Path, Path] | None] = ContextVar("staged", default=None)


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents for good: a folder lost in a crash would take its files along."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        # somebody else's folder may be closed to reading
        with suppress(PermissionError):
            sync_to_disk(folder.parent)


def make_private_folder(path: Path) -> Path:
    """Create ``path`` and its parents; ``path`` itself gets mode 0700 whatever the umask."""
    make_folder(path)
    path.chmod(PRIVATE_FOLDER)
    return path


@contextmanager
def commit(path: Path, mode: int = PRIVATE_FILE) -> Iterator[Path]:
    """Give a temporary path to write; on success sync it and rename it to ``path``, else remove it.

    A reader sees the old file, the new file or none, never a part of one, through any crash.
    """
    root, staging = _staged.get() or (None, None)
    if root is None or not path.is_relative_to(root):
        staging = None
    # drawn, and not the process's number: two machines that share the folder may have the same
    temporary = (staging or path.parent) / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{path.name}"
    if staging is None:
        make_folder(path.parent)
    try:
        temporary.touch(mode=PRIVATE_FILE, exist_ok=False)
        yield temporary
        temporary.chmod(mode)
        sync_to_disk(temporary)
        if staging is not None:
            make_folder(path.parent)
        temporary.replace(path)
        sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def stage_commits(root: Path, staging: Path) -> Iterator[None]:
    """Within, what is committed below ``root`` is written in the folder ``staging``, and renamed from there.

    Both are absolute.  Once ``staging`` is taken away no such commit succeeds (``FileNotFoundError``): work
    that was given up for lost, and goes on nevertheless, changes nothing.
    """
    token = _staged.set((root, staging))
    try:
        yield
    finally:
        _staged.reset(token)


def remove(path: Path) -> None:
    """Remove a file, a link (never what it leads to) or a whole folder; nothing where nothing is.

    A folder goes in one moment for whoever still writes in it; what a killed removal leaves has a temporary
    name, and goes with the next :func:`remove_leftovers`.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    gone = path.with_name(f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{path.name}")
    with suppress(FileNotFoundError):
        path.rename(gone)
    # a writer that finds its file gone may tidy up after itself at the same time
    shutil.rmtree(gone, onerror=_ignore_missing)


def _ignore_missing(_: object, __: str, failed: Any) -> None:
    if not isinstance(failed[1], FileNotFoundError):
        raise failed[1]


def remove_leftovers(folder: Path, of: str = "*", *, but: str = "", deep: bool = False) -> None:
    """Remove what killed processes left in ``folder``, with ``deep`` also below it, of what they wrote there.

    ``of`` and ``but`` are globs of the names that it was to have.  Nobody else may be writing there.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        name = temporary_target(path.name)
        if name is not None:
            if fnmatch.fnmatchcase(name, of) and not fnmatch.fnmatchcase(name, but):
                remove(path)
        elif deep and path.is_dir() and not path.is_symlink():
            remove_leftovers(path, of, but=but, deep=True)


def temporary_target(name: str) -> str | None:
    """The file that ``name`` is a killed process's unfinished :func:`commit` of; None where it is none."""
    number, _, target = name.removeprefix(TEMPORARY_PREFIX).partition("-")
    return target if name.startswith(TEMPORARY_PREFIX) and number.isdigit() and target else None


def open_no_follow(path: Path, flags: int) -> int:
    """A descriptor of the file at ``path``, behind which no file of somebody else can be.

    It is opened relative to its folder's descriptor, neither of them through a link, and is a regular file
    without a second name; with ``os.O_CREAT`` in ``flags`` a missing one is made, mode 0600.
    ``RunStateError`` where something else lies there, ``FileNotFoundError`` where nothing does.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _not_regular_error(path.parent, error, "folder") from None
    try:
        descriptor = _open_in_folder(folder, path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _not_regular_error(path, error, "file") from None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise RunStateError(f"{path} is not a regular file (a pipe or a hard link): check it, and remove it")


def _open_in_folder(folder: int, name: str, flags: int) -> int:
    while True:
        try:
            return os.open(name, flags & ~os.O_CREAT, dir_fd=folder)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        # another process may make it at the same time
        with suppress(FileExistsError):
            return os.open(name, flags | os.O_EXCL, PRIVATE_FILE, dir_fd=folder)


def _not_regular_error(path: Path, error: OSError, wanted: str) -> Exception:
    """What is said where something other than is ``wanted`` lies at ``path``; else the error itself."""
    if path.is_symlink() or error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return RunStateError(f"{path} is not a {wanted} (a link, or something else): check it, and remove it")
    return error


def list_leaves(folder: Path, but: Collection[Path] = ()) -> Iterator[Path]:
    """What lies below ``folder`` and has nothing below it: files, links, pipes, empty folders.

    No link is followed; ``but`` are folders that are not looked into.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            yield path
        elif path not in but:
            below = list(list_leaves(path, but))
            yield from below or [path]


def list_irregular(folder: Path, but: Collection[Path] = ()) -> list[Path]:
    """What below ``folder`` is neither a folder nor a regular file, as :func:`list_leaves`."""
    kinds = ((path, path.lstat().st_mode) for path in list_leaves(folder, but))
    return [path for path, mode in kinds if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]


def explain_not_regular(folder: Path, name: str) -> str | None:
    """Why what is called ``name``, from ``folder`` on, is not a regular file below it; None where it is."""
    steps, mode = PurePosixPath(name), 0
    if steps.is_absolute() or ".." in steps.parts or "\0" in name:
        return "names a place outside the folder"
    for step in [*steps.parents[-2::-1], steps]:
        try:
            mode = (folder / step).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        if stat.S_ISLNK(mode):
            return "is a link, or inside one"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def write_bytes(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Commit ``data`` to ``path``."""
    with commit(path, mode) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
    """Commit ``text`` in UTF-8 to ``path``; what UTF-8 cannot hold (a file's name can) as an escape."""
    with commit(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any, mode: int = PRIVATE_FILE) -> None:
    """Commit ``value`` as indented JSON; NaN and infinity are refused (``ValueError``)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sync_to_disk(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# A lock that survives crashes: the kernel holds it for a process, and takes it back when that ends.


_LONGEST = 1 << 12
"""Bytes of a holder's name."""
_PAUSE = 0.05
"""Seconds between two attempts at a lock that is waited for."""


@contextmanager
def file_lock(path: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of the file ``path`` for ``what``, with the holder's name in it; it is gone afterwards.

    Waits up to ``patience`` seconds for it.  Raises ``RunStateError`` that names the holder where another
    process has it, on this machine or on another one that shares the folder; where the file system has no
    locks; and where the file, or its folder, is a link or somebody else's (:func:`open_no_follow`).  What a
    crashed holder left counts for nothing.
    """
    try:
        descriptor = open_locked(path, patience)
    except FileNotFoundError:
        raise RunStateError(f"{what}: its folder was removed while it was being locked; try again") from None
    except BlockingIOError as error:
        raise RunStateError(
            f"{what} is being written by {_read_holder(error.strerror or '')}: wait for it, or stop it"
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
        yield
    finally:
        # unlinked while it is held: whoever waits at the old file finds that it is not the lock any more
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of the file ``path``; False where it cannot be known."""
    try:
        descriptor = open_no_follow(path, os.O_RDONLY)
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


def open_locked(path: Path, patience: float = 0.0) -> int:
    """A descriptor of the file at ``path``, locked, made where it is missing; closing it gives the lock back.

    ``BlockingIOError`` where another process has it for longer than ``patience`` seconds, with what stands
    in the file for its text.  A lock on a file that was taken away meanwhile locks nothing, and is not kept.
    """
    deadline = time.monotonic() + patience
    while True:
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                    return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, _LONGEST, 0)
                os.close(descriptor)
                raise BlockingIOError(errno.EWOULDBLOCK, holder.decode("utf-8", "replace")) from None
            time.sleep(_PAUSE)
        except OSError as error:
            os.close(descriptor)
            raise RunStateError(
                f"{path} cannot be locked ({error.strerror}), so a second run would not be noticed: use a "
                "file system that supports locks"
            ) from None
        os.close(descriptor)


def _read_holder(written: str) -> str:
    try:
        holder = json.loads(written)
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        # it has not written its name yet, or is ending right now
        return "another process"


# The names by which a folder is known from outside, for what looks at names alone (shell completion).


SUCCESS = "_SUCCESS"
"""In a folder that is finished: a run, a model, an export."""
MODELS = "models"
"""In a run: one folder a trained model."""
JOB = "_job"
"""In the folder of a nightly job."""

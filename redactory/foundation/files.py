"""Atomic files: written to a temporary name beside their place, synced, then renamed; and file locks."""

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

from redactory.foundation.errors import ConfigurationError, RunStateError

TEMPORARY_PREFIX = ".tmp-"
PRIVATE_FOLDER, PRIVATE_FILE, PUBLIC_FILE = 0o700, 0o600, 0o644
_staging_folders: ContextVar[tuple[Path, Path] | None] = ContextVar("staged", default=None)


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents durably: losing a folder in a crash would lose its files."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        # another user's folder may be unreadable
        with suppress(PermissionError):
            sync_to_disk(folder.parent)


def make_private_folder(path: Path) -> Path:
    """Create ``path`` and its parents; ``path`` itself gets mode 0700 whatever the umask."""
    make_folder(path)
    path.chmod(PRIVATE_FOLDER)
    return path


@contextmanager
def commit_file(path: Path, mode: int = PRIVATE_FILE) -> Iterator[Path]:
    """Yield a temporary path to write; on success sync it and rename it to ``path``, else remove it.

    Through any crash, a reader sees the old file, the new file or none, never a part. ``ConfigurationError`` if
    ``path`` is a device or a pipe: renaming would replace it.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigurationError(f"{path} is a device or a pipe: give the name of a file")
    root, staging = _staging_folders.get() or (None, None)
    if root is None or not path.is_relative_to(root):
        staging = None
    # random, not the process id: two machines that share the folder may have the same
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
    """Within the context, write commits below ``root`` in the folder ``staging`` first, and rename them from there.

    Both are absolute. Once ``staging`` is removed, such commits fail (``FileNotFoundError``): an abandoned worker that
    still runs changes nothing.
    """
    token = _staging_folders.set((root, staging))
    try:
        yield
    finally:
        _staging_folders.reset(token)


def remove_path(path: Path) -> None:
    """Remove a file, a link (never its target) or a whole folder, if it exists.

    For concurrent writers a folder disappears at once. A killed removal leaves a temporary name for
    :func:`remove_leftovers`.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{path.name}")
    with suppress(FileNotFoundError):
        path.rename(doomed)
        # a crash must not bring back a part of it
        sync_to_disk(path.parent)
    # a writer that finds its file gone may clean up at the same time
    shutil.rmtree(doomed, onerror=_ignore_missing_file)


def _ignore_missing_file(_: object, __: str, failed: Any) -> None:
    if not isinstance(failed[1], FileNotFoundError):
        raise failed[1]


def remove_leftovers(folder: Path, pattern: str = "*", *, exclude: str = "", recursive: bool = False) -> None:
    """Remove temporary files of killed processes in ``folder``, with ``recursive`` also below it.

    ``pattern`` and ``exclude`` are globs of the final names. Nobody else may be writing there.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        name = parse_temporary_name(path.name)
        if name is not None:
            if fnmatch.fnmatchcase(name, pattern) and not fnmatch.fnmatchcase(name, exclude):
                remove_path(path)
        elif recursive and path.is_dir() and not path.is_symlink():
            remove_leftovers(path, pattern, exclude=exclude, recursive=True)


def parse_temporary_name(name: str) -> str | None:
    """Return the target of ``name`` if it is an unfinished :func:`commit_file` of a killed process, else None."""
    number, _, target = name.removeprefix(TEMPORARY_PREFIX).partition("-")
    return target if name.startswith(TEMPORARY_PREFIX) and number.isdigit() and target else None


def open_no_follow(path: Path, flags: int) -> int:
    """Open the file at ``path`` safely: a regular file without links or second names.

    It is opened relative to its folder's descriptor, without following links. With ``os.O_CREAT`` in ``flags`` a
    missing file is created with mode 0600. ``RunStateError`` if something else is there, ``FileNotFoundError`` if
    nothing is.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _make_not_regular_error(path.parent, error, "folder") from None
    try:
        safe_flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags | safe_flags, PRIVATE_FILE, dir_fd=folder)
    except OSError as error:
        raise _make_not_regular_error(path, error, "file") from None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise RunStateError(f"{path} is not a regular file (a pipe or a hard link): check it, and remove it")


def _make_not_regular_error(path: Path, error: OSError, expected: str) -> Exception:
    """Explain that ``path`` is not what was ``expected``, if so; else return the original error."""
    if path.is_symlink() or error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return RunStateError(f"{path} is not a {expected} (a link, or something else): check it, and remove it")
    return error


def list_leaf_paths(folder: Path, exclude: Collection[Path] = ()) -> Iterator[Path]:
    """List files, links, pipes and empty folders below ``folder``; follows no link, skips the folders ``exclude``."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            yield path
        elif path not in exclude:
            below = list(list_leaf_paths(path, exclude))
            yield from below or [path]


def list_irregular_paths(folder: Path, exclude: Collection[Path] = ()) -> list[Path]:
    """List what is neither a folder nor a regular file below ``folder``, as :func:`list_leaf_paths`."""
    kinds = ((path, path.lstat().st_mode) for path in list_leaf_paths(folder, exclude))
    return [path for path, mode in kinds if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]


def explain_irregular(folder: Path, name: str) -> str | None:
    """Explain why ``name``, relative to ``folder``, is not a regular file below it; None if it is."""
    parts, mode = PurePosixPath(name), 0
    if parts.is_absolute() or ".." in parts.parts or "\0" in name:
        return "names a place outside the folder"
    for part in [*parts.parents[-2::-1], parts]:
        try:
            mode = (folder / part).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        if stat.S_ISLNK(mode):
            return "is a link, or inside one"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def write_bytes(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Commit ``data`` to ``path``."""
    with commit_file(path, mode) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
    """Commit ``text`` in UTF-8 to ``path``; escape what UTF-8 cannot encode, such as some file names."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), mode)


def write_json(path: Path, value: Any, mode: int = PRIVATE_FILE) -> None:
    """Commit ``value`` as indented JSON; ``ValueError`` for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode)


def read_json(path: Path) -> Any:
    """Read the value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sync_to_disk(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Locks that survive crashes: the kernel releases them when the process ends.


_MAX_HOLDER_BYTES = 1 << 12
"""Maximum bytes of a holder's name."""
_RETRY_DELAY = 0.05
"""Seconds between two attempts to get a lock."""


@contextmanager
def file_lock(path: Path, subject: str, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock file ``path`` for ``subject``, with the holder's name in it; remove it afterwards.

    Waits up to ``timeout`` seconds. ``RunStateError``, naming the holder, if another process has the lock, on this
    machine or another one that shares the folder; also if the file system has no locks, or if the file or its folder is
    a link or somebody else's (:func:`open_no_follow`). A file left by a crash does not block.
    """
    try:
        descriptor = open_and_lock(path, timeout)
    except FileNotFoundError:
        raise RunStateError(f"{subject}: its folder was removed while it was being locked; try again") from None
    except BlockingIOError as error:
        raise RunStateError(
            f"{subject} is being written by {_describe_holder(error.strerror or '')}: wait for it, or stop it"
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
        yield
    finally:
        # unlink while holding it: waiters on the old file notice that it is no longer the lock
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock file ``path``; False if unknown."""
    try:
        with os.fdopen(open_no_follow(path, os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, RunStateError) as error:
        return isinstance(error, BlockingIOError)
    return False


def open_and_lock(path: Path, timeout: float = 0.0) -> int:
    """Open and lock the file at ``path``, creating it if missing; closing the descriptor releases the lock.

    ``BlockingIOError``, with the file's content as text, if another process has it for longer than ``timeout``
    seconds. A lock on a file that was removed meanwhile is useless, and is dropped.
    """
    deadline = time.monotonic() + timeout
    while True:
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                    return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, _MAX_HOLDER_BYTES, 0)
                os.close(descriptor)
                raise BlockingIOError(errno.EWOULDBLOCK, holder.decode("utf-8", "replace")) from None
            time.sleep(_RETRY_DELAY)
        except OSError as error:
            os.close(descriptor)
            raise RunStateError(
                f"{path} cannot be locked ({error.strerror}), so a second run would not be noticed: use a "
                "file system that supports locks"
            ) from None
        os.close(descriptor)


def _describe_holder(content: str) -> str:
    try:
        holder = json.loads(content)
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        # the holder has not written its name yet, or is just ending
        return "another process"


# Names that identify folders, for code that checks only names (shell completion).


SUCCESS = "_SUCCESS"
"""Marks a finished folder: a run, a model, an export."""
MODELS = "models"
"""In a run: one folder per trained model."""
JOB = "_job"
"""In the folder of a scheduled job."""

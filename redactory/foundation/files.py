"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".tmp-"
PRIVATE_FOLDER, PRIVATE_FILE, PUBLIC_FILE = 0o700, 0o600, 0o644


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents for good: a folder lost in a crash would take its files along."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        # somebody else's folder may be closed to reading
        with suppress(PermissionError):
            sync(folder.parent)


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
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    make_folder(path.parent)
    try:
        temporary.touch(mode=PRIVATE_FILE)
        yield temporary
        temporary.chmod(mode)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, of: str = "*") -> None:
    """Remove what killed processes left of the files in ``folder`` (those named ``of``, a glob) they wrote.

    Nobody else may be writing there.
    """
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        process, _, name = path.name.removeprefix(TEMPORARY_PREFIX).partition("-")
        if process.isdigit() and name and fnmatch.fnmatchcase(name, of):
            path.unlink(missing_ok=True)


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


def sync(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

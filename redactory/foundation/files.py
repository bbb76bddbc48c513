"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".tmp-"
PRIVATE_FOLDER, PRIVATE_FILE, PUBLIC_FILE = 0o700, 0o600, 0o644


def make_private_folder(path: Path) -> Path:
    """Create ``path`` and its parents; ``path`` itself gets mode 0700 whatever the umask."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(PRIVATE_FOLDER)
    return path


@contextmanager
def commit(path: Path, mode: int = PRIVATE_FILE) -> Iterator[Path]:
    """Give a temporary path to write; on success sync it and rename it to ``path``, else remove it.

    A reader sees the old file, the new file or none, never a part of one, through any crash.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.touch(mode=PRIVATE_FILE)
        yield temporary
        temporary.chmod(mode)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
    """Commit ``text`` in UTF-8 to ``path``."""
    with commit(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, mode: int = PRIVATE_FILE) -> None:
    """Commit ``value`` as indented JSON; NaN and infinity are refused (``ValueError``)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

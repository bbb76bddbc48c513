"""One way to write a value down, so that equal values have equal hashes everywhere."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """JSON in UTF-8 with sorted keys and no spaces; NaN and infinity are refused (``ValueError``)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # a file's name may be no UTF-8: half of a surrogate pair becomes its escape, which is JSON
    return text.encode("utf-8", "backslashreplace")


def json_sha256(value: Any) -> str:
    """Hex sha256 of ``canonical_json(value)``."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def flatten_keys(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Each value that is no mapping, by the path of its key: ``{"a": {"b": 1}}`` is ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten_keys(inner, f"{above}{key}.") if isinstance(inner, Mapping) else {f"{above}{key}": inner}
    return flat


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice: readers differ in which of the two values they see."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object (for ``object_pairs_hook``); ``DuplicateKeyError`` where a key comes
    again."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise DuplicateKeyError
    return result


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in pieces."""
    digest = hashlib.sha256()
    for block in read_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def read_blocks(path: Path) -> Iterator[bytes]:
    """A file's bytes in pieces."""
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            yield block


def folder_sha256(folder: Path) -> str:
    """Hex sha256 over the relative names and contents of every file below ``folder``, in name order.

    Compiled Python files are left out: they differ between interpreters and change no output.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return json_sha256([[p.relative_to(folder).as_posix(), file_sha256(p)] for p in files])


# Versions of installed packages: looked up once, for none changes while a process lives.


@functools.cache
def package_version(package: str) -> str:
    """The installed version of ``package``; ``importlib.metadata.PackageNotFoundError`` without one."""
    return importlib.metadata.version(package)

"""Canonical JSON and digests: equal values have equal hashes everywhere."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.errors import InputError

_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Return JSON in UTF-8 with sorted keys and no spaces; ``ValueError`` for NaN and infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # file names need not be UTF-8: a lone surrogate becomes its JSON escape
    return text.encode("utf-8", "backslashreplace")


def json_sha256(value: Any) -> str:
    """Hex sha256 of ``canonical_json(value)``."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def flatten_keys(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return each value that is not a mapping, by dotted key: ``{"a": {"b": 1}}`` gives ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten_keys(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice; readers differ in which value they use."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object (for ``object_pairs_hook``); ``DuplicateKeyError`` for a repeated key."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise DuplicateKeyError
    return result


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number, object) of each line that is not blank; ``InputError`` names file and row, and quotes neither.

    A row must be UTF-8 and have no key twice, at any depth.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=reject_duplicate_keys)
                    if not isinstance(row, dict):
                        raise ValueError
                    yield number, row
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; expected JSON lines") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path.name}, row {number}: expected a JSON object in UTF-8 without a repeated key") from None


def file_sha256(path: Path) -> str:
    """Return the hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_blocks(path: Path) -> Iterator[bytes]:
    """Read a file's bytes in blocks."""
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            yield block


def folder_sha256(folder: Path) -> str:
    """Return the hex sha256 over the relative names and contents of every file below ``folder``, in name order.

    Skips compiled Python files: they differ between interpreters and change no output.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return json_sha256([[p.relative_to(folder).as_posix(), file_sha256(p)] for p in files])


@functools.cache
def get_package_version(package: str) -> str:
    """Return the installed version of ``package``, cached; ``importlib.metadata.PackageNotFoundError`` without one."""
    return importlib.metadata.version(package)

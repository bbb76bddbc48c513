"""Finishing a folder: the sha256 of every file into its manifest, the manifest's into ``_SUCCESS``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json, write_json, write_text
from redactory.redaction.folder import SealedFolder


def seal(folder: SealedFolder, body: dict[str, Any], files: Iterable[Path]) -> str:
    """:func:`write_manifest` and then ``_SUCCESS``; the manifest's sha256."""
    write_manifest(folder, body, files)
    return succeed(folder)


def write_manifest(folder: SealedFolder, body: dict[str, Any], files: Iterable[Path]) -> None:
    """Write ``manifest.json``: ``body``, and ``files`` with the sha256 and the size in bytes of each."""
    listed = {
        path.relative_to(folder.root).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in sorted(files)
    }
    write_json(folder.manifest, {**body, "files": listed})


def succeed(folder: SealedFolder) -> str:
    """Finish the folder: the manifest's sha256 goes into ``_SUCCESS``, and is returned."""
    digest = file_sha256(folder.manifest)
    write_text(folder.success, digest + "\n")
    return digest


def is_finished(folder: SealedFolder) -> bool:
    """Whether ``_SUCCESS`` is there."""
    return folder.success.exists()


def read_manifest(folder: SealedFolder) -> dict[str, Any]:
    """The manifest of a finished folder; ``RunStateError`` where it is not finished."""
    if not is_finished(folder):
        raise _unfinished(folder)
    value: dict[str, Any] = read_json(folder.manifest)
    return value


def broken_files(folder: SealedFolder) -> list[str]:
    """What in a finished folder is not as it was sealed: a name and a reason each, in name order.

    A manifest that is not the sealed one is the only answer then: nothing it says can be checked by.
    ``RunStateError`` where the folder is not finished.
    """
    if not is_finished(folder):
        raise _unfinished(folder)
    if not folder.manifest.is_file():
        return ["manifest.json: missing"]
    if folder.success.read_bytes() != f"{file_sha256(folder.manifest)}\n".encode():
        return ["manifest.json: differs from the digest in _SUCCESS"]
    problems = []
    for name, entry in read_manifest(folder)["files"].items():
        path = folder.root / name
        if not path.is_file():
            problems.append(f"{name}: missing")
        elif file_sha256(path) != entry["sha256"]:
            problems.append(f"{name}: sha256 differs")
    return problems


def _unfinished(folder: SealedFolder) -> RunStateError:
    return RunStateError(f"{folder.root.name} is no finished folder: {folder.success.name} is missing")

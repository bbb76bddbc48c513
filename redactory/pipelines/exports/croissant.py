"""Croissant metadata of a run or an export, for whoever publishes it or puts it into a catalogue."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import PRIVATE_FILE, PUBLIC_FILE, write_json
from redactory.pipelines.exports.croissant_document import croissant_document
from redactory.pipelines.exports.export import what_may_be_said
from redactory.redaction import PRIVATE, PUBLIC, RunFolder, broken_files, read_manifest
from redactory.redaction.export_folder import is_export

PUBLISHERS = ("license", "url", "creator", "citeAs")
"""What only the publisher knows; Croissant asks for the first three."""
RUN_FORMAT = "redactory-run/1"


def croissant(
    place: str | Path,
    *,
    out: str | Path | None = None,
    private: bool = False,
    more: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The Croissant JSON-LD of the finished run or export at ``place``: its public side alone.

    With ``private`` a run's private side too; what is said then is as private as the run.  ``more`` has what
    only the publisher knows (:data:`PUBLISHERS`).  Names of files are relative to ``place``, or with ``out``,
    a new .json file outside of it to write, to the folder of that.

    Raises ``RunStateError`` where ``place`` is not finished, ``CheckFailed`` where a file is not as it was
    sealed, ``ConfigurationError`` where the private side is encrypted or there is none, and where the names
    could not lead from ``out`` to the files.
    """
    folder = RunFolder(Path(place))
    manifest = read_manifest(folder)
    broken = broken_files(folder)
    if broken:
        raise CheckFailed(f"{folder.root} is not as it was sealed: {'; '.join(broken)}")
    document = croissant_document(
        _said(folder, manifest), manifest["files"], _sides(manifest, private), _publishers(more or {})
    )
    if out is None:
        return document
    target = Path(out)
    _lead(document, _way(target, folder.root))
    write_json(target, document, PRIVATE_FILE if private else PUBLIC_FILE)
    return document


def _said(folder: RunFolder, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_export(dict(manifest)):
        return manifest
    if manifest.get("format") != RUN_FORMAT:
        raise RunStateError(f"{folder.root} is neither a run nor an export")
    return what_may_be_said(dict(manifest), file_sha256(folder.manifest))


def _sides(manifest: Mapping[str, Any], private: bool) -> tuple[str, ...]:
    if not private:
        return (PUBLIC,)
    if is_export(dict(manifest)):
        raise ConfigurationError("--private: an export holds the public side alone")
    if manifest["encrypted"]:
        raise ConfigurationError("--private: it is encrypted, and no reader of Croissant could open it")
    return (PUBLIC, PRIVATE)


def _publishers(more: Mapping[str, str]) -> dict[str, Any]:
    unknown = set(more) - set(PUBLISHERS)
    if unknown:
        raise ConfigurationError(f"more: there are {', '.join(PUBLISHERS)}")
    creator = {"creator": {"@type": "sc:Organization", "name": more["creator"]}} if "creator" in more else {}
    return {**more, **creator}


def _way(out: Path, place: Path) -> str:
    """How names of ``place`` are reached from the folder of ``out``."""
    if out.suffix != ".json" or out.exists():
        raise ConfigurationError(f"{out}: give a new file whose name ends in .json")
    at, root = out.absolute().parent.resolve(), place.resolve()
    if at == root or at.is_relative_to(root):
        raise ConfigurationError(f"{out}: {place} is sealed; write the file beside it")
    if not root.is_relative_to(at):
        raise ConfigurationError(f"{out}: write it beside {place}, or above, so that its names lead there")
    return root.relative_to(at).as_posix()


def _lead(document: dict[str, Any], way: str) -> None:
    """Have the names of files, and the patterns, lead over ``way``."""
    for entry in document["distribution"]:
        for key in {"contentUrl", "includes"} & entry.keys():
            # a pattern would take some signs of a folder's name for its own, and find another run's shards
            entry[key] = f"{glob.escape(way) if key == 'includes' else way}/{entry[key]}"

"""Finishing a folder: the sha256 of every file into its manifest, the manifest's into ``_SUCCESS``.

Where a signing key is configured, the manifest names it and is signed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import irregular, read_json, why_not_in, write_json, write_text
from redactory.foundation.keys import DigestKey
from redactory.redaction.content import keyed_digest
from redactory.redaction.folder import RunFolder, SealedFolder
from redactory.redaction.shards import content_of, is_encrypted
from redactory.redaction.signing import SIGNED_BY, configured_signer, sign

FORMAT_VERSION = 1
"""The highest that the ``format`` of a manifest may name here, of whatever kind of folder."""
_LONGEST = 1 << 28
"""Bytes of a manifest: some million parts."""
Listing = dict[str, dict[str, Any]]
"""Of each file, by its name in the folder: sha256, bytes and, of an encrypted part, ``content``."""


def seal(folder: SealedFolder, body: dict[str, Any], files: Iterable[Path]) -> str:
    """:func:`write_manifest` and then ``_SUCCESS``; the manifest's sha256."""
    write_manifest(folder, body, list_files(folder, files))
    return succeed(folder)


def list_files(folder: SealedFolder, files: Iterable[Path], key: DigestKey | None = None) -> Listing:
    """The sha256 and the size in bytes of each of ``files``.

    With ``key``, an encrypted part gets the keyed digest of what it holds too: its bytes differ each
    time it is written, its content does not.
    """
    return {path.relative_to(folder.root).as_posix(): _entry(folder, path, key) for path in sorted(files)}


def write_manifest(folder: SealedFolder, body: dict[str, Any], files: Mapping[str, dict[str, Any]]) -> None:
    """Write ``manifest.json``: ``body``, the signer where there is one, and the files' listing."""
    signer = configured_signer()
    signed = {} if signer is None else {SIGNED_BY: signer}
    write_json(folder.manifest, {**body, **signed, "files": files})


def succeed(folder: SealedFolder) -> str:
    """Sign and finish the folder: the manifest's sha256 goes into ``_SUCCESS``, and is returned."""
    sign(folder)
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
    try:
        if why_not_in(folder.root, folder.manifest.name) or folder.manifest.stat().st_size > _LONGEST:
            raise ValueError
        value: dict[str, Any] = read_json(folder.manifest)
        form = str(value.get("format", ""))
    except (OSError, ValueError, AttributeError):
        raise RunStateError(
            f"{folder.root} is no folder that Redactory finished: it has no {folder.manifest.name} that can "
            "be read; give another folder"
        ) from None
    _require_known(folder, form)
    return value


def broken_files(folder: SealedFolder) -> list[str]:
    """What in a finished folder is not as it was sealed: a name and a reason each, in name order.

    A manifest that is not the sealed one is the only answer then: nothing it says can be checked by.
    No link is followed, nothing outside of the folder is read, nor more of a file than its stated size.
    ``RunStateError`` where the folder is not finished.
    """
    if not is_finished(folder):
        raise _unfinished(folder)
    for path in (folder.manifest, folder.success):
        if problem := why_not_in(folder.root, path.name):
            return [f"{path.name}: {problem}"]
    seal = f"{file_sha256(folder.manifest)}\n".encode()
    if folder.success.stat().st_size != len(seal) or folder.success.read_bytes() != seal:
        return ["manifest.json: differs from the digest in _SUCCESS"]
    found = ((name, _broken(folder, name, entry)) for name, entry in read_manifest(folder)["files"].items())
    return [f"{name}: {problem}" for name, problem in found if problem]


def _broken(folder: SealedFolder, name: str, entry: Mapping[str, Any]) -> str | None:
    """How a listed file is not as it was sealed; None where it is."""
    if problem := why_not_in(folder.root, name):
        return problem
    path = folder.root / name
    # of files of another length, which may be any, nothing is read
    whole = path.stat().st_size == entry["bytes"] and file_sha256(path) == entry["sha256"]
    return None if whole else "sha256 differs"


def require_regular(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` holds anything but folders and regular files.

    A part that is a link has its text somewhere else, where nobody would take it out.
    """
    if odd := irregular_in(run):
        raise RunStateError(
            f"{run.root} holds what is neither a folder nor a regular file: {', '.join(odd)}. A finished run "
            "consists of these alone: put the files themselves there"
        )


def irregular_in(run: RunFolder) -> list[str]:
    """The names of what in ``run`` is neither, but for what Prefect, Dask and people who label keep there."""
    kept = (run.orchestrator, run.cluster, run.samples)
    # what is no folder is no finished run, and refused as such
    odd = irregular(run.root, kept) if run.root.is_dir() else []
    return [path.relative_to(run.root).as_posix() for path in odd]


def _require_known(folder: SealedFolder, form: str) -> None:
    """``RunStateError`` where a version to come has written the folder."""
    version = form.rpartition("/")[2]
    if version.isdecimal() and int(version) > FORMAT_VERSION:
        raise RunStateError(
            f"{folder.root.name} has the format {form}, which a newer version of Redactory wrote: upgrade "
            "this one (pip install --upgrade redactory)"
        )


def _entry(folder: SealedFolder, path: Path, key: DigestKey | None) -> dict[str, Any]:
    entry = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    if key is not None and path.suffix == ".parquet" and is_encrypted(path):
        content = content_of(path)
        if content is not None:
            entry["content"] = keyed_digest(key, path.relative_to(folder.root).as_posix(), content)
    return entry


def _unfinished(folder: SealedFolder) -> RunStateError:
    if not folder.root.exists():
        return RunStateError(
            f"{folder.root} is no finished folder: nothing lies there; curate first, or give its place"
        )
    mend = (
        "give a finished one, or go on with what was cut off (redactory curate --resume)"
        if folder.root.is_dir()
        else "a folder is needed, and this is a file"
    )
    return RunStateError(f"{folder.root} is no finished folder: {folder.success.name} is missing; {mend}")

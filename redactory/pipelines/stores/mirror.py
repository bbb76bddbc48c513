"""Mirror: a sealed folder at a URL, as it lies here.

``manifest.json`` goes first and says whose place it is, ``SHA256SUMS`` last but one, ``_SUCCESS`` last.
While anything is written, there is no ``_SUCCESS``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.wording import some
from redactory.pipelines.stores.store import Store
from redactory.redaction import SealedFolder
from redactory.redaction.export_folder import ExportFolder

_HERE = SealedFolder(Path())
MANIFEST, SUCCESS = _HERE.manifest.name, _HERE.success.name
SUMS = ExportFolder(Path()).sums.name
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True)
class PlacedFolder:
    """A finished folder, the sha256 of its manifest, and its files by name, ``_SUCCESS`` not among them."""

    root: Path
    digest: str
    files: Mapping[str, Path]


def sums_text(digests: Mapping[str, str]) -> str:
    """``SHA256SUMS`` as coreutils reads it: a line a file, in name order."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def read_sums(text: str) -> dict[str, str]:
    """The digests of ``SHA256SUMS`` by name; ``CheckFailed`` for a line, or a name, that we do not write."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        path = PurePosixPath(match[2]) if match else PurePosixPath("..")
        if match is None or path.is_absolute() or ".." in path.parts or str(path) != match[2]:
            raise CheckFailed(f"{SUMS}: line {number} names no file with its sha256")
        if match[2] in found:
            raise CheckFailed(f"{SUMS}: line {number} names {match[2]} a second time")
        found[match[2]] = match[1]
    return found


def mirror(
    placed: PlacedFolder, store: Store, earlier: Collection[str] = (), progress: Progress = silent
) -> dict[str, Any]:
    """Make what lies at ``store`` equal to ``placed``; what was done.

    A file that is there already, whole, is not written again: after an interruption ask again.
    ``earlier`` are the digests of manifests that this one stands in the place of.  Raises ``RunStateError``
    where anything else lies there, ``CheckFailed`` where a file is not read back as it was written.
    """
    digests = {name: file_sha256(path) for name, path in placed.files.items()}
    there = store.names()
    known = _known(store, there)
    if there:
        check_own_place(store, there, {placed.digest, *earlier})
        _check_no_strays(store, there, {*digests, *known})
    gone = sorted(there & set(known) - set(digests))
    order = sorted(digests, key=lambda name: (name != MANIFEST, name))
    missing = [
        name
        for name in order
        if name not in there or not _is_same(store, name, placed.files[name], digests[name], known.get(name))
    ]
    finished = SUCCESS in there and not missing and known == digests
    if SUCCESS in there and not finished:
        store.remove(SUCCESS)
    for name in gone:
        store.remove(name)
    size = 0
    for done, name in enumerate(missing, 1):
        _write(store, placed.files[name], name, digests[name])
        size += placed.files[name].stat().st_size
        progress("publish", done, len(missing), "files")
    if not finished:
        mode = placed.files[MANIFEST].stat().st_mode & 0o777
        for name, text in ((SUMS, sums_text(digests)), (SUCCESS, f"{placed.digest}\n")):
            _write_text(store, name, text, mode)
    counts = {"files": len(digests), "written": len(missing), "removed": len(gone), "bytes": size}
    return {"to": store.url, "manifest": placed.digest, **counts}


def _known(store: Store, there: Collection[str]) -> dict[str, str]:
    """What was read back when it was written, by the list of the last time that all of it was."""
    sums = store.read(SUMS) if SUMS in there else None
    return {} if sums is None else read_sums(sums.decode("utf-8", "replace"))


def check_own_place(store: Store, there: Collection[str], manifests: Collection[str]) -> None:
    """``RunStateError`` unless the manifest ``there`` is one of ``manifests``, given by sha256."""
    if MANIFEST not in there or store.digest(MANIFEST) not in manifests:
        raise RunStateError(f"{store.url}: something else lies there; give another place, or remove it")


def _check_no_strays(store: Store, there: Collection[str], ours: Collection[str]) -> None:
    """``RunStateError`` where a file lies there that is none of ``ours``."""
    strays = sorted(set(there) - set(ours) - {SUMS, SUCCESS})
    if strays:
        raise RunStateError(
            f"{store.url}: {some(len(strays), 'file')} there not of what is to lie there, first {strays[0]}; "
            "give another place, or remove them"
        )


def _is_same(store: Store, name: str, path: Path, digest: str, known: str | None) -> bool:
    """Whether a file is there whole: read back now, or already when it was written."""
    return store.size(name) == path.stat().st_size and (known == digest or store.digest(name) == digest)


def _write(store: Store, path: Path, name: str, digest: str) -> None:
    store.put(path, name)
    if store.digest(name) != digest:
        raise CheckFailed(f"{store.url}/{name} is not read back as it was written; ask again")


def _write_text(store: Store, name: str, text: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        _write(store, path, name, file_sha256(path))

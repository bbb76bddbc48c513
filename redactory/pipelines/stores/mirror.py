"""Mirror: a sealed folder at a URL, as it lies here.

``manifest.json`` goes first and says whose place it is, ``SHA256SUMS`` last but one, ``_SUCCESS`` last.
While anything is written, there is no ``_SUCCESS``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import left_of
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
    """A finished folder, the sha256 of its manifest, and its files by name, ``_SUCCESS`` not among them.

    ``earlier`` are manifests that this one stands in the place of, ``former`` the names that the folder may
    have had a file of before.
    """

    root: Path
    digest: str
    files: Mapping[str, Path]
    earlier: Sequence[Path] = ()
    former: frozenset[str] = frozenset()


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
    placed: PlacedFolder, store: Store, progress: Progress = silent, last: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Make what lies at ``store`` equal to ``placed``; what was done.

    A file that is there already, whole, is not written again: after an interruption ask again.  ``last`` is
    asked before the end is written, and raises where nothing may leave any more.  Raises ``RunStateError``
    where anything else lies there, ``CheckFailed`` where a file is not read back as it was written.
    """
    digests = {name: file_sha256(path) for name, path in placed.files.items()}
    there = store.names()
    known = _known(store, there)
    ours = {*digests, *known, *placed.former}
    left = {name for name in there if _begun(name) in {*ours, SUMS, SUCCESS}}
    there -= left
    if there:
        check_own_place(store, there, [placed.files[MANIFEST], *placed.earlier])
        _check_no_strays(store, there, ours)
    gone = sorted((there & ours - set(digests)) | left)
    # a folder's own _SUCCESS after its files, for whoever reads the store with other programs
    order = sorted(digests, key=lambda name: (name != MANIFEST, name.endswith(f"/{SUCCESS}"), name))
    missing = [
        name
        for name in order
        if name not in there or not _is_same(store, name, placed.files[name], digests[name], known.get(name))
    ]
    end = f"{placed.digest}\n"
    finished = not missing and known == digests and SUCCESS in there and store.read(SUCCESS) == end.encode()
    if SUCCESS in there and not finished:
        store.remove(SUCCESS)
    for name in gone:
        store.remove(name)
    size = 0
    for done, name in enumerate(missing, 1):
        _write(store, placed.files[name], name, digests[name])
        size += placed.files[name].stat().st_size
        progress("publish", done, len(missing), "files")
    last()
    if not finished:
        mode = placed.files[MANIFEST].stat().st_mode & 0o777
        for name, text in ((SUMS, sums_text(digests)), (SUCCESS, end)):
            _write_text(store, name, text, mode)
    counts = {"files": len(digests), "written": len(missing), "removed": len(gone), "bytes": size}
    return {"to": store.url, "manifest": placed.digest, **counts}


def _begun(name: str) -> str | None:
    """The file that ``name`` is an unfinished writing of, as a killed process leaves it; None for others."""
    folder, _, last = name.rpartition("/")
    own = left_of(last)
    return f"{folder}/{own}" if own and folder else own


def _known(store: Store, there: Collection[str]) -> dict[str, str]:
    """What was read back when it was written, by the list of the last time that all of it was.

    Of a list that was cut off, its whole lines.
    """
    sums = store.read(SUMS) if SUMS in there else None
    text = "" if sums is None else sums.decode("utf-8", "replace")
    try:
        return read_sums(text[: text.rfind("\n") + 1])
    except CheckFailed:
        return {}


def check_own_place(store: Store, there: Collection[str], manifests: Iterable[Path]) -> None:
    """``RunStateError`` unless the manifest ``there`` is one of ``manifests``, or the beginning of one."""
    lies = store.read(MANIFEST) if MANIFEST in there else None
    if lies is None or not any(path.read_bytes().startswith(lies) for path in manifests):
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

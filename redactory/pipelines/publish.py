"""Mirror: a sealed folder at a URL, as it lies here.

``manifest.json`` goes first and says whose place it is, ``SHA256SUMS`` last but one, ``_SUCCESS`` last.
While anything is written, there is no ``_SUCCESS``.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError, some
from redactory.foundation.files import PRIVATE_FILE, PUBLIC_FILE, left_of, make_private_folder, sync
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.leaving import leaving
from redactory.pipelines.output_folder import new_folder, open_to_read
from redactory.pipelines.release_log import log_of
from redactory.pipelines.sealed import sealed
from redactory.pipelines.store import Store, is_url, without_secrets
from redactory.redaction import (
    ModelFolder,
    RunFolder,
    SealedFolder,
    broken_files,
    is_finished,
    read_manifest,
)
from redactory.redaction.folder import ExportFolder, is_export
from redactory.redaction.releases import releases

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


# Publish: a finished run at a URL, file by file, and back again.


def publish(run: str | Path, url: str, progress: Progress = silent) -> dict[str, Any]:
    """Mirror a finished run, with its models, at ``url`` (any that fsspec or pyarrow knows).

    ``{"run", "to", "manifest", "files", "written", "removed", "bytes"}``, ``bytes`` those of what was
    written.  Not brought along: samples that people label (open text), sealed tracebacks, work files.
    Raises ``RunStateError`` where the run is not finished, is held, or its private part is not encrypted, and
    where another run lies at ``url``; ``CheckFailed`` where a file is not as it was sealed, here or there;
    ``StoreError`` where the store does not do what it is asked.
    """
    folder = RunFolder(Path(run))
    return sealed(folder.state, _publish, folder, url, progress)


def _publish(run: RunFolder, url: str, progress: Progress) -> dict[str, Any]:
    with leaving(run) as still:
        if not read_manifest(run)["encrypted"]:
            raise RunStateError(
                f"{run.root} is not encrypted, and its private part would lie open at "
                f"{without_secrets(url)}: curate with an encryption key (redactory keys new encryption), or "
                f"send the public side alone (redactory export {run.root} --to URL)"
            )
        placed = PlacedFolder(
            run.root, file_sha256(run.manifest), _listing(run), _manifests(run), _former(run)
        )
        return {"run": str(run.root), **mirror(placed, Store.at(url), progress, still)}


def _manifests(run: RunFolder) -> list[Path]:
    """The manifests of a finished run, the present one and those before it."""
    *before, _ = releases(run)
    return [*(run.release(release.number).manifest for release in before), run.manifest]


def _former(run: RunFolder) -> frozenset[str]:
    """What a place may hold of the run as it was: parts that went since, measurements, its key."""
    names = {name for release in releases(run) for name in release.manifest["files"]}
    paths = [run.report, run.journal, run.data_key, run.release_log]
    for folder in (run.recall, run.redaction, run.gate):
        paths += [folder.manifest, folder.signature, folder.success, folder.root / "result.json"]
    return frozenset(names | {path.relative_to(run.root).as_posix() for path in paths})


def _listing(run: RunFolder) -> dict[str, Path]:
    """What is brought along, by its name, and nothing else; ``_SUCCESS`` is written at the end."""
    found: list[Path] = []
    for folder in _sealed_folders(run):
        found += _files_of(folder)
    models = [run.model(name) for name in run.model_names()]
    beside = [run.report, run.journal, run.data_key, log_of(run)]
    for model in models:
        beside += [model.report, model.measured]
    found += [path for path in beside if path.is_file() and path.is_relative_to(run.root)]
    for number in range(1, read_manifest(run).get("release", 1)):
        kept = run.release(number)
        found += [path for path in (kept.manifest, kept.signature) if path.is_file()]
    found.remove(run.success)
    return {path.relative_to(run.root).as_posix(): path for path in found}


def _sealed_folders(run: RunFolder) -> list[SealedFolder]:
    """The run, its models and everything that was measured; ``CheckFailed`` where one is not as sealed."""
    models: list[ModelFolder] = [run.model(name) for name in run.model_names()]
    results = [model.result(path.parent.name) for model in models for path in model.root.glob("*/_SUCCESS")]
    # what the report shows
    found = [folder for folder in (run.recall, run.redaction, run.gate) if folder.success.exists()]
    folders = [run, *models, *results, *found]
    for folder in folders:
        broken = broken_files(folder)
        if broken:
            raise CheckFailed(f"{folder.root.name} is not as it was sealed, and stays here: {broken[0]}")
    return folders


def _files_of(folder: SealedFolder) -> list[Path]:
    listed = [folder.root / name for name in read_manifest(folder)["files"]]
    signed = [folder.signature] if folder.signature.exists() else []
    # a folder's own _SUCCESS after its files, for whoever reads the store with other programs
    return [path for path in listed if path.exists()] + [folder.manifest, *signed, folder.success]


def publish_configured(store: str | None, result: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """``result`` of a command on a run, and under ``published`` what was done where a URL is configured."""
    if store is None:
        return dict(result)
    return {**result, "published": publish(result["run"], store, progress)}


def check_store(store: str | None, run: RunFolder) -> None:
    """Refuse, before any work, a store that ``run`` could not be published to at its end.

    ``StoreError`` where it cannot be read, ``RunStateError`` where the run would not be encrypted, and where
    something else lies there.
    """
    from redactory.redaction.keyservice import configured_service

    if store is None:
        return
    if configured_service() is None:
        raise RunStateError(
            f"output: a run at {without_secrets(store)} needs an encryption key: its private part would lie "
            "there in the open (redactory keys new encryption FILE makes one, and "
            "REDACTORY_ENCRYPTION_KEY_FILE names it)"
        )
    there = Store.at(store)
    names = there.names()
    if names:
        check_own_place(there, names, _manifests(run) if is_finished(run) else [])


# Fetch: a published run or an export from a URL into a new folder, every digest compared.


WORK_VARIABLE = "REDACTORY_WORK"
"""The folder in which runs are worked on whose output is a URL, and in which one is checked."""


def fetch(url: str, to: str | Path, progress: Progress = silent) -> dict[str, Any]:
    """Bring what ``publish`` or ``export`` finished at ``url`` into the new folder ``to``.

    ``{"from", "to", "manifest", "files", "bytes"}``.  Private files get mode 0600, private folders 0700.
    An interrupted fetch goes on where it stopped.  Raises ``RunStateError`` where ``to`` exists or nothing
    finished lies at ``url``, ``CheckFailed`` where a file is missing there or is not the one that was
    published, ``StoreError`` where the store does not do what it is asked.
    """
    if not is_url(url):
        raise ConfigurationError(f"{url} is no URL: a folder on this machine needs no fetching")
    store, place = Store.at(url), Path(to)
    if place.exists():
        raise RunStateError(f"{place} exists; give a new folder")
    seal, digests, sums = _listed(store)
    with new_folder(place) as staging:
        for done, (name, digest) in enumerate(sorted(digests.items()), 1):
            _bring(store, name, staging / name, digest)
            progress("fetch", done, len(digests), "files")
        _check_nothing_else(staging, digests)
        _finish(store, staging, seal, sums)
        size = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    counts = {"files": len(digests), "bytes": size}
    return {"from": store.url, "to": str(place), "manifest": seal.decode().strip(), **counts}


@contextmanager
def fetched(url: str, progress: Progress = silent) -> Iterator[Path]:
    """What lies at ``url``, in a private folder (below ``$REDACTORY_WORK`` where set), gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="redactory-", dir=os.environ.get(WORK_VARIABLE)) as folder:
        place = Path(folder) / (url.rstrip("/").rpartition("/")[2] or "run")
        fetch(url, place, progress)
        yield place


def _listed(store: Store) -> tuple[bytes, dict[str, str], bytes]:
    """``_SUCCESS``, the digests by name, and ``SHA256SUMS`` as it lies there."""
    seal, sums = store.read(SUCCESS), store.read(SUMS)
    if seal is None or sums is None:
        missing = SUCCESS if seal is None else SUMS
        raise RunStateError(f"{store.url}: nothing finished lies there ({missing} is missing)")
    digests = read_sums(sums.decode("utf-8", "replace"))
    if seal != f"{digests.get(MANIFEST)}\n".encode():
        raise CheckFailed(f"{store.url}: {SUCCESS} names another manifest than {SUMS}")
    return seal, digests, sums


def _bring(store: Store, name: str, path: Path, digest: str) -> None:
    if path.is_file() and file_sha256(path) == digest:
        return
    make_private_folder(path.parent)
    if store.size(name) is None:
        raise CheckFailed(f"{store.url}/{name} is missing")
    path.touch(mode=PRIVATE_FILE)
    store.get(name, path)
    if file_sha256(path) != digest:
        raise CheckFailed(f"{store.url}/{name} is not what was published: its sha256 differs")
    sync(path)


def _check_nothing_else(staging: Path, digests: dict[str, str]) -> None:
    """An interrupted fetch of something else may have left files in ``staging``."""
    there = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()}
    if strays := sorted(there - set(digests) - {SUCCESS, SUMS}):
        raise RunStateError(f"{staging} holds {strays[0]}, left from another fetch; remove that folder")


def _finish(store: Store, staging: Path, seal: bytes, sums: bytes) -> None:
    """Modes as they are where such a folder is made, the seal, and whether the seal holds."""
    folder = SealedFolder(staging)
    folder.success.touch(mode=PRIVATE_FILE)
    folder.success.write_bytes(seal)
    problems = broken_files(folder)
    if problems:
        raise CheckFailed(f"{store.url}: {'; '.join(problems)}")
    if is_export(read_manifest(folder)):
        ExportFolder(staging).sums.write_bytes(sums)
        open_to_read(staging)
        return
    run = RunFolder(staging)
    for below in (*run.data_folders, *(path for path in staging.rglob("*") if path.is_dir())):
        make_private_folder(below)
    for path in run.public.iterdir():
        path.chmod(PUBLIC_FILE)

"""Sharing: what forbids that a run leaves, how it is held while it does, and finished folders at a URL.

At a URL ``manifest.json`` goes first and says whose place it is, ``SHA256SUMS`` last but one, ``_SUCCESS``
last.  While anything is written, there is no ``_SUCCESS``.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.detectors import blind_words
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError, listed, some
from redactory.foundation.files import (
    PRIVATE_FILE,
    PUBLIC_FILE,
    left_of,
    make_private_folder,
    only_one,
    sync,
    write_text,
)
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.output_folder import new_folder, open_to_read
from redactory.pipelines.release_log import check_released, log_of
from redactory.pipelines.sealed import sealed
from redactory.pipelines.store import Store, is_url, without_secrets
from redactory.redaction import (
    RunFolder,
    SealedFolder,
    broken_files,
    is_finished,
    list_files,
    read_manifest,
    require_regular,
    succeed,
    write_manifest,
)
from redactory.redaction.encryption import configured_service
from redactory.redaction.folder import ExportFolder, is_export
from redactory.redaction.sealing import releases, sign

PATIENCE = 60.0
"""Seconds that what leaves waits for another export, or for an erasure at its end."""
_HERE = ExportFolder(Path())
MANIFEST, SUCCESS, SUMS = _HERE.manifest.name, _HERE.success.name, _HERE.sums.name
WORK_VARIABLE = "REDACTORY_WORK"
"""The folder in which runs are worked on whose output is a URL, and in which one is checked."""


def what_forbids(manifest: Mapping[str, Any]) -> str | None:
    """Why the run of this manifest must not leave, with the mend; None where nothing forbids it."""
    blind = manifest["blind"]
    accepted = manifest["configuration"]["release"].get("allow_uncovered_kinds", ())
    open_ = [kind for kind in blind["kinds"] if kind not in accepted]
    if not open_:
        return None
    needed = f"an engine that finds {listed(open_)} in that language"
    if "EVERYTHING" in open_:
        needed = "labels that are masked"
    return (
        f"{blind_words(blind)} Curate with {needed}, or accept the misses and curate with "
        f"release.allow_uncovered_kinds: [{', '.join(open_)}]"
    )


@contextmanager
def leaving(run: RunFolder) -> Iterator[Callable[[], None]]:
    """Hold a finished run while it, or a part of it, leaves: nobody changes it, or decides about it.

    Gives what is to be asked again just before the last step, where a lock alone may not do (another machine,
    a folder that was put back): both raise ``RunStateError`` where nothing may leave, or not any more.
    """

    def may_leave() -> str:
        manifest = read_manifest(run)
        require_regular(run)
        check_released(run)
        if (why := what_forbids(manifest)) is not None:
            raise CheckFailed(f"cannot export {run.root}: {why}")
        if run.reissue.plan.is_file():
            raise RunStateError(
                f"an erasure or purge of {run.root} was interrupted; run it again first (redactory "
                "erasure, redactory purge)"
            )
        return file_sha256(run.manifest)

    read_manifest(run)  # a place that holds no run gets no lock by being asked for
    with only_one(run.lock, str(run.root), PATIENCE):
        began = may_leave()

        def still() -> None:
            if may_leave() != began:
                raise RunStateError(f"{run.root} changed during the export: try again")

        yield still


def names_in(folder: Path) -> dict[str, Path]:
    """Every file below ``folder``, by its name relative to it."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def sums_text(digests: Mapping[str, str]) -> str:
    """``SHA256SUMS`` as coreutils reads it: a line a file, in name order."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def read_sums(text: str) -> dict[str, str]:
    """The digests of ``SHA256SUMS`` by name; ``CheckFailed`` for a line, or a name, that we do not write."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        path = PurePosixPath(match[2]) if match else PurePosixPath("..")
        if match is None or path.is_absolute() or ".." in path.parts or str(path) != match[2]:
            raise CheckFailed(f"{SUMS}: line {number} is not a file with its sha256")
        if match[2] in found:
            raise CheckFailed(f"{SUMS}: line {number} names {match[2]} a second time")
        found[match[2]] = match[1]
    return found


def finish_export(made: ExportFolder, body: dict[str, Any]) -> dict[str, Path]:
    """Seal what was made, and let everybody read it; its files by name."""
    write_manifest(made, body, list_files(made, names_in(made.root).values()))
    sign(made)
    write_text(made.sums, sums_text({name: file_sha256(path) for name, path in names_in(made.root).items()}))
    succeed(made)
    open_to_read(made.root)
    return names_in(made.root)


# One protocol for every finished folder that is written to a store.


def mirror(
    files: Mapping[str, Path],
    store: Store,
    progress: Progress = silent,
    last: Callable[[], None] = lambda: None,
    earlier: Iterable[Path] = (),
    former: Collection[str] = (),
) -> dict[str, Any]:
    """Make what lies at ``store`` equal to a finished folder; what was done.

    ``files`` are its files by name, without ``_SUCCESS``; ``earlier`` manifests that it stands in the place
    of, ``former`` the names that it may have had a file of before.  A file that is there already, whole, is
    not written again: after an interruption ask again.  ``last`` is asked before the end is written, and
    raises where nothing may leave any more.  Raises ``RunStateError`` where anything else lies there,
    ``CheckFailed`` where a file is not read back as it was written.
    """
    digests = {name: file_sha256(path) for name, path in files.items()}
    there = store.names()
    known = _known_sums(store) if SUMS in there else {}
    ours = {*digests, *known, *former, SUMS, SUCCESS}
    left = {name for name in there if _begun(name) in ours}
    there -= left
    if there:
        check_own_place(store, there, [files[MANIFEST], *earlier])
        if strays := sorted(there - ours):
            raise RunStateError(
                f"{store.url}: {some(len(strays), 'unexpected file')}, first {strays[0]}; give another "
                "place, or remove them"
            )

    def is_there(name: str) -> bool:
        """Whether a file is there whole: read back now, or already when it was written."""
        if name not in there or store.size(name) != files[name].stat().st_size:
            return False
        return known.get(name) == digests[name] or store.digest(name) == digests[name]

    # a folder's own _SUCCESS after its files, for whoever reads the store with other programs
    order = sorted(digests, key=lambda name: (name != MANIFEST, name.endswith(f"/{SUCCESS}"), name))
    missing = [name for name in order if not is_there(name)]
    gone = sorted((there - {*digests, SUMS, SUCCESS}) | left)
    end = f"{digests[MANIFEST]}\n"
    finished = not missing and known == digests and SUCCESS in there and store.read(SUCCESS) == end.encode()
    if SUCCESS in there and not finished:
        store.remove(SUCCESS)
    for name in gone:
        store.remove(name)
    for done, name in enumerate(missing, 1):
        _put(store, files[name], name, digests[name])
        progress("publish", done, len(missing), "files")
    last()
    if not finished:
        _end(store, {SUMS: sums_text(digests), SUCCESS: end}, files[MANIFEST].stat().st_mode & 0o777)
    size = sum(files[name].stat().st_size for name in missing)
    counts = {"files": len(digests), "written": len(missing), "removed": len(gone), "bytes": size}
    return {"to": store.url, "manifest": digests[MANIFEST], **counts}


def _known_sums(store: Store) -> dict[str, str]:
    """What was read back when it was written; of a list that was cut off, its whole lines."""
    text = (store.read(SUMS) or b"").decode("utf-8", "replace")
    try:
        return read_sums(text[: text.rfind("\n") + 1])
    except CheckFailed:
        return {}


def _put(store: Store, path: Path, name: str, digest: str) -> None:
    store.put(path, name)
    if store.digest(name) != digest:
        raise CheckFailed(f"{store.url}/{name} differs from what was written; try again")


def _end(store: Store, texts: Mapping[str, str], mode: int) -> None:
    """Write the last files, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            path.chmod(mode)
            _put(store, path, name, file_sha256(path))


def _begun(name: str) -> str | None:
    """The file that ``name`` is an unfinished writing of, as a killed process leaves it; None for others."""
    folder, _, last = name.rpartition("/")
    own = left_of(last)
    return f"{folder}/{own}" if own and folder else own


def check_own_place(store: Store, there: Collection[str], manifests: Iterable[Path]) -> None:
    """``RunStateError`` unless the manifest ``there`` is one of ``manifests``, or the beginning of one."""
    lies = store.read(MANIFEST) if MANIFEST in there else None
    if lies is None or not any(path.read_bytes().startswith(lies) for path in manifests):
        raise RunStateError(f"{store.url}: something else is already there; give another place, or remove it")


# Publish: a finished run at a URL, file by file.


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
                f"{run.root} is not encrypted, so its private part would be readable at "
                f"{without_secrets(url)}: curate with an encryption key (redactory keys new encryption), or "
                f"publish only the public split (redactory export {run.root} --to URL)"
            )
        files, former = _files_of(run)
        done = mirror(files, Store.at(url), progress, still, _manifests(run), former)
        return {"run": str(run.root), **done}


def _manifests(run: RunFolder) -> list[Path]:
    """The manifests of a finished run, the present one and those before it."""
    *before, _ = releases(run)
    return [*(run.release(release.number).manifest for release in before), run.manifest]


def _files_of(run: RunFolder) -> tuple[dict[str, Path], set[str]]:
    """What is brought along, by its name, and nothing else, and the names that may have been before.

    ``CheckFailed`` where the run, a model or what was measured is not as it was sealed.
    """
    models = [run.model(name) for name in run.model_names()]
    beside = [run.report, run.journal, run.data_key, log_of(run)]
    found = [*beside, *(page for model in models for page in (model.report, model.measured))]
    for manifest in _manifests(run)[:-1]:
        found += [manifest, SealedFolder(manifest.parent).signature]
    for folder in (run, *run.sealed_folders()):
        if broken := broken_files(folder):
            raise CheckFailed(f"cannot publish {folder.root.name}, which changed after sealing: {broken[0]}")
        found += [folder.root / name for name in read_manifest(folder)["files"]]
        found += [folder.manifest, folder.signature, folder.success]
    seals = [path for f in run.measured for path in (f.manifest, f.signature, f.success, f.root / "result.json")]
    former = {name for release in releases(run) for name in release.manifest["files"]}

    def named(paths: Iterable[Path]) -> dict[str, Path]:
        return {p.relative_to(run.root).as_posix(): p for p in paths if p.is_relative_to(run.root)}

    there = {name: path for name, path in named(found).items() if path.is_file() and path != run.success}
    return there, {*former, *named((*beside, *seals))}


def publish_configured(store: str | None, result: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """``result`` of a command on a run, and under ``published`` what was done where a URL is configured."""
    published = {} if store is None else {"published": publish(result["run"], store, progress)}
    return {**result, **published}


def check_store(store: str | None, run: RunFolder) -> None:
    """Refuse, before any work, a store that ``run`` could not be published to at its end.

    ``StoreError`` where it cannot be read, ``RunStateError`` where the run would not be encrypted, and where
    something else lies there.
    """
    if store is None:
        return
    if configured_service() is None:
        raise RunStateError(
            f"output: a run at {without_secrets(store)} needs an encryption key, or its private part would "
            "be readable there (create one with redactory keys new encryption FILE, and set "
            "REDACTORY_ENCRYPTION_KEY_FILE)"
        )
    there = Store.at(store)
    if names := there.names():
        check_own_place(there, names, _manifests(run) if is_finished(run) else [])


# Fetch: a published run or an export from a URL into a new folder, every digest compared.


def fetch(url: str, to: str | Path, progress: Progress = silent) -> dict[str, Any]:
    """Bring what ``publish`` or ``export`` finished at ``url`` into the new folder ``to``.

    ``{"from", "to", "manifest", "files", "bytes"}``.  Private files get mode 0600, private folders 0700.
    An interrupted fetch goes on where it stopped.  Raises ``RunStateError`` where ``to`` exists or nothing
    finished lies at ``url``, ``CheckFailed`` where a file is missing there or is not the one that was
    published, ``StoreError`` where the store does not do what it is asked.
    """
    if not is_url(url):
        raise ConfigurationError(f"{url} is not a URL: a folder on this machine need not be fetched")
    store, place = Store.at(url), Path(to)
    if place.exists():
        raise RunStateError(f"{place} exists; give a new folder")
    seal, sums = store.read(SUCCESS), store.read(SUMS)
    if seal is None or sums is None:
        missing = SUCCESS if seal is None else SUMS
        raise RunStateError(f"{store.url}: nothing finished is there ({missing} is missing)")
    digests = read_sums(sums.decode("utf-8", "replace"))
    if seal != f"{digests.get(MANIFEST)}\n".encode():
        raise CheckFailed(f"{store.url}: the manifest in {SUCCESS} is not the one in {SUMS}")
    with new_folder(place, resume=True) as staging:
        for done, (name, digest) in enumerate(sorted(digests.items()), 1):
            _bring(store, name, staging / name, digest)
            progress("fetch", done, len(digests), "files")
        if strays := sorted(names_in(staging).keys() - digests.keys() - {SUCCESS, SUMS}):
            raise RunStateError(f"{staging} has {strays[0]}, left from another fetch; remove that folder")
        folder, run = SealedFolder(staging), RunFolder(staging)
        folder.success.touch(mode=PRIVATE_FILE)
        folder.success.write_bytes(seal)
        if problems := broken_files(folder):
            raise CheckFailed(f"{store.url}: {'; '.join(problems)}")
        if is_export(read_manifest(folder)):
            ExportFolder(staging).sums.write_bytes(sums)
            open_to_read(staging)
        else:
            for below in (*run.data_folders, *(path for path in staging.rglob("*") if path.is_dir())):
                make_private_folder(below)
            for path in run.public.iterdir():
                path.chmod(PUBLIC_FILE)
        size = sum(path.stat().st_size for path in names_in(staging).values())
    counts = {"files": len(digests), "bytes": size}
    return {"from": store.url, "to": str(place), "manifest": seal.decode().strip(), **counts}


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


@contextmanager
def fetched(url: str, progress: Progress = silent) -> Iterator[Path]:
    """What lies at ``url``, in a private folder (below ``$REDACTORY_WORK`` where set), gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="redactory-", dir=os.environ.get(WORK_VARIABLE)) as folder:
        place = Path(folder) / (url.rstrip("/").rpartition("/")[2] or "run")
        fetch(url, place, progress)
        yield place

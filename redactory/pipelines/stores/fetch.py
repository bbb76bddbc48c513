"""Fetch: a published run or an export from a URL into a new folder, every digest compared."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import PRIVATE_FILE, PUBLIC_FILE, make_private_folder, sync
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.new_folder import new_folder, open_to_read
from redactory.pipelines.stores.mirror import MANIFEST, SUCCESS, SUMS, read_sums
from redactory.pipelines.stores.store import Store, is_url
from redactory.redaction import RunFolder, SealedFolder, broken_files, read_manifest
from redactory.redaction.export_folder import ExportFolder, is_export

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

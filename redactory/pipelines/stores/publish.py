"""Publish: a finished run at a URL, file by file, and back again.

What is there is taken for a run only once ``_SUCCESS`` is, which is written last, after every file was
read back; ``SHA256SUMS`` beside it lists them.  Asked again, only what is new is written, and what the run
has no more is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.leaving import leaving
from redactory.pipelines.releases.log import log_of
from redactory.pipelines.sealed import sealed
from redactory.pipelines.stores.mirror import PlacedFolder, check_own_place, mirror
from redactory.pipelines.stores.store import Store, without_secrets
from redactory.redaction import (
    ModelFolder,
    RunFolder,
    SealedFolder,
    broken_files,
    is_finished,
    read_manifest,
)
from redactory.redaction.releases import releases


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

"""Share finished folders: check that a run may leave, lock it meanwhile, mirror it to a URL, fetch it back.

``manifest.json``, which identifies the folder, is written first, ``SHA256SUMS`` last but one, ``_SUCCESS`` last.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.detectors import describe_gaps
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError, join_words, pluralize
from redactory.foundation.files import PUBLIC_FILE, make_private_folder, parse_temporary_name, write_text
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.output_folder import create_folder_atomically, lock_folders, make_world_readable
from redactory.pipelines.curation.release_log import check_released, get_log_path
from redactory.pipelines.store import Store, is_url, remove_credentials
from redactory.redaction import (
    ModelFolder,
    RunFolder,
    is_finished,
    list_broken_files,
    list_files,
    read_manifest,
    require_regular_files,
    write_manifest,
    write_success,
)
from redactory.redaction.encryption import load_configured_service
from redactory.redaction.folder import ExportFolder, is_export
from redactory.redaction.sealing import list_releases, sign_manifest

LOCK_TIMEOUT = 60.0
"""Seconds that an export waits for another export, or for an erasure."""
_EXPORT = ExportFolder(Path())
MANIFEST, SUCCESS, SUMS = _EXPORT.manifest.name, _EXPORT.success.name, _EXPORT.sums.name
WORK_VARIABLE = "REDACTORY_WORK"
"""Variable with the folder for runs whose output is a URL, and for downloads that are checked."""


def explain_release_blocker(manifest: Mapping[str, Any]) -> str | None:
    """Return why the run of this manifest must not be shared, and the fix; None if it may be."""
    gaps = manifest["uncovered"]
    allowed = manifest["configuration"]["release"].get("allow_uncovered_kinds", ())
    uncovered = [kind for kind in gaps["kinds"] if kind not in allowed]
    if not uncovered:
        return None
    remedy = f"an engine that finds {join_words(uncovered)} in that language"
    if "EVERYTHING" in uncovered:
        remedy = "labels that are masked"
    return (
        f"{describe_gaps(gaps)} Curate with {remedy}, or accept the misses and curate with "
        f"release.allow_uncovered_kinds: [{', '.join(uncovered)}]"
    )


@contextmanager
def export_lock(run: RunFolder) -> Iterator[Callable[[], None]]:
    """Lock a finished run while it, or a part of it, is exported; yield a function that checks it again.

    Call that function just before the last step: the lock does not exclude another machine, or a folder restored from a
    backup. Both raise ``RunStateError`` if the run must not, or no longer, be exported.
    """

    def check_exportable() -> str:
        manifest = read_manifest(run)
        require_regular_files(run)
        check_released(run)
        if (blocker := explain_release_blocker(manifest)) is not None:
            raise CheckFailed(f"cannot export {run.root}: {blocker}")
        if run.reissue.plan.is_file():
            raise RunStateError(
                f"an erasure or purge of {run.root} was interrupted; run it again first (redactory "
                "erase, redactory purge)"
            )
        return file_sha256(run.manifest)

    read_manifest(run)  # do not create a lock in a folder without a run
    with lock_folders(run, timeout=LOCK_TIMEOUT):
        digest = check_exportable()

        def ensure_unchanged() -> None:
            if check_exportable() != digest:
                raise RunStateError(f"{run.root} changed during the export: try again")

        yield ensure_unchanged


def map_files_by_name(folder: Path) -> dict[str, Path]:
    """Return every file below ``folder`` by its relative name."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def format_checksums(digests: Mapping[str, str]) -> str:
    """Format ``SHA256SUMS`` for coreutils: a line per file, by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def parse_checksums(text: str) -> dict[str, str]:
    """Return the digests in ``SHA256SUMS`` by name; ``CheckFailed`` for a line or name that we never write."""
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        path = PurePosixPath(match[2]) if match else PurePosixPath("..")
        if match is None or path.is_absolute() or ".." in path.parts or str(path) != match[2]:
            raise CheckFailed(f"{SUMS}: line {number} is not a file with its sha256")
        if match[2] in digests:
            raise CheckFailed(f"{SUMS}: line {number} names {match[2]} a second time")
        digests[match[2]] = match[1]
    return digests


def finish_export(export: ExportFolder, manifest: dict[str, Any]) -> dict[str, Path]:
    """Seal an export and make it readable for everybody; return its files by name."""
    write_manifest(export, manifest, list_files(export, map_files_by_name(export.root).values()))
    sign_manifest(export)
    digests = {name: file_sha256(path) for name, path in map_files_by_name(export.root).items()}
    write_text(export.sums, format_checksums(digests))
    write_success(export)
    make_world_readable(export.root)
    return map_files_by_name(export.root)


# One protocol for copying any finished folder to a store, from a store, or to another folder.


def mirror_folder(
    source: Store,
    digests: Mapping[str, str],
    target: Store,
    progress: Progress = ignore_progress,
    *,
    before_final_files: Callable[[], None] = lambda: None,
    earlier_manifests: Iterable[bytes] = (),
    former_names: Collection[str] = (),
) -> dict[str, Any]:
    """Make the content of ``target`` equal to the finished folder ``source``; return counts of the changes.

    ``digests`` are the sha256 of the folder's files by name, without ``_SUCCESS``; ``earlier_manifests`` are manifests
    that it may replace, ``former_names`` names of files that it once had. Intact files in the target are not written
    again, so repeating the call resumes it. ``before_final_files`` is called before the last files are written, and
    raises if the folder must not be shared any longer. ``RunStateError`` if the target contains anything else,
    ``CheckFailed`` if a file does not read back as sealed.
    """
    present = target.list_names()
    copied_digests = dict[str, str]()
    if SUMS in present:
        # digests verified during writing; the last line may be incomplete
        text = (target.read_file(SUMS) or b"").decode("utf-8", "replace")
        with suppress(CheckFailed):
            copied_digests = parse_checksums(text[: text.rfind("\n") + 1])
    expected_names = {*digests, *copied_digests, *former_names, SUMS, SUCCESS}
    leftovers = {name for name in present if _parse_unfinished_name(name) in expected_names}
    present -= leftovers
    if present:
        check_store_owner(target, present, [source.read_file(MANIFEST) or b"", *earlier_manifests])
        if unexpected := sorted(present - expected_names):
            raise RunStateError(
                f"{target.url}: {pluralize(len(unexpected), 'unexpected file')}, first {unexpected[0]}; give another "
                "place, or remove them"
            )

    def is_copied(name: str) -> bool:
        """Whether the file in the target is intact: verified now, or when it was written."""
        if name not in present or target.get_file_size(name) != source.get_file_size(name):
            return False
        return copied_digests.get(name) == digests[name] or target.compute_digest(name) == digests[name]

    # each subfolder's _SUCCESS after its files, for other programs that read the store
    order = sorted(digests, key=lambda name: (name != MANIFEST, name.endswith(f"/{SUCCESS}"), name))
    missing = [name for name in order if not is_copied(name)]
    obsolete = sorted((present - {*digests, SUMS, SUCCESS}) | leftovers)
    final_files = {SUMS: format_checksums(digests).encode(), SUCCESS: f"{digests[MANIFEST]}\n".encode()}
    is_complete = not missing and all(target.read_file(name) == data for name, data in final_files.items())
    for name in [SUCCESS] * (SUCCESS in present and not is_complete) + obsolete:
        target.remove_file(name)
    size = 0
    for number, name in enumerate(missing, 1):
        size += target.copy_file(source, name, digests[name])
        progress("copy", number, len(missing), "files")
    before_final_files()
    for name, data in final_files.items() if not is_complete else ():
        target.write_file(name, io.BytesIO(data), source.get_file_mode(MANIFEST))
        if target.read_file(name) != data:
            raise CheckFailed(f"{target.url}/{name} differs from what was written; try again")
    counts = {"files": len(digests), "written": len(missing), "removed": len(obsolete), "bytes": size}
    return {"to": target.url, "manifest": digests[MANIFEST], **counts}


def _parse_unfinished_name(name: str) -> str | None:
    """Return the final name of a temporary file left by a killed process; None for other names."""
    folder, _, last = name.rpartition("/")
    target = parse_temporary_name(last)
    return f"{folder}/{target}" if target and folder else target


def check_store_owner(store: Store, names: Collection[str], manifests: Iterable[bytes]) -> None:
    """Raise ``RunStateError`` unless the store's manifest equals one of ``manifests``, or a beginning of one."""
    content = store.read_file(MANIFEST) if MANIFEST in names else None
    if content is None or not any(manifest.startswith(content) for manifest in manifests):
        raise RunStateError(f"{store.url}: something else is already there; give another place, or remove it")


# Publish: a finished run at a URL, file by file.


def publish(run: str | Path, url: str, progress: Progress = ignore_progress) -> dict[str, Any]:
    """Mirror a finished run, with its models, to ``url`` (any that fsspec or pyarrow supports).

    Returns ``{"run", "to", "manifest", "files", "written", "removed", "bytes"}``; ``bytes`` counts what was written.
    Leaves out samples for labelling (unencrypted text), sealed tracebacks and work files. ``RunStateError`` if the run
    is not finished, held or not encrypted, and if ``url`` contains another run; ``CheckFailed`` if a file changed after
    sealing, here or there; ``StoreError`` if the store fails.
    """
    folder = RunFolder(Path(run))
    return run_with_sealed_traceback(folder.state, _publish, folder, url, progress)


def _publish(run: RunFolder, url: str, progress: Progress) -> dict[str, Any]:
    with export_lock(run) as ensure_unchanged:
        if not read_manifest(run)["encrypted"]:
            raise RunStateError(
                f"{run.root} is not encrypted, so its private part would be readable at "
                f"{remove_credentials(url)}: curate with an encryption key (redactory keys new encryption), or "
                f"publish only the public split (redactory export {run.root} --to URL)"
            )
        # files that the run had in earlier releases, or can have had before
        listings = [release.manifest["files"] for release in list_releases(run)]
        unsealed = {run.report, run.journal, run.data_key, run.release_log}
        for folder in run.measurement_folders:
            unsealed |= {folder.manifest, folder.signature, folder.success, folder.root / "result.json"}
        result = mirror_folder(
            Store.from_folder(run.root),
            _list_digests(run),
            Store.from_url(url),
            progress,
            before_final_files=ensure_unchanged,
            earlier_manifests=_read_manifests(run),
            former_names={path.relative_to(run.root).as_posix() for path in unsealed}.union(*listings),
        )
        return {"run": str(run.root), **result}


def _read_manifests(run: RunFolder) -> list[bytes]:
    """Read the manifests of a finished run: the superseded ones and the present one."""
    *earlier, _ = list_releases(run)
    paths = [*(run.get_release_folder(release.number).manifest for release in earlier), run.manifest]
    return [path.read_bytes() for path in paths]


def _list_digests(run: RunFolder) -> dict[str, str]:
    """Return the sha256 of the files to publish by name; ``CheckFailed`` if a sealed one changed."""
    digests = dict[str, str]()
    *earlier, _ = list_releases(run)
    seals = [run.get_release_folder(release.number) for release in earlier]
    pages = [run.report, run.journal, run.data_key, get_log_path(run), *(s.manifest for s in seals)]
    pages += [seal.signature for seal in seals]
    for folder in (run, *run.list_sealed_folders()):
        if broken := list_broken_files(folder):
            raise CheckFailed(f"cannot publish {folder.root.name}, which changed after sealing: {broken[0]}")
        for name, entry in read_manifest(folder)["files"].items():
            digests[(folder.root / name).relative_to(run.root).as_posix()] = entry["sha256"]
        pages += [folder.manifest, folder.signature, *([folder.success] if folder != run else [])]
        pages += [folder.report, folder.measured] if isinstance(folder, ModelFolder) else []
    # the log of a run in a job is outside of it
    existing = (path for path in pages if path.is_file() and path.is_relative_to(run.root))
    return digests | {path.relative_to(run.root).as_posix(): file_sha256(path) for path in existing}


def publish_if_configured(store: str | None, result: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Publish the run of a command's ``result`` if a store is configured, and add ``published`` to the result."""
    published = {} if store is None else {"published": publish(result["run"], store, progress)}
    return {**result, **published}


def check_store(store: str | None, run: RunFolder) -> None:
    """Check, before any work, that ``run`` can be published to ``store`` when it is finished.

    ``StoreError`` if the store cannot be read, ``RunStateError`` without encryption, or if it contains something else.
    """
    if store is None:
        return
    if load_configured_service() is None:
        raise RunStateError(
            f"output: a run at {remove_credentials(store)} needs an encryption key, or its private part would "
            "be readable there (create one with redactory keys new encryption FILE, and set "
            "REDACTORY_ENCRYPTION_KEY_FILE)"
        )
    remote = Store.from_url(store)
    if names := remote.list_names():
        check_store_owner(remote, names, _read_manifests(run) if is_finished(run) else [])


# Fetch: a published run or an export from a URL into a new folder, every digest compared.


def fetch(url: str, to: str | Path, progress: Progress = ignore_progress) -> dict[str, Any]:
    """Download what ``publish`` or ``export`` wrote to ``url`` into the new folder ``to``; can be repeated to resume.

    Returns ``{"from", "to", "manifest", "files", "bytes"}``. Private files get mode 0600, private folders 0700.
    ``RunStateError`` if ``to`` exists or ``url`` has nothing finished, ``CheckFailed`` if a file is missing or differs
    from the published one, ``StoreError`` if the store fails.
    """
    if not is_url(url):
        raise ConfigurationError(f"{url} is not a URL: a folder on this machine need not be fetched")
    store, target = Store.from_url(url), Path(to)
    if target.exists():
        raise RunStateError(f"{target} exists; give a new folder")
    seal, sums = store.read_file(SUCCESS), store.read_file(SUMS)
    if seal is None or sums is None:
        missing = SUCCESS if seal is None else SUMS
        raise RunStateError(f"{store.url}: nothing finished is there ({missing} is missing)")
    digests = parse_checksums(sums.decode("utf-8", "replace"))
    if seal != f"{digests.get(MANIFEST)}\n".encode():
        raise CheckFailed(f"{store.url}: the manifest in {SUCCESS} is not the one in {SUMS}")
    with create_folder_atomically(target, resume=True) as staging:
        counts = mirror_folder(store, digests, Store.from_folder(staging), progress)
        folder, run = ExportFolder(staging), RunFolder(staging)
        if problems := list_broken_files(folder):
            raise CheckFailed(f"{store.url}: {'; '.join(problems)}")
        if is_export(read_manifest(folder)):
            make_world_readable(staging)
        else:
            folder.sums.unlink()
            for subfolder in (*run.data_folders, *(path for path in staging.rglob("*") if path.is_dir())):
                make_private_folder(subfolder)
            for path in run.public.iterdir():
                path.chmod(PUBLIC_FILE)
    return {"from": store.url, "to": str(target), **{key: counts[key] for key in ("manifest", "files", "bytes")}}


@contextmanager
def temporary_download(url: str, progress: Progress = ignore_progress) -> Iterator[Path]:
    """Fetch ``url`` into a temporary private folder (below ``$REDACTORY_WORK`` if set)."""
    with tempfile.TemporaryDirectory(prefix="redactory-", dir=os.environ.get(WORK_VARIABLE)) as folder:
        place = Path(folder) / (url.rstrip("/").rpartition("/")[2] or "run")
        fetch(url, place, progress)
        yield place

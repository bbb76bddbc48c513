"""The output folder: check that a run may write to it, lock it, and keep other files out of a release."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import (
    PUBLIC_FILE,
    file_lock,
    make_folder,
    make_private_folder,
    remove_leftovers,
    remove_path,
    sync_to_disk,
)
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.curation.config import Config
from redactory.pipelines.readers.files import estimate_expansion, is_hidden
from redactory.redaction import RunFolder, format_part_name, is_finished
from redactory.redaction.encryption import load_configured_service
from redactory.redaction.folder import PUBLIC_FOLDER, JobFolder
from redactory.redaction.sealing import describe_configured_signer


def check_output_folder(run: RunFolder, resume: bool) -> None:
    """Raise ``RunStateError`` for a folder whose files a new run would disturb, or take for its own."""
    if run.reissue.plan.is_file():
        raise RunStateError(
            f"an erasure or purge of {run.root} was interrupted; run it again (redactory erase, redactory purge)"
        )
    if run.root.exists() and not run.root.is_dir():
        raise RunStateError(f"{run.root} is a file; give another output folder (output, --out)")
    # the orchestrator may use state/ before the run starts
    others = [path for path in run.root.iterdir() if path != run.state] if run.root.is_dir() else []
    if not resume and is_finished(run):
        raise RunStateError(f"{run.root} holds a finished run; give another output folder (output, --out)")
    if not resume and (run.journal.exists() or others):
        raise RunStateError(f"{run.root} is not empty: resume its run (--resume), or give another folder")
    # a run has started once its journal has a whole record
    has_record = run.journal.is_file() and b"\n" in run.journal.read_bytes()
    has_files = any(not path.is_dir() for other in others for path in (other, *other.rglob("*")))
    if resume and not is_finished(run) and not has_record and has_files:
        raise RunStateError(f"{run.root} contains files, but no run; give an empty or new folder")


def check_not_inside_inputs(folder: Path, key: str, inputs: Iterable[str]) -> None:
    """Raise ``ConfigurationError`` if ``folder``, set by ``key``, is inside an input and would be read."""
    for input_path in inputs:
        source = Path(input_path).resolve()
        if "://" in input_path or not source.is_dir() or not folder.resolve().is_relative_to(source):
            continue
        if not is_hidden(folder.resolve().relative_to(source).as_posix()):
            raise ConfigurationError(
                f"{key}: {folder} is inside the input {input_path}: the next or resumed run would read it as "
                "input; give a place outside, or a name that starts with '_'"
            )


@contextmanager
def lock_folders(*folders: RunFolder | JobFolder | None, timeout: float = 0.0) -> Iterator[None]:
    """Lock runs and jobs (None: no job), in this order, and remove files of killed processes from the jobs.

    Waits up to ``timeout`` seconds for each. ``RunStateError`` if another process is writing to one of them.
    """
    with ExitStack() as locks:
        for folder in dict.fromkeys(folders):
            if folder is not None:
                locks.enter_context(file_lock(folder.lock, str(folder.root), timeout))
            if isinstance(folder, JobFolder):
                remove_leftovers(folder.root)
                remove_leftovers(folder.state)
        yield


@contextmanager
def lock_new_run(run: RunFolder, resume: bool) -> Iterator[None]:
    """Create and lock the run folder, check it again, and remove unfinished files."""
    make_private_folder(run.root)
    if run.state.is_symlink():
        raise RunStateError(f"{run.state} is a link to another place, where no run may write; remove it")
    make_private_folder(run.state)
    with lock_folders(run):
        # another run may have come and gone since the first check
        check_output_folder(run, resume)
        remove_run_leftovers(run)
        yield


def finalize_run(run: RunFolder, partitions: int, counted: bool = False) -> None:
    """Remove work files and leftovers, and check that each data folder contains exactly its parts.

    A run decided by counts (``counted``) has one public part: the number of partitions depends on private text too.
    ``CheckFailed`` for a missing part, and for a file that does not belong to this run.
    """
    remove_run_leftovers(run)
    remove_path(run.work)
    all_parts = {format_part_name(number) for number in range(partitions)}
    for folder in run.data_folders:
        expected = {format_part_name(0)} if counted and folder == run.public else all_parts
        existing = {path.name for path in folder.iterdir()}
        # audit/across is optional
        if existing != expected and (existing or folder != run.across):
            first = min(existing ^ expected)
            problem = "is missing" if first in expected else "does not belong to this run; remove it, and use --resume"
            raise CheckFailed(f"{folder.relative_to(run.root)}/{first} {problem}")


def remove_run_leftovers(run: RunFolder) -> None:
    """Remove files of killed processes, except trainings and measurements, while the caller holds the run's lock."""
    # remote workers may not know that their run was killed
    remove_path(run.staging)
    for folder in (run.root, run.state):
        remove_leftovers(folder, exclude="train-*")
    for folder in (run.work, run.releases, *run.data_folders):
        remove_leftovers(folder, recursive=True)


# Atomic creation of a folder: filled beside its final place, then renamed.


@contextmanager
def create_folder_atomically(
    target: Path, before_rename: Callable[[], None] = lambda: None, *, resume: bool = False
) -> Iterator[Path]:
    """Yield an empty private folder to fill; on success, rename it to ``place``.

    ``before_rename`` is called before the rename, and may raise to prevent it. The folder and its lock are in a hidden
    folder beside ``place``; nothing else there is written. Content left by an interrupted process is removed, or kept
    if ``resume``. ``RunStateError`` if ``place`` exists, or another process is creating it.
    """
    target = target.absolute()
    make_folder(target.parent)
    work_folder = target.with_name(f".{target.name}.unfinished")
    lock, staging = work_folder / "lock", work_folder / "content"
    if work_folder.is_symlink() or (work_folder.exists() and not work_folder.is_dir()):
        # a link would make us empty and fill another folder
        raise RunStateError(f"{work_folder} was not created by Redactory, or is not a folder; remove it")
    others = {path.name for path in make_private_folder(work_folder).iterdir()} - {lock.name, staging.name}
    if others:
        raise RunStateError(
            f"{work_folder} contains {min(others)}, which no export or fetch left there; remove that folder"
        )
    try:
        with file_lock(lock, str(target)):
            if target.exists() or target.is_symlink():
                raise RunStateError(f"{target} exists; give a new folder")
            if staging.is_symlink():
                raise RunStateError(f"{staging} is a link to another place; remove it")
            if not resume:
                remove_path(staging)
            yield make_private_folder(staging)
            for folder in (*(path for path in staging.rglob("*") if path.is_dir()), staging):
                sync_to_disk(folder)
            before_rename()
            staging.rename(target)
            sync_to_disk(target.parent)
    finally:
        # not if it contains content to resume from, or the lock of another process
        with suppress(OSError):
            work_folder.rmdir()


def make_world_readable(folder: Path) -> None:
    """Let everybody read ``folder`` and everything in it, which must not be private."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(PUBLIC_FOLDER if path.is_dir() else PUBLIC_FILE)


# Preflight, before anything is written: valid keys, and room on the disk.


def check_environment_keys() -> None:
    """Raise ``ConfigurationError`` if a key that the environment names is invalid.

    The signing key is needed only at the end, hours later, and the encryption key after the run's folders are created:
    a started run would block the corrected command.
    """
    load_digest_key()
    load_configured_service()
    describe_configured_signer()


DISK_FACTOR, RESERVED_BYTES = 12, 500_000_000
"""Peak bytes on disk per byte of uncompressed input; bytes that must stay free."""


def check_disk_space(config: Config, inputs: Iterable[tuple[str, int]]) -> None:
    """Raise ``RunStateError`` if ``config.output`` is not writable, or lacks room for ``inputs`` (URL, bytes)."""
    output = Path(config.output).absolute()
    # the nearest folder that exists is on the same file system
    existing_folder = next(folder for folder in (output, *output.parents) if folder.is_dir())
    if not os.access(existing_folder, os.W_OK | os.X_OK):
        raise RunStateError(
            f"{existing_folder} is not writable, so {output} cannot be created: give another output folder, or make "
            "it writable for this user"
        )
    # an interrupted run has already written a part; a running one renames files
    written_bytes = 0
    with suppress(FileNotFoundError):
        for entry in output.rglob("*") if output.is_dir() else ():
            written_bytes += 0 if entry.is_dir() else entry.lstat().st_size
    needed = max(0, int(sum(size * estimate_expansion(url) for url, size in inputs) * DISK_FACTOR) - written_bytes)
    free, reserve = shutil.disk_usage(existing_folder).free, RESERVED_BYTES
    if free < needed + reserve:
        raise RunStateError(
            f"the run needs about {_format_bytes(needed)} at {config.output} plus a reserve of "
            f"{_format_bytes(reserve)}, but {existing_folder} has {_format_bytes(free)} free: make "
            "room, or give an output folder on another file system"
        )


def _format_bytes(byte_count: int) -> str:
    return f"{byte_count / 10**9:,.1f} GB" if byte_count >= 10**8 else f"{byte_count / 10**6:,.1f} MB"

"""The output folder: whether a run may write in it, alone, and that nothing else ends up in a release."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder, remove_leftovers, take_away
from redactory.foundation.locks import only_one
from redactory.pipelines.config import Config
from redactory.pipelines.readers.sources import is_hidden
from redactory.redaction import RunFolder, is_finished, part_name


def check_output(run: RunFolder, resume: bool) -> None:
    """Refuse a folder that a new run would disturb, or that would get into the run (``RunStateError``)."""
    if run.reissue.plan.is_file():
        raise RunStateError(
            f"{run.root} was being written anew (a takedown or a purge) and was interrupted: ask for "
            "that again (redactory takedown, redactory purge)"
        )
    if run.root.exists() and not run.root.is_dir():
        raise RunStateError(f"{run.root} is a file; give another output folder (output, --out)")
    if resume:
        if not is_finished(run) and not _begun(run) and _holds_files(run):
            raise RunStateError(
                f"{run.root} holds files, but no run was begun in it; give an empty folder, or a new one"
            )
        return
    if is_finished(run):
        raise RunStateError(f"{run.root} holds a finished run; give another output folder (output, --out)")
    # the orchestrator may have settled in state/ before the run begins
    if run.journal.exists() or (run.root.is_dir() and set(run.root.iterdir()) - {run.state}):
        raise RunStateError(
            f"{run.root} is not empty: resume the run in it (--resume), or give another folder"
        )


def check_apart(config: Config) -> None:
    """``ConfigurationError`` where the run folder lies in a folder of the input, and would be read."""
    output = Path(config.output).resolve()
    for given in config.input.path:
        folder = Path(given).resolve()
        if "://" in given or not folder.is_dir() or not output.is_relative_to(folder):
            continue
        if not is_hidden(output.relative_to(folder).as_posix()):
            raise ConfigurationError(
                f"output: {config.output} lies in the input {given}: the next run, or this one resumed, "
                "would read the shards as its input; give a place outside, or a name that starts with '_'"
            )


@contextmanager
def occupied(run: RunFolder, resume: bool) -> Iterator[None]:
    """Be the one run in this folder: locked, checked again, with what a killed run left unfinished removed.

    ``RunStateError`` where another run is at work.
    """
    make_private_folder(run.root)
    if run.state.is_symlink():
        raise RunStateError(f"{run.state} leads elsewhere, where nothing of a run may be written; remove it")
    make_private_folder(run.state)
    with only_one(run.lock, str(run.root)):
        # another run may have come and gone since the first check
        check_output(run, resume)
        # workers elsewhere may not have heard that their run was killed
        take_away(run.staging)
        _remove_leftovers(run)
        yield


def forget_holder(run: RunFolder) -> None:
    """Remove the lock of a process that was killed after it had finished the run."""
    if run.lock.exists():
        with suppress(RunStateError), only_one(run.lock, str(run.root)):
            pass


def close(run: RunFolder, partitions: int) -> None:
    """Make ready for the release: no work file, no leftover, and each data folder with its parts and no more.

    Raises ``CheckFailed`` for a part that is missing, and for any file that is not of this run.
    """
    take_away(run.staging)
    if run.work.exists():
        shutil.rmtree(run.work)
    _remove_leftovers(run)
    due = {part_name(number) for number in range(partitions)}
    for folder in run.data_folders:
        there = {path.name for path in folder.iterdir()}
        # what is compared across the split is written only where that is asked for
        if there != due and (there or folder != run.across):
            first = min(there ^ due)
            problem = (
                "is missing" if first in due else "is not of this run; remove it, and go on with --resume"
            )
            raise CheckFailed(f"{folder.relative_to(run.root)}/{first} {problem}")


def _begun(run: RunFolder) -> bool:
    """Whether a journal has its first record."""
    if not run.journal.is_file():
        return False
    with run.journal.open("rb") as file:
        return file.readline().endswith(b"\n")


def _holds_files(run: RunFolder) -> bool:
    """Whether anything but folders lies outside of ``state/``."""
    if not run.root.is_dir():
        return False
    others = (path for path in run.root.iterdir() if path != run.state)
    return any(not p.is_dir() or any(not f.is_dir() for f in p.rglob("*")) for p in others)


def _remove_leftovers(run: RunFolder) -> None:
    for folder in (run.root, run.state):
        remove_leftovers(folder)
    for folder in (run.work, *run.data_folders):
        for below in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            remove_leftovers(below)

"""A new folder that is whole or absent: made beside its place, then renamed into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redactory.foundation.errors import RunStateError
from redactory.foundation.files import PUBLIC_FILE, make_folder, make_private_folder, remove, sync
from redactory.foundation.locks import only_one
from redactory.redaction.export_folder import PUBLIC_FOLDER


@contextmanager
def new_folder(place: Path, last: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Give a private folder to fill; once the block ends well it is renamed to ``place``.

    ``last`` is asked before the rename, and raises where there is to be none.
    It lies, with its lock, in a folder of ours beside ``place``: nothing else there is written.  What an
    interrupted process left of it is there again.  ``RunStateError`` where ``place`` exists, or another
    process is making it.
    """
    place = place.absolute()
    make_folder(place.parent)
    room = place.with_name(f".{place.name}.unfinished")
    lock, staging = room / "lock", room / "content"
    if room.is_symlink() or (room.exists() and not room.is_dir()):
        # it would be emptied, and filled, somewhere else
        raise RunStateError(f"{room} is not a folder of ours, or leads elsewhere; remove it")
    if room.is_dir() and (
        others := sorted({path.name for path in room.iterdir()} - {lock.name, staging.name})
    ):
        raise RunStateError(
            f"{room} holds {others[0]}, which no export or fetch left there; remove that folder"
        )
    make_private_folder(room)
    try:
        with only_one(lock, str(place)):
            if place.exists() or place.is_symlink():
                raise RunStateError(f"{place} exists; give a new folder")
            if staging.is_symlink():
                raise RunStateError(f"{staging} leads elsewhere; remove it")
            yield make_private_folder(staging)
            for folder in (*(path for path in staging.rglob("*") if path.is_dir()), staging):
                sync(folder)
            last()
            staging.rename(place)
            sync(place.parent)
    finally:
        # it stays where something is left to go on with, or another process is at work
        with suppress(OSError):
            room.rmdir()


def emptied(folder: Path) -> None:
    """Take away what an interrupted process left in ``folder``."""
    for path in folder.iterdir():
        remove(path)


def open_to_read(folder: Path) -> None:
    """Let everybody read what is in ``folder``, and ``folder`` itself: nothing of it is private."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(PUBLIC_FOLDER if path.is_dir() else PUBLIC_FILE)

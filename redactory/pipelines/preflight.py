"""Preflight: whether each key is one, and the disk has room for a run and may be written, before anything is.

What a run needs is estimated from the size of its input.  At its peak a run folder holds the documents, the
points, their spans and the shards at the same time; ``docs/how-to/monitoring.md`` has what was measured.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from redactory.foundation.errors import RunStateError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.config import Config
from redactory.pipelines.readers import Source, size_of
from redactory.redaction.keyservice import configured_service
from redactory.redaction.signing import configured_signer

PACKED = {".gz": 8.0, ".zst": 8.0, ".parquet": 4.0}
"""Bytes in the open that a byte of such a file is taken to stand for; English text packs 3 to 8 times."""
_GB = 10**9


@dataclass(frozen=True)
class Room:
    """What a run needs at ``place`` and what is free there, in bytes; ``held`` lies in the folder already."""

    place: Path
    needed: int
    reserve: int
    free: int
    held: int

    @property
    def enough(self) -> bool:
        """Whether the run fits and the reserve stays free."""
        return self.free >= max(0, self.needed - self.held) + self.reserve


def check_keys() -> None:
    """``ConfigurationError`` where a key that the environment names is none.

    The signing key is needed last, hours after the first byte, and the encryption key when the run's folders
    stand: a run that was begun would be in the way of the corrected command.
    """
    load_digest_key()
    configured_service()
    configured_signer()


def check_sources(config: Config, sources: Iterable[Source]) -> None:
    """:func:`check_room` for a run over ``sources``; one whose size cannot be told counts as nothing."""
    check_room(config, ((source.url, size_of(source) or 0) for source in sources))


def check_room(config: Config, inputs: Iterable[tuple[str, int]]) -> None:
    """``RunStateError`` where ``config.output`` cannot be written, or has no room for these (URL, bytes)."""
    output = Path(config.output)
    place = standing(output)
    if not os.access(place, os.W_OK | os.X_OK):
        raise RunStateError(
            f"{place} may not be written, so there can be no {output}: give another output folder, or this "
            "user the right to write there"
        )
    room = room_for(config, inputs)
    if not room.enough:
        raise RunStateError(
            f"the run needs about {_said(max(0, room.needed - room.held))} at {output}, "
            f"{_said(room.reserve)} are to stay free, and {place} has {_said(room.free)}: make room, give an "
            "output folder on another file system, or, where your runs are known to need less, a lower "
            "disk.factor or disk.reserve_gb"
        )


def room_for(config: Config, inputs: Iterable[tuple[str, int]]) -> Room:
    """What a run over these inputs (URL, bytes on the disk) is taken to need, and what there is."""
    output = Path(config.output)
    place = standing(output)
    opened = sum(size * PACKED.get(PurePosixPath(url).suffix.lower(), 1.0) for url, size in inputs)
    return Room(
        place=place,
        needed=int(opened * config.disk.factor),
        reserve=int(config.disk.reserve_gb * _GB),
        free=shutil.disk_usage(place).free,
        held=_bytes_below(output),
    )


def standing(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists: it is on the same file system."""
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())


def _bytes_below(folder: Path) -> int:
    """What an interrupted run has written already."""
    if not folder.is_dir():
        return 0
    return sum(entry.lstat().st_size for entry in folder.rglob("*") if not entry.is_dir())


def _said(octets: float) -> str:
    return f"{octets / _GB:,.1f} GB" if octets >= _GB / 10 else f"{octets / 10**6:,.1f} MB"

"""The plan of a night: what it reads of which file, settled before anything is curated.

A plan is a snapshot: a file that grows while the night is at work is read as far as it was planned, and
a night that was killed reads the same when it is resumed.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.config import Config
from redactory.pipelines.nightly.growth import Changed, Look
from redactory.pipelines.nightly.pieces import Piece
from redactory.pipelines.nightly.watermark import Watermark
from redactory.pipelines.readers import Source, find_by_path, size_of

_NAMED = 5
"""Changed files that a message lists."""


@dataclass(frozen=True)
class Plan:
    """What a night reads: ``slices``, and for each file with a last row that is not whole, its bytes."""

    slices: tuple[Piece, ...]
    waiting: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """New bytes to read, as they lie on the disk."""
        return sum(piece.bytes for piece in self.slices)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log."""
        return {
            "slices": [piece.to_json() for piece in self.slices],
            "waiting": [{"path": name, "bytes": size} for name, size in self.waiting],
        }


def plan_night(
    config: Config,
    seen: Watermark,
    again: Collection[str] = (),
    now: datetime.datetime | None = None,
    done: Collection[str] = (),
) -> Plan:
    """What of the files at ``input.path`` no night has read yet (``seen``); those of ``again`` whole.

    The files at the URLs ``done`` were read again already, for the same asking.
    ``ConfigurationError`` where a path names nothing, or ``again`` a file that is not in the input;
    ``InputError`` where rows that were read before are not there any more.
    """
    look = Look(
        config.input.max_row_bytes,
        now or datetime.datetime.now(datetime.UTC),
        datetime.timedelta(minutes=config.nightly.quiet_minutes),
    )
    sources = find_by_path(config.input.path, config.input.format)
    anew = _urls(again, sources, config.input.format).difference(done)
    slices: list[Piece] = []
    waiting: list[tuple[str, int]] = []
    changed: list[str] = []
    for source in sources:
        known = () if source.url in anew else seen.get(source.url, ())
        try:
            growth = look.growth(source, known)
        except Changed as how:
            changed.append(f"{source.name} ({how})")
            continue
        marked = source.url in anew and bool(seen.get(source.url))
        slices += [dataclasses.replace(piece, again=marked) for piece in growth.pieces]
        waiting += [(source.name, growth.waiting)] if growth.waiting else []
    if changed:
        raise _refusal(changed)
    return Plan(tuple(slices), tuple(waiting))


def changed_since(pieces: Iterable[Piece]) -> list[str]:
    """The names of the planned files whose planned bytes are not there any more."""
    names = []
    for piece in pieces:
        source = Source(piece.url, piece.name, piece.format)
        try:
            grown = piece.whole and size_of(source) != piece.bytes
            same = not grown and piece.is_in(source)
        except (InputError, OSError):
            same = False
        names += [] if same or piece.name in names else [piece.name]
    return names


def _urls(again: Collection[str], sources: list[Source], format_: str) -> set[str]:
    urls = {source.url for source in find_by_path(tuple(again), format_)} if again else set()
    strange = urls - {source.url for source in sources}
    if strange:
        raise ConfigurationError(f"--again: {min(strange)} is no file of the input (input.path)")
    return urls


def _refusal(changed: list[str]) -> InputError:
    more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return InputError(
        f"changed since an earlier night read it: {', '.join([*changed[:_NAMED], *more])}. A night reads "
        "what is added at the end. Put the file back as it was, or read all of it as new: --again FILE"
    )

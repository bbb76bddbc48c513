"""What one night reads of one file, as its plan stands in the release log."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.records import Record
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config
from redactory.pipelines.readers import Slice, Source
from redactory.pipelines.release_log import Event


@dataclass(frozen=True)
class Piece:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows.

    ``from_row`` rows come before, so that rows keep the numbers that they have in the file.  ``header`` is
    the length of a table's header line, for a piece that does not begin with it.  A file that can only be
    read ``whole`` (Parquet, compressed, text) has one piece.  ``digest`` is keyed, ``key`` the fingerprint of
    its key, None where an earlier version entered a sha256.  ``stamp`` is a sign that stays as long as nobody
    writes the file, where the piece reaches its end.  ``again``: the file was asked for as new, and what was
    read of it before counts no more.
    """

    url: str
    name: str
    format: str
    from_byte: int
    to_byte: int
    from_row: int
    rows: int
    digest: str
    key: str | None
    header: int = 0
    whole: bool = False
    stamp: str | None = None
    again: bool = False

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    @property
    def slice(self) -> Slice:
        """What is read for it."""
        return Slice(self.from_byte, self.to_byte, self.from_row, self.header)

    def is_in(self, source: Source) -> bool:
        """Whether ``source`` still holds these bytes; ``ConfigurationError`` under another key."""
        blocks, key = source.blocks(self.slice.without_header()), load_digest_key()
        if self.key is None:
            digest = hashlib.sha256()
            for block in blocks:
                digest.update(block)
            return digest.hexdigest() == self.digest
        if self.key != key.fingerprint:
            raise ConfigurationError(
                f"{self.name}: an earlier night read it under the key {self.key}, and {KEY_VARIABLE} is "
                f"{key.fingerprint}, so that nobody can tell whether it is the same: bring that key back, or "
                "read all of it as new: --again FILE"
            )
        return key.file_digest(blocks) == self.digest

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log: file, places and a digest; no text."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Piece:
        """What :meth:`to_json` gave."""
        given = dict(value)
        if "sha256" in given:
            given |= {"digest": given.pop("sha256"), "key": None}
        return cls(**given)


def sources_of(pieces: Iterable[Piece]) -> list[Source]:
    """The files of a plan, each with all of its slices; one that is read whole has none."""
    found: dict[str, Source] = {}
    for piece in pieces:
        before = found[piece.url].slices if piece.url in found else ()
        slices = () if piece.whole else (*before, piece.slice)
        found[piece.url] = Source(piece.url, piece.name, piece.format, slices)
    return list(found.values())


# The watermark: which bytes of which file a job has read, as a fold over its release log.


@dataclass(frozen=True)
class Seen:
    """A piece that a night was planned with, and the run that has it; None where that was rejected."""

    piece: Piece
    run: str | None


Watermark = dict[str, tuple[Seen, ...]]
"""For each file the pieces of it, in the order of their bytes; the last one is read."""


def planned(record: Record) -> list[Piece]:
    """The pieces of the plan that a run was begun with."""
    return [Piece.from_json(piece) for piece in record.body["plan"]["slices"]]


def watermark(records: Iterable[Record]) -> Watermark:
    """What the records of a job's log come to."""
    files: dict[str, list[Seen]] = {}
    for record in records:
        if record.type == Event.BEGUN:
            for piece in planned(record):
                files[piece.url] = _with(files.get(piece.url, []), Seen(piece, record.body["run"]))
        elif record.type == Event.REJECTED:
            for url, seen in files.items():
                files[url] = [_given_back(own, record.body["run"]) for own in seen]
    return {url: trimmed for url, seen in files.items() if (trimmed := _trimmed(seen))}


def _with(seen: list[Seen], new: Seen) -> list[Seen]:
    if new.piece.again:
        return [new]
    start, end = new.piece.from_byte, new.piece.to_byte
    gap = [s.run is None and (s.piece.from_byte, s.piece.to_byte) == (start, end) for s in seen]
    if any(gap):
        return [new if fills else own for own, fills in zip(seen, gap, strict=True)]
    # what was given back at the end is cut anew, by the rows that are there now
    return [*(own for own in seen if own.piece.from_byte < start), new]


def _given_back(seen: Seen, run: str) -> Seen:
    return dataclasses.replace(seen, run=None) if seen.run == run else seen


def _trimmed(seen: list[Seen]) -> tuple[Seen, ...]:
    """Without what was given back at the end: those bytes are as new as what follows them."""
    while seen and seen[-1].run is None:
        seen = seen[:-1]
    return tuple(seen)


# One file of a night: what of it is new, and that what was read of it before is still what it was.


_SETTLED = datetime.timedelta(seconds=2)
"""A file that was written last within this may be written again at what its clock calls the same time."""


@dataclass(frozen=True)
class Growth:
    """The new pieces of a file, and the bytes of a last row that is not whole yet."""

    pieces: tuple[Piece, ...] = ()
    waiting: int = 0


class Changed(Exception):
    """What was read of a file is not there any more; the argument says where, without text."""


@dataclass(frozen=True)
class Look:
    """How files are looked at: the longest row in bytes, when it is, and after how long a row is an end."""

    limit: int
    now: datetime.datetime
    quiet: datetime.timedelta

    def growth(self, source: Source, seen: tuple[Seen, ...]) -> Growth:
        """What of ``source`` is new; ``Changed`` where it is not the file that was read before."""
        stamp = source.stamp(self.now - _SETTLED)
        if stamp is not None and seen and _stands(seen, stamp):
            return Growth()
        size = source.size()
        if size is None:
            raise InputError(f"{source.name}: its size cannot be told, so that what is new in it cannot be")
        if not source.grows:
            return self._whole(source, seen, size, stamp)
        gaps = _checked(source, seen, size)
        start, row = self._start(source, seen, size)
        tail, waiting = self._tail(source, start, row, size, stamp)
        return Growth((*gaps, *tail), waiting)

    def _whole(self, source: Source, seen: tuple[Seen, ...], size: int, stamp: str | None) -> Growth:
        if not size:
            return Growth()
        if seen:
            if seen[-1].piece.to_byte != size or not seen[-1].piece.is_in(source):
                raise Changed("it can only be read whole")
            return Growth()
        told = _digest(source, Slice(0, size))
        piece = Piece(source.url, source.name, source.format, 0, size, 0, 0, *told, whole=True, stamp=stamp)
        return Growth((piece,))

    def _start(self, source: Source, seen: tuple[Seen, ...], size: int) -> tuple[int, int]:
        """The byte at which new rows begin, and how many rows come before."""
        if not seen:
            return 0, 0
        last = seen[-1].piece
        end, row = last.to_byte, last.from_row + last.rows
        if end == size or b"".join(source.blocks(Slice(end - 1, end))) == b"\n":
            return end, row
        # the last row was read without its line end, which may have come by now
        with source.open(part=Slice(end, min(end + 2, size))) as file:
            next_bytes = file.read()
        if next_bytes not in (b"\r", b"\r\n") and not next_bytes.startswith(b"\n"):
            raise Changed(f"its row {row} has gone on since it was read")
        return min(end + (1 if next_bytes.startswith(b"\n") else 2), size), row

    def _tail(
        self, source: Source, start: int, row: int, size: int, stamp: str | None
    ) -> tuple[tuple[Piece, ...], int]:
        header = source.header(self.limit, size) if start else 0
        rows = source.rows_in(Slice(start, size, row, header), self.limit)
        if rows.blank:
            return (), 0
        end, count = rows.end, rows.whole
        if end < size and self._is_quiet(source):
            end, count = size, rows.all
        if end == start or (count <= 1 and not start and source.format != "jsonl"):
            # nothing yet, or a table's header alone
            return (), size - start
        told = _digest(source, Slice(start, end))
        piece = Piece(source.url, source.name, source.format, start, end, row, count, *told, header)
        return (dataclasses.replace(piece, stamp=stamp if end == size else None),), size - end

    def _is_quiet(self, source: Source) -> bool:
        written = source.modified()
        return written is not None and self.now - written >= self.quiet


def _digest(source: Source, part: Slice) -> tuple[str, str]:
    """The keyed digest of these bytes, and the fingerprint of the key."""
    key = load_digest_key()
    return key.file_digest(source.blocks(part)), key.fingerprint


def _stands(seen: tuple[Seen, ...], stamp: str) -> bool:
    """Whether nobody wrote the file since it was read to its end, and all of it is read."""
    return seen[-1].piece.stamp == stamp and all(own.run is not None for own in seen)


def _checked(source: Source, seen: tuple[Seen, ...], size: int) -> list[Piece]:
    """The pieces that were given back and lie before others; ``Changed`` unless all are what they were."""
    for own in seen:
        piece = own.piece
        if piece.to_byte > size or not piece.is_in(source):
            raise Changed(f"its rows {piece.from_row + 1} to {piece.from_row + piece.rows}")
    return [dataclasses.replace(own.piece, again=False, stamp=None) for own in seen if own.run is None]


# The days that nights are asked for: ``{date}`` in the input's path, one day or a range of them.


DATE = "{date}"
Day = datetime.date | None
"""The day whose data a night reads; None for an input that does not come by the day."""
LONGEST = 10_000
"""Days of one backfill."""


def days_asked(
    config: Config, date: str | None, first: str | None, last: str | None, today: datetime.date
) -> list[Day]:
    """The days of the nights to come, in order; ``ConfigurationError`` for days that cannot be meant.

    Without any, the day is ``today`` where the input has ``{date}`` in its path, and none where it has not.
    """
    dated = is_dated(config)
    if not (date or first or last):
        return [today if dated else None]
    if not dated:
        raise ConfigurationError(
            f"--date, --from and --to need {DATE} in input.path, like logs/{DATE}/*.jsonl: without it, "
            "a night reads whatever is new"
        )
    if date and (first or last):
        raise ConfigurationError("give --date, or --from with --to, not both")
    if date:
        return [_day(date, "--date")]
    if not (first and last):
        raise ConfigurationError("a range needs both its ends: --from 2026-11-01 --to 2026-11-05")
    start, end = _day(first, "--from"), _day(last, "--to")
    count = (end - start).days + 1
    if not 0 < count <= LONGEST:
        raise ConfigurationError(f"--from {first} --to {last}: give 1 to {LONGEST:,} days, the earlier first")
    return [start + datetime.timedelta(days=number) for number in range(count)]


def is_dated(config: Config) -> bool:
    """Whether the input comes by the day."""
    return any(DATE in path for path in config.input.path)


def of_day(config: Config, day: Day) -> Config:
    """``config`` with the day in the place of ``{date}``."""
    if day is None:
        return config
    given = config.model_dump(exclude_unset=True)
    paths = [path.replace(DATE, day.isoformat()) for path in config.input.path]
    return load_config({**given, "input": {**given["input"], "path": paths}})


def _day(text: str, option: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: write a day like 2026-11-03") from None

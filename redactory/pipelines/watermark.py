"""What a scheduled run reads: which bytes of which file are new, settled before anything is curated.

The watermark, which bytes of which file a job has read, is a fold over its release log.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.records import Record
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config
from redactory.pipelines.readers import Slice, Source, find_by_path
from redactory.pipelines.release_log import Event

_NAMED = 5
"""Changed files that a message lists."""
_SETTLED = datetime.timedelta(seconds=2)
"""A file that was written last within this may be written again at what its clock calls the same time."""


@dataclass(frozen=True)
class Piece:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows.

    ``from_row`` rows come before, so that rows keep the numbers that they have in the file.  ``header`` is
    the length of a table's header line, for a piece that does not begin with it.  A file that can only be
    read ``whole`` (Parquet, compressed, text) has one piece.  ``digest`` is keyed, ``key`` the fingerprint of
    its key.  ``stamp`` is a sign that stays as long as nobody writes the file, where the piece reaches its
    end.  ``again``: the file was asked for as new, and what was read of it before counts no more.
    ``refused``: the reason code of an entry of a folder that is not opened, and quarantined once.
    """

    url: str
    name: str
    format: str
    from_byte: int
    to_byte: int
    from_row: int
    rows: int
    digest: str
    key: str
    header: int = 0
    whole: bool = False
    stamp: str | None = None
    again: bool = False
    refused: str | None = None

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
        digest, key = _digest(source, self.slice)
        if self.key != key:
            raise ConfigurationError(
                f"{self.name}: an earlier run read it with the key {self.key}, but {KEY_VARIABLE} is {key}, "
                "so it cannot be verified that the file is unchanged: restore that key, or re-read the file "
                "as new: --reread FILE"
            )
        return digest == self.digest


def _digest(source: Source, part: Slice) -> tuple[str, str]:
    """The keyed digest of these bytes, and the fingerprint of the key."""
    key = load_digest_key()
    return key.file_digest(source.blocks(part.without_header())), key.fingerprint


def planned(record: Record) -> list[Piece]:
    """The pieces of the plan that a run was begun with."""
    return [Piece(**piece) for piece in record.body["plan"]["slices"]]


def sources_of(pieces: Iterable[Piece]) -> list[Source]:
    """The files of a plan, each with all of its slices; one that is read whole has none."""
    found: dict[str, Source] = {}
    for piece in pieces:
        before = found[piece.url].slices if piece.url in found else ()
        slices = () if piece.whole else (*before, piece.slice)
        found[piece.url] = Source(
            piece.url, piece.name, piece.format, slices, may_be_unusable=True, refused=piece.refused
        )
    return list(found.values())


def changed_since(pieces: Iterable[Piece]) -> list[str]:
    """The names of the planned files whose planned bytes are not there any more."""
    names: dict[str, None] = {}
    for piece in pieces:
        source = Source(piece.url, piece.name, piece.format)
        if piece.refused:
            continue
        try:
            same = not (piece.whole and source.size() != piece.bytes) and piece.is_in(source)
        except (InputError, OSError):
            same = False
        names |= {} if same else {piece.name: None}
    return list(names)


class Seen(NamedTuple):
    """A piece that a scheduled run was planned with, and that run; None where it was rejected."""

    piece: Piece
    run: str | None


Watermark = dict[str, tuple[Seen, ...]]
"""For each file the pieces of it, in the order of their bytes; the last one is read."""


def watermark(records: Iterable[Record]) -> Watermark:
    """What the records of a job's log come to."""
    files: dict[str, list[Seen]] = {}
    for record in records:
        run = record.body["run"]
        if record.type == Event.BEGUN:
            for piece in planned(record):
                files[piece.url] = _with(files.get(piece.url, []), Seen(piece, run))
        elif record.type == Event.REJECTED:
            for url, seen in files.items():
                files[url] = [own._replace(run=None) if own.run == run else own for own in seen]
    for seen in files.values():
        # what was given back at the end is as new as what follows it
        while seen and seen[-1].run is None:
            seen.pop()
    return {url: tuple(seen) for url, seen in files.items() if seen}


def _with(seen: list[Seen], new: Seen) -> list[Seen]:
    if new.piece.again:
        return [new]
    start, end = new.piece.from_byte, new.piece.to_byte
    gap = [s.run is None and (s.piece.from_byte, s.piece.to_byte) == (start, end) for s in seen]
    if any(gap):
        return [new if fills else own for own, fills in zip(seen, gap, strict=True)]
    # what was given back at the end is cut anew, by the rows that are there now
    return [*(own for own in seen if own.piece.from_byte < start), new]


# The plan of a scheduled run: what is new in each file, and that what was read before is still what it was.


class Plan(NamedTuple):
    """What is read: ``slices``, and for each file with a last row that is not whole, its bytes."""

    slices: list[Piece]
    waiting: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log: files, places and digests; no text."""
        waiting = [{"path": name, "bytes": size} for name, size in self.waiting.items()]
        return {"slices": [asdict(piece) for piece in self.slices], "waiting": waiting}


class _Changed(Exception):
    """What was read of a file is not there any more; the argument says where, without text."""


def plan_reading(
    config: Config,
    seen: Watermark,
    again: Collection[str] = (),
    now: datetime.datetime | None = None,
    done: Collection[str] = (),
) -> Plan:
    """What of the files at ``input.path`` nobody has read yet (``seen``); those of ``again`` whole.

    The files at the URLs ``done`` were read again already, for the same asking.
    ``ConfigurationError`` where a path names nothing, or ``again`` a file that is not in the input;
    ``InputError`` where rows that were read before are not there any more.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    sources = find_by_path(config.input.path, config.input.format)
    anew = {source.url for source in find_by_path(tuple(again), config.input.format)} if again else set()
    if strange := anew - {source.url for source in sources}:
        raise ConfigurationError(f"--reread: {min(strange)} is not a file of the input (input.path)")
    plan, changed = Plan([], {}), list[str]()
    for source in sources:
        known, asked = seen.get(source.url, ()), source.url in anew.difference(done)
        try:
            pieces, rest = _growth(source, () if asked else known, config, now)
        except _Changed as how:
            changed.append(f"{source.name} ({how})")
            continue
        plan.slices.extend(replace(piece, again=asked and bool(known)) for piece in pieces)
        plan.waiting.update({source.name: rest} if rest else {})
    if changed:
        more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
        raise InputError(
            f"changed since an earlier run read it: {', '.join([*changed[:_NAMED], *more])}. A scheduled "
            "run only reads what is appended. Restore the file, or re-read it as new: --reread FILE"
        )
    return plan


def _growth(source: Source, seen: tuple[Seen, ...], config: Config, now: datetime.datetime) -> tuple[list[Piece], int]:
    """The new pieces of ``source``, and the bytes of a last row that is not whole yet.

    ``_Changed`` where it is not the file that was read before.
    """
    if source.refused is not None:
        key, named = load_digest_key(), (source.url, source.name, source.format)
        digest = key.file_digest(()), key.fingerprint
        entry = Piece(*named, 0, 0, 0, 0, *digest, whole=True, refused=source.refused)
        return ([] if seen else [entry]), 0
    stamp = source.stamp(now - _SETTLED)
    if stamp is not None and seen and seen[-1].piece.stamp == stamp and all(own.run for own in seen):
        # nobody wrote the file since it was read to its end, and all of it is read
        return [], 0
    size, of = source.size(), (source.url, source.name, source.format)
    if size is None:
        raise InputError(f"{source.name}: its size is unknown, and therefore also what is new in it")
    if not source.grows:
        if seen and size and (seen[-1].piece.to_byte != size or not seen[-1].piece.is_in(source)):
            raise _Changed("it can only be read completely")
        if size and not seen and not _is_quiet(source, config, now) and not source.is_whole():
            # perhaps it is still being written; once it is quiet, what cannot be read is quarantined
            return [], size
        new = [] if seen or not size else [_digest(source, Slice(0, size))]
        return [Piece(*of, 0, size, 0, 0, *digest, whole=True, stamp=stamp) for digest in new], 0
    for piece in (own.piece for own in seen):
        if piece.to_byte > size or not piece.is_in(source):
            raise _Changed(f"its rows {piece.from_row + 1} to {piece.from_row + piece.rows}")
    # what was given back and lies before others
    gaps = [replace(own.piece, again=False, stamp=None) for own in seen if own.run is None]
    start, row = _begin(source, seen[-1].piece, size) if seen else (0, 0)
    header = source.header(config.input.max_row_bytes, size) if start else 0
    rows = source.rows_in(Slice(start, size, row, header), config.input.max_row_bytes)
    if rows.blank:
        return gaps, 0
    end, count = rows.end, rows.whole
    if end < size and _is_quiet(source, config, now):
        end, count = size, rows.all
    if end == start or (count <= 1 and not start and source.format != "jsonl"):
        # nothing yet, or a table's header alone
        return gaps, size - start
    piece = Piece(*of, start, end, row, count, *_digest(source, Slice(start, end)), header)
    return [*gaps, replace(piece, stamp=stamp if end == size else None)], size - end


def _is_quiet(source: Source, config: Config, now: datetime.datetime) -> bool:
    """Whether nobody has written the file for ``nightly.partial_row_grace_minutes``."""
    written, quiet = source.modified(), datetime.timedelta(minutes=config.nightly.partial_row_grace_minutes)
    return written is not None and now - written >= quiet


def _begin(source: Source, last: Piece, size: int) -> tuple[int, int]:
    """The byte at which rows after ``last`` begin, and how many rows come before."""
    end, row = last.to_byte, last.from_row + last.rows
    if end == size or b"".join(source.blocks(Slice(end - 1, end))) == b"\n":
        return end, row
    # the last row was read without its line end, which may have come by now
    after = b"".join(source.blocks(Slice(end, min(end + 2, size))))
    if after not in (b"\r", b"\r\n") and not after.startswith(b"\n"):
        raise _Changed(f"its row {row} has grown since it was read")
    return min(end + (1 if after.startswith(b"\n") else 2), size), row


# The days that are asked for: ``{date}`` in the input's path, one day or a range of them.


DATE = "{date}"
Day = datetime.date | None
"""The day whose data is read; None for an input that does not come by the day."""
LONGEST = 10_000
"""Days of one backfill."""


def days_asked(
    config: Config, date: str | None, first: str | None, last: str | None, today: datetime.date
) -> list[Day]:
    """The days of the runs to come, in order; ``ConfigurationError`` for days that cannot be meant.

    Without any, the day is ``today`` where the input has ``{date}`` in its path, and none where it has not.
    """
    if not is_dated(config):
        if not (date or first or last):
            return [None]
        raise ConfigurationError(
            f"--date, --from and --to need {DATE} in input.path, like logs/{DATE}/*.jsonl; without it, all "
            "new input is read"
        )
    if date and (first or last):
        raise ConfigurationError("give --date, or --from with --to, not both")
    if not (first or last):
        return [_day(date, "--date") if date else today]
    if not (first and last):
        raise ConfigurationError("give both ends of the range: --from 2026-11-01 --to 2026-11-05")
    start = _day(first, "--from")
    count = (_day(last, "--to") - start).days + 1
    if not 0 < count <= LONGEST:
        raise ConfigurationError(f"--from {first} --to {last}: give 1 to {LONGEST:,} days, the earlier first")
    return [start + datetime.timedelta(days=number) for number in range(count)]


def _day(text: str, option: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: expected a day like 2026-11-03") from None


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

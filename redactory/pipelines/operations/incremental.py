"""Plan what a scheduled run reads: the new bytes of each file, fixed before curation starts.

The watermark (the bytes of each file that a job has read) is computed from its release log.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.records import Record
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.release_log import Event
from redactory.pipelines.readers import Slice, Source, find_sources_by_path

_MAX_LISTED = 5
"""Changed files that a message lists."""
_CLOCK_GRACE = datetime.timedelta(seconds=2)
"""A file that was written last within this may be written again at what its clock calls the same time."""


@dataclass(frozen=True)
class FileSlice:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows.

    ``from_row`` rows come before, so that rows keep their numbers in the file. ``header`` is the length of a table's
    header line, for a slice that does not begin with it. A file that can only be read ``whole`` (Parquet, compressed,
    text) has one slice. ``digest`` is keyed, ``key`` the fingerprint of its key. If the slice reaches the end of the
    file, ``stamp`` changes when the file is written. ``again``: the file was requested as new, and its earlier slices
    no longer count. ``refused``: the reason code of a folder entry that is not opened, and is quarantined once.
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
    def byte_count(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    @property
    def source_slice(self) -> Slice:
        """What is read for it."""
        return Slice(self.from_byte, self.to_byte, self.from_row, self.header)

    def matches_source(self, source: Source) -> bool:
        """Whether ``source`` still has these bytes; ``ConfigurationError`` under another key."""
        digest, key = _digest_slice(source, self.source_slice)
        if self.key != key:
            raise ConfigurationError(
                f"{self.name}: an earlier run read it with the key {self.key}, but {KEY_VARIABLE} is {key}, "
                "so it cannot be verified that the file is unchanged: restore that key, or re-read the file "
                "as new: --reread FILE"
            )
        return digest == self.digest


def _digest_slice(source: Source, part: Slice) -> tuple[str, str]:
    """Return the keyed digest of these bytes, and the fingerprint of the key."""
    key = load_digest_key()
    return key.compute_file_digest(source.read_blocks(part)), key.fingerprint


def read_planned_slices(record: Record) -> list[FileSlice]:
    """Read the slices of the plan that a run started with."""
    return [FileSlice(**fields) for fields in record.body["plan"]["slices"]]


def make_planned_sources(file_slices: Iterable[FileSlice]) -> list[Source]:
    """Make the files of a plan, each with its slices; a file that is read whole has none."""
    sources: dict[str, Source] = {}
    for piece in file_slices:
        before = sources[piece.url].slices if piece.url in sources else ()
        slices = () if piece.whole else (*before, piece.source_slice)
        sources[piece.url] = Source(
            piece.url, piece.name, piece.format, slices, may_be_unusable=True, refusal=piece.refused
        )
    return list(sources.values())


def find_changed_files(slices: Iterable[FileSlice]) -> list[str]:
    """Return the names of planned files whose planned bytes changed or are gone."""
    names: dict[str, None] = {}
    for piece in slices:
        source = Source(piece.url, piece.name, piece.format)
        if piece.refused:
            continue
        try:
            is_same = not (piece.whole and source.size() != piece.byte_count) and piece.matches_source(source)
        except (InputError, OSError):
            is_same = False
        names |= {} if is_same else {piece.name: None}
    return list(names)


class ReadSlice(NamedTuple):
    """A planned slice of a scheduled run, and that run; None if it was rejected."""

    file_slice: FileSlice
    run: str | None


Watermark = dict[str, tuple[ReadSlice, ...]]
"""For each file the pieces of it, in the order of their bytes; the last one is read."""


def compute_watermark(records: Iterable[Record]) -> Watermark:
    """Compute the watermark from the records of a job's log."""
    files: dict[str, list[ReadSlice]] = {}
    for record in records:
        run = record.body["run"]
        if record.type == Event.STARTED:
            for piece in read_planned_slices(record):
                files[piece.url] = _add_slice(files.get(piece.url, []), ReadSlice(piece, run))
        elif record.type == Event.REJECTED:
            for url, slices in files.items():
                files[url] = [entry._replace(run=None) if entry.run == run else entry for entry in slices]
    for slices in files.values():
        # what was given back at the end is as new as what follows it
        while slices and slices[-1].run is None:
            slices.pop()
    return {url: tuple(slices) for url, slices in files.items() if slices}


def _add_slice(slices: list[ReadSlice], new_slice: ReadSlice) -> list[ReadSlice]:
    if new_slice.file_slice.again:
        return [new_slice]
    start, end = new_slice.file_slice.from_byte, new_slice.file_slice.to_byte
    is_gap = [s.run is None and (s.file_slice.from_byte, s.file_slice.to_byte) == (start, end) for s in slices]
    if any(is_gap):
        return [new_slice if fills else entry for entry, fills in zip(slices, is_gap, strict=True)]
    # returned bytes at the end are cut again, by the rows that exist now
    return [*(entry for entry in slices if entry.file_slice.from_byte < start), new_slice]


# The plan of a scheduled run: what is new in each file, and that what was read before is still what it was.


class ReadingPlan(NamedTuple):
    """The ``slices`` to read and, for each file with an incomplete last row, the bytes of that row."""

    slices: list[FileSlice]
    waiting: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the plan for the release log: files, positions and digests; no text."""
        waiting = [{"path": name, "bytes": size} for name, size in self.waiting.items()]
        return {"slices": [asdict(piece) for piece in self.slices], "waiting": waiting}


class _ChangedFileError(Exception):
    """Bytes that were read before are gone or changed; the argument says where, without text."""


def plan_reading(
    config: Config,
    read_slices: Watermark,
    reread: Collection[str] = (),
    now: datetime.datetime | None = None,
    reread_urls: Collection[str] = (),
) -> ReadingPlan:
    """Plan the unread parts of the files at ``input.path`` (``read_slices`` are read); files of ``reread`` in full.

    Files at ``reread_urls`` were already read again for the same request. ``ConfigurationError`` if a path names
    nothing, or ``reread`` a file outside the input; ``InputError`` if rows that were read before are gone.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    sources = find_sources_by_path(config.input.path, config.input.format)
    reread_sources = (
        {source.url for source in find_sources_by_path(tuple(reread), config.input.format)} if reread else set()
    )
    if unknown := reread_sources - {source.url for source in sources}:
        raise ConfigurationError(f"--reread: {min(unknown)} is not a file of the input (input.path)")
    plan, changed = ReadingPlan([], {}), list[str]()
    for source in sources:
        earlier, is_reread = read_slices.get(source.url, ()), source.url in reread_sources.difference(reread_urls)
        try:
            new_slices, rest = _find_new_slices(source, () if is_reread else earlier, config, now)
        except _ChangedFileError as change:
            changed.append(f"{source.name} ({change})")
            continue
        plan.slices.extend(replace(piece, again=is_reread and bool(earlier)) for piece in new_slices)
        plan.waiting.update({source.name: rest} if rest else {})
    if changed:
        overflow = [f"and {len(changed) - _MAX_LISTED} more"] if len(changed) > _MAX_LISTED else []
        raise InputError(
            f"changed since an earlier run read it: {', '.join([*changed[:_MAX_LISTED], *overflow])}. A scheduled "
            "run only reads what is appended. Restore the file, or re-read it as new: --reread FILE"
        )
    return plan


def _find_new_slices(
    source: Source, earlier: tuple[ReadSlice, ...], config: Config, now: datetime.datetime
) -> tuple[list[FileSlice], int]:
    """Return the new slices of ``source``, and the bytes of an incomplete last row.

    ``_ChangedFileError`` if it is not the file that was read before.
    """
    if source.refusal is not None:
        key, named = load_digest_key(), (source.url, source.name, source.format)
        digest = key.compute_file_digest(()), key.fingerprint
        entry = FileSlice(*named, 0, 0, 0, 0, *digest, whole=True, refused=source.refusal)
        return ([] if earlier else [entry]), 0
    stamp = source.read_change_stamp(now - _CLOCK_GRACE)
    if stamp is not None and earlier and earlier[-1].file_slice.stamp == stamp and all(entry.run for entry in earlier):
        # nobody wrote the file since it was read to its end, and all of it is read
        return [], 0
    size, of = source.size(), (source.url, source.name, source.format)
    if size is None:
        raise InputError(f"{source.name}: its size is unknown, and therefore also what is new in it")
    if not source.is_appendable:
        if (
            earlier
            and size
            and (earlier[-1].file_slice.to_byte != size or not earlier[-1].file_slice.matches_source(source))
        ):
            raise _ChangedFileError("it can only be read completely")
        if size and not earlier and not _is_past_grace_period(source, config, now) and not source.is_complete():
            # perhaps it is still being written; once it is quiet, what cannot be read is quarantined
            return [], size
        new = [] if earlier or not size else [_digest_slice(source, Slice(0, size))]
        return [FileSlice(*of, 0, size, 0, 0, *digest, whole=True, stamp=stamp) for digest in new], 0
    for piece in (entry.file_slice for entry in earlier):
        if piece.to_byte > size or not piece.matches_source(source):
            raise _ChangedFileError(f"its rows {piece.from_row + 1} to {piece.from_row + piece.rows}")
    # returned bytes before other slices
    gaps = [replace(entry.file_slice, again=False, stamp=None) for entry in earlier if entry.run is None]
    start, row = _find_next_row_start(source, earlier[-1].file_slice, size) if earlier else (0, 0)
    header = source.measure_header(config.input.max_row_bytes, size) if start else 0
    rows = source.count_rows(Slice(start, size, row, header), config.input.max_row_bytes)
    if rows.is_blank:
        return gaps, 0
    end, count = rows.end_byte, rows.complete_rows
    if end < size and _is_past_grace_period(source, config, now):
        end, count = size, rows.total_rows
    if end == start or (count <= 1 and not start and source.format != "jsonl"):
        # nothing yet, or a table's header alone
        return gaps, size - start
    piece = FileSlice(*of, start, end, row, count, *_digest_slice(source, Slice(start, end)), header)
    return [*gaps, replace(piece, stamp=stamp if end == size else None)], size - end


def _is_past_grace_period(source: Source, config: Config, now: datetime.datetime) -> bool:
    """Whether the file was not written for ``nightly.partial_row_grace_minutes``."""
    modified_at = source.read_modified_time()
    quiet = datetime.timedelta(minutes=config.nightly.partial_row_grace_minutes)
    return modified_at is not None and now - modified_at >= quiet


def _find_next_row_start(source: Source, last: FileSlice, size: int) -> tuple[int, int]:
    """Return the byte at which rows after ``last`` begin, and the number of rows before it."""
    end, row = last.to_byte, last.from_row + last.rows
    if end == size or b"".join(source.read_blocks(Slice(end - 1, end))) == b"\n":
        return end, row
    # the last row was read without its line end, which may have come by now
    following = b"".join(source.read_blocks(Slice(end, min(end + 2, size))))
    if following not in (b"\r", b"\r\n") and not following.startswith(b"\n"):
        raise _ChangedFileError(f"its row {row} has grown since it was read")
    return min(end + (1 if following.startswith(b"\n") else 2), size), row


# The days that are asked for: ``{date}`` in the input's path, one day or a range of them.


DATE_PLACEHOLDER = "{date}"
Day = datetime.date | None
"""The day whose data is read; None for an input that does not come by the day."""
MAX_DAYS = 10_000
"""Days of one backfill."""


def resolve_run_days(
    config: Config, date: str | None, first: str | None, last: str | None, today: datetime.date
) -> list[Day]:
    """Return the days of the runs in order; ``ConfigurationError`` for an invalid request.

    By default ``today`` if the input path has ``{date}``, otherwise None.
    """
    if not has_date_placeholder(config):
        if not (date or first or last):
            return [None]
        raise ConfigurationError(
            f"--date, --from and --to need {DATE_PLACEHOLDER} in input.path, like logs/{DATE_PLACEHOLDER}/*.jsonl; "
            "without it, all new input is read"
        )
    if date and (first or last):
        raise ConfigurationError("give --date, or --from with --to, not both")
    if not (first or last):
        return [_parse_day(date, "--date") if date else today]
    if not (first and last):
        raise ConfigurationError("give both ends of the range: --from 2026-11-01 --to 2026-11-05")
    start = _parse_day(first, "--from")
    count = (_parse_day(last, "--to") - start).days + 1
    if not 0 < count <= MAX_DAYS:
        raise ConfigurationError(f"--from {first} --to {last}: give 1 to {MAX_DAYS:,} days, the earlier first")
    return [start + datetime.timedelta(days=number) for number in range(count)]


def _parse_day(text: str, option: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: expected a day like 2026-11-03") from None


def has_date_placeholder(config: Config) -> bool:
    """Whether the input path contains a day."""
    return any(DATE_PLACEHOLDER in path for path in config.input.path)


def make_day_config(config: Config, day: Day) -> Config:
    """Return ``config`` with the day in place of ``{date}``."""
    if day is None:
        return config
    values = config.model_dump(exclude_unset=True)
    paths = [path.replace(DATE_PLACEHOLDER, day.isoformat()) for path in config.input.path]
    return load_config({**values, "input": {**values["input"], "path": paths}})

"""Plan what a scheduled run reads: the new bytes of each file, fixed before curation starts.

What a job has read of a file is computed from its release log: the bytes up to a position, with their keyed digest.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.records import Record
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.release_log import Event, run_statuses
from redactory.pipelines.readers import Slice, Source, find_sources_by_path

_CLOCK_GRACE = datetime.timedelta(seconds=2)
"""A file that was written later than this before a run may be written again without a new time."""
_MAX_LISTED = 5
"""Changed files that a message lists."""


@dataclass(frozen=True)
class FileSlice:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows after ``from_row`` others.

    ``digest`` is the keyed digest of everything before ``to_byte``, ``key`` the fingerprint of its key. A file that can
    only be read completely (Parquet, compressed, text) has one slice. ``reread``: the file was requested as new, and
    its earlier slices no longer count. ``stamp``: the change stamp of the file if the slice reaches its end.
    ``refused``: the reason code of a folder entry that is not opened, and is quarantined once.
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
    reread: bool = False
    stamp: str | None = None
    refused: str | None = None

    @property
    def source(self) -> Source:
        """The whole file."""
        return Source(self.url, self.name, self.format, may_be_unusable=True, refusal=self.refused)

    def is_unchanged(self) -> bool:
        """Whether the file still begins with these bytes; ``ConfigurationError`` under another key."""
        if self.refused:
            return True
        source, key = self.source, load_digest_key()
        if self.key != key.fingerprint:
            raise ConfigurationError(
                f"{self.name}: an earlier run read it with the key {self.key}, but {KEY_VARIABLE} is "
                f"{key.fingerprint}, so it cannot be verified that the file is unchanged: restore that key, or re-read "
                "the file as new: --reread FILE"
            )
        size = source.size() or 0
        if size < self.to_byte or (size > self.to_byte and not source.is_appendable):
            return False
        return key.compute_file_digest(source.read_blocks(Slice(0, self.to_byte))) == self.digest


def _make_slice(source: Source, start: int, end: int, from_row: int, rows: int) -> FileSlice:
    key = load_digest_key()
    digest = key.compute_file_digest(source.read_blocks(Slice(0, end)) if end else ())
    named = (source.url, source.name, source.format)
    return FileSlice(*named, start, end, from_row, rows, digest, key.fingerprint, refused=source.refusal)


def read_planned_slices(record: Record) -> list[FileSlice]:
    """Read the slices of the plan that a run started with."""
    return [FileSlice(**fields) for fields in record.body["plan"]["slices"]]


def make_planned_sources(file_slices: Iterable[FileSlice], max_row_bytes: int) -> list[Source]:
    """Make the files of a plan, each with its slices; a file that is read completely has none."""
    sources: dict[str, Source] = {}
    for piece in file_slices:
        source = sources.get(piece.url, piece.source)
        if source.is_appendable:
            header = piece.source.measure_header(max_row_bytes, piece.to_byte) if piece.from_byte else 0
            part = Slice(piece.from_byte, piece.to_byte, piece.from_row, header)
            source = replace(source, slices=(*source.slices, part))
        sources[piece.url] = source
    return list(sources.values())


def find_changed_files(slices: Iterable[FileSlice]) -> list[str]:
    """Return the names of planned files whose planned bytes changed or are gone."""
    names: dict[str, None] = {}
    for piece in slices:
        try:
            is_unchanged = piece.is_unchanged()
        except (InputError, OSError):
            is_unchanged = False
        names |= {} if is_unchanged else {piece.name: None}
    return list(names)


class ReadFile(NamedTuple):
    """What a job has read of a file: up to the end of ``last``, except the slices ``returned`` by rejected runs."""

    last: FileSlice
    returned: list[FileSlice]


def find_read_files(records: Iterable[Record]) -> dict[str, ReadFile]:
    """Find what the runs of a job have read, by URL, from the records of its log."""
    all_records = list(records)
    rejected = {name for name, status in run_statuses(all_records).items() if status.state == "rejected"}
    files: dict[str, list[tuple[FileSlice, bool]]] = {}
    for record in all_records:
        for new in read_planned_slices(record) if record.type == Event.STARTED else ():
            # bytes that a rejected run returned may be cut again in another way
            kept = [
                (piece, is_read)
                for piece, is_read in ([] if new.reread else files.get(new.url, ()))
                if piece.to_byte <= new.from_byte or piece.from_byte >= new.to_byte > new.from_byte
            ]
            files[new.url] = [*kept, (new, record.body["run"] not in rejected)]
    read_files: dict[str, ReadFile] = {}
    for url, pieces in files.items():
        if read := [piece for piece, is_read in pieces if is_read]:
            last = max(read, key=lambda piece: piece.to_byte)
            # what was returned after it is as new as what follows
            returned = [p for p, is_read in pieces if not is_read and p.from_byte < p.to_byte <= last.from_byte]
            read_files[url] = ReadFile(last, returned)
    return read_files


# The plan of a scheduled run: what is new in each file, and that what was read before is still what it was.


class _ChangedFileError(Exception):
    """Bytes that were read before are gone or changed; the argument says where, without text."""


def plan_reading(
    config: Config,
    read_files: dict[str, ReadFile],
    reread: Collection[str] = (),
    now: datetime.datetime | None = None,
    reread_urls: Collection[str] = (),
) -> tuple[list[FileSlice], list[dict[str, Any]]]:
    """Plan the unread parts of the files at ``input.path``, and files of ``reread`` completely.

    Returns the slices to read, and the ``path`` of each file with an incomplete last row and that row's ``bytes``.
    Files at ``reread_urls`` were already read again for the same request. ``ConfigurationError`` if a path names
    nothing, or ``reread`` a file outside the input; ``InputError`` if rows that were read before are gone.
    """
    if "\n".encode(config.input.encoding) != b"\n":
        raise ConfigurationError("input.encoding: scheduled runs need an encoding in which ASCII has one byte")
    sources = find_sources_by_path(config.input.path, config.input.format)
    requested = find_sources_by_path(tuple(reread), config.input.format) if reread else []
    if unknown := {source.url for source in requested} - {source.url for source in sources}:
        raise ConfigurationError(f"--reread: {min(unknown)} is not a file of the input (input.path)")
    as_new = {source.url for source in requested}.difference(reread_urls)
    slices, waiting, changed = list[FileSlice](), list[dict[str, Any]](), list[str]()
    for source in sources:
        earlier, is_reread = read_files.get(source.url), source.url in as_new
        try:
            new, rest = _plan_file(source, None if is_reread else earlier, config, now)
        except _ChangedFileError as change:
            changed.append(f"{source.name} ({change})")
            continue
        slices += (replace(piece, reread=is_reread and earlier is not None) for piece in new)
        waiting += [{"path": source.name, "bytes": rest}] if rest else []
    if changed:
        overflow = [f"and {len(changed) - _MAX_LISTED} more"] if len(changed) > _MAX_LISTED else []
        raise InputError(
            f"changed since an earlier run read it: {', '.join([*changed[:_MAX_LISTED], *overflow])}. A scheduled "
            "run only reads what is appended. Restore the file, or re-read it as new: --reread FILE"
        )
    return slices, waiting


def _plan_file(
    source: Source, earlier: ReadFile | None, config: Config, now: datetime.datetime | None
) -> tuple[list[FileSlice], int]:
    """Return the slices of ``source`` to read, and the bytes of an incomplete last row.

    ``_ChangedFileError`` if it is not the file that was read before.
    """
    if source.refusal is not None:
        return ([] if earlier else [_make_slice(source, 0, 0, 0, 0)]), 0
    now = now or datetime.datetime.now(datetime.UTC)
    # before the file is read: what is written meanwhile changes the next run's stamp
    stamp = source.read_change_stamp(now - _CLOCK_GRACE)
    if earlier and stamp and (earlier.last.stamp, earlier.last.key) == (stamp, load_digest_key().fingerprint):
        return earlier.returned, 0
    size, limit = source.size(), config.input.max_row_bytes
    if size is None:
        raise InputError(f"{source.name}: its size is unknown, and therefore also what is new in it")
    start, row, returned = 0, 0, list[FileSlice]()
    # an entry that could not be opened before is a new file
    if earlier is not None and not earlier.last.refused:
        start, row = _find_next_row(source, earlier.last, size)
        returned = earlier.returned
    if start == size:
        return returned, 0
    # what is not complete is perhaps still being written; once the file is quiet it is read, and quarantined
    modified_at, age = source.read_modified_time(), datetime.timedelta(minutes=config.nightly.partial_row_grace_minutes)
    is_quiet = modified_at is not None and now - modified_at >= age
    if not source.is_appendable:
        is_ready = is_quiet or source.is_complete()
        return ([replace(_make_slice(source, 0, size, 0, 0), stamp=stamp)], 0) if is_ready else ([], size)
    header = source.measure_header(limit, size) if start else 0
    scan = source.count_rows(Slice(start, size, row, header), limit)
    if scan.is_blank:
        return returned, 0
    end, rows = (size, scan.total_rows) if is_quiet else (scan.end_byte, scan.complete_rows)
    new = [_make_slice(source, start, end, row, rows)] if end > start else []
    return [*returned, *(replace(piece, stamp=stamp if end == size else None) for piece in new)], size - end


def _find_next_row(source: Source, last: FileSlice, size: int) -> tuple[int, int]:
    """Check that the file begins with what was read up to ``last``; return the byte and number of its next row."""
    end, row = last.to_byte, last.from_row + last.rows
    if not last.is_unchanged():
        part = f"its first {row} rows" if source.is_appendable else "it can only be read completely"
        raise _ChangedFileError(part)
    # the last row may have been read without its line end, which may have come by now
    tail = b"".join(source.read_blocks(Slice(end - 1, min(end + 2, size))))
    line_end = re.match(rb"\n|.(\r?\n|\r?\Z)", tail, re.DOTALL)
    if line_end is None:
        raise _ChangedFileError(f"its row {row} has grown since it was read")
    return end + line_end.end() - 1, row


# The requested days: ``{date}`` in the input's path, one day or a range of them.


DATE_PLACEHOLDER = "{date}"
Day = datetime.date | None
"""The day whose data is read; None for an input that does not come by the day."""


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
    if (date and (first or last)) or bool(first) != bool(last):
        raise ConfigurationError("give --date, or both ends of a range: --from 2026-11-01 --to 2026-11-05")
    if not (first and last):
        return [_parse_day(date, "--date") if date else today]
    start = _parse_day(first, "--from")
    count = (_parse_day(last, "--to") - start).days + 1
    if count < 1:
        raise ConfigurationError(f"--from {first} --to {last}: give the earlier day first")
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
    paths = tuple(path.replace(DATE_PLACEHOLDER, day.isoformat()) for path in config.input.path)
    return config.model_copy(update={"input": config.input.model_copy(update={"path": paths})})

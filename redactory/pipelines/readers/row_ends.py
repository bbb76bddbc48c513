"""Where the rows of a growing file end, counted as its reader counts them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from redactory.pipelines.readers.records import is_compressed
from redactory.pipelines.readers.sources import Slice, Source
from redactory.pipelines.readers.tables import row_ends

_CHUNK = 1 << 20
_SEPARATORS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class Rows:
    """What stands in some bytes of a file: whole rows up to ``end``, and all rows up to the last byte.

    ``blank`` says that there is nothing but white space (of a table: nothing below its header).
    """

    end: int
    whole: int
    all: int
    blank: bool


def grows(source: Source) -> bool:
    """Whether rows can be added to the end of such a file: JSON lines, CSV or TSV, not compressed."""
    return source.format in ("jsonl", *_SEPARATORS) and not is_compressed(source.url)


def header_of(source: Source, limit: int, size: int) -> int:
    """The length in bytes of a table's header line; 0 for a format without one, or where it is not whole."""
    if source.format not in _SEPARATORS:
        return 0
    with source.open(part=Slice(0, size)) as file:
        end, whole, _ = next(row_ends(file, _SEPARATORS[source.format], limit), (0, False, True))
        return end if whole else 0


def rows_in(source: Source, part: Slice, limit: int) -> Rows:
    """The rows of ``part``; one of JSON lines is whole once it is an object, line end or not."""
    return _lines(source, part, limit) if source.format == "jsonl" else _table(source, part, limit)


def _lines(source: Source, part: Slice, limit: int) -> Rows:
    whole, at, end, blank, tail = 0, part.from_byte, part.from_byte, True, b""
    with source.open(part=part) as file:
        while block := file.read(_CHUNK):
            blank = blank and not block.strip()
            cut = block.rfind(b"\n") + 1
            whole += block.count(b"\n")
            # of a last row that is too long to be read it is enough to know that it is there
            tail = block[cut:] if cut else (tail + block)[: limit + 1]
            end = at + cut if cut else end
            at += len(block)
    if not tail.strip():
        return Rows(end, whole, whole, blank)
    if len(tail) <= limit and _is_object(tail):
        return Rows(at, whole + 1, whole + 1, False)
    return Rows(end, whole, whole + 1, blank)


def _is_object(line: bytes) -> bool:
    """Whether it is whole: nothing that is added to an object leaves one that goes on."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _table(source: Source, part: Slice, limit: int) -> Rows:
    # the header is read in front of a later slice, and counts as a row of the first one
    before, whole, count, end = bool(part.header), 0, 0, 0
    blank, shift = True, part.from_byte - part.header
    with source.open(part=part) as file:
        for end_of_row, is_whole, is_blank in row_ends(file, _SEPARATORS[source.format], limit):
            count += 1
            whole, end = (count, end_of_row) if is_whole else (whole, end)
            blank = blank and (is_blank or count == 1)
    if not whole:
        return Rows(part.from_byte, 0, count, blank)
    return Rows(end + shift, whole - before, count - before, blank)

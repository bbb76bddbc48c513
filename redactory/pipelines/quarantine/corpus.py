"""What lies in a quarantine as an input of its own: JSON lines, in memory alone.

A rejected row is parsed again by the reader of its format.  A quarantined point becomes a document with the
id and the user of the one that it was cut from; several of one document are joined by line ends.
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from redactory.foundation.errors import RedactoryError, RunStateError
from redactory.foundation.keys import DigestKey
from redactory.pipelines.config import InputSettings
from redactory.pipelines.quarantine.listing import POINT, entries
from redactory.pipelines.quarantine.users import UNKNOWN, Author, authors_of
from redactory.pipelines.readers import find_by_path, find_sources
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.readers.formats import READERS
from redactory.pipelines.readers.records import BROKEN_ROW, KEPT_BYTES, Columns
from redactory.pipelines.readers.sources import Source, format_of
from redactory.pipelines.readers.tables import row_ends
from redactory.redaction import RunFolder

MOST_BYTES = 1 << 30
"""What is tried again lies in memory; a night that failed as a whole is run again instead."""
_BYTE_ORDER_MARK = "\ufeff".encode()
_SEPARATORS = {"csv": ",", "tsv": "\t"}

CUT = "only their first 64 KiB were kept"
REPEATED = "their document's id occurs twice"
NO_ROW = "they are no rows of their table by themselves"
NO_HEADER = "the header of their file cannot be read any more"
FROM_COLUMNS = "they are rows of a Parquet or Arrow file: give the file to a new run"
NO_USER = "their user is not known any more"


@dataclass
class Corpus:
    """The lines to curate again; how many entries there were, are in it, and were left, by why."""

    lines: list[bytes] = field(default_factory=list)
    entries: int = 0
    retried: int = 0
    left: Counter[str] = field(default_factory=Counter)
    size: int = 0

    def add(self, line: bytes, of: int = 1) -> None:
        """One document of ``of`` entries; ``RunStateError`` where it gets too much to hold in memory."""
        self.lines.append(line)
        self.retried += of
        self.size += len(line)
        if self.size > MOST_BYTES:
            raise RunStateError(
                "the quarantine holds more than a gigabyte: mend what failed, and curate the input again as "
                "a new run"
            )


def corpus_of(run: RunFolder, before: InputSettings, now: InputSettings, key: DigestKey | None) -> Corpus:
    """The quarantine of ``run``, which was read by the settings ``before``, to be read by ``now``.

    ``key`` is the run's digest key, None where it is not to be had: fewer users are then known.
    """
    corpus = Corpus()
    rows, points = _Rows(before, now), defaultdict[str, list[tuple[int, str]]](list)
    for entry in entries(run, ["kind", "reason", "source", "point_id", "content"]):
        corpus.entries += 1
        content = entry["content"] or b""
        if entry["kind"] == POINT:
            points[entry["source"]].append((entry["point_id"], content.decode()))
            continue
        line = rows.line(entry["reason"], entry["source"], content)
        if isinstance(line, str):
            corpus.left[line] += 1
        else:
            corpus.add(line)
    for doc_id, texts, author in _with_authors(run, points, key):
        if author is UNKNOWN:
            corpus.left[NO_USER] += len(texts)
        else:
            corpus.add(_document(now, doc_id, texts, author), len(texts))
    return corpus


def _with_authors(
    run: RunFolder, points: dict[str, list[tuple[int, str]]], key: DigestKey | None
) -> Iterator[tuple[str, list[str], Author]]:
    authors = authors_of(run, {doc_id: own[0][0] for doc_id, own in points.items()}, key)
    for doc_id, own in points.items():
        yield doc_id, [text for _, text in own], authors[doc_id]


def _document(columns: InputSettings, doc_id: str, texts: Iterable[str], author: Author) -> bytes:
    row = {columns.text: "\n".join(texts), columns.id: doc_id, columns.user: author.user_id}
    if columns.label is not None:
        row[columns.label] = author.label
    return _line({name: value for name, value in row.items() if value is not None})


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


@dataclass
class _Rows:
    """Rejected rows as JSON lines; ``headers`` are those of the tables that they stood in."""

    before: InputSettings
    now: InputSettings
    headers: dict[str, bytes | None] = field(default_factory=dict)

    def line(self, reason: str, source: str, content: bytes) -> bytes | str:
        """The row as a line, or why it cannot be one."""
        kind = format_of(source) if self.before.format == "auto" else self.before.format
        if reason == DUPLICATE_ID:
            return REPEATED
        if kind in ("parquet", "arrow"):
            return FROM_COLUMNS
        if len(content) >= KEPT_BYTES:
            return CUT
        if kind in _SEPARATORS:
            # a line that may have stood inside a quotation can look like a row of its own
            return NO_ROW if reason == BROKEN_ROW else self._of_table(kind, source, content)
        if kind == "text":
            return self._of_file(source, content)
        return content.removeprefix(_BYTE_ORDER_MARK).removesuffix(b"\n") + b"\n"

    def _of_table(self, kind: str, source: str, content: bytes) -> bytes | str:
        if source not in self.headers:
            self.headers[source] = _header(self.before, source, _SEPARATORS[kind])
        header = self.headers[source]
        if header is None:
            return NO_HEADER
        rows = READERS[kind](io.BytesIO(header + content), self.now.max_row_bytes, Columns(), source)
        found = [record for _, record, _, _ in rows]
        return _line(found[0]) if len(found) == 1 and found[0] is not None else NO_ROW

    def _of_file(self, source: str, content: bytes) -> bytes | str:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return NO_ROW
        return _line({self.now.text: text, self.now.id: PurePosixPath(source).name})


def _header(settings: InputSettings, name: str, separator: str) -> bytes | None:
    """The header line of the table that the run knew by ``name``; None where it is not there any more."""
    try:
        found = [
            source
            for find in (find_sources, find_by_path)
            for source in find(settings.path, settings.format)
            if source.name == name
        ]
        return _first_row(found[0], separator, settings.max_row_bytes) if found else None
    except (RedactoryError, OSError):
        return None


def _first_row(source: Source, separator: str, limit: int) -> bytes | None:
    with source.open() as file:
        first = next(row_ends(file, separator, limit), None)
    if first is None or not first[1]:
        return None
    with source.open() as file:
        return file.read(first[0])

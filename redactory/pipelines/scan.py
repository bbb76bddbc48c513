"""Scan: a quick look at texts, files and folders: what the policies find in them, and where."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from redactory.detectors import TextDetector
from redactory.detectors.settings import ListSettings, WordList
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_for_texts
from redactory.pipelines.policy import Hit, Policy, PolicyName
from redactory.pipelines.readers import Document, Rejection, Source, find_by_path, read_documents
from redactory.pipelines.readers.documents import EMPTY_TEXT, MISSING_TEXT, first_rows
from redactory.pipelines.readers.files import format_of

LISTED = 1_000
_PEEKED = 100
_COLUMNS = 20
Look = Callable[[dict[str, Any], str], None]
"""Is given each hit that is listed, and the line of text that it begins on: text, for a terminal alone."""
Entry = Document | Rejection


def scan(
    paths: Sequence[str | Path] = (),
    *,
    texts: Sequence[str] = (),
    config: Given | None = None,
    policy: PolicyName = "strict",
    column: str | None = None,
    allow: Sequence[str | Path] = (),
    limit: int = LISTED,
    detector: TextDetector | None = None,
    look: Look | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What is found in the files that ``paths`` name (files, folders, globs, URLs) and in ``texts``.

    Files are read as :func:`redactory.curate` reads its input; ``column`` is the column of the text, and no
    other one is looked at.  A file with another ending that is named itself is read as text.  ``policy``
    strict counts what would be masked, conservative also what would make a data point private.  ``allow``
    names files of terms that are no hits, as ``detect.lists.allow`` takes them.  The first ``limit`` hits are
    listed, all are counted.

    ``ConfigurationError`` where a path names nothing, ``InputError`` for a file that cannot be read in whole,
    and for JSON lines of which the first rows lack the column of the text.
    """
    named = [str(path) for path in paths]
    settings = _settings(config, named, column, allow)
    judge, sources = Policy(settings, detector), list(_sources(named, settings))
    for source in sources:
        _require_column(source, settings)
    with waiting(progress, "load engines"):
        judge.load_engines()
    heard = _Heard(policy, limit, look, progress)
    for source in sources:
        name = _shown(source.name)
        heard.file(judge, name, source.format, read_documents(source, settings.input))
    for number, text in enumerate(texts, 1):
        name = "text" if len(texts) == 1 else f"text {number}"
        heard.file(judge, name, "text", [Document(name, None, text, name, 1)])
    progress("scan", heard.texts, heard.texts, "texts")
    return {
        "policy": policy,
        "hash": judge.hash,
        "clean": not heard.found and not heard.unread,
        "texts": heard.texts,
        "found": heard.found.total(),
        "unread": heard.unread,
        "by_label": dict(heard.found.most_common()),
        "files": heard.files,
        "hits": heard.hits,
    }


@dataclass
class _Heard:
    """What was found so far."""

    policy: PolicyName
    limit: int
    look: Look | None
    progress: Progress
    texts: int = 0
    unread: int = 0
    found: Counter[str] = field(default_factory=Counter)
    files: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, Any]] = field(default_factory=list)

    def file(self, judge: Policy, name: str, format_: str, entries: Iterable[Entry]) -> None:
        """Look at every text of one file."""
        rejected: Counter[str] = Counter()
        quarantined: Counter[str] = Counter()
        waiting: deque[Document] = deque()

        def documents() -> Iterator[str]:
            for entry in entries:
                if isinstance(entry, Rejection):
                    rejected[entry.reason] += 1
                else:
                    waiting.append(entry)
                    yield entry.text

        texts, found = 0, self.found.total()
        for points in judge.split_many(documents()):
            document = waiting.popleft()
            texts += 1
            quarantined.update(point.failure for point in points if point.failure is not None)
            row = None if format_ == "text" else document.row
            self._text(name, row, document.text, [hit for point in points for hit in point.hits])
            self.progress("scan", self.texts + texts, None, "texts")
        self.texts += texts
        self.unread += quarantined.total() + sum(
            count for reason, count in rejected.items() if not _is_empty(reason, format_)
        )
        self.files.append(
            {
                "file": name,
                "format": format_,
                "texts": texts,
                "found": self.found.total() - found,
                "rejected": dict(rejected),
                "quarantined": dict(quarantined),
            }
        )

    def _text(self, name: str, row: int | None, text: str, hits: list[Hit]) -> None:
        heeded = [hit for hit in hits if self.policy == "conservative" or hit.policy == "strict"]
        self.found.update(hit.label for hit in heeded)
        listed = heeded[: self.limit - len(self.hits)]
        starts = _line_starts(text) if listed else []
        for hit in listed:
            line = bisect_right(starts, hit.start)
            place = _listed(name, row, line, hit.start - starts[line - 1] + 1, hit)
            self.hits.append(place)
            if self.look is not None:
                end = starts[line] - 1 if line < len(starts) else len(text)
                self.look(place, text[starts[line - 1] : end])


def _settings(
    config: Given | None, paths: Sequence[str], column: str | None, allow: Sequence[str | Path]
) -> Config:
    """The configuration, with the column and the allow lists that were asked for."""
    columns = {} if column is None else {"text": column}
    settings = load_for_texts(config, paths or ("-",), **columns)
    if not allow:
        return settings
    lists = settings.detect.lists or ListSettings()
    more = (*lists.allow, *(WordList(file=str(file)) for file in allow))
    detect = settings.detect.model_copy(update={"lists": lists.model_copy(update={"allow": more})})
    return settings.model_copy(update={"detect": detect})


def _sources(paths: Sequence[str], settings: Config) -> Iterator[Source]:
    """The files, each once; one that is named itself, with an ending that tells no format, is text."""
    known: set[str] = set()
    for path in paths:
        asked = settings.input.format
        if asked == "auto" and os.path.isfile(path) and format_of(path) is None:
            asked = "text"
        for source in find_by_path((path,), asked):
            if source.url not in known:
                known.add(source.url)
                yield source


def _require_column(source: Source, settings: Config) -> None:
    """``InputError`` where not one of the first rows has the column: a table without it is refused as well.

    A pipe is not looked at before it is read: what is read of it is gone.
    """
    piped = os.path.exists(source.name) and not os.path.isfile(source.name)
    if source.format != "jsonl" or piped:
        return
    rows = list(islice(read_documents(source, settings.input), _PEEKED))
    rejected = {row.reason for row in rows if isinstance(row, Rejection)}
    if MISSING_TEXT not in rejected or any(isinstance(row, Document) for row in rows):
        return
    columns = first_rows(source, settings.input, _PEEKED).columns
    if columns and settings.input.text not in columns:
        there = ", ".join(columns[:_COLUMNS]) + (", …" if len(columns) > _COLUMNS else "")
        raise InputError(
            f"no column '{settings.input.text}' in {_shown(source.name)}; its columns are {there}: use "
            "--column or --config"
        )


def _is_empty(reason: str, format_: str) -> bool:
    """Whether such a row holds no text that could have been looked at.

    In JSON lines a missing text may stand under another name; a table has its column, or is refused.
    """
    return reason == EMPTY_TEXT or (reason == MISSING_TEXT and format_ != "jsonl")


def _shown(name: str) -> str:
    """A file's name as seen from here."""
    return name.removeprefix(os.getcwd() + os.sep)


def _line_starts(text: str) -> list[int]:
    return [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")]


def _listed(name: str, row: int | None, line: int, column: int, hit: Hit) -> dict[str, Any]:
    return {
        "file": name,
        "row": row,
        "line": line,
        "column": column,
        "start": hit.start,
        "end": hit.end,
        "label": hit.label,
        "score": hit.score,
        "detector": hit.detector,
        "policy": hit.policy,
    }

"""Scan: a quick look at texts, files and folders: what the policies find in them, and where."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from redactory.detectors import TextDetector
from redactory.detectors.settings import ListSettings, Terms
from redactory.foundation.errors import InputError, shorten
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_for_texts
from redactory.pipelines.policy import Hit, Point, Policy, PolicyName
from redactory.pipelines.readers import Document, Rejection, Source, find_by_path
from redactory.pipelines.readers.documents import EMPTY_TEXT, MISSING_TEXT, RowCounts, first_rows
from redactory.pipelines.readers.files import format_of

LISTED = 1_000
_PEEKED = 100
_COLUMNS = 20
Look = Callable[[dict[str, Any], str], None]
"""Is given each hit that is listed, and the line of text that it begins on: text, for a terminal alone."""


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

    ``ConfigurationError`` where a path names nothing, ``InputError`` for JSON lines of which the first rows
    lack the column of the text, and for a single file that is damaged; among others it counts as unread.
    """
    settings = _settings(config, paths, column, allow)
    judge, sources = Policy(settings, detector), list(_sources(paths, settings))
    with waiting(progress, "load engines"):
        judge.load_engines()
    files, hits, by_label = list[dict[str, Any]](), list[dict[str, Any]](), Counter[str]()
    done = unread = 0
    counts = RowCounts(settings.input)
    for name, form, entries in _texts_of(sources, texts, counts):
        found, rejected, quarantined, before = Counter[str](), Counter[str](), Counter[str](), done
        for done, (document, points) in enumerate(_looked_at(judge, entries, rejected), before + 1):
            quarantined.update(point.failure for point in points if point.failure is not None)
            heeded = [h for p in points for h in p.hits if policy == "conservative" or h.policy == "strict"]
            found.update(hit.label for hit in heeded)
            row = None if form == "text" else document.row
            for hit, line in _listed(heeded[: limit - len(hits)], document.text, name, row):
                hits.append(hit)
                if look is not None:
                    look(hit, line)
            progress("scan", done, None, "texts")
        if counts.damage and len(sources) == 1:
            raise counts.damage[0]
        texts_counts = {"texts": done - before, "found": found.total(), "rejected": dict(rejected)}
        files.append({"file": name, "format": form, **texts_counts, "quarantined": dict(quarantined)})
        by_label += found
        unread += quarantined.total() + sum(n for why, n in rejected.items() if not is_empty(why, form))
    progress("scan", done, done, "texts")
    return {
        "policy": policy,
        "hash": judge.hash,
        "clean": not by_label and not unread,
        "texts": done,
        "found": by_label.total(),
        "unread": unread,
        "by_label": dict(by_label.most_common()),
        "files": files,
        "hits": hits,
    }


def _texts_of(
    sources: Iterable[Source], texts: Sequence[str], counts: RowCounts
) -> Iterator[tuple[str, str, Iterable[Document | Rejection]]]:
    """The name, the format and the rows of each file, and then of each text."""
    for source in sources:
        name = source.name.removeprefix(os.getcwd() + os.sep)
        yield name, source.format, counts.read(source)
    for number, text in enumerate(texts, 1):
        name = "text" if len(texts) == 1 else f"text {number}"
        yield name, "text", [Document(name, None, text, name, 1)]


def _looked_at(
    judge: Policy, entries: Iterable[Document | Rejection], rejected: Counter[str]
) -> Iterator[tuple[Document, list[Point]]]:
    """Each document with its points; the other rows are counted by their reason."""
    waiting_for: deque[Document] = deque()

    def texts() -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, Rejection):
                rejected[entry.reason] += 1
            else:
                waiting_for.append(entry)
                yield entry.text

    for points in judge.split_many(texts()):
        yield waiting_for.popleft(), points


def _listed(hits: Sequence[Hit], text: str, name: str, row: int | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Where each hit is, as it is listed, and the line of text that it begins on."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")] if hits else []
    for hit in hits:
        line = bisect_right(starts, hit.start)
        begin = starts[line - 1]
        end = starts[line] - 1 if line < len(starts) else len(text)
        place = {"file": name, "row": row, "line": line, "column": hit.start - begin + 1}
        yield {**place, **asdict(hit)}, text[begin:end]


def _settings(
    config: Given | None, paths: Sequence[str | Path], column: str | None, allow: Sequence[str | Path]
) -> Config:
    """The configuration, with the column and the allow lists that were asked for."""
    columns = {} if column is None else {"text": column}
    settings = load_for_texts(config, [str(path) for path in paths] or ("-",), **columns)
    if not allow:
        return settings
    lists = settings.detect.lists or ListSettings()
    more = (*lists.allow, *(Terms(file=str(file)) for file in allow))
    detect = settings.detect.model_copy(update={"lists": lists.model_copy(update={"allow": more})})
    return settings.model_copy(update={"detect": detect})


def _sources(paths: Sequence[str | Path], settings: Config) -> Iterator[Source]:
    """The files, each once, checked; one that is named itself, whose ending tells no format, is text."""
    known: set[str] = set()
    for path in map(str, paths):
        asked = settings.input.format
        if asked == "auto" and os.path.isfile(path) and format_of(path) is None:
            asked = "text"
        for source in find_by_path((path,), asked):
            if source.url not in known:
                known.add(source.url)
                _require_column(source, settings)
                yield source


def _require_column(source: Source, settings: Config) -> None:
    """``InputError`` where not one of the first rows has the column: a table without it is refused as well.

    A pipe is not looked at before it is read: what is read of it is gone.
    """
    piped = os.path.exists(source.name) and not os.path.isfile(source.name)
    if source.format != "jsonl" or piped:
        return
    rows = list(islice(RowCounts(settings.input).read(source), _PEEKED))
    rejected = {row.reason for row in rows if isinstance(row, Rejection)}
    if MISSING_TEXT not in rejected or any(isinstance(row, Document) for row in rows):
        return
    columns = first_rows(source, RowCounts(settings.input), _PEEKED).columns
    lacking = [name for name in settings.input.fields.columns if name not in columns]
    if columns and lacking:
        there = ", ".join(columns[:_COLUMNS]) + (", …" if len(columns) > _COLUMNS else "")
        raise InputError(
            f"no column '{shorten(lacking[0])}' in {os.path.relpath(source.name)}; its columns are {there}: "
            "use --column or --config"
        )


def is_empty(reason: str, format_: str) -> bool:
    """Whether such a row holds no text that could have been looked at.

    In JSON lines a missing text may stand under another name; a table has its column, or is refused.
    """
    return reason == EMPTY_TEXT or (reason == MISSING_TEXT and format_ != "jsonl")

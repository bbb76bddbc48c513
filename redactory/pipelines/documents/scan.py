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
from redactory.detectors.settings import ListSettings, TermList
from redactory.foundation.errors import InputError, shorten
from redactory.foundation.progress import Progress, no_progress, report_loading
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import ConfigLike, load_for_texts
from redactory.pipelines.curation.policy import Example, FoundSpan, Policy, PolicyName
from redactory.pipelines.readers import Document, Rejection, Source, sources_by_path
from redactory.pipelines.readers.documents import EMPTY_TEXT, MISSING_TEXT, RowCounts, preview_rows
from redactory.pipelines.readers.files import detect_format

DEFAULT_LIMIT = 1_000
_PEEKED_ROWS = 100
_MAX_NAMED_COLUMNS = 20
SpanCallback = Callable[[dict[str, Any], str], None]
"""Is given each hit that is listed, and the line of text that it begins on: text, for a terminal alone."""


def scan(
    paths: Sequence[str | Path] = (),
    *,
    texts: Sequence[str] = (),
    config: ConfigLike | None = None,
    policy: PolicyName = "strict",
    column: str | None = None,
    allow: Sequence[str | Path] = (),
    limit: int = DEFAULT_LIMIT,
    detector: TextDetector | None = None,
    look: SpanCallback | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """What is found in the files that ``paths`` name (files, folders, globs, URLs) and in ``texts``.

    Files are read as :func:`redactory.curate` reads its input; ``column`` is the column of the text, and no other one
    is looked at.  A file with another ending that is named itself is read as text.  ``policy`` strict counts what would
    be masked, conservative also what would make a data point private.  ``allow`` names files of terms that are no hits,
    as ``detect.lists.allow`` takes them.  The first ``limit`` hits are listed, all are counted.

    ``ConfigurationError`` where a path names nothing, ``InputError`` for JSON lines of which the first rows
    lack the column of the text, and for a single file that is damaged; among others it counts as unread.
    """
    settings = _load_settings(config, paths, column, allow)
    judge, sources = Policy(settings, detector), list(_find_unique_sources(paths, settings))
    with report_loading(progress, "load engines"):
        judge.load_engines()
    files, hits, by_label = list[dict[str, Any]](), list[dict[str, Any]](), Counter[str]()
    done = unread = 0
    counts = RowCounts(settings.input)
    for name, format_, entries in _iterate_texts(sources, texts, counts):
        label_counts, rejected, quarantined, before = Counter[str](), Counter[str](), Counter[str](), done
        for done, (document, examples) in enumerate(_evaluate_documents(judge, entries, rejected), before + 1):
            quarantined.update(example.failure for example in examples if example.failure is not None)
            heeded = [hit for p in examples for hit in p.spans if policy == "conservative" or hit.policy == "strict"]
            label_counts.update(hit.label for hit in heeded)
            row = None if format_ == "text" else document.row
            for hit, line in _locate_spans(heeded[: limit - len(hits)], document.text, name, row):
                hits.append(hit)
                if look is not None:
                    look(hit, line)
            progress("scan", done, None, "texts")
        if counts.damaged_files and len(sources) == 1:
            raise counts.damaged_files[0]
        texts_counts = {"texts": done - before, "found": label_counts.total(), "rejected": dict(rejected)}
        files.append({"file": name, "format": format_, **texts_counts, "quarantined": dict(quarantined)})
        by_label += label_counts
        unread += quarantined.total() + sum(n for reason, n in rejected.items() if not has_no_text(reason, format_))
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
        "spans": hits,
    }


def _iterate_texts(
    sources: Iterable[Source], texts: Sequence[str], counts: RowCounts
) -> Iterator[tuple[str, str, Iterable[Document | Rejection]]]:
    """The name, the format and the rows of each file, and then of each text."""
    for source in sources:
        name = source.name.removeprefix(os.getcwd() + os.sep)
        yield name, source.format, counts.read(source)
    for number, text in enumerate(texts, 1):
        name = "text" if len(texts) == 1 else f"text {number}"
        yield name, "text", [Document(name, None, text, name, 1)]


def _evaluate_documents(
    span_policy: Policy, entries: Iterable[Document | Rejection], rejected: Counter[str]
) -> Iterator[tuple[Document, list[Example]]]:
    """Each document with its points; the other rows are counted by their reason."""
    pending: deque[Document] = deque()

    def texts() -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, Rejection):
                rejected[entry.reason] += 1
            else:
                pending.append(entry)
                yield entry.text

    for examples in span_policy.route_many(texts()):
        yield pending.popleft(), examples


def _locate_spans(
    spans: Sequence[FoundSpan], text: str, name: str, row: int | None
) -> Iterator[tuple[dict[str, Any], str]]:
    """Where each hit is, as it is listed, and the line of text that it begins on."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")] if spans else []
    for span in spans:
        line = bisect_right(starts, span.start)
        begin = starts[line - 1]
        end = starts[line] - 1 if line < len(starts) else len(text)
        place = {"file": name, "row": row, "line": line, "column": span.start - begin + 1}
        yield {**place, **asdict(span)}, text[begin:end]


def _load_settings(
    config: ConfigLike | None, paths: Sequence[str | Path], column: str | None, allow: Sequence[str | Path]
) -> Config:
    """The configuration, with the column and the allow lists that were asked for."""
    columns = {} if column is None else {"text": column}
    settings = load_for_texts(config, [str(path) for path in paths] or ("-",), **columns)
    if not allow:
        return settings
    lists = settings.detect.lists or ListSettings()
    more = (*lists.allow, *(TermList(file=str(file)) for file in allow))
    detect = settings.detect.model_copy(update={"lists": lists.model_copy(update={"allow": more})})
    return settings.model_copy(update={"detect": detect})


def _find_unique_sources(paths: Sequence[str | Path], settings: Config) -> Iterator[Source]:
    """The files, each once, checked; one that is named itself, whose ending tells no format, is text."""
    seen_urls: set[str] = set()
    for path in map(str, paths):
        format_ = settings.input.format
        if format_ == "auto" and os.path.isfile(path) and detect_format(path) is None:
            format_ = "text"
        for source in sources_by_path((path,), format_):
            if source.url not in seen_urls:
                seen_urls.add(source.url)
                _require_column(source, settings)
                yield source


def _require_column(source: Source, settings: Config) -> None:
    """``InputError`` where not one of the first rows has the column: a table without it is refused as well.

    A pipe is not looked at before it is read: what is read of it is gone.
    """
    is_pipe = os.path.exists(source.name) and not os.path.isfile(source.name)
    if source.format != "jsonl" or is_pipe:
        return
    rows = list(islice(RowCounts(settings.input).read(source), _PEEKED_ROWS))
    rejected = {row.reason for row in rows if isinstance(row, Rejection)}
    if MISSING_TEXT not in rejected or any(isinstance(row, Document) for row in rows):
        return
    columns = preview_rows(source, RowCounts(settings.input), _PEEKED_ROWS).columns
    missing = [name for name in settings.input.fields.columns if name not in columns]
    if columns and missing:
        there = ", ".join(columns[:_MAX_NAMED_COLUMNS]) + (", …" if len(columns) > _MAX_NAMED_COLUMNS else "")
        raise InputError(
            f"no column '{shorten(missing[0])}' in {os.path.relpath(source.name)}; its columns are {there}: "
            "use --column or --config"
        )


def has_no_text(reason: str, format_: str) -> bool:
    """Whether such a row holds no text that could have been looked at.

    In JSON lines a missing text may stand under another name; a table has its column, or is refused.
    """
    return reason == EMPTY_TEXT or (reason == MISSING_TEXT and format_ != "jsonl")

"""Scan: list what the policies find in texts, files and folders, and where."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby, tee
from pathlib import Path
from typing import Any

from redactory.detectors import TextDetector
from redactory.foundation.errors import InputError, shorten_name
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import ConfigLike, load_text_config
from redactory.pipelines.curation.policy import Example, FoundSpan, Policy, PolicyName
from redactory.pipelines.curation.stages.metadata_columns import parse_metadata_values
from redactory.pipelines.documents.detection_options import make_language_chooser, set_language
from redactory.pipelines.readers import Document, Rejection, Source, find_sources_by_path
from redactory.pipelines.readers.documents import EMPTY_TEXT, MISSING_TEXT, RowCounts, preview_rows
from redactory.pipelines.readers.files import detect_format

DEFAULT_LIMIT = 1_000
_PEEKED_ROWS = 100
_MAX_NAMED_COLUMNS = 20
SpanCallback = Callable[[dict[str, Any], str], None]
"""Called with each listed span and the line of text where it begins; text must go only to a terminal."""


def scan(
    paths: Sequence[str | Path] = (),
    *,
    texts: Sequence[str] = (),
    config: ConfigLike | None = None,
    policy: PolicyName = "strict",
    text_column: str | None = None,
    encoding: str | None = None,
    language_column: str | None = None,
    limit: int = DEFAULT_LIMIT,
    detector: TextDetector | None = None,
    on_span: SpanCallback | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Search the files that ``paths`` name (files, folders, globs, URLs) and ``texts`` for spans.

    Files are read as by :func:`redactory.curate`, in ``encoding``; only the column ``text_column`` is searched. A file
    that is named itself and has another ending is read as text. The ``strict`` policy counts what would be masked,
    ``conservative`` also what would make an example private. Each row is read in the language that its
    ``language_column`` names, as by :func:`redactory.redact`. All spans are counted, the first ``limit`` are listed.

    Raises ``ConfigurationError`` if a path names nothing, ``InputError`` for JSON lines whose first rows lack the
    text column, and for a single damaged file; one damaged file among others counts as unread.
    """
    columns = None if language_column is None else (language_column,)
    changes = {"text": text_column, "encoding": encoding, "metadata_columns": columns}
    settings = load_text_config(config, [str(path) for path in paths] or ("-",), **changes)
    span_policy, sources = Policy(settings, detector), list(_find_unique_sources(paths, settings))
    with report_start_and_end(progress, "load engines"):
        span_policy.load_engines()
    # other kept columns than that of the language may come from the configuration
    choose_policy = _make_policy_chooser(span_policy, settings, detector) if columns else lambda _: span_policy
    files, listed_spans, by_label = list[dict[str, Any]](), list[dict[str, Any]](), Counter[str]()
    counts, text_count, unread = RowCounts(settings.input), 0, 0
    for name, format_, entries in _iterate_texts(sources, texts, counts):
        label_counts, rejected, quarantined, before = Counter[str](), Counter[str](), Counter[str](), text_count
        is_joined = settings.input.has_multiple_texts and format_ != "text"
        for text_count, (document, examples) in enumerate(
            _route_documents(choose_policy, entries, rejected, is_joined), before + 1
        ):
            quarantined.update(example.failure for example in examples if example.failure is not None)
            counted_spans = [s for e in examples for s in e.spans if policy == "conservative" or s.policy == "strict"]
            label_counts.update(span.label for span in counted_spans)
            row = None if format_ == "text" else document.row
            unlisted_spans = counted_spans[: limit - len(listed_spans)]
            for located, line in _list_span_locations(unlisted_spans, document.text, name, row):
                listed_spans.append(located)
                if on_span is not None:
                    on_span(located, line)
            progress("scan", text_count, None, "texts")
        if counts.damaged_files and len(sources) == 1:
            raise counts.damaged_files[0]
        texts_counts = {"texts": text_count - before, "found": label_counts.total(), "rejected": dict(rejected)}
        files.append({"file": name, "format": format_, **texts_counts, "quarantined": dict(quarantined)})
        by_label += label_counts
        unread += quarantined.total() + sum(n for reason, n in rejected.items() if not has_no_text(reason, format_))
    progress("scan", text_count, text_count, "texts")
    return {
        "policy": policy,
        "hash": span_policy.hash,
        "clean": not by_label and not unread,
        "texts": text_count,
        "found": by_label.total(),
        "unread": unread,
        "by_label": dict(by_label.most_common()),
        "files": files,
        "spans": listed_spans,
    }


def _make_policy_chooser(
    default: Policy, settings: Config, detector: TextDetector | None
) -> Callable[[Document], Policy]:
    """Return a function that chooses the policy of a row by its kept language, or ``default`` without one."""
    choose_language = make_language_chooser(settings.detect)

    @cache
    def load_policy(language: str) -> Policy:
        detect = set_language(settings.detect, language)
        return Policy(settings.model_copy(update={"detect": detect}), detector)

    def choose_policy(document: Document) -> Policy:
        return default if document.kept is None else load_policy(choose_language(parse_metadata_values(document)[0]))

    return choose_policy


def _iterate_texts(
    sources: Iterable[Source], texts: Sequence[str], counts: RowCounts
) -> Iterator[tuple[str, str, Iterable[Document | Rejection]]]:
    for source in sources:
        name = source.name.removeprefix(os.getcwd() + os.sep)
        yield name, source.format, counts.read_and_count(source)
    for number, text in enumerate(texts, 1):
        name = "text" if len(texts) == 1 else f"text {number}"
        yield name, "text", [Document(name, None, text, name, 1)]


def _route_documents(
    choose_policy: Callable[[Document], Policy],
    entries: Iterable[Document | Rejection],
    rejected: Counter[str],
    is_joined: bool,
) -> Iterator[tuple[Document, list[Example]]]:
    def read_documents() -> Iterator[Document]:
        for entry in entries:
            if isinstance(entry, Rejection):
                rejected[entry.reason] += 1
            else:
                yield entry

    for policy, group in groupby(read_documents(), choose_policy):
        documents, searched = tee(group)
        texts = (document.text for document in searched)
        yield from zip(documents, policy.read_many(texts, joined=is_joined), strict=True)


def _list_span_locations(
    spans: Sequence[FoundSpan], text: str, name: str, row: int | None
) -> Iterator[tuple[dict[str, Any], str]]:
    starts = [0, *(location + 1 for location, letter in enumerate(text) if letter == "\n")] if spans else []
    for span in spans:
        line = bisect_right(starts, span.start)
        begin = starts[line - 1]
        end = starts[line] - 1 if line < len(starts) else len(text)
        location = {"file": name, "row": row, "line": line, "column": span.start - begin + 1}
        yield {**location, **asdict(span)}, text[begin:end]


def _find_unique_sources(paths: Sequence[str | Path], settings: Config) -> Iterator[Source]:
    """Yield each file once, checked; a file named itself with an unknown ending is text."""
    seen_urls: set[str] = set()
    for path in map(str, paths):
        format_ = settings.input.format
        if format_ == "auto" and os.path.isfile(path) and detect_format(path) is None:
            format_ = "text"
        for source in find_sources_by_path((path,), format_):
            if source.url not in seen_urls:
                seen_urls.add(source.url)
                _require_text_column(source, settings)
                yield source


def _require_text_column(source: Source, settings: Config) -> None:
    """Raise ``InputError`` if none of the first rows has the column; a pipe can be read only once, so skip it."""
    is_pipe = os.path.exists(source.name) and not os.path.isfile(source.name)
    if source.format != "jsonl" or is_pipe:
        return
    preview = preview_rows(source, RowCounts(settings.input), _PEEKED_ROWS)
    if preview.documents or all(row.reason != MISSING_TEXT for row in preview.rejections):
        return
    columns = preview.columns
    missing = [name for name in settings.input.fields.columns if name not in columns]
    if columns and missing:
        column_list = ", ".join(columns[:_MAX_NAMED_COLUMNS]) + (", …" if len(columns) > _MAX_NAMED_COLUMNS else "")
        raise InputError(
            f"no column '{shorten_name(missing[0])}' in {os.path.relpath(source.name)}; its columns are {column_list}: "
            "use --text-column or --config"
        )


def has_no_text(reason: str, format_: str) -> bool:
    """Return whether a row with this rejection reason has no text that could have been searched.

    In JSON lines a missing text may have another name; a table has its column, or is refused.
    """
    return reason == EMPTY_TEXT or (reason == MISSING_TEXT and format_ != "jsonl")

"""Redact: copy files and replace every span that the strict policy finds; everything else stays the same.

Engines search chunks of rows, optionally in worker processes; this process replaces spans and writes rows in order.
The spans of finished chunks are kept, without text, so that a killed run can resume
(:mod:`redactory.pipelines.documents.redact_io`).
"""

from __future__ import annotations

import codecs
import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import islice, product
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from redactory.detectors.engine_registry import collect_labels, require_known_labels
from redactory.detectors.settings import ConservativeSettings, get_kind
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, join_words, shorten_name
from redactory.foundation.files import make_folder, read_json, write_text
from redactory.foundation.processes import open_process_pool
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.config import DROP, KEEP, Config, Redaction
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.curation.loading import ConfigLike, load_text_config, parse_settings
from redactory.pipelines.curation.personal_columns import (
    UNNAMED,
    choose_column_label,
    describe_undeclared_path,
    find_undeclared_paths,
    is_field_name,
)
from redactory.pipelines.curation.policy import Example, Policy
from redactory.pipelines.documents.detection_options import make_language_chooser, set_language
from redactory.pipelines.documents.redact_io import (
    PIPE,
    UNKNOWN_FORMAT,
    copy_dataset_metadata,
    find_copy_sources,
    format_quarantine_line,
    open_compressed,
    open_unfinished_copy,
    require_matching_format,
    require_separate_output,
    resolve_input_path,
)
from redactory.pipelines.documents.unmask import PseudonymVault
from redactory.pipelines.json_paths import Fields, KeyedText
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.documents import RowCounts
from redactory.pipelines.readers.files import is_utf8, list_ignored_files
from redactory.pipelines.readers.formats import FORMATS, DamagedFile, Format, Renderer, Row, choose_reader
from redactory.pipelines.store import is_url
from redactory.redaction import MASK
from redactory.redaction.known_values import add_known_occurrences
from redactory.redaction.mask import apply_edits
from redactory.redaction.names import remove_title
from redactory.redaction.replacements import (
    ReplacedSpan,
    Replacement,
    collect_values,
    load_replacement,
    plan_edits,
    unify_labels,
)
from redactory.redaction.spellings import Spellings

DEFAULT_TEXT_FIELDS = ("text", "messages", "conversations")
"""Text fields that are read by default."""
_CHUNK_ROWS, _CHUNK_CHARS = 500, 1 << 19
"""Maximum rows and characters of a chunk."""
_INSPECTED_ROWS = 1_000
"""Number of first rows in which an undeclared column stops the copy; a later row is left out."""
_COMMON_SHARE = 10
"""Messages name only fields that one in so many rows has: a rarer one may be a person's name used as a key."""
_MAX_LIST_DEPTH = 6
"""Maximum number of path parts for which lists are tried."""
UNDECLARED = "undeclared_field"
"""Reason code: the row has a text, or an unusual key, in a column that is neither masked nor declared."""


def redact(
    input_path: str | Path,
    out: str | Path,
    redaction: Redaction | Mapping[str, Any] | None = None,
    *,
    text_columns: Sequence[str] = (),
    config: ConfigLike | None = None,
    format_: str = "auto",
    encoding: str | None = None,
    workers: int = 1,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Write a copy of the file, folder or URL ``input_path`` to ``out`` with spans replaced; return counts, no text.

    ``-`` is standard input or output. ``redaction``, ``text_columns`` and ``encoding`` override ``redact``,
    ``input.text`` and ``input.encoding`` of the configuration; the copy has the same encoding. A row that cannot
    be processed is left out and listed with its reason in ``OUT.quarantine.jsonl``; a damaged file of a folder is
    left out and counted. Raises ``ConfigurationError`` if a path names no field, a column looks personal and has no
    setting, or the output exists or is inside the input; ``InputError`` if a file
    cannot be read; ``CheckFailed`` if more than ``input.max_rejected_share`` of the rows or files are left out.
    """
    input_path, out = resolve_input_path(str(input_path)), str(out)
    overrides = parse_settings(Redaction, redaction)
    changes = {"text": tuple(text_columns) or None, "encoding": encoding}
    settings = load_text_config(config, (input_path,), **changes)
    redaction = settings.redact.override(overrides)
    columns = {name: label for name, label in redaction.masked_columns.items() if label != DROP}
    if columns:
        place = f"--column {', '.join(columns)} (redact.columns)"
        require_known_labels(place, columns.values(), collect_labels(settings.detect))
    require_separate_output(input_path, out)
    sources, is_folder = find_copy_sources(input_path, format_)
    if is_folder and out == PIPE:
        raise ConfigurationError("--out: a folder needs a folder or a URL, not standard output")
    require_matching_format(out, sources, is_folder)
    if redaction.vault is not None:
        if redaction.replace != "pseudonym":
            raise ConfigurationError("vault: only pseudonyms can be unmasked: add --replace pseudonym")
        if not is_utf8(settings.input.encoding):
            raise ConfigurationError("vault: unmask reads only UTF-8; convert the file first (iconv -t UTF-8)")
        # fail before hours of work whose pseudonyms nobody could restore
        PseudonymVault.open_or_create(Path(redaction.vault))
    replacement = load_replacement(redaction.replace, settings.detect.language)
    copy = _RedactionRun(redaction, settings, replacement, progress)
    copy.skipped_files = dict.fromkeys(list_ignored_files(input_path), UNKNOWN_FORMAT) if is_folder else {}
    return run_with_hidden_error_text("rows were redacted", copy.run, input_path, out, sources, is_folder, workers)


@dataclass(frozen=True)
class _FilePlan:
    """How to copy a file."""

    source: Source
    fields: Fields
    hidden: Collection[str] = ()
    """Columns that are copied whatever they hold."""
    kept_keys: Collection[str] = ()
    """Columns that are kept although keys in them are not field names."""
    dropped_labels: dict[str, str] = field(default_factory=dict)
    """Labels of the dropped columns, whose values are masked in texts."""


@dataclass
class _RedactionRun:
    redaction: Redaction
    settings: Config
    replacement: Replacement
    progress: Progress
    rows: int = 0
    removed_parts: int = 0
    removed_formulas: int = 0
    files: int = 0
    kept_keys: list[str] = field(default_factory=list)
    skipped_files: dict[str, str] = field(default_factory=dict)
    """Reason for each skipped file of a folder."""
    quarantined: Counter[str] = field(default_factory=Counter)
    damaged_files: list[DamagedFile] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    converted: Counter[str] = field(default_factory=Counter)
    """Number of files of each format that are written in another one."""
    vault: PseudonymVault = field(default_factory=PseudonymVault)

    @cached_property
    def policy_hash(self) -> str:
        """Hash of the policies."""
        return Policy(self.settings).hash

    def run(
        self, input_path: str, out: str, sources: Sequence[Source], is_folder: bool, workers: int
    ) -> dict[str, Any]:
        """Copy every file; the output gets its name when it is complete."""
        plans = list[_FilePlan]()
        for source in sources:
            with self._skip_damaged_file(source, is_folder):
                plans.append(self._plan_file(source))
                self.kept_keys += plans[-1].kept_keys
        identity = {"policy": self.policy_hash, "settings": json_sha256(_serialize_settings(self.settings))}
        options = self.redaction.model_dump(mode="json")
        with (
            open_unfinished_copy(out, sources, identity, options) as work,
            _open_span_finder(
                self.settings, workers, work.get_spans_path, self.redaction.language_column
            ) as find_spans,
        ):
            if (summary := work.load_summary(out)) is not None:
                return summary
            with work.quarantine_path.open("a", encoding="utf-8", errors="backslashreplace") as quarantine_file:
                for plan in plans:
                    source = plan.source
                    written = FORMATS.get(source.reader.written_format)
                    name = source.name + (written.endings[0] if written else "") if is_folder else ""
                    rows_before = self.rows - self.quarantined.total()
                    target_path = work.staging_path / name
                    make_folder(target_path.parent)
                    with (
                        self._skip_damaged_file(source, is_folder),
                        open_compressed(target_path, name or out) as target,
                    ):
                        self._redact_file(plan, target, find_spans, quarantine_file)
                    is_empty = source.reader.is_text and self.rows - self.quarantined.total() == rows_before
                    if source.name in self.skipped_files or is_empty:
                        # a partial file or an empty document would look complete
                        target_path.unlink()
                    else:
                        self.files += 1
                        self.converted[source.format] += written is not None
                for skipped_file, reason in self.skipped_files.items():
                    quarantine_file.write(format_quarantine_line(skipped_file, 0, reason))
            names = [source.name for source in sources]
            counts = RowCounts(self.settings.input, self.rows, names, self.quarantined, self.damaged_files)
            counts.check_totals(True, f"they are listed in {work.quarantine_path}")
            if is_folder and not is_url(input_path):
                masked_columns = self.redaction.masked_columns.items()
                columns = {name: None if label == DROP else label for name, label in masked_columns}
                copy_dataset_metadata(Path(input_path), work.staging_path, sources, columns)
            if self.redaction.vault is not None:
                paths = [*dict.fromkeys(path for plan in plans for path in plan.fields.paths)]
                self.vault.fields = paths + [n for n, label in self.redaction.masked_columns.items() if label != DROP]
                self.vault.merge_into(Path(self.redaction.vault))
            work.finish(out, self._build_summary())
        return self._build_summary()

    @contextmanager
    def _skip_damaged_file(self, source: Source, is_folder: bool) -> Iterator[None]:
        """Skip a damaged file of a folder; a single file raises ``DamagedFile``."""
        written, removed = self.rows - self.quarantined.total(), (self.removed_parts, self.removed_formulas)
        labels = Counter(self.labels)
        try:
            yield
        except DamagedFile as error:
            if not is_folder:
                raise
            self.damaged_files.append(error)
            self.skipped_files[source.name] = error.reason
            # the rows before the damage are left out with their file
            self.quarantined[error.reason] += self.rows - self.quarantined.total() - written
            (self.removed_parts, self.removed_formulas), self.labels = removed, labels

    def _build_summary(self) -> dict[str, Any]:
        left_out = self.quarantined.total()
        return {
            "rows": self.rows,
            "written": self.rows - left_out,
            "quarantined": dict(+self.quarantined),
            "files": self.files,
            "files_left_out": dict(Counter(self.skipped_files.values())),
            "taken_out": self.removed_parts,
            "formulas_taken_out": self.removed_formulas,
            "converted": dict(+self.converted),
            "kept_keys": [*dict.fromkeys(self.kept_keys)],
            "replaced": dict(self.labels.most_common()),
            "replacement": self.replacement.name,
            "gives_away": self.replacement.reveals,
            "masks_nothing": _load_policies(_serialize_settings(self.settings))("").masks_nothing(),
            "policy": self.policy_hash,
        }

    # Before anything is written: the fields and the columns of each file.

    def _plan_file(self, source: Source) -> _FilePlan:
        """Choose the text fields of a file; ``ConfigurationError`` if one is missing, or a column is undeclared."""
        if source.reader.is_text:
            return _FilePlan(source, Fields(()))
        options = self.settings.input
        with source.open_rows(options.encoding, max_expansion=options.max_expansion) as file:
            reader = choose_reader(source.format, file)(file, source.name, options.max_row_bytes)
            rows = list(islice((row.cells for row in reader.read_records() if row.cells), _INSPECTED_ROWS))
            rows = rows or [dict.fromkeys(reader.header)] * bool(reader.header)
        columns = Counter(name for row in rows for name in row)
        is_text_configured = "text" in self.settings.input.model_fields_set
        default_fields = tuple(name for name in DEFAULT_TEXT_FIELDS if name in columns)
        fields = Fields(self.settings.input.fields.paths if is_text_configured else default_fields)
        self._require_fields(source, fields, rows, columns)
        if not self.redaction.keep_other_columns:
            self._require_declared_columns(source, fields, rows, columns)
        dropped_labels = {
            name: choose_column_label(name, [*{str(row[name]) for row in rows if row.get(name)}][:50], self._find_spans)
            for name, label in self.redaction.columns.items()
            if label == DROP
        }
        kept = columns if self.redaction.keep_other_columns else self.redaction.columns
        hidden = kept.keys() - self.redaction.masked_columns.keys()
        kept_rows, others = rows if hidden else [], columns.keys() - hidden
        paths = {path for row in kept_rows for path in self._find_undeclared_paths(row, fields, others)}
        kept_keys = [
            column if self._is_nameable(column, columns[column], len(rows)) else f"field {number}"
            for number, column in enumerate(columns, 1)
            if any(path.startswith((f"{column}.", f"{column}[]")) and path.endswith(UNNAMED) for path in paths)
            or (column in paths and not is_field_name(column, self.settings.detect.language))
        ]
        return _FilePlan(source, fields, hidden, kept_keys, dropped_labels)

    def _find_spans(self, texts: list[str]) -> list[SpansOrReason]:
        return _search_texts(_serialize_settings(self.settings), texts, [""] * len(texts))

    def _require_fields(
        self, source: Source, fields: Fields, rows: list[Mapping[str, Any]], columns: Counter[str]
    ) -> None:
        """Raise ``ConfigurationError`` if a named field or column does not exist, or none is named."""
        named = [*self.redaction.columns, *filter(None, [self.redaction.language_column])]
        missing = [*fields.find_missing_paths(rows), *(name for name in named if name not in columns)]
        if not rows or not (missing or not (fields.paths or self.redaction.columns)):
            return
        problem = "name the text fields with --text-column"
        if missing:
            problem = f"there is no field '{shorten_name(missing[0])}'{_suggest_path(missing[0], rows)}"
        # the first line of a table is a header if one of the fields is there
        named_count = len(fields.paths) + len(self.redaction.columns)
        is_header = source.format not in ("csv", "tsv", "xlsx") or len(missing) < named_count
        names = [name for name in columns if columns[name] * _COMMON_SHARE >= len(rows)]
        if names and is_header and all(is_field_name(name, self.settings.detect.language) for name in names):
            raise ConfigurationError(f"{source.name}: {problem}; its fields are {join_words(names)}")
        raise ConfigurationError(
            f"{source.name}: {problem}; its fields ({len(columns):,}) are not named here, since they may be data; is "
            "the first line a header?"
        )

    def _is_nameable(self, name: str, count: int, rows: int) -> bool:
        """Return whether a message may name a field that ``count`` of the ``rows`` have."""
        return count * _COMMON_SHARE >= rows and all(
            is_field_name(part.removesuffix("[]"), self.settings.detect.language) for part in name.split(".")
        )

    def _require_declared_columns(
        self, source: Source, fields: Fields, rows: list[Mapping[str, Any]], columns: Counter[str]
    ) -> None:
        """Raise ``ConfigurationError`` for the columns with text that are neither masked nor declared."""
        paths = Counter(path for row in rows for path in {*self._find_undeclared_paths(row, fields)})
        descriptions, options = list[str](), list[str]()
        for number, column in enumerate(columns, 1):
            inside = [path for path in paths if path == column or path.startswith((f"{column}.", f"{column}[]"))]
            is_nameable = self._is_nameable(column, columns[column], len(rows))
            if inside:
                options.append(f"--column {column if is_nameable else 'NAME'}=WHAT")
                for path in inside if is_nameable else inside[:1]:
                    is_known = path == column or self._is_nameable(path, paths[path], len(rows))
                    shown = path if is_known else f"{column}.{UNNAMED}"
                    reason = describe_undeclared_path(shown, paths[path], len(rows))
                    descriptions.append(f"{shown if is_nameable else f'field {number}'} ({reason})")
        if descriptions:
            raise ConfigurationError(
                f"{source.name}: fields that would be copied unmasked: {join_words([*dict.fromkeys(descriptions)])}. "
                f"Mask texts with --text-column, or choose per column with {' '.join(dict.fromkeys(options))} (WHAT is "
                f"{KEEP}, a label like PERSON, or {DROP}), or give --keep-other-columns"
            )

    def _find_undeclared_paths(
        self, cells: Mapping[str, Any], fields: Fields, declared: Collection[str] | None = None
    ) -> Iterator[str]:
        declared = self.redaction.columns.keys() if declared is None else declared
        return find_undeclared_paths(cells, fields, declared, self.settings.detect.language)

    # Row by row.

    def _redact_file(self, plan: _FilePlan, target: BinaryIO, find_spans: SpanFinder, quarantine_file: TextIO) -> None:
        source, settings = plan.source, self.settings.input
        if source.reader.is_recodable and not is_utf8(settings.encoding):
            target = cast(BinaryIO, codecs.EncodedFile(target, "utf-8", settings.encoding, "replace"))
        with source.open_rows(settings.encoding, max_expansion=settings.max_expansion) as file:
            reader = choose_reader(source.format, file)(
                file, source.name, settings.max_row_bytes, plan.fields, plan.hidden
            )

            def iterate_output() -> Iterator[Any]:
                for rows, results in find_spans(_split_into_chunks(reader, settings.max_chars)):
                    remaining = iter(results)
                    for row in rows:
                        if isinstance(row, bytes):
                            yield row
                            continue
                        row_results = [next(remaining) for _ in row.texts]
                        self.rows += row.number > 0
                        reason = row.reason or next((result for result in row_results if isinstance(result, str)), None)
                        if reason is None and not self.redaction.keep_other_columns:
                            reason = UNDECLARED if any(self._find_undeclared_paths(row.cells, plan.fields)) else None
                        if reason is None and row.render is not None:
                            yield self._render_row(plan, row, row.render, cast(list[list[ReplacedSpan]], row_results))
                            continue
                        self.quarantined[str(reason)] += 1
                        quarantine_file.write(format_quarantine_line(source.name, row.number, str(reason)))
                    self.progress("redact", self.rows, None, "rows")

            reader.write(target, iterate_output())

    def _render_row(
        self, plan: _FilePlan, row: Row, render: Renderer, detected: Sequence[Sequence[ReplacedSpan]]
    ) -> Any:
        spans = [list(text_spans) for text_spans in detected]
        for text_spans, structural_spans in zip(spans, row.structural_spans, strict=False):
            text_spans += structural_spans
        self.removed_parts += row.removed_parts
        self.removed_formulas += row.removed_formulas
        masked_columns = self.redaction.masked_columns
        cells = {name: str(row.cells[name]) for name in masked_columns if row.cells.get(name) not in (None, "")}
        if self.redaction.known_values:
            labels = masked_columns | plan.dropped_labels
            declared = {cell: labels[name] for name, cell in cells.items()}
            spans = add_known_occurrences(row.texts, spans, declared, self.settings.detect.language)
        spans = unify_labels(row.texts, spans)
        columns = [
            (get_kind(masked_columns[name]), cell) for name, cell in cells.items() if masked_columns[name] != DROP
        ]
        values = [*collect_values(row.texts, spans), *columns]
        replacer = self.replacement.create_replacer(f"{plan.source.name}:{row.number}", row.texts, values)
        changes = [plan_edits(text, text_spans, replacer) for text, text_spans in zip(row.texts, spans, strict=True)]
        self.labels.update(change.kind for text_spans in changes for change in text_spans)

        def replace_cell(name: str, label: str) -> str | None:
            if label == DROP or name not in cells:
                return None if label == DROP else ""
            return MASK if replacer is None else replacer(get_kind(label), cells[name])

        column_replacements = {name: replace_cell(name, label) for name, label in masked_columns.items()}
        if replacer is not None and self.redaction.vault is not None:
            spellings_of_row = Spellings(values, self.settings.detect.language)
            for kind, text in values:
                _, first = spellings_of_row.get_first_spelling(kind, text)
                self.vault.values[replacer(kind, text)] = remove_title(first) if kind == "PERSON" else first
            for text, edits in zip(row.texts, changes, strict=True):
                spellings = [text[change.start : change.end] for change in edits]
                self.vault.record_spellings(
                    row.number, apply_edits(text, edits), [change.new for change in edits], spellings
                )
            for new, (_, value) in zip(filter(None, column_replacements.values()), columns, strict=True):
                self.vault.record_spellings(row.number, new, [new], [value])
        return render(changes, column_replacements)


def _suggest_path(path: str, rows: list[Mapping[str, Any]]) -> str:
    """Suggest a path inside the named column, or the same path through lists, if it exists."""
    if not Fields((path,)).find_missing_paths(rows):
        return " among the columns; --column handles whole columns, use --text-column for fields inside one"
    parts = path.split(".")[:_MAX_LIST_DEPTH]
    for marks in product(("", "[]"), repeat=len(parts)):
        candidate = ".".join(map(add, parts, marks))
        if any(marks) and not Fields((candidate,)).find_missing_paths(rows):
            return f"; did you mean '{candidate}'?"
    return ""


# Chunks of rows and their spans.

SpansOrReason = list[ReplacedSpan] | str
"""The spans of a text, or the reason code if it could not be searched completely."""
RowChunk = list[Row | bytes]
ChunkResults = Iterator[tuple[RowChunk, list[SpansOrReason]]]
SpanFinder = Callable[[Iterator[RowChunk]], ChunkResults]


def _split_into_chunks(reader: Format, max_chars: int) -> Iterator[RowChunk]:
    chunk: RowChunk = []
    size = 0
    for row in reader.read_rows():
        if isinstance(row, Row) and any(len(text) > max_chars for text in row.texts):
            row = Row(row.number, reason="too_long")
        chunk.append(row)
        size += sum(map(len, row.texts)) if isinstance(row, Row) else 0
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def _open_span_finder(
    settings: Config, workers: int, get_spans_path: Callable[[Sequence[str]], Path], language_column: str | None
) -> Iterator[SpanFinder]:
    """Yield a function that searches chunks, here or in ``workers`` processes, and keeps their order.

    Each row is read in the language that its ``language_column`` names, else in that of the configuration.

    The spans of a chunk are stored at the path of its texts; stored ones are not searched again.
    """
    serialized, choose_language = _serialize_settings(settings), make_language_chooser(settings.detect)

    def list_languages(row: Row) -> list[str]:
        language = "" if language_column is None else choose_language(row.cells.get(language_column))
        return [language] * len(row.texts)

    with open_process_pool(workers) if workers > 1 else nullcontext() as pool:

        def begin_search(
            path: Path, texts: list[str], languages: list[str]
        ) -> list[SpansOrReason] | Future[list[SpansOrReason]]:
            if path.exists():
                return [one if isinstance(one, str) else [ReplacedSpan(*s) for s in one] for one in read_json(path)]
            search = (serialized, texts, languages)
            return pool.submit(_search_texts, *search) if pool else _search_texts(*search)

        def end_search(path: Path, rows: RowChunk, search: Any) -> tuple[RowChunk, list[SpansOrReason]]:
            spans = search.result() if isinstance(search, Future) else search
            # no indentation: the fast encoder does not support it
            write_text(path, json.dumps(spans))
            return rows, spans

        def find_spans(chunks: Iterator[RowChunk]) -> ChunkResults:
            pending = deque[tuple[Path, RowChunk, Any]]()
            for rows in chunks:
                texts = [text for row in rows if isinstance(row, Row) for text in row.texts]
                languages = [language for row in rows if isinstance(row, Row) for language in list_languages(row)]
                path = get_spans_path([*texts, *(languages if language_column else ())])
                pending.append((path, rows, begin_search(path, texts, languages)))
                if len(pending) > (2 * workers if pool else 0):
                    yield end_search(*pending.popleft())
            while pending:
                yield end_search(*pending.popleft())

        yield find_spans


def _serialize_settings(settings: Config) -> str:
    """Serialize the settings that define a policy; worker processes cache engines by it."""
    return settings.model_dump_json(exclude_unset=True, include={"input", "detect", "segment"})


@lru_cache(maxsize=1)
def _load_policies(settings: str) -> Callable[[str], Policy]:
    """Return a function that makes the policy for a language; the empty one is the configuration's."""
    config = Config.model_validate(json.loads(settings))
    # the conservative policy only makes examples private and masks nothing: skip it
    disabled = ConservativeSettings(rules=(), min_non_entity_probability=0)

    @cache
    def load_policy(language: str) -> Policy:
        detect = config.detect.model_copy(update={"conservative": disabled})
        detect = set_language(detect, language) if language else detect
        return Policy(config.model_copy(update={"detect": detect}))

    return load_policy


def _search_texts(settings: str, texts: Sequence[str], languages: Sequence[str]) -> list[SpansOrReason]:
    """Find the spans of each text in its language."""
    results: list[SpansOrReason] = [[] for _ in texts]
    for language in dict.fromkeys(languages):
        indices = [index for index, text_language in enumerate(languages) if text_language == language]
        spans = _find_strict_spans(_load_policies(settings)(language), [texts[index] for index in indices])
        for index, text_spans in zip(indices, spans, strict=True):
            results[index] = text_spans
    return results


def _find_strict_spans(policy: Policy, texts: Sequence[str]) -> list[SpansOrReason]:
    """Find the spans of the strict policy in each text, or the reason code of a failed part."""
    # the key helps to recognise a user's name or a number in JSON
    keys = [f"{text.key}: " if isinstance(text, KeyedText) and text.key else "" for text in texts]
    searched = [key + text if text.strip() else "" for key, text in zip(keys, texts, strict=True)]
    distinct = [text for text in dict.fromkeys(searched) if text]
    examples = dict(zip(distinct, policy.read_many(distinct), strict=True))
    return [_list_strict_spans(examples.get(text, []), len(key)) for text, key in zip(searched, keys, strict=True)]


def _list_strict_spans(examples: Sequence[Example], start: int) -> SpansOrReason:
    """List the strict spans that end after ``start``, relative to it; or give the reason code of a failed example."""
    if failures := sorted(example.failure for example in examples if example.failure is not None):
        return failures[0]
    return [
        ReplacedSpan(max(span.start - start, 0), span.end - start, span.label, span.score)
        for example in examples
        for span in example.spans
        if span.policy == "strict" and span.end > start
    ]

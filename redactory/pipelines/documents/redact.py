"""Redact: copy files and replace every span that the strict policy finds; everything else stays the same.

Engines search chunks of rows, optionally in worker processes; this process replaces spans and writes rows in order.
The spans of finished chunks are kept, without text, so that a killed run can resume
(:mod:`redactory.pipelines.documents.redact_io`).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice, product
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from redactory.detectors.engine_registry import collect_labels, require_known_labels
from redactory.detectors.settings import ConservativeSettings, get_kind
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, join_words, pluralize, shorten_name
from redactory.foundation.files import make_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.processes import open_process_pool
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.config import DROP, KEEP, Config, Redaction
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.curation.loading import ConfigLike, load_text_config, parse_settings
from redactory.pipelines.curation.personal_columns import (
    UNNAMED,
    PersonalColumnDetector,
    choose_column_label,
    is_safe_to_name,
    shorten_rare_path,
)
from redactory.pipelines.curation.policy import Policy
from redactory.pipelines.documents.redact_io import (
    PIPE,
    UNKNOWN_FORMAT,
    Chunk,
    copy_dataset_metadata,
    find_copy_sources,
    format_quarantine_line,
    open_compressed,
    open_standard_output,
    open_unfinished_copy,
    require_matching_format,
    require_separate_output,
    resolve_input_path,
)
from redactory.pipelines.documents.unmask import PseudonymVault
from redactory.pipelines.json_paths import Fields, KeyedText, NoTextError
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.documents import RowCounts
from redactory.pipelines.readers.files import list_ignored_files
from redactory.pipelines.readers.formats import DamagedFile, Format, Renderer, Row, choose_reader
from redactory.pipelines.store import is_url
from redactory.redaction import MASK
from redactory.redaction.known_values import add_known_occurrences
from redactory.redaction.replacements import (
    REPLACEMENTS,
    ReplacedSpan,
    Replacement,
    Replacer,
    apply_edits,
    collect_values,
    plan_edits,
    unify_labels,
)
from redactory.redaction.spellings import Spellings

DEFAULT_TEXT_FIELDS = ("text", "messages", "conversations")
"""Text fields that are read by default."""
_CHUNK_ROWS, _CHUNK_CHARS = 500, 1 << 19
"""Maximum rows and characters of a chunk."""
_INSPECTED_ROWS = 1_000
"""Number of first rows that are searched for personal columns."""
_MAX_LIST_DEPTH = 6
"""Maximum number of path parts for which lists are tried."""
NEW_FIELD, PERSONAL_KEY = "new_field", "personal_key"
"""Reason codes: the row has a field that no inspected row had, or a key that looks personal."""


def redact(
    input_path: str | Path,
    out: str | Path,
    redaction: Redaction | Mapping[str, Any] | None = None,
    *,
    text_columns: Sequence[str] = (),
    config: ConfigLike | None = None,
    format_: str = "auto",
    workers: int = 1,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Write a copy of the file, folder or URL ``input_path`` to ``out`` with spans replaced; return counts, no text.

    ``-`` is standard input or output. ``redaction`` and ``text`` override ``redact`` and ``input.text`` of the
    configuration. A row that cannot be processed is left out and listed with its reason in ``OUT.quarantine.jsonl``;
    a damaged file of a folder is left out and counted. Raises ``ConfigurationError`` if a path names no field, a
    column looks personal and has no setting, or the output exists or is inside the input; ``InputError`` if a file
    cannot be read; ``CheckFailed`` if more than ``input.max_rejected_share`` of the rows or files are left out.
    """
    input_path, out = resolve_input_path(str(input_path)), str(out)
    overrides = parse_settings(Redaction, redaction)
    settings = load_text_config(config, (input_path,), **({"text": tuple(text_columns)} if text_columns else {}))
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
    if redaction.vault is not None and redaction.replace != "pseudonym":
        raise ConfigurationError("vault: only pseudonyms can be unmasked: add --replace pseudonym")
    if redaction.vault is not None:
        # fail before hours of work whose pseudonyms nobody could restore
        PseudonymVault.open_or_create(Path(redaction.vault))
    key = load_digest_key()
    kind = REPLACEMENTS[redaction.replace]
    if kind.needs_key and key.is_generated:
        raise ConfigurationError(f"replace: {kind.name} needs a permanent key: set REDACTORY_KEY")
    copy = _RedactionRun(redaction, settings, kind(key, settings.detect.language), progress)
    copy.skipped_files = dict.fromkeys(list_ignored_files(input_path), UNKNOWN_FORMAT) if is_folder else {}
    return run_with_hidden_error_text("rows were redacted", copy.run, input_path, out, sources, is_folder, workers)


@dataclass
class _RedactionRun:
    redaction: Redaction
    settings: Config
    replacement: Replacement
    progress: Progress
    rows: int = 0
    removed_parts: int = 0
    pdf_as_text: int = 0
    files: int = 0
    skipped_files: dict[str, str] = field(default_factory=dict)
    """Reason for each skipped file of a folder."""
    quarantined: Counter[str] = field(default_factory=Counter)
    damaged_files: list[DamagedFile] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    vault: PseudonymVault = field(default_factory=PseudonymVault)
    column_detectors: dict[str, PersonalColumnDetector] = field(default_factory=dict)
    """The detector of personal columns of each file."""
    dropped_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """Labels of the dropped columns of each file."""
    hidden_columns: dict[str, set[str]] = field(default_factory=dict)
    """The columns of each file whose values are not inspected."""

    @cached_property
    def policy_hash(self) -> str:
        """Hash of the policies."""
        return Policy(self.settings).hash

    def run(
        self, input_path: str, out: str, sources: Sequence[Source], is_folder: bool, workers: int
    ) -> dict[str, Any]:
        """Copy every file; the output gets its name when it is complete."""
        fields = list[tuple[Source, Fields]]()
        for source in sources:
            with self._skip_damaged_file(source, is_folder):
                fields.append((source, self._resolve_text_fields(source)))
        identity = {"policy": self.policy_hash, "settings": json_sha256(_serialize_settings(self.settings))}
        options = self.redaction.model_dump(mode="json")
        with (
            open_unfinished_copy(out, sources, identity, options) as work,
            _open_span_finder(self.settings, workers) as find_spans,
        ):
            if (summary := work.load_summary(out)) is not None:
                return summary
            for number, (source, source_fields) in enumerate(fields):
                # a PDF file is copied as text
                name = source.name + ".txt" * (source.format == "pdf") if is_folder else ""
                rows_before = self.rows - self.quarantined.total()
                target_path = work.staging_path / name
                make_folder(target_path.parent)
                with (
                    self._skip_damaged_file(source, is_folder),
                    open_standard_output() if out == PIPE else open_compressed(target_path, name or out) as target,
                    work.quarantine_path.open("a", encoding="utf-8", errors="backslashreplace") as quarantine_file,
                ):
                    self._redact_file(
                        source,
                        source_fields,
                        target,
                        partial(find_spans, partial(work.get_chunk, number)),
                        quarantine_file,
                    )
                is_empty = source.reader.is_text and self.rows - self.quarantined.total() == rows_before
                if source.name in self.skipped_files or (is_empty and out != PIPE):
                    # a partial file or an empty document would look complete
                    target_path.unlink()
                else:
                    self.files += 1
                    self.pdf_as_text += source.format == "pdf"
            names = [source.name for source in sources]
            counts = RowCounts(self.settings.input, self.rows, names, self.quarantined, self.damaged_files)
            counts.check_totals(True, f"they are listed in {work.quarantine_path}")
            if is_folder and not is_url(input_path):
                masked_columns = self.redaction.masked_columns.items()
                columns = {name: None if label == DROP else label for name, label in masked_columns}
                copy_dataset_metadata(Path(input_path), work.staging_path, sources, columns)
            if self.redaction.vault is not None:
                paths = [*dict.fromkeys(path for _, source_fields in fields for path in source_fields.paths)]
                self.vault.fields = paths + [n for n, label in self.redaction.masked_columns.items() if label != DROP]
                self.vault.merge_into(Path(self.redaction.vault))
            with work.quarantine_path.open("a", encoding="utf-8") as quarantine_file:
                quarantine_file.writelines(
                    format_quarantine_line(name, 0, reason) for name, reason in self.skipped_files.items()
                )
            if out != PIPE:
                work.finish(out, self._build_summary())
        return self._build_summary()

    @contextmanager
    def _skip_damaged_file(self, source: Source, is_folder: bool) -> Iterator[None]:
        """Skip a damaged file of a folder; a single file raises ``DamagedFile``."""
        written, removed_parts = self.rows - self.quarantined.total(), self.removed_parts
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
            self.removed_parts, self.labels = removed_parts, labels

    def _build_summary(self) -> dict[str, Any]:
        left_out = self.quarantined.total()
        return {
            "rows": self.rows,
            "written": self.rows - left_out,
            "quarantined": dict(+self.quarantined),
            "files": self.files,
            "files_left_out": dict(Counter(self.skipped_files.values())),
            "taken_out": self.removed_parts,
            "as_text": self.pdf_as_text,
            "replaced": dict(self.labels.most_common()),
            "replacement": self.replacement.name,
            "gives_away": self.replacement.reveals,
            "masks_nothing": _load_policy(_serialize_settings(self.settings)).masks_nothing(),
            "policy": self.policy_hash,
        }

    # Before anything is written: the fields and the columns of each file.

    def _resolve_text_fields(self, source: Source) -> Fields:
        """Find the text fields of a file; ``ConfigurationError`` for unusable fields or columns."""
        if source.reader.is_text:
            return Fields(())
        with source.open(max_expansion=self.settings.input.max_expansion) as file:
            reader = choose_reader(source.format, file)(file, source.name, self.settings.input.max_row_bytes)
            rows = list(islice((row.cells for row in reader.read_records() if row.cells), _INSPECTED_ROWS))
            header = reader.header
        column_counts = Counter(name for row in rows for name in row)
        self.hidden_columns[source.name] = column_counts.keys() - self.redaction.masked_columns.keys()
        is_text_configured = "text" in self.settings.input.model_fields_set
        default_fields = tuple(name for name in DEFAULT_TEXT_FIELDS if name in column_counts)
        fields = Fields(self.settings.input.fields.paths if is_text_configured else default_fields)
        unknown = (name for name in self.redaction.columns if name not in column_counts)
        missing = [*fields.find_missing_paths(rows), *unknown]
        if rows and (missing or not (fields.paths or self.redaction.columns)):
            problem = "name the text fields with --text-column"
            if missing:
                problem = f"there is no field '{shorten_name(missing[0])}'{_suggest_path(missing[0], rows)}"
            listed_names = [
                name for name in column_counts if shorten_rare_path(name, column_counts, len(rows)) == name
            ] or ["others in every row"]
            nameable = [name for name in listed_names if self._is_safe_to_name(name)]
            # a schema is deliberate; a first line, or keys, may be data
            hidden_count = len(listed_names) - len(nameable)
            if hidden_count and source.format not in ("parquet", "arrow"):
                raise ConfigurationError(
                    f"{source.name}: {problem}; its fields ({len(listed_names):,}) are not named here, since they may "
                    "be data; is the first line a header?"
                )
            others = [f"{pluralize(hidden_count, 'other')} that may be data"] * bool(hidden_count)
            raise ConfigurationError(f"{source.name}: {problem}; its fields are {join_words([*nameable, *others])}")
        self.dropped_labels[source.name] = {
            name: choose_column_label(name, [*{str(row[name]) for row in rows if row.get(name)}][:50], self._find_spans)
            for name, label in self.redaction.columns.items()
            if label == DROP
        }
        if not self.redaction.keep_other_columns:
            column_detector = PersonalColumnDetector(
                fields, self.redaction.columns.keys(), self._find_spans, self.settings.detect.language
            )
            self.column_detectors[source.name] = column_detector
            personal_columns = column_detector.inspect_first_rows(rows, header)
            self._require_no_personal_columns(
                source.name, personal_columns, column_detector, rows or [dict.fromkeys(header)]
            )
            # a column with text is inspected in every row
            self.hidden_columns[source.name] &= (
                column_detector.inspected_paths - column_detector.text_paths | self.redaction.columns.keys()
            )
        return fields

    def _find_spans(self, texts: list[str]) -> list[SpansOrReason]:
        return _search_texts(_serialize_settings(self.settings), texts)

    def _is_safe_to_name(self, path: str) -> bool:
        return is_safe_to_name(path, self._find_spans, self.settings.detect.language)

    def _require_no_personal_columns(
        self,
        location: str,
        personal_columns: list[str],
        column_detector: PersonalColumnDetector,
        rows: list[Mapping[str, Any]],
    ) -> None:
        """Raise ``ConfigurationError`` for fields that look personal or are unreadable bytes."""
        paths = personal_columns or column_detector.unreadable_paths
        if not paths:
            return
        problem = "fields that look personal would be kept unmasked" if personal_columns else "bytes cannot be checked"
        nameable = [path for path in paths if self._is_safe_to_name(path)]
        # an unnamed field may be data: give its position
        descriptions = [
            (path if path in nameable else _describe_field_position(path, rows))
            + (f" ({column_detector.reasons[path]})" if personal_columns else "")
            for path in paths
        ]
        fixes = [_suggest_option(path, rows) for path in nameable]
        fixes += ["--column NAME=WHAT"] * (len(nameable) < len(descriptions))
        raise ConfigurationError(
            f"{location}: {problem}: {join_words([*dict.fromkeys(descriptions)])}. Choose per column with "
            f"{' '.join(dict.fromkeys(filter(None, fixes)))} (WHAT is {KEEP}, a label like PERSON, or "
            f"{DROP}), or give --keep-other-columns"
        )

    def _check_later_rows(self, source: Source, rows: RowChunk) -> None:
        """Raise ``ConfigurationError`` if a field looks personal only after the inspected rows."""
        column_detector = self.column_detectors.get(source.name)
        later_rows = [row for row in rows if isinstance(row, Row) and row.reason is None and row.cells]
        if column_detector is None or not later_rows or later_rows[-1].number <= _INSPECTED_ROWS:
            return
        location = f"{source.name}, rows {later_rows[0].number:,} to {later_rows[-1].number:,}"
        cells = [row.cells for row in later_rows]
        personal_columns, column_detector.unreadable_paths = column_detector.inspect_later_rows(cells)
        self._require_no_personal_columns(location, personal_columns, column_detector, cells)

    def _find_new_field_reason(self, source: Source, row: Row) -> str | None:
        """Return the reason code of a row with a field or key that no inspected row had."""
        column_detector = self.column_detectors.get(source.name)
        if column_detector is None or row.number <= _INSPECTED_ROWS:
            return None
        if column_detector.find_personal_keys([row.cells]):
            return PERSONAL_KEY
        return NEW_FIELD if column_detector.has_new_field(row.cells) else None

    # Row by row.

    def _redact_file(
        self, source: Source, fields: Fields, target: BinaryIO, find_spans: SpanFinder, quarantine_file: TextIO
    ) -> None:
        input_settings = self.settings.input
        with source.open(max_expansion=input_settings.max_expansion) as file:
            hidden = self.hidden_columns.get(source.name, ())
            reader = choose_reader(source.format, file)(file, source.name, input_settings.max_row_bytes, fields, hidden)

            def iterate_output() -> Iterator[Any]:
                for rows, results in find_spans(_split_into_chunks(reader, input_settings.max_chars)):
                    self._check_later_rows(source, rows)
                    remaining = iter(results)
                    for row in rows:
                        if isinstance(row, bytes):
                            yield row
                            continue
                        row_results = [next(remaining) for _ in row.texts]
                        self.rows += row.number > 0
                        reason = row.reason or next((result for result in row_results if isinstance(result, str)), None)
                        reason = reason or self._find_new_field_reason(source, row)
                        if reason is None and row.render is not None:
                            yield self._render_row(source, row, row.render, cast(list[list[ReplacedSpan]], row_results))
                            continue
                        self.quarantined[str(reason)] += 1
                        quarantine_file.write(format_quarantine_line(source.name, row.number, str(reason)))
                    self.progress("redact", self.rows, None, "rows")

            reader.write(target, iterate_output())

    def _render_row(
        self, source: Source, row: Row, render: Renderer, detected: Sequence[Sequence[ReplacedSpan]]
    ) -> Any:
        spans = [list(text_spans) for text_spans in detected]
        for text_spans, structural_spans in zip(spans, row.structural_spans, strict=False):
            text_spans += structural_spans
        self.removed_parts += row.removed_parts
        masked_columns = {name: (row.cells.get(name), label) for name, label in self.redaction.masked_columns.items()}
        if self.redaction.known_values:
            labels = self.redaction.masked_columns | self.dropped_labels.get(source.name, {})
            declared = {
                str(value): labels[name] for name, (value, _) in masked_columns.items() if value not in (None, "")
            }
            spans = add_known_occurrences(row.texts, spans, declared, self.settings.detect.language)
        spans = unify_labels(row.texts, spans)
        columns = [
            (get_kind(label), str(value))
            for value, label in masked_columns.values()
            if label != DROP and value not in (None, "")
        ]
        values = [*collect_values(row.texts, spans), *columns]
        replacer = self.replacement.create_replacer(f"{source.name}:{row.number}", row.texts, values)
        changes = [plan_edits(text, text_spans, replacer) for text, text_spans in zip(row.texts, spans, strict=True)]
        self.labels.update(change.kind for text_spans in changes for change in text_spans)
        column_replacements = {
            name: _replace_column_value(value, label, replacer) for name, (value, label) in masked_columns.items()
        }
        if replacer is not None and self.redaction.vault is not None:
            find_first_spelling = Spellings(values, self.settings.detect.language).get_first_spelling
            self.vault.values |= {replacer(*value): find_first_spelling(*value)[1] for value in values}
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


def _describe_field_position(path: str, rows: list[Mapping[str, Any]]) -> str:
    for position, name in enumerate(Counter(name for row in rows for name in row), 1):
        if path == name or path.startswith((f"{name}.", f"{name}[]")):
            return f"field {position}"
    return UNNAMED


def _suggest_option(path: str, rows: list[Mapping[str, Any]]) -> str:
    """Suggest the option that decides about a field; empty if the field may not be named."""
    column = path.partition(".")[0] if path.endswith(UNNAMED) else path
    if column != path or any(path in row for row in rows):
        return "" if column == UNNAMED else f"--column {column}=WHAT"
    fields = Fields((path,))
    try:
        for row in rows:
            fields.read_texts(row)
    except NoTextError:
        # otherwise rows with a number there would be left out
        return f"--column {fields.columns[0]}=WHAT"
    return f"--text-column {path!r}"


def _replace_column_value(value: Any, label: str, replacer: Replacer | None) -> str | None:
    if label == DROP or value in (None, ""):
        return None if label == DROP else ""
    return MASK if replacer is None else replacer(get_kind(label), str(value))


# Chunks of rows and their spans.

SpansOrReason = list[ReplacedSpan] | str
"""The spans of a text, or the reason code if it could not be searched completely."""
RowChunk = list[Row | bytes]
ChunkResults = Iterator[tuple[RowChunk, list[SpansOrReason]]]
SpanFinder = Callable[[Iterator[RowChunk]], ChunkResults]
ChunkStore = Callable[[int, list[str]], Chunk]


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
    settings: Config, workers: int
) -> Iterator[Callable[[ChunkStore, Iterator[RowChunk]], ChunkResults]]:
    """Yield a function that searches chunks, here or in ``workers`` processes, and keeps their order."""
    serialized = _serialize_settings(settings)
    with open_process_pool(workers) if workers > 1 else nullcontext() as pool:

        def search(texts: list[str]) -> Any:
            return pool.submit(_search_texts, serialized, texts) if pool else _search_texts(serialized, texts)

        def find_spans(store: ChunkStore, chunks: Iterator[RowChunk]) -> ChunkResults:
            pending: deque[tuple[Chunk, RowChunk, Any]] = deque()
            for number, rows in enumerate(chunks):
                texts = [text for row in rows if isinstance(row, Row) for text in row.texts]
                chunk = store(number, texts)
                stored = chunk.load()
                result = search(texts) if stored is None else list(map(_restore_spans, stored))
                pending.append((chunk, rows, result))
                if len(pending) > (2 * workers if pool else 0):
                    yield _save_chunk_spans(*pending.popleft())
            while pending:
                yield _save_chunk_spans(*pending.popleft())

        yield find_spans


def _restore_spans(stored: Any) -> SpansOrReason:
    return stored if isinstance(stored, str) else [ReplacedSpan(*span_fields) for span_fields in stored]


def _save_chunk_spans(
    chunk: Chunk, rows: RowChunk, result: list[SpansOrReason] | Future[list[SpansOrReason]]
) -> tuple[RowChunk, list[SpansOrReason]]:
    spans = result.result() if isinstance(result, Future) else result
    chunk.save(spans)
    return rows, spans


def _serialize_settings(settings: Config) -> str:
    """Serialize the settings that define a policy; worker processes cache engines by it."""
    return settings.model_dump_json(exclude_unset=True, include={"input", "detect", "segment"})


@lru_cache(maxsize=1)
def _load_policy(settings: str) -> Policy:
    config = Config.model_validate(json.loads(settings))
    # the conservative policy only makes examples private and masks nothing: skip it
    disabled = ConservativeSettings(rules=(), min_non_entity_probability=0)
    detect = config.detect.model_copy(update={"conservative": disabled})
    return Policy(config.model_copy(update={"detect": detect}))


def _search_texts(settings: str, texts: Sequence[str]) -> list[SpansOrReason]:
    return _find_strict_spans(_load_policy(settings), texts)


def _find_strict_spans(policy: Policy, texts: Sequence[str]) -> list[SpansOrReason]:
    """Find the spans of the strict policy in each text, or the reason code of a failed part."""
    # the key helps to recognise a user's name or a number in JSON
    keys = [f"{text.key}: " if isinstance(text, KeyedText) and text.key else "" for text in texts]
    prefixed = [key + text for key, text in zip(keys, texts, strict=True)]
    distinct: dict[str, SpansOrReason] = {
        prefixed_text: [] for prefixed_text, text in zip(prefixed, texts, strict=True) if text.strip()
    }
    for text, examples in zip(list(distinct), policy.route_many(list(distinct)), strict=True):
        failures = sorted(example.failure for example in examples if example.failure is not None)
        spans = [
            ReplacedSpan(span.start, span.end, span.label, span.score)
            for searched_example in examples
            for span in searched_example.spans
            if span.policy == "strict"
        ]
        distinct[text] = failures[0] if failures else spans
    return [
        _shift_spans_past_prefix(len(key), distinct.get(prefixed_text, []))
        for key, prefixed_text in zip(keys, prefixed, strict=True)
    ]


def _shift_spans_past_prefix(start: int, spans: SpansOrReason) -> SpansOrReason:
    """Drop the spans that end in the first ``start`` code points and shift the others."""
    if isinstance(spans, str) or not start:
        return spans
    return [span._replace(start=max(span.start - start, 0), end=span.end - start) for span in spans if span.end > start]

"""Turn the rows of the input into documents (usable texts) and rejections, and check how many are rejected."""

from __future__ import annotations

import codecs
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import getaddresses
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from redactory.detectors.coverage import MAX_SAMPLE_CHARS
from redactory.foundation.errors import CheckFailed, join_words, pluralize, shorten_name
from redactory.foundation.keys import unicode_variants
from redactory.foundation.settings import Settings
from redactory.pipelines.curation_hints import describe_rejection
from redactory.pipelines.json_paths import (
    EVERY_ENTRY,
    Fields,
    NoTextError,
    get_rejection_code,
    join_texts,
    parse_path,
    strip_roles,
)
from redactory.pipelines.readers.files import Source
from redactory.pipelines.readers.formats import (
    FORMATS,
    MAX_EXPANSION,
    QUARANTINED_BYTES,
    ColumnSelection,
    DamagedFile,
    choose_reader,
)
from redactory.redaction import shards

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[("auto", *FORMATS)]

MISSING_TEXT, EMPTY_TEXT = "missing_text", "empty_text"
MISSING_ID, DUPLICATE_ID = "missing_id", "duplicate_id"
CONVERSATION_COLUMNS = ("messages", "conversations")
"""Columns that hold a conversation."""
MAX_NAME_LENGTH = 1_024
"""Maximum code points of an id, user, class or metadata value, because every example of the document repeats them."""
_NO_FILE_ENCODINGS = ("idna", "punycode", "undefined", "unicode_escape", "raw-unicode-escape", "mbcs", "oem")
_COMMON_ENCODINGS = (
    *("cp1252", "latin-1", "utf-16", "shift_jis", "utf-8", "utf-16-le", "utf-16-be", "utf-32", "cp1250", "cp1251"),
    *("cp437", "cp850", "iso-8859-2", "iso-8859-15", "mac-roman", "koi8-r", "gb18030", "big5", "euc-jp", "euc-kr"),
)
_MAIL_ADDRESS = re.compile(r"[^\s@<>]{1,256}@[^\s@<>]{1,256}")
_INT64_RANGE = range(-(1 << 63), 1 << 63)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SAMPLED_FIRST_ROWS, _SAMPLED_ROW_STEP = 100, 10
"""Rows sampled to detect the language: the first ones, then every tenth."""


StringT = TypeVar("StringT", bound=str)
OneOrMore = Annotated[tuple[StringT, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""Several strings, or a single one."""


class InputSettings(Settings):
    """Configure where the corpus is and what its columns mean."""

    path: OneOrMore[str] = Field(
        description="A file, a folder, a glob or a URL, or a list of them: JSONL, Parquet, Arrow, CSV, "
        "TSV, Excel or text files, plain or .gz or .zst. Relative to the configuration file."
    )
    format: FormatName = Field("auto", description="auto: the format follows from each file's extension.")
    encoding: str = Field(
        "utf-8", description="Encoding of text, CSV, TSV and JSON files, like cp1252, latin-1, utf-16 or shift_jis."
    )
    text: str | tuple[str, ...] = Field(
        "text",
        description="Column of the text, a path inside one (ticket.body, messages[*].content), or a list of "
        "them; for messages and conversations: what each turn says, with its role as the speaker. An example "
        "never spans two texts.",
    )
    id: str = Field("id", description="Column of the document's id; without one, file and row identify it.")
    user: str = Field("user_id", description="Column of the user; a row without one counts as a separate user.")
    mail_user: str | None = Field(
        "from",
        pattern="^[!-9;-~]+$",
        description="Header field of a mail whose first address, in lower case, is its user; null: each mail counts "
        "as a separate user.",
    )
    label: str | None = Field(
        None,
        description="Column of the row's class, for a classifier (train.task classify); all examples of the "
        "row get it. Private, like the text: it is stored only in vault/ and quarantine/.",
    )
    metadata_columns: OneOrMore[str] = Field(
        (),
        description="Columns, or paths as in text, that are copied unchanged with each example into the "
        "shards of both splits: strings, numbers, true and false. One that looks personal is refused.",
    )
    allow_personal_columns: OneOrMore[str] = Field(
        (),
        description="Columns of metadata_columns that may look personal; role: of a conversation, roles that "
        "are not standard names.",
    )
    known_value_columns: dict[str, str] = Field(
        {},
        description="Columns whose values are masked everywhere in the row's text, each with a label (name: "
        "PERSON). Needs release.known_values. They are not used for anything else.",
    )
    emit_document_order: bool = Field(
        False,
        description="Add document_id (keyed), the position in the document and, if that has several texts, "
        "the turn to each example: documents can be put in order again, and the splits be linked.",
    )
    max_chars: int = Field(1_000_000, ge=1, description="A text longer than this (code points) is rejected.")
    max_row_bytes: int = Field(1 << 24, ge=1, description="A row longer than this (bytes) is rejected unread.")
    max_expansion: float = Field(
        MAX_EXPANSION,
        ge=1,
        description="A compressed, Parquet or Arrow file is rejected from the point where it holds more than "
        "this many times its size plus 16 MiB.",
    )
    max_rejected_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The run fails if a larger share of all rows is rejected, or of all files unreadable.",
    )

    @field_validator("path")
    @classmethod
    def _require_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one path is needed")
        return value

    @field_validator("encoding")
    @classmethod
    def _require_known_encoding(cls, value: str) -> str:
        try:
            known = codecs.lookup(value)
        except (LookupError, ValueError):
            known = None
        if known is None or not known._is_text_encoding or known.name in _NO_FILE_ENCODINGS:
            similar = difflib.get_close_matches(value.lower().replace(" ", "-"), _COMMON_ENCODINGS, n=1)
            hint = f"did you mean '{similar[0]}'?" if similar else f"use one like {join_words(_COMMON_ENCODINGS[:4])}"
            raise ValueError(f"unknown encoding; {hint}")
        return value

    @field_validator("text", mode="before")
    @classmethod
    def _require_text_or_list(cls, value: Any) -> Any:
        if not isinstance(value, str | list | tuple):
            raise PydanticKnownError("string_type")
        return value

    @field_validator("text")
    @classmethod
    def _check_text_paths(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in (value,) if isinstance(value, str) else value:
            parse_path(path)
        return value

    @field_validator("metadata_columns")
    @classmethod
    def _check_metadata_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if EVERY_ENTRY in parse_path(path, "input.metadata_columns"):
                raise ValueError(f"'{shorten_name(path)}' names the entries of a list, but a row needs one value")
            problem = "is a column that shards have anyway" if path in shards.RESERVED_COLUMNS else ""
            if problem := problem or "occurs twice" * (value.count(path) > 1):
                raise ValueError(f"'{shorten_name(path)}' {problem}; remove it here, or rename it in the input")
        return value

    @field_validator("known_value_columns")
    @classmethod
    def _check_known_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for name, label in value.items():
            if not re.fullmatch("[A-Z][A-Z0-9_]*", label):
                raise ValueError(f"'{shorten_name(name)}' needs a label (capitals, digits and _), like PERSON")
        return value

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if overlap := sorted({*self.known_value_columns} & {*self.metadata_columns, *self.fields.columns, self.label}):
            raise ValueError(
                f"known_value_columns: '{shorten_name(overlap[0])}' is to be masked, but is also read or kept; "
                "choose one"
            )
        for name in self.allow_personal_columns:
            if name not in (*self.metadata_columns, shards.ROLE):
                raise ValueError(
                    f"allow_personal_columns: '{shorten_name(name)}' is not in input.metadata_columns; add it "
                    "there, or remove it here"
                )
        return self

    @property
    def fields(self) -> Fields:
        """The fields that hold the text."""
        return Fields((self.text,) if isinstance(self.text, str) else self.text)

    @property
    def has_multiple_texts(self) -> bool:
        """Whether a document may have several texts (see ``curation.segment.make_multi_text_segmenter``)."""
        return not isinstance(self.text, str) or self.text in CONVERSATION_COLUMNS or len(self.fields.path_steps[0]) > 1

    def required_columns(self) -> list[str]:
        """List the columns that a file must have: those of the text, and those set in the configuration."""
        named = [getattr(self, name) for name in ("id", "user") if name in self.model_fields_set]
        kept = Fields(self.metadata_columns).columns
        classes = [] if self.label is None else [self.label]
        return [*self.fields.columns, *named, *classes, *kept, *self.known_value_columns]


@dataclass(frozen=True, slots=True)
class Document:
    """A usable row; ``user_id`` is None if it names no user, and it then counts as a separate user.

    ``label`` is the row's class (None if absent or not read). As JSON, ``kept`` holds the values of
    ``input.metadata_columns`` in order, ``known`` those of ``input.known_value_columns`` with their labels.
    """

    doc_id: str
    user_id: str | None
    text: str
    source: str
    row: int
    label: str | None = None
    kept: str | None = None
    known: str | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """An unusable row: the reason code, the file, the row number, and up to 64 KiB of it for the quarantine."""

    reason: str
    source: str
    row: int
    content: bytes


def read_documents(source: Source, settings: InputSettings) -> Iterator[Document | Rejection]:
    """Yield every row of a file or its slices, in order, as a document or a rejection.

    ``InputError`` names the file if its compression or container is damaged in the middle.
    """
    file_settings = settings
    if source.reader.is_text:
        # rows of this format are texts: the configured columns do not apply
        limits = ("encoding", "max_chars", "max_row_bytes", "max_expansion")
        file_settings = InputSettings(path=settings.path, **{name: getattr(settings, name) for name in limits})
    required = tuple(file_settings.required_columns())
    columns = ColumnSelection(required, (*required, file_settings.id, file_settings.user))
    for part in source.slices or (None,):
        with source.open_rows(settings.encoding, part=part, max_expansion=settings.max_expansion) as file:
            reader = choose_reader(source.format, file)(file, source.name, file_settings.max_row_bytes, columns=columns)
            for row in reader.read_records():
                number = row.number if part is None else part.to_file_row(row.number)
                if row.reason is not None:
                    yield Rejection(row.reason, source.name, number, row.raw[:QUARANTINED_BYTES])
                    continue
                cells = row.cells
                if row.headers and settings.mail_user:
                    address = parse_address(row.headers.get(settings.mail_user.lower(), ""))
                    cells = {**cells, file_settings.user: address}
                try:
                    yield _parse_document(cells, file_settings, source.name, number)
                except (_UnusableRowError, NoTextError) as unusable:
                    # the ids first, so that an erasure finds them even if the text is cut
                    texts = settings.fields.paths[:1] if source.reader.is_text else settings.fields.columns
                    names = (file_settings.id, file_settings.user, *file_settings.fields.columns)
                    values = dict(zip((settings.id, settings.user, *texts), map(cells.get, names), strict=True))
                    rendered = json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
                    yield Rejection(str(unusable), source.name, number, (row.raw or rendered)[:QUARANTINED_BYTES])


def parse_address(field: str) -> str | None:
    """Return the first address in a header field, in lower case; None if there is none."""
    addresses = (address.strip().lower() for _, address in getaddresses([field]))
    return next(filter(_MAIL_ADDRESS.fullmatch, addresses), None)


_HINT = "'redactory curate --dry-run' shows the first bad rows"


@dataclass
class RowCounts:
    """Count the rows of a whole input and check the totals, which depend neither on file order nor on file splits."""

    settings: InputSettings
    rows: int = 0
    files: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    damaged_files: list[DamagedFile] = field(default_factory=list)
    """The error of each file that could not be read to its end."""

    def read_and_count(self, source: Source) -> Iterator[Document | Rejection]:
        """Read and count one file; the missing part of a damaged file is one rejection."""
        self.files.append(source.name)
        row = 0
        try:
            for entry in read_documents(source, self.settings):
                row = entry.row
                yield self._count_entry(entry)
        except DamagedFile as error:
            self.damaged_files.append(error)
            yield self._count_entry(Rejection(error.reason, source.name, row + 1, b""))

    def _count_entry(self, entry: Document | Rejection) -> Document | Rejection:
        self.rows += 1
        if isinstance(entry, Rejection):
            self.rejected[entry.reason] += 1
        return entry

    def check_totals(self, may_be_unusable: bool = False, hint: str = _HINT) -> None:
        """Raise ``CheckFailed`` if too many rows or files were rejected, or if no row can be used.

        If all files are damaged, raise the error of the first. ``hint`` ends the message with where to look.
        """
        bad, allowed = self.rejected.total(), self.settings.max_rejected_share
        if not bad + len(self.damaged_files):
            return
        commonest = describe_rejection(*self.rejected.most_common(1)[0]) if bad else ""
        if bad == self.rows and not may_be_unusable:
            if bad == len(self.damaged_files):
                raise self.damaged_files[0]
            name = self.files[0] if len(self.files) == 1 else "the input"
            raise CheckFailed(f"{name}: none of its {pluralize(self.rows, 'row')} can be used. {commonest} {hint}")
        totals = (("row", bad, self.rows), ("file", len(self.damaged_files), len(self.files)))
        for unit, count, total in totals:
            if total and count / total > allowed:
                raise CheckFailed(
                    f"{count:,} of {pluralize(total, unit)} {'was' if count == 1 else 'were'} rejected, more than "
                    f"input.max_rejected_share: {allowed} allows. {commonest} {hint}".replace("  ", " ")
                )


class _UnusableRowError(Exception):
    """A row holds no usable document; the argument is a reason code."""


def _parse_document(record: Mapping[str, Any], settings: InputSettings, name: str, number: int) -> Document:
    raw_text = record.get(str(settings.text))
    if settings.has_multiple_texts:
        turns = settings.fields.read_turns(record)
        raw_text = join_texts(turns) if any(text.strip() for _, text in turns) else "" if turns else None
    text = _require_usable_text(raw_text, settings.max_chars)
    doc_id = _parse_short_text(record.get(settings.id), "id")
    if doc_id is None:
        if "id" in settings.model_fields_set:
            raise _UnusableRowError(MISSING_ID)
        doc_id = f"{name}:{number}"
    user = _parse_short_text(record.get(settings.user), "user")
    label = None if settings.label is None else _parse_short_text(record.get(settings.label), "label")
    metadata = [_read_metadata_value(record, path) for path in settings.metadata_columns]
    kept = json.dumps(metadata) if metadata else None
    known_values = (
        (_parse_short_text(record.get(column), "known"), kind) for column, kind in settings.known_value_columns.items()
    )
    known = json.dumps({value: kind for value, kind in known_values if value}) if settings.known_value_columns else None
    # different Unicode spellings of a user's name are one user
    return Document(doc_id, user and unicode_variants(user)[0], text, name, number, label, kept, known)


def _read_metadata_value(record: Mapping[str, Any], path: str) -> str | int | float | None:
    """Read the value at a path of ``input.metadata_columns``; None if there is none."""
    value: Any = record
    for step in (path,) if path in record else parse_path(path):
        if value is not None and not isinstance(value, Mapping):
            raise _UnusableRowError("kept_not_plain")
        value = None if value is None else value.get(step)
    if isinstance(value, str):
        if len(value) > MAX_NAME_LENGTH:
            raise _UnusableRowError("kept_too_long")
        if _SURROGATE.search(value) or "\x00" in value:
            raise _UnusableRowError("kept_not_plain")
    elif not (value is None or isinstance(value, float) or (isinstance(value, int) and value in _INT64_RANGE)):
        raise _UnusableRowError("kept_not_plain")
    result: str | int | float | None = value
    return result


def _require_usable_text(text: Any, max_chars: int) -> str:
    if text is None:
        raise _UnusableRowError(MISSING_TEXT)
    if not isinstance(text, str):
        raise _UnusableRowError(get_rejection_code(text))
    if len(text) > max_chars:
        raise _UnusableRowError("too_long")
    if "\x00" in text:
        raise _UnusableRowError("nul")
    if _SURROGATE.search(text):
        raise _UnusableRowError("lone_surrogate")
    if not text.strip():
        raise _UnusableRowError(EMPTY_TEXT)
    return text


def _parse_short_text(value: Any, kind: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _UnusableRowError(f"{kind}_not_string")
    name = str(value)
    if len(name) > MAX_NAME_LENGTH:
        raise _UnusableRowError(f"{kind}_too_long")
    if _SURROGATE.search(name) or "\x00" in name:
        raise _UnusableRowError(f"{kind}_not_string")
    return name


@dataclass(frozen=True)
class RowPreview:
    """The first rows of a file: the ``columns`` that most rows have, the rejections, and sample texts.

    ``missing_keys`` are input keys (``text``, ``user``, ``label``) whose column no row has; ``texts`` holds the start
    of some texts, ``documents`` the first whole texts.
    """

    columns: list[str]
    rejections: list[Rejection]
    missing_keys: list[str]
    texts: list[str]
    documents: list[str]


def preview_rows(source: Source, counts: RowCounts, rows: int) -> RowPreview:
    """Preview and count the first ``rows`` rows of a file."""
    settings, keys = counts.settings, Counter[str]()
    records, bad, texts, documents = 0, list[Rejection](), list[str](), list[str]()
    # a damaged file is rejected below, in counts.read
    with suppress(DamagedFile), source.open_rows(settings.encoding, max_expansion=settings.max_expansion) as file:
        reader = choose_reader(source.format, file)(file, source.name, settings.max_row_bytes)
        for row in islice(reader.read_records(), rows):
            records += row.reason is None
            keys.update(row.cells.keys())
    # keys that differ from row to row (as in a mapping by name) are private data: leave them out
    columns = [key for key, count in keys.items() if 2 * count > records]
    for number, result in enumerate(islice(counts.read_and_count(source), rows)):
        if isinstance(result, Rejection):
            bad.append(result)
        elif number < _SAMPLED_FIRST_ROWS or number % _SAMPLED_ROW_STEP == 0:
            texts.append((strip_roles(result.text) if settings.has_multiple_texts else result.text)[:MAX_SAMPLE_CHARS])
            documents += [result.text] if len(documents) < _SAMPLED_FIRST_ROWS else []
    named = {"user", "label"} & settings.model_fields_set if records and not source.reader.is_text else set()
    absent = sorted(key for key in named if getattr(settings, key) not in (None, *keys))
    if records and not source.reader.is_text and not any(name in keys for name in settings.fields.columns):
        absent.insert(0, "text")
    return RowPreview(columns, bad, absent, texts, documents)

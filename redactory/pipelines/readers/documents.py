"""Documents: the rows of the input that hold a usable text, and the rejections that do not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from redactory.detectors.blind import MOST_CHARS
from redactory.foundation.errors import CheckFailed, shorten, some
from redactory.foundation.keys import forms_of
from redactory.foundation.settings import Settings
from redactory.pipelines.curated_hints import rejected_as
from redactory.pipelines.fields import EACH, Fields, NoText, code_of_value, joined, steps_of, without_roles
from redactory.pipelines.readers.files import Source
from redactory.pipelines.readers.formats import EXPANSION, FORMATS, KEPT_BYTES, Columns, DamagedFile
from redactory.redaction import shards

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[("auto", *FORMATS)]

MISSING_TEXT, EMPTY_TEXT = "missing_text", "empty_text"
MISSING_ID, DUPLICATE_ID = "missing_id", "duplicate_id"
CHATS = ("messages", "conversations")
"""Columns that hold a conversation, by their names."""
LONGEST_NAME = 1_024
"""Code points of an id, a user, a class or a kept value; each of a document's points carries them."""
_INTEGERS = range(-(1 << 63), 1 << 63)
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST, _EVERY = 100, 10
"""So many rows, and then one of so many, are looked at for their language."""


Paths = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""Paths, or a single one."""


class InputSettings(Settings):
    """Where the corpus is and which columns hold what."""

    path: Paths = Field(
        description="A file, a folder, a glob or a URL, or a list of them: JSONL, Parquet, Arrow, CSV, "
        "TSV or text files, plain or .gz or .zst. Relative to the configuration file."
    )
    format: FormatName = Field("auto", description="auto: the format follows from each file's extension.")
    text: str | tuple[str, ...] = Field(
        "text",
        description="Column of the text, a path inside one (ticket.body, messages[*].content), or a list of "
        "them; for messages and conversations: what each turn says, with its role as the speaker. An example "
        "never spans two texts.",
    )
    id: str = Field("id", description="Column of the document's id; without one, file and row identify it.")
    user: str = Field("user_id", description="Column of the user; a row without one counts as a separate user.")
    label: str | None = Field(
        None,
        description="Column of the row's class, for a classifier (train.task classify); all examples of the "
        "row get it. Private, like the text: it is stored only in vault/.",
    )
    metadata_columns: Paths = Field(
        (),
        description="Columns, or paths as in text, that are copied unchanged with each example into the "
        "shards of both splits: strings, numbers, true and false. One that looks personal is refused.",
    )
    allow_personal_columns: Paths = Field(
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
        EXPANSION,
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
    def _some_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one path is needed")
        return value

    @field_validator("text", mode="before")
    @classmethod
    def _text_or_a_list(cls, value: Any) -> Any:
        if not isinstance(value, str | list | tuple):
            raise PydanticKnownError("string_type")
        return value

    @field_validator("text")
    @classmethod
    def _each_a_path(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in (value,) if isinstance(value, str) else value:
            steps_of(path)
        return value

    @field_validator("metadata_columns")
    @classmethod
    def _one_value_each(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if EACH in steps_of(path, "input.metadata_columns"):
                raise ValueError(f"'{shorten(path)}' names the entries of a list, but a row needs one value")
            problem = "is a column that shards have anyway" if path in shards.OWN_COLUMNS else ""
            if problem := problem or "occurs twice" * (value.count(path) > 1):
                raise ValueError(f"'{shorten(path)}' {problem}; remove it here, or rename it in the input")
        return value

    @field_validator("known_value_columns")
    @classmethod
    def _each_with_a_label(cls, value: dict[str, str]) -> dict[str, str]:
        for name, label in value.items():
            if not re.fullmatch("[A-Z][A-Z0-9_]*", label):
                raise ValueError(f"'{shorten(name)}' needs a label (capitals, digits and _), like PERSON")
        return value

    @model_validator(mode="after")
    def _what_is_masked_is_not_kept(self) -> Self:
        if both := sorted({*self.known_value_columns} & {*self.metadata_columns, *self.fields.columns, self.label}):
            raise ValueError(
                f"known_value_columns: '{shorten(both[0])}' is to be masked, but is also read or kept; choose one"
            )
        return self

    @model_validator(mode="after")
    def _what_is_accepted_is_kept(self) -> Self:
        for name in self.allow_personal_columns:
            if name not in (*self.metadata_columns, shards.ROLE):
                raise ValueError(
                    f"allow_personal_columns: '{shorten(name)}' is not in input.metadata_columns; add it "
                    "there, or remove it here"
                )
        return self

    @property
    def fields(self) -> Fields:
        """The fields of the text."""
        return Fields((self.text,) if isinstance(self.text, str) else self.text)

    @property
    def has_parts(self) -> bool:
        """Whether a document may have several texts, as :func:`redactory.pipelines.segment.of_parts` cuts."""
        return not isinstance(self.text, str) or self.text in CHATS or len(self.fields.steps[0]) > 1

    def required_columns(self) -> list[str]:
        """Columns that a file must have: the text's, and those that the configuration names itself."""
        named = [getattr(self, name) for name in ("id", "user") if name in self.model_fields_set]
        kept = Fields(self.metadata_columns).columns
        classes = [] if self.label is None else [self.label]
        return [*self.fields.columns, *named, *classes, *kept, *self.known_value_columns]


@dataclass(frozen=True, slots=True)
class Document:
    """A usable row.  ``user_id`` is None where the row names nobody: it is then its own user.

    ``label`` is the row's class, None where it has none or none is read; ``kept`` are the values of
    ``input.metadata_columns`` in its order, ``known`` those of ``input.known_value_columns`` with their
    labels, both as JSON.
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
    """A row that cannot be used: why, where, and up to 64 KiB of it for the quarantine."""

    reason: str
    source: str
    row: int
    content: bytes


def read_documents(source: Source, settings: InputSettings) -> Iterator[Document | Rejection]:
    """Every row of one file, or of the slices of it, in order, as a document or as a rejection.

    A file whose compression or container breaks in the middle raises ``InputError`` naming it.
    """
    asked = settings
    if source.reader.is_text:
        # a file is one text: the configured columns do not count
        limits = ("max_chars", "max_row_bytes", "max_expansion")
        asked = InputSettings(path=settings.path, **{name: getattr(settings, name) for name in limits})
    mapped = (*asked.fields.columns, *Fields(asked.metadata_columns).columns, asked.id, asked.user, asked.label)
    names = [name for name in (*mapped, *asked.known_value_columns) if name is not None]
    columns = Columns(tuple(asked.required_columns()), tuple(names))
    for part in source.slices or (None,):
        with source.open(part=part, expansion=asked.max_expansion) as file:
            for row in source.reader(file, source.name, asked.max_row_bytes, columns=columns).records():
                number = row.number if part is None else part.row(row.number)
                if row.reason is not None:
                    yield Rejection(row.reason, source.name, number, row.raw)
                    continue
                try:
                    yield _document(row.cells, asked, source.name, number)
                except _Unusable as unusable:
                    held = "\n".join(str(row.cells.get(name) or "") for name in asked.fields.columns)
                    content = row.raw or held.encode("utf-8", "surrogatepass")
                    yield Rejection(str(unusable), source.name, number, content[:KEPT_BYTES])


_HINT = "'redactory curate --dry-run' shows the first bad rows"


@dataclass
class RowCounts:
    """Counts the rows of a whole input, and judges them together.

    The verdict depends neither on the order of the files nor on how rows are cut into files.
    """

    settings: InputSettings
    rows: int = 0
    files: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    damage: list[DamagedFile] = field(default_factory=list)
    """What is wrong with each file that could not be read to its end."""

    def read(self, source: Source) -> Iterator[Document | Rejection]:
        """Read and count one file; what is missing of a damaged file is one rejection."""
        self.files.append(source.name)
        row = 0
        try:
            for entry in read_documents(source, self.settings):
                row = entry.row
                yield self._count(entry)
        except DamagedFile as error:
            self.damage.append(error)
            yield self._count(Rejection(error.reason, source.name, row + 1, b""))

    def _count(self, entry: Document | Rejection) -> Document | Rejection:
        self.rows += 1
        if isinstance(entry, Rejection):
            self.rejected[entry.reason] += 1
        return entry

    def check(self, may_be_unusable: bool = False, hint: str = _HINT) -> None:
        """Raise ``CheckFailed`` if too many rows or files were rejected, or if no row can be used.

        If nothing but damaged files is there, raise what is wrong with the first of them.  ``hint`` says
        where to look.
        """
        bad, allowed = self.rejected.total(), self.settings.max_rejected_share
        if not bad + len(self.damage):
            return
        commonest = rejected_as(*self.rejected.most_common(1)[0]) if bad else ""
        if bad == self.rows and not may_be_unusable:
            if bad == len(self.damage):
                raise self.damage[0]
            name = self.files[0] if len(self.files) == 1 else "the input"
            raise CheckFailed(f"{name}: none of its {some(self.rows, 'row')} can be used. {commonest} {hint}")
        totals = (("row", bad, self.rows), ("file", len(self.damage), len(self.files)))
        for what, count, total in totals:
            if total and count / total > allowed:
                raise CheckFailed(
                    f"{count:,} of {some(total, what)} {'was' if count == 1 else 'were'} rejected, more than "
                    f"input.max_rejected_share: {allowed} allows. {commonest} {hint}".replace("  ", " ")
                )


class _Unusable(Exception):
    """A row holds no usable document; the argument is the reason code."""


def _document(record: Mapping[str, Any], asked: InputSettings, name: str, number: int) -> Document:
    said = _parts(record, asked.fields) if asked.has_parts else record.get(str(asked.text))
    text = _text(said, asked.max_chars)
    doc_id = _name(record.get(asked.id), "id")
    if doc_id is None:
        if "id" in asked.model_fields_set:
            raise _Unusable(MISSING_ID)
        doc_id = f"{name}:{number}"
    user = _name(record.get(asked.user), "user")
    label = None if asked.label is None else _name(record.get(asked.label), "label")
    # two spellings of one name are one person
    kept = json.dumps([_kept(record, path) for path in asked.metadata_columns]) if asked.metadata_columns else None
    said_of = ((_name(record.get(column), "known"), of) for column, of in asked.known_value_columns.items())
    known = json.dumps({value: of for value, of in said_of if value}) if asked.known_value_columns else None
    return Document(doc_id, user and forms_of(user)[0], text, name, number, label, kept, known)


def _kept(record: Mapping[str, Any], path: str) -> str | int | float | None:
    """The value at the end of a path of ``input.metadata_columns``; None where there is none."""
    value: Any = record.get(path)
    if path not in record:
        value = record
        for step in steps_of(path):
            if value is not None and not isinstance(value, Mapping):
                raise _Unusable("kept_not_plain")
            value = None if value is None else value.get(step)
    if isinstance(value, str):
        if len(value) > LONGEST_NAME:
            raise _Unusable("kept_too_long")
        if _SURROGATE.search(value) or "\x00" in value:
            raise _Unusable("kept_not_plain")
    elif not (value is None or isinstance(value, float) or (isinstance(value, int) and value in _INTEGERS)):
        raise _Unusable("kept_not_plain")
    plain: str | int | float | None = value
    return plain


def _parts(record: Mapping[str, Any], fields: Fields) -> str | None:
    """All texts of a row, with their roles, as one; None where it has none."""
    try:
        said = fields.said(record)
        return joined(said) if any(text.strip() for _, text in said) else "" if said else None
    except NoText as error:
        raise _Unusable(str(error)) from None


def _text(text: Any, max_chars: int) -> str:
    if text is None:
        raise _Unusable(MISSING_TEXT)
    if not isinstance(text, str):
        raise _Unusable(code_of_value(text))
    if len(text) > max_chars:
        raise _Unusable("too_long")
    if "\x00" in text:
        raise _Unusable("nul")
    if _SURROGATE.search(text):
        raise _Unusable("lone_surrogate")
    if not text.strip():
        raise _Unusable(EMPTY_TEXT)
    return text


def _name(value: Any, of: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _Unusable(f"{of}_not_string")
    name = str(value)
    if len(name) > LONGEST_NAME:
        raise _Unusable(f"{of}_too_long")
    if _SURROGATE.search(name) or "\x00" in name:
        raise _Unusable(f"{of}_not_string")
    return name


@dataclass(frozen=True)
class FirstRows:
    """What the first rows of a file hold: the ``columns`` that most rows have, the ``rejections`` among them,
    the keys of the input (``text``, ``user``, ``label``) whose column none of them has, the start of some
    texts, and the first ``documents`` as they are cut into points.
    """

    columns: list[str]
    rejections: list[Rejection]
    absent: list[str]
    texts: list[str]
    documents: list[str]


def first_rows(source: Source, counts: RowCounts, rows: int) -> FirstRows:
    """Look at the first ``rows`` rows of a file, and count them."""
    settings, keys = counts.settings, Counter[str]()
    records, bad, texts, documents = 0, list[Rejection](), list[str](), list[str]()
    # a damaged file is rejected below
    with suppress(DamagedFile), source.open(expansion=settings.max_expansion) as file:
        reader = source.reader(file, source.name, settings.max_row_bytes)
        for row in islice(reader.records(), rows):
            records += row.reason is None
            keys.update(row.cells.keys())
    # where the keys are data (a mapping by name), they differ from row to row: those are nobody's business
    columns = [key for key, count in keys.items() if 2 * count > records]
    for number, result in enumerate(islice(counts.read(source), rows)):
        if isinstance(result, Rejection):
            bad.append(result)
        elif number < _FIRST or number % _EVERY == 0:
            texts.append((without_roles(result.text) if settings.has_parts else result.text)[:MOST_CHARS])
            documents += [result.text] if len(documents) < _FIRST else []
    named = {"user", "label"} & settings.model_fields_set if records and not source.reader.is_text else set()
    absent = sorted(key for key in named if getattr(settings, key) not in (None, *keys))
    if records and not source.reader.is_text and not any(name in keys for name in settings.fields.columns):
        absent.insert(0, "text")
    return FirstRows(columns, bad, absent, texts, documents)

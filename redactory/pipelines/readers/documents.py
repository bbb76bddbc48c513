"""Documents: the rows of the input that hold a usable text, and the rejections that do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redactory.detectors.blind import MOST_CHARS
from redactory.foundation.keys import forms_of
from redactory.pipelines.config import InputSettings
from redactory.pipelines.readers.formats import READERS
from redactory.pipelines.readers.records import KEPT_BYTES, Columns
from redactory.pipelines.readers.sources import Slice, Source

_SURROGATE = re.compile("[\ud800-\udfff]")

MISSING_TEXT, TEXT_NOT_STRING, EMPTY_TEXT = "missing_text", "text_not_string", "empty_text"
LONE_SURROGATE, NUL, TOO_LONG = "lone_surrogate", "nul", "too_long"
MISSING_ID, ID_NOT_STRING, USER_NOT_STRING = "missing_id", "id_not_string", "user_not_string"
ID_TOO_LONG, USER_TOO_LONG = "id_too_long", "user_too_long"
LABEL_NOT_STRING, LABEL_TOO_LONG = "label_not_string", "label_too_long"
DUPLICATE_ID = "duplicate_id"
_FIRST, _EVERY = 100, 10
"""So many rows, and then one of so many, are looked at for their language."""
LONGEST_NAME = 1_024
"""Code points of an id, a user or a class; each of a document's points carries them."""


@dataclass(frozen=True, slots=True)
class Document:
    """A usable row.  ``user_id`` is None where the row names nobody: it is then its own user.

    ``label`` is the row's class, None where it has none or none is read.
    """

    doc_id: str
    user_id: str | None
    text: str
    source: str
    row: int
    label: str | None = None


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
    for part in source.slices or (None,):
        yield from _read(source, settings, part)


def _read(source: Source, settings: InputSettings, part: Slice | None) -> Iterator[Document | Rejection]:
    limit = settings.max_row_bytes
    with source.open(part=part) as file:
        label = () if settings.label is None else (settings.label,)
        columns = Columns(tuple(settings.required_columns()), (*_columns(source, settings), *label))
        for counted, record, reason, raw in READERS[source.format](file, limit, columns, source.name):
            number = counted if part is None else part.row(counted)
            if record is None:
                yield Rejection(reason or MISSING_TEXT, source.name, number, raw)
                continue
            try:
                result = _document(record, source, number, settings)
            except _Unusable as unusable:
                content = raw or str(record.get(_columns(source, settings)[0]) or "").encode(
                    "utf-8", "surrogatepass"
                )
                result = Rejection(unusable.reason, source.name, number, content[:KEPT_BYTES])
            yield result


class _Unusable(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _columns(source: Source, settings: InputSettings) -> tuple[str, str, str]:
    if source.format == "text":
        return "text", "id", "user_id"
    return settings.text, settings.id, settings.user


def _document(
    record: dict[str, Any], source: Source, number: int, settings: InputSettings
) -> Document | Rejection:
    text_column, id_column, user_column = _columns(source, settings)
    text = _text(record, text_column, settings.max_chars)
    doc_id = _name(record.get(id_column), ID_NOT_STRING, ID_TOO_LONG)
    if doc_id is None:
        if "id" in settings.model_fields_set and source.format != "text":
            raise _Unusable(MISSING_ID)
        doc_id = f"{source.name}:{number}"
    return Document(
        doc_id,
        _user(record.get(user_column)),
        text,
        source.name,
        number,
        _label(record, source, settings),
    )


def _label(record: dict[str, Any], source: Source, settings: InputSettings) -> str | None:
    if settings.label is None or source.format == "text":
        return None
    return _name(record.get(settings.label), LABEL_NOT_STRING, LABEL_TOO_LONG)


def _text(record: dict[str, Any], column: str, max_chars: int) -> str:
    text = record.get(column)
    if text is None:
        raise _Unusable(MISSING_TEXT)
    if not isinstance(text, str):
        raise _Unusable(TEXT_NOT_STRING)
    if len(text) > max_chars:
        raise _Unusable(TOO_LONG)
    if "\x00" in text:
        raise _Unusable(NUL)
    if _SURROGATE.search(text):
        raise _Unusable(LONE_SURROGATE)
    if not text.strip():
        raise _Unusable(EMPTY_TEXT)
    return text


def _name(value: Any, reason: str, too_long: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _Unusable(reason)
    name = str(value)
    if len(name) > LONGEST_NAME:
        raise _Unusable(too_long)
    if _SURROGATE.search(name) or "\x00" in name:
        raise _Unusable(reason)
    return name


def _user(value: Any) -> str | None:
    """The user's id in its composed form: two spellings of one name are one person."""
    name = _name(value, USER_NOT_STRING, USER_TOO_LONG)
    return None if name is None else forms_of(name)[0]


def first_bad_rows(
    source: Source, settings: InputSettings, rows: int
) -> tuple[list[str], list[Rejection], list[str], list[str]]:
    """The columns that most of a file's first ``rows`` rows have, the rejections among those rows, the keys
    of the input (``user``, ``label``) that name a column which none of them has, and some texts.
    """
    keys: Counter[str] = Counter()
    records, bad, texts = 0, list[Rejection](), list[str]()
    with source.open() as file:
        for number, record, _, _ in READERS[source.format](
            file, settings.max_row_bytes, Columns(), source.name
        ):
            if number > rows:
                break
            records += record is not None
            keys.update((record or {}).keys())
    # where the keys are data (a mapping by name), they differ from row to row: those are nobody's business
    columns = [key for key, count in keys.items() if 2 * count > records]
    for number, result in enumerate(read_documents(source, settings)):
        if isinstance(result, Rejection):
            bad.append(result)
        elif number < _FIRST or number % _EVERY == 0:
            texts.append(result.text[:MOST_CHARS])
        if number + 1 >= rows:
            break
    named = {"user", "label"} & settings.model_fields_set if records and source.format != "text" else set()
    absent = sorted(key for key in named if getattr(settings, key) not in (None, *keys))
    return columns, bad, absent, texts

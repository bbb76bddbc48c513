"""Metadata columns of an example: its position in its document, its role, and kept columns of the input.

They are not masked. So a kept column that looks personal is refused, by its first rows before anything is written and
by all rows during detection, and only known names of roles are kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from redactory.detectors import TextDetector
from redactory.foundation.errors import CheckFailed, ConfigurationError, join_words
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.personal_columns import SearchResult, find_personal_columns
from redactory.pipelines.curation.segment import Segment, is_known_role, iterate_turns
from redactory.pipelines.readers import Document, InputSettings
from redactory.redaction.mask import ROLE_MARK
from redactory.redaction.shards import ORDER, ROLE

VALUE_TYPES = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
"""Arrow types of kept columns, by the name of their values' type."""
_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def count_metadata_types(documents: Sequence[Document], settings: InputSettings) -> Counter[str]:
    """Count, for :func:`build_metadata_schema`, the documents with roles and the types of the kept values."""
    counts: Counter[str] = Counter()
    if settings.has_multiple_texts:
        counts["roles/told"] = sum(ROLE_MARK in document.text for document in documents)
    for values in map(parse_metadata_values, documents if settings.metadata_columns else ()):
        kinds = ((number, _TYPE_NAMES.get(type(value))) for number, value in enumerate(values))
        counts.update(f"kept/{number}/{kind}" for number, kind in kinds if kind is not None)
    return counts


def parse_metadata_values(document: Document) -> list[Any]:
    """Return the kept values of a document."""
    values: list[Any] = json.loads(document.kept or "[]")
    return values


def build_metadata_schema(settings: InputSettings, counts: Mapping[str, int], is_whole_input: bool = True) -> pa.Schema:
    """Build the schema of the metadata columns of examples from the ``counts`` of ingest; one type per column.

    ``CheckFailed`` for values of several types and, in a complete input (``is_whole_input``), for a column without any.
    """
    has_roles = counts["roles/told"] > 0
    is_included = {
        "position": has_roles or settings.emit_document_order,
        "turn": has_roles or (settings.emit_document_order and settings.has_multiple_texts),
    }
    fields = [
        *(field for field in ORDER if is_included[field.name]),
        *([pa.field(ROLE, pa.string())] if has_roles else []),
    ]
    for number, name in enumerate(settings.metadata_columns):
        kinds = [kind for kind in VALUE_TYPES if counts[f"kept/{number}/{kind}"]]
        if kinds == ["integer", "number"]:
            kinds = ["number"]
        if len(kinds) > 1:
            raise CheckFailed(
                f"input.metadata_columns: '{name}' is {join_words(kinds)} in different rows: use one kind"
            )
        if not kinds and is_whole_input and counts["rows"]:
            raise CheckFailed(f"input.metadata_columns: no row has a value for '{name}': name an existing column")
        fields.append(pa.field(name, VALUE_TYPES[kinds[0] if kinds else "string"]))
    return pa.schema(fields)


def build_metadata_columns(
    schema: pa.Schema, settings: InputSettings, kept: Sequence[str | None], segments: Sequence[Sequence[Segment]]
) -> dict[str, Any]:
    """Return the values of ``schema`` for each example of documents with these ``kept`` values and ``segments``."""
    if not len(schema):
        return {}
    turns = list(chain.from_iterable(map(iterate_turns, segments)))
    columns: dict[str, Any] = {
        "position": [position for values_per_example in segments for position in range(len(values_per_example))],
        "turn": [turn for turn, _ in turns],
        ROLE: [role if ROLE in settings.allow_personal_columns or is_known_role(role) else None for _, role in turns],
    }
    rows = [json.loads(values or "[]") for values in kept]
    for number, name in enumerate(settings.metadata_columns):
        pairs = zip(rows, segments, strict=True)
        values_per_example = [values[number] for values, document_segments in pairs for _ in document_segments]
        try:
            columns[name] = pa.array(values_per_example, schema.field(name).type)
        except pa.ArrowInvalid:
            # the library's message quotes the value
            raise CheckFailed(
                f"input.metadata_columns: '{name}' has an integer that its column cannot hold exactly (beyond 64 bits, "
                "or 53 beside fractions): write the column as text"
            ) from None
    return columns


def require_no_personal_columns(config: Config, rows: Iterable[Sequence[Any]], detector: TextDetector) -> None:
    """Raise ``ConfigurationError`` if a kept column looks personal; ``rows`` are rows of kept values."""
    settings = config.input
    values: dict[str, set[str]] = {
        name: set() for name in settings.metadata_columns if name not in settings.allow_personal_columns
    }
    for row in rows:
        for name, value in zip(settings.metadata_columns, row, strict=True):
            if name in values and value is not None and not isinstance(value, bool):
                values[name].add(str(value))

    def search_texts(texts: list[str]) -> list[SearchResult]:
        return [detection.failure or detection.strict for detection in detector.detect(texts)]

    if reasons_by_column := dict(find_personal_columns(values, search_texts, config.detect.language)):
        reasons = join_words([f"{name} ({reason})" for name, reason in reasons_by_column.items()])
        raise ConfigurationError(
            "input.metadata_columns: values that look personal would be copied unmasked into the shards: "
            f"{reasons}. Remove the column, or accept it "
            f"(input.allow_personal_columns: [{', '.join(reasons_by_column)}])"
        )

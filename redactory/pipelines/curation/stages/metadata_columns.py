"""What goes with each example beside its text: its place in its document, who said it, columns that are kept.

None of it is masked.  So a kept column that looks personal is refused, by its first rows before anything is
written and by all of them where texts are detected, and a role stays only where it is what roles are called.
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
from redactory.pipelines.json_paths import ROLE_SEPARATOR as ROLE_MARK
from redactory.pipelines.readers import Document, InputSettings
from redactory.redaction.shards import ORDER, ROLE

VALUE_TYPES = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
"""The types of a kept column, by what its values are called."""
_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def count_metadata(documents: Sequence[Document], settings: InputSettings) -> Counter[str]:
    """What :func:`build_metadata_schema` goes by: how many documents tell roles, and the kinds of kept
    values."""
    counts: Counter[str] = Counter()
    if settings.has_multiple_texts:
        counts["roles/told"] = sum(ROLE_MARK in document.text for document in documents)
    for values in map(parse_kept_values, documents if settings.metadata_columns else ()):
        kinds = ((number, _TYPE_NAMES.get(type(value))) for number, value in enumerate(values))
        counts.update(f"kept/{number}/{kind}" for number, kind in kinds if kind is not None)
    return counts


def parse_kept_values(document: Document) -> list[Any]:
    """The kept values of a document."""
    values: list[Any] = json.loads(document.kept or "[]")
    return values


def build_metadata_schema(settings: InputSettings, counts: Mapping[str, int], is_whole_input: bool = True) -> pa.Schema:
    """The columns that every point carries, by the ``counts`` of ingest.

    A kept column has one type in all shards.  ``CheckFailed`` where its values are of several kinds and,
    for an input that is ``is_whole_input``, where no row has any.
    """
    has_roles = counts["roles/told"] > 0
    has = {
        "position": has_roles or settings.emit_document_order,
        "turn": has_roles or (settings.emit_document_order and settings.has_multiple_texts),
    }
    fields = [*(field for field in ORDER if has[field.name]), *([pa.field(ROLE, pa.string())] if has_roles else [])]
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
    """The values of ``schema`` for each point of documents with these ``kept`` values and ``segments``."""
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
        values_per_example = [values[number] for values, points in pairs for _ in points]
        columns[name] = pa.array(values_per_example, schema.field(name).type)
    return columns


def refuse_personal_columns(config: Config, rows: Iterable[Sequence[Any]], detector: TextDetector) -> None:
    """``ConfigurationError`` where a kept column, of whose values these are rows, looks personal."""
    settings = config.input
    values: dict[str, set[str]] = {
        name: set() for name in settings.metadata_columns if name not in settings.allow_personal_columns
    }
    for row in rows:
        for name, value in zip(settings.metadata_columns, row, strict=True):
            if name in values and value is not None and not isinstance(value, bool):
                values[name].add(str(value))

    def hits(texts: list[str]) -> list[SearchResult]:
        return [detection.failure or detection.strict for detection in detector.detect(texts)]

    if looks := dict(find_personal_columns(values, hits, config.detect.language)):
        reasons = join_words([f"{name} ({reason})" for name, reason in looks.items()])
        raise ConfigurationError(
            "input.metadata_columns: values that look personal would be copied unmasked into the shards: "
            f"{reasons}. Remove the column, or accept it (input.allow_personal_columns: [{', '.join(looks)}])"
        )

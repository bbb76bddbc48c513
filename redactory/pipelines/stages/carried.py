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
from redactory.foundation.errors import CheckFailed, ConfigurationError, listed
from redactory.pipelines.config import Config
from redactory.pipelines.fields import ROLE as ROLE_MARK
from redactory.pipelines.personal import Hits, personal
from redactory.pipelines.readers import Document, InputSettings
from redactory.pipelines.segment import Segment, is_role, turns_of
from redactory.redaction.shards import ORDER, ROLE

KINDS = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
"""The types of a kept column, by what its values are called."""
_CALLED = {str: "string", bool: "boolean", int: "integer", float: "number"}


def counted_in(documents: Sequence[Document], asked: InputSettings) -> Counter[str]:
    """What :func:`carried_columns` goes by: how many documents tell roles, and the kinds of kept values."""
    counts: Counter[str] = Counter()
    if asked.has_parts:
        counts["roles/told"] = sum(ROLE_MARK in document.text for document in documents)
    for values in map(values_of, documents if asked.metadata_columns else ()):
        kinds = ((number, _CALLED.get(type(value))) for number, value in enumerate(values))
        counts.update(f"kept/{number}/{kind}" for number, kind in kinds if kind is not None)
    return counts


def values_of(document: Document) -> list[Any]:
    """The kept values of a document."""
    values: list[Any] = json.loads(document.kept or "[]")
    return values


def carried_columns(asked: InputSettings, counts: Mapping[str, int], whole: bool = True) -> pa.Schema:
    """The columns that every point carries, by the ``counts`` of ingest.

    A kept column has one type in all shards.  ``CheckFailed`` where its values are of several kinds and,
    for an input that is ``whole``, where no row has any.
    """
    told = counts["roles/told"] > 0
    has = {
        "position": told or asked.emit_document_order,
        "turn": told or (asked.emit_document_order and asked.has_parts),
    }
    fields = [*(field for field in ORDER if has[field.name]), *([pa.field(ROLE, pa.string())] if told else [])]
    for number, name in enumerate(asked.metadata_columns):
        kinds = [kind for kind in KINDS if counts[f"kept/{number}/{kind}"]]
        if kinds == ["integer", "number"]:
            kinds = ["number"]
        if len(kinds) > 1:
            raise CheckFailed(f"input.metadata_columns: '{name}' is {listed(kinds)} in different rows: use one kind")
        if not kinds and whole and counts["rows"]:
            raise CheckFailed(f"input.metadata_columns: no row has a value for '{name}': name an existing column")
        fields.append(pa.field(name, KINDS[kinds[0] if kinds else "string"]))
    return pa.schema(fields)


def carried(
    schema: pa.Schema, asked: InputSettings, kept: Sequence[str | None], segments: Sequence[Sequence[Segment]]
) -> dict[str, Any]:
    """The values of ``schema`` for each point of documents with these ``kept`` values and ``segments``."""
    if not len(schema):
        return {}
    turns = list(chain.from_iterable(map(turns_of, segments)))
    found: dict[str, Any] = {
        "position": [place for own in segments for place in range(len(own))],
        "turn": [turn for turn, _ in turns],
        ROLE: [role if ROLE in asked.allow_personal_columns or is_role(role) else None for _, role in turns],
    }
    rows = [json.loads(values or "[]") for values in kept]
    for number, name in enumerate(asked.metadata_columns):
        pairs = zip(rows, segments, strict=True)
        own = [values[number] for values, points in pairs for _ in points]
        found[name] = pa.array(own, schema.field(name).type)
    return found


def refuse_personal(config: Config, rows: Iterable[Sequence[Any]], detector: TextDetector) -> None:
    """``ConfigurationError`` where a kept column, of whose values these are rows, looks personal."""
    asked = config.input
    values: dict[str, set[str]] = {
        name: set() for name in asked.metadata_columns if name not in asked.allow_personal_columns
    }
    for row in rows:
        for name, value in zip(asked.metadata_columns, row, strict=True):
            if name in values and value is not None and not isinstance(value, bool):
                values[name].add(str(value))

    def hits(texts: list[str]) -> list[Hits]:
        return [one.failure or one.strict for one in detector.detect(texts)]

    if looks := dict(personal(values, hits, config.detect.language)):
        reasons = listed([f"{name} ({why})" for name, why in looks.items()])
        raise ConfigurationError(
            "input.metadata_columns: values that look personal would be copied unmasked into the shards: "
            f"{reasons}. Remove the column, or accept it (input.allow_personal_columns: [{', '.join(looks)}])"
        )

"""Rejected rows in the quarantine: hers by the ids that stand in them, where they can be read at all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from redactory.foundation.keys import forms_of
from redactory.pipelines.config import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.takedown.person import Person
from redactory.redaction import RunFolder, parts, read_part

_TABLES = {".csv": ",", ".tsv": "\t"}


@dataclass
class Rejected:
    """``rows``: the places of her rows in each part, by its name; ``reasons``: why they had been rejected.

    ``ids``: those of hers that stand in them.  ``unsearched`` counts the rows that say nothing of whom they
    are: broken ones, and texts whose id is another document's.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    unsearched: int = 0


def rejected_rows(run: RunFolder, person: Person, columns: InputSettings) -> Rejected:
    """Search the rejected rows of a run for the ids of ``person``."""
    found = Rejected()
    for path in parts(run.quarantine):
        mine = []
        for place, row in enumerate(read_part(path).to_pylist()):
            if row["kind"] != "row":
                continue
            own = _hers(row, person, columns)
            found.unsearched += own is None
            if own:
                found.ids |= own
                mine.append(place)
                found.reasons[row["reason"]] += 1
        if mine:
            found.rows[path.name] = mine
    return found


def without_rows(table: pa.Table, places: list[int]) -> pa.Table:
    """``table`` without the rows at ``places``."""
    kept = sorted(set(range(table.num_rows)) - set(places))
    return table.take(pa.array(kept, pa.int64()))


def _hers(row: dict[str, Any], person: Person, columns: InputSettings) -> frozenset[str] | None:
    """Which of her ids a rejected row names; None where nothing in it can say so.

    What cannot be read as a row is hers where one of the ids stands in it as a word.
    """
    content: bytes = row["content"] or b""
    named = None if row["reason"] == DUPLICATE_ID else _names(content, row["source"] or "", columns)
    if named is not None:
        documents, users = named
        return documents & person.doc_ids | {u for u in person.user_ids if users & set(forms_of(u))}
    spelled = {form: user for user in person.user_ids for form in forms_of(user)}
    words = "|".join(map(re.escape, sorted({*person.doc_ids, *spelled})))
    said = re.findall(rf"(?<![\w-])(?:{words})(?![\w-])", content.decode("utf-8", "replace"))
    return frozenset(word if word in person.doc_ids else spelled[word] for word in said) or None


def _names(
    content: bytes, source: str, columns: InputSettings
) -> tuple[frozenset[str], frozenset[str]] | None:
    """The ids of document and user that a row can name; None where it is no row that can be read."""
    text = content.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return frozenset([str(value.get(columns.id))]), frozenset([str(value.get(columns.user))])
    # a compressed table is a table as well
    ending = next((e for e in _TABLES if e in source.rsplit("/", 1)[-1].lower()), None)
    if ending is None:
        return None
    try:
        lines = csv.reader(io.StringIO(text), delimiter=_TABLES[ending])
        cells = frozenset(cell for line in lines for cell in line)
    except csv.Error:
        return None
    return cells, cells

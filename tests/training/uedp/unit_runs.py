"""A finished run of several users and entities, written by hand, for trainings that hide them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from redactory.foundation.keys import DigestKey
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import seal_folder
from redactory.redaction.shards import EXAMPLES, LABELLED_VAULT, PUBLIC, SPANS, VAULT, list_parts, write_part
from redactory.training import TrainSettings

KEY = DigestKey(b"a key of these tests, 32 bytes..")
NAMES = dict.fromkeys(("Ada", "Acme", "Bob", "Zed"), "PERSON")
UNKNOWN = -1
"""What a copy repeats where the run does not say it."""
PUBLIC_ROWS = ["we met today", "she wrote a letter to them", "nothing new here", "they met again today"] * 3
TRAINING: dict[str, Any] = {
    "recipe": "fixed",
    "vocabulary_size": 100,
    "trainer": "uedp-bounded",
    "epochs": 2,
    "sampling_rate": 0.5,
    "noise_multiplier": 1.5,
    "expected_batch_size": 4.0,
    "bounding": {"k_user": 2, "k_entity": 2},
    "model": {"embedding_size": 6, "hidden_size": 8},
    "public_batch_size": 4,
    "min_public_steps": 2,
    "threads": 1,
    "seed": 7,
}


class Row(NamedTuple):
    """A point: its user, its text, whose names are its entities, its class, what it repeats, its document."""

    user: str
    text: str
    kind: str | None = None
    copy_of: int | None = None
    document: str | None = None


ROWS = [
    *(Row("a", f"Ada met Acme on day {n}.", "meeting") for n in range(4)),
    *(Row("b", f"Bob wrote letter {n}.", "letter") for n in range(3)),
    *(Row("b", f"Ada wrote letter {n} to Bob.", "letter") for n in range(3)),
    *(Row("c", f"nothing new {n}.") for n in range(3)),
    *(Row("d", f"Acme again {n}.", "meeting") for n in range(3)),
    Row("d", "they met Zed"),
]


def write_unit_run(
    root: Path,
    rows: Sequence[Row] = ROWS,
    classes: bool = False,
    rule: str = "S1",
    inputs: Sequence[Path] = (),
    names: Mapping[str, str] = NAMES,
    ids: Sequence[int] | None = None,
    hits: Sequence[tuple[int, int, int, str]] | None = None,
    route: Mapping[str, Any] | None = None,
) -> RunFolder:
    """A sealed run whose points are ``rows``, said to be of ``inputs``.

    The ``names`` in them are hits of π under their labels, unless other ``hits`` (point, start, end, label)
    are given.  ``ids`` are the points' numbers, which say in which partition each lies.  With a ``route``
    counts decided what is public, and released ids follow from the texts.
    """
    run, ids = RunFolder(root), list(range(len(rows)) if ids is None else ids)
    found = hits or [
        (number, *match.span(), names[match.group()])
        for number, row in zip(ids, rows, strict=True)
        for match in re.finditer("|".join(names), row.text)
    ]
    for partition in sorted({number >> 32 for number in ids}):
        own = [(n, row) for n, row in zip(ids, rows, strict=True) if n >> 32 == partition]
        marked = [hit for hit in found if hit[0] >> 32 == partition]
        kinds = {"class": [row.kind for _, row in own]} if classes else {}
        point = {"example_id": [n for n, _ in own]}
        places = ("example_id", "start", "end", "label")
        numbered = {name: [hit[place] for hit in marked] for place, name in enumerate(places)}
        _write(
            run.vault,
            partition,
            LABELLED_VAULT if classes else VAULT,
            {name: [""] * len(own) for name in VAULT.names}
            | {"doc_id": [row.document or "" for _, row in own]}
            | point
            | {"text": [row.text for _, row in own]}
            | kinds,
        )
        decisions = {
            "released_id": [KEY.make_pseudonym("point", row.text if route else n) for n, row in own],
            "user": [KEY.make_pseudonym("user", row.user) for _, row in own],
            "decision": ["private" if row.copy_of is None else "duplicate" for _, row in own],
            "dup_of": [None if row.copy_of == UNKNOWN else row.copy_of for _, row in own],
            "document": [row.document for _, row in own],
        }
        nothing = {name: [None] * len(own) for name in EXAMPLES.names}
        _write(run.examples, partition, EXAMPLES, nothing | point | decisions)
        nothing = {name: [None] * len(marked) for name in SPANS.names}
        _write(run.spans, partition, SPANS, nothing | numbered | {"policy": ["strict"] * len(marked)})
    _write(run.public, 0, PUBLIC, {"example_id": ["p0", "p1"], "text": ["hello corpus", "hello corpus side"]})
    body = {
        "format": "redactory-run/1",
        "uncovered": {"kinds": {}, "languages": {}},
        "configuration": {"input": {"text": "words", "label": "kind"}},
        "inputs": [{"path": path.name, "bytes": path.stat().st_size} for path in inputs],
        "key": {"fingerprint": "another"},
        "policies": {"strict": {}, "conservative": {}},
        "dedup": {"mode": "exact", "scope": "user", "rule": rule, "group_size": 1},
        **({"route": dict(route)} if route else {}),
    }
    folders = (run.vault, run.examples, run.spans, run.public)
    seal_folder(run, body, [path for folder in folders for path in list_parts(folder)])
    return run


def _write(folder: Path, partition: int, schema: pa.Schema, columns: Mapping[str, Any]) -> None:
    write_part(folder / f"part-{partition:05d}.parquet", pa.table(dict(columns), schema=schema))


def write_public(path: Path, rows: Sequence[str] = PUBLIC_ROWS, kind: str | None = None) -> Path:
    """Donated text, in the run's own columns."""
    lines = [json.dumps({"words": row, **({} if kind is None else {"kind": kind})}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def training(public: Path | None, **changes: Any) -> TrainSettings:
    """Settings of a training that takes well under a second."""
    return TrainSettings(**{**TRAINING, "public_text": public, **changes})

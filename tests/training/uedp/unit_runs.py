"""A finished run of several users and entities, written by hand, for trainings that hide them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from redactory.foundation.canonical import file_sha256
from redactory.foundation.keys import DigestKey
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import seal
from redactory.redaction.shards import LABELLED_VAULT, POINTS, PUBLIC, SPANS, VAULT, parts, write_part
from redactory.training import TrainSettings

KEY = DigestKey(b"a key of these tests, 32 bytes..")
NAMES = ("Ada", "Acme", "Bob", "Zed")
PUBLIC_ROWS = ["we met today", "she wrote a letter to them", "nothing new here", "they met again today"] * 3
TRAINING: dict[str, Any] = {
    "trainer": "uedp-bounded",
    "epochs": 2,
    "sampling_rate": 0.5,
    "noise_multiplier": 1.5,
    "expected_batch_size": 4.0,
    "bounding": {"k_user": 2, "k_entity": 2},
    "model": {"embedding_size": 6, "hidden_size": 8},
    "public_batch_size": 4,
    "minimum_plain_steps": 2,
    "minimum_count": 1,
    "threads": 1,
    "seed": 7,
}


class Row(NamedTuple):
    """A point: its user, its text, whose names are its entities, its class, and the point it repeats."""

    user: str
    text: str
    kind: str | None = None
    copy_of: int | None = None


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
) -> RunFolder:
    """A sealed run whose points are ``rows``, said to be of ``inputs``; the names in them are hits of π."""
    run, count = RunFolder(root), len(rows)
    vault: dict[str, Any] = {name: [""] * count for name in VAULT.names}
    vault.update(point_id=list(range(count)), text=[row.text for row in rows])
    schema = VAULT
    if classes:
        schema, vault["class"] = LABELLED_VAULT, [row.kind for row in rows]
    points: dict[str, Any] = {name: [None] * count for name in POINTS.names}
    points.update(
        point_id=list(range(count)),
        released_id=[KEY.pseudonym("point", number) for number in range(count)],
        user=[KEY.pseudonym("user", row.user) for row in rows],
        fate=["private" if row.copy_of is None else "duplicate" for row in rows],
        dup_of=[row.copy_of for row in rows],
    )
    hits = [
        (number, *match.span())
        for number, row in enumerate(rows)
        for match in re.finditer("|".join(NAMES), row.text)
    ]
    spans: dict[str, Any] = {name: [None] * len(hits) for name in SPANS.names}
    spans.update(zip(("point_id", "start", "end"), map(list, zip(*hits, strict=True)), strict=True))
    spans.update(label=["PERSON"] * len(hits), policy=["strict"] * len(hits))
    public = {"point_id": ["p0", "p1"], "text": ["hello corpus", "hello corpus side"]}
    for folder, table in (
        (run.vault, pa.table(vault, schema=schema)),
        (run.points, pa.table(points, schema=POINTS)),
        (run.spans, pa.table(spans, schema=SPANS)),
        (run.public, pa.table(public, schema=PUBLIC)),
    ):
        write_part(folder / "part-00000.parquet", table)
    body = {
        "format": "redactory-run/1",
        "blind": {"kinds": {}, "languages": {}},
        "configuration": {"input": {"text": "words", "label": "kind"}},
        "inputs": [{"path": path.name, "sha256": file_sha256(path)} for path in inputs],
        "policies": {"strict": {}, "conservative": {}},
        "dedup": {"mode": "exact", "scope": "user", "rule": rule, "group_size": 1},
    }
    folders = (run.vault, run.points, run.spans, run.public)
    seal(run, body, [path for folder in folders for path in parts(folder)])
    return run


def write_public(path: Path, rows: Sequence[str] = PUBLIC_ROWS, kind: str | None = None) -> Path:
    """Donated text, in the run's own columns."""
    import json

    lines = [json.dumps({"words": row, **({} if kind is None else {"kind": kind})}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def training(public: Path | None, **changes: Any) -> TrainSettings:
    """Settings of a training that takes well under a second."""
    return TrainSettings(**{**TRAINING, "public_text": public, **changes})

"""Secrets left in a small run that is put together by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redactory.evaluation.recall import count_unmasked_secrets
from redactory.foundation.errors import CheckFailed
from redactory.redaction.folder import RunFolder, format_part_name
from redactory.redaction.shards import EXAMPLES, PRIVATE, PUBLIC, SPANS, VAULT, write_part

DOCUMENTS = {
    "d0": "SYS: Hi.\nUSR: I am Ann Lee of 1 Elm St. Ok bob.\nUSR: 555-1234",
    "d1": "USR: Ok bob.\nUSR: broken 77 text\nUSR: Call  Zoe  Ray now",
    "d2": "a rejected row with 99",
}
# example_id, doc_id, prefix, text, suffix, decision, dup_of, strict spans
POINT_ROWS: list[tuple[int, str, str, str, str, str, int | None, list[tuple[int, int]]]] = [
    (0, "d0", "SYS: ", "Hi.", "\n", "public", None, []),
    (1, "d0", "USR: ", "I am Ann Lee of 1 Elm St.", " ", "private", None, [(5, 12), (16, 17)]),
    (2, "d0", "", "Ok bob.", "\n", "public", None, []),
    (3, "d0", "USR: ", "555-1234", "", "private", None, [(0, 8)]),
    (4, "d1", "USR: ", "Ok bob.", "\n", "duplicate", 2, []),
    (5, "d1", "USR: ", "broken 77 text", "\n", "quarantined", None, []),
    (6, "d1", "USR: ", "Call  Zoe  Ray now", "", "private", None, [(6, 9), (11, 14)]),
]


def _labelled(doc_id: str, *secrets: tuple[str, str]) -> dict[str, Any]:
    text = DOCUMENTS[doc_id]
    spans = [
        {"start": text.index(value), "end": text.index(value) + len(value), "label": label, "value": value}
        for label, value in secrets
    ]
    return {"id": doc_id, "text": text, "spans": spans}


ROWS = [
    _labelled("d0", ("PERSON", "Ann Lee"), ("ADDRESS", "1 Elm St"), ("PERSON", "bob"), ("PHONE", "555-1234")),
    _labelled("d1", ("PERSON", "bob"), ("ID", "77"), ("PERSON", "Zoe  Ray")),
    _labelled("d2", ("ID", "99")),
]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path)
    shards: dict[str, list[dict[str, Any]]] = {"public": [], "private": []}
    vault, points, spans = [], [], []
    for example_id, doc_id, prefix, text, suffix, decision, dup_of, strict in POINT_ROWS:
        released = f"released-{example_id}"
        if decision in shards:
            shards[decision].append({"example_id": released, "user": "u", "text": text, "reasons": []})
        if decision != "quarantined":
            place = {"doc_id": doc_id, "user_id": "u", "speaker": "", "prefix": prefix, "suffix": suffix}
            vault.append({"example_id": example_id, "text": text, **place})
        keyed = {"released_id": released, "document": "k", "user": "u", "split": decision, "reasons": []}
        points.append({"example_id": example_id, "decision": decision, "dup_of": dup_of, **keyed})
        for start, end in strict:
            spans.append({"example_id": example_id, "start": start, "end": end, "label": "X", "policy": "strict"})
        whole = {"start": 0, "end": len(text), "label": "X", "policy": "conservative"}
        spans.append({"example_id": example_id, **whole})
    for folder, rows, schema in (
        (run.public, shards["public"], PUBLIC),
        (run.private, shards["private"], PRIVATE),
        (run.vault, vault, VAULT),
        (run.examples, points, EXAMPLES),
        (run.spans, spans, SPANS),
    ):
        write_part(folder / format_part_name(0), pa.Table.from_pylist(rows, schema=schema))
    return run


def test_every_secret_is_counted_where_it_stands(run: RunFolder) -> None:
    assert count_unmasked_secrets(run, ROWS) == {
        "documents": 3,
        "secrets": 8,
        "left_public": 2,  # bob, and bob again in a duplicate of a public point
        "left_private": 1,  # of the address only the house number is covered
        "withheld": 2,  # in a quarantined point, in a rejected row
        "labels": {
            "ADDRESS": {"secrets": 1, "left_public": 0, "left_private": 1, "withheld": 0},
            "ID": {"secrets": 2, "left_public": 0, "left_private": 0, "withheld": 2},
            "PERSON": {"secrets": 4, "left_public": 2, "left_private": 0, "withheld": 0},
            "PHONE": {"secrets": 1, "left_public": 0, "left_private": 0, "withheld": 0},
        },
    }


def test_a_secret_across_two_points_counts_with_the_part_that_went_public(run: RunFolder) -> None:
    text = DOCUMENTS["d0"]
    across = {"start": text.index("Ann Lee"), "end": text.index(" bob") + 2, "label": "ADDRESS"}
    row = {"id": "d0", "text": text, "spans": [across]}
    counts = count_unmasked_secrets(run, [row])
    assert (counts["left_public"], counts["left_private"], counts["secrets"]) == (1, 1, 1)


def test_a_text_that_is_not_the_vaults_is_refused_without_quoting_it(run: RunFolder) -> None:
    row = {"id": "d0", "text": DOCUMENTS["d0"].replace("555", "556"), "spans": []}
    with pytest.raises(CheckFailed, match="document d0") as error:
        count_unmasked_secrets(run, [row])
    assert "556" not in str(error.value)

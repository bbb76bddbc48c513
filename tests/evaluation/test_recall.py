"""Misses and their bounds, against the figures of the guarantees page and against scipy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from redactory.evaluation.recall import count_unmasked_secrets, measure_misses
from redactory.foundation.errors import CheckFailed
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper
from redactory.redaction.folder import RunFolder, format_part_name
from redactory.redaction.shards import EXAMPLES, PRIVATE, PUBLIC, SPANS, VAULT, write_part

RATES = ("gamma", "delta_2")


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 50_000), share=st.floats(0, 1), confidence=st.sampled_from([0.9, 0.95, 0.99, 0.999]))
def test_bounds_are_the_quantiles_of_beta(n: int, share: float, confidence: float) -> None:
    misses = round(share * n)
    upper = 1.0 if misses == n else beta.ppf(confidence, misses + 1, n - misses)
    lower = 0.0 if misses == 0 else beta.ppf(1 - confidence, misses, n - misses + 1)
    assert clopper_pearson_upper(misses, n, confidence) == pytest.approx(upper, rel=1e-6)
    assert clopper_pearson_lower(misses, n, confidence) == pytest.approx(lower, rel=1e-6, abs=1e-12)


def test_no_labels_promise_nothing() -> None:
    assert (clopper_pearson_lower(0, 0), clopper_pearson_upper(0, 0)) == (0.0, 1.0)
    empty = measure_misses(_fate, [], [])
    assert (empty["n"], empty["gamma"]["rate"], empty["delta_2"]["upper"]) == (0, None, 1.0)
    with pytest.raises(ValueError, match="misses"):
        clopper_pearson_upper(3, 2)


def _fate(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A toy F: π masks digits and capitalised words, but a title before a name hides the name from it."""
    decisions = []
    for text in texts:
        if "\0" in text:
            decisions.append(("quarantined", text))
            continue
        redacted = re.sub(r"(?<!Dr )\b[A-Z][a-z]+\b|\d+", "<MASK>", text)
        decisions.append(("private" if "<MASK>" in redacted or "Dr " in text else "public", redacted))
    return decisions


def test_each_kind_of_miss() -> None:
    cases = [
        ("call Ann", 5, 8, "PERSON", 0, 0),  # caught
        ("call ann", 5, 8, "PERSON", 1, 1),  # missed by both
        ("ask Dr Lee", 7, 10, "PERSON", 1, 0),  # missed by π, the point is private all the same
        ("id 12a", 3, 6, "ID", 1, 0),  # a partial catch is a miss
        ("ref \0 9", 6, 7, "ID", 0, 0),  # quarantined with and without it, and masked alike below
    ]
    texts = [case[0] for case in cases]
    spans = [[{"start": start, "end": end, "label": label}] for _, start, end, label, _, _ in cases]
    result = measure_misses(_fate, texts, spans)
    # the quarantined text differs from its masked twin, for this F quotes what it quarantines
    assert result["gamma"]["misses"] == sum(case[4] for case in cases) + 1
    assert result["delta_2"]["misses"] == sum(case[5] for case in cases)
    assert result["labels"]["PERSON"]["n"] == 3
    assert result["labels"]["PERSON"]["delta_2"]["misses"] == 1
    assert result["labels"]["ID"]["gamma"] == {"misses": 2, "rate": 1.0, "upper": 1.0}
    assert result["highest_gamma"] == {"label": "ID", "upper": 1.0}
    assert result["joint_confidence"] == pytest.approx(0.9)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.9999])
def test_every_bound_holds_at_the_confidence_that_is_asked_for(confidence: float) -> None:
    texts = ["call Ann", "call ann", "ask Dr Lee", "ask Dr Who", "id 12", "id 7", "id x"]
    spans = [[{"start": text.rindex(" ") + 1, "end": len(text), "label": text[:2]}] for text in texts]
    result = measure_misses(_fate, texts, spans, confidence=confidence)
    strata = [result, *result["labels"].values()]
    strata += [one for of_kind in result["strata"].values() for one in of_kind.values()]
    bounds = [(one[rate]["misses"], one["n"], one[rate]["upper"]) for one in strata for rate in RATES]
    assert {(4, 7), (2, 7), (0, 2), (1, 3)} <= {(misses, n) for misses, n, _ in bounds}
    for misses, n, upper in bounds:
        exact = 1.0 if misses == n else beta.ppf(confidence, misses + 1, n - misses)
        assert upper == pytest.approx(exact, rel=1e-9), (misses, n)
    assert result["confidence"] == confidence
    assert result["joint_confidence"] == pytest.approx(max(0.0, 2 * confidence - 1))
    assert result["highest_gamma"]["upper"] == max(one["gamma"]["upper"] for one in result["labels"].values())


def test_each_secret_of_a_text_is_taken_out_alone() -> None:
    calls: list[list[str]] = []

    def remember(texts: Sequence[str]) -> list[tuple[str, str]]:
        calls.append(list(texts))
        return _fate(texts)

    text = "Ann met bob"
    spans = [[{"start": 0, "end": 3, "label": "PERSON"}, {"start": 8, "end": 11, "label": "PERSON"}]]
    result = measure_misses(remember, [text], spans)
    assert calls == [[text], ["<MASK> met bob", "Ann met <MASK>"]]
    assert (result["gamma"]["misses"], result["delta_2"]["misses"]) == (1, 0)


def test_a_span_outside_its_text_is_refused_without_quoting_it() -> None:
    with pytest.raises(ValueError, match="is outside a text of") as error:
        measure_misses(_fate, ["secret"], [[{"start": 2, "end": 9, "label": "X"}]])
    assert "secret" not in str(error.value)


# Secrets left in a small run that is put together by hand.


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

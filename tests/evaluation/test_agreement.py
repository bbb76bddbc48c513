"""Agreement of two annotators: kappa against scikit-learn, F1 by hand, rows that differ, files that do not match."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

import redactory
from redactory.evaluation.agreement import compare_labels
from redactory.evaluation.labelled import to_label_studio_task
from redactory.foundation.errors import InputError
from tests.pipelines.support import invoke_command, write_rows

TEXT = "Zanele met Bob on 5 May."
LABELS = ("PERSON", "DATE", "A+B")
_SPANS = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12), st.sampled_from(LABELS)), max_size=4)
_ROWS = st.lists(st.tuples(st.text("ab ,", min_size=12, max_size=12), _SPANS, _SPANS), min_size=1, max_size=5)


def make_row(text: str, *spans: tuple[int, int, str]) -> dict[str, Any]:
    named = [{"start": a, "end": b, "label": label} for a, b, label in spans if a < b]
    return {"text": text, "spans": named}


def compare_numbered(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison of rows that have the same numbers in both lists."""
    return compare_labels(dict(enumerate(first, 1)), dict(enumerate(second, 1)))


def list_token_labels(row: dict[str, Any], label: str | None) -> list[str]:
    """The category of each token, found letter by letter: what its letters are marked with, joined."""
    letters: list[set[str]] = [set() for _ in row["text"]]
    for span in row["spans"]:
        body = row["text"][span["start"] : span["end"]]
        for i in range(span["start"], span["end"]):
            # white space at the ends of a span is not part of it
            if body.strip() and len(body) - len(body.lstrip()) <= i - span["start"] < len(body.rstrip()):
                letters[i].add(span["label"])
    words = [match.span() for match in re.finditer(r"[ab]+|,", row["text"])]
    categories = [sorted(set().union(*letters[a:b])) for a, b in words]
    return [json.dumps(c if label is None else [n for n in c if n == label]) for c in categories]


@given(_ROWS)
def test_kappa_is_that_of_scikit_learn(rows: list[tuple[str, Any, Any]]) -> None:
    first = [make_row(text, *spans) for text, spans, _ in rows]
    second = [make_row(text, *spans) for text, _, spans in rows]
    result = compare_numbered(first, second)
    for label in (None, *result["by_label"]):
        one, other = ([c for row in side for c in list_token_labels(row, label)] for side in (first, second))
        if label is None:
            assert result["tokens"] == len(one)
        value = (result if label is None else result["by_label"][label])["kappa"]["value"]
        if len({*one, *other}) < 2:
            assert value is None
        else:
            assert value == pytest.approx(cohen_kappa_score(one, other))


@given(_ROWS)
@settings(max_examples=30)
def test_agreement_is_symmetric_and_full_with_oneself(rows: list[tuple[str, Any, Any]]) -> None:
    first = [make_row(text, *spans) for text, spans, _ in rows]
    second = [make_row(text, *spans) for text, _, spans in rows]
    one, other = compare_numbered(first, second), compare_numbered(second, first)
    for metric in ("exact", "overlap", "kappa"):
        assert one[metric]["value"] == pytest.approx(other[metric]["value"])
    assert one["spans"] == other["spans"][::-1]
    assert [row["row"] for row in one["differing_rows"]] == [row["row"] for row in other["differing_rows"]]
    assert (one["exact"]["value"] in (None, 1.0)) == (not one["differing_rows"])
    same = compare_numbered(first, first)
    assert {same[metric]["value"] for metric in ("exact", "overlap", "kappa")} <= {None, 1.0}
    assert same["differing_rows"] == []


def test_the_metrics_of_one_row_by_hand() -> None:
    first = [make_row(TEXT, (0, 6, "PERSON"), (11, 14, "PERSON"), (17, 24, "DATE"))]
    second = [make_row(TEXT, (0, 3, "PERSON"), (11, 14, "ORG"), (18, 23, "DATE"))]
    result = compare_numbered(first, second)
    # Zanele overlaps; Bob has two labels; the dates differ by the blank, which does not count, and by the full stop
    assert (result["spans"], result["tokens"]) == ([3, 3], 7)
    assert (result["exact"]["value"], result["overlap"]["value"]) == (0, pytest.approx(4 / 6))
    # tokens P - P - D D D against P - O - D D -: five of seven agree, by chance 2·1 + 0·1 + 2·3 + 3·2 of 49
    assert result["kappa"]["value"] == pytest.approx((5 / 7 - 14 / 49) / (1 - 14 / 49))
    assert result["by_label"]["ORG"]["spans"] == [0, 1]
    assert result["differing_rows"] == [
        {"row": 1, "first": {"PERSON": 2, "DATE": 1}, "second": {"PERSON": 1, "ORG": 1, "DATE": 1}}
    ]


def test_the_command_reads_label_studio_and_names_rows_without_their_text(tmp_path: Path) -> None:
    rows = [make_row(TEXT, (0, 6, "PERSON")), make_row("no secret"), make_row("Qwertz", (0, 6, "PERSON"))]
    first = write_rows(tmp_path / "first.jsonl", rows)
    tasks = [to_label_studio_task(row, "me") for row in (rows[0], rows[1], make_row("Qwertz", (0, 6, "ORG")))]
    for task in tasks:
        task["annotations"] = task.pop("predictions")
    second = tmp_path / "second.json"
    second.write_text(json.dumps(tasks), encoding="utf-8")
    assert redactory.label_agreement(first, second)["differing_rows"] == [
        {"row": 3, "first": {"PERSON": 1}, "second": {"ORG": 1}}
    ]
    page = invoke_command("label", "agreement", first, second).stdout
    assert "Rows that differ: 1" in page
    assert re.search(r"3 +PERSON 1 +ORG 1", page)
    # two spans each, one of them equal
    assert "50.0%" in page
    shown = page + invoke_command("label", "agreement", first, second, "--json").stdout
    assert not any(word in shown for word in ("Zanele", "Qwertz", "secret"))


@pytest.mark.parametrize(
    ("texts", "rows", "only"),
    [
        (["a b", "c d"], 1, [2, 1]),
        (["a b"], 1, [2, 0]),
        # another order, and one text twice in both
        (["z", "x y", "a b", "x y"], 3, [0, 1]),
    ],
)
def test_rows_in_one_file_alone_are_counted_and_not_compared(
    tmp_path: Path, texts: list[str], rows: int, only: list[int]
) -> None:
    first = write_rows(tmp_path / "first.jsonl", [make_row(text, (0, 1, "A")) for text in ("x y", "a b", "x y")])
    second = write_rows(tmp_path / "second.jsonl", [make_row(text, (0, 1, "A")) for text in texts])
    result = redactory.label_agreement(first, second)
    assert (result["rows"], result["only"]) == (rows, only)
    assert (result["exact"]["value"], result["differing_rows"]) == (1, [])
    page = invoke_command("label", "agreement", first, second).stdout
    assert f"{only[0]} rows only in the first, {only[1]} only in the second" in page


def test_a_row_that_differs_has_its_number_in_the_first_file(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first.jsonl", [make_row("a b"), make_row("c d", (0, 1, "A"))])
    second = write_rows(tmp_path / "second.jsonl", [make_row("c d", (2, 3, "A")), make_row("a b")])
    assert [row["row"] for row in redactory.label_agreement(first, second)["differing_rows"]] == [2]


@pytest.mark.parametrize("texts", [["a  b"], []])
def test_files_without_a_common_text_are_refused(tmp_path: Path, texts: list[str]) -> None:
    first = write_rows(tmp_path / "first.jsonl", [make_row("a b"), make_row("x y")])
    second = write_rows(tmp_path / "second.jsonl", [make_row(text) for text in texts])
    with pytest.raises(InputError, match=r"^second.jsonl: no row has a text of first.jsonl; give files") as error:
        redactory.label_agreement(first, second)
    assert "a  b" not in str(error.value)

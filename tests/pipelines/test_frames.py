"""Frames of pandas: a side of a run, and a frame with its texts masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest

import redactory
from redactory.pipelines.curation.policy import Policy
from redactory.redaction import MASK
from tests.pipelines.support import DigitDetector, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    rows = write_rows(folder / "rows.jsonl", [{"text": "call 55", "user_id": "u"}, {"text": "hello"}])
    redactory.curate(rows, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def test_each_side_of_a_run_is_a_frame(run: Path) -> None:
    public, private = redactory.read(run), redactory.read(run, split="private")
    assert list(public.columns) == ["example_id", "text"]
    assert list(public["text"]) == ["hello"]
    assert list(private["text"]) == [f"call {MASK}"]
    assert list(private["reasons"][0]) == ["digits:NUMBER"]
    pandas.testing.assert_frame_equal(public, pandas.read_parquet(run / "public"))


def test_what_is_no_side_or_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(redactory.ConfigurationError, match="public and private"):
        redactory.read(run, split="vault")  # type: ignore[arg-type]
    with pytest.raises(redactory.RunStateError):
        redactory.read(tmp_path)


@pytest.fixture
def policy() -> Policy:
    return Policy.load({"segment": {"mode": "line"}}, detector=DigitDetector())


def test_the_named_columns_of_a_frame_are_masked_and_nothing_else(policy: Policy) -> None:
    frame = pandas.DataFrame(
        {"id": [1, 2, 3], "text": ["call 55", None, "hello"], "note": ["44", "call 55", ""]}, index=[7, 7, 9]
    )
    before = frame.copy(deep=True)
    masked = redactory.redact_frame(frame, ["text", "note"], policy)
    pandas.testing.assert_frame_equal(frame, before)
    assert masked["text"].dropna().tolist() == [f"call {MASK}", "hello"]
    assert masked["note"].tolist() == [MASK, f"call {MASK}", ""]
    assert (masked["id"].tolist(), masked.index.tolist()) == ([1, 2, 3], [7, 7, 9])


NAMES = [
    ("text", "text"),
    (1, 1),
    (1, [1]),
    (0.5, [0.5]),
    (None, [None]),
    (b"text", b"text"),
    (("a", "text"), ("a", "text")),
    (("a", "text"), [("a", "text")]),
    ("text", pandas.Index(["text"])),
    ("text", ("text", "text")),
    (pandas.Timestamp("2020-01-01"), pandas.Timestamp("2020-01-01")),
]


@pytest.mark.parametrize(("name", "columns"), NAMES)
def test_a_column_may_have_any_name(name: Any, columns: Any, policy: Policy) -> None:
    frame = pandas.DataFrame([["call 55", "call 55", "call 55"]])
    frame.columns = pandas.Index(["same", name, "same"], dtype=object, tupleize_cols=False)
    masked = redactory.redact_frame(frame, columns, policy)
    assert masked.to_numpy().tolist() == [["call 55", f"call {MASK}", "call 55"]]
    assert list(masked.columns) == list(frame.columns)


def test_a_column_of_several_levels_is_named_by_all_of_them(policy: Policy) -> None:
    frame = pandas.DataFrame([["call 55"] * 2], columns=pandas.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    masked = redactory.redact_frame(frame, ("a", "y"), policy)
    assert masked.to_numpy().tolist() == [["call 55", f"call {MASK}"]]
    with pytest.raises(
        redactory.ConfigurationError, match=r"'a' must occur .* valid columns: \('a', 'x'\) and \('a', 'y'\)"
    ):
        redactory.redact_frame(frame, ["a"], policy)


TYPES = [
    object,
    "str",
    "string[python]",
    "string[pyarrow]",
    pandas.ArrowDtype(pyarrow.string()),
    pandas.ArrowDtype(pyarrow.large_string()),
    pandas.ArrowDtype(pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
]


@pytest.mark.parametrize("kind", TYPES)
def test_a_column_keeps_its_type_and_its_missing_values(kind: Any, policy: Policy) -> None:
    index = pandas.MultiIndex.from_tuples([(7, "x"), (7, "x"), (8, "y"), (9, "z")])
    column = pandas.Series(["call 55", None, "hello", "call 66"], index, kind)
    masked = redactory.redact_frame(column.to_frame("text"), config=policy)["text"]
    expected = pandas.Series([f"call {MASK}", None, "hello", f"call {MASK}"], index, kind, name="text")
    pandas.testing.assert_series_equal(masked, expected)


def test_categories_are_masked_and_one_that_no_row_has_is_left_out(policy: Policy) -> None:
    """The frame would hand it on as it was written."""
    categories = pandas.CategoricalDtype(["secret 9", "z", "call 66", "call 55"], ordered=True)
    frame = pandas.Series(["call 55", None, "z", "call 66"], dtype=categories).to_frame("text")
    masked = redactory.redact_frame(frame, "text", policy)["text"]
    assert masked.dropna().tolist() == [f"call {MASK}", "z", f"call {MASK}"]
    assert masked.isna().tolist() == [False, True, False, False]
    assert masked.dtype == pandas.CategoricalDtype(["z", f"call {MASK}"], ordered=True)


@pytest.mark.parametrize("empty", [pandas.DataFrame({"text": []}), pandas.DataFrame({"text": [None, float("nan")]})])
def test_a_frame_without_a_text_stays_as_it_is(empty: pandas.DataFrame, policy: Policy) -> None:
    pandas.testing.assert_frame_equal(redactory.redact_frame(empty, "text", policy), empty)


@pytest.mark.parametrize(
    ("frame", "columns", "says"),
    [
        (pandas.Series(["secret 1"]), ["text"], r"expected a pandas DataFrame, got Series; pass .*to_frame"),
        ({"text": ["secret 1"]}, ["text"], "expected a pandas DataFrame, got dict"),
        (pandas.DataFrame(), ["text"], "'text' must occur exactly once in the frame; the frame has none"),
        (pandas.DataFrame({1: ["secret 1"]}), ["1"], "'1' must occur .* valid columns: 1"),
        (pandas.DataFrame({1: ["secret 1"]}), [], "name at least one column"),
        (pandas.DataFrame({1: [2]}), 1, "column 1, row 0: expected text"),
        (pandas.DataFrame({1: [["secret 1"]]}), 1, "column 1, row 0: expected text"),
        (pandas.DataFrame({1: pandas.Categorical([2])}), 1, "column 1, row 0: expected text"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), ["text"], "'text' must occur exactly once"),
        (pandas.DataFrame({"text": ["secret 1", 3]}), ["text"], "column 'text', row 1: expected text"),
        (pandas.DataFrame({"text": ["secret 1", "broken"]}), ["text"], "engine_error"),
    ],
)
def test_what_is_wrong_with_a_frame_is_named(frame: Any, columns: Any, says: str, policy: Policy) -> None:
    with pytest.raises((redactory.ConfigurationError, redactory.InputError), match=says) as refused:
        redactory.redact_frame(frame, columns, policy)
    assert "secret" not in str(refused.value)

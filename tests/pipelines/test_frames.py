"""Frames of pandas: a side of a run, and a frame with its texts masked."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

import redactory
from redactory.pipelines.policy import Policy
from redactory.redaction import MASK
from tests.pipelines.support import DigitDetector, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    rows = write_rows(folder / "rows.jsonl", [{"text": "call 55", "user_id": "u"}, {"text": "hello"}])
    redactory.curate(rows, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def test_each_side_of_a_run_is_a_frame(run: Path) -> None:
    public, private = redactory.read(run), redactory.read(run, side="private")
    assert list(public.columns) == ["point_id", "text"]
    assert list(public["text"]) == ["hello"]
    assert list(private["text"]) == [f"call {MASK}"]
    assert list(private["reasons"][0]) == ["digits:NUMBER"]
    pandas.testing.assert_frame_equal(public, pandas.read_parquet(run / "public"))


def test_what_is_no_side_or_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(redactory.ConfigurationError, match="public and private"):
        redactory.read(run, side="vault")  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (pandas.DataFrame({"body": ["a"]}), redactory.ConfigurationError),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), redactory.ConfigurationError),
        (pandas.DataFrame({"text": ["secret 1", 3]}), redactory.InputError),
        (pandas.DataFrame({"text": ["secret 1", "broken"]}), redactory.InputError),
    ],
)
def test_what_cannot_be_masked_is_refused_without_a_word_of_it(
    frame: pandas.DataFrame, error: type[Exception], policy: Policy
) -> None:
    with pytest.raises(error) as refused:
        redactory.redact_frame(frame, ["text"], policy)
    assert "secret" not in str(refused.value)

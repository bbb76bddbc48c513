"""Hostile input at full size and in numbers; run by ``make soak``."""

from __future__ import annotations

import bz2
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redactory.detectors import Detector, DetectSettings
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction import MASK, RunFolder, read_batches, route_example
from tests.pipelines.faults import curated
from tests.pipelines.test_hostile import JUNK, NASTY, ROWS, TEXTS, nothing_is_lost_or_shown

PIECES = [
    *("a@", "1-", ".", "(", "http://", "www.", "+1 (212) 555-", "A1", "1", "1 ", " ", "-", "/", "0x"),
    *("::", "a.", "@", "XX00 ", "aA", "a@a.", "1:", "1,", "12/", "ab12-", "€1", "Mr. ", "P.O. Box "),
    *("123 Main St ", "No. ", "#", "GB82 WEST ", "fe80::", "\\", '"', "\u200b", "\u202e", "Aa ", "1a"),
    *("_", "=", "%20", "+", "(1", "1)", "\n", "\n1", "1\t", "Jan 1 ", "1999 ", "19-", "apt ", "🙂"),
    *("é", "ID: ", "4111 1111 ", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx."),
]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
}
BOMBS = [("jsonl", b'{"text": "first"}\n{"text": "', b'"}\n{"text": "last"}\n'), ("csv", b"text\nfirst\n", b"\nlast\n")]


def told(what: str, rows: Path, folder: Path, **input_: Any) -> RunFolder:
    """A run of ``rows``, whose seconds and highest memory are printed."""
    begun, run = time.monotonic(), RunFolder(folder)
    assert curated(rows, run.root, config={"input": {"path": str(rows), **input_}}) == 0
    stages = json.loads(run.manifest.read_bytes())["stages"]
    peak = max(stage["peak_mb"] for stage in stages)
    print(f"\n{what}: {time.monotonic() - begun:.1f} s, {peak:.0f} MiB")
    return run


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, JUNK)
def test_a_run_of_anything_loses_nothing_and_shows_nothing(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[tuple[str, Any]], junk: list[bytes]
) -> None:
    nothing_is_lost_or_shown(tmp_path_factory.mktemp("run"), given_rows, junk)


def _texts_of(folder: Path) -> list[str]:
    return [text for batch in read_batches(folder, ["text"]) for text in batch["text"].to_pylist()]


def test_a_million_hits_in_one_text(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "1a" * 1_000_000}) + "\n", encoding="utf-8")
    run = told("a million hits", tmp_path / "rows.jsonl", tmp_path / "run", max_chars=3_000_000)
    assert _texts_of(run.private) == [f"{MASK}a" * 1_000_000]
    assert json.loads(run.manifest.read_bytes())["masks"] == 1_000_000


def test_a_line_of_a_hundred_megabytes_that_is_allowed(tmp_path: Path) -> None:
    text = "word " * 20_000_000 + "call 12"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    sizes = {"max_chars": 1 << 28, "max_row_bytes": 1 << 28}
    run = told("a text of 100 MB", tmp_path / "rows.jsonl", tmp_path / "run", **sizes)
    assert _texts_of(run.private) == [text[:-2] + MASK]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
@pytest.mark.parametrize(("kind", "head", "tail"), BOMBS)
def test_a_gigabyte_in_one_row(tmp_path: Path, ending: str, kind: str, head: bytes, tail: bytes) -> None:
    """Whatever it is packed in, the row is passed over, and the ones before and after it are read."""
    path = tmp_path / f"bomb.{kind}{ending}"
    pack = PACKERS[ending]
    with path.open("wb") as file:
        file.write(pack(head))
        block = pack(b"x" * (16 << 20))
        for _ in range(64):
            file.write(block)
        file.write(pack(tail))
    what = f"1 GiB in a row of {path.name}, {path.stat().st_size / 1e6:.1f} MB"
    run = told(what, path, tmp_path / "run", format=kind, max_expansion=1e6)
    path.unlink()
    manifest = json.loads(run.manifest.read_bytes())
    assert manifest["rejected"] == {"row_too_long": 1}
    assert manifest["counts"]["documents"] == 2


@pytest.mark.parametrize("mode", ["sentence", "line", "turn", "document"])
@pytest.mark.parametrize(
    "piece", ["?!", '?"', "\n", "a\n", "USR: \n", "1. ", "\u200b.", "Mr. ", "e\u0301.", "…", "a?b!"]
)
def test_a_document_of_one_sign_as_long_as_is_allowed(mode: str, piece: str) -> None:
    text = "a" + piece * (999_999 // len(piece))
    segments = make_segmenter(SegmentSettings.model_validate({"mode": mode}))(text)
    assert "".join(s.prefix + s.text + s.suffix for s in segments) == text


@pytest.fixture(scope="module")
def detector() -> Detector:
    """The engines of a configuration that says nothing."""
    return Detector(DetectSettings())


@settings(max_examples=300, deadline=None)
@given(TEXTS | st.sampled_from(NASTY).map(lambda piece: piece * 300))
def test_the_engines_read_anything(detector: Detector, text: str) -> None:
    (found,) = detector.detect([text])
    assert found.failure is None
    decision = route_example(text, found)
    assert decision.split == "private" or (decision.text == text and MASK not in text)


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_keeps_the_engines_for_ever(detector: Detector, piece: str) -> None:
    for end in ("", "!", "x"):
        text = piece * (4_000 // len(piece)) + end
        (found,) = detector.detect([text])
        assert found.failure in (None, "pattern_timeout")

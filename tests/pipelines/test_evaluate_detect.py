"""``evaluate detect``: spans mapped into points, the public function, the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors.settings import write_fit_record
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter
from redactory.pipelines.measure import evaluate_detection as module
from redactory.pipelines.measure.evaluate_detection import evaluate_detect
from tests.pipelines.support import BlindDetector, DigitDetector, invoke_command, write_rows

DIALOGUE = "SYS: Your name?\nUSR: Ann Lee, 555-1234.\nBye"


def _span(text: str, secret: str, label: str = "NAME") -> dict[str, Any]:
    start = text.index(secret)
    return {"start": start, "end": start + len(secret), "label": label}


BOUNDS = st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=4)


@given(st.text("ab \n", min_size=1, max_size=30), BOUNDS, st.sampled_from(["line", "turn", "document"]))
def test_spans_are_divided_among_examples(text: str, bounds: list[tuple[int, int]], mode: str) -> None:
    spans = [{"start": a, "end": b, "label": str(i)} for i, (a, b) in enumerate(bounds) if a < b <= len(text)]
    cut = make_segmenter(SegmentSettings.model_validate({"mode": mode}))
    pieces: dict[str, str] = {str(i): "" for i in range(len(bounds))}
    for point, inside in split_labelled_row({"text": text, "spans": spans}, cut):
        for span in inside:
            assert 0 <= span["start"] < span["end"] <= len(point)
            pieces[span["label"]] += point[span["start"] : span["end"]]
    for span in spans:
        # between points stands white space only
        wanted = text[span["start"] : span["end"]]
        assert "".join(pieces[span["label"]].split()) == "".join(wanted.split())


def test_a_span_across_two_points_counts_in_each_and_one_in_a_speaker_label_in_none(tmp_path: Path) -> None:
    whole = {"start": DIALOGUE.index("Lee"), "end": len(DIALOGUE), "label": "TAIL"}
    row = {"text": DIALOGUE, "template_id": 7, "spans": [whole, _span(DIALOGUE, "USR")]}
    cut = make_segmenter(SegmentSettings.model_validate({"mode": "turn"}))
    points = [
        (text, [(text[s["start"] : s["end"]], s["template_id"]) for s in inside])
        for text, inside in split_labelled_row(row, cut)
    ]
    assert points == [("Your name?", []), ("Ann Lee, 555-1234.", [("Lee, 555-1234.", 7)]), ("Bye", [("Bye", 7)])]
    path = write_rows(tmp_path / "rows.jsonl", [row])
    given_config = {"input": str(path), "segment": {"mode": "turn"}}
    result = evaluate_detect(path, given_config, detector=DigitDetector())
    assert (result["spans"], result["spans_outside_examples"], result["secrets"]) == (2, 1, 2)
    assert list(result["strata"]["template"]) == ["7"]


def test_the_public_function(tmp_path: Path) -> None:
    rows = [{"text": DIALOGUE, "spans": [_span(DIALOGUE, "Ann Lee"), _span(DIALOGUE, "555-1234", "PHONE")]}] * 3
    path = write_rows(tmp_path / "rows.jsonl", rows)
    result = evaluate_detect(path, {"input": str(path), "segment": {"mode": "turn"}}, detector=DigitDetector())
    assert (result["rows"], result["examples"], result["distinct_examples"], result["segment"]) == (3, 9, 3, "turn")
    labels = result["strict"]["by_label"]
    covered = {label: scores["cover_recall"]["value"] for label, scores in labels.items() if scores["n"]}
    assert covered == {"NAME": 0, "PHONE": 1}
    assert result["miss_rate"]["misses"] == 0
    assert result["public_share"]["of_clean"]["value"] == 1
    assert {len(digest) for digest in result["policies"].values()} == {64}
    by_sentence = evaluate_detect(path, detector=DigitDetector())
    assert by_sentence["segment"] == "sentence"


@pytest.fixture
def fitted(tmp_path: Path) -> tuple[Path, Path]:
    """Labelled rows, and a configuration whose policy was fitted on them."""
    path = write_rows(tmp_path / "seen.jsonl", [{"text": f"row {i}", "spans": []} for i in range(3)])
    record = {
        "rows": 3, "secrets": 3, "unit": "row", "misses": 0, "miss_rate": 0.1, "confidence": 0.95,
        "segment": "sentence", "policies": {}, "date": "2025-01-01",
    }  # fmt: skip
    texts = [row["text"] for row in read_labelled_rows(path)]
    write_fit_record(tmp_path / "seen.fitted.json", record, texts, load_digest_key())
    config = tmp_path / "fitted.yaml"
    config.write_text("detect: {conservative: {fitted: seen.fitted.json}}")
    return path, config


def test_nothing_is_measured_on_fitted_rows(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    seen, config = fitted
    with pytest.raises(ConfigurationError, match="3 of these 3 texts"):
        evaluate_detect(seen, config, detector=DigitDetector())
    partly = write_rows(tmp_path / "partly.jsonl", [{"text": t, "spans": []} for t in ("row 1", "new")])
    with pytest.raises(ConfigurationError, match="1 of these 2 texts"):
        evaluate_detect(partly, config, detector=DigitDetector())
    unseen = write_rows(tmp_path / "unseen.jsonl", [{"text": "new", "spans": []}])
    assert evaluate_detect(unseen, config, detector=DigitDetector())["examples"] == 1


def test_the_page_shows_the_public_share_and_miss_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"text": DIALOGUE, "spans": [_span(DIALOGUE, "Ann Lee")]}])
    monkeypatch.setattr(module, "Detector", lambda settings: BlindDetector())
    done = invoke_command("evaluate", "detection", "--labelled", path)
    assert done.exit_code == 0
    for shown in ("missed by strict", "missed by both", "public, of all examples", "of clean examples", "cover recall"):
        assert shown in done.stdout
    assert "Ann" not in done.stdout


def test_the_page_shows_each_label_with_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": DIALOGUE, "spans": [_span(DIALOGUE, "Ann Lee"), _span(DIALOGUE, "555-1234", "PHONE")]}] * 66
    path = write_rows(tmp_path / "rows.jsonl", [*rows, {"text": "Ask for 12.", "spans": []}])
    monkeypatch.setattr(module, "Detector", lambda settings: DigitDetector())
    shown = invoke_command("evaluate", "detection", "--labelled", path).stdout
    lines = {line.split("  ")[0]: line for line in shown[shown.index("By label") :].splitlines()}
    (label,) = {span.label for detection in DigitDetector().detect(["7"]) for span in detection.strict}
    cells = {name: re.split("  +", line)[1:] for name, line in lines.items()}
    none_missed = "0 of 66, up to 4.44%"
    assert cells["NAME"] == ["66", "0.0% (0.0% to 5.5%)", "66 of 66, up to 100%", none_missed, "none"]
    assert cells["PHONE"] == ["66", "100.0% (94.5% to 100.0%)", none_missed, none_missed, "none"]
    assert cells[label][:-1] == ["0", "none", "none", "none"]
    # the mask over 12 in one text is false
    assert "(94.5% to 100.0%)" not in lines[label]
    assert "98.5% (" in lines[label]
    assert "0 of 132, up to 2.25%" in lines["all"]


def test_a_file_without_a_secret_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "Ask for 12.", "spans": []}])
    monkeypatch.setattr(module, "Detector", lambda settings: DigitDetector())
    done = invoke_command("evaluate", "detection", "--labelled", path)
    assert done.exit_code == 0
    assert "0 of 0, up to 100%" in done.stdout

"""Attacks on the shards of real runs: one whose people give themselves away, and one whose do not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.detectors import DetectSettings
from redactory.detectors.settings import PresidioSettings
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.measure.evaluate_detection import choose_independent_engine
from redactory.redaction import RunFolder, is_finished
from tests.pipelines.leaving import Numbers
from tests.pipelines.support import write_rows

PLAIN = ("the", "parcel", "came", "late", "and", "I", "want", "money", "back", "please", "tell", "me", "when")
MAIL = "zelda.quibble@example.com"
BLANK = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}


def _curated(folder: Path, habit: bool, **more: Any) -> Path:
    draw = random.Random(3)
    rows = []
    for number in range(60):
        # letters only: a number would be masked
        own = "quirk" + "".join(chr(97 + int(digit)) for digit in f"{number:02d}") if habit else ""
        said, hidden = (" ".join(draw.choices(PLAIN, k=7)) for _ in range(2))
        rows.append({"id": f"d{number}", "text": f"{said} {own}\n{hidden} {own} it is 55{number:03d}"})
    rows.append({"id": "mail", "text": f"write to {MAIL} soon\nor call 123456"})
    config = {"input": str(write_rows(folder / "rows.jsonl", rows)), "segment": {"mode": "line"}}
    redactory.curate({**config, "detect": BLANK, **more}, output=folder / "run", detector=Numbers())
    return folder / "run"


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _curated(tmp_path_factory.mktemp("leaky"), habit=True)


@pytest.fixture(scope="module")
def attacked(leaky: Path) -> dict[str, Any]:
    return redactory.evaluate_redaction(leaky)


def test_people_with_habits_are_linked_by_document(attacked: dict[str, Any]) -> None:
    found = attacked["linkage"]["document"]
    assert found["private"] == 61
    assert found["share"]["low"] > 0.9
    assert found["chance"]["value"] < 0.05
    assert attacked["linkage"]["user"] is None
    assert "no user wrote more than one document" in attacked["reasons"]["linkage.user"]


def test_people_without_are_not(tmp_path: Path) -> None:
    run = _curated(tmp_path, habit=False, dedup={"report_cross_split": False})
    found = redactory.evaluate_redaction(run, "patterns", sample=1)
    own = found["linkage"]["document"]
    assert own["excess"]["low"] <= 0.0 <= own["excess"]["high"]
    assert own["share"]["value"] < 0.2
    assert found["across"] is None
    assert "dedup.report_cross_split" in found["reasons"]["across"]


def test_another_engine_finds_what_was_left(attacked: dict[str, Any]) -> None:
    residual = attacked["residual"]
    assert residual["engine"] == "patterns"
    assert residual["note"] is None
    assert residual["public"]["labels"].get("EMAIL_ADDRESS") == 1
    assert residual["public"]["held"] >= 1
    assert attacked["across"] is not None


def test_the_result_is_sealed_and_quotes_nothing(leaky: Path, attacked: dict[str, Any]) -> None:
    kept = RunFolder(leaky).redaction
    assert is_finished(kept)
    text = (kept.root / "result.json").read_text(encoding="utf-8")
    assert json.loads(text) == attacked
    for secret in (MAIL, "zelda", "quirk", "parcel", "123456"):
        assert secret not in text
    assert "What the text alone gives away" in RunFolder(leaky).report.read_text(encoding="utf-8")


def test_an_engine_that_masked_is_not_independent() -> None:
    own = DetectSettings()
    # spaCy is not taken unasked: of 5,000 public points of MultiWOZ it called 2,256 suspicious, none rightly
    name, reason = choose_independent_engine(own)
    assert name is None
    assert "patterns and tagger; choose another engine" in reason
    assert choose_independent_engine(own, "spacy")[0] == "spacy"
    assert choose_independent_engine(own, "stanza:models/en")[0] == "stanza:models/en"
    analyzer = DetectSettings(patterns=None, presidio=PresidioSettings(configuration="analyzer.yaml"))
    for settings, engine, message in (
        (own, "patterns", "patterns masked this run"),
        (analyzer, "patterns", "patterns masked this run"),
        (own, "oracle", "one of patterns, tagger, spacy:PIPELINE"),
        (own, "stanza", "stanza:FOLDER"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            choose_independent_engine(settings, engine)

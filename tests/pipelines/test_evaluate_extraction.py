"""Extraction and exposure on a real run: a model of originals writes canaries, one of masked text none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import redactory
from redactory.detectors import Detection, Span
from redactory.evaluation.extraction import collect_vault_secrets
from redactory.evaluation.simulator import simulate_dialogues
from redactory.foundation.errors import ConfigurationError
from redactory.redaction import RunFolder, list_broken_files
from redactory.training import TrainSettings, train_model
from tests.pipelines.support import invoke_command, write_rows

ROWS, CANARIES, COPIES = 12, 3, 40
SETTINGS: dict[str, Any] = {"sampling_rate": 0.2, "min_public_steps": 100, "public_batch_size": 32, "seed": 3}
SETTINGS |= {"learning_rate": 2e-2, "model": {"embedding_size": 24, "hidden_size": 32}, "max_tokens": 48}
SETTINGS |= {"group_sizes": (), "threads": 1}


class Labels:
    """A π that marks every labelled value, wherever it stands alone, and a π_c that marks nothing more."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.labels = {row["text"][s["start"] : s["end"]]: s["label"] for row in rows for s in row["spans"]}
        longest = sorted(self.labels, key=len, reverse=True)
        self.any = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)")

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            found = tuple(Span(*m.span(), self.labels[m[0]], 1.0, "labels") for m in self.any.finditer(text))
            yield Detection(found, found)


@pytest.fixture(scope="module")
def planted() -> dict[str, Any]:
    return simulate_dialogues(ROWS, 4, CANARIES, COPIES).canaries


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, planted: dict[str, Any]) -> RunFolder:
    """A run whose π catches every secret, with a model of the originals and one of the shards."""
    folder = tmp_path_factory.mktemp("extraction")
    canaries = folder / "corpus.jsonl.canaries.json"
    rows = list(simulate_dialogues(ROWS, 4, CANARIES, COPIES).rows)
    corpus = write_rows(folder / "corpus.jsonl", rows)
    canaries.write_text(json.dumps(planted), encoding="utf-8")
    config = {
        "input": str(corpus),
        "segment": {"mode": "turn"},
        "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        "evaluate": {"canaries": str(canaries)},
    }
    redactory.curate(config, output=folder / "run", detector=Labels(rows))
    made = RunFolder(folder / "run")
    for trainer, epochs in (("sgd", 5), ("redact-only", 1)):
        train_model(made, TrainSettings(trainer=trainer, name=trainer, epochs=epochs, **SETTINGS))
    return made


@pytest.mark.slow
def test_secrets_are_the_vault_s_with_how_often_each_was_seen(run: RunFolder, planted: dict[str, Any]) -> None:
    unmasked = {secret.value: secret for secret in collect_vault_secrets(run, [run.vault])}
    masked = {secret.value: secret for secret in collect_vault_secrets(run, [run.public, run.private])}
    for number in planted["inserted"]:
        secret = unmasked[number]
        assert (secret.label, secret.times_seen) == ("CANARY", COPIES)
        assert masked[number].times_seen == 0
        assert masked[number].prefix == "My ID is: "
    assert not {*unmasked} & {*planted["control"]}
    assert len(unmasked) > 20
    assert all(len(value) >= 4 for value in unmasked)


@pytest.mark.slow
def test_only_a_model_of_originals_writes_secrets(run: RunFolder, planted: dict[str, Any]) -> None:
    leaky = redactory.evaluate_extraction(run.root, "sgd", 300, 24, completions=60)
    safe = redactory.evaluate_extraction(run.root, "redact-only", 300, 24, completions=60)
    assert leaky["by_label"]["CANARY"]["secrets_found"] >= CANARIES - 1
    assert leaky["p_value"] < 0.3 < safe["p_value"]
    assert leaky["completion"]["secrets_found"] > leaky["completion"]["controls_found"] == 0
    assert safe["by_label"]["CANARY"]["secrets_found"] == 0
    assert safe["secrets"] == leaky["secrets"]
    assert next(g["secrets"] for g in safe["by_times_seen"] if g["from"] == 0) > 0
    for name in ("sgd", "redact-only"):
        sealed = run.get_model_folder(name).get_result_folder("extraction")
        assert list_broken_files(sealed) == []
        ElementTree.parse(sealed.root / "extraction.svg")
    told = json.dumps([leaky, safe]) + (run.get_model_folder("sgd").root / "extraction" / "extraction.svg").read_text(
        "utf-8"
    )
    for number in planted["inserted"]:
        assert number not in told
    again = redactory.evaluate_extraction(run.root, "sgd", 300, 24, completions=60)
    assert again == leaky
    with pytest.raises(ConfigurationError, match="samples"):
        redactory.evaluate_extraction(run.root, "sgd", 0)


@pytest.mark.slow
def test_exposure_tells_the_same_and_is_drawn(run: RunFolder) -> None:
    leaky = redactory.evaluate_canary(run.root, "sgd")
    safe = redactory.evaluate_canary(run.root, "redact-only")
    assert leaky["highest_exposure"] > leaky["chance"]["highest_95"]
    assert leaky["chance"]["highest_p_value"] < 0.001
    assert safe["highest_exposure"] < safe["chance"]["highest_95"] + 3
    assert (leaky["missed"], leaky["copies_left"], safe["copies_left"]) == (0, CANARIES * COPIES, 0)
    ElementTree.parse(run.get_model_folder("sgd").root / "canary" / "exposure.svg")


def test_canaries_are_missed_in_nested_sets_and_templates_stand_as_given(tmp_path: Path) -> None:
    sets = []
    for rate in (0.0, 0.2, 0.5, 1.0):
        simulation = simulate_dialogues(20, 6, 30, 1, rate)
        missed = {simulation.canaries["inserted"][i] for i in simulation.canaries["missed"]}
        marked = {s["value"] for row in simulation.rows for s in row["spans"] if s.get("missed")}
        assert marked == missed
        sets.append(missed)
    assert [bool(s) for s in sets] == [False, True, True, True]
    assert sets[0] <= sets[1] <= sets[2] <= sets[3]
    assert len(sets[3]) == 30
    assert len(sets[1]) < len(sets[2]) < 30
    out = tmp_path / "corpus.jsonl"
    arguments = ["simulate", "--rows", "9", "--canaries", "2", "--undetectable-canary-rate", "1"]
    templates = ["--canary-template", "My PIN is {4}", "--canary-template", "Card {16}"]
    done = invoke_command(*arguments, *templates, "--out", out, "--json")
    assert json.loads(done.stdout)["canaries_missed"] == 4
    told = json.loads((tmp_path / "corpus.jsonl.canaries.json").read_text(encoding="utf-8"))["sets"]
    assert [one["template"] for one in told] == ["My PIN is {digits}", "Card {digits}"]
    text = out.read_text(encoding="utf-8")
    for one, digits in zip(told, (4, 16), strict=True):
        for number in one["inserted"]:
            assert len(number) == digits
            assert one["template"].replace("{digits}", number) in text
    for wrong in ("no digits", "{6}", "{0} x", "My ID is: {19}", "a {4} b"):
        with pytest.raises(ConfigurationError, match="template"):
            simulate_dialogues(9, 1, 1, templates=[wrong])
    with pytest.raises(ConfigurationError, match="miss rate"):
        simulate_dialogues(9, 1, 1, undetectable_canary_rate=1.5)

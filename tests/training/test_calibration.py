"""Probabilities of a classifier, calibrated on held-out public text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import redactory
from redactory.foundation.files import read_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import TrainSettings, train_model
from redactory.training.held_out import HeldOutCurve, HeldOutText, find_saved_row
from redactory.training.loop import TrainingContext
from redactory.training.model import TextClassifier, build_classifier, load_classifier
from redactory.training.models.recurrent import PooledClassifier
from redactory.training.models.settings import BagSettings, BertSettings, BiLstmSettings
from redactory.training.tokenizer import Tokenizer
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import PUBLIC_TEXTS, make_initial_model

CLASSES = ("rent", "law", "other")
WORDS = Tokenizer.from_texts(PUBLIC_TEXTS, 50)


def make_curve(path: Path, settings: Any, labels: list[int], scale: float) -> HeldOutCurve:
    """A curve of a fresh classifier, whose logits are ``scale`` times as large."""
    network = build_classifier(settings, WORDS, CLASSES)
    network.initialise(RandomStream.from_seed(3))
    layer = network.find_output_layer()
    assert layer is not None
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(scale)
    texts = tuple(PUBLIC_TEXTS[: len(labels)])
    held_out = HeldOutText(texts, tuple(CLASSES[number] for number in labels))
    return HeldOutCurve(path, TextClassifier(WORDS, network, 20), held_out)


def predict(curve: HeldOutCurve) -> NDArray[np.float64]:
    assert isinstance(curve.model, TextClassifier)
    return curve.model.compute_class_log_probs(curve.held_out.texts)


def divide(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Log probabilities whose logits are divided, by definition."""
    scaled = np.exp(scores / temperature)
    divided: NDArray[np.float64] = np.log(scaled / scaled.sum(1, keepdims=True))
    return divided


@pytest.mark.parametrize(
    "settings",
    [BagSettings(kind="bag", embedding_size=6), BertSettings(kind="bert", layers=1, width=16, heads=2, context=64)],
    ids=["bag", "bert"],
)
def test_the_temperature_is_the_best_of_all(settings: Any, tmp_path: Path) -> None:
    """Every tenth prediction is the true class: a classifier that is certain of each is wrong."""
    curve = make_curve(tmp_path / "curve.json", settings, [0] * 20, 60.0)
    predicted = predict(curve).argmax(1)
    labels = [int(value) if row % 10 else int(value + 1) % 3 for row, value in enumerate(predicted)]
    curve = make_curve(tmp_path / "curve.json", settings, labels, 60.0)
    curve.load_or_measure(0)
    before = predict(curve)
    curve.calibrate_classifier()
    row, after = curve.rows[0], predict(curve)
    assert read_json(curve.path)["rows"] == curve.rows
    np.testing.assert_allclose(after, divide(before, row["temperature"]), atol=2e-4)
    assert (after.argmax(1) == before.argmax(1)).all()
    true = np.arange(20), np.array(labels)
    assert row["calibrated_loss"] == pytest.approx(-after[true].mean())
    assert row["loss"] == pytest.approx(-before[true].mean())
    assert row["calibrated_loss"] < row["loss"]

    def compute_smoothed_loss(temperature: float) -> float:
        scores = divide(before, temperature)
        return float(-(21 / 22 * scores[true] + scores.mean(1) / 22).mean())

    candidates = np.exp(np.linspace(-3, 5, 400))
    assert compute_smoothed_loss(row["temperature"]) <= min(map(compute_smoothed_loss, candidates)) + 1e-6


def test_few_correct_predictions_are_not_certain(tmp_path: Path) -> None:
    """Without smoothing, the best temperature of predictions that are all correct is 0."""
    settings = BagSettings(kind="bag", embedding_size=6)
    curve = make_curve(tmp_path / "curve.json", settings, [0] * 20, 1.0)
    labels = [int(value) for value in predict(curve).argmax(1)]
    curve = make_curve(tmp_path / "curve.json", settings, labels, 1.0)
    curve.load_or_measure(0)
    curve.calibrate_classifier()
    assert math.exp(predict(curve).max(1).mean()) < 0.99


def test_a_temperature_that_raises_the_loss_is_not_used(tmp_path: Path) -> None:
    """Smoothing prefers less certain predictions than the loss does."""
    settings = BagSettings(kind="bag", embedding_size=6)
    labels = [int(value) for value in predict(make_curve(tmp_path / "a", settings, [0] * 20, 1.0)).argmax(1)]
    curve = make_curve(tmp_path / "curve.json", settings, labels, 1e4)
    curve.load_or_measure(0)
    before = predict(curve)
    curve.calibrate_classifier()
    assert (predict(curve) == before).all()
    assert "temperature" not in curve.rows[0]


def test_another_layer_of_as_many_outputs_is_not_divided(tmp_path: Path) -> None:
    """The three numbers of a bottleneck of a BiLSTM's classifier look like the logits of three classes."""
    settings = BiLstmSettings(kind="bilstm", embedding_size=6, hidden_size=7, bottleneck=3)
    curve = make_curve(tmp_path / "curve.json", settings, [0, 1, 2] * 6, 60.0)
    network = curve.model.network
    assert isinstance(network, PooledClassifier)
    network.find_output_layer = lambda: network.bottleneck  # type: ignore[method-assign]
    curve.load_or_measure(0)
    before = predict(curve)
    curve.calibrate_classifier()
    assert (predict(curve) == before).all()
    assert "temperature" not in curve.rows[0]


@pytest.fixture(scope="module")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of 120 rows of two classes, of which half are public."""
    folder = tmp_path_factory.mktemp("calibration")
    rows = []
    for number in range(120):
        kinds = ("rent", "law") if number % 9 == 0 else ("law", "rent")
        text = f"{'pay the rent' if number % 2 else 'the law of'} {'abcdefg'[number % 7]}"
        text += " 0150 123456" if number % 4 < 2 else ""
        rows.append({"id": str(number), "text": text, "kind": kinds[number % 2]})
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    config = {
        "input": {"path": str(folder / "rows.jsonl"), "label": "kind"},
        "segment": {"mode": "document"},
        "dedup": {"mode": "none"},
        "detect": {"lists": {"deny": [{"label": "NUMBER", "words": ["0150 123456"]}]}},
    }
    redactory.curate(config, output=folder / "run")
    return RunFolder(folder / "run")


def make_settings(**changes: Any) -> TrainSettings:
    training: dict[str, Any] = {"model": {"kind": "bag", "embedding_size": 8}, "epochs": 2, "sampling_rate": 0.5}
    training |= {"noise_multiplier": 1.0, "group_sizes": (), "threads": 1, "seed": 5, "held_out": 0.5}
    training |= {"dp_learning_rate": 3.0, "trainer": "crt", "task": "classify", "classes": ("rent", "law")}
    return TrainSettings(**{**training, **changes})


def test_crt_calibrates_on_held_out_rows_of_the_public_split(labelled_run: RunFolder) -> None:
    card = train_model(labelled_run, make_settings(name="auto"))["guarantee"]
    folder = labelled_run.get_model_folder("auto")
    row = find_saved_row(read_json(folder.held_out)["rows"])
    assert 0 < row["calibrated_loss"] < row["loss"]
    assert f"divided by {row['temperature']:.3g}" in card["training"]["saved_weights"]
    held_out = HeldOutText.from_settings(labelled_run, make_settings(), RandomStream.from_seed(5), None)
    assert held_out is not None
    assert set(held_out.classes) == {"rent", "law"}
    scores = load_classifier(folder).compute_class_log_probs(held_out.texts)
    true = [("rent", "law").index(str(name)) for name in held_out.classes]
    assert -scores[np.arange(len(true)), true].mean() == pytest.approx(row["calibrated_loss"])
    metrics = card["hub"]["model-index"][0]["results"][0]["metrics"]
    assert metrics[0] == {"type": "loss", "value": row["calibrated_loss"]}


def test_no_step_learns_from_the_rows_it_is_calibrated_on(labelled_run: RunFolder) -> None:
    settings, stream = make_settings(), RandomStream.from_seed(5)
    held_out = HeldOutText.from_settings(labelled_run, settings, stream, None)
    assert held_out is not None
    model = make_initial_model(settings, stream, build_vocabulary(labelled_run, settings, None))
    parts = (labelled_run, settings, model.network, model.tokenizer, stream)
    steps = TrainingContext(*parts, held_out_rows=held_out.rows).make_step_kinds(None, None).noise_free
    assert steps is not None
    learned, held = {*steps.rows.tolist()}, {*held_out.rows.tolist()}
    assert learned
    assert held
    assert not learned & held
    assert len(learned | held) == len(steps.examples)


def test_the_fixed_recipe_does_not_calibrate(labelled_run: RunFolder) -> None:
    card = train_model(labelled_run, make_settings(name="fixed", recipe="fixed"))["guarantee"]
    rows = read_json(labelled_run.get_model_folder("fixed").held_out)["rows"]
    assert not any("temperature" in row for row in rows)
    assert "divided" not in card["training"]["saved_weights"]

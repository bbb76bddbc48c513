"""Classifiers on a frozen encoder's vectors: what a vector depends on, how it is clipped, cached, saved and loaded."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.numpy import load_file, save

import redactory
from redactory.encoder import SENTENCE_FOLDER, load_encoder
from redactory.evaluation.membership import run_class_membership_attack
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError
from redactory.foundation.keys import ENCRYPTION_VARIABLE
from redactory.foundation.stream import RandomStream
from redactory.pipelines.modeling.train import collect_remarks
from redactory.redaction.folder import RunFolder
from redactory.training import PrivateLoop, TrainSettings, train_model
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import NO_CLASS
from redactory.training.guarantee.card import make_guarantee_card
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.model import TextClassifier, load_classifier
from redactory.training.models.frozen_encoder import (
    CONSTANT_INPUT,
    PREFIX,
    FolderTextEncoder,
    FrozenEncoder,
    PackageEncoder,
    VectorClassifier,
)
from redactory.training.steps import NoisySteps, ScheduledOptimizer, make_optimizer
from tests.pipelines.support import DigitDetector, write_rows
from tests.training.tiny_folders import build_byte_tokenizer, write_bert_folder

CLASSES = ("question", "thanks")
TOPICS = ("parcel", "invoice", "garden", "concert", "bicycle", "kitchen", "window", "teacher", "river", "camera")
TEXTS = [
    "",
    " \n",
    "Thank you for the soup!",
    "Thank you for the bread!",
    "東京はどこですか",
    "𐰀𐰁",
    "a" * 900,
    "Where is it? " * 300,
]
SETTINGS: dict[str, Any] = {"task": "classify", "classes": CLASSES, "group_sizes": (), "threads": 1}
open_package_encoder: Callable[[], PackageEncoder] = functools.cache(PackageEncoder)


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with classes; a number makes an example private. Read only."""
    return curate(tmp_path_factory.mktemp("labelled"))


def curate(root: Path, **private_label: str | None) -> RunFolder:
    rows = [
        {
            "id": f"{name} {number} {end}",
            "user": f"u{number}",
            "text": f"{text.format(topic)} {end}",
            "label": private_label.get("private_label", name) if end else name,
        }
        for name, text in zip(CLASSES, ("How do I repair the {}?", "Thank you so much for the {}!"), strict=True)
        for number, topic in enumerate(TOPICS)
        for end in ("", str(number))
    ]
    section = {"path": str(write_rows(root / "rows.jsonl", rows)), "label": "label", "user": "user"}
    detect = {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["nobody"]}]}}
    config = {"input": section, "segment": {"mode": "document"}, "dedup": {"mode": "none"}, "detect": detect}
    redactory.curate(config, output=root / "run", detector=DigitDetector())
    return RunFolder(root / "run")


@pytest.fixture
def run(curated: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(Path(shutil.copytree(curated.root, tmp_path / "run")))


def make_settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{**SETTINGS, "trainer": "dpsgd", **changes})


def make_network(mean: NDArray[np.float32], seed: int = 0) -> VectorClassifier:
    network = VectorClassifier(mean, CLASSES, {"sha256": "0" * 64})
    weights = np.random.default_rng(seed).normal(size=(len(CLASSES), len(mean) + 1))
    network.head.weight.data = torch.tensor(weights, dtype=torch.float32)
    return network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of Hugging Face that takes 16 tokens."""
    return write_bert_folder(tmp_path_factory.mktemp("encoders") / "tiny", positions=16)


# vectors


@settings(max_examples=12)
@given(st.lists(st.sampled_from(TEXTS), max_size=6), st.integers(1, 3))
def test_a_vector_depends_on_its_own_text_only(texts: list[str], threads: int) -> None:
    encoder = PackageEncoder(threads=threads)
    vectors = encoder.encode(texts)
    assert vectors.shape == (len(texts), encoder.width)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(vector, open_package_encoder().encode_text(text).astype(np.float16))


def test_a_long_text_is_read_to_its_end() -> None:
    encoder, pieces = open_package_encoder(), load_encoder(SENTENCE_FOLDER)
    start = "Where is my parcel? " * 120
    first, second = (encoder.encode_text(start + end) for end in ("Thank you!", "I hate it!"))
    assert len(pieces.encode(start).vectors) > 2 * pieces.window
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(first, pieces.encode(PREFIX + start + "Thank you!").vectors.mean(0), rtol=1e-5)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_text_without_visible_characters_has_no_features(text: str, folder: Path) -> None:
    encoders: list[FrozenEncoder] = [open_package_encoder(), FolderTextEncoder(folder)]
    for encoder in encoders:
        vector = encoder.encode([text])
        assert not vector.any()
        network = make_network(np.ones(encoder.width, np.float32))
        examples = encoder.make_examples([text])
        logits = network.logits(with_labels(examples, [0]).make_batch([0]))
        torch.testing.assert_close(logits[0], CONSTANT_INPUT * network.head.weight[:, -1])


def test_the_mean_comes_from_public_sentences_only(run: RunFolder) -> None:
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    network: Any = load_classifier(run.get_model_folder("dpsgd")).network
    sentences = (SENTENCE_FOLDER / "sentences.txt").read_text("utf-8").splitlines()
    vectors = np.array([open_package_encoder().encode_text(text) for text in sentences], np.float16).astype(float)
    expected = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(0)
    np.testing.assert_allclose(network.mean.numpy(), expected, atol=1e-6)


# clipping


def with_labels(examples: Any, labels: list[int]) -> Any:
    from dataclasses import replace

    return replace(examples, labels=np.array(labels, np.int64))


def compute_gradients(network: VectorClassifier, vectors: NDArray[np.float32], labels: list[int]) -> NDArray[Any]:
    """The gradient of each example by hand, flat: (p − y) xᵀ."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) - network.mean.numpy()
    inputs = np.hstack([units / np.linalg.norm(units, axis=1, keepdims=True), np.full((len(units), 1), 0.2)])
    logits = inputs @ network.head.weight.detach().numpy().T
    p = np.exp(logits - logits.max(1, keepdims=True))
    errors = p / p.sum(1, keepdims=True) - np.eye(len(CLASSES))[labels]
    gradients = errors[:, :, None] * inputs[:, None]
    np.testing.assert_allclose(np.linalg.norm(inputs, axis=1), np.sqrt(1.04), rtol=1e-5)
    return np.asarray(gradients.reshape(len(units), -1))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.floats(0.05, 3.0), st.integers(0, 99))
def test_the_clipped_sum_is_that_of_the_closed_form(rows: int, clip_norm: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors, labels = draw.normal(size=(rows, 5)).astype(np.float32), draw.integers(0, 2, rows).tolist()
    network = make_network((draw.normal(size=5) / 9).astype(np.float32), seed)
    examples = make_vector_examples(vectors, labels)
    gradients = compute_gradients(network, vectors, labels)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    assert norms.max() <= np.sqrt(2.08) * (1 + 1e-5)
    expected = (gradients * np.minimum(1.0, clip_norm / norms)).sum(0)
    total = compute_clipped_sum(network, examples, np.arange(rows), clip_norm, 3)
    np.testing.assert_allclose(total.numpy(), expected, atol=1e-5)


def make_vector_examples(vectors: NDArray[np.float32], labels: list[int]) -> Any:
    from redactory.training.models.frozen_encoder import VectorExamples

    offsets = np.arange(len(vectors) + 1, dtype=np.int64)
    ids = np.zeros(len(vectors), np.int32)
    return VectorExamples(ids, offsets, 0, 0, np.array(labels, np.int64), vectors=vectors)


def test_an_example_without_a_class_is_null() -> None:
    vectors = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    network = make_network(np.zeros(5, np.float32))
    examples = make_vector_examples(vectors, [0, NO_CLASS, 1])
    assert not compute_clipped_sum(network, examples, np.array([1]), 1.0, 99).any()
    with_it, without = (
        compute_clipped_sum(network, examples, rows, 1.0, 99) for rows in (np.arange(3), np.array([0, 2]))
    )
    torch.testing.assert_close(with_it, without)
    selected = examples.select_examples([2, 0])
    assert np.array_equal(selected.vectors, vectors[[2, 0]])
    assert selected.labels.tolist() == [1, 0]


# training


@pytest.mark.parametrize(
    ("trainer", "changes"),
    [
        ("dpsgd", {}),
        ("crt", {}),
        ("crt-drop", {}),
        pytest.param("uedp-bounded", {"bounding": {"k_user": 4, "k_entity": 4}}, marks=pytest.mark.slow),
        # with ten users, a multiplier of 0.5 would decide some of the classes
        pytest.param(
            "user-level",
            {"federated": {"users": 10, "user_rate": 1.0}, "noise_multiplier": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_trainer_learns_on_vectors(run: RunFolder, trainer: str, changes: dict[str, Any]) -> None:
    summary = train_model(run, make_settings(trainer=trainer, **{"noise_multiplier": 0.5, **changes}))
    card = summary["guarantee"]
    assert card["holds"]
    assert card["encoder"]["sha256"] == open_package_encoder().sha256
    assert card["kind"] == "encoder"
    assert card["task"] == "classify"
    assert any("pretraining corpora" in gap for gap in card["not_covered"])
    assert summary["parameters"] == 2 * 1153 + 1152
    answers = redactory.predict(run.root / "models" / trainer, ["Thank you for the bread!", "How do I cook it?"])
    assert [row[0]["class"] for row in answers["results"]] == ["thanks", "question"]
    page = run.get_model_folder(trainer).card.read_text("utf-8")
    for word in ("text-classification", "A text classifier", "multilingual-e5-small", "MIT", "(arXiv 2402.05672)"):
        assert word in page


class Recorder:
    """Keeps what a ledger would admit."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] = []

    def authorize_noisy_step(self, step: int, total: torch.Tensor) -> None:
        self.sums.append(total.clone())


def make_noisy_steps(public: Any, rate: float = 1.0) -> tuple[NoisySteps, Recorder]:
    """Steps of SGD with the same noise each time, and what they admit."""
    draw = np.random.default_rng(4)
    network = make_network(np.zeros(5, np.float32))
    examples = make_vector_examples(draw.normal(size=(6, 5)).astype(np.float32), [0, 1, 1, 0, 0, 1])
    mechanism = PoissonGaussian(rate, 1.0, 0.5, 10.0, "lattice")
    optimizer = ScheduledOptimizer(make_optimizer(network, "sgd"), 1.0)
    stream, recorder = RandomStream.from_seed(5), Recorder()
    return NoisySteps(network, optimizer, examples, mechanism, 99, stream, recorder, public_examples=public), recorder


def take_step(public: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights after a step, and what was admitted."""
    steps, recorder = make_noisy_steps(public)
    steps.step(0)
    return steps.network.head.weight.detach(), recorder.sums[0]


def test_a_noisy_step_includes_public_vectors_without_noise() -> None:
    """Beside the noisy private sum, and divided by the same constant; the ledger admits the private sum alone."""
    draw = np.random.default_rng(6)
    public = make_vector_examples(draw.normal(size=(3, 5)).astype(np.float32), [1, 1, 0])
    (with_public, admitted), (without, alone) = take_step(public), take_step(None)
    assert torch.equal(admitted, alone)
    start = make_network(np.zeros(5, np.float32))
    gradients = compute_gradients(start, public.vectors, [1, 1, 0])
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    expected = (gradients * np.minimum(1.0, 0.5 / norms)).sum(0) / 10.0
    np.testing.assert_allclose((without - with_public).flatten().numpy(), expected, atol=1e-5)


def test_public_and_private_vectors_are_sampled_at_one_rate() -> None:
    """On average a step adds the rate's share of all public gradients; its coins are not those of private rows."""
    rate, numbers = 0.2, range(2_000)
    public = make_vector_examples(np.random.default_rng(7).normal(1.0, size=(6, 5)).astype(np.float32), [1] * 6)
    every, _ = make_noisy_steps(public)
    sampled, _ = make_noisy_steps(public, rate)
    total = every.compute_public_sum(0)
    sums = torch.stack([sampled.compute_public_sum(number) for number in numbers])
    torch.testing.assert_close(sums.mean(0), rate * total, atol=0.02, rtol=0)
    assert float((rate * total).abs().max()) > 0.1
    private = np.array([sampled.sample_step_rows(number).size for number in numbers])
    assert abs(np.corrcoef(private, sums.norm(dim=1).numpy())[0, 1]) < 0.05


@pytest.mark.parametrize("weighting", ["unique", "count"])
def test_crt_learns_from_public_rows_where_no_private_row_has_a_class(tmp_path: Path, weighting: str) -> None:
    run = curate(tmp_path, private_label=None)
    train_model(run, make_settings(trainer="crt", noise_multiplier=0.5, public_weighting=weighting))
    network: Any = load_classifier(run.get_model_folder("crt")).network
    assert float(network.head.weight.detach().abs().max()) > 0.1
    result = redactory.predict(run.root / "models/crt", ["Thank you so much!", "How do I cook?"])
    assert [row[0]["class"] for row in result["results"]] == ["thanks", "question"]


def test_a_misspelt_class_is_named_before_the_training(run: RunFolder) -> None:
    config: dict[str, Any] = {"input": {"path": "rows.jsonl", "label": "label"}, "output": str(run.root)}
    config["train"] = {**SETTINGS, "trainer": "dpsgd", "classes": ["question", "Thanks", "thanks"]}
    assert "train.classes: no example has the class Thanks; check the spelling" in collect_remarks(config)
    config["train"]["classes"] = list(CLASSES)
    assert not [remark for remark in collect_remarks(config) if "train.classes" in remark]


# the cache


def test_vectors_are_cached_in_private_state(run: RunFolder) -> None:
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    assert run.text_vectors.stat().st_mode & 0o777 == 0o600
    stored = load_file(run.text_vectors)
    assert stored["vectors"].shape[1] == 1152
    count = len(stored["keys"])
    before = run.text_vectors.stat().st_mtime_ns
    train_model(run, make_settings(name="again", noise_multiplier=1.0, epochs=1))
    assert run.text_vectors.stat().st_mtime_ns == before
    train_model(run, make_settings(trainer="crt", noise_multiplier=1.0, epochs=1))
    assert len(load_file(run.text_vectors)["keys"]) > count


def test_a_cache_of_another_encoder_or_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    path, text = tmp_path / "vectors", "Thank you!"
    expected = PackageEncoder(path).encode([text])
    good, parts = path.read_bytes(), load_file(path)
    other = save({**parts, "encoder": parts["encoder"] ^ 1, "vectors": parts["vectors"] * 0})
    for damaged in (other, good[: len(good) // 2], b"", b"x"):
        path.write_bytes(damaged)
        assert np.array_equal(PackageEncoder(path).encode([text]), expected)
        assert path.read_bytes() == good


def test_a_cached_vector_is_the_one_that_is_used(tmp_path: Path) -> None:
    """The same text has the same vector before and after; a text that differs in one letter has its own."""
    path = tmp_path / "vectors"
    first = PackageEncoder(path).encode(["Thank you!", "Thank yon!"])
    again = PackageEncoder(path).encode(["Thank yon!", "Thank you!", "Thank you"])
    assert np.array_equal(first[::-1], again[:2])
    assert not np.array_equal(again[1], again[2])


def test_an_encrypted_run_has_an_encrypted_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPTION_VARIABLE, "ab" * 32)
    run = curate(tmp_path)
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    content = run.text_vectors.read_bytes()
    assert b"vectors" not in content
    train_model(run, make_settings(name="again", noise_multiplier=1.0, epochs=1))
    assert run.text_vectors.read_bytes() == content


@pytest.mark.parametrize("reason", ["purge", "erase"])
def test_vectors_go_with_the_texts(run: RunFolder, reason: str) -> None:
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    assert run.text_vectors.exists()
    if reason == "purge":
        redactory.purge(run.root, ["vault"])
    else:
        redactory.erase([run.root], user_ids=["u3"])
    assert not run.text_vectors.exists()


class InfiniteEncoder(PackageEncoder):
    """An encoder whose vector of one text is not finite."""

    def encode_text(self, text: str) -> NDArray[np.float32]:
        return np.where(text == "bad", np.inf, super().encode_text(text)).astype(np.float32)


def test_a_vector_that_is_not_finite_counts_as_zero() -> None:
    vectors = InfiniteEncoder().encode(["bad", "good"])
    assert not vectors[0].any()
    assert np.array_equal(vectors[1:], open_package_encoder().encode(["good"]))


# encoders of others


def test_an_encoder_of_a_folder_is_copied_into_the_model(run: RunFolder, folder: Path, tmp_path: Path) -> None:
    given = Path(shutil.copytree(folder, tmp_path / "given"))
    model = {"kind": "encoder", "folder": given}
    card = train_model(run, make_settings(model=model, noise_multiplier=1.0))["guarantee"]
    assert card["encoder"]["sha256"] == FolderTextEncoder(given).sha256
    assert "own model card" in card["encoder"]["licence"]
    before = redactory.predict(run.root / "models/dpsgd", ["Thanks!"])
    shutil.rmtree(given)
    assert redactory.predict(run.root / "models/dpsgd", ["Thanks!"]) == before
    weights = run.get_model_folder("dpsgd").root / "encoder" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"dpsgd was trained with the encoder [0-9a-f]{64}.*encoder has"):
        load_classifier(run.get_model_folder("dpsgd"))


def write_model_folder(folder: Path, config: Any) -> Path:
    from transformers import AutoModel

    tokenizer = build_byte_tokenizer()
    config.vocab_size = len(tokenizer)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_any_model_with_a_state_for_every_token_is_an_encoder(tmp_path: Path) -> None:
    from transformers import AlbertConfig, GPT2Config, T5Config

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    albert = write_model_folder(tmp_path / "albert", AlbertConfig(embedding_size=8, **sizes))
    gpt2 = write_model_folder(tmp_path / "gpt2", GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32))
    for folder in (albert, gpt2):
        vectors = FolderTextEncoder(folder).encode(["hello", "hello there", "hello"])
        assert vectors.shape == (3, 16)
        assert np.array_equal(vectors[0], vectors[2])
        assert not np.array_equal(vectors[0], vectors[1])
    t5 = write_model_folder(tmp_path / "t5", T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2))
    with pytest.raises(ConfigurationError, match="t5 has no encoder with a state for every token"):
        FolderTextEncoder(t5)


def test_a_folder_encoder_reads_long_texts_in_windows(folder: Path) -> None:
    encoder = FolderTextEncoder(folder)
    size = encoder.network.context
    assert size is not None
    ids = encoder.tokenizer.encode(text := "hello world and so on, " * 6)
    assert len(ids) > 2 * size
    parts = [ids[start : start + size - 2] for start in range(0, len(ids), size - 2)]
    model: Any = encoder.network.model
    with torch.no_grad():
        states = [
            model(torch.tensor([[encoder.tokenizer.begin_id, *part, encoder.tokenizer.end_id]])).last_hidden_state[0]
            for part in parts
        ]
    expected = sum(len(part) * state.mean(0) for part, state in zip(parts, states, strict=True)) / len(ids)
    np.testing.assert_allclose(encoder.encode_text(text), expected, atol=1e-5)
    assert not np.array_equal(encoder.encode_text(text), encoder.encode_text(f"{text}!"))


def test_unusable_folders_are_refused(run: RunFolder, folder: Path, tmp_path: Path) -> None:
    without = Path(shutil.copytree(folder, tmp_path / "without"))
    for path in without.glob("*token*"):
        path.unlink()
    trained = Path(shutil.copytree(folder, tmp_path / "trained"))
    (trained / "guarantee.json").write_text("{}")
    cases = {
        without: "tokenizer",
        trained: "model of another run|trained on the text of a run",
        tmp_path / "x": "no folder",
    }
    for path, message in cases.items():
        with pytest.raises(ConfigurationError, match=message):
            train_model(run, make_settings(model={"kind": "encoder", "folder": path}, noise_multiplier=1.0))
    assert not run.models.exists() or not list(run.models.iterdir())


def test_a_model_of_another_package_encoder_is_refused(run: RunFolder) -> None:
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    config = run.get_model_folder("dpsgd").config
    config.write_text(config.read_text().replace(open_package_encoder().sha256, "0" * 64))
    with pytest.raises(InputError, match=r"trained with the encoder 0{64} .*the installed version of redactory has"):
        load_classifier(run.get_model_folder("dpsgd"))


# the attack


def test_a_classifier_is_attacked_by_the_class_of_whole_texts(run: RunFolder, tmp_path: Path) -> None:
    train_model(run, make_settings(noise_multiplier=20.0))
    train_model(run, make_settings(trainer="crt", noise_multiplier=20.0))
    rows = [
        {"text": f"{text} {end}", "label": name}
        for end in TOPICS
        for name, text in zip(CLASSES, TEXTS[2:4], strict=True)
    ]
    others = write_rows(tmp_path / "others.jsonl", [*rows, {"text": "of no class", "label": "other"}])
    for model, members in (("dpsgd", 20), ("crt", 20)):
        found = redactory.evaluate_membership(run.root, model, others=others, reference=None)
        assert (found["members"], found["others"], found["label"]) == (members, members, None)
        assert found["individual"]["scored"] == members
        assert found["rmia"] is None
    compared = redactory.evaluate_membership(run.root, "crt", others=others, reference="dpsgd")
    assert compared["rmia"] is not None
    assert compared["reference_model"] == "dpsgd"
    train_model(run, make_settings(name="fewer", classes=("thanks", "other"), noise_multiplier=20.0))
    with pytest.raises(ConfigurationError, match="reference: fewer was trained on other classes"):
        redactory.evaluate_membership(run.root, "dpsgd", others=others, reference="fewer")
    trained_on = run.root.parent / "rows.jsonl"
    write_rows(trained_on, [{"text": "How do I repair the river?", "label": "question"}])
    with pytest.raises(InputError, match="trained on, and as many that were not: got 40 and 0"):
        redactory.evaluate_membership(run.root, "dpsgd", others=trained_on)
    with pytest.raises(ConfigurationError, match="a classifier is asked about whole texts"):
        redactory.evaluate_membership(run.root, "dpsgd", secrets=others, others=others)


def test_the_attack_tells_what_a_classifier_knows_by_heart() -> None:
    """A linear layer with a weight for every member tells them all; without one it is a coin."""
    encoder, labels = open_package_encoder(), np.random.default_rng(8).integers(0, 2, 80).tolist()
    rows = [(f"{TOPICS[number % 10]} {number}", CLASSES[label]) for number, label in enumerate(labels)]
    members, others = rows[:40], rows[40:]
    network = VectorClassifier(encoder.compute_public_mean(), CLASSES, {"sha256": encoder.sha256})
    examples = with_labels(encoder.make_examples([text for text, _ in members]), labels[:40])
    optimizer = torch.optim.Adam(network.parameters(), 0.3)
    for _ in range(300):
        optimizer.zero_grad()
        torch.autograd.backward(network.example_losses(examples.make_batch(range(40))).sum())
        optimizer.step()
    found = run_class_membership_attack(TextClassifier(encoder, network), members, others, groups=100)
    assert found["individual"]["accuracy"]["low"] > 0.6
    torch.nn.init.zeros_(network.head.weight)
    chance = run_class_membership_attack(TextClassifier(encoder, network), members, others, groups=100)
    assert chance["individual"]["auc"]["value"] == 0.5


# the guarantee


@pytest.mark.parametrize("change", ["digest", "removed"])
def test_no_guarantee_if_the_model_names_another_encoder_than_the_ledger(run: RunFolder, change: str) -> None:
    train_model(run, make_settings(noise_multiplier=1.0, epochs=1))
    config = run.get_model_folder("dpsgd").config
    if change == "digest":
        config.write_text(config.read_text().replace(open_package_encoder().sha256, "0" * 64))
    else:
        config.unlink()
    with pytest.raises(GuaranteeError, match="belongs to another tokenizer or encoder"):
        make_guarantee_card(run, "dpsgd")


# settings


ENCODER_DEFAULTS = {"sampling_rate": 0.1, "epochs": 20, "clip_norm": 0.5, "dp_learning_rate": 0.06}


def test_it_is_the_default_for_classes_with_defaults_that_suit_it() -> None:
    chosen = make_settings()
    assert chosen.model.kind == "encoder"
    assert {key: getattr(chosen, key) for key in ENCODER_DEFAULTS} == ENCODER_DEFAULTS
    assert make_settings(epochs=3).epochs == 3
    plain = TrainSettings()
    assert make_settings(model={"kind": "lstm"}).clip_norm == plain.clip_norm
    assert make_settings(model={"hidden_size": 8}).model.kind == "lstm"
    assert plain.model.kind == "lstm"
    assert not chosen.model_fields_set & {"model", *ENCODER_DEFAULTS}
    # a command that changes the model gets that model's defaults
    changed = TrainSettings(**{**chosen.model_dump(exclude_unset=True), "model": {"kind": "lstm"}})
    assert (changed.clip_norm, changed.dp_learning_rate) == (plain.clip_norm, 0.015)
    dumped = json.loads(chosen.model_dump_json())
    assert TrainSettings.model_validate(dumped) == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "next-word", "classes": (), "model": {"kind": "encoder"}}, "encoder predicts classes"),
        ({"tokenizer": "shipped"}, "a pretrained model has its tokenizer"),
        ({"classes": ("one",)}, "at least two classes"),
        ({"trainer": "crt", "public_share": 0.5}, "train.public_share: with an encoder every noisy step also samples"),
        ({"trainer": "crt-drop", "public_pretraining_epochs": 1}, "train.public_pretraining_epochs: with an encoder"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_settings(**changes)


def test_a_custom_loop_needs_a_network_of_tokens(run: RunFolder) -> None:
    with pytest.raises(ConfigurationError, match="gives its network tokens"):
        PrivateLoop(run, make_settings())

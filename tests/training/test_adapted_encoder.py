"""Adapters in the encoder's last layers: they start from the published encoder, are clipped exactly, and are chosen."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import redactory
from redactory.encoder import SENTENCE_FOLDER, load_encoder
from redactory.training import train_model
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import NO_CLASS
from redactory.training.guarantee.expected_accuracy import (
    ADAPTER_RANK,
    ADAPTER_SIGNAL,
    MAX_ADAPTED_EXAMPLES,
    choose_lora_rank,
)
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.model import build_classifier, load_classifier
from redactory.training.models.adapted_encoder import SCALE, AdaptableEncoder, AdaptedClassifier
from redactory.training.models.frozen_encoder import PackageEncoder, VectorClassifier, VectorExamples
from redactory.training.parameter_counts import count_max_parameters
from tests.training.test_frozen_encoder import CLASSES, curate, make_settings

RANK = 2
TEXTS = [
    "Thank you for the soup!",
    "",
    "Where is it? " * 40,
    "東京はどこですか",
    "How do I repair the bicycle, and when?",
]
LABELS = [1, 0, 0, NO_CLASS, 1]


@functools.cache
def encode() -> VectorExamples:
    """The states of ``TEXTS``, with classes."""
    return replace(AdaptableEncoder(RANK).make_examples(TEXTS, 32), labels=np.array(LABELS))


def make_network(seed: int, adapters: float = 1.0) -> AdaptedClassifier:
    network = AdaptedClassifier(np.zeros(1152, np.float32), CLASSES, {"sha256": "0", "lora_rank": RANK})
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data.normal_(generator=generator)
    for parameter in network.layers.parameters():
        parameter.data.mul_(adapters)
    return network


def test_layers_are_those_of_the_published_encoder() -> None:
    """Layers 11 and 12, read from the file and computed in floating point, against ONNX Runtime with its integers."""
    window = torch.from_numpy(load_encoder(SENTENCE_FOLDER).encode_window("query: " + TEXTS[-1]))
    states, expected = window[None, :, 384:768], window[None, :, 768:]
    for layer in make_network(0, adapters=0.0).layers:
        states = layer(states, torch.zeros(1, 1, 1, len(window)))
    assert torch.nn.functional.cosine_similarity(states, expected, dim=-1).min() > 0.998
    assert (states - expected).abs().mean() < 0.03 * expected.abs().mean()


@torch.no_grad()
def test_without_training_it_is_the_linear_layer_on_the_encoder_s_vectors() -> None:
    network, plain = make_network(1, adapters=0.0), VectorClassifier(np.zeros(1152, np.float32), CLASSES, {})
    plain.head.weight.copy_(network.head.weight)
    vectors = replace(PackageEncoder().make_examples(TEXTS), labels=np.array(LABELS))
    short = [0, 1, 3, 4]  # the other text is longer than 32 tokens
    expected, found = plain.logits(vectors.make_batch(short)), network.logits(encode().make_batch(short))
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)
    torch.testing.assert_close(found[1], expected[1])
    assert not torch.allclose(make_network(1).logits(encode().make_batch(short)), expected, atol=0.1)


@torch.no_grad()
def test_an_example_does_not_depend_on_its_batch() -> None:
    network, examples = make_network(2), encode()
    alone = torch.cat([network.logits(examples.make_batch([row])) for row in range(len(TEXTS))])
    torch.testing.assert_close(network.logits(examples.make_batch(range(len(TEXTS)))), alone, atol=1e-5, rtol=1e-5)
    chosen = examples.select_examples([4, 0])
    torch.testing.assert_close(network.logits(chosen.make_batch([0, 1])), alone[[4, 0]], atol=1e-5, rtol=1e-5)
    assert chosen.labels is not None
    assert chosen.labels.tolist() == [LABELS[4], LABELS[0]]


def test_states_depend_on_the_first_tokens_of_a_text_only() -> None:
    encoder, text = AdaptableEncoder(RANK, threads=2), TEXTS[2]
    examples = encoder.make_examples([text, text + " Nobody knows.", "Where"], 32)
    assert examples.lengths.tolist()[:2] == [2 + 2 + 32] * 2
    first, second = (examples.vectors[start : start + 36] for start in (0, 36))
    assert np.array_equal(first, second)
    longer = encoder.make_examples([text, text + " Nobody knows."], 250).select_examples([1])
    assert not np.array_equal(longer.vectors[:2], first[:2])
    assert (
        max(encoder.make_examples(["Where is it? " * 300], None).lengths)
        <= 2 + 2 + load_encoder(SENTENCE_FOLDER).window
    )
    assert not encoder.make_examples([" \n"]).vectors[:2].any()


@settings(max_examples=6, deadline=None)
@given(st.floats(0.05, 3.0), st.integers(0, 99))
def test_the_clipped_sum_is_that_of_single_examples(clip_norm: float, seed: int) -> None:
    """Against the gradient of each example alone, by autograd."""
    network, examples, expected = make_network(seed), encode(), torch.zeros(())
    for row in range(len(TEXTS)):
        loss = network.example_losses(examples.make_batch([row])).sum()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])
        assert len(gradient) == 2 * 1153 + (RANK + 1) * 2 * 3456
        assert (row == LABELS.index(NO_CLASS)) == (not gradient.any())
        expected = expected + gradient * min(1.0, clip_norm / max(float(gradient.norm()), 1e-9))
    total = compute_clipped_sum(network, examples, np.arange(len(TEXTS)), clip_norm, 60)
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-4)


# training


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with classes."""
    return curate(tmp_path_factory.mktemp("adapted"))


@pytest.mark.parametrize(
    ("trainer", "changes"),
    [
        ("dpsgd", {}),
        pytest.param("crt", {}, marks=pytest.mark.slow),
        pytest.param("uedp-bounded", {"bounding": {"k_user": 4, "k_entity": 4}}, marks=pytest.mark.slow),
        # with ten users, a multiplier of 0.5 would decide some of the classes
        pytest.param(
            "user-level",
            {"federated": {"users": 10, "user_rate": 1.0}, "noise_multiplier": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_adapters_are_trained_saved_and_stated(run: Any, trainer: str, changes: dict[str, Any]) -> None:
    model = {"kind": "encoder", "lora_rank": RANK}
    chosen = {"model": model, "sampling_rate": 1.0, "epochs": 12, "max_tokens": 16, "noise_multiplier": 0.5, **changes}
    settings = make_settings(trainer=trainer, name=trainer, **chosen)
    summary = train_model(run, settings)
    card, folder = summary["guarantee"], run.get_model_folder(trainer)
    assert card["holds"]
    assert card["encoder"]["lora_rank"] == card["vocabulary"]["lora_rank"] == RANK
    assert "adapters of rank 2 in the encoder's last two layers" in folder.card.read_text("utf-8")
    assert any("adapter" in layer and norm > 0 for layer, norm in summary["update_norms"].items())
    assert count_max_parameters(settings) == 2 * 1153 + (RANK + 1) * 2 * 3456
    loaded = load_classifier(folder)
    assert isinstance(loaded.tokenizer, AdaptableEncoder)
    assert isinstance(loaded.network, AdaptedClassifier)
    answers = redactory.predict(folder.root, ["Thank you for the bread!", "How do I cook it?"])
    assert [row[0]["class"] for row in answers["results"]] == ["thanks", "question"]
    # the saved adapters are the trained ones: without them the answers change
    before = loaded.compute_class_log_probs(TEXTS)
    for parameter in loaded.network.layers.parameters():
        parameter.data.zero_()
    assert not np.array_equal(loaded.compute_class_log_probs(TEXTS), before)


def test_a_frozen_layer_gets_no_gradient(run: Any) -> None:
    network = make_network(3)
    assert {name.rpartition(".")[0].rpartition(".")[2] for name, _ in network.named_parameters()} == {"head", "adapter"}
    layer: Any = network.layers[0].query
    inputs = torch.randn(1, 3, 384)
    plain = torch.nn.functional.linear(inputs, layer.weight, layer.bias)
    torch.testing.assert_close(layer(inputs), plain + SCALE * layer.adapter(inputs @ layer.projection.T))
    torch.testing.assert_close(layer.projection @ layer.projection.T, torch.eye(RANK), atol=1e-5, rtol=0)


def test_an_adapter_reads_the_directions_in_which_public_text_varies() -> None:
    encoder = AdaptableEncoder(16)
    public = encoder.make_public_examples()
    network: Any = build_classifier(make_settings().model, encoder, CLASSES)
    first = network.layers[0].query
    torch.testing.assert_close(first.projection @ first.projection.T, torch.eye(16), atol=1e-4, rtol=0)
    # its inputs are the states as they come; the first two rows of an example are means of whole texts
    states = torch.from_numpy(
        np.concatenate([public.vectors[start + 2 : end] for start, end in pairwise(public.offsets)])
    ).float()
    centred = (states - states.mean(0)).double()
    share = (centred @ first.projection.T.double()).square().sum() / centred.square().sum()
    eigenvalues = torch.linalg.eigvalsh(centred.T @ centred)
    assert share == pytest.approx(float(eigenvalues[-16:].sum() / eigenvalues.sum()), abs=1e-4)
    assert share > 0.5
    again: Any = build_classifier(make_settings().model, AdaptableEncoder(16), CLASSES)
    assert torch.equal(again.layers[1].outer.projection, network.layers[1].outer.projection)


# the rule


def choose(examples: int | None, **changes: Any) -> int:
    settings = make_settings(**{"noise_multiplier": 1.0, "sampling_rate": 0.1, "epochs": 10, **changes})
    return choose_lora_rank(TrainingSpec.from_settings(settings, None), examples)


def test_adapters_are_chosen_by_public_numbers() -> None:
    """The signal is N·q·√T/σ: with T = 100 and σ = q·10 it is N."""
    assert choose(int(ADAPTER_SIGNAL) + 1) == ADAPTER_RANK
    assert choose(int(ADAPTER_SIGNAL) - 1) == 0
    assert choose(int(ADAPTER_SIGNAL) + 1, noise_multiplier=1.1) == 0
    assert choose(MAX_ADAPTED_EXAMPLES + 1) == 0
    assert choose(None) == 0  # a secret number decides nothing
    assert choose(100, model={"kind": "encoder", "lora_rank": 3}) == 3
    assert choose(150_000, model={"kind": "encoder", "lora_rank": 0}) == 0
    assert choose(150_000, model={"kind": "bag"}) == 0


def test_adapters_need_the_encoder_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="lora_rank: adapters are for the package's encoder"):
        make_settings(model={"kind": "encoder", "folder": tmp_path, "lora_rank": 2})
    assert choose(150_000, model={"kind": "encoder", "folder": tmp_path}) == 0

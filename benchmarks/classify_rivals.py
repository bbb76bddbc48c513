"""Other ways to train a private text classifier, on the same rows and at the same epsilon.

Every epsilon is for one example exchanged (substitution), the relation of Redactory's card. Opacus states its epsilon
for an example that is added or removed; its noise here is calibrated for substitution at its sampling rate and number
of steps, so it is larger than the noise that Opacus would choose. A row has both epsilons.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from epsilons import find_noise_multiplier
from expert import ENTRIES, Expert, padded, words_of
from torch import Tensor, nn

import redactory
from redactory.encoder import DEFAULT_FOLDER
from redactory.encoder.model import END_PIECE, START_PIECE
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import compute_clipped_gradient
from redactory.training.mechanisms.mechanism import PoissonGaussian

if TYPE_CHECKING:
    from classify import LabelledSet

RIVALS = {"lstm": 1, "bag": 2, "loop": 1, "opacus": 1, "opacus-mean": 1, "opacus-head": 2}
"""Repetitions of each method at each epsilon."""
BAG = {"sampling_rate": 0.1, "dp_learning_rate": 0.1}
LOOP = {"epochs": 10, "sampling_rate": 0.02, "clip_norm": 1.0, "learning_rate": 0.01, "max_words": 64}
OPACUS = {"epochs": 3, "batch_size": 32, "max_grad_norm": 0.1, "learning_rate": 5e-4, "max_tokens": 128}
"""The values of the tutorial."""
OPACUS_HEAD = {"epochs": 20, "batch_size": 512, "max_grad_norm": 1.0, "learning_rate": 0.01, "max_tokens": 128}
"""Chosen once, before the first run: large batches, as papers on private fine-tuning advise."""
WIDTH, LAYERS, HEADS, PREFIX = 384, 12, 12, "query: "
Examples = Sequence[tuple[str, str]]


def describe_rivals() -> dict[str, Any]:
    """Describe every method for the results."""
    same = "starts from the weights of the encoder that Redactory has, not rounded to 4 and 7 bits"
    return {
        "lstm": "Redactory with model.kind: lstm, the default for task classify before the encoder; all its defaults",
        "bag": {"what": "Redactory with model.kind: bag and these settings, the best known without pretraining", **BAG},
        "loop": {
            "what": "a user's loop: hashed words in lower case, embedding and LSTM of 64, mean over the text, Adam, "
            "exact per-example clipping",
            **LOOP,
        },
        "opacus": {
            "what": "Opacus' tutorial (pytorch/opacus, tutorials/building_text_classifier.ipynb): a pretrained BERT; "
            "DP-SGD with AdamW trains its last layer, its pooler and a classifier",
            "encoder": f"multilingual-e5-small; {same}; its pooler was not published, so it starts fresh",
            "frozen_layers": "in evaluation mode, so their states are computed once; the trained layers have dropout",
            "noise": "calibrated for substitution; delta as everybody's",
            **OPACUS,
        },
        "opacus-mean": "the same with the mean over tokens, for which this encoder was trained, in place of the pooler",
        "opacus-head": {
            "what": "not documented by Opacus: what an expert would write. A linear layer on the mean over tokens "
            "after the last layer of the same encoder, at length 1, trained with DP-SGD and Adam",
            **OPACUS_HEAD,
        },
    }


def train_rival(
    method: str, labelled: LabelledSet, epsilon: float, delta: float, repetition: int, weights: Path | None
) -> dict[str, Any]:
    """Train ``method`` and return its accuracy on the test rows, with what it cost."""
    torch.manual_seed(repetition)
    started = time.process_time()
    if method in ("lstm", "bag"):
        measured = _train_former_default(method, labelled, epsilon, repetition)
    elif method == "loop":
        measured = _train_loop(labelled, epsilon, delta, repetition)
    else:
        if weights is None:
            raise SystemExit("Opacus starts from pretrained weights: give --weights")
        measured = _train_opacus(method, labelled, epsilon, delta, weights)
    seconds = round(time.process_time() - started, 1)
    return {"rows": len(labelled.train), "repetition": repetition, **measured, "train_cpu_seconds": seconds}


def _train_former_default(kind: str, labelled: LabelledSet, epsilon: float, repetition: int) -> dict[str, Any]:
    config, run = labelled.open_run(None)
    name, changes = f"{kind}-e{epsilon:g}-{repetition}", BAG if kind == "bag" else {}
    section = {**config["train"], "model": {"kind": kind}, "name": name, "epsilon": epsilon, **changes}
    card = redactory.train({**config, "train": section})["guarantee"]
    accuracy = labelled.measure_test_accuracy(labelled.load(run, name))["accuracy"]
    return {"accuracy": accuracy, "noise_multiplier": card["noise_multiplier"]}


# A user's loop.


def _hash_words(text: str) -> list[int]:
    """Number the words of a text by a hash, which needs no vocabulary of private text."""
    words = words_of(text)[: int(LOOP["max_words"])]
    return [2 + zlib.crc32(word.encode()) % (ENTRIES - 2) for word in words] or [1]


def _train_loop(labelled: LabelledSet, epsilon: float, delta: float, repetition: int) -> dict[str, Any]:
    rate, clip_norm = float(LOOP["sampling_rate"]), float(LOOP["clip_norm"])
    steps = int(LOOP["epochs"]) * math.ceil(1 / rate)
    noise = find_noise_multiplier(epsilon, delta, rate, steps)
    examples = [_hash_words(text) for text, _ in labelled.train]
    classes = torch.tensor([labelled.classes.index(label) for _, label in labelled.train])
    network, stream = Expert(len(labelled.classes), "lstm"), RandomStream.from_seed(repetition)
    parameters = list(network.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    optimizer = torch.optim.Adam(parameters, lr=float(LOOP["learning_rate"]))
    mechanism = PoissonGaussian(rate, noise, clip_norm, rate * len(examples), noise="lattice")
    for step in range(steps):
        rows = np.flatnonzero(stream.uniform("coins", step, len(examples)) < rate)
        rows = rows[np.argsort([len(examples[row]) for row in rows])]
        total = torch.zeros(sum(sizes))
        for micro_batch in np.array_split(rows, 4):
            ids, targets = padded([examples[row] for row in micro_batch]), classes[micro_batch]
            losses = lambda: F.cross_entropy(network(ids), targets, reduction="none")  # noqa: E731, B023
            total += compute_clipped_gradient(network, losses, clip_norm).flat
        noisy = mechanism.compute_noisy_mean(total, stream, step)
        for parameter, gradient in zip(parameters, noisy.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
    network.eval()
    with torch.no_grad():
        predicted = [int(network(padded([_hash_words(text)])).argmax()) for text, _ in labelled.test]
    return {"accuracy": _measure_share(labelled, predicted), "noise_multiplier": noise, "steps": steps}


def _measure_share(labelled: LabelledSet, predicted: Sequence[int]) -> float:
    pairs = zip(predicted, labelled.test, strict=True)
    return float(np.mean([labelled.classes[number] == label for number, (_, label) in pairs]))


# Opacus' recipe.


class LastLayer(nn.Module):
    """The trained part of the recipe: the last layer of BERT, its pooler (or the mean) and a classifier."""

    def __init__(self, layer: nn.Module, classes: int, has_pooler: bool) -> None:
        super().__init__()
        self.layer = layer
        self.pooler = nn.Linear(WIDTH, WIDTH) if has_pooler else None
        self.dropout, self.classifier = nn.Dropout(0.1), nn.Linear(WIDTH, classes)
        for linear in (self.pooler, self.classifier):
            if linear is not None:
                # as BERT initialises them
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """Compute class scores [B, classes] from the states [B, T, width] below the last layer."""
        mask = torch.where(real[:, None, None, :], 0.0, torch.finfo(states.dtype).min)
        output = self.layer(states, attention_mask=mask)
        states = output[0] if isinstance(output, tuple) else output
        if self.pooler is None:
            pooled = (states * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        else:
            pooled = torch.tanh(self.pooler(states[:, 0]))
        scores: Tensor = self.classifier(self.dropout(pooled))
        return scores


@cache
def _compute_frozen_states(texts: tuple[str, ...], weights: Path) -> list[Tensor]:
    """Compute the states below the last layer, in half precision, for each text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEFAULT_FOLDER / "tokenizer.json"))
    tokenizer.enable_truncation(int(OPACUS["max_tokens"]) - 2)
    tokenizer.no_padding()
    pieces = [encoding.ids for encoding in tokenizer.encode_batch([PREFIX + text for text in texts])]
    ids = [[START_PIECE, *text_pieces, END_PIECE] for text_pieces in pieces]
    model = _load_bert(weights)
    states: list[Tensor] = [torch.empty(0)] * len(ids)
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    with torch.no_grad():
        for start in range(0, len(order), 16):
            rows = order[start : start + 16]
            inputs = nn.utils.rnn.pad_sequence(
                [torch.tensor(ids[row]) for row in rows], batch_first=True, padding_value=1
            )
            real = nn.utils.rnn.pad_sequence(
                [torch.ones(len(ids[row]), dtype=torch.long) for row in rows], batch_first=True
            )
            hidden = model(input_ids=inputs, attention_mask=real, output_hidden_states=True).hidden_states
            for row, text_states in zip(rows, hidden[LAYERS - 1], strict=True):
                states[row] = text_states[: len(ids[row])].half().clone()
    return states


def _load_bert(weights: Path) -> Any:
    from transformers import BertConfig, BertModel

    state = torch.load(weights, weights_only=True)
    entries = len(state["embeddings.word_embeddings.weight"])
    config = BertConfig(
        vocab_size=entries,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=len(state["embeddings.position_embeddings.weight"]),
        attn_implementation="eager",
    )
    model = BertModel(config, add_pooling_layer=False)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert not missing, missing
    return model.eval()


def _pad_states(batch: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    states = nn.utils.rnn.pad_sequence([one.float() for one, _ in batch], batch_first=True)
    real = torch.arange(states.shape[1])[None] < torch.tensor([len(one) for one, _ in batch])[:, None]
    return states, real, torch.tensor([label for _, label in batch])


class LinearHead(nn.Module):
    """A linear layer on the mean over a text's tokens, which is already at length 1."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """Compute class scores [B, classes] from one vector a text, [B, 1, width]."""
        scores: Tensor = self.classifier(states[:, 0])
        return scores


@torch.no_grad()
def _pool_states(states: list[Tensor], weights: Path) -> list[Tensor]:
    """Compute the vector of each text, [1, width], from its states below the last layer."""
    layer = LastLayer(_load_bert(weights).encoder.layer[-1], 2, False).eval()
    vectors = []
    for text_states in states:
        mask = torch.zeros(1, 1, 1, len(text_states))
        output = layer.layer(text_states.float()[None], attention_mask=mask)
        output = output[0] if isinstance(output, tuple) else output
        vectors.append(F.normalize(output.reshape(-1, WIDTH).mean(0, keepdim=True)))
    return vectors


def _train_opacus(method: str, labelled: LabelledSet, epsilon: float, delta: float, weights: Path) -> dict[str, Any]:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader

    train, test = (
        _compute_frozen_states(tuple(text for text, _ in rows), weights) for rows in (labelled.train, labelled.test)
    )
    settings, network, make_optimizer = OPACUS, LinearHead(len(labelled.classes)), torch.optim.Adam
    if method == "opacus-head":
        settings = OPACUS_HEAD
        train, test = _pool_states(train, weights), _pool_states(test, weights)
    else:
        layer = _load_bert(weights).encoder.layer[-1]
        network = LastLayer(layer, len(labelled.classes), has_pooler=method == "opacus")
        make_optimizer = torch.optim.AdamW
    examples = [(one, labelled.classes.index(label)) for one, (_, label) in zip(train, labelled.train, strict=True)]
    epochs, batch_size = int(settings["epochs"]), int(settings["batch_size"])
    batches = math.ceil(len(examples) / batch_size)
    noise = find_noise_multiplier(epsilon, delta, 1 / batches, epochs * batches) if math.isfinite(epsilon) else 0.0
    engine = PrivacyEngine()
    network, optimizer, loader = engine.make_private(
        module=network.train(),
        optimizer=make_optimizer(network.parameters(), lr=settings["learning_rate"], eps=1e-8),
        data_loader=DataLoader(examples, batch_size=batch_size, collate_fn=_pad_states),
        noise_multiplier=noise,
        max_grad_norm=settings["max_grad_norm"],
    )
    for _ in range(epochs):
        for hidden, real, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(network(hidden, real), targets).backward()
            optimizer.step()
    network.eval()
    predicted: list[int] = []
    with torch.no_grad():
        for start in range(0, len(test), 32):
            hidden, real, _ = _pad_states([(one, 0) for one in test[start : start + 32]])
            predicted += network(hidden, real).argmax(1).tolist()
    return {
        "accuracy": _measure_share(labelled, predicted),
        "noise_multiplier": noise,
        "steps": epochs * batches,
        "add_or_remove_epsilon": round(engine.get_epsilon(delta), 3) if noise else None,
    }

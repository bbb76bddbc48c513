"""Train the encoder and a head after some of its layers; run it again after a stop, and it goes on.

    python examples/encoder_tagger/train.py WORK --pieces 1 --out teacher.pt

A run with the same inputs resumes from OUT; with others it begins again.  A stop loses ``--save-seconds`` at most.
All heads share one run: a head after layer 6 makes the first six layers a tagger of their own, at no cost, and the
frontier of layers against accuracy comes from one training.  The word embeddings stay as they are.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pieces import IGNORED, LABELS
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from redactory.foundation.canonical import file_sha256

WIDTH, PAD_PIECE = 384, 1
LOSS_WEIGHTS = {3: 0.15, 4: 0.15, 6: 0.4, 12: 1.0}
"""The layers with a head, and the weight of each head's loss."""
BATCH_PIECES, CHUNK_WINDOWS = 3_072, 4_000
RATE, HEAD_RATE, WARM_UP, LEAST_RATE = 8e-5, 1e-3, 0.05, 0.02
SAVE_SECONDS = 420
Window = tuple[np.ndarray, np.ndarray]


def make_model(state: dict[str, Tensor], layers: int) -> BertModel:
    """The first ``layers`` layers of the pretrained encoder."""
    config = BertConfig(
        vocab_size=len(state["embeddings.word_embeddings.weight"]),
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * WIDTH,
        type_vocab_size=len(state["embeddings.token_type_embeddings.weight"]),
        layer_norm_eps=1e-12,
        pad_token_id=PAD_PIECE,
        attention_probs_dropout_prob=0.0,
    )
    model = BertModel(config, add_pooling_layer=False)
    skipped = tuple(f"encoder.layer.{number}." for number in range(layers, 12))
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith(skipped)})
    return model


def make_batches(windows: list[Window], draw: random.Random) -> list[list[Window]]:
    """Batches of windows of similar length, in random order."""
    draw.shuffle(windows)
    batches: list[list[Window]] = []
    for first in range(0, len(windows), CHUNK_WINDOWS):
        batch: list[Window] = []
        for window in sorted(windows[first : first + CHUNK_WINDOWS], key=lambda window: len(window[0])):
            if batch and (len(batch) + 1) * len(window[0]) > BATCH_PIECES:
                batches.append(batch)
                batch = []
            batch.append(window)
        batches.append(batch)
    draw.shuffle(batches)
    return batches


def pad(batch: list[Window]) -> tuple[Tensor, Tensor, Tensor]:
    """Piece numbers, attention mask and labels of a batch, [windows, pieces]."""
    longest = max(len(numbers) for numbers, _ in batch)
    shape = len(batch), longest
    numbers, mask, labels = np.full(shape, PAD_PIECE), np.zeros(shape, int), np.full(shape, IGNORED)
    for row, (piece_numbers, piece_labels) in enumerate(batch):
        place = row, slice(len(piece_numbers))
        numbers[place], mask[place], labels[place] = piece_numbers, 1, piece_labels
    return torch.from_numpy(numbers), torch.from_numpy(mask), torch.from_numpy(labels)


def get_piece_files(work: Path, seeds: list[int]) -> list[Path]:
    """The files of ``encode.py``."""
    return [work / f"pieces-{seed}.npz" for seed in seeds]


def read_windows(work: Path, seeds: list[int]) -> list[Window]:
    """The windows of ``encode.py``."""
    windows: list[Window] = []
    for path in get_piece_files(work, seeds):
        with np.load(path) as stored:
            numbers, labels, offsets = stored["numbers"], stored["labels"], stored["offsets"]
        windows += [(numbers[a:b], labels[a:b]) for a, b in pairwise(offsets)]
    return windows


class Checkpoint:
    """Keeps the parts of a run in a file, so that a stopped run goes on.

    ``inputs`` are the files that the run depends on, ``seconds`` the time between two writes.
    """

    def __init__(self, path: Path, parts: dict[str, Any], inputs: list[Path], seconds: float) -> None:
        self._path, self._parts, self._seconds = path, parts, seconds
        self._inputs = [file_sha256(file) for file in inputs]
        self._saved = time.monotonic()

    def load(self) -> int:
        """Load the parts, and return the number of finished steps; 0 without a file, or if it had other inputs."""
        stored = torch.load(self._path, weights_only=True) if self._path.exists() else {}
        if stored.get("inputs") != self._inputs:
            return 0
        for name, part in self._parts.items():
            part.load_state_dict(stored[name])
        torch.set_rng_state(stored["random"])
        print("resumed after step", stored["step"], flush=True)
        return int(stored["step"])

    def save(self, step: int, is_last: bool) -> None:
        """Write the parts after the last step, and after others if enough time has passed."""
        if is_last or time.monotonic() - self._saved > self._seconds:
            states = {name: part.state_dict() for name, part in self._parts.items()}
            save({**states, "step": step, "inputs": self._inputs, "random": torch.get_rng_state()}, self._path)
            self._saved = time.monotonic()


def train(model: BertModel, batches: list[list[Window]], out: Path, inputs: list[Path], save_seconds: float) -> None:
    """One pass over ``batches``; resumes from ``out``."""
    exits = [layer for layer in LOSS_WEIGHTS if layer <= model.config.num_hidden_layers]
    heads = nn.ModuleDict({str(layer): nn.Linear(WIDTH, len(LABELS)) for layer in exits})
    model.embeddings.word_embeddings.weight.requires_grad_(False)
    body = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": body}, {"params": list(heads.parameters())}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    parts = {"model": model, "heads": heads, "optimizer": optimizer}
    checkpoint = Checkpoint(out, parts, inputs, save_seconds)
    step = checkpoint.load()
    model.train()
    while step < len(batches):
        share = (step + 1) / len(batches)
        factor = min(1.0, share / WARM_UP) * max(LEAST_RATE, 1 - share)
        for group, rate in zip(optimizer.param_groups, (RATE, HEAD_RATE), strict=True):
            group["lr"] = rate * factor
        losses = _train_step(model, heads, exits, pad(batches[step]), optimizer, body)
        step += 1
        if step % 25 == 0:
            print(f"{step}/{len(batches)}", losses, flush=True)
        checkpoint.save(step, is_last=step == len(batches))


def _train_step(
    model: BertModel, heads: nn.ModuleDict, exits: list[int], batch: tuple[Tensor, Tensor, Tensor],
    optimizer: torch.optim.Optimizer, body: list[nn.Parameter],
) -> dict[int, float]:  # fmt: skip
    numbers, mask, labels = batch
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(input_ids=numbers, attention_mask=mask, output_hidden_states=True).hidden_states
        losses = {
            layer: nn.functional.cross_entropy(
                heads[str(layer)](hidden[layer]).float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
            )
            for layer in exits
        }
        loss = sum(LOSS_WEIGHTS[layer] * value for layer, value in losses.items())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*body, *heads.parameters()], 1.0)
    optimizer.step()
    return {layer: round(value.item(), 4) for layer, value in losses.items()}


def save(state: dict[str, Any], out: Path) -> None:
    """Write a checkpoint; a stop in the middle leaves the earlier one."""
    temporary = out.with_name(f"{out.name}.new")
    torch.save(state, temporary)
    os.replace(temporary, out)


def main() -> None:
    """Train, or go on."""
    parser = argparse.ArgumentParser(description="train the encoder and its heads")
    parser.add_argument("work", type=Path)
    parser.add_argument("--pieces", type=int, nargs="+", default=[1], help="seeds of encode.py")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save-seconds", type=float, default=SAVE_SECONDS, help="time between two checkpoints")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(3)
    base = arguments.work / "base.pt"
    model = make_model(torch.load(base, weights_only=True), arguments.layers)
    batches = make_batches(read_windows(arguments.work, arguments.pieces), random.Random(3))
    inputs = [base, *get_piece_files(arguments.work, arguments.pieces)]
    train(model, batches, arguments.out, inputs, arguments.save_seconds)


if __name__ == "__main__":
    main()

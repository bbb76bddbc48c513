"""Classifiers of ``redactory train`` beside an expert's own loop over the clipping engine, and beside Opacus.

    python benchmarks/expert.py CORPUS... [--kinds bag lstm] [--seeds 5] [--json]

A CORPUS is a folder of ``public.jsonl``, ``train.jsonl`` and ``test.jsonl``, rows of text and label
(``benchmarks/expert_corpora.py`` makes two from public repositories).  Everybody has the same public text, of
which words are taken, the same noise, clip, sampling rate and steps, and a network of the same sizes, with
an entry for each of the command's pieces (the loops leave some without a word).  The
expert's loop is what somebody writes in an hour: words in lower case, PyTorch's layers with their first
weights, Adam at a fair rate.  A row gives the share of test texts told right, the mean over seeds, and the
processor time a step: of the whole process, from the command's start to the sealed model, and of the loop
alone.  Methods take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.clipping import compute_clipped_gradient
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.model import load_classifier

SIZES = {"bag": {"embedding_size": 64}, "lstm": {"embedding_size": 64, "hidden_size": 64}}
RATE, CLIP, WORDS, LONGEST = 0.02, 1.0, 4_000, 64
ENTRIES = WORDS + 358
"""Beside the pieces of words, the command's vocabulary has characters and bytes."""
COMMAND = ("dpsgd", "crt", "uedp-bounded")
LOOPS = ("loop", "opacus")


@dataclass(frozen=True)
class Setting:
    """One comparison: a corpus, a kind of network, how much noise and for how long."""

    corpus: Path
    kind: str
    noise_multiplier: float
    epochs: int
    seed: int

    @property
    def steps(self) -> int:
        """Noisy steps."""
        return self.epochs * math.ceil(1.0 / RATE)

    def rows(self, part: str) -> tuple[list[str], list[str]]:
        """Texts and labels of ``part``."""
        lines = (self.corpus / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        return [row["text"] for row in rows], [row["label"] for row in rows]


# The expert's loop.


class Expert(nn.Module):
    """PyTorch's own layers: an embedding, an LSTM if asked for, the mean over a text, a linear layer."""

    def __init__(self, classes: int, kind: str, lstm: Any = nn.LSTM) -> None:
        super().__init__()
        size = SIZES[kind]
        self.embedding = nn.Embedding(ENTRIES, size["embedding_size"], padding_idx=0)
        wide = size.get("hidden_size")
        self.lstm = None if wide is None else lstm(size["embedding_size"], wide, batch_first=True)
        self.output = nn.Linear(wide or size["embedding_size"], classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores [B, classes] of padded ``ids`` [B, T]."""
        states, real = self.embedding(ids), (ids > 0)[:, :, None]
        states = states if self.lstm is None else self.lstm(states)[0]
        return self.output((states * real).sum(1) / real.sum(1).clamp(min=1))


def words_of(text: str) -> list[str]:
    """Words and signs, in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def encoded(texts: list[str], known: dict[str, int]) -> list[list[int]]:
    """Each text as ids: 0 pads, 1 stands for an unknown word."""
    return [[known.get(word, 1) for word in words_of(text)[:LONGEST]] or [1] for text in texts]


def padded(rows: list[list[int]]) -> Tensor:
    """Ids [B, T]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def prepared(own: Setting) -> tuple[list[list[int]], list[int], dict[str, int], list[str]]:
    """Texts to train on as ids, their classes as numbers, the words' ids and the classes' names."""
    torch.manual_seed(own.seed)
    texts, labels = own.rows("train")
    counts = Counter(word for text in own.rows("public")[0] for word in words_of(text))
    names = sorted(set(labels))
    kept = [word for word, count in counts.most_common(ENTRIES - 2) if count > 1]
    known = {word: 2 + number for number, word in enumerate(kept)}
    return encoded(texts, known), [names.index(label) for label in labels], known, names


def loop(own: Setting, learning_rate: float = 0.01) -> tuple[float, float]:
    """DP-SGD by hand: (accuracy, processor seconds a step)."""
    points, labels, known, names = prepared(own)
    classes = torch.tensor(labels)
    network, stream = Expert(len(names), own.kind), RandomStream.from_seed(own.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    mechanism = PoissonGaussian(RATE, own.noise_multiplier, CLIP, RATE * len(points), noise="lattice")
    parameters, begun = list(network.parameters()), os.times()
    for step in range(own.steps):
        rows = np.flatnonzero(stream.uniform("coins", step, len(points)) < RATE)
        rows = rows[np.argsort([len(points[row]) for row in rows])]
        total = torch.zeros(sum(p.numel() for p in parameters))
        for piece in np.array_split(rows, 4):
            ids, wanted = padded([points[row] for row in piece]), classes[piece]
            losses = lambda: F.cross_entropy(network(ids), wanted, reduction="none")  # noqa: E731, B023
            total += compute_clipped_gradient(network, losses, CLIP).flat
        noisy = mechanism.compute_noisy_mean(total, stream, step)
        for parameter, share in zip(parameters, noisy.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = share.view_as(parameter)
        optimizer.step()
    return right(own, network, known, names), spent(begun, own.steps)


def opacus(own: Setting, learning_rate: float = 0.01) -> tuple[float, float]:
    """The same by Opacus' engine: its sampler, its clipping, its noise in float32."""
    from opacus import PrivacyEngine
    from opacus.layers import DPLSTM
    from torch.utils.data import DataLoader

    points, labels, known, names = prepared(own)
    rows = list(zip(points, labels, strict=True))
    network = Expert(len(names), own.kind, DPLSTM)
    network, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=learning_rate),
        data_loader=DataLoader(rows, batch_size=round(RATE * len(rows)), collate_fn=list),
        noise_multiplier=own.noise_multiplier,
        max_grad_norm=CLIP,
    )
    begun, done = os.times(), 0
    while done < own.steps:
        for batch in loader:
            optimizer.zero_grad()
            ids, wanted = padded([ids for ids, _ in batch]), torch.tensor([label for _, label in batch])
            F.cross_entropy(network(ids), wanted).backward()
            optimizer.step()
            done += 1
            if done == own.steps:
                break
    return right(own, network, known, names), spent(begun, own.steps)


@torch.no_grad()
def right(own: Setting, network: nn.Module, known: dict[str, int], names: list[str]) -> float:
    """Share of test texts that are told right."""
    texts, labels = own.rows("test")
    points, network = encoded(texts, known), network.eval()
    said = [names[int(network(padded([ids])).argmax())] for ids in points]
    return float(np.mean([one == other for one, other in zip(said, labels, strict=True)]))


def spent(begun: os.times_result, steps: int) -> float:
    """Processor seconds a step since ``begun``, of this process and of those that ended."""
    return sum(now - then for now, then in zip(os.times()[:4], begun[:4], strict=True)) / steps


# The command.


def curated(corpus: Path, work: Path) -> Path:
    """The configuration of a finished run on ``train.jsonl``; patterns alone decide what is public."""
    config = work / f"{corpus.name}.yaml"
    sides = {"segment": {"mode": "document"}, "dedup": {"mode": "none"}, "detect": {"tagger": None}}
    where = {"path": str((corpus / "train.jsonl").resolve()), "label": "label"}
    config.write_text(json.dumps({"input": where, "output": corpus.name, **sides}), encoding="utf-8")
    redactory("curate", config)
    return config


def redactory(*arguments: Any) -> None:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "redactory", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def command(own: Setting, trainer: str, config: Path) -> tuple[float, float]:
    """``redactory train`` with its defaults: (accuracy, processor seconds a step)."""
    texts, labels = own.rows("test")
    name = f"{trainer}-{own.kind}-{own.seed}"
    train = {
        "trainer": trainer,
        "name": name,
        "task": "classify",
        "classes": sorted(set(labels)),
        "public_text": str((own.corpus / "public.jsonl").resolve()),
        "model": {"kind": own.kind, **SIZES[own.kind]},
        "epochs": own.epochs,
        "sampling_rate": RATE,
        "noise_multiplier": own.noise_multiplier,
        "clip_norm": CLIP,
        "expected_batch_size": RATE * len(own.rows("train")[0]),
        "vocabulary_size": WORDS,
        "max_tokens": LONGEST,
        "bounding": {"k_user": 1, "k_entity": 100_000},
        "group_sizes": [],
        "seed": own.seed,
        "threads": 1,
    }
    used = config.with_name(f"{config.stem}-{name}.yaml")
    used.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), "train": train}))
    begun = os.times()
    redactory("train", used)
    cost = spent(begun, own.steps)
    model = load_classifier(RunFolder(config.parent / own.corpus.name).get_model_folder(name))
    said = model.compute_class_log_probs(texts).argmax(1)
    return float(np.mean([model.classes[k] == label for k, label in zip(said, labels, strict=True)])), cost


def main() -> None:
    """Every method of every kind on every corpus; a table, or a JSON list of rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--methods", nargs="+", choices=COMMAND + LOOPS, default=COMMAND + LOOPS)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for corpus in given.corpora:
            config = curated(corpus, Path(folder))
            for kind in given.kinds:
                found: dict[str, list[tuple[float, float]]] = {method: [] for method in given.methods}
                for seed in range(given.seeds):
                    own = Setting(corpus, kind, given.noise_multiplier, given.epochs, seed)
                    for method, results in found.items():
                        by_hand = {"loop": loop, "opacus": opacus}.get(method)
                        results.append(by_hand(own) if by_hand else command(own, method, config))
                        print(corpus.name, kind, seed, method, results[-1], file=sys.stderr, flush=True)
                rows += [row(corpus.name, kind, method, results) for method, results in found.items()]
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    for one in rows:
        print("{corpus:12} {kind:5} {method:13} {accuracy:6.2f} ±{deviation:5.2f} {cpu:8.4f} s".format(**one))


def row(corpus: str, kind: str, method: str, results: list[tuple[float, float]]) -> dict[str, Any]:
    """The mean over seeds, accuracy in per cent."""
    right, cost = zip(*results, strict=True)
    return {
        "corpus": corpus,
        "kind": kind,
        "method": method,
        "accuracy": round(100 * statistics.mean(right), 2),
        "deviation": round(100 * statistics.stdev(right), 2) if len(right) > 1 else 0.0,
        "cpu": round(statistics.median(cost), 4),
    }


if __name__ == "__main__":
    main()

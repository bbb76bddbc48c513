"""Which settings a fresh network needs under noise: the grid behind ``train.recipe: auto``.

    python benchmarks/recipe_corpora.py --clones CLONES DATA
    python benchmarks/classify_corpora.py --clones CLONES DATA      # AG News and SST-2, for the part check
    python benchmarks/recipe.py grid --data DATA --work WORK --kinds bag lstm
    python benchmarks/recipe.py check --data DATA --work WORK
    python benchmarks/recipe.py json --work WORK > docs/results/recipe.json

``grid`` trains classifiers from scratch on every corpus of ``recipe_corpora.py``: each learning rate, epsilon 1, 3 and
8, three seeds (of weights, samples and noise). Everything else is what the recipe chooses, and the vocabulary is the
shipped word list. ``check`` trains with the chosen values on AG News and SST-2, which chose nothing. Steps are the
package's: its clipping, its calibrated noise, its optimizer; only the noise comes from torch, for speed. A training is
measured once and kept in WORK.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipe_corpora import CORPORA

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import TokenizedExamples, encode_classes
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.model import build_classifier
from redactory.training.settings import TrainSettings
from redactory.training.steps import ScheduledOptimizer, apply_gradient, make_optimizer
from redactory.training.uedp.units import encode_examples
from redactory.training.vocabulary import build_vocabulary

Row = dict[str, Any]
EPSILONS, SEEDS = (1.0, 3.0, 8.0), 3
LEARNING_RATES = {"bag": (0.03, 0.1, 0.3), "lstm": (0.005, 0.015, 0.05)}
CHECKS = ("ag", "sst")
TOKENS = 65_536


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("grid", "check", "json"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", choices=LEARNING_RATES, default=["bag"])
    parser.add_argument("--corpora", nargs="*", choices=CORPORA, default=[*CORPORA])
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    path = arguments.work / "trainings.jsonl"
    if arguments.part == "json":
        print(json.dumps(summarize([json.loads(line) for line in path.read_text("utf-8").splitlines()]), indent=1))
        return
    torch.set_num_threads(1)
    measured = {json.loads(line)["key"] for line in path.read_text("utf-8").splitlines()} if path.exists() else set()
    for name, kind, epsilon, rate, seed in list_trainings(arguments):
        key = f"{arguments.part} {name} {kind} {epsilon:g} {rate} {seed}"
        if key not in measured:
            row = {"key": key, "part": arguments.part, **train(arguments.data, name, kind, epsilon, rate, seed)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)


def list_trainings(arguments: argparse.Namespace) -> Iterator[tuple[str, str, float, float | None, int]]:
    """List corpus, network, epsilon, learning rate (None: the recipe's) and seed of every training of a part."""
    is_grid = arguments.part == "grid"
    for seed in range(arguments.seeds):
        for kind in arguments.kinds:
            for name in arguments.corpora if is_grid else CHECKS:
                for epsilon in arguments.epsilons:
                    for rate in LEARNING_RATES[kind] if is_grid else (None,):
                        yield name, kind, epsilon, rate, seed


def make_settings(kind: str, classes: tuple[str, ...], epsilon: float, rate: float | None) -> TrainSettings:
    """Make the settings of one training: the recipe's, unless a learning rate is tried."""
    tried = {} if rate is None else {"dp_learning_rate": rate}
    fixed = {"trainer": "dpsgd", "task": "classify", "tokenizer": "shipped"}
    return TrainSettings(**fixed, classes=classes, epsilon=epsilon, model={"kind": kind}, **tried)


@cache
def read_corpus(data: Path, name: str) -> tuple[tuple[str, ...], list[list[Row]]]:
    """Read the classes and both parts of a corpus."""
    parts = [
        [json.loads(line) for line in (data / f"{name}_{part}.jsonl").open(encoding="utf-8")]
        for part in ("train", "test")
    ]
    return tuple(sorted({row["label"] for row in parts[0]})), parts


@cache
def calibrate(sampling_rate: float, steps: int, epsilon: float) -> float:
    """Return the noise multiplier, proved by the package."""
    settings = TrainSettings(trainer="dpsgd", sampling_rate=sampling_rate, epsilon=epsilon)
    mechanism = TrainingSpec.from_settings(settings, None, steps).mechanism
    assert mechanism is not None
    return mechanism.noise_multiplier


def train(data: Path, name: str, kind: str, epsilon: float, rate: float | None, seed: int) -> Row:
    """Train one classifier and measure it on the corpus's test part."""
    classes, parts = read_corpus(data, name)
    settings = make_settings(kind, classes, epsilon, rate)
    tokenizer = build_vocabulary(None, settings, None).tokenizer

    def encode(rows: list[Row]) -> TokenizedExamples:
        labels = [row["label"] for row in rows]
        return encode_examples(
            (row["text"] for row in rows), settings, tokenizer, lambda: encode_classes(labels, classes)
        ).examples

    examples, tests = map(encode, parts)
    network = build_classifier(settings.model, tokenizer, classes)
    network.initialise(RandomStream(seed.to_bytes(32, "little")))
    started = time.process_time()
    noise = take_noisy_steps(network, examples, settings, seed)
    return {
        "corpus": name,
        "kind": kind,
        "epsilon": epsilon,
        "learning_rate": settings.dp_learning_rate,
        "seed": seed,
        "rows": len(examples),
        **noise,
        **measure(network, tests),
        "processor_seconds": round(time.process_time() - started, 1),
    }


def take_noisy_steps(network: Any, examples: TokenizedExamples, settings: TrainSettings, seed: int) -> Row:
    """Take the noisy steps of ``settings`` on ``examples``; return their number and the noise multiplier."""
    sampling_rate, clip_norm = settings.sampling_rate, settings.clip_norm
    steps = settings.epochs * math.ceil(1.0 / sampling_rate)
    multiplier = calibrate(sampling_rate, steps, settings.epsilon)
    optimizer = schedule(network, settings, settings.dp_learning_rate, steps)
    coins, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for number in range(steps):
        rows = np.flatnonzero(coins.random(len(examples)) < sampling_rate)
        gradient = compute_clipped_sum(network, examples, rows, clip_norm, TOKENS)
        gradient += clip_norm * multiplier * torch.randn(gradient.shape, generator=noise)
        apply_gradient(network, optimizer, gradient / (sampling_rate * len(examples)), number)
    return {"steps": steps, "noise_multiplier": round(multiplier, 4)}


def schedule(network: Any, settings: TrainSettings, learning_rate: float, steps: int) -> ScheduledOptimizer:
    """Make an optimizer for ``steps`` steps."""
    is_constant = settings.learning_rate_schedule == "constant"
    optimizer = make_optimizer(network, settings.optimizer)
    return ScheduledOptimizer(optimizer, learning_rate, None if is_constant else steps, settings.learning_rate_schedule)


@torch.no_grad()
def measure(network: Any, tests: TokenizedExamples) -> dict[str, float]:
    """Measure accuracy, that of the most frequent class, and log loss in nats."""
    network.eval()
    hits, loss, classes = 0, 0.0, list[int]()
    for start in range(0, len(tests), 500):
        batch = tests.make_batch(np.arange(start, min(start + 500, len(tests))))
        true = batch.targets[:, 0]
        hits += int((network.logits(batch).argmax(1) == true).sum())
        loss += float(network.example_losses(batch).sum())
        classes += true.tolist()
    majority = max(map(classes.count, set(classes))) / len(tests)
    return {
        "accuracy": round(hits / len(tests), 4),
        "majority": round(majority, 4),
        "log_loss": round(loss / len(tests), 4),
    }


def summarize(trainings: list[Row]) -> Row:
    """Average over seeds, and for each network, epsilon and learning rate over the corpora that all rates have."""
    cells = defaultdict[tuple[Any, ...], list[Row]](list)
    for row in trainings:
        cells[row["part"], row["kind"], row["corpus"], row["epsilon"], row["learning_rate"]].append(row)
    rows = [
        {
            **dict(zip(("part", "kind", "corpus", "epsilon", "learning_rate"), key, strict=True)),
            **{name: round(statistics.mean(row[name] for row in group), 4) for name in ("accuracy", "log_loss")},
            "deviation": round(statistics.stdev([row["accuracy"] for row in group]), 4) if len(group) > 1 else None,
            "seeds": len(group),
            **{name: group[0][name] for name in ("majority", "rows", "steps", "noise_multiplier")},
        }
        for key, group in cells.items()
    ]
    means = defaultdict[tuple[str, float, float], list[Row]](list)
    for row in rows:
        if row["part"] == "grid":
            means[row["kind"], row["epsilon"], row["learning_rate"]].append(row)
    return {
        "seeds": SEEDS,
        "corpora": CORPORA,
        "means": [
            {
                **dict(zip(("kind", "epsilon", "learning_rate"), key, strict=True)),
                **{name: round(statistics.mean(row[name] for row in group), 4) for name in ("accuracy", "log_loss")},
                "corpora": len(group),
            }
            for key, group in means.items()
        ],
        "rows": rows,
    }


if __name__ == "__main__":
    main()

"""Which settings a language model needs under noise, after passes over public text: the other grid of the recipe.

    python benchmarks/recipe_corpora.py --clones CLONES DATA
    python benchmarks/recipe_language.py grid --data DATA --work WORK
    python benchmarks/recipe_language.py json --work WORK > docs/results/recipe_language.json

A tenth of each corpus of ``recipe_corpora.py`` is the public text, the rest is private. The LSTM passes over the public
text, then takes noisy steps; everything is the package's but the noise, which comes from torch for speed. One setting
of the recipe changes at a time, at epsilon 1, 3 and 8 and with three seeds. Measured is the perplexity per word piece
of the corpus's test part. A training is measured once and kept in WORK.
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
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from recipe import EPSILONS, SEEDS, Row, read_corpus, schedule, take_noisy_steps
from recipe_corpora import CORPORA

from redactory.foundation.stream import RandomStream
from redactory.training.data import TokenizedExamples
from redactory.training.model import build_language_network
from redactory.training.settings import TrainSettings
from redactory.training.steps import NoiseFreeSteps
from redactory.training.uedp.units import encode_examples
from redactory.training.vocabulary import build_vocabulary

PUBLIC_SHARE = 10
CHANGES: dict[str, dict[str, Any]] = {
    "recipe": {},
    "linear": {"learning_rate_schedule": "linear"},
    "dp_learning_rate 0.003": {"dp_learning_rate": 0.003},
    "dp_learning_rate 0.01": {"dp_learning_rate": 0.01},
    "dp_learning_rate 0.03": {"dp_learning_rate": 0.03},
    "pretraining_epochs 3": {"pretraining_epochs": 3},
    "pretraining_epochs 30": {"pretraining_epochs": 30},
    "pretraining_epochs 3, linear": {"pretraining_epochs": 3, "learning_rate_schedule": "linear"},
}
"""What differs from the recipe in each variant."""


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("grid", "json"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--corpora", nargs="*", choices=CORPORA, default=[*CORPORA])
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--changes", nargs="*", choices=CHANGES, default=[*CHANGES])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    path = arguments.work / "language.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    if arguments.part == "json":
        print(json.dumps(summarize(rows), indent=1))
        return
    torch.set_num_threads(1)
    measured = {row["key"] for row in rows}
    for name, epsilon, change, seed in list_trainings(arguments):
        key = f"{name} {epsilon:g} {change} {seed}"
        if key not in measured:
            row = {"key": key, **train(arguments.data, name, epsilon, change, seed)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)


def list_trainings(arguments: argparse.Namespace) -> Iterator[tuple[str, float, str, int]]:
    """List corpus, epsilon, variant and seed of every training; those that begin alike follow each other."""
    for seed in range(arguments.seeds):
        for name in arguments.corpora:
            for change in arguments.changes:
                for epsilon in arguments.epsilons:
                    if CHANGES[change] != {"dp_learning_rate": choose_rate(epsilon)}:  # the recipe itself
                        yield name, epsilon, change, seed


def choose_rate(epsilon: float) -> float:
    """Return the recipe's learning rate for noisy steps."""
    return TrainSettings(trainer="dpsgd", epsilon=epsilon, public_text=Path("unread")).dp_learning_rate


def train(data: Path, name: str, epsilon: float, change: str, seed: int) -> Row:
    """Train one language model and measure it on the corpus's test part."""
    chosen = {"pretraining_epochs": 10, "dp_learning_rate": choose_rate(epsilon), **CHANGES[change]}
    passes = chosen.pop("pretraining_epochs")  # TrainSettings wants a file of public text for it
    settings = TrainSettings(trainer="dpsgd", recipe="fixed", epsilon=epsilon, tokenizer="shipped", **chosen)
    started = time.process_time()
    pretrained, before, private, test = pretrain(data, name, passes, settings.learning_rate_schedule, seed)
    network = deepcopy(pretrained)
    return {
        "corpus": name,
        "epsilon": epsilon,
        "change": change,
        "seed": seed,
        "rows": len(private),
        **take_noisy_steps(network, private, settings, seed),
        "perplexity_before": before,
        "perplexity": measure_perplexity(network, test),
        "processor_seconds": round(time.process_time() - started, 1),
    }


@lru_cache(maxsize=1)
def pretrain(
    data: Path, name: str, passes: int, rates: Literal["constant", "linear"], seed: int
) -> tuple[Any, float, TokenizedExamples, TokenizedExamples]:
    """Pass over the public text; return the network, its perplexity, the private and the test examples."""
    settings = TrainSettings(trainer="dpsgd", recipe="fixed", tokenizer="shipped", learning_rate_schedule=rates)
    tokenizer = build_vocabulary(None, settings, None).tokenizer
    trained, tests = read_corpus(data, name)[1]

    def encode(rows: list[Row]) -> TokenizedExamples:
        texts = (row["text"] for row in rows)
        return encode_examples(texts, settings, tokenizer, lambda: np.empty(0, np.int64)).examples

    public, private, test = map(encode, (trained[::PUBLIC_SHARE], remove_every(trained, PUBLIC_SHARE), tests))
    network, stream = build_language_network(settings.model, tokenizer), RandomStream(seed.to_bytes(32, "little"))
    network.initialise(stream)
    rows, size = np.arange(len(public)), settings.public_batch_size
    optimizer = schedule(network, settings, settings.learning_rate, passes * math.ceil(len(public) / size))
    noise_free = NoiseFreeSteps(network, optimizer, public, rows, size, stream)
    for number in range(passes * noise_free.steps_per_pass):
        noise_free.step(number)
    return network, measure_perplexity(network, test), private, test


def remove_every(rows: list[Row], nth: int) -> list[Row]:
    """Return ``rows`` without every ``nth``, the first included."""
    return [row for index, row in enumerate(rows) if index % nth]


@torch.no_grad()
def measure_perplexity(network: Any, examples: TokenizedExamples) -> float:
    """Measure the perplexity per word piece."""
    network.eval()
    loss, targets = 0.0, 0
    for start in range(0, len(examples), 200):
        batch = examples.make_batch(np.arange(start, min(start + 200, len(examples))))
        loss += float(network.example_losses(batch).sum())
        targets += batch.count_targets()
    return round(math.exp(loss / targets), 2)


def summarize(trainings: list[Row]) -> Row:
    """Compare each variant with the recipe: the geometric mean of the perplexities' ratios, by epsilon."""
    perplexities = {(row["corpus"], row["epsilon"], row["seed"], row["change"]): row for row in trainings}
    logs, before = defaultdict[tuple[float, str], list[float]](list), defaultdict[float, list[float]](list)
    for (name, epsilon, seed, change), row in perplexities.items():
        base = perplexities.get((name, epsilon, seed, "recipe"))
        if base is not None:
            logs[epsilon, change].append(math.log(row["perplexity"] / base["perplexity"]))
            if change == "recipe":
                before[epsilon].append(math.log(row["perplexity"] / row["perplexity_before"]))
    return {
        "corpora": CORPORA,
        "network": "lstm, 200 units",
        "ratios": [
            {
                "epsilon": epsilon,
                "change": change,
                "ratio": compute_mean_ratio(values),
                "lowest": round(math.exp(min(values)), 3),
                "highest": round(math.exp(max(values)), 3),
                "trainings": len(values),
            }
            for (epsilon, change), values in sorted(logs.items())
        ],
        "private_steps": {f"{epsilon:g}": compute_mean_ratio(values) for epsilon, values in before.items()},
        "rows": [{key: row[key] for key in row if key not in ("key", "processor_seconds")} for row in trainings],
    }


def compute_mean_ratio(logarithms: list[float]) -> float:
    """Return the geometric mean of ratios."""
    return round(math.exp(statistics.mean(logarithms)), 4)


if __name__ == "__main__":
    main()

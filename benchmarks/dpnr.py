"""DPNR, the baseline of UeDP's appendix D, beside one Gaussian message: accuracy against sound epsilons.

    python benchmarks/dpnr.py --out F --data clauses.jsonl      F/dpnr.json
    python benchmarks/dpnr.py --formula                         the epsilons alone

DPNR drops words at a rate μ, scales a sentence's vector to [0, 1]^k by its own least and greatest coordinate
and puts Laplace noise of scale 1/ε on each.  ``published`` is that ε, no guarantee; ``revised`` and
``revised_with_dropout`` are UeDP's Theorems 1 and 2 (``docs/guarantees.md``, "What the paper prints");
``sound`` is the composition of k Laplace pairs at δ, for any two texts.  The Gaussian message is that of
``redactory ldp`` with the same ``sound``: the vector clipped to 1.  Both have one encoder, taught without
noise on public text, one message a sentence (DPNR's authors send again at every step), noise on the queries
and the same classifier.  Noise is of ordinary floats: this measures, and protects nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from ldp_corpus import Clauses
from numpy.typing import NDArray

import redactory
from redactory.foundation.files import write_json
from redactory.training.accounting.published_epsilons import PUBLISHED_NOTE
from redactory.training.ldp.accounting import FixedSends, calibrate_message_noise
from redactory.training.ldp.encoder import SentenceEncoder

DELTA, DIMENSION, DROPOUT, DRAWS, TYPES = 1e-5, 16, 0.1, 5, 12
EPSILONS = (0.05, 0.25, 0.5, 1.0, 2.0)
PUBLISHED = (0.05, 768)
"""The paper's own example (appendix D): BERT's width."""

Vectors = NDArray[np.float64]
Noised = Callable[[str, np.random.Generator], Vectors]


def main() -> None:
    """Print, and with a corpus measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path, help="CUAD's clauses as JSON lines")
    parser.add_argument("--formula", action="store_true")
    parser.add_argument("--epochs", type=int, default=10, help="passes over public text")
    asked = parser.parse_args()
    page: dict[str, Any] = {"note": PUBLISHED_NOTE, "delta": DELTA, "dropout": DROPOUT, "example": figures(*PUBLISHED)}
    if not asked.formula:
        page |= {"epochs": asked.epochs} | measured(asked.out, asked.data, asked.epochs)
        write_json(asked.out / "dpnr.json", page)
    print(json.dumps(page, indent=1))


def figures(epsilon: float, width: int) -> dict[str, float]:
    """What ``width`` Laplace noises of scale 1/``epsilon`` cost, as published and as it is."""
    whole = width * epsilon
    one = pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=1e-3)
    return {
        "width": width,
        "published": epsilon,
        "revised": whole,
        # ln((1 - μ) e^kε + μ), which e^kε alone would overflow
        "revised_with_dropout": float(np.logaddexp(math.log1p(-DROPOUT) + whole, math.log(DROPOUT))),
        "sound": min(whole, one.self_compose(width).get_epsilon_for_delta(DELTA)),
    }


def measured(out: Path, data: Path, epochs: int) -> dict[str, Any]:
    """Accuracy of both on ``out``'s corpus and encoder, which are made where they are not there."""
    corpus, folder = Clauses.prepared(data, out / "corpus", TYPES), out / "encoder"
    if not (folder / "_SUCCESS").exists():
        given = {"epochs": epochs, "dimension": DIMENSION, "threads": 1}
        redactory.ldp_encoder(corpus.path("public"), folder, given)
    encoder = SentenceEncoder.load(folder)
    rows = {part: [json.loads(line) for line in corpus.path(part).open(encoding="utf-8")] for part in ("users", "test")}
    texts = {part: [row["text"] for row in own] for part, own in rows.items()}
    names = sorted({row["label"] for row in rows["users"]})
    labels = {part: np.array([names.index(row["label"]) for row in own]) for part, own in rows.items()}
    kept = np.random.default_rng(1)
    dropped = {
        part: [" ".join(w for w in text.split() if kept.random() >= DROPOUT) for text in own]
        for part, own in texts.items()
    }
    plain, fewer = (
        {part: encoder.represent(own).double().numpy() for part, own in given.items()} for given in (texts, dropped)
    )

    def dpnr(epsilon: float) -> Noised:
        def noised(part: str, draw: np.random.Generator) -> Vectors:
            low, high = (end(fewer[part], axis=1, keepdims=True) for end in (np.min, np.max))
            scaled = (fewer[part] - low) / np.maximum(high - low, 1e-12)
            return scaled + draw.laplace(0.0, 1.0 / epsilon, scaled.shape)

        return noised

    def gaussian(noise: float) -> Noised:
        def noised(part: str, draw: np.random.Generator) -> Vectors:
            length = np.linalg.norm(plain[part], axis=1, keepdims=True)
            clipped = plain[part] / np.maximum(length, 1.0)
            return clipped + draw.normal(0.0, noise, clipped.shape)

        return noised

    table = []
    for epsilon in EPSILONS:
        told = figures(epsilon, DIMENSION)
        noise = calibrate_message_noise(told["sound"], 1, FixedSends(), DELTA)
        table.append(
            {
                **told,
                "noise_multiplier": noise,
                "dpnr": accuracy(dpnr(epsilon), labels),
                "gaussian": accuracy(gaussian(noise), labels),
            }
        )
    most = np.bincount(labels["test"]).max() / len(labels["test"])
    return {
        "sentences": len(texts["users"]),
        "texts": len(texts["test"]),
        "majority": float(most),
        "without_noise": accuracy(gaussian(0.0), labels)["value"],
        "table": table,
    }


def accuracy(noised: Noised, labels: dict[str, NDArray[np.int64]]) -> dict[str, float]:
    """Of a softmax regression on noised vectors, asked noised ones; over draws of all noise."""
    found = []
    for draw in map(np.random.default_rng, range(DRAWS)):
        seen, asked = noised("users", draw), noised("test", draw)
        centre, spread = seen.mean(axis=0), seen.std(axis=0)
        given, query = (torch.from_numpy((one - centre) / spread) for one in (seen, asked))
        truth = torch.from_numpy(labels["users"])
        weights = torch.zeros(given.shape[1] + 1, int(truth.max()) + 1, dtype=torch.float64, requires_grad=True)
        step = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

        def loss(step: Any = step, weights: Any = weights, given: Any = given, truth: Any = truth) -> torch.Tensor:
            step.zero_grad()
            cost = torch.nn.functional.cross_entropy(given @ weights[1:] + weights[0], truth)
            cost = cost + 1e-3 * weights[1:].square().sum()
            cost.backward()
            return cost

        step.step(loss)
        said = (query @ weights[1:] + weights[0]).argmax(dim=1).numpy()
        found.append(float((said == labels["test"]).mean()))
    return {"value": float(np.mean(found)), "least": min(found), "greatest": max(found)}


if __name__ == "__main__":
    main()

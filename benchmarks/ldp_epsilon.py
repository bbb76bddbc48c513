"""The LDP-NLP paper's epsilons beside sound ones, by accounting alone: limit theorem against exact figures.

python benchmarks/ldp_epsilon.py [--out FILE] [--quick]
writes one JSON object: ``training`` (equation 8, the size of SST-2), ``queries`` (equation 9), ``sends`` and
``pairs`` (no sampling); every figure of a row is of the same noise.  --quick leaves out the largest settings.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from redactory.training.accounting import Spending, epsilon_of
from redactory.training.accounting.bounds import gaussian_epsilon
from redactory.training.accounting.published import NOTE, epsilon_of_sends, noise_published
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenCoins,
    Participation,
    VisibleCoins,
    confirmed_epsilon,
    message,
)
from redactory.training.mechanism import Relation

SST, QUERIES, DELTA = 67_349, 872, 1e-5
TRAINING = ((256 / SST, 790), (256 / SST, 2630), (32 / SST, 6300), (0.05, 1000))
EPSILONS = (1.0, 2.3, 3.5, 12.0)
UP_SAMPLED = ((1 / QUERIES, 8720), (0.05, 200))
QUERY_EPSILONS, TRUE_SHARE = (0.8, 2.25), 0.1
NOISES, SENDS = (2.0, 4.0, 8.0), (1, 3, 10)


def main() -> None:
    """Compute the tables and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    own = parser.parse_args()
    settings = TRAINING[-1:] if own.quick else TRAINING
    claims = UP_SAMPLED[-1:] if own.quick else UP_SAMPLED
    found = {
        "note": NOTE,
        "training": [training(rate, steps, claim) for rate, steps in settings for claim in EPSILONS],
        "queries": [queries(rate, steps, claim) for rate, steps in claims for claim in QUERY_EPSILONS],
        "sends": [sends(noise, often, 1) for noise in NOISES for often in SENDS],
        "pairs": [sends(noise, often, 2) for noise in NOISES for often in SENDS],
    }
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if own.out is None:
        print(text, end="")
    else:
        own.out.write_text(text, encoding="utf-8")


def training(rate: float, steps: int, claim: float) -> dict[str, Any]:
    """One setting of the training stage; ``exact_add_remove`` is the paper's own relation and sensitivity."""
    delta = 1 / SST
    noise = noise_published(claim, rate, steps, delta)
    own = Spending(message(noise, 1, rate), steps)
    return {
        "rate": rate,
        "steps": steps,
        "delta": delta,
        "noise_multiplier": noise,
        "as_published": claim,
        "exact_add_remove": epsilon_of((own,), delta, Relation.ADD_OR_REMOVE),
        "hidden": _sound(noise, HiddenCoins(kind="hidden", rate=rate, steps=steps), delta),
        "visible": _sound(noise, VisibleCoins(kind="visible", rate=rate, steps=steps), delta),
        "expected_sends": rate * steps,
        # the expected number of sends need not be whole: the Gaussian figure is for any
        "expected_sends_sound": gaussian_epsilon(2.0 * math.sqrt(rate * steps) / noise, delta),
    }


def queries(rate: float, steps: int, claim: float) -> dict[str, Any]:
    """One setting of the inference stage, nine of ten queries fictitious."""
    delta = 1 / QUERIES
    noise = noise_published(claim, TRUE_SHARE * rate, steps, delta)
    return {
        "rate": rate,
        "steps": steps,
        "delta": delta,
        "true_share": TRUE_SHARE,
        "noise_multiplier": noise,
        "as_published": claim,
        "visible": _sound(noise, VisibleCoins(kind="visible", rate=rate, steps=steps), delta),
        "hidden": _sound(noise, HiddenCoins(kind="hidden", rate=rate, steps=steps), delta),
        "one_send": _sound(noise, FixedSends(), delta),
    }


def sends(noise: float, often: int, vectors: int) -> dict[str, Any]:
    """Messages without any sampling."""
    return {
        "noise_multiplier": noise,
        "sends": often,
        "vectors": vectors,
        "delta": DELTA,
        "as_published": epsilon_of_sends(noise, often, DELTA, vectors),
        "sound": _sound(noise, FixedSends(sends=often), DELTA, vectors),
    }


def _sound(noise: float, told: Participation, delta: float, vectors: int = 1) -> float | None:
    """Confirmed by the second accountant."""
    return confirmed_epsilon(noise, vectors, told, delta)[0]


if __name__ == "__main__":
    main()

"""The LDP-NLP paper's epsilons beside sound ones, by accounting alone: limit theorem against exact figures.

python benchmarks/ldp_epsilon.py [--out FILE] [--plot FILE] [--quick]
writes one JSON object: ``training`` (equation 8, the size of SST-2), ``queries`` (equation 9), ``sends`` and
``pairs`` (no sampling), ``composition`` (by number of steps, the paper's Figure 3, drawn by --plot),
``answered`` (Figure 7: messages until all queries are); every figure of a row is of the same noise.  --quick
leaves out the largest settings.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epsilons import compute_epsilon
from line_plot import Axes, Line, line_plot

from redactory.training.accounting import Spending
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.accounting.published_epsilons import (
    PUBLISHED_NOTE,
    compute_published_gaussian_epsilon,
    compute_published_ldp_epsilon,
    compute_published_ldp_noise,
    compute_renyi_epsilon,
)
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenSampling,
    Participation,
    VisibleSampling,
    calibrate_message_noise,
    confirm_message_epsilon,
    make_message_mechanism,
)
from redactory.training.mechanisms.mechanism import Relation

SST, QUERIES, DELTA = 67_349, 872, 1e-5
TRAINING = ((256 / SST, 790), (256 / SST, 2630), (32 / SST, 6300), (0.05, 1000))
EPSILONS = (1.0, 2.3, 3.5, 12.0)
UP_SAMPLED = ((1 / QUERIES, 8720), (0.05, 200))
QUERY_EPSILONS, TRUE_SHARE = (0.8, 2.25), 0.1
NOISES, SENDS = (2.0, 4.0, 8.0), (1, 3, 10)
ASKED, ASKED_RATES, ASKED_EPSILONS = 1214, (1.0, 0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01), (8.0, 2.0)
"""Queries, as many as the test of ``ldp.py`` has, and how often a message is true."""
STEPS = (10, 20, 50, 100, 200, 400, 790, 1500, 2630, 5000)
LINES = (
    ("visible", "coins seen, exact: sound", "#dc322f"),
    ("hidden_advanced", "hidden coins, eq. 10: sound", "#b58900"),
    ("hidden", "hidden coins, exact: sound", "#268bd2"),
    ("moments", "moments accountant, there or not", "#93a1a1"),
    ("exact_add_remove", "exact, there or not", "#2aa198"),
    ("as_published", "eq. 8, as published", "#6c71c4"),
)
"""Of Figure 3: those of one sentence exchanged for another first."""


def main() -> None:
    """Compute the tables and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true")
    own = parser.parse_args()
    settings = TRAINING[-1:] if own.quick else TRAINING
    claims = UP_SAMPLED[-1:] if own.quick else UP_SAMPLED
    found: dict[str, Any] = {
        "note": PUBLISHED_NOTE,
        "training": [training(rate, steps, claim) for rate, steps in settings for claim in EPSILONS],
        "queries": [queries(rate, steps, claim) for rate, steps in claims for claim in QUERY_EPSILONS],
        "sends": [sends(noise, often, 1) for noise in NOISES for often in SENDS],
        "pairs": [sends(noise, often, 2) for noise in NOISES for often in SENDS],
        "answered": [answered(rate, epsilon) for epsilon in ASKED_EPSILONS for rate in ASKED_RATES],
        "composition": [composition(steps) for steps in (STEPS[:3] if own.quick else STEPS)],
    }
    if own.plot is not None:
        own.plot.write_text(_drawn(found["composition"]), encoding="utf-8")
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if own.out is None:
        print(text, end="")
    else:
        own.out.write_text(text, encoding="utf-8")


def training(rate: float, steps: int, claim: float) -> dict[str, Any]:
    """One setting of the training stage; ``exact_add_remove`` is the paper's own relation and sensitivity."""
    delta = 1 / SST
    noise = compute_published_ldp_noise(claim, rate, steps, delta)
    own = Spending(make_message_mechanism(noise, 1, rate), steps)
    return {
        "rate": rate,
        "steps": steps,
        "delta": delta,
        "noise_multiplier": noise,
        "as_published": claim,
        "exact_add_remove": compute_epsilon((own,), delta, Relation.ADD_OR_REMOVE),
        "hidden": _sound(noise, HiddenSampling(kind="secret_bernoulli", rate=rate, steps=steps), delta),
        "visible": _sound(noise, VisibleSampling(kind="public_bernoulli", rate=rate, steps=steps), delta),
        "expected_sends": rate * steps,
        # the expected number of sends need not be whole: the Gaussian figure is for any
        "expected_sends_sound": compute_gaussian_epsilon(2.0 * math.sqrt(rate * steps) / noise, delta),
    }


def composition(steps: int) -> dict[str, Any]:
    """So many steps at the noise for which equation 8 prints EPSILONS[0] after those of TRAINING[0].

    ``hidden_advanced`` is equation 10 with half of delta for itself and the rest for the steps, each with the
    exact epsilon of a message; ``moments`` the Rényi accountant, valid for a sentence there or not alone.
    """
    (rate, often), delta = TRAINING[0], 1 / SST
    noise = compute_published_ldp_noise(EPSILONS[0], rate, often, delta)
    own = (Spending(make_message_mechanism(noise, 1, rate), steps),)
    hidden = HiddenSampling(kind="secret_bernoulli", rate=rate, steps=steps)
    one = confirm_message_epsilon(noise, 1, hidden.model_copy(update={"steps": 1}), delta / (2 * steps)).value
    assert one is not None
    return {
        "rate": rate,
        "steps": steps,
        "delta": delta,
        "noise_multiplier": noise,
        "as_published": compute_published_ldp_epsilon(noise, rate, steps, delta),
        "moments": compute_renyi_epsilon(own, delta, Relation.ADD_OR_REMOVE),
        "exact_add_remove": compute_epsilon(own, delta, Relation.ADD_OR_REMOVE),
        "hidden": _sound(noise, hidden, delta),
        "hidden_advanced": advanced(one, steps, delta / 2),
        "visible": _sound(noise, VisibleSampling(kind="public_bernoulli", rate=rate, steps=steps), delta),
    }


def answered(rate: float, epsilon: float) -> dict[str, Any]:
    """Messages of a query until less than half a query of ASKED is expected to have had no true one.

    ``noise_of_true`` is z/√(pT), that of what a user has in the true messages, in expectation.
    """
    steps = 1 if rate == 1.0 else math.ceil(math.log(2 * ASKED) / -math.log1p(-rate))
    way = HiddenSampling(kind="secret_bernoulli", rate=rate, steps=steps)
    noise = calibrate_message_noise(epsilon, 1, way, DELTA)
    return {
        "rate": rate,
        "steps": steps,
        "delta": DELTA,
        "queries": ASKED,
        "noise_multiplier": noise,
        "noise_of_true": noise / math.sqrt(rate * steps),
        "sound": confirm_message_epsilon(noise, 1, way, DELTA).value,
        "as_published": compute_published_ldp_epsilon(noise, rate, steps, DELTA),
    }


def advanced(epsilon: float, steps: int, delta: float) -> float:
    """Equation 10 (Dwork, Rothblum and Vadhan 2010): k steps of ``epsilon`` at an additional ``delta``."""
    spread = math.sqrt(2.0 * steps * math.log(1.0 / delta)) * epsilon
    return min(spread + steps * epsilon * math.expm1(min(epsilon, 700.0)), steps * epsilon)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [Line(name, colour, [(row["steps"], row[key]) for row in rows]) for key, name, colour in LINES]
    note = f"p = {rows[0]['rate']:.4f}, noise {rows[0]['noise_multiplier']:.2f} clips, delta 1/{SST}"
    return line_plot(lines, Axes("Epsilon by steps", "steps", "epsilon", True, True, notes=(note,)))


def queries(rate: float, steps: int, claim: float) -> dict[str, Any]:
    """One setting of the inference stage, nine of ten queries fictitious."""
    delta = 1 / QUERIES
    noise = compute_published_ldp_noise(claim, TRUE_SHARE * rate, steps, delta)
    return {
        "rate": rate,
        "steps": steps,
        "delta": delta,
        "true_share": TRUE_SHARE,
        "noise_multiplier": noise,
        "as_published": claim,
        "visible": _sound(noise, VisibleSampling(kind="public_bernoulli", rate=rate, steps=steps), delta),
        "hidden": _sound(noise, HiddenSampling(kind="secret_bernoulli", rate=rate, steps=steps), delta),
        "one_send": _sound(noise, FixedSends(), delta),
    }


def sends(noise: float, often: int, vectors: int) -> dict[str, Any]:
    """Messages without any sampling."""
    return {
        "noise_multiplier": noise,
        "sends": often,
        "vectors": vectors,
        "delta": DELTA,
        "as_published": compute_published_gaussian_epsilon(noise, often, DELTA, vectors),
        "sound": _sound(noise, FixedSends(sends=often), DELTA, vectors),
    }


def _sound(noise: float, told: Participation, delta: float, vectors: int = 1) -> float | None:
    """Confirmed by the second accountant."""
    return confirm_message_epsilon(noise, vectors, told, delta).value


if __name__ == "__main__":
    main()

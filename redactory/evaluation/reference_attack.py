"""Membership inference with one reference model: what a model finds likelier than another that never saw it.

Carlini et al. (2022) divide the likelihood under the model by that under a reference; Zarifzadeh, Liu and
Shokri, "Low-Cost High-Power Membership Inference Attacks" (2024), then ask how many sentences of the
population have a smaller ratio (RMIA, here with one reference model, offline).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.roc import separation
from redactory.evaluation.threshold import Halves, attack, best_threshold, scored_accuracy

Scores = NDArray[np.float64]


def rmia_scores(ratios: Scores, population: Scores, gamma: float = 1.0) -> Scores:
    """For each of ``ratios`` (natural logs, [n]) the share of ``population`` that it is ``gamma`` times: [n].

    P_z[ratio(x) / ratio(z) >= γ] (Zarifzadeh et al. 2024, equation 2), z of the population; equal ones
    count half.  1 less a threshold on it is about the rate of false positives to be borne.
    """
    ordered, asked = np.sort(population), ratios - np.log(gamma)
    both = np.searchsorted(ordered, asked, "left") + np.searchsorted(ordered, asked, "right")
    return np.asarray(both / (2 * len(ordered)))


def reference_attacks(ratios: Scores, halves: Halves, confidence: float, seed: int) -> dict[str, Any]:
    """{reference, rmia}: the figures of both attacks, ``ratios`` [2n] those of n members and n others.

    The population of RMIA is the others of the half that is not scored, and all its figures are of the
    other half.  Its curve is that of the ratio on these sentences, in steps of the population.
    """
    members, population = halves.split(ratios, halves.chosen)
    threshold = best_threshold(rmia_scores(members, population), rmia_scores(population, population))
    scored = [rmia_scores(part, population) for part in halves.split(ratios, halves.scored)]
    return {
        "reference": attack(ratios, halves, confidence, seed),
        "rmia": {
            **scored_accuracy(scored[0], scored[1], threshold, confidence),
            **separation(scored[0], scored[1], confidence, seed),
        },
    }

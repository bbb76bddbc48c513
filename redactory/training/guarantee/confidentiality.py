"""From the epsilon of a substitution to confidentiality, given how often the policies miss a secret."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redactory.detectors import blind_of
from redactory.foundation.intervals import upper_bound
from redactory.training.settings import RecallMeasurement


@dataclass(frozen=True)
class MissRates:
    """Upper bounds: ``gamma`` of the strict policy's misses, ``delta_2`` of both policies' misses.

    ``delta_2`` is ``None`` where nothing was measured; ``gamma`` is then 1.
    """

    gamma: float = 1.0
    delta_2: float | None = None

    @classmethod
    def measured(cls, recall: RecallMeasurement | None, everything_private: bool = False) -> MissRates:
        """The bounds of a measurement, each at its confidence c (both at once at 2c − 1).

        Counts bound nothing where labels were sampled by stratum: then the sample's own bounds are taken.
        With ``everything_private`` no secret can stand in a public point: δ₂ is 0.
        """
        if recall is None:
            found = NOT_MEASURED
        elif recall.sample is not None:
            found = cls(recall.sample.gamma_upper, recall.sample.delta_2_upper)
        else:
            gamma = upper_bound(recall.missed_by_strict, recall.labels, recall.confidence)
            both = upper_bound(recall.missed_by_both, recall.labels, recall.confidence)
            found = cls(gamma, min(both, gamma))
        return cls(found.gamma, 0.0) if everything_private else found

    @classmethod
    def of_run(cls, recall: RecallMeasurement | None, manifest: Mapping[str, Any]) -> MissRates:
        """The same of a finished run; of one that is blind to some kind of names nothing is known."""
        if blind_of(manifest)["kinds"]:
            return NOT_MEASURED
        everything = manifest["policies"]["conservative"].get("flags_everything") is True
        return cls.measured(recall, everything)


NOT_MEASURED = MissRates()


def bayesian_epsilon(
    epsilon_at: Callable[[float], float | None], delta: float, gamma: float, delta_2: float
) -> float | None:
    """CRT's Theorem 8.3 as corrected in ``docs/guarantees.md``, "Amplification by redaction".

    With the substitution curve ``epsilon_at`` (delta to epsilon), a secret that the strict policy
    misses with probability at most ``gamma`` and both policies with probability at most ``delta_2``,

        ε(δ) = log(1 + γ(exp(ε_sub((δ − δ₂)/γ)) − 1)),

    0 where (δ − δ₂)/γ >= 1, and ``None``, no finite epsilon, where δ <= δ₂.
    """
    if delta <= delta_2:
        return None
    if gamma <= 0.0 or (delta - delta_2) / gamma >= 1.0:
        return 0.0
    missed = epsilon_at((delta - delta_2) / gamma)
    if missed is None:
        return None
    if missed > 500.0:
        return missed + math.log(gamma) + math.log1p((1.0 / gamma - 1.0) * math.exp(-missed))
    return math.log1p(gamma * math.expm1(missed))

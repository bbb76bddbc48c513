"""Upper bounds of γ and δ₂ from labelled examples of a run, sampled by stratum.

**Bounded rates.** A secret is drawn in two steps: an example, uniformly among the examples of the run that hold a
secret (copies of a text count as often as they occur), then one of its secrets, uniformly. γ is the probability that
this secret has F(s) ≠ F(s with it masked), δ₂ that the two have different splits. That is a law μ as in
``docs/guarantees.md``, "Amplification by redaction". The rate over all secrets would need a bound on how many secrets
an unseen example may hold, which is unknown.

**The sample.** Stratum h has N_h examples, a known number; φ_h is the share of them that hold a secret, and ρ_h the
mean over these of the share of their secrets that is missed. A stratum with few distinct texts is labelled *whole*:
then φ_h and ρ_h are known. From any other, n_h examples are *drawn*, independently and uniformly, with replacement, and
each gives one secret, if it holds one. Then k_h, the draws with a secret, is Bin(n_h, φ_h), and given k_h the misses
are Bin(k_h, ρ_h): Clopper and Pearson's bounds are exact for both. Q more examples cannot be labelled (quarantined
ones, rows that a policy was fitted on). If they were labelled too, then, over the strata and Q,

γ = Σ N_h φ_h ρ_h / Σ N_h φ_h, δ₂ the same with its own ρ_h.

**Prior knowledge of ρ_h.** s with a secret masked holds ``<MASK>``, so it is private, or quarantined, which counts as
private. Hence

- *public* examples: the splits differ; every secret is missed by both, ρ = 1 for γ and for δ₂;
- *suspected* examples (private, without a strict mask): only ρ <= 1 is used for γ; ρ = 0 for δ₂;
- *masked* examples (private, with a strict mask): ρ for γ is measured; ρ = 0 for δ₂;
- Q: ρ <= 1 and φ <= 1 for γ; for δ₂ this holds of its public part, and ρ = 0 of its private one.

**The bounds.** γ and δ₂ are means of the ρ_h with weights N_h φ_h: such a mean grows with the weight of a stratum with
ρ = 1, and falls with the other weights. So it is at most its value at φ's upper bound in the former strata, at φ's
lower bound in the latter, and at ρ's upper bound. With C = N_pub φ⁺_pub + N_sus φ⁺_sus + Q,

    γ⁺ = (C + N_mask φ⁻_mask ρ⁺_mask) / (C + N_mask φ⁻_mask),
    δ₂⁺ = (N_pub φ⁺_pub + Q_pub) / (N_pub φ⁺_pub + Q_pub + N_mask φ⁻_mask + N_sus φ⁻_sus).

Each holds with probability at least 1 - α if the errors of the bounds it uses sum to at most α (union bound). Nine
tenths of α are divided evenly among the upper bounds, which matter most, a tenth among the lower ones; values known
without drawing need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from redactory.evaluation.statistics import count_secrets_needed
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper

PUBLIC, MASKED, SUSPECTED = "public", "masked", "suspected"
STRATA = (PUBLIC, MASKED, SUSPECTED)
UPPER_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Stratum:
    """The labels of a stratum: N_h ``examples``, n_h ``draws``, of these k_h ``secrets``, of these ``missed``.

    A stratum that was labelled completely, or is empty, has no draws and no uncertainty: its ``secrets`` are N_h φ_h,
    its ``missed`` ones N_h φ_h ρ_h.
    """

    examples: int
    draws: int | None
    secrets: float
    missed: float

    def __post_init__(self) -> None:
        most = self.examples if self.draws is None else self.draws
        counted = 0 <= self.missed <= self.secrets * (1 + 1e-9) <= most * (1 + 2e-9)
        if not counted or (self.draws is not None and not self.examples > 0 < self.draws):
            raise ValueError("needs 0 <= missed <= secrets <= draws (or examples), and examples to draw from")

    @property
    def examples_per_draw(self) -> float:
        """How many examples one of ``secrets`` represents."""
        return 1.0 if self.draws is None else self.examples / self.draws

    def bound_secret_count(self, clopper_pearson: Callable[[int, int, float], float], error: float) -> float:
        """Return N_h φ_h's upper or lower bound by ``clopper_pearson``, wrong with probability at most ``error``."""
        if self.draws is None:
            return self.secrets
        return self.examples * clopper_pearson(int(self.secrets), self.draws, 1 - error)

    def compute_missed_count_upper_bound(self, secret_count: float, error: float) -> float:
        """Return ``secret_count`` · ρ⁺_h, too small with probability at most ``error``."""
        if self.draws is None:
            return self.missed
        return secret_count * clopper_pearson_upper(int(self.missed), int(self.secrets), 1 - error)


class UnmeasuredExamples(NamedTuple):
    """Q: examples that cannot be labelled, by split."""

    public: int = 0
    private: int = 0


class GammaDeltaRates(NamedTuple):
    """γ and δ₂: bounds, or estimates."""

    gamma: float
    delta_2: float


def compute_upper_bounds(
    strata: Mapping[str, Stratum], confidence: float, unmeasured: UnmeasuredExamples
) -> GammaDeltaRates:
    """Return γ⁺ and δ₂⁺ of the module docstring, each at ``confidence``, jointly at 2·confidence - 1.

    ``strata`` holds each of :data:`STRATA`. A bound is 1 if nothing is known. A guarantee reads them by
    ``MissRates.from_measurement`` in ``training/guarantee/spec.py``.
    """
    public, masked, suspected = (strata[name] for name in STRATA)
    upper, lower = _split_error_probability(confidence)
    share = upper / max(1, sum(stratum.draws is not None for stratum in strata.values()))
    certain = sum(stratum.bound_secret_count(clopper_pearson_upper, share) for stratum in (public, suspected)) + sum(
        unmeasured
    )
    caught = masked.bound_secret_count(clopper_pearson_lower, lower)
    missed = certain + masked.compute_missed_count_upper_bound(caught, share)
    gamma = missed / (certain + caught) if certain + caught else 1.0
    left_open = public.bound_secret_count(clopper_pearson_upper, upper) + unmeasured.public
    delta_2 = left_open / (left_open + _compute_private_secret_lower_bound(strata, lower)) if left_open else 0.0
    # γ is at least δ₂; raising a bound keeps its confidence, lowering the other would not
    return GammaDeltaRates(max(gamma, delta_2), delta_2)


def estimate_rates(strata: Mapping[str, Stratum]) -> GammaDeltaRates | None:
    """Return the weighted rates of the sample, ignoring unmeasured examples; None without a secret."""
    holding = {name: stratum.examples_per_draw * stratum.secrets for name, stratum in strata.items()}
    total = sum(holding.values())
    missing = sum(stratum.examples_per_draw * stratum.missed for stratum in strata.values())
    return GammaDeltaRates(missing / total, holding[PUBLIC] / total) if total else None


def count_public_draws_needed(
    strata: Mapping[str, Stratum], delta_2: float, confidence: float, unmeasured: UnmeasuredExamples
) -> int | None:
    """Return how many public draws without a secret would show δ₂⁺ <= ``delta_2``, private strata unchanged.

    0 if the public stratum is known and shows it. None if no number of draws would: too little is known of the private
    strata, too much is unmeasured, or the public stratum is known and shows the contrary.
    """
    upper, lower = _split_error_probability(confidence)
    room = delta_2 / (1 - delta_2) * _compute_private_secret_lower_bound(strata, lower) - unmeasured.public
    public = strata[PUBLIC]
    if public.draws is None:
        return 0 if public.secrets + unmeasured.public == 0 or public.secrets <= room else None
    if room <= 0:
        return None
    return 0 if room >= public.examples else count_secrets_needed(room / public.examples, 1 - upper)


class SamplePlan(NamedTuple):
    """The strata to label completely, and the number of draws from each of the others."""

    whole: frozenset[str]
    draws: dict[str, int]


def plan_sample(examples: Mapping[str, int], texts: Mapping[str, int], n: int, public_share: float) -> SamplePlan:
    """Plan at most ``n`` texts to label, ``public_share`` of them public, the private strata by √N_h.

    ``texts`` are the distinct texts of each stratum (any number above ``n`` will do if there are more). A stratum with
    no more of them than its draws is labelled completely, and the rest goes to the others. Σ N_h c/n_h is smallest with
    n_h proportional to √N_h. ``ConfigurationError`` if the share is not inside (0, 1) or some stratum has no draw.
    """
    whole = {name for name in STRATA if not examples[name]}
    weights = dict.fromkeys(STRATA, public_share)
    roots = {name: math.sqrt(examples[name]) for name in (MASKED, SUSPECTED)}
    for name, root in roots.items():
        weights[name] = (1 - public_share) * root / max(sum(roots.values()), 1.0)
    if not 0 < public_share < 1 or n < len(STRATA) - len(whole):
        raise ConfigurationError(
            f"{n} draws at a public share of {public_share:g}: the share must lie between 0 and 1, and each stratum "
            "needs a draw"
        )
    while True:
        left = n - sum(texts[name] for name in whole)
        draws = _allocate_draws(left, {name: weights[name] for name in STRATA if name not in whole})
        done = {name for name in draws if texts[name] <= draws[name]}
        if not done:
            return SamplePlan(frozenset(whole), draws)
        whole |= done


def _allocate_draws(n: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Allocate ``n`` by largest remainder, at least 1 each."""
    exact = {name: n * weight / sum(weights.values()) for name, weight in weights.items()}
    allocation = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: allocation[name] - exact[name])[: n - sum(allocation.values())]:
        allocation[name] += 1
    for name in allocation:
        if not allocation[name]:
            allocation[max(allocation, key=allocation.__getitem__)] -= 1
            allocation[name] = 1
    return allocation


def _compute_private_secret_lower_bound(strata: Mapping[str, Stratum], error: float) -> float:
    """Return a lower bound of the private examples with a secret, wrong with probability at most ``error``."""
    private = [strata[name] for name in (MASKED, SUSPECTED)]
    drawn = sum(stratum.draws is not None for stratum in private)
    return sum(stratum.bound_secret_count(clopper_pearson_lower, error / max(1, drawn)) for stratum in private)


def _split_error_probability(confidence: float) -> tuple[float, float]:
    return UPPER_SHARE * (1 - confidence), (1 - UPPER_SHARE) * (1 - confidence)

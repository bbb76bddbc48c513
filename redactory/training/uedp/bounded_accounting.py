"""Sound epsilons of ``uedp-bounded``: Poisson-sampled examples, clipping per example, caps per privacy unit.

Formal guarantees: if removing a unit makes at most K kept examples null (gradient exactly 0), T steps are
dominated by the T-fold mixture of Gaussians N(0, σ²) against Σ_j Bin(K, q)(j)·N(j, σ²), in both orders.
Conditions (a) to (e) imply K = k_u + k_e, and the code meets them for every corpus: (a) copies are examples of
their own, or ``read_incidence`` listed every holder, else it refused; (b), (c) and (e) by construction; (d) by
the words of the card (``docs/explanation/uedp.md``, "What is promised instead").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import (
    Comparison,
    ConfirmedEpsilon,
    NoiseSearch,
    Spending,
    compare_units,
    confirm_epsilon,
    find_noise,
)
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounding import bound_contributions
from redactory.training.uedp.incidence import Incidence, count_degrees
from redactory.training.unit_settings import PrivacyUnit

CURVE_SIZES = (1, 2, 4, 8, 16, 32)
_MAX_NOISE = 1e6


@dataclass(frozen=True)
class BoundedTraining:
    """The constants of a training: q, σ (noise deviation / clip, on the sum), T, and the caps.

    ``k_user``, ``k_entity``: kept examples of one user, of one entity; None for a unit without a cap.
    ``entities_per_point`` r: the selection is R-LOC.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    k_user: int | None
    k_entity: int | None
    protect: PrivacyUnit = PrivacyUnit.BOTH
    entities_per_point: int | None = None

    def __post_init__(self) -> None:
        if not (0.0 < self.sampling_rate <= 1.0 and self.noise_multiplier > 0.0 and self.steps >= 0):
            raise ConfigurationError("uedp-bounded needs a sampling rate in (0, 1], noise > 0 and steps >= 0")
        if any(k is not None and k < 1 for k in (self.k_user, self.k_entity)):
            raise ConfigurationError("k_user and k_entity: must be at least 1")

    @classmethod
    def from_settings(cls, settings: TrainSettings, noise_multiplier: float, steps: int) -> BoundedTraining:
        """Build the constants from which the epsilons of ``settings`` are computed."""
        caps = settings.bounding.model_dump(include={"k_user", "k_entity", "entities_per_point"})
        return cls(settings.sampling_rate, noise_multiplier, steps, protect=settings.units.privacy_unit, **caps)

    def compare_worlds(self, removed: int, added: int = 0) -> Comparison:
        """Compare worlds in which ``removed`` kept examples become null or vanish and ``added`` others appear."""
        mechanism = PoissonGaussian(self.sampling_rate, self.noise_multiplier, 1.0, 1.0)
        return compare_units((Spending(mechanism, self.steps),), removed, added)


def count_affected_examples(training: BoundedTraining) -> int:
    """Return K on a fixed graph: k_u + k_e for both, their maximum for either.

    ``GuaranteeError`` if a protected unit has no cap.
    """
    caps = {
        "k_user": training.k_user if training.protect is not PrivacyUnit.ENTITIES else 0,
        "k_entity": training.k_entity if training.protect is not PrivacyUnit.USERS else 0,
    }
    for name, cap in caps.items():
        if cap is None:
            raise GuaranteeError(f"{name}: no cap bounds the examples of one privacy unit")
    user, entity = (cap or 0 for cap in caps.values())
    return max(user, entity) if training.protect is PrivacyUnit.EITHER else user + entity


def confirm_zero_out_epsilon(training: BoundedTraining, delta: float) -> ConfirmedEpsilon:
    """Confirm C1, the default: the unit's examples are null in the other world, the hypergraph is the same."""
    try:
        affected = count_affected_examples(training)
    except GuaranteeError as error:
        return ConfirmedEpsilon(None, reason=f"no finite epsilon: {error}")
    return confirm_epsilon(training.compare_worlds(affected), delta, "epsilon_sound")


def confirm_user_removal_epsilon(training: BoundedTraining, delta: float) -> ConfirmedEpsilon:
    """Confirm C2, for R-LOC alone: the user's examples vanish, the entity's become null.

    k_u + k_e examples vanish and up to k_u·r others appear: a chain of two mixtures, with about three times the
    epsilon. The sampling rate, the steps, the normaliser and the caps must not depend on the corpus.
    """
    if training.entities_per_point is None:
        reason = "stated only for bounding.rule r-loc: no other rule is stable when a user's examples are removed"
        return ConfirmedEpsilon(None, reason=reason)
    user_cap = training.k_user if training.protect is not PrivacyUnit.ENTITIES else 0
    added = (user_cap or 0) * training.entities_per_point
    comparison = training.compare_worlds(count_affected_examples(training), added)
    return confirm_epsilon(comparison, delta, "epsilon_user_removal")


def confirm_epsilon_by_example_count(
    training: BoundedTraining, delta: float, sizes: Iterable[int] = CURVE_SIZES
) -> dict[int, ConfirmedEpsilon]:
    """Confirm C0: for each K of ``sizes`` the epsilon of any units of which at most K kept examples become null."""
    return {size: confirm_epsilon(training.compare_worlds(size), delta, f"{size} examples") for size in sizes}


# How many examples each cap keeps, of which labels, and which cap to take: k is about n / U.


NO_ENTITY = "(no entity)"


@dataclass(frozen=True)
class CalibrationTarget:
    """ε at δ in ``steps`` steps of ``batch_size`` expected points (q = batch size / kept)."""

    epsilon: float
    delta: float
    batch_size: int
    steps: int


def suggest_cap(example_count: int, unit_count: int) -> int:
    """Suggest k = n / U, rounded, at least 1.

    While kU examples are kept, K·q = 2·batch/U does not depend on k: more data at the same noise, up to k = n/U.
    Beyond it K grows, but the data do not.
    """
    return max(1, round(example_count / unit_count)) if unit_count else 1


def list_candidate_caps(suggested_cap: int) -> list[int]:
    """List the suggestion, and the powers of two up to the first one above it."""
    return sorted({suggested_cap, *(1 << power for power in range(suggested_cap.bit_length() + 1))})


def compare_caps(
    incidence: Incidence,
    protect: PrivacyUnit = PrivacyUnit.BOTH,
    caps: Iterable[int] | None = None,
    target: CalibrationTarget | None = None,
) -> dict[str, Any]:
    """Compare what each cap k_u = k_e of ``caps`` keeps of the corpus under ``greedy``, as JSON.

    The suggestion is n/U over the users (if only entities are protected: over the entities in more than one
    example). ``by_label`` counts examples that mention an entity of the label, ``(no entity)`` those of S;
    ``affected`` is K; ``noise_multiplier`` σ reaches the ``target``; ``relative_noise`` is σ / batch size, the
    noise on the mean gradient in clips.
    """
    if not len(incidence):
        raise ConfigurationError("there is no example to plan for")
    degrees = count_degrees(incidence.entities if protect is PrivacyUnit.ENTITIES else incidence.users)
    shared = degrees[degrees > 1] if protect is PrivacyUnit.ENTITIES else degrees[degrees > 0]
    suggested_cap = suggest_cap(int(shared.sum()), len(shared))
    choices = []
    for cap in list_candidate_caps(suggested_cap) if caps is None else sorted(set(caps)):
        k_user = cap if protect is not PrivacyUnit.ENTITIES else None
        k_entity = cap if protect is not PrivacyUnit.USERS else None
        kept = incidence.select_examples(bound_contributions(incidence, k_user, k_entity))
        training, rate, sigma = BoundedTraining(1.0, 1.0, 0, k_user, k_entity, protect), None, None
        if target is not None:
            rate = min(1.0, target.batch_size / len(kept))
            calibrated_training = replace(training, sampling_rate=rate, steps=target.steps)
            sigma = _find_noise(calibrated_training, target)
        choices.append(
            {
                "cap": cap,
                "kept": len(kept),
                **_count_units(kept),
                "affected": count_affected_examples(training),
                "sampling_rate": rate,
                "noise_multiplier": sigma,
                "relative_noise": None if target is None or sigma is None else sigma / target.batch_size,
            }
        )
    return {"examples": len(incidence), **_count_units(incidence), "suggested": suggested_cap, "choices": choices}


def _find_noise(training: BoundedTraining, target: CalibrationTarget) -> float:
    affected = count_affected_examples(training)
    return find_noise(
        lambda sigma: replace(training, noise_multiplier=sigma).compare_worlds(affected),
        target.epsilon,
        target.delta,
        NoiseSearch(1.0, 1e-2, _MAX_NOISE, 1e-2),
    )


def count_examples_by_label(incidence: Incidence) -> dict[str, int]:
    """Count the examples that mention an entity of each label; an example with several labels counts in each."""
    counts = dict(zip(incidence.label_names, count_degrees(incidence.labels).tolist(), strict=True))
    return {**dict(sorted(counts.items())), NO_ENTITY: int(incidence.extended_mask.sum())}


def _count_units(incidence: Incidence) -> dict[str, Any]:
    return {
        "by_label": count_examples_by_label(incidence),
        "users": int((count_degrees(incidence.users) > 0).sum()),
        "entities": int((count_degrees(incidence.entities) > 0).sum()),
    }

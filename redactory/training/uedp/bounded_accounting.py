"""Sound epsilons of ``uedp-bounded``: Poisson-sampled examples, clipping per example, caps per privacy unit.

Formal guarantees: if removing a unit makes at most K kept examples null (gradient exactly 0), T steps are
dominated by the T-fold mixture of Gaussians N(0, σ²) against Σ_j Bin(K, q)(j)·N(j, σ²), in both orders.
Conditions (a) to (e) imply K = k_u + k_e, and the code meets them for every corpus: (a) copies are examples of
their own, or ``read_incidence`` listed every holder, else it refused; (b), (c) and (e) by construction; (d) by
the words of the card (``docs/explanation/uedp.md``, "What is promised instead").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting.bounds import FINE_SPLITS, MAX_EPSILON, PrivacyCurve, compute_chain_epsilon
from redactory.training.accounting.calibration import NoiseSearch, choose_coarsening_factor, find_smallest_noise
from redactory.training.accounting.curves import FINEST_INTERVAL, make_group_epsilon_curve
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounding import bound_contributions
from redactory.training.uedp.incidence import Incidence, count_degrees
from redactory.training.unit_settings import Adjacency, PrivacyUnit, UnitEpsilon, make_relation_name

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


def compute_zero_out_epsilon(training: BoundedTraining, delta: float) -> UnitEpsilon:
    """Compute C1, the default: the unit's examples are null in the other world, the hypergraph is the same."""
    relation = make_relation_name(training.protect, Adjacency.FIXED_GRAPH)
    try:
        affected = count_affected_examples(training)
    except GuaranteeError as error:
        return UnitEpsilon(None, delta, relation, f"no finite epsilon: {error}")
    return _make_unit_epsilon(training, delta, relation, affected)


def compute_user_removal_epsilon(training: BoundedTraining, delta: float) -> UnitEpsilon:
    """Compute C2, for R-LOC alone: the user's examples vanish, the entity's become null.

    k_u + k_e examples vanish and up to k_u·r others appear: a chain of two mixtures, with about three times the
    epsilon. The sampling rate, the steps, the normaliser and the caps must not depend on the corpus.
    """
    relation = make_relation_name(training.protect, Adjacency.USER_REMOVAL)
    if training.entities_per_point is None:
        reason = "stated for rule r-loc alone: no other rule is stable when a user's examples are removed"
        return UnitEpsilon(None, delta, relation, reason)
    user_cap = training.k_user if training.protect is not PrivacyUnit.ENTITIES else 0
    added = (user_cap or 0) * training.entities_per_point
    return _make_unit_epsilon(training, delta, relation, count_affected_examples(training), added)


def compute_epsilon_by_example_count(
    training: BoundedTraining, delta: float, sizes: Iterable[int] = CURVE_SIZES
) -> dict[int, UnitEpsilon]:
    """Compute C0: for each K of ``sizes`` the epsilon of any units of which at most K kept examples become null."""
    relation = f"any units with at most {{}} examples, {Adjacency.FIXED_GRAPH.value}"
    return {size: _make_unit_epsilon(training, delta, relation.format(size), size) for size in sizes}


def _make_unit_epsilon(
    training: BoundedTraining, delta: float, relation: str, removed: int, added: int = 0
) -> UnitEpsilon:
    epsilon = compute_bounded_epsilon(training, delta, removed, added)
    if epsilon >= MAX_EPSILON:
        return UnitEpsilon(None, delta, relation, "no finite epsilon was found for so little noise")
    return UnitEpsilon(epsilon, delta, relation)


def compute_bounded_epsilon(
    training: BoundedTraining, delta: float, removed: int, added: int = 0, coarsening: float = 1.0
) -> float:
    """Compute epsilon if ``removed`` kept examples become null or vanish and ``added`` others replace them.

    That of the mixture pair, or of the chain of two; ``inf`` if none is found. A grid that is ``coarsening`` times
    coarser is faster and slightly less tight.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    rate, sigma, steps = training.sampling_rate, training.noise_multiplier, training.steps

    def make_curve(count: int, covers_small_deltas: bool) -> PrivacyCurve:
        return make_group_epsilon_curve(count, rate, sigma, steps, coarsening, covers_small_deltas)

    if added == 0:
        return make_curve(removed, coarsening == 1.0)(delta)
    epsilon = compute_chain_epsilon(make_curve(removed, False), make_curve(added, False), delta, FINE_SPLITS)
    if math.isinf(epsilon) and coarsening == 1.0:
        return compute_chain_epsilon(make_curve(removed, True), make_curve(added, True), delta, (0.5,))
    return epsilon


@lru_cache(maxsize=64)
def calibrate_bounded_noise(target: float, training: BoundedTraining, delta: float, tolerance: float = 2e-3) -> float:
    """Find the smallest noise multiplier σ with a C1 epsilon <= ``target``, or a share ``tolerance`` above it.

    ``GuaranteeError`` if no unit has a cap, or no σ below 10⁶ reaches the target.
    """
    affected = count_affected_examples(training)
    if not (target > 0.0 and training.steps):
        raise ConfigurationError("noise cannot be calibrated for 0 steps, or for an epsilon of 0")

    def compute_clamped_epsilon(coarsening_factor: float, sigma: float) -> float:
        noisier = replace(training, noise_multiplier=sigma)
        epsilon = compute_bounded_epsilon(noisier, delta, affected, coarsening=coarsening_factor)
        return max(min(epsilon, MAX_EPSILON), 1e-9)

    shift = affected * training.sampling_rate * math.sqrt(training.steps)
    start = 4.3 * shift / target + 0.6
    rough = choose_coarsening_factor(FINEST_INTERVAL * max(1.0, 2.5 * affected / start), target, training.steps)
    search = NoiseSearch(start, 1e-2, _MAX_NOISE, tolerance / 20.0)
    return find_smallest_noise(target, compute_clamped_epsilon, rough, search)


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
            sigma = calibrate_bounded_noise(target.epsilon, calibrated_training, target.delta, tolerance=1e-2)
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

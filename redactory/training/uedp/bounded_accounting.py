"""Sound epsilons of ``uedp-bounded``: Poisson-sampled points, one clip a point, caps a unit.

Formal guarantees: where taking a unit away makes at most K kept points null (gradient exactly 0), T
steps are dominated by the T-fold mixture of Gaussians N(0, σ²) against Σ_j Bin(K, q)(j)·N(j, σ²), in
both orders.  Conditions (a) to (e) say when K = k_u + k_e; the code meets them whatever the corpus: (a)
copies are points of their own, or ``read_incidence`` has listed every holder, else it refused; (b), (c) and
(e) by construction; (d) by the words of the card (``docs/explanation/uedp.md``, "What is promised instead").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting.bounds import FINE_SPLITS, LARGEST_EPSILON, chain
from redactory.training.accounting.figures import Search, coarseness, noise_for
from redactory.training.accounting.losses import FINEST_GRID, group_curve
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounding import GREEDY, NONE, Affected, bound, check_stable
from redactory.training.uedp.incidence import Incidence
from redactory.training.units import Adjacency, Constants, Figure, Protect, relation

CURVE_SIZES = (1, 2, 4, 8, 16, 32)
_MOST_NOISE = 1e6


@dataclass(frozen=True)
class BoundedTraining:
    """The constants of a training: q, σ (noise deviation / clip, on the sum), T, the rule and its caps.

    ``k_user``, ``k_entity``: kept points of one user, of one entity; None where a unit has no cap.
    ``unmatched_mentions`` m: kept points in which an entity stands without being listed, that the figure is
    to hold for all the same.  ``constants`` says what q, T, σ, the caps and the normaliser are computed from;
    ``entities_per_point`` r belongs to R-LOC.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    k_user: int | None
    k_entity: int | None
    protect: Protect = Protect.BOTH
    rule: str = GREEDY
    unmatched_mentions: int = 0
    constants: Constants = Constants.GRAPH
    entities_per_point: int | None = None

    def __post_init__(self) -> None:
        if not (0.0 < self.sampling_rate <= 1.0 and self.noise_multiplier > 0.0 and self.steps >= 0):
            raise ConfigurationError("uedp-bounded needs a sampling rate in (0, 1], noise > 0 and steps >= 0")
        if self.unmatched_mentions < 0 or any(k is not None and k < 1 for k in (self.k_user, self.k_entity)):
            raise ConfigurationError("k_user and k_entity: must be at least 1; missed mentions: at least 0")

    @classmethod
    def of(cls, settings: TrainSettings, noise_multiplier: float, steps: int) -> BoundedTraining:
        """The constants that the figures of ``settings`` are computed from."""
        own = settings.bounding
        return cls(
            settings.sampling_rate,
            noise_multiplier,
            steps,
            own.k_user,
            own.k_entity,
            settings.units.privacy_unit,
            own.rule,
            settings.units.unmatched_mentions,
            Constants.PUBLIC if own.constants == "public" else Constants.GRAPH,
            own.entities_per_point,
        )


def affected(training: BoundedTraining) -> Affected:
    """K on a fixed graph: k_u + k_e for both, their maximum for either, plus missed mentions.

    ``GuaranteeError`` where a protected unit has no cap.
    """
    if training.rule == NONE:
        raise GuaranteeError("no selection caps the contribution of one privacy unit")
    needs = {
        "k_user": training.k_user if training.protect is not Protect.ENTITIES else 0,
        "k_entity": training.k_entity if training.protect is not Protect.USERS else 0,
    }
    for name, cap in needs.items():
        if cap is None:
            raise GuaranteeError(f"{name}: a privacy unit to be protected has no cap")
    user, entity = (cap or 0 for cap in needs.values())
    listed = max(user, entity) if training.protect is Protect.EITHER else user + entity
    return Affected(listed + training.unmatched_mentions)


def zero_out(training: BoundedTraining, delta: float) -> Figure:
    """C1, the default: the unit's points are null in the other world, the hypergraph is the same."""
    name = relation(training.protect, Adjacency.FIXED_GRAPH)
    return _stated(training, delta, name, Adjacency.FIXED_GRAPH, partial(affected, training))


def local(training: BoundedTraining, delta: float) -> Figure:
    """C2, R-LOC: the user's points vanish, the entity's become null; no point has more than r entities.

    k_u + k_e points go and up to k_u·r others come: a chain of two mixtures, about three times as dear.
    """

    def changed() -> Affected:
        user = training.k_user if training.protect is not Protect.ENTITIES else 0
        return Affected(affected(training).gone, (user or 0) * (training.entities_per_point or 0))

    name = relation(training.protect, Adjacency.USER_REMOVAL)
    return _stated(training, delta, name, Adjacency.USER_REMOVAL, changed)


def curve(training: BoundedTraining, delta: float, sizes: Iterable[int] = CURVE_SIZES) -> dict[int, Figure]:
    """C0: for each K of ``sizes`` the epsilon of any units with at most K points.

    Without a selection and with public constants those points may vanish; in every other training they
    are kept points of a fixed graph that become null.
    """
    vanish = training.rule == NONE and training.constants is Constants.PUBLIC
    adjacency = Adjacency.REMOVAL if vanish else Adjacency.FIXED_GRAPH
    found = {}
    for size in sizes:
        name = f"any units with at most {size} points, {adjacency.value}"
        found[size] = _stated(training, delta, name, adjacency, partial(Affected, size))
    return found


def _stated(
    training: BoundedTraining, delta: float, name: str, adjacency: Adjacency, changed: Callable[[], Affected]
) -> Figure:
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    try:
        check_stable(training.rule, adjacency)
        if adjacency is not Adjacency.FIXED_GRAPH and training.constants is not Constants.PUBLIC:
            raise GuaranteeError(
                "the sampling rate, the steps, the normaliser or the caps may depend on the data: they "
                "change once examples are removed"
            )
        points = changed()
    except GuaranteeError as error:
        return Figure(None, delta, name, f"no finite epsilon: {error}")
    found = epsilon(training, points, delta)
    if found >= LARGEST_EPSILON:
        return Figure(None, delta, name, "no finite epsilon was found for so little noise")
    return Figure(found, delta, name)


def epsilon(training: BoundedTraining, changed: Affected, delta: float, coarser: float = 1.0) -> float:
    """Epsilon of the mixture pair, or of the chain of two; ``inf`` where none is found.

    The arithmetic under :func:`zero_out`, :func:`local` and :func:`curve`.  A grid that is ``coarser`` by a
    factor is faster and only nearly as good.
    """
    rate, sigma, steps = training.sampling_rate, training.noise_multiplier, training.steps
    gone = group_curve(changed.gone, rate, sigma, steps, coarser)
    if changed.come == 0:
        return gone(delta)
    return chain(gone, group_curve(changed.come, rate, sigma, steps, coarser), delta, FINE_SPLITS)


@lru_cache(maxsize=64)
def calibrate(target: float, training: BoundedTraining, delta: float, tolerance: float = 2e-3) -> float:
    """The least noise multiplier σ whose C1 epsilon is <= ``target``, or up to a ``tolerance`` share more.

    ``GuaranteeError`` where no unit has a cap, or no σ below 10⁶ reaches the target.
    """
    changed = affected(training)
    if not (target > 0.0 and training.steps):
        raise ConfigurationError("noise cannot be calibrated for 0 steps, or for an epsilon of 0")

    def spent(coarser: float, sigma: float) -> float:
        found = epsilon(replace(training, noise_multiplier=sigma), changed, delta, coarser)
        return max(min(found, LARGEST_EPSILON), 1e-9)

    shift = changed.gone * training.sampling_rate * math.sqrt(training.steps)
    start = 4.3 * shift / target + 0.6
    rough = coarseness(FINEST_GRID * max(1.0, 2.5 * changed.gone / start), target, training.steps)
    return noise_for(target, spent, rough, Search(start, 1e-2, _MOST_NOISE, tolerance / 20.0))


# How many points each cap keeps, of which labels, and which cap to take: k is about n / U.


NO_ENTITY = "(no entity)"


@dataclass(frozen=True)
class Target:
    """ε at δ in ``steps`` steps of ``batch_size`` expected points (q = batch size / kept)."""

    epsilon: float
    delta: float
    batch_size: int
    steps: int


def suggested_cap(points: int, units: int) -> int:
    """k = n / U, rounded, at least 1.

    While kU points are kept, K·q = 2·batch/U does not depend on k: more data at the same noise, up to
    k = n/U; beyond it K grows and the data do not.
    """
    return max(1, round(points / units)) if units else 1


def tried_caps(suggested: int) -> list[int]:
    """The suggestion, and the powers of two up to past it."""
    return sorted({suggested, *(1 << power for power in range(suggested.bit_length() + 1))})


def cap_choices(
    incidence: Incidence,
    protect: Protect = Protect.BOTH,
    caps: Iterable[int] | None = None,
    target: Target | None = None,
) -> dict[str, Any]:
    """What each cap k_u = k_e of ``caps`` keeps of the corpus under ``greedy``, as JSON.

    The suggestion is n/U over the users (over the entities that stand in more than one point, where only
    entities are protected).  ``by_label`` counts points that mention an entity of the label, ``(no entity)``
    those of S; ``affected`` is K; ``noise_multiplier`` σ reaches the ``target``, and ``relative_noise`` is
    σ / batch size, the noise on the mean gradient in clips.
    """
    if not len(incidence):
        raise ConfigurationError("there is no example to plan for")
    degrees = (incidence.entities if protect is Protect.ENTITIES else incidence.users).degrees()
    shared = degrees[degrees > 1] if protect is Protect.ENTITIES else degrees[degrees > 0]
    suggested = suggested_cap(int(shared.sum()), len(shared))
    choices = []
    for cap in tried_caps(suggested) if caps is None else sorted(set(caps)):
        k_user = cap if protect is not Protect.ENTITIES else None
        k_entity = cap if protect is not Protect.USERS else None
        kept = incidence.take(bound(incidence, k_user, k_entity))
        training, rate, sigma = BoundedTraining(1.0, 1.0, 0, k_user, k_entity, protect), None, None
        if target is not None:
            rate = min(1.0, target.batch_size / len(kept))
            asked = replace(training, sampling_rate=rate, steps=target.steps)
            sigma = calibrate(target.epsilon, asked, target.delta, tolerance=1e-2)
        choices.append(
            {
                "cap": cap,
                "kept": len(kept),
                **_counts(kept),
                "affected": affected(training).gone,
                "sampling_rate": rate,
                "noise_multiplier": sigma,
                "relative_noise": None if target is None or sigma is None else sigma / target.batch_size,
            }
        )
    return {"points": len(incidence), **_counts(incidence), "suggested": suggested, "choices": choices}


def points_by_label(incidence: Incidence) -> dict[str, int]:
    """Points that mention an entity of each label; a point of several labels counts in each."""
    counts = dict(zip(incidence.label_names, incidence.labels.degrees().tolist(), strict=True))
    return {**dict(sorted(counts.items())), NO_ENTITY: int(incidence.extended.sum())}


def _counts(incidence: Incidence) -> dict[str, Any]:
    return {
        "by_label": points_by_label(incidence),
        "users": int((incidence.users.degrees() > 0).sum()),
        "entities": int((incidence.entities.degrees() > 0).sum()),
    }

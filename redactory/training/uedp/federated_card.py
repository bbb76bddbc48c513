"""What the guarantee card says of ``uedp-alg1`` and ``user-level``: figures, reasons, conditions, gaps.

Everything comes from the mechanism of the ledger, the number of its steps and the public settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redactory.training.guarantee_figures import outward
from redactory.training.uedp.federated_figures import (
    algorithm1_of,
    as_published,
    confirmed_figure,
    figures_of,
    spread_curve,
)
from redactory.training.uedp.federated_noise import protected
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.relations import Protect

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings

NO_SECOND = (
    "the second accountant knows samples of points and of users; for users who change because an entity goes "
    "it has no figure, and the least of the proved bounds stands alone"
)
CONDITIONS = (
    "every user is sampled by a coin of her own, with probability q_u, in each step; samples are never cut, "
    "filled up or left out",
    "the whole update of a user, all tensors and all local steps together, has norm at most the clip",
    "weights, rates and the normaliser are public constants: none is counted in the corpus",
    "nothing that a user or an entity has part in is trained without noise",
)
OF_ENTITIES = (
    "every entity, and every point in which none was found, is sampled in each step by a coin of its own, "
    "the same for all users"
)
OF_CAP = (
    "an entity touches at most M = {cap} users: points beyond that are left out, by the hypergraph and keyed "
    "ids alone. What other users hold then depends on the graph, so the relation keeps the graph fixed"
)
OF_ALL_USERS = (
    "an entity may touch every user: M = |U| = {users}, declared public; a larger corpus is refused"
)
GAPS_OF_ENTITIES = (
    "sentences in which an entity was missed: an entity that nobody listed in them is protected there as a "
    "sentence only; the curve over M says what an entity in the updates of more users costs",
    "hub values on the allow-list",
)
GAP_OF_USERS = "entities: who is mentioned by several users is hidden by no user's removal"
GAP_OF_GRAPH = "the hypergraph: which points were left out under the cap, and how many"
GROUP_CURVE = "epsilon of that many users at once"
SPREAD_CURVE = "epsilon for an entity whose points belong to at most that many users"


def federated_card(
    settings: TrainSettings, mechanism: PoissonUsersGaussian, steps: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """(entries of the card, second opinions, reasons for every null), as JSON.

    ``GuaranteeError`` where the second accountant disagrees.
    """
    protect, delta = protected(settings), settings.delta
    figure, second = confirmed_figure(mechanism, steps, delta, protect)
    bounds = figures_of(mechanism, steps, delta, protect)
    published = as_published(mechanism, steps, delta, settings.federated)
    curve = spread_curve(mechanism, steps, delta, protect)
    reasons = {}
    if figure.epsilon is None:
        reasons = dict.fromkeys(("epsilon", "epsilon_sound"), figure.reason or "")
    if published.reason is not None:
        reasons["epsilon_as_published"] = published.reason
    if second is None:
        reasons["second"] = NO_SECOND if figure.epsilon is not None else "there is no figure to confirm"
    if None in curve.values():
        reasons["curve"] = "where there is no figure, none was found for so little noise"
    card = {
        "unit": unit(protect),
        "relation": figure.relation,
        "protect": protect.value,
        **_constants(mechanism, steps, delta, protect),
        "epsilon": figure.epsilon,
        "epsilon_sound": figure.epsilon,
        "bounds": {"revealed": bounds.revealed, "chain": bounds.chain, "all_rule": bounds.all_rule},
        "curve": {str(size): value for size, value in curve.items()},
        "curve_meaning": GROUP_CURVE if protect is Protect.USERS else SPREAD_CURVE,
        "epsilon_as_published": published.value,
        "conditions": list(_conditions(mechanism, protect)),
        "not_covered": list(_gaps(mechanism, protect)),
    }
    return card, {} if second is None else {"epsilon": outward(second)}, reasons


def unit(protect: Protect) -> str:
    """What is hidden, in words."""
    entity = "one entity, in all points that list it"
    return {
        Protect.USERS: "one user with all of her points",
        Protect.ENTITIES: entity,
        Protect.BOTH: f"one user with all of her points and {entity}",
        Protect.EITHER: f"one user with all of her points, or {entity}",
    }[protect]


def _constants(mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect) -> dict[str, Any]:
    own, spread = mechanism.entities, algorithm1_of(mechanism, steps).spread
    told: dict[str, Any] = {
        "sampler_run": mechanism.sampler,
        "sampler_accounted": mechanism.sampler,
        "users": mechanism.users,
        "sampling_rate": mechanism.sampling_rate,
        "clip_norm": mechanism.clip_norm,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise": mechanism.noise,
        "normaliser": mechanism.normaliser,
        "steps": steps,
        "delta": delta,
        "K": None,
        "M": None,
        "M_source": None,
    }
    if own is not None:
        told |= {
            "entity_rate": own.entity_rate,
            "extended_rate": own.extended_rate if own.estimator == "f_E+" else None,
            "estimator": own.estimator,
            "rule": own.rule,
        }
    if spread is not None and protect is not Protect.USERS:
        told |= {"M": spread.users, "M_source": spread.source.value}
    return told


def _conditions(mechanism: PoissonUsersGaussian, protect: Protect) -> tuple[str, ...]:
    own = mechanism.entities
    if own is None:
        return CONDITIONS
    if own.max_users_per_entity is not None:
        return (*CONDITIONS, OF_ENTITIES, OF_CAP.format(cap=own.max_users_per_entity))
    if protect is Protect.USERS:
        return (*CONDITIONS, OF_ENTITIES)
    return (*CONDITIONS, OF_ENTITIES, OF_ALL_USERS.format(users=mechanism.users))


def _gaps(mechanism: PoissonUsersGaussian, protect: Protect) -> tuple[str, ...]:
    own = mechanism.entities
    capped = own is not None and own.max_users_per_entity is not None
    gaps = (GAP_OF_USERS,) if protect is Protect.USERS else GAPS_OF_ENTITIES
    return (*gaps, GAP_OF_GRAPH) if capped else gaps

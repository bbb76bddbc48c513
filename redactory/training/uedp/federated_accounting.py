"""Sound epsilons of UeDP's Algorithm 1: Poisson users and entities, clipping per user, noise on the sum.

Formal guarantees: upper bounds for the released noisy sums of all steps of a
:class:`~redactory.training.uedp.federated.FederatedSteps`, under the relation that the epsilon names. An entity
changes the updates of every sampled user who holds it, each by up to twice the clip. So everything depends on
M, the number of users that one entity touches (``docs/explanation/uedp.md``, "Algorithm 1 with sound
accounting"). ζ is the deviation of the noise over the clip, on the un-normalised sum.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import Comparison, ConfirmedEpsilon, Spending, compare_units, confirm_epsilon
from redactory.training.accounting.bounds import FINE_SPLITS, compute_revealed_shift_epsilon
from redactory.training.accounting.published_epsilons import PUBLISHED_NOTE, compute_moments_epsilon
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.mechanisms.pairs import Mixture, make_binomial_mixture, make_mixture
from redactory.training.mechanisms.users import PoissonUsersGaussian
from redactory.training.unit_settings import Adjacency, PrivacyUnit, make_relation_name

_MAX_CHAIN_EPSILON, _MAX_CHAIN_USERS = 20.0, 64
"""Beyond such an epsilon the chain gains nothing but where few users hold the entity."""
CURVE_SPREADS, CURVE_GROUP_SIZES = (1, 4, 16, 64), (1, 2, 4, 8)
PUBLIC_USER_COUNT, FIXED_GRAPH_CAP = "the public number of users", "a cap enforced on the fixed graph"
"""Where M comes from."""
NO_ENTITIES_REASON = "DP-FedAvg does not sample or protect entities: only users are protected"
NO_SHARE_REASON = "the published formula multiplies by the share of sentences with an entity: a count of the corpus"


def get_max_users_per_entity(mechanism: PoissonUsersGaussian) -> tuple[int, str] | None:
    """Return M and its source: |U|, or the enforced cap; None without entities."""
    if mechanism.entities is None:
        return None
    cap = mechanism.entities.max_users_per_entity
    return (mechanism.users, PUBLIC_USER_COUNT) if cap is None else (cap, FIXED_GRAPH_CAP)


def compare_federated_worlds(mechanism: PoissonUsersGaussian, steps: int, protect: PrivacyUnit) -> Comparison:
    """Compare the worlds of ``steps`` steps in which a unit is there or not, under :func:`name_federated_relation`.

    A user is one Poisson-sampled Gaussian. A user or an entity costs what the entity does, whose holders move a sum by
    two clips each, a user by one. ``GuaranteeError`` if entities are protected but not sampled.
    """
    users = _make_user_spendings(mechanism, steps)
    if protect is PrivacyUnit.USERS:
        return compare_units(users, 1)
    spread = get_max_users_per_entity(mechanism)
    if spread is None:
        raise GuaranteeError(f"no finite epsilon: {NO_ENTITIES_REASON}")
    # through the world without the M holders: they go, and come back changed, with the user
    chain = compare_units(users, spread[0], spread[0] + (protect is PrivacyUnit.BOTH))
    return EntityComparison(
        chain.transitions,
        FINE_SPLITS,
        has_enough_noise=chain.has_enough_noise,
        shifts=make_shift_mixture(spread[0], mechanism.sampling_rate, protect),
        noise_multiplier=mechanism.noise_multiplier,
        steps=steps,
    )


@dataclass(frozen=True)
class EntityComparison(Comparison):
    """Worlds that differ in an entity: the better of a chain of two and of revealing how many holders are sampled.

    The second bound (:func:`compute_revealed_shift_epsilon`) is proved, but no bound below it.
    """

    shifts: Mixture = field(kw_only=True)
    noise_multiplier: float = field(kw_only=True)
    steps: int = field(kw_only=True)

    def estimate_epsilon(self, delta: float, coarsening: float = 1.0) -> float:
        """Estimate the smaller of the two bounds."""
        revealed = self._compute_revealed_epsilon(delta, coarsening)
        return (
            revealed if self._is_chain_useless(revealed) else min(revealed, super().estimate_epsilon(delta, coarsening))
        )

    def approximate_epsilon(self, delta: float) -> float:
        """Approximate the smaller of the two bounds."""
        revealed = self._compute_revealed_epsilon(delta, coarsening=2.0)
        return revealed if self._is_chain_useless(revealed) else min(revealed, super().approximate_epsilon(delta))

    def bound_epsilon(self, delta: float) -> EpsilonBounds:
        """Prove the smaller of the two bounds; 0 is below it."""
        revealed = self._compute_revealed_epsilon(delta)
        if self._is_chain_useless(revealed):
            return EpsilonBounds(0.0, revealed)
        return EpsilonBounds(0.0, min(revealed, super().bound_epsilon(delta).upper))

    def _compute_revealed_epsilon(self, delta: float, coarsening: float = 1.0) -> float:
        if not self.steps:
            return 0.0
        return compute_revealed_shift_epsilon(self.shifts, self.noise_multiplier, self.steps, delta, coarsening)

    def _is_chain_useless(self, revealed: float) -> bool:
        holders = max(self.shifts.means) / 2.0
        return not self.has_enough_noise or (revealed >= _MAX_CHAIN_EPSILON and holders > _MAX_CHAIN_USERS)


def name_federated_relation(mechanism: PoissonUsersGaussian, protect: PrivacyUnit) -> str:
    """Name the relation: examples may vanish only if no cap depends on the others."""
    spread = get_max_users_per_entity(mechanism)
    is_capped = spread is not None and spread[1] == FIXED_GRAPH_CAP
    return make_relation_name(protect, Adjacency.FIXED_GRAPH if is_capped else Adjacency.REMOVAL)


def confirm_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit
) -> ConfirmedEpsilon:
    """Confirm the epsilon of a unit; for entities the second accountant has no bound from below to compare with."""
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    try:
        comparison = compare_federated_worlds(mechanism, steps, protect)
    except GuaranteeError as error:
        return ConfirmedEpsilon(None, reason=str(error))
    confirmed = confirm_epsilon(comparison, delta, "epsilon")
    return replace(confirmed, bounds=None) if isinstance(comparison, EntityComparison) else confirmed


def make_shift_mixture(touched_users: int, user_rate: float, protect: PrivacyUnit) -> Mixture:
    """Make the law of a step's largest shift in clips, b + 2j: b the user, j sampled holders of the entity."""
    weights: dict[float, float] = defaultdict(float)
    coins = {0: 1.0 - user_rate, 1: user_rate} if protect is PrivacyUnit.BOTH else {0: 1.0}
    holders = make_binomial_mixture(user_rate, touched_users)
    for count, weight in zip(holders.means, holders.weights, strict=True):
        for user_shift, coin in coins.items():
            weights[2 * count + user_shift] += weight * coin
    return make_mixture(weights)


def _make_user_spendings(mechanism: PoissonUsersGaussian, steps: int) -> tuple[Spending, ...]:
    return (Spending(mechanism.make_single_user_mechanism(), steps),) if steps else ()


def confirm_epsilon_by_user_count(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit
) -> dict[int, ConfirmedEpsilon]:
    """Confirm the epsilon of an entity whose examples belong to at most K users, by K; for users alone, of K users."""
    if protect is PrivacyUnit.USERS:
        users = _make_user_spendings(mechanism, steps)
        return {size: confirm_epsilon(compare_units(users, size), delta, f"{size} users") for size in CURVE_GROUP_SIZES}
    entities, spread = mechanism.entities, get_max_users_per_entity(mechanism)
    if entities is None or spread is None:
        return {}
    sizes = *(size for size in CURVE_SPREADS if size < spread[0]), spread[0]
    narrowed = {size: replace(mechanism, entities=replace(entities, max_users_per_entity=size)) for size in sizes}
    narrowed[spread[0]] = mechanism
    return {size: confirm_federated_epsilon(narrowed[size], steps, delta, protect) for size in sizes}


def compute_published_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, estimator: str | None = None
) -> dict[str, Any] | None:
    """Compute the papers' moments accountant at their own rate and z, with its label.

    None (:data:`NO_SHARE_REASON`) for ``f_E+``.
    """
    entities, rate = mechanism.entities, mechanism.sampling_rate
    estimator = estimator or ("user-level" if entities is None else entities.estimator)
    if estimator == "f_E+":
        return None
    if entities is not None and estimator == "f_E":
        rate *= entities.entity_rate
    scale = compute_paper_noise_scale(mechanism)
    return {
        "note": PUBLISHED_NOTE,
        "epsilon": compute_moments_epsilon(rate, scale, steps, delta),
        "delta": delta,
        "estimator": estimator,
        "sampling_rate": rate,
        "noise_scale": scale,
    }


def compute_paper_noise_scale(mechanism: PoissonUsersGaussian) -> float:
    """Return z of the paper: ζ over q_u·|U| + 1 (equation 6); ζ itself for DP-FedAvg."""
    expected_users = mechanism.sampling_rate * mechanism.users
    return mechanism.noise_multiplier / (1.0 if mechanism.entities is None else expected_users + 1.0)

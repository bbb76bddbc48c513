"""One noisy step that samples users: what it releases, how far a unit moves it, what the ledger calls it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanism import Mechanism, PoissonGaussian, SampledGaussian

EVENT = "PoissonSampledUsersEvent"
"""A name of its own: no reader of ledgers may take a sample of users for one of points."""


@dataclass(frozen=True)
class EntitySampling:
    """The second level of Algorithm 1: entities and points of the extended set throw coins as well.

    ``entity_rate`` q_e, ``extended_rate`` q_s (unused by ``f_E``); ``entity_weight`` w_e and
    ``extended_weight`` w_s in (0, 1]; ``max_users_per_entity`` M, enforced on the fixed graph, None for |U|.
    """

    entity_rate: float
    extended_rate: float
    estimator: Literal["f_E", "f_E+"]
    rule: Literal["any", "all"]
    max_users_per_entity: int | None
    entity_weight: float = 1.0
    extended_weight: float = 1.0

    def __post_init__(self) -> None:
        rates = 0.0 < self.entity_rate <= 1.0 and 0.0 <= self.extended_rate <= 1.0
        weights = 0.0 < self.entity_weight <= 1.0 and 0.0 < self.extended_weight <= 1.0
        names = self.estimator in ("f_E", "f_E+") and self.rule in ("any", "all")
        cap = self.max_users_per_entity is None or self.max_users_per_entity >= 1
        if not (rates and weights and names and cap):
            raise GuaranteeError("no guarantee is proved for such a sampling of entities")


@dataclass(frozen=True)
class PoissonUsersGaussian(SampledGaussian):
    """A Poisson-sampled sum of whole users' updates, each of norm at most β, with noise N(0, (ζβ)²).

    ``sampling_rate`` is q_u, ``clip_norm`` β, ``noise_multiplier`` ζ (on the un-normalised sum), ``users``
    |U| as it is publicly declared.  Without ``entities`` it is DP-FedAvg, with them Algorithm 1 of UeDP.

    Formal guarantees: a user who is there or not moves the sum by at most β where her coin drew her; a user
    who loses some of her points moves it by at most 2β (``docs/explanation/uedp.md``, "Algorithm 1 with
    sound accounting").
    """

    users: int = 0
    entities: EntitySampling | None = None

    sampler: ClassVar[str] = "poisson_users"

    def __post_init__(self) -> None:
        super().__post_init__()
        cap = None if self.entities is None else self.entities.max_users_per_entity
        if not (self.users >= 1 and 0.0 < self.sampling_rate <= 1.0 and (cap or 0) <= self.users):
            raise GuaranteeError("a sample of users needs users >= 1, a rate in (0, 1], and M <= users")

    def event(self) -> dict[str, Any]:
        """A class that dp_accounting lacks; its inner event is ``GaussianDpEvent``."""
        return {
            "class": EVENT,
            "users": self.users,
            "sampling_probability": self.sampling_rate,
            "entities": None if self.entities is None else asdict(self.entities),
            "event": {"class": "GaussianDpEvent", "noise_multiplier": self.noise_multiplier},
        }

    def of_one_user(self) -> PoissonGaussian:
        """The same step with a user in the place of a point: what hides one user, and no entity."""
        return PoissonGaussian(
            self.sampling_rate, self.noise_multiplier, self.clip_norm, self.normaliser, self.noise
        )


AnyMechanism = Mechanism | PoissonUsersGaussian
"""A mechanism that samples points, or one that samples users."""

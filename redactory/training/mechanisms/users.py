"""Mechanisms that sample users: DP-FedAvg, and Algorithm 1 of UeDP, which samples entities, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanisms.mechanism import Mechanism, PoissonGaussian


@dataclass(frozen=True)
class EntitySampling:
    """The second level of Algorithm 1: entities and examples of the extended set have coins, too.

    ``entity_rate`` q_e, ``related_entity_rate`` q_s; ``max_users_per_entity`` M, enforced on the fixed
    graph, None for |U|.
    """

    entity_rate: float
    related_entity_rate: float
    max_users_per_entity: int | None

    def __post_init__(self) -> None:
        has_rates = 0.0 < self.entity_rate <= 1.0 and 0.0 <= self.related_entity_rate <= 1.0
        has_cap = self.max_users_per_entity is None or self.max_users_per_entity >= 1
        if not (has_rates and has_cap):
            raise GuaranteeError("no guarantee is proved for such a sampling of entities")

    @property
    def estimator(self) -> Literal["f_E", "f_E+"]:
        """The paper's estimator: f_E uses only examples with an entity, f_E+ the extended set as well."""
        return "f_E+" if self.related_entity_rate else "f_E"


@dataclass(frozen=True)
class PoissonUsersGaussian(Mechanism):
    """A Poisson-sampled sum of whole users' updates, each of norm at most β, with noise N(0, (ζβ)²).

    ``sampling_rate`` is q_u, ``clip_norm`` β, ``noise_multiplier`` ζ (on the un-normalised sum), ``users`` the
    publicly declared |U|. Without ``entities`` it is DP-FedAvg, with them Algorithm 1 of UeDP.

    Formal guarantees: a user who is there or not moves the sum by at most β if their coin drew them; one who loses some
    of their examples moves it by at most 2β (``docs/explanation/uedp.md``, "Algorithm 1 with sound accounting").
    """

    users: int = 0
    entities: EntitySampling | None = None

    sampler: ClassVar[str] = "poisson_users"
    event_class: ClassVar[str] = "PoissonSampledUsersEvent"
    samples_users: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        cap = None if self.entities is None else self.entities.max_users_per_entity
        if not (self.users >= 1 and 0.0 < self.sampling_rate <= 1.0 and (cap or 0) <= self.users):
            raise GuaranteeError("a sample of users needs users >= 1, a rate in (0, 1], and M <= users")

    @classmethod
    def parse_fields(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Parse the JSON ``values``; the second level of sampling is a mapping."""
        entities = values["entities"]
        return {**values, "entities": None if entities is None else EntitySampling(**entities)}

    def make_single_user_mechanism(self) -> PoissonGaussian:
        """Return the same step with a user as the example: it hides one user, and no entity."""
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier, self.clip_norm, self.normaliser, self.noise)


def get_users_mechanism(mechanism: Mechanism | None) -> PoissonUsersGaussian:
    """Return ``mechanism`` of a trainer that samples users."""
    assert isinstance(mechanism, PoissonUsersGaussian)
    return mechanism

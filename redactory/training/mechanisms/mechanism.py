"""One noisy step as a mechanism: what it releases, how far one example moves it, and its name in the ledger."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from torch import Tensor

NoiseKind = Literal["float", "lattice"]
MIN_CLIP_NORM, MAX_CLIP_NORM = 1e-6, 1e6
"""Within these a weight C/‖g‖ and the lattice's spacing have all their bits in float32 and float64."""


def require_valid_clip_norm(clip_norm: float, name: str = "clip_norm") -> None:
    """Raise ``ConfigurationError`` naming ``name`` unless clipping to ``clip_norm`` is exact up to rounding."""
    if not MIN_CLIP_NORM <= clip_norm <= MAX_CLIP_NORM:
        raise ConfigurationError(
            f"{name} {clip_norm:g}: use a value from {MIN_CLIP_NORM:g} to {MAX_CLIP_NORM:g}; outside, single "
            "precision cannot keep a clipped gradient within its bound"
        )


class Relation(Enum):
    """Which two data sets are neighbours (``docs/guarantees.md``, "Substitution")."""

    SUBSTITUTION = "substitution"
    """One point is exchanged for another; dp_accounting's REPLACE_ONE."""
    ADD_OR_REMOVE = "add_or_remove"
    """One point is there or not; dp_accounting's ADD_OR_REMOVE_ONE."""


@dataclass(frozen=True)
class SampledGaussian:
    """What both mechanisms share: a sampled sum of vectors of norm at most C with Gaussian noise.

    ``sampling_rate`` q in (0, 1], ``noise_multiplier`` σ > 0, ``clip_norm`` C from ``MIN_CLIP_NORM`` to
    ``MAX_CLIP_NORM``; ``normaliser`` is the public constant that the noisy sum is divided by; ``noise`` says how the
    noise is drawn and added (``docs/guarantees.md``, "Floating point").
    """

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    noise: NoiseKind = "float"

    sampler: ClassVar[str]
    event_class: ClassVar[str]
    """What a ledger calls a step: a class of dp_accounting, or one that it lacks, so that none is misread."""

    def __post_init__(self) -> None:
        require_valid_clip_norm(self.clip_norm)

    def get_sensitivity(self, relation: Relation) -> float:
        """Return how far (L2) the sum before noise can move when a sampled example changes: 2C or C."""
        match relation:
            case Relation.SUBSTITUTION:
                return 2.0 * self.clip_norm
            case Relation.ADD_OR_REMOVE:
                return self.clip_norm

    @property
    def noise_deviation(self) -> float:
        """Return σC, the accounted standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.clip_norm

    def compute_noisy_mean(self, clipped_sum: Tensor, stream: RandomStream, step: int) -> Tensor:
        """Return (``clipped_sum`` + noise of ``step``) / ``normaliser``."""
        return (self.compute_noisy_sum(clipped_sum, stream, step) / self.normaliser).to(clipped_sum.dtype)

    def compute_noisy_sum(self, total: Tensor, stream: RandomStream, step: int) -> Tensor:
        """Return ``total`` + the noise of ``step``, in double precision."""
        import torch

        if self.noise == "lattice":
            from redactory.training.mechanisms.lattice import add_lattice_noise

            values = total.detach().double().cpu().numpy().ravel()
            noisy = torch.from_numpy(add_lattice_noise(values, self, stream, step))
            return noisy.view_as(total).to(total.device)
        noise = torch.from_numpy(stream.normal("noise", step, total.numel())).to(total.device)
        return total.double() + self.noise_deviation * noise.view_as(total)

    def to_event(self) -> dict[str, Any]:
        """Return the privacy event of one step as JSON: dp_accounting's fields, and those of the mechanism alone."""
        return {
            "class": self.event_class,
            "sampling_probability": self.sampling_rate,
            **{name: value for name, value in asdict(self).items() if name not in SHARED_FIELD_NAMES},
            "event": {"class": "GaussianDpEvent", "noise_multiplier": self.noise_multiplier},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the mechanism's entry in the head of a ledger (:func:`parse_mechanism_json` reads it)."""
        return {
            "event": self.to_event(),
            "clip_norm": self.clip_norm,
            "normaliser": {"kind": "public constant", "value": self.normaliser},
            "noise": self.noise,
            "sensitivity": {relation.value: self.get_sensitivity(relation) for relation in Relation},
        }


SHARED_FIELD_NAMES = {field.name for field in fields(SampledGaussian)}


@dataclass(frozen=True)
class PoissonGaussian(SampledGaussian):
    """A Poisson-sampled sum of vectors of norm at most C with noise N(0, (σC)²) on every coordinate.

    Formal guarantees: under substitution one step is dominated by the pair (1−q)N(0, σ²) + qN(1, σ²) and (1−q)N(0, σ²)
    + qN(−1, σ²), which is what dp_accounting computes under REPLACE_ONE; steps compose adaptively.
    """

    sampler: ClassVar[str] = "poisson"
    event_class: ClassVar[str] = "PoissonSampledDpEvent"


# Public by count: what a selection costs a unit.


ROUNDING_MARGIN = 0.5
"""Counts are whole and so is the noise, round(sZ): what reaches τ is a real number of at least τ − ½."""


def compute_threshold_failure_delta(deviation: float, threshold: int, texts: int) -> float:
    """Return d: the chance that one of ``texts`` texts that a single user gives reaches ``threshold``."""
    from scipy.special import ndtr

    tail_probability = float(ndtr(-(threshold - ROUNDING_MARGIN - 1.0) / deviation))
    return -math.expm1(texts * math.log1p(-tail_probability))


@dataclass(frozen=True)
class CountSelectionGaussian(PoissonGaussian):
    """A selection as seen by one unit: a Gaussian, and a chance that a threshold fails.

    ``noise_multiplier`` is that of a Gaussian whose sum the unit moves by 1 (there or not) or 2 (exchanged);
    ``texts`` are those that only this unit gives.

    Formal guarantees: outside of an event with probability at most d = :attr:`failure_delta`, in either world, the
    release is that Gaussian, post-processed. So n selections and any training after them are (ε − n·ln(1 − d), δ +
    n·d)-close if the Gaussians and that training are (ε, δ)-close.
    """

    deviation: float = 1.0
    threshold: int = 2
    texts: int = 1

    sampler: ClassVar[str] = "none"
    event_class: ClassVar[str] = "CountedTextsEvent"

    @property
    def failure_delta(self) -> float:
        """Return d of one selection."""
        return compute_threshold_failure_delta(self.deviation, self.threshold, self.texts)


@dataclass(frozen=True)
class HiddenClassGaussian(SampledGaussian):
    """A message that hides its content: with probability q it is of a vector and its class, else of neither.

    The vector has norm at most C, the class is one of ``classes`` K; of neither means zero, and a class drawn
    uniformly. Noise N(0, (σC)²) is on every coordinate of the vector, none on the class.

    Formal guarantees: if another vector *and* class replace them, one step is dominated by q·N(C, σ²C²)×1_y +
    (1−q)·N(0, σ²C²)×U against the same with another y; steps compose adaptively (``docs/guarantees.md``, "Classes
    hidden too"). Nothing is proved for an example that is there or not.
    """

    classes: int = field(kw_only=True)

    sampler: ClassVar[str] = "none"
    event_class: ClassVar[str] = "HiddenClassEvent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 2 or not 0.0 < self.sampling_rate < 1.0:
            raise GuaranteeError("a hidden class needs at least two classes, and a rate between 0 and 1")


Mechanism = PoissonGaussian | HiddenClassGaussian
"""A mechanism that samples points."""


# Mechanisms that sample users.


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
class PoissonUsersGaussian(SampledGaussian):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        cap = None if self.entities is None else self.entities.max_users_per_entity
        if not (self.users >= 1 and 0.0 < self.sampling_rate <= 1.0 and (cap or 0) <= self.users):
            raise GuaranteeError("a sample of users needs users >= 1, a rate in (0, 1], and M <= users")

    def make_single_user_mechanism(self) -> PoissonGaussian:
        """Return the same step with a user as the example: it hides one user, and no entity."""
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier, self.clip_norm, self.normaliser, self.noise)


AnyMechanism = Mechanism | PoissonUsersGaussian
"""A mechanism that samples points, or one that samples users."""


_MECHANISM_BY_EVENT: dict[str, type[AnyMechanism]] = {
    kind.event_class: kind
    for kind in (PoissonGaussian, HiddenClassGaussian, CountSelectionGaussian, PoissonUsersGaussian)
}


def parse_mechanism_json(value: Any) -> AnyMechanism:
    """Parse the mechanism of a ledger's head; ``GuaranteeError`` for a mechanism without a proof."""
    try:
        event = value["event"]
        mechanism_class = _MECHANISM_BY_EVENT[event["class"]]
        specific_fields: dict[str, Any] = {
            field_info.name: event[field_info.name]
            for field_info in fields(mechanism_class)
            if field_info.name not in SHARED_FIELD_NAMES
        }
        if specific_fields.get("entities") is not None:
            specific_fields["entities"] = EntitySampling(**specific_fields["entities"])
        mechanism = mechanism_class(
            sampling_rate=event["sampling_probability"],
            noise_multiplier=event["event"]["noise_multiplier"],
            clip_norm=value["clip_norm"],
            normaliser=value["normaliser"]["value"],
            noise=value["noise"],
            **specific_fields,
        )
        is_known = mechanism.noise in ("float", "lattice") and mechanism.to_json() == value
    except (AttributeError, KeyError, TypeError, ConfigurationError):
        is_known = False
    if not is_known:
        raise GuaranteeError("the ledger describes a mechanism for which no guarantee is proved")
    return mechanism

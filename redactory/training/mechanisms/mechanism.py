"""One noisy step as a mechanism: what it samples and releases, what dominates it, and its name in the ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from torch import Tensor

    from redactory.training.mechanisms.pairs import Statements

_MECHANISMS: dict[str, type[Mechanism]] = {}
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
class Mechanism:
    """A sampled sum of vectors of norm at most C with Gaussian noise. A subclass is registered by its ``event_class``.

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
    samples_users: ClassVar[bool] = False
    """Whether a step samples users, not examples."""

    def __init_subclass__(cls) -> None:
        # a name that is inherited, or taken, would make a ledger's steps be read as those of another mechanism
        if "event_class" not in vars(cls) or cls.event_class in _MECHANISMS:
            raise TypeError(f"{cls.__name__}.event_class: give the mechanism an event class of its own")
        _MECHANISMS[cls.event_class] = cls

    def __post_init__(self) -> None:
        require_valid_clip_norm(self.clip_norm)

    def get_sensitivity(self, relation: Relation) -> float:
        """Return how far (L2) the sum before noise can move when a sampled example changes: 2C or C."""
        match relation:
            case Relation.SUBSTITUTION:
                return 2.0 * self.clip_norm
            case Relation.ADD_OR_REMOVE:
                return self.clip_norm

    def state_pairs(self, removed: int | None = None) -> Statements:
        """State the pairs that dominate one step, and state them again from their proof.

        For one exchanged example, or for ``removed`` examples there or not; ``GuaranteeError`` if nothing is proved.
        """
        raise GuaranteeError("no dominating pair is proved for this mechanism")

    @property
    def failure_delta(self) -> float:
        """Return the chance of an event in one step outside of which the pairs hold."""
        return 0.0

    def sample_rows(self, stream: RandomStream, step: int, count: int) -> NDArray[np.int64]:
        """Sample the rows in ``range(count)`` for ``step``, ascending.

        Formal guarantees: inclusions are independent over rows and steps if the root of the stream is secret; each has
        probability ``sampling_rate`` up to 2⁻⁵³. A batch is never truncated, filled up or skipped: an empty one is a
        step of noise alone (``docs/guarantees.md``, "Sampling and constants").
        """
        return np.flatnonzero(stream.uniform("coins", step, count) < self.sampling_rate)

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

    @classmethod
    def parse_fields(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Parse the JSON ``values`` of the fields that the mechanism alone has."""
        return values

    def to_json(self) -> dict[str, Any]:
        """Return the mechanism's entry in the head of a ledger (:func:`parse_mechanism_json` reads it)."""
        return {
            "event": self.to_event(),
            "clip_norm": self.clip_norm,
            "normaliser": {"kind": "public constant", "value": self.normaliser},
            "noise": self.noise,
            "sensitivity": {relation.value: self.get_sensitivity(relation) for relation in Relation},
        }


SHARED_FIELD_NAMES = {field.name for field in fields(Mechanism)}


@dataclass(frozen=True)
class PoissonGaussian(Mechanism):
    """A Poisson-sampled sum of vectors of norm at most C with noise N(0, (σC)²) on every coordinate.

    Formal guarantees: under substitution one step is dominated by the pair (1−q)N(0, σ²) + qN(1, σ²) and (1−q)N(0, σ²)
    + qN(−1, σ²), which is what dp_accounting computes under REPLACE_ONE; steps compose adaptively.
    """

    sampler: ClassVar[str] = "poisson"
    event_class: ClassVar[str] = "PoissonSampledDpEvent"

    def state_pairs(self, removed: int | None = None) -> Statements:
        """State the pair of one exchanged example, or of ``removed`` examples there or not, twice."""
        from redactory.training.mechanisms import pairs, rederived_pairs

        q, sigma = self.sampling_rate, self.noise_multiplier
        if removed is None:
            both = pairs.make_exchange_pair(q, sigma), rederived_pairs.rederive_exchange_pair(q, sigma)
        else:
            both = pairs.make_removal_pair(q, sigma, removed), rederived_pairs.rederive_removal_pair(q, sigma, removed)
        return ((1.0, both[0]),), ((1.0, both[1]),)


def parse_mechanism_json(value: Any) -> Mechanism:
    """Parse the mechanism of a ledger's head; ``GuaranteeError`` for a mechanism without a proof."""
    try:
        event = value["event"]
        mechanism_class = _MECHANISMS[event["class"]]
        specific_fields = {one.name: event[one.name] for one in fields(mechanism_class)[len(fields(Mechanism)) :]}
        mechanism = mechanism_class(
            sampling_rate=event["sampling_probability"],
            noise_multiplier=event["event"]["noise_multiplier"],
            clip_norm=value["clip_norm"],
            normaliser=value["normaliser"]["value"],
            noise=value["noise"],
            **mechanism_class.parse_fields(specific_fields),
        )
        is_known = mechanism.noise in ("float", "lattice") and mechanism.to_json() == value
    except (AttributeError, KeyError, TypeError, ConfigurationError):
        is_known = False
    if not is_known:
        raise GuaranteeError("the ledger describes a mechanism for which no guarantee is proved")
    return mechanism

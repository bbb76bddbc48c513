"""One noisy step as a mechanism: what it releases, how far one point moves it, what the ledger calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from torch import Tensor

NoiseKind = Literal["float", "lattice"]
SMALLEST_CLIP, LARGEST_CLIP = 1e-6, 1e6
"""Within these a weight C/‖g‖ and the lattice's spacing have all their bits in float32 and float64."""


def require_clip_norm(clip_norm: float, name: str = "clip_norm") -> None:
    """``ConfigurationError`` naming ``name`` unless clipping to ``clip_norm`` is exact but for rounding."""
    if not SMALLEST_CLIP <= clip_norm <= LARGEST_CLIP:
        raise ConfigurationError(
            f"{name} {clip_norm:g}: give one from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}; beyond, single "
            "precision does not hold a clipped gradient to its bound"
        )


class Relation(Enum):
    """Which two data sets are neighbours (``docs/guarantees.md``, "Substitution")."""

    SUBSTITUTION = "substitution"
    """One point is exchanged for another; dp_accounting's REPLACE_ONE."""
    ADD_OR_REMOVE = "add_or_remove"
    """One point is there or not; dp_accounting's ADD_OR_REMOVE_ONE."""


@dataclass(frozen=True)
class SampledGaussian(ABC):
    """What both mechanisms share: a sampled sum of vectors of norm at most C with Gaussian noise.

    ``sampling_rate`` q in (0, 1], ``noise_multiplier`` σ > 0, ``clip_norm`` C from
    ``SMALLEST_CLIP`` to ``LARGEST_CLIP``; ``normaliser`` is
    the public constant that the noisy sum is divided by; ``noise`` says how the noise is drawn and
    added (``docs/guarantees.md``, "Floating point").
    """

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    noise: NoiseKind = "float"

    sampler: ClassVar[str]

    def __post_init__(self) -> None:
        require_clip_norm(self.clip_norm)

    def sensitivity(self, relation: Relation) -> float:
        """How far (L2) the sum before noise can move when a sampled point changes: 2C or C."""
        match relation:
            case Relation.SUBSTITUTION:
                return 2.0 * self.clip_norm
            case Relation.ADD_OR_REMOVE:
                return self.clip_norm

    @property
    def noise_deviation(self) -> float:
        """σC, the standard deviation of the noise on each coordinate of the sum, as it is accounted."""
        return self.noise_multiplier * self.clip_norm

    def noisy_mean(self, clipped_sum: Tensor, stream: RandomStream, step: int) -> Tensor:
        """(``clipped_sum`` + noise) / ``normaliser``; its noise is that of ``step``."""
        import torch

        if self.noise == "lattice":
            from redactory.training.lattice import noisy_on_lattice

            total = clipped_sum.detach().double().cpu().numpy().ravel()
            noisy = torch.from_numpy(noisy_on_lattice(total, self, stream, step))
            return (noisy / self.normaliser).to(clipped_sum.dtype).view_as(clipped_sum).to(clipped_sum.device)
        noise = torch.from_numpy(stream.normal("noise", step, clipped_sum.numel())).to(clipped_sum.device)
        noisy = clipped_sum.double() + self.noise_deviation * noise.view_as(clipped_sum)
        return (noisy / self.normaliser).to(clipped_sum.dtype)

    @abstractmethod
    def event(self) -> dict[str, Any]:
        """The privacy event of one step: dp_accounting's classes and fields, as JSON."""

    def to_json(self) -> dict[str, Any]:
        """What the head of a ledger says about the mechanism (read back: ``mechanism_record``)."""
        return {
            "event": self.event(),
            "clip_norm": self.clip_norm,
            "normaliser": {"kind": "public constant", "value": self.normaliser},
            "noise": self.noise,
            "sensitivity": {relation.value: self.sensitivity(relation) for relation in Relation},
        }


@dataclass(frozen=True)
class PoissonGaussian(SampledGaussian):
    """A Poisson-sampled sum of vectors of norm at most C with noise N(0, (σC)²) on every coordinate.

    Formal guarantees: under substitution one step is dominated by the pair
    (1−q)N(0, σ²) + qN(1, σ²) and (1−q)N(0, σ²) + qN(−1, σ²), which is what
    dp_accounting computes under REPLACE_ONE; steps compose adaptively.
    """

    sampler: ClassVar[str] = "poisson"

    def event(self) -> dict[str, Any]:
        """``PoissonSampledDpEvent`` of ``GaussianDpEvent``."""
        return {
            "class": "PoissonSampledDpEvent",
            "sampling_probability": self.sampling_rate,
            "event": {"class": "GaussianDpEvent", "noise_multiplier": self.noise_multiplier},
        }


@dataclass(frozen=True)
class TruncatedPoissonGaussian(SampledGaussian):
    """As :class:`PoissonGaussian`, but of more than ``truncated_batch_size`` drawn a random subset is kept.

    ``points`` is a public constant: coins are thrown for that many slots, of which those beyond the
    real points are null (their gradient is exactly 0), so that the sample is a function of constants
    and coins alone.

    Formal guarantees: with E the event that at least ``truncated_batch_size`` of the *other* slots are
    drawn, a step is dominated under substitution by the Poisson pair at rate q with probability
    1 − P(E), and by the Poisson pair of half the noise at rate P(kept | E) with probability P(E)
    (``docs/guarantees.md``, "Truncated batches").  That is dp_accounting's
    ``TruncatedSubsampledGaussianDpEvent``.
    """

    truncated_batch_size: int = 0
    points: int = 0

    sampler: ClassVar[str] = "truncated_poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.truncated_batch_size <= self.points:
            raise GuaranteeError("a truncated sampler needs 0 < truncated_batch_size <= points")

    @property
    def crowded(self) -> tuple[float, float]:
        """P(E), and the probability that a slot is kept given E."""
        from scipy import stats

        kept = self.truncated_batch_size
        cut = float(stats.binom.sf(kept - 1, self.points - 1, self.sampling_rate))
        if cut <= 0.0:
            return 0.0, 0.0
        over = float(stats.binom.sf(kept, self.points, self.sampling_rate))
        return cut, min(1.0, over * kept / (cut * self.points))

    def event(self) -> dict[str, Any]:
        """``TruncatedSubsampledGaussianDpEvent``."""
        return {
            "class": "TruncatedSubsampledGaussianDpEvent",
            "dataset_size": self.points,
            "sampling_probability": self.sampling_rate,
            "truncated_batch_size": self.truncated_batch_size,
            "noise_multiplier": self.noise_multiplier,
        }


Mechanism = PoissonGaussian | TruncatedPoissonGaussian
"""A mechanism that samples points."""

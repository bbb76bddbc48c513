"""One noisy step as a mechanism: what it releases, how far one point moves it, what the ledger calls it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import torch
from torch import Tensor

from redactory.foundation.errors import GuaranteeError
from redactory.foundation.stream import RandomStream


class Relation(Enum):
    """Which two data sets are neighbours (``docs/guarantees.md``, "Substitution")."""

    SUBSTITUTION = "substitution"
    """One point is exchanged for another; dp_accounting's REPLACE_ONE."""
    ADD_OR_REMOVE = "add_or_remove"
    """One point is there or not; dp_accounting's ADD_OR_REMOVE_ONE."""


@dataclass(frozen=True)
class PoissonGaussian:
    """A Poisson-sampled sum of vectors of norm at most C with noise N(0, (σC)²) on every coordinate.

    ``sampling_rate`` q in (0, 1], ``noise_multiplier`` σ > 0, ``clip_norm`` C > 0; ``normaliser`` is
    the public constant that the noisy sum is divided by.

    Formal guarantees: under substitution one step is dominated by the pair
    (1−q)N(0, σ²) + qN(1, σ²) and (1−q)N(0, σ²) + qN(−1, σ²), which is what
    dp_accounting computes under REPLACE_ONE; steps compose adaptively.
    """

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    normaliser: float

    def sensitivity(self, relation: Relation) -> float:
        """How far (L2) the sum before noise can move when a sampled point changes: 2C or C."""
        match relation:
            case Relation.SUBSTITUTION:
                return 2.0 * self.clip_norm
            case Relation.ADD_OR_REMOVE:
                return self.clip_norm

    @property
    def noise_deviation(self) -> float:
        """σC, the standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.clip_norm

    def noisy_mean(self, clipped_sum: Tensor, stream: RandomStream, step: int) -> Tensor:
        """(``clipped_sum`` + noise) / ``normaliser``; its noise is that of ``step``, in float64."""
        noise = torch.from_numpy(stream.normal("noise", step, clipped_sum.numel()))
        noisy = clipped_sum.double() + self.noise_deviation * noise.view_as(clipped_sum)
        return (noisy / self.normaliser).to(clipped_sum.dtype)

    def event(self) -> dict[str, Any]:
        """The privacy event of one step: dp_accounting's classes and fields, as JSON."""
        return {
            "class": "PoissonSampledDpEvent",
            "sampling_probability": self.sampling_rate,
            "event": {"class": "GaussianDpEvent", "noise_multiplier": self.noise_multiplier},
        }

    def to_json(self) -> dict[str, Any]:
        """What the head of a ledger says about the mechanism; :meth:`from_json` reads it back."""
        return {
            "event": self.event(),
            "clip_norm": self.clip_norm,
            "normaliser": {"kind": "public constant", "value": self.normaliser},
            "sensitivity": {relation.value: self.sensitivity(relation) for relation in Relation},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The mechanism of a ledger's head; ``GuaranteeError`` for anything but what is proved here."""
        try:
            event = value["event"]
            mechanism = cls(
                sampling_rate=event["sampling_probability"],
                noise_multiplier=event["event"]["noise_multiplier"],
                clip_norm=value["clip_norm"],
                normaliser=value["normaliser"]["value"],
            )
            known = mechanism.to_json() == value
        except (KeyError, TypeError):
            known = False
        if not known:
            raise GuaranteeError("the ledger describes a mechanism for which no guarantee is proved")
        return mechanism

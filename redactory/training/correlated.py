"""Noisy steps with correlated noise: sums are mixed over the last steps, noised, and unmixed again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from redactory.foundation.errors import CheckFailed
from redactory.training.mechanism import BandedGaussian
from redactory.training.steps import NoisyPhase


@dataclass
class BandedPhase(NoisyPhase):
    """DP-SGD with correlated noise: the sums of the last b steps are mixed, noised, and unmixed again.

    ``sums`` are the last b − 1 clipped sums, by step: private, kept in memory and in the checkpoint alone.
    ``moved`` are what left them, C⁻¹ of the noisy rows; b copies of the gradient in all, and as many again.

    Formal guarantees: a row Σ_j C[t, j]·g_j is computed anew from the sums and admitted before its noise is
    drawn; what the model moves along follows from noisy rows alone (``docs/guarantees.md``, "Correlated
    noise").
    """

    sums: dict[int, Tensor] = field(default_factory=dict)
    moved: dict[int, Tensor] = field(default_factory=dict)

    def noisy_gradient(self, number: int, total: Tensor) -> Tensor:
        """Row ``number`` of C⁻¹(C·g + noise), over the constant; ``CheckFailed`` without the sums before."""
        assert isinstance(self.mechanism, BandedGaussian)
        row = self.mechanism.matrix.row(number)
        if not row.keys() - {number} <= self.sums.keys():
            raise CheckFailed("the sums before this step are gone: remove the model's folder and train again")
        self.sums[number] = total.detach()
        mixed = torch.zeros_like(total, dtype=torch.float64)
        for step, entry in row.items():
            mixed += entry * self.sums[step].double()
        self.ledger.admit(number, mixed)
        noisy = self.mechanism.noisy_sum(mixed, self.stream, number)
        diagonal = row.pop(number)
        for step, entry in row.items():
            noisy -= entry * self.moved[step]
        self.moved[number] = noisy / diagonal
        for kept in (self.sums, self.moved):
            kept.pop(number - len(self.mechanism.matrix.coefficients) + 1, None)
        return (self.moved[number] / self.mechanism.normaliser).to(total.dtype)

    @property
    def memory(self) -> dict[str, dict[int, Tensor]]:
        """What a resumed training needs beside the parameters.  ``sums`` are private."""
        return {
            name: {k: v.cpu() for k, v in kept.items()}
            for name, kept in (("sums", self.sums), ("moved", self.moved))
        }

    @memory.setter
    def memory(self, found: dict[str, dict[int, Tensor]]) -> None:
        device = self.network.device
        self.sums, self.moved = ({k: v.to(device) for k, v in found[n].items()} for n in ("sums", "moved"))

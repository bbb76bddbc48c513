"""A tape on which a model's layers are recorded, for exact per-example clipping in one backward pass.

For a layer y_t = W x_t + b used at times t of one example, the example's gradient is
∂W = Σ_t δ_t x_tᵀ with δ_t = ∂loss/∂y_t.  Its squared norm needs no ∂W,
‖∂W‖² = Σ_{t,s} ⟨δ_t, δ_s⟩⟨x_t, x_s⟩, and a weighted sum over examples is one product,
Σ_i w_i Σ_t δ_{it} x_{it}ᵀ.  So one backward pass to the layers' outputs suffices (book-keeping or
ghost clipping; Li et al. 2021, Bu et al. 2023).  A recurrent weight is a layer like any other,
used once a time step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LinearUse:
    """One weight [O, I] (and bias [O]) that read ``inputs`` [B, T, I] to make a recorded output."""

    weight: str
    bias: str
    inputs: Tensor


@dataclass(frozen=True)
class LinearSite:
    """``output`` [B, T, O] is the sum of what ``uses`` made: they share its gradient."""

    output: Tensor
    uses: tuple[LinearUse, ...]

    def squared_norms(self, delta: Tensor) -> Tensor:
        """‖gradient‖² of every example over all weights and biases of the site, [B]."""
        kernel = sum((_gram(use.inputs) + 1.0 for use in self.uses), start=torch.zeros((), dtype=delta.dtype))
        return (_gram(delta) * kernel).sum((1, 2))

    def add_gradients(self, delta: Tensor, into: Mapping[str, Tensor]) -> None:
        """Add Σ_i of the gradients of the (already weighted) ``delta`` to ``into``."""
        flat = delta.flatten(0, 1)
        for use in self.uses:
            into[use.weight].addmm_(flat.T, use.inputs.flatten(0, 1))
            into[use.bias].add_(flat.sum(0))


@dataclass(frozen=True)
class EmbeddingSite:
    """Rows ``ids`` [B, T] of ``weight`` [V, E] that made ``output`` [B, T, E]."""

    output: Tensor
    weight: str
    ids: Tensor

    def squared_norms(self, delta: Tensor) -> Tensor:
        """‖gradient‖² of every example, [B]: rows that were read twice add up before the square."""
        same = (self.ids[:, :, None] == self.ids[:, None, :]).to(delta.dtype)
        return (_gram(delta) * same).sum((1, 2))

    def add_gradients(self, delta: Tensor, into: Mapping[str, Tensor]) -> None:
        """Add Σ_i of the gradients of the (already weighted) ``delta`` to ``into``."""
        into[self.weight].index_add_(0, self.ids.flatten(), delta.flatten(0, 1))


@dataclass
class Tape:
    """The sites of one forward pass, in order.  ``parameters`` are read, never differentiated.

    Formal guarantees: for every example, :meth:`squared_norms` equals the squared L2 norm of its
    gradient over all recorded parameters (up to rounding), and it depends on that example alone,
    provided that no operation between the sites mixes examples.
    """

    parameters: Mapping[str, Tensor]
    sites: list[LinearSite | EmbeddingSite] = field(default_factory=list)

    def embedding(self, weight: str, ids: Tensor) -> Tensor:
        """Rows of ``weight``, recorded: [B, T] to [B, T, E]."""
        output = self.parameters[weight][ids].detach().requires_grad_()
        self.sites.append(EmbeddingSite(output, weight, ids))
        return output

    def linear(self, weight: str, bias: str, inputs: Tensor) -> Tensor:
        """An affine layer over [B, T, I], recorded."""
        output = F.linear(inputs, self.parameters[weight].detach(), self.parameters[bias].detach())
        self.sites.append(LinearSite(output, (LinearUse(weight, bias, inputs.detach()),)))
        return output

    def also_linear(self, weight: str, bias: str, inputs: Tensor) -> None:
        """Say that another affine layer, computed by the caller, was added to the last site's output."""
        site = self.sites[-1]
        assert isinstance(site, LinearSite)
        self.sites[-1] = LinearSite(site.output, (*site.uses, LinearUse(weight, bias, inputs.detach())))

    def deltas(self, loss: Tensor) -> list[Tensor]:
        """∂loss/∂output of every site: the one backward pass.  ``loss`` sums over the examples."""
        return list(torch.autograd.grad(loss, [site.output for site in self.sites]))


def _gram(rows: Tensor) -> Tensor:
    """⟨row_t, row_s⟩ of every example: [B, T, N] to [B, T, T]."""
    return rows @ rows.mT

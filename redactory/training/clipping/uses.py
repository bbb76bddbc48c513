"""What the gradient of each example is made of, in the forms in which layers report it.

Every use of a parameter adds a gradient G_i to example i.  :class:`Outer` and :class:`Rows` hold it as
a sum of outer products Σ_t l_t r_tᵀ, whose inner products need no G_i:
⟨Σ_t l_t r_tᵀ, Σ_s l'_s r'_sᵀ⟩ = Σ_{t,s} ⟨l_t, l'_s⟩⟨r_t, r'_s⟩ (Gram matrices; ghost clipping, Li et
al. 2021; book-keeping, Bu et al. 2023).  :class:`Dense` holds G_i itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.training.layers.products import add_product, product


class Piece(NamedTuple):
    """One example's share of a use: ``left`` [T, L] (or row numbers [T]) and ``right`` [T, R]."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Outer:
    """G_i = mask ∘ Σ_t left_it right_itᵀ, [L, R].

    ``left`` [B, T, L], ``right`` [B, T, R]; with ``counts`` they are [Σ counts, L] and [Σ counts, R],
    example after example.  ``mask`` [L, R].
    """

    left: Tensor
    right: Tensor
    counts: list[int] | None = None
    mask: Tensor | None = None

    @property
    def examples(self) -> int:
        """B."""
        return len(self.left) if self.counts is None else len(self.counts)

    @property
    def height(self) -> int:
        """L."""
        return self.left.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.left.device

    def pieces(self) -> list[Piece]:
        """Every example's share."""
        if self.counts is None:
            pairs = zip(self.left, self.right, strict=True)
        else:
            split = (torch.split(x, self.counts) for x in (self.left, self.right))
            pairs = zip(*split, strict=True)
        return [Piece(left, right.contiguous()) for left, right in pairs]

    def slab(self, piece: Piece, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        gradient = product(piece.left[:, part].t(), piece.right)
        return gradient if self.mask is None else gradient.mul_(self.mask[part])

    def without(self, bad: Tensor) -> Outer:
        """The same with zero in place of the examples ``bad`` [B]."""
        place = self._each(bad)
        left, right = self.left.masked_fill(place, 0.0), self.right.masked_fill(place, 0.0)
        return Outer(left, right, self.counts, self.mask)

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [L, R]; ``fresh`` says that it holds nothing yet."""
        left, right, each = self.left, self.right, self._each(weights)
        if self.counts is None and left.stride(0) < left.stride(1):  # time lies first: so go through it
            left, right, each = left.transpose(0, 1), right.transpose(0, 1), each.transpose(0, 1)
        if left.shape[-1] < right.shape[-1]:
            left = left * each
        else:
            right = right * each
        left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
        if self.mask is None:
            add_product(total, left, right, fresh)
        elif fresh:
            add_product(total, left, right, fresh)
            total.mul_(self.mask)
        else:
            total.addcmul_(product(left.t(), right), self.mask)

    def _each(self, values: Tensor) -> Tensor:
        """One value an example [B], in the shape that goes with ``left`` and ``right``."""
        if self.counts is None:
            return values[:, None, None]
        return values.repeat_interleave(torch.tensor(self.counts, device=values.device))[:, None]


@dataclass(frozen=True)
class Rows:
    """G_i has ``right``_it [B, T, R] added to its row ``left``_it [B, T]: an embedding of ``height`` rows."""

    left: Tensor
    right: Tensor
    height: int
    counts: ClassVar[None] = None

    @property
    def examples(self) -> int:
        """B."""
        return len(self.left)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.right.device

    def pieces(self) -> list[Piece]:
        """Every example's share."""
        return [Piece(ids, right) for ids, right in zip(self.left, self.right, strict=True)]

    def slab(self, piece: Piece, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        slab = piece.right.new_zeros(part.stop - part.start, piece.right.shape[1])
        inside = (piece.left >= part.start) & (piece.left < part.stop)
        return slab.index_add_(0, piece.left[inside] - part.start, piece.right[inside])

    def without(self, bad: Tensor) -> Rows:
        """The same with zero in place of the examples ``bad`` [B]."""
        return Rows(self.left, self.right.masked_fill(bad[:, None, None], 0.0), self.height)

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [V, R]; ``fresh`` says that it holds nothing yet."""
        if fresh:
            total.zero_()
        total.index_add_(0, self.left.flatten(), (self.right * weights[:, None, None]).flatten(0, 1))


@dataclass(frozen=True)
class Dense:
    """G_i = ``gradients``[i], of the parameter's shape."""

    gradients: Tensor

    @property
    def examples(self) -> int:
        """B."""
        return len(self.gradients)

    @property
    def height(self) -> int:
        """The parameter's first dimension."""
        return self.gradients.shape[1]

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.gradients.device

    def pieces(self) -> list[Piece]:
        """Every example's gradient, as ``right``."""
        return [Piece(gradient, gradient) for gradient in self.gradients]

    def slab(self, piece: Piece, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        return piece.right[part]

    def without(self, bad: Tensor) -> Dense:
        """The same with zero in place of the examples ``bad`` [B]."""
        place = bad.view(-1, *[1] * (self.gradients.dim() - 1))
        return Dense(self.gradients.masked_fill(place, 0.0))

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total``; ``fresh`` says that it holds nothing yet."""
        summed = (weights @ self.gradients.flatten(1)).view_as(total)
        if fresh:
            total.copy_(summed)
        else:
            total.add_(summed)


Use = Outer | Rows | Dense


# The recorder of one pass: collects, for every parameter, what its examples' gradients are made of.


class Tape:
    """Listens to the layers (:class:`redactory.training.layers.recorder.Recorder`) of one pass.

    ``names`` are the trainable parameters by identity.  ``shared`` holds those that several modules
    have in common; their uses are kept as outer products, for the cross terms.
    """

    def __init__(self, names: Mapping[int, str], shared: frozenset[int]) -> None:
        self.names, self.shared = names, shared
        self.uses: dict[int, list[Use]] = {}
        self.probing = False
        self.examples = 0
        """The longest first dimension of a layer's input so far in this forward pass."""

    def outer(
        self,
        parameter: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        counts: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        left, right = left.detach(), right.detach()
        if counts and min(counts) == max(counts) > 0:
            left, right = (x.view(len(counts), -1, x.shape[-1]) for x in (left, right))
            counts = None
        use: Use = Outer(left, right, None if counts is None else list(counts), mask)
        if mask is None and counts is None and id(parameter) not in self.shared:
            places, sizes = left.shape[1], (left.shape[2], right.shape[2])
            if sizes[0] * sizes[1] <= places * sum(sizes):
                # No larger than its two factors, and it spares the weighted product.
                use = Dense(left.mT @ right)
        self._keep(parameter, use)

    def rows(self, parameter: Tensor, ids: Tensor, right: Tensor) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        self._keep(parameter, Rows(ids, right.detach(), len(parameter)))

    def dense(self, parameter: Tensor, gradients: Tensor) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        self._keep(parameter, Dense(gradients.detach()))

    def _keep(self, parameter: Tensor, use: Use) -> None:
        if id(parameter) not in self.names:
            raise ConfigurationError("a layer reported a parameter that is not one of the network's own")
        self.uses.setdefault(id(parameter), []).append(use)

    def check_examples(self, examples: int) -> None:
        """Every use must have met ``examples`` examples; else ``ConfigurationError`` naming the parameter."""
        for key, uses in self.uses.items():
            for use in uses:
                if use.examples != examples:
                    raise ConfigurationError(
                        f"{self.names[key]}: its layer met {use.examples} rows in a batch of {examples}; "
                        "the first dimension of its input must be the batch (give position ids explicitly)"
                    )

"""What the gradient of each example is made of, in the forms in which layers report it, and its norm.

Factors may be in half precision, as autocast made them.  What is made of them is in single precision, for
the norm as for the sum: both are of the same numbers.

Every use of a parameter adds a gradient G_i to example i.  :class:`Outer` and :class:`Rows` hold it as
a sum of outer products Σ_t l_t r_tᵀ, whose inner products need no G_i:
⟨Σ_t l_t r_tᵀ, Σ_s l'_s r'_sᵀ⟩ = Σ_{t,s} ⟨l_t, l'_s⟩⟨r_t, r'_s⟩ (Gram matrices; ghost clipping, Li et
al. 2021; book-keeping, Bu et al. 2023).  :class:`Dense` holds G_i itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.matmul import add_product, product, wide


class Inseparable(ConfigurationError):
    """The points cannot be told apart at ``name``, a parameter or a module: the block around it might."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


LARGEST_SQUARE = 1e18
"""A factor whose squared norm is above this counts as not finite: the squares of the factors it multiplies
may underflow in float32 while the product is no small number, and the norm would miss it."""
SLAB_ROWS = 512
"""A gradient that must be formed is formed so many rows at a time, which a processor's cache holds."""
Share = tuple[Tensor, Tensor]
"""One example's part of a use: ``left`` [T, L] (or row numbers [T]) and ``right`` [T, R]."""


class _Use:
    """One use of a parameter by every example; ``height`` is the parameter's first dimension.

    ``shares`` are the examples' parts, ``slab`` forms some rows of one G_i, ``without`` makes examples zero,
    and ``add_to`` adds Σ_i weights_i G_i to a total, which is empty if ``fresh``.
    """

    right: Tensor
    counts: list[int] | None = None

    @property
    def examples(self) -> int:
        """B."""
        return len(self.right) if self.counts is None else len(self.counts)


@dataclass(frozen=True)
class Outer(_Use):
    """G_i = mask ∘ Σ_t left_it right_itᵀ, [L, R].

    ``left`` [B, T, L], ``right`` [B, T, R]; with ``counts`` they are [Σ counts, L] and [Σ counts, R],
    example after example.  ``mask`` [L, R].
    """

    left: Tensor
    right: Tensor
    counts: list[int] | None = None
    mask: Tensor | None = None

    @property
    def height(self) -> int:
        """L."""
        return self.left.shape[-1]

    def shares(self) -> list[Share]:
        """Every example's part."""
        if self.counts is None:
            pairs = zip(self.left, self.right, strict=True)
        else:
            pairs = zip(*(torch.split(x, self.counts) for x in (self.left, self.right)), strict=True)
        return [(left, right.contiguous()) for left, right in pairs]

    def slab(self, share: Share, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        gradient = product(wide(share[0][:, part]).t(), wide(share[1]))
        return gradient if self.mask is None else gradient.mul_(self.mask[part])

    def without(self, bad: Tensor) -> Outer:
        """The same with zero in place of the examples ``bad`` [B]."""
        place = self._each(bad)
        left, right = self.left.masked_fill(place, 0.0), self.right.masked_fill(place, 0.0)
        return replace(self, left=left, right=right)

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [L, R]."""
        left, right, each = self.left, self.right, self._each(weights)
        if self.counts is None and left.stride(0) < left.stride(1):  # time lies first: so go through it
            left, right, each = (x.transpose(0, 1) for x in (left, right, each))
        if left.shape[-1] < right.shape[-1]:
            left = left * each
        else:
            right = right * each
        left, right = (wide(x.reshape(-1, x.shape[-1])) for x in (left, right))
        if self.mask is not None and not fresh:
            total.addcmul_(product(left.t(), right), self.mask)
            return
        add_product(total, left, right, fresh)
        if self.mask is not None:
            total.mul_(self.mask)

    def _each(self, values: Tensor) -> Tensor:
        """One value an example [B], in the shape that goes with ``left`` and ``right``."""
        if self.counts is None:
            return values[:, None, None]
        return values.repeat_interleave(torch.tensor(self.counts, device=values.device))[:, None]


@dataclass(frozen=True)
class Rows(_Use):
    """G_i has ``right``_it [B, T, R] added to its row ``left``_it [B, T]: an embedding of ``height`` rows."""

    left: Tensor
    right: Tensor
    height: int

    def shares(self) -> list[Share]:
        """Every example's part."""
        return list(zip(self.left, self.right, strict=True))

    def slab(self, share: Share, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        ids, right = share
        slab = right.new_zeros(part.stop - part.start, right.shape[1])
        inside = (ids >= part.start) & (ids < part.stop)
        return slab.index_add_(0, ids[inside] - part.start, right[inside])

    def without(self, bad: Tensor) -> Rows:
        """The same with zero in place of the examples ``bad`` [B]."""
        return replace(self, right=self.right.masked_fill(bad[:, None, None], 0.0))

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [V, R]."""
        if fresh:
            total.zero_()
        total.index_add_(0, self.left.flatten(), (self.right * weights[:, None, None]).flatten(0, 1))


@dataclass(frozen=True)
class Dense(_Use):
    """G_i = ``right``[i], of the parameter's shape."""

    right: Tensor

    @property
    def height(self) -> int:
        """The parameter's first dimension."""
        return self.right.shape[1]

    def shares(self) -> list[Share]:
        """Every example's gradient."""
        return [(gradient, gradient) for gradient in self.right]

    def slab(self, share: Share, part: slice) -> Tensor:
        """The rows ``part`` of G of one example."""
        return share[1][part]

    def without(self, bad: Tensor) -> Dense:
        """The same with zero in place of the examples ``bad`` [B]."""
        return Dense(self.right.masked_fill(bad.view(-1, *[1] * (self.right.dim() - 1)), 0.0))

    def add_to(self, total: Tensor, weights: Tensor, fresh: bool) -> None:
        """Add Σ_i weights_i G_i to ``total``."""
        summed = (weights @ self.right.flatten(1)).view_as(total)
        if fresh:
            total.copy_(summed)
        else:
            total.add_(summed)


Use = Outer | Rows | Dense


# The norm of each example's gradient, without forming the gradient where that is cheaper.


Grams = dict[tuple[object, ...], Tensor]
"""Gram matrices that were already made in this pass, by the memory of their factors."""


def squared_norms(uses: Sequence[Use], grams: Grams) -> Share:
    """‖Σ_uses G_i‖² of every example over the ``uses`` of one parameter, and what of it is squares; float64.

    The first is a sum of T² products of which the second, Σ_t ‖l_t‖²‖r_t‖², are the squares.  Rounding errs
    by a few units of the second, so a norm far below it is mostly rounding; where nothing was summed in this
    way it is 0.  A parameter that is used twice (tied weights) has its cross terms counted: for an embedding
    tied to the output layer that makes three products of Gram matrices.  No matrix of T × T is made that is
    larger than the factors: then the gradients are formed.
    """
    dense = [use.right for use in uses if isinstance(use, Dense)]
    factors = [use for use in uses if isinstance(use, Rows) or (isinstance(use, Outer) and use.mask is None)]
    alone = uses[0] if len(uses) == 1 and isinstance(uses[0], Rows) else None
    if alone is not None or len(factors) < len(uses) or _long(uses):
        if alone is not None:
            exact = _added_up(alone)
        elif len(dense) == len(uses):
            exact = _squares(torch.stack(dense).sum(0) if len(dense) > 1 else dense[0])
        else:
            exact = formed_squares(uses, list(range(uses[0].examples)))
        return exact, torch.zeros_like(exact)
    found = [_inner(use, use, grams) for use in factors]
    total, own = (torch.stack(parts).sum(0) for parts in zip(*found, strict=True))
    for place, use in enumerate(factors):
        for other in factors[place + 1 :]:
            total += 2.0 * _inner(use, other, grams)[0]
    return total, own


def _long(uses: Sequence[Use]) -> bool:
    """Whether an example has so many places that its gradient is no larger than the factors of it."""
    outer = [use for use in uses if isinstance(use, Outer) and use.mask is None]
    sizes = [(use.left.shape[-1], use.right.shape[-1], max(use.counts or use.left.shape[-2:-1])) for use in outer]
    return any(left * right <= places * (left + right) for left, right, places in sizes)


def _added_up(use: Rows) -> Tensor:
    """‖G_i‖² of every example, [B] float64: what falls on one row is added up first."""
    offsets = use.height * torch.arange(use.examples, device=use.left.device)[:, None]
    found, place = (use.left + offsets).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    summed = use.right.new_zeros(len(found), use.right.shape[-1])
    summed.index_add_(0, place.flatten(), use.right.flatten(0, 1))
    total = torch.zeros(use.examples, dtype=torch.float64, device=use.right.device)
    return total.index_add_(0, found // use.height, _squares(summed))


def formed_squares(uses: Sequence[Use], rows: Sequence[int]) -> Tensor:
    """‖Σ_uses G_i‖² of the examples ``rows``, [len(rows)] float64, from the gradients themselves."""
    shares, height = [use.shares() for use in uses], uses[0].height
    total = torch.zeros(len(rows), dtype=torch.float64, device=uses[0].right.device)
    for start in range(0, height, SLAB_ROWS):
        part = slice(start, min(start + SLAB_ROWS, height))
        for place, row in enumerate(rows):
            slab = uses[0].slab(shares[0][row], part)
            for use, own in zip(uses[1:], shares[1:], strict=True):
                slab = slab + use.slab(own[row], part)
            total[place] += _squares(slab[None])[0]
    return total


def _inner(one: Outer | Rows, other: Outer | Rows, grams: Grams) -> Share:
    """⟨G_i, G'_i⟩ of every example, and the share of t with t itself, both [B] float64."""
    if not one.examples:
        nothing = torch.zeros(0, dtype=torch.float64, device=one.right.device)
        return nothing, nothing
    if one.counts is None and other.counts is None:
        return _total(_cached(one.left, other.left, grams), _cached(one.right, other.right, grams))
    pairs = zip(one.shares(), other.shares(), strict=True)
    found = [_total(_kernel(a[0], b[0]), _kernel(a[1], b[1])) for a, b in pairs]
    total, own = zip(*found, strict=True)
    return torch.stack(total), torch.stack(own)


def _total(kernel: Tensor, other: Tensor) -> Share:
    """Σ of the products of the entries of each example's two matrices [..., T, S], and of the diagonals."""
    products = kernel.double() * other.double()
    total, own = products.sum((-2, -1)), products.diagonal(dim1=-2, dim2=-1).sum(-1)
    if not products.numel():
        return total, own
    largest = torch.stack([x.diagonal(dim1=-2, dim2=-1).amax(-1).double() for x in (kernel, other)]).amax(0)
    return total.masked_fill(largest > LARGEST_SQUARE, torch.inf), own


def _kernel(left: Tensor, other: Tensor) -> Tensor:
    """⟨l_t, l'_s⟩, [..., T, S]; whole numbers [..., T] stand for one-hot vectors."""
    match left.is_floating_point(), other.is_floating_point():
        case True, True:
            return wide(left) @ wide(other).mT
        case False, False:
            return torch.eq(left[..., :, None], other[..., None, :])
        case False, True:
            columns = left[..., None, :].expand(*other.shape[:-1], left.shape[-1])
            return other.gather(-1, columns).mT
        case _:
            return _kernel(other, left).mT


def _cached(left: Tensor, other: Tensor, grams: Grams) -> Tensor:
    key = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (left, other))
    if key not in grams:
        grams[key] = _kernel(left, other)
    return grams[key]


def _squares(gradients: Tensor) -> Tensor:
    """‖G_i‖² of every example, [B] float64, from [B, \\*shape]; a row's sum is in the gradients' type."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=-1).double()
    return norms.square().flatten(1).sum(1) if norms.dim() > 1 else norms.square()


# The recorder of one pass: collects, for every parameter, what its examples' gradients are made of.


class Tape:
    """Listens to one forward and one backward pass, of B examples with T uses of a layer in each.

    A layer that meets a tape in its forward pass (:func:`recorder`) reports to it in its backward pass, and
    hands autograd no gradient for the parameters that it reported on.  ``names`` are the trainable
    parameters by identity.  ``shared`` holds those that several modules have in common; their uses are kept
    as outer products, for the cross terms.  ``points`` is B where the caller knows it.
    """

    def __init__(self, names: Mapping[int, str], shared: frozenset[int], points: int | None = None) -> None:
        self.names, self.shared, self.points = names, shared, points
        self.uses: dict[int, list[Use]] = {}
        self.probing = False
        """A backward pass to be repeated: layers must leave what they saved as it is."""
        self.examples = points or 0
        """B, or where nobody said it the longest first dimension of a layer's input so far."""

    def joined(self, length: int) -> bool:
        """Whether an input of ``length`` rows has the places of every point in its first dimension, [B·T]."""
        if self.points is None:
            self.examples = max(self.examples, length)
            return False
        return length > self.points and length % self.points == 0

    def outer(
        self,
        parameter: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        counts: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Example i's gradient of ``parameter`` is that of an :class:`Outer` of these factors.

        One of ``left`` and ``right`` is the gradient of the layer's output.
        """
        left, right = left.detach(), right.detach()
        if counts and min(counts) == max(counts) > 0:
            left, right = (x.view(len(counts), -1, x.shape[-1]) for x in (left, right))
            counts = None
        use: Use = Outer(left, right, None if counts is None else list(counts), mask)
        if mask is None and counts is None and id(parameter) not in self.shared:
            places, sizes = left.shape[1], (left.shape[2], right.shape[2])
            if sizes[0] * sizes[1] <= places * sum(sizes):
                # No larger than its two factors, and it spares the weighted product.
                use = Dense(wide(left).mT @ wide(right))
        self._keep(parameter, use)

    def rows(self, parameter: Tensor, ids: Tensor, right: Tensor) -> None:
        """Example i's gradient of ``parameter`` [V, E] is ``right``_it [B, T, E] on row ``ids``_it [B, T]."""
        self._keep(parameter, Rows(ids, wide(right.detach()), len(parameter)))

    def dense(self, parameter: Tensor | None, gradients: Tensor) -> None:
        """``gradients`` [B, \\*shape of parameter] are the examples' gradients, if it is one that learns."""
        if parameter is not None and parameter.requires_grad:
            self._keep(parameter, Dense(wide(gradients.detach())))

    def _keep(self, parameter: Tensor, use: Use) -> None:
        if id(parameter) not in self.names:
            raise ConfigurationError("a layer reported a parameter that does not belong to the network")
        self.uses.setdefault(id(parameter), []).append(use)

    def check_examples(self, examples: int) -> None:
        """Every use must have met ``examples`` examples; else ``ConfigurationError`` naming the parameter."""
        for key, uses in self.uses.items():
            for use in uses:
                if use.examples != examples:
                    raise Inseparable(
                        self.names[key],
                        f"its layer received {use.examples} rows in a batch of {examples}; the first "
                        "dimension of its input must be the batch. If it combines examples and positions "
                        "(experts, OPT), pass the number of examples; if it has no batch (relative "
                        "positions), have check_exact record the surrounding block as one",
                    )


_LISTENING: ContextVar[Tape | None] = ContextVar("recorder", default=None)


def recorder() -> Tape | None:
    """Who listens to this forward pass, if anybody."""
    return _LISTENING.get()


@contextmanager
def listening(to: Tape | None) -> Iterator[None]:
    """Layers whose forward pass runs in this block report to ``to``, or to nobody."""
    token = _LISTENING.set(to)
    try:
        yield
    finally:
        _LISTENING.reset(token)

"""The norms of the examples' gradients, without forming the gradients where that is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from redactory.training.clipping.uses import Dense, Outer, Rows, Use

Grams = dict[tuple[object, ...], Tensor]
"""Gram matrices that were already made in this pass, by the memory of their factors."""

LARGEST_SQUARE = 1e18
"""A factor whose squared norm is above this counts as not finite: the squares of the factors it multiplies
may underflow in float32 while the product is no small number, and the norm would miss it."""

SLAB_ROWS = 512
"""A gradient that must be formed is formed so many rows at a time, which a processor's cache holds."""


class Squares(NamedTuple):
    """``total`` ‖G_i‖² of every example, and what of it comes from each place by itself, both [B] float64.

    ``total`` is a sum of T² products of which ``own``, Σ_t ‖l_t‖²‖r_t‖², are the squares.  Rounding
    errs by a few units of ``own``, so a ``total`` far below it is mostly rounding; where nothing
    was summed in this way ``own`` is 0.
    """

    total: Tensor
    own: Tensor


def squared_norms(uses: Sequence[Use], grams: Grams) -> Squares:
    """‖Σ_uses G_i‖² of every example over the ``uses`` of one parameter.

    A parameter that is used twice (tied weights) has its cross terms counted: for an embedding tied
    to the output layer that makes three products of Gram matrices.
    """
    dense = [use.gradients for use in uses if isinstance(use, Dense)]
    if len(dense) == len(uses):
        exact = _squares(torch.stack(dense).sum(0) if len(dense) > 1 else dense[0])
        return Squares(exact, torch.zeros_like(exact))
    factors = [use for use in uses if isinstance(use, Rows) or (isinstance(use, Outer) and use.mask is None)]
    if len(factors) < len(uses):
        exact = formed_squares(uses, list(range(uses[0].examples)))
        return Squares(exact, torch.zeros_like(exact))
    found = [_inner(use, use, grams) for use in factors]
    total, own = (torch.stack(parts).sum(0) for parts in zip(*found, strict=True))
    for place, use in enumerate(factors):
        for other in factors[place + 1 :]:
            total += 2.0 * _inner(use, other, grams)[0]
    return Squares(total, own)


def formed_squares(uses: Sequence[Use], rows: Sequence[int]) -> Tensor:
    """‖Σ_uses G_i‖² of the examples ``rows``, [len(rows)] float64, from the gradients themselves."""
    pieces = [use.pieces() for use in uses]
    height = uses[0].height
    total = torch.zeros(len(rows), dtype=torch.float64, device=uses[0].device)
    for start in range(0, height, SLAB_ROWS):
        part = slice(start, min(start + SLAB_ROWS, height))
        for place, row in enumerate(rows):
            slab = uses[0].slab(pieces[0][row], part)
            for use, own in zip(uses[1:], pieces[1:], strict=True):
                slab = slab + use.slab(own[row], part)
            total[place] += _squares(slab[None])[0]
    return total


def _inner(one: Outer | Rows, other: Outer | Rows, grams: Grams) -> tuple[Tensor, Tensor]:
    """⟨G_i, G'_i⟩ of every example, and the share of t with t itself, both [B] float64."""
    if not one.examples:
        nothing = torch.zeros(0, dtype=torch.float64, device=one.device)
        return nothing, nothing
    if one.counts is None and other.counts is None:
        return _total(_cached(one.left, other.left, grams), _cached(one.right, other.right, grams))
    pairs = zip(one.pieces(), other.pieces(), strict=True)
    found = [_total(_kernel(a.left, b.left), a.right @ b.right.mT) for a, b in pairs]
    total, own = zip(*found, strict=True)
    return torch.stack(total), torch.stack(own)


def _total(kernel: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
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
            return left @ other.mT
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

"""The parts of each example's gradient, in the forms in which layers report them, and its norm.

Factors may be in half precision, as autocast made them. The norm and the sum are computed from these numbers in single
precision.

Every use of a parameter adds a gradient G_i to example i. :class:`OuterProducts` and :class:`EmbeddingRows` hold it as
a sum of outer products Σ_t l_t r_tᵀ, whose inner products need no G_i: ⟨Σ_t l_t r_tᵀ, Σ_s l'_s r'_sᵀ⟩ = Σ_{t,s} ⟨l_t,
l'_s⟩⟨r_t, r'_s⟩ (Gram matrices; ghost clipping, Li et al. 2021; book-keeping, Bu et al. 2023). :class:`DenseGradients`
holds G_i itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.matmul import accumulate_total, add_product, multiply_matrices, to_float32


class InseparableExamplesError(ConfigurationError):
    """The examples cannot be separated at ``name``, a parameter or a module; the enclosing block may work."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


MAX_SQUARED_NORM = 1e18
"""A factor with a larger squared norm counts as not finite.

The squares of the other factor may underflow in float32 while the product is not small, so the norm would miss it.
"""
SLAB_ROWS = 512
"""Rows of a formed gradient computed at a time, to fit in a processor's cache."""
ReportFunction = Callable[[Sequence[Tensor], Sequence[Tensor | None]], None]
"""Reports a layer's gradients, from the tensors that it saved and the gradients of its outputs (None: unused)."""
ExampleFactors = tuple[Tensor, Tensor]
"""One example's part of a use: ``left`` [T, L] (or row numbers [T]) and ``right`` [T, R]."""


class _ParameterUse:
    """One use of a parameter by every example; ``height`` is the parameter's first dimension.

    ``split_examples`` returns the examples' parts, ``compute_gradient_rows`` some rows of one G_i, ``zero_examples`` a
    copy with zero for some examples. ``add_weighted_sum`` adds Σ_i weights_i G_i to a total, or overwrites it if
    ``is_empty``.
    """

    right: Tensor
    counts: list[int] | None = None

    @property
    def example_count(self) -> int:
        return len(self.right) if self.counts is None else len(self.counts)


@dataclass(frozen=True)
class OuterProducts(_ParameterUse):
    """G_i = mask ∘ Σ_t left_it right_itᵀ, [L, R].

    ``left`` [B, T, L], ``right`` [B, T, R]; with ``counts`` they are concatenated examples, [Σ counts, L] and [Σ
    counts, R]. ``mask`` [L, R].
    """

    left: Tensor
    right: Tensor
    counts: list[int] | None = None
    mask: Tensor | None = None

    @property
    def height(self) -> int:
        """L, the number of rows of G."""
        return self.left.shape[-1]

    def split_examples(self) -> list[ExampleFactors]:
        """Split into one gradient per example."""
        if self.counts is None:
            pairs = zip(self.left, self.right, strict=True)
        else:
            pairs = zip(*(torch.split(x, self.counts) for x in (self.left, self.right)), strict=True)
        return [(left, right.contiguous()) for left, right in pairs]

    def compute_gradient_rows(self, factors: ExampleFactors, rows: slice) -> Tensor:
        """The slice ``rows`` of one example's G."""
        gradient = multiply_matrices(to_float32(factors[0][:, rows]).t(), to_float32(factors[1]))
        return gradient if self.mask is None else gradient.mul_(self.mask[rows])

    def zero_examples(self, excluded: Tensor) -> OuterProducts:
        """The same with the examples ``excluded`` [B] set to zero."""
        excluded_mask = self._broadcast_to_factors(excluded)
        left, right = self.left.masked_fill(excluded_mask, 0.0), self.right.masked_fill(excluded_mask, 0.0)
        return replace(self, left=left, right=right)

    def add_weighted_sum(self, total: Tensor, weights: Tensor, is_empty: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [L, R]."""
        left, right, factor_weights = self.left, self.right, self._broadcast_to_factors(weights)
        if self.counts is None and left.stride(0) < left.stride(1):  # time is the outer dimension in memory
            left, right, factor_weights = (x.transpose(0, 1) for x in (left, right, factor_weights))
        if left.shape[-1] < right.shape[-1]:
            left = left * factor_weights
        else:
            right = right * factor_weights
        left, right = (to_float32(x.reshape(-1, x.shape[-1])) for x in (left, right))
        if self.mask is not None and not is_empty:
            total.addcmul_(multiply_matrices(left.t(), right), self.mask)
            return
        add_product(total, left, right, is_empty)
        if self.mask is not None:
            total.mul_(self.mask)

    def _broadcast_to_factors(self, values: Tensor) -> Tensor:
        if self.counts is None:
            return values[:, None, None]
        return values.repeat_interleave(torch.tensor(self.counts, device=values.device))[:, None]


@dataclass(frozen=True)
class EmbeddingRows(_ParameterUse):
    """G_i has ``right``_it [B, T, R] added to its row ``left``_it [B, T]: an embedding of ``height`` rows."""

    left: Tensor
    right: Tensor
    height: int

    def split_examples(self) -> list[ExampleFactors]:
        """Split into one gradient per example."""
        return list(zip(self.left, self.right, strict=True))

    def compute_gradient_rows(self, factors: ExampleFactors, rows: slice) -> Tensor:
        """The slice ``rows`` of one example's G."""
        ids, right = factors
        slab = right.new_zeros(rows.stop - rows.start, right.shape[1])
        inside = (ids >= rows.start) & (ids < rows.stop)
        return slab.index_add_(0, ids[inside] - rows.start, right[inside])

    def zero_examples(self, excluded: Tensor) -> EmbeddingRows:
        """The same with the examples ``excluded`` [B] set to zero."""
        return replace(self, right=self.right.masked_fill(excluded[:, None, None], 0.0))

    def add_weighted_sum(self, total: Tensor, weights: Tensor, is_empty: bool) -> None:
        """Add Σ_i weights_i G_i to ``total`` [V, R]."""
        if is_empty:
            total.zero_()
        total.index_add_(0, self.left.flatten(), (self.right * weights[:, None, None]).flatten(0, 1))


@dataclass(frozen=True)
class DenseGradients(_ParameterUse):
    """G_i = ``right``[i], of the parameter's shape."""

    right: Tensor

    @property
    def height(self) -> int:
        """The parameter's first dimension."""
        return self.right.shape[1]

    def split_examples(self) -> list[ExampleFactors]:
        """Split into one gradient per example."""
        return [(gradient, gradient) for gradient in self.right]

    def compute_gradient_rows(self, factors: ExampleFactors, rows: slice) -> Tensor:
        """The slice ``rows`` of one example's G."""
        return factors[1][rows]

    def zero_examples(self, excluded: Tensor) -> DenseGradients:
        """The same with the examples ``excluded`` [B] set to zero."""
        return DenseGradients(self.right.masked_fill(excluded.view(-1, *[1] * (self.right.dim() - 1)), 0.0))

    def add_weighted_sum(self, total: Tensor, weights: Tensor, is_empty: bool) -> None:
        """Add Σ_i weights_i G_i to ``total``."""
        accumulate_total(total, (weights @ self.right.flatten(1)).view_as(total), is_empty)


ParameterUse = OuterProducts | EmbeddingRows | DenseGradients


# The norm of each example's gradient, without forming the gradient where that is cheaper.


GramCache = dict[tuple[object, ...], Tensor]
"""Gram matrices already computed in this pass, by the memory of their factors."""


def compute_squared_norms(uses: Sequence[ParameterUse], grams: GramCache) -> ExampleFactors:
    """Return ‖Σ_uses G_i‖² of every example over the ``uses`` of one parameter, and its squares' share; float64.

    The first is a sum of T² products; the second, Σ_t ‖l_t‖²‖r_t‖², sums the squares among them. Rounding errors are a
    few units of the second, so a much smaller norm is mostly rounding. The second is 0 if nothing was summed in this
    way. Cross terms of a parameter used twice (tied weights) are included: an embedding tied to the output layer needs
    three products of Gram matrices. If a T × T matrix would be larger than the factors, the gradients are formed
    instead.
    """
    dense = [use.right for use in uses if isinstance(use, DenseGradients)]
    factors = [
        use for use in uses if isinstance(use, EmbeddingRows) or (isinstance(use, OuterProducts) and use.mask is None)
    ]
    if len(uses) == 1 and isinstance(uses[0], EmbeddingRows):
        exact = _sum_embedding_squares(uses[0])
    elif len(dense) == len(uses):
        exact = _sum_squares(torch.stack(dense).sum(0) if len(dense) > 1 else dense[0])
    elif len(factors) < len(uses) or _has_long_examples(uses):
        exact = compute_dense_squared_norms(uses, list(range(uses[0].example_count)))
    else:
        inner_products = [_compute_inner_products(use, use, grams) for use in factors]
        total, diagonal_sum = (torch.stack(parts).sum(0) for parts in zip(*inner_products, strict=True))
        for use, other in combinations(factors, 2):
            total += 2.0 * _compute_inner_products(use, other, grams)[0]
        return total, diagonal_sum
    return exact, torch.zeros_like(exact)


def _has_long_examples(uses: Sequence[ParameterUse]) -> bool:
    """Return whether some example has so many positions that its gradient is no larger than its factors."""
    outer = [use for use in uses if isinstance(use, OuterProducts) and use.mask is None]
    sizes = [(use.left.shape[-1], use.right.shape[-1], max(use.counts or use.left.shape[-2:-1])) for use in outer]
    return any(left * right <= positions * (left + right) for left, right, positions in sizes)


def _sum_embedding_squares(use: EmbeddingRows) -> Tensor:
    offsets = use.height * torch.arange(use.example_count, device=use.left.device)[:, None]
    row_keys, row_index = (use.left + offsets).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    summed = use.right.new_zeros(len(row_keys), use.right.shape[-1])
    summed.index_add_(0, row_index.flatten(), use.right.flatten(0, 1))
    total = torch.zeros(use.example_count, dtype=torch.float64, device=use.right.device)
    return total.index_add_(0, row_keys // use.height, _sum_squares(summed))


def compute_dense_squared_norms(uses: Sequence[ParameterUse], rows: Sequence[int]) -> Tensor:
    """Return ‖Σ_uses G_i‖² of the examples ``rows``, [len(rows)] float64, by forming the gradients."""
    factors_by_use, height = [use.split_examples() for use in uses], uses[0].height
    total = torch.zeros(len(rows), dtype=torch.float64, device=uses[0].right.device)
    for start in range(0, height, SLAB_ROWS):
        row_slice = slice(start, min(start + SLAB_ROWS, height))
        for index, row in enumerate(rows):
            slab = uses[0].compute_gradient_rows(factors_by_use[0][row], row_slice)
            for use, use_factors in zip(uses[1:], factors_by_use[1:], strict=True):
                slab = slab + use.compute_gradient_rows(use_factors[row], row_slice)
            total[index] += _sum_squares(slab[None])[0]
    return total


def _compute_inner_products(
    first: OuterProducts | EmbeddingRows, second: OuterProducts | EmbeddingRows, grams: GramCache
) -> ExampleFactors:
    """Return ⟨G_i, G'_i⟩ of every example and the part from equal positions t, both [B] float64."""
    if first.counts is None and second.counts is None:
        return _sum_gram_products(
            _get_or_compute_gram(first.left, second.left, grams), _get_or_compute_gram(first.right, second.right, grams)
        )
    pairs = zip(first.split_examples(), second.split_examples(), strict=True)
    sums = [_sum_gram_products(_compute_gram(a[0], b[0]), _compute_gram(a[1], b[1])) for a, b in pairs]
    total, diagonals = zip(*sums, strict=True)
    return torch.stack(total), torch.stack(diagonals)


def _sum_gram_products(gram: Tensor, other_gram: Tensor) -> ExampleFactors:
    products = gram.double() * other_gram.double()
    total, diagonal = products.sum((-2, -1)), products.diagonal(dim1=-2, dim2=-1).sum(-1)
    if not products.numel():
        return total, diagonal
    largest = torch.stack([x.diagonal(dim1=-2, dim2=-1).amax(-1).double() for x in (gram, other_gram)]).amax(0)
    return total.masked_fill(largest > MAX_SQUARED_NORM, torch.inf), diagonal


def _compute_gram(left: Tensor, right: Tensor) -> Tensor:
    """Return ⟨l_t, l'_s⟩, [..., T, S]; integers [..., T] represent one-hot vectors."""
    match left.is_floating_point(), right.is_floating_point():
        case True, True:
            return to_float32(left) @ to_float32(right).mT
        case False, False:
            return torch.eq(left[..., :, None], right[..., None, :])
        case False, True:
            columns = left[..., None, :].expand(*right.shape[:-1], left.shape[-1])
            return right.gather(-1, columns).mT
        case _:
            return _compute_gram(right, left).mT


def _get_or_compute_gram(left: Tensor, right: Tensor, grams: GramCache) -> Tensor:
    key = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (left, right))
    if key not in grams:
        grams[key] = _compute_gram(left, right)
    return grams[key]


def _sum_squares(gradients: Tensor) -> Tensor:
    r"""Return ‖G_i‖² of every example, [B] float64, from [B, \*shape]; row sums use the gradients' type."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=-1).double()
    return norms.square().flatten(1).sum(1) if norms.dim() > 1 else norms.square()


# The recorder of one pass: collects the parts of the examples' gradients of every parameter.


class Tape:
    """Record one forward and one backward pass of B examples with T uses of a layer in each.

    A layer that finds a tape in its forward pass (:func:`get_tape`) reports to it in its backward pass, and gives
    autograd no gradient for the reported parameters. ``names`` are the trainable parameters by identity. ``shared``
    holds those that several modules share; their uses are outer products, for the cross terms. ``batch_size``: B,
    if known.
    """

    def __init__(self, names: Mapping[int, str], shared: frozenset[int], batch_size: int | None = None) -> None:
        self.names, self.shared, self.batch_size = names, shared, batch_size
        self.uses: dict[int, list[ParameterUse]] = {}
        self.probing = False
        """Whether the backward pass will be repeated, so layers must not change their saved tensors."""
        self.example_count = batch_size or 0
        """B, or if unknown the longest first dimension of a layer's input so far."""

    def observe_batch_rows(self, rows: int) -> bool:
        """Return whether an input's first dimension merges examples and positions, [B·T]."""
        if self.batch_size is None:
            self.example_count = max(self.example_count, rows)
            return False
        return rows > self.batch_size and rows % self.batch_size == 0

    def report_outer_products(
        self,
        parameter: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        counts: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Report that example i's gradient of ``parameter`` is an :class:`OuterProducts` of these factors.

        One of ``left`` and ``right`` is the gradient of the layer's output. A frozen parameter is skipped.
        """
        if not parameter.requires_grad:
            return
        left, right = left.detach(), right.detach()
        if counts and min(counts) == max(counts) > 0:
            left, right = (x.view(len(counts), -1, x.shape[-1]) for x in (left, right))
            counts = None
        use: ParameterUse = OuterProducts(left, right, None if counts is None else list(counts), mask)
        if mask is None and counts is None and id(parameter) not in self.shared:
            positions, sizes = left.shape[1], (left.shape[2], right.shape[2])
            if sizes[0] * sizes[1] <= positions * sum(sizes):
                # No larger than its two factors, and it avoids the weighted product.
                use = DenseGradients(to_float32(left).mT @ to_float32(right))
        self._record_use(parameter, use)

    def report_embedding_rows(self, parameter: Tensor, ids: Tensor, right: Tensor) -> None:
        """Report ``right``_it [B, T, E] on row ``ids``_it [B, T] as example i's gradient of ``parameter`` [V, E]."""
        self._record_use(parameter, EmbeddingRows(ids, to_float32(right.detach()), len(parameter)))

    def report_dense_gradients(self, parameter: Tensor | None, gradients: Tensor) -> None:
        r"""Report the examples' gradients [B, \*shape of parameter], if the parameter is trainable."""
        if parameter is not None and parameter.requires_grad:
            self._record_use(parameter, DenseGradients(to_float32(gradients.detach())))

    def _record_use(self, parameter: Tensor, use: ParameterUse) -> None:
        if id(parameter) not in self.names:
            raise ConfigurationError("a layer reported a parameter that does not belong to the network")
        self.uses.setdefault(id(parameter), []).append(use)

    def check_example_counts(self, examples: int) -> None:
        """Check that every use saw ``examples`` examples; ``ConfigurationError`` names the parameter otherwise."""
        for key, uses in self.uses.items():
            for use in uses:
                if use.example_count != examples:
                    raise InseparableExamplesError(
                        self.names[key],
                        f"its layer received {use.example_count} rows in a batch of {examples}; the first "
                        "dimension of its input must be the batch. If it combines examples and positions "
                        "(experts, OPT), pass the number of examples; if it has no batch (relative "
                        "positions), have check_exact_clipping record the surrounding block as one",
                    )


class _GradientRecorder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, report: ReportFunction, saved: Sequence[Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = tensors[:-1]
        ctx.report = report
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(*outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor | None) -> tuple[Tensor | None, ...]:
        if any(delta is not None for delta in deltas):
            ctx.report(ctx.saved_tensors, deltas)
        return None, None, *deltas, None


def record_gradients(
    report: ReportFunction, saved: Sequence[Tensor], anchor: Tensor, *outputs: Tensor
) -> tuple[Tensor, ...]:
    """Return ``outputs`` so that the backward pass calls ``report`` with ``saved`` and their gradients.

    ``outputs`` are new tensors, computed with constant parameters. ``anchor`` is one of the parameters: autograd visits
    the outputs for its sake, and gets no gradient for it.
    """
    # the anchor is last: in a view, autograd replaces the edge of the first tensor
    recorded: tuple[Tensor, ...] = _GradientRecorder.apply(report, saved, *outputs, anchor)  # type: ignore[no-untyped-call]
    return recorded


_CURRENT_TAPE: ContextVar[Tape | None] = ContextVar("recorder", default=None)


def get_tape() -> Tape | None:
    """Return the tape that records this forward pass, or None."""
    return _CURRENT_TAPE.get()


@contextmanager
def use_tape(tape: Tape | None) -> Iterator[None]:
    """Make layers whose forward pass runs in this block report to ``tape``, if any."""
    token = _CURRENT_TAPE.set(tape)
    try:
        yield
    finally:
        _CURRENT_TAPE.reset(token)

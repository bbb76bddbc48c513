"""Exact per-example clipping: the sum of clipped gradients by one forward and one backward pass.

Every layer's inputs and output gradients are kept; the norm of a point's gradient comes from Gram
matrices of these, and the clipped sum by one weighted product a layer.  What is computed, and what
is refused: ``docs/explanation/clipping.md``.
"""

from redactory.training.clipping.engine import (
    ClippedGradient,
    check_parts,
    check_supported,
    clipped_backward,
    clipped_gradient,
    clipped_sum,
)
from redactory.training.clipping.exactness import check_exact
from redactory.training.clipping.matmul import passes_in

__all__ = [
    "ClippedGradient",
    "check_exact",
    "check_parts",
    "check_supported",
    "clipped_backward",
    "clipped_gradient",
    "clipped_sum",
    "passes_in",
]

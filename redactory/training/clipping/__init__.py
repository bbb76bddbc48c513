"""Exact per-example clipping: the sum of clipped gradients by one forward and one backward pass.

Every layer's inputs and output gradients are kept; the norm of a point's gradient comes from Gram
matrices of these, and the clipped sum by one weighted product a layer.  What is computed, and what
is refused: ``docs/explanation/clipping.md``.
"""

from redactory.training.clipping.engine import ClippedGradient as ClippedGradient
from redactory.training.clipping.engine import check_batch_independence as check_batch_independence
from redactory.training.clipping.engine import check_supported as check_supported
from redactory.training.clipping.engine import clipped_backward as clipped_backward
from redactory.training.clipping.engine import compute_clipped_gradient as compute_clipped_gradient
from redactory.training.clipping.engine import compute_clipped_sum as compute_clipped_sum
from redactory.training.clipping.exactness import check_exact as check_exact
from redactory.training.clipping.matmul import use_precision as use_precision

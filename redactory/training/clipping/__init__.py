"""Exact per-example clipping: sum clipped gradients with one forward and one backward pass.

Every layer keeps its inputs and output gradients. Gram matrices of these give the norm of each example's gradient, and
one weighted product per layer gives the clipped sum. ``docs/explanation/clipping.md`` explains the computation and
lists what is refused.
"""

from redactory.training.clipping.engine import ClippedGradient as ClippedGradient
from redactory.training.clipping.engine import check_batch_independence as check_batch_independence
from redactory.training.clipping.engine import clipped_backward as clipped_backward
from redactory.training.clipping.engine import compute_clipped_gradient as compute_clipped_gradient
from redactory.training.clipping.engine import compute_clipped_sum as compute_clipped_sum
from redactory.training.clipping.engine import require_supported_network as require_supported_network
from redactory.training.clipping.exactness import check_exact_clipping as check_exact_clipping
from redactory.training.clipping.matmul import use_precision as use_precision

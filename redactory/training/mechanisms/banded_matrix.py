"""Correlated noise: the banded matrix that mixes sums before the noise.

With C lower triangular, a training releases Cg + z for the clipped sums g and independent noise z; the model moves
along C⁻¹(Cg + z) = g + C⁻¹z, whose noise partly cancels over the steps (``docs/guarantees.md``, "Correlated noise").
Everything here depends only on the number of steps, the number of bands and the schedule of the step size.

The error is that of McKenna ("Scaling up the banded matrix factorization mechanism", 2024), the mean square of
the rows of A·C⁻¹, with the step sizes in A; C is a Toeplitz matrix there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanisms.step_size import compute_step_size

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BELOW_ONE = 1.0 - 2.0**-40
_SAMPLED_COLUMNS, _MAX_ITERATIONS = 32, 60


@dataclass(frozen=True)
class BandedMatrix:
    """C for ``steps`` T steps: C[t, j] = c[t − j]·s[j] if 0 <= t − j < b, and 0 elsewhere.

    ``coefficients`` c are b numbers of norm at most 1, the first above 0. s[j] is 1 except for the last b − 1
    columns, which have fewer than b rows: these are lengthened to norm 1. ``GuaranteeError`` for other coefficients.

    Formal guarantees: no column is longer than 1, which the proof of one block needs.
    """

    coefficients: tuple[float, ...]
    steps: int

    def __post_init__(self) -> None:
        coefficients = self.coefficients
        is_valid = (
            1 <= len(coefficients) <= self.steps and all(map(math.isfinite, coefficients)) and coefficients[0] > 0.0
        )
        if not (is_valid and math.fsum(c * c for c in coefficients) <= 1.0):
            raise GuaranteeError("correlated noise needs 1 to T bands and columns of norm at most 1")

    @property
    def bands(self) -> int:
        """Return b."""
        return len(self.coefficients)

    @property
    def digest(self) -> str:
        """Return the hex sha256 of the coefficients and steps."""
        return json_sha256([list(self.coefficients), self.steps])

    def compute_row(self, step: int) -> dict[int, float]:
        """Return the entries of row ``step`` by column, the diagonal last."""
        first = max(0, step - self.bands + 1)
        return {j: self.coefficients[step - j] * self._compute_column_scale(j) for j in range(first, step + 1)}

    def _compute_column_scale(self, column: int) -> float:
        remaining_steps = self.steps - column
        if remaining_steps >= self.bands:
            return 1.0
        return _BELOW_ONE / math.sqrt(math.fsum(c * c for c in self.coefficients[:remaining_steps]))

    def compute_rms_error(self, rates: NDArray[np.float64]) -> float:
        """Return √ of the mean over steps t of ‖row t of A·C⁻¹‖², A[t, j] = ``rates``[j] for j <= t, for σ = 1.

        How far noise has moved the model by step t, on average, for plain SGD.
        """
        scaled_rates = rates / np.array([self._compute_column_scale(j) for j in range(self.steps)])
        return math.sqrt(_compute_mean_squared_error(np.array(self.coefficients), scaled_rates))

    @property
    def noise_gain(self) -> float:
        """Return the length of C⁻¹'s last row: the noise of one step relative to the noise added to a row."""
        return float(np.linalg.norm(_compute_inverse_column(np.array(self.coefficients), self.steps)))


def _compute_inverse_column(coefficients: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Return the first column of C⁻¹, for a Toeplitz C."""
    from scipy import signal

    return np.asarray(signal.lfilter([1.0], coefficients, np.eye(1, steps)[0]), np.float64)


def _compute_mean_squared_error(coefficients: NDArray[np.float64], rates: NDArray[np.float64]) -> float:
    """Return the mean square of the rows of A·C⁻¹, for a Toeplitz C, from some of its columns, evenly spread."""
    steps = len(rates)
    inverse = _compute_inverse_column(coefficients, steps)
    count = min(steps, _SAMPLED_COLUMNS)
    starts = ((np.arange(count) + 0.5) * steps / count).astype(int)
    total = sum(float((np.cumsum(rates[i:] * inverse[: steps - i]) ** 2).sum()) for i in starts)
    return total / count


LearningRateSchedule = tuple[str, float]
"""``learning_rate_schedule`` and ``warm_up``."""


def compute_step_sizes(schedule: LearningRateSchedule, steps: int) -> NDArray[np.float64]:
    """Return the size of each step as a share of the longest one."""
    return np.array([compute_step_size(number, steps, *schedule) for number in range(steps)])


@lru_cache(maxsize=64)
def optimize_matrix(bands: int, steps: int, schedule: LearningRateSchedule) -> BandedMatrix:
    """Find the matrix of ``bands`` with about the smallest error: quasi-Newton from the coefficients of (1−x)^(−1/2).

    Ratios to the first coefficient stay in [0, 1].
    """
    from scipy import optimize

    rates = compute_step_sizes(schedule, steps)

    def compute_log_error(ratios: NDArray[np.float64]) -> float:
        candidate = np.concatenate([[1.0], ratios])
        with np.errstate(over="ignore"):
            return math.log(min(float(candidate @ candidate) * _compute_mean_squared_error(candidate, rates), 1e300))

    k = np.arange(1, bands)
    ratios = np.cumprod((2 * k - 1) / (2 * k))
    if bands > 1:
        options = {"bounds": [(0.0, 1.0)] * len(ratios), "options": {"maxiter": _MAX_ITERATIONS}}
        ratios = optimize.minimize(compute_log_error, ratios, method="L-BFGS-B", **options).x
    # fewer digits than two machines could differ in
    coefficients = np.concatenate([[1.0], np.round(ratios, 4)])
    return BandedMatrix(
        tuple((_BELOW_ONE * coefficients / math.sqrt(float(coefficients @ coefficients))).tolist()), steps
    )

"""Correlated noise: the banded matrix by which sums are mixed before the noise.

With C lower triangular, what leaves is Cg + z for the clipped sums g and independent noise z; the model moves
along C⁻¹(Cg + z) = g + C⁻¹z, whose noise partly cancels over the steps (``docs/guarantees.md``, "Correlated
noise").  Everything here follows from the number of steps, of bands and the schedule of the step size.

The error is that of McKenna ("Scaling up the banded matrix factorization mechanism", 2024), the mean square
of the rows of A·C⁻¹, with the step sizes in A; C is a Toeplitz matrix there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import GuaranteeError
from redactory.training.schedule import step_size

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SHORT = 1.0 - 2.0**-40
_COLUMNS, _TURNS = 32, 60


@dataclass(frozen=True)
class BandedMatrix:
    """C for ``steps`` T steps: C[t, j] = c[t − j]·s[j] where 0 <= t − j < b, and 0 elsewhere.

    ``coefficients`` c are b numbers of norm at most 1, the first above 0.  s[j] is 1 but for the last b − 1
    columns, of which less than b rows are left: these are lengthened to norm 1.  ``GuaranteeError`` for
    coefficients of another kind.

    Formal guarantees: no column is longer than 1, which the proof of one block needs.
    """

    coefficients: tuple[float, ...]
    steps: int

    def __post_init__(self) -> None:
        own = self.coefficients
        fits = 1 <= len(own) <= self.steps and all(map(math.isfinite, own)) and own[0] > 0.0
        if not (fits and math.fsum(c * c for c in own) <= 1.0):
            raise GuaranteeError("correlated noise needs 1 to T bands and columns of norm at most 1")

    @property
    def bands(self) -> int:
        """b."""
        return len(self.coefficients)

    @property
    def digest(self) -> str:
        """The matrix by name: hex sha256 of its coefficients and steps."""
        return hash_of([list(self.coefficients), self.steps])

    def row(self, step: int) -> dict[int, float]:
        """The entries of row ``step`` by column, the diagonal last."""
        first = max(0, step - self.bands + 1)
        return {j: self.coefficients[step - j] * self._stretch(j) for j in range(first, step + 1)}

    def _stretch(self, column: int) -> float:
        left = self.steps - column
        if left >= self.bands:
            return 1.0
        return _SHORT / math.sqrt(math.fsum(c * c for c in self.coefficients[:left]))

    def error(self, rates: NDArray[np.float64]) -> float:
        """√ of the mean over steps t of ‖row t of A·C⁻¹‖², A[t, j] = ``rates``[j] for j <= t: of σ = 1.

        How far noise has moved the model by step t, on average, in the view of plain SGD.
        """
        stretched = rates / np.array([self._stretch(j) for j in range(self.steps)])
        return math.sqrt(_squares(np.array(self.coefficients), stretched))

    @property
    def gain(self) -> float:
        """The length of C⁻¹'s last row: how much more noise one step has than what is added to a row."""
        return float(np.linalg.norm(_inverse(np.array(self.coefficients), self.steps)))


def _inverse(coefficients: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """The first column of C⁻¹, of a Toeplitz C."""
    from scipy import signal

    return np.asarray(signal.lfilter([1.0], coefficients, np.eye(1, steps)[0]), np.float64)


def _squares(coefficients: NDArray[np.float64], rates: NDArray[np.float64]) -> float:
    """The mean square of the rows of A·C⁻¹, of a Toeplitz C, from some of its columns evenly spread."""
    steps = len(rates)
    inverse = _inverse(coefficients, steps)
    count = min(steps, _COLUMNS)
    starts = ((np.arange(count) + 0.5) * steps / count).astype(int)
    found = sum(float((np.cumsum(rates[i:] * inverse[: steps - i]) ** 2).sum()) for i in starts)
    return found / count


Schedule = tuple[str, float]
"""``learning_rate_schedule`` and ``warm_up``."""


def step_sizes(schedule: Schedule, steps: int) -> NDArray[np.float64]:
    """The size of each step as a share of the longest one."""
    return np.array([step_size(number, steps, *schedule) for number in range(steps)])


@lru_cache(maxsize=64)
def best_matrix(bands: int, steps: int, schedule: Schedule) -> BandedMatrix:
    """The matrix of ``bands`` with about the least error: quasi-Newton from the coefficients of (1−x)^(−1/2).

    Ratios to the first coefficient stay in [0, 1].
    """
    from scipy import optimize

    rates = step_sizes(schedule, steps)

    def cost(ratios: NDArray[np.float64]) -> float:
        own = np.concatenate([[1.0], ratios])
        with np.errstate(over="ignore"):
            return math.log(min(float(own @ own) * _squares(own, rates), 1e300))

    k = np.arange(1, bands)
    ratios = np.cumprod((2 * k - 1) / (2 * k))
    if bands > 1:
        limits = {"bounds": [(0.0, 1.0)] * len(ratios), "options": {"maxiter": _TURNS}}
        ratios = optimize.minimize(cost, ratios, method="L-BFGS-B", **limits).x
    # fewer digits than two machines could differ in
    own = np.concatenate([[1.0], np.round(ratios, 4)])
    return BandedMatrix(tuple((_SHORT * own / math.sqrt(float(own @ own))).tolist()), steps)

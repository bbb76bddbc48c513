"""Correlated noise: the banded matrix by which sums are mixed before the noise, and how many bands it has.

With C lower triangular, what leaves is Cg + z for the clipped sums g and independent noise z; the model moves
along C⁻¹(Cg + z) = g + C⁻¹z, whose noise partly cancels over the steps (``docs/guarantees.md``, "Correlated
noise").  Everything here follows from the number of steps, of bands and the schedule of the step size.

The error is that of McKenna ("Scaling up the banded matrix factorization mechanism", 2024), the mean square
of the rows of A·C⁻¹, with the step sizes in A; C is a Toeplitz matrix there too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import GuaranteeError
from redactory.training.schedule import step_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from redactory.training.mechanism import BandedGaussian, Relation
    from redactory.training.settings import TrainSettings

WIDTHS = (1, 2, 4, 8, 16, 32)
"""Numbers of bands that are compared; each costs as many copies of the gradient."""
_SHORT = 1.0 - 2.0**-40
_COLUMNS, _TURNS = 32, 60
_ROUGHLY, _NEAR = 1e-3, 1.05


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


# How many bands: more of them make the error smaller, and privacy dearer, for each step draws from one group.


@dataclass(frozen=True)
class Width:
    """What ``bands`` b cost and bring: a point is drawn at ``sampling_rate`` b·q in ``compositions`` steps.

    ``noise_multiplier`` reaches the target epsilon; ``error_ratio`` is the error at that noise over that of
    independent noise.
    """

    bands: int
    sampling_rate: float
    compositions: int
    noise_multiplier: float
    error_ratio: float


def schedule_of(settings: TrainSettings) -> Schedule:
    """What decides the size of a step."""
    return settings.learning_rate_schedule, settings.warm_up


def widths(settings: TrainSettings, steps: int, relation: Relation) -> list[Width]:
    """Every number of bands that the sampling rate allows at the target epsilon, from public constants."""
    rate, schedule = settings.sampling_rate, schedule_of(settings)
    return list(_widths(settings.epsilon, settings.delta, rate, steps, schedule, relation))


@lru_cache(maxsize=16)
def _widths(
    epsilon: float, delta: float, rate: float, steps: int, schedule: Schedule, relation: Relation
) -> tuple[Width, ...]:
    from redactory.training.accounting import calibrate_noise

    rates = step_sizes(schedule, steps)

    def found() -> Iterator[Width]:
        alone = 0.0
        for bands in WIDTHS:
            if bands * rate > 1.0 or bands > steps:
                return
            own, count = bands * rate, math.ceil(steps / bands)
            noise = calibrate_noise(
                epsilon, delta, own, count, _ROUGHLY, relation=relation, tolerance=_ROUGHLY
            )
            error = noise * best_matrix(bands, steps, schedule).error(rates)
            alone = alone or error
            yield Width(bands, own, count, noise, error / alone)

    return tuple(found())


def bands_of(settings: TrainSettings, steps: int, relation: Relation) -> int:
    """``train.bands``; for ``auto`` the fewest with an error within 5% of the least, at one epsilon."""
    if settings.bands != "auto":
        return settings.bands
    found = widths(settings, steps, relation)
    least = min(one.error_ratio for one in found)
    return next(one.bands for one in found if one.error_ratio <= _NEAR * least)


def lengthened(settings: TrainSettings, mechanism: BandedGaussian, relation: Relation) -> float:
    """How much longer Adam's noisy steps are, so that a gradient moves the model as far as without bands.

    It divides by about the noise of one step: that of C⁻¹ instead of 1, at this noise instead of what
    independent noise needs for the target epsilon (where the noise is given, the same).
    """
    from redactory.training.accounting import calibrate_noise

    if settings.noise_multiplier is not None:
        return mechanism.matrix.gain
    steps, rate = mechanism.matrix.steps, settings.sampling_rate
    own = (settings.epsilon, settings.delta, rate, steps, _ROUGHLY)
    alone = calibrate_noise(*own, relation=relation, tolerance=_ROUGHLY)
    return mechanism.matrix.gain * mechanism.noise_multiplier / alone

"""The noise for a target epsilon: secants on a coarse grid, then on the real one from there.

The real grid has the last word: the noise that is handed back was tried on it, and reached the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

Cost = Callable[[float], float]
"""From the noise to epsilon, which falls with it and is more than 0."""
_STRIDE, _ROUGHLY, _ONE_PLACE = math.log(4.0), 3e-3, 1e-4
_USUAL, _FLATTEST, _STEEPEST = -1.5, -0.2, -20.0
_SECANTS, _MOST_TURNS = 8, 100


@dataclass(frozen=True)
class Search:
    """Where the noise is looked for: from ``start``, between ``least`` and ``most``.

    It is found to a share of ``tolerance`` above the root, or to one of its ``parts`` of 1.
    """

    start: float
    least: float
    most: float
    tolerance: float
    parts: float | None = None

    def rounded(self, noise: float) -> float:
        """``noise``, upwards to a whole number of ``parts``."""
        return noise if self.parts is None else math.ceil(noise * self.parts) / self.parts

    def spare(self, noise: float) -> float:
        """How far above the root the logarithm of ``noise`` may lie."""
        return self.tolerance if self.parts is None else max(self.tolerance, 1.0 / (self.parts * noise))


def coarseness(grid: float, target: float, steps: int) -> float:
    """By what factor a first look may be coarser than ``grid``: at most 10, and fine beside a step's loss."""
    return min(max(1.0, 0.08 * target / (math.sqrt(steps) * grid)), 10.0)


def noise_for(target: float, exact: Cost, rough: Cost, search: Search) -> float | None:
    """About the least noise at which ``exact`` is at most ``target``; None where ``most`` is not enough.

    ``rough`` is ``exact`` on a coarser grid, and only says where to begin.
    """

    def off(cost: Cost) -> Cost:
        return cache(lambda noise: math.log(cost(noise) / target))

    looked = _settled(off(rough), _USUAL, replace(search, tolerance=_ROUGHLY, parts=None))
    begin, slope = looked or (search.start, _USUAL)
    found = _settled(off(exact), slope, replace(search, start=begin))
    return None if found is None else found[0]


def _settled(off: Cost, slope: float, search: Search) -> tuple[float, float] | None:
    """The noise with ``off`` <= 0 and no farther from its root than is spared, and the slope there.

    Secants in the logarithm of the noise, kept between what was found too little and what was enough.
    """
    aim, low, high, found = math.log(search.start), math.log(search.least), math.inf, math.inf
    before: tuple[float, float] | None = None
    for turn in range(_MOST_TURNS):
        noise = search.rounded(max(math.exp(aim), search.least))
        here, value = math.log(noise), off(noise)
        if before is not None and abs(here - before[0]) > _ONE_PLACE:
            slope = min(max((value - before[1]) / (here - before[0]), _STEEPEST), _FLATTEST)
        if value <= 0.0:
            if noise <= search.least or value >= slope * search.spare(noise):
                return noise, slope
            high, found = min(high, here), min(found, noise)
        elif noise > search.most:
            return None
        else:
            low = max(low, here)
        if search.rounded(math.exp(low + search.tolerance)) >= found:
            return found, slope
        before = here, value
        aim = here + min(max(-value / slope, -_STRIDE), _STRIDE) + search.tolerance / 8.0
        if math.isfinite(high) and (turn >= _SECANTS or not low < aim < high):
            aim = (low + high) / 2.0
        if search.parts is not None and search.rounded(math.exp(aim)) >= found:
            aim = math.log(found - 1.5 / search.parts)  # the place before
    return found, slope

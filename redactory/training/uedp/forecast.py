"""What hiding users and entities would cost, from numbers alone: shared parts of the three forecasts.

Formal guarantees: a forecast's epsilon is the one that the card would state of such a training, by the same
code, *provided that the training keeps the conditions* that the forecast lists; the card says whether it
did.  Nothing is read from a corpus (``docs/explanation/uedp.md``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending
from redactory.training.accounting.mixtures import group_curve
from redactory.training.accounting.second_opinion import removal_bracket, stated
from redactory.training.guarantee_figures import Figures
from redactory.training.mechanism import PoissonGaussian
from redactory.training.units.relations import Figure

SECOND_WORTH = 24.0
"""Largest K/σ at which the main figure is that of the exact pair, which a second accountant can confirm."""
LARGEST_SECOND = 500.0
_CURVE_POINTS = 8


def require(problems: Sequence[tuple[bool, str]]) -> None:
    """``ConfigurationError`` with the words of every problem that there is."""
    found = [words for is_wrong, words in problems if is_wrong]
    if found:
        raise ConfigurationError("; ".join(found))


def common_problems(
    steps: int, delta: float, noise: float | None, target: float | None
) -> list[tuple[bool, str]]:
    """What every forecast asks of its numbers."""
    return [
        ((noise is None) == (target is None), "give either the noise or a target epsilon"),
        (steps < 1, "there is at least one step"),
        (not 0.0 < delta < 1.0, "delta lies between 0 and 1"),
        (noise is not None and not 0.0 < noise < math.inf, "the noise is positive"),
        (target is not None and not 0.0 < target < math.inf, "epsilon must be more than 0, and finite"),
    ]


def put_group(
    found: Figures, name: str, figure: Figure, rate: float, sigma: float, steps: int, points: int
) -> None:
    """Take ``figure``, of ``points`` K sampled with ``rate`` q, once the second accountant confirms it.

    Where K/σ is over 24, or epsilon over 500, none is asked: the figure is then a bound of the exact pair's,
    and protects nobody.
    """
    if figure.epsilon is None or figure.epsilon >= LARGEST_SECOND or points / sigma > SECOND_WORTH:
        found.put(name, figure.epsilon, None, figure.reason or "")
        found.alone += [name] if figure.epsilon is not None else []
        return
    spent = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), steps),)
    main = group_curve(points, rate, sigma, steps)
    found.state(name, stated(main, lambda delta: removal_bracket(spent, delta, points), figure.delta, name))


def steps_curve(
    steps: int, sound: Callable[[int], float | None], published: Callable[[int], float | None]
) -> list[dict[str, Any]]:
    """Rows of ``steps``, ``epsilon`` and ``epsilon_as_published`` at up to eight numbers of steps."""
    numbers = sorted({max(1, round(steps * part / _CURVE_POINTS)) for part in range(1, _CURVE_POINTS + 1)})
    return [
        {"steps": count, "epsilon": sound(count), "epsilon_as_published": published(count)}
        for count in numbers
    ]

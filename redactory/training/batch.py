"""How many points a step draws, beside what the settings take them to be: what is odd, in words.

No number to choose is told: settings are public constants, and none may follow from a count of private points
(``docs/guarantees.md``, "Sampling and constants").
"""

from __future__ import annotations

from collections.abc import Iterator

from redactory.training.settings import TrainSettings

_FAR = 4.0


def drawn(sampling_rate: float, points: int) -> float:
    """Points that a noisy step draws in expectation, of ``points``."""
    return sampling_rate * points


def oddities(settings: TrainSettings, noised: int | None, plain: int | None) -> list[str]:
    """What is odd about the batches of a training; a sentence each.

    ``noised`` are the points that noisy steps draw from, ``plain`` those learnt without noise; None where
    there are none, or their number is not known.
    """
    found: list[str] = []
    if noised is not None:
        found += odd_draws(settings.sampling_rate, noised, settings.expected_batch_size)
        found += _bounds(settings, noised)
    if plain is not None and settings.public_batch_size > plain:
        found.append(
            f"train.public_batch_size is {settings.public_batch_size:,}, and {plain:,} points are learnt "
            "without noise: every such step takes them all; set it lower"
        )
    return found


def odd_draws(sampling_rate: float, points: int, batch: float | None) -> Iterator[str]:
    """Where so few of ``points`` are drawn that many steps are noise alone, or ``batch`` is far from them.

    ``batch`` divides the noisy sum (``expected_batch_size``); None where it follows from the others.
    """
    draws = drawn(sampling_rate, points)
    told = f"draws {_some(draws)} on average (train.sampling_rate {sampling_rate:g} of {points:,})"
    if draws < 1.0:
        yield f"a noisy step {told}: many steps are noise alone; raise train.sampling_rate"
    elif batch is not None and not draws / _FAR <= batch <= draws * _FAR:
        times = max(batch / draws, draws / batch)
        ratio, steps = ("small", "short") if batch > draws else ("large", "long")
        yield (
            f"train.expected_batch_size is {batch:g}, and a noisy step {told}: noise_to_batch is told "
            f"{times:,.0f} times too {ratio}, and with optimizer sgd steps are as much too {steps} (adam "
            "does not mind); give it the rate times the points that you expect of such text, not this count"
        )


def _bounds(settings: TrainSettings, points: int) -> Iterator[str]:
    """Where bounds that are set for truncation do not fit."""
    draws, size = drawn(settings.sampling_rate, points), settings.truncated_batch_size
    if size is not None and draws > size:
        yield (
            f"train.truncated_batch_size is {size:,}, and a noisy step would draw {_some(draws)}: most "
            "samples are cut; raise it, or lower train.sampling_rate"
        )
    if settings.dataset_size is not None and size is not None and points > settings.dataset_size:
        yield (
            f"train.dataset_size is {settings.dataset_size:,}, and there are {points:,} noised points: "
            "training will be refused; raise it"
        )


def _some(points: float) -> str:
    return f"{points:,.2g} points" if points < 10.0 else f"{points:,.0f} points"

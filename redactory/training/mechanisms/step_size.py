"""How long each step is, as a share of the longest: a function of its number and of constants alone."""

from __future__ import annotations

import math


def compute_step_size(number: int, steps: int, schedule: str, warm_up: float) -> float:
    """The share, in [0, 1], of step ``number`` of ``steps``.

    It rises from zero over the share ``warm_up`` of the steps, and then falls to zero as ``schedule`` says
    ("linear", "cosine"; "constant" keeps it).
    """
    warm_up_steps = warm_up * steps
    if number < warm_up_steps:
        return (number + 1) / (warm_up_steps + 1)
    progress = (number - warm_up_steps) / (steps - warm_up_steps)
    remaining_share = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 + 0.5 * math.cos(math.pi * progress)}
    return remaining_share[schedule]

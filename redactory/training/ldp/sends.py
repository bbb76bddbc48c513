"""Who sends in which step, and whether the sentence or nothing: the three kinds of participation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream
from redactory.training.ldp.participation import FixedSends, HiddenCoins, Participation, VisibleCoins


class Sends(NamedTuple):
    """One step: the ``places`` that send, int64 in the order of sending, and which of them send their
    sentence, bool; the others send noise on the zero vector."""

    places: NDArray[np.int64]
    real: NDArray[np.bool_]


def steps_of(participation: Participation) -> int:
    """J for fixed sends, else T: the steps of a slot are 0 to this, exclusive."""
    return participation.sends if isinstance(participation, FixedSends) else participation.steps


def drawn_sends(
    participation: Participation, stream: RandomStream, step: int, slots: int, call: int
) -> Sends:
    """The sends of ``step`` for ``slots`` slots; ``call`` tells the draws of one stream apart.

    Formal guarantees: coins are independent over slots and steps, with the rate as probability up to
    2⁻⁵³, and secret as the stream's root is; the order is a uniform permutation, independent of them
    (``docs/guarantees.md``, "Local differential privacy").
    """
    order = stream.permutation("order", step, slots, call)
    every = np.ones(slots, bool)
    match participation:
        case FixedSends():
            return Sends(order, every)
        case VisibleCoins():
            heads = _coins(participation.rate, stream, step, slots, call)
            return Sends(order[heads[order]], every[: int(heads.sum())])
        case HiddenCoins():
            return Sends(order, _coins(participation.rate, stream, step, slots, call)[order])


def _coins(rate: float, stream: RandomStream, step: int, slots: int, call: int) -> NDArray[np.bool_]:
    return stream.uniform("coins", step, slots, call) < rate

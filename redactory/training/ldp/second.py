"""The second accountant's word on the messages: every epsilon that is printed was computed twice.

No code is shared with ``accounting``: visible coins are branches that are told, composed here step by step,
there averaged over how often a sentence is sent (``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math

from redactory.training.accounting import second
from redactory.training.accounting.pairs import Branches, Mixture, Pair, directions, substitution
from redactory.training.accounting.second import Bracket, Steps
from redactory.training.accounting.second_opinion import NOT_FINITE, Stated, stated
from redactory.training.accounting.spending import Spendings
from redactory.training.ldp.accounting import epsilon_sound, message
from redactory.training.ldp.participation import FixedSends, HiddenCoins, Participation, VisibleCoins
from redactory.training.mechanism import Relation

LARGEST_SECOND = 200.0
"""Epsilons above this one are bounds that protect nobody: no second opinion is asked for."""


def confirmed_epsilon(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> Stated:
    """:func:`~redactory.training.ldp.accounting.epsilon_sound`, stated where the second accountant proves it.

    ``GuaranteeError`` where they contradict each other.  No bounds where there is no epsilon, or one over
    200, or where a step of the encoder exchanges several rows.
    """
    told = (noise, vectors, participation)
    value = epsilon_sound(*told, delta, encoder)
    if value is None or value > LARGEST_SECOND or any(one.rows > 1 for one in encoder):
        return Stated(value, None, NOT_FINITE if value is None else None)
    return stated(
        lambda at: epsilon_sound(*told, at, encoder),
        lambda at: bracket(*told, at, encoder),
        delta,
        "the messages of one sentence",
    )


def bracket(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> Bracket:
    """Bounds of the epsilon of one sentence, all its training messages together."""
    own: Steps = (
        (_branches(message(noise, vectors).noise_multiplier, participation), _steps(participation)),
    )
    before: Steps = tuple(
        (directions(one.mechanism, Relation.SUBSTITUTION)[0], one.steps) for one in encoder if one.steps
    )
    return second.bracket_of((*before, *own), delta)


def _branches(noise: float, told: Participation) -> Branches:
    match told:
        case FixedSends():
            return ((1.0, substitution(1.0, noise / math.sqrt(told.sends))),)
        case HiddenCoins():
            return ((1.0, substitution(told.rate, noise)),)
        case VisibleCoins():
            nothing = Mixture((1.0,), (0.0,), noise)
            coins = ((told.rate, substitution(1.0, noise)), (1.0 - told.rate, Pair(nothing, nothing)))
            return tuple(one for one in coins if one[0] > 0.0)


def _steps(told: Participation) -> int:
    return 1 if isinstance(told, FixedSends) else told.steps

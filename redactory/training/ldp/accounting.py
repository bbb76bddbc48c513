"""Epsilon of one sentence over all its messages, and the noise for a target.

Formal guarantees: every epsilon is an upper bound under substitution (any other sentence in the slot's
place), for a frozen encoder that was trained without this sentence, or with it under the steps of
``encoder``; the label and, but for hidden coins, the participation are seen (``docs/guarantees.md``, "Local
differential privacy").
"""

from __future__ import annotations

import math
from functools import partial

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting.bounds import LARGEST_EPSILON, gaussian_epsilon
from redactory.training.accounting.calibration import Search, coarseness, noise_for
from redactory.training.accounting.figures import DISCRETIZATION, epsilon_of, parts_of
from redactory.training.accounting.mixtures import (
    NOTHING,
    Branches,
    Worlds,
    composed_epsilon,
    exchange,
    grid_of,
)
from redactory.training.accounting.spending import Spending, Spendings, in_clips
from redactory.training.ldp.participation import FixedSends, HiddenCoins, Participation, VisibleCoins
from redactory.training.mechanism import PoissonGaussian, Relation

CALIBRATION_GRID = 1e-3
_LARGEST_NOISE, _TOLERANCE = 10_000.0, 5e-5


def sensitivity(vectors: int) -> float:
    """How far (L2, in units of C) one message moves when its sentence is exchanged: 2, or 2√2 for a pair."""
    if vectors not in (1, 2):
        raise ConfigurationError("a message holds 1 vector, or 2 where pairs are matched")
    return 2.0 * math.sqrt(vectors)


def message(noise: float, vectors: int, rate: float = 1.0) -> PoissonGaussian:
    """One message as a mechanism, lengths in units of C: its vectors are one, of norm at most √vectors."""
    if not 0.0 < noise < math.inf:
        raise ConfigurationError("noise_multiplier: a positive number is needed")
    norm = sensitivity(vectors) / 2.0
    return PoissonGaussian(rate, noise / norm, norm, 1.0, noise="lattice")


def message_spendings(noise: float, vectors: int, participation: Participation) -> Spendings | None:
    """What the messages of one sentence spend, as it is composed; None for coins that are seen.

    ``noise`` is z = σ/C, ``vectors`` 1 or 2 (pairs).  Coins that are seen are no mechanism of their own:
    :func:`booked` takes the most of them.
    """
    match participation:
        case FixedSends():
            return (Spending(message(noise, vectors), participation.sends),)
        case HiddenCoins():
            return (Spending(message(noise, vectors, participation.rate), participation.steps),)
        case VisibleCoins():
            return None


def booked(noise: float, vectors: int, participation: Participation) -> Spendings:
    """What a budget books for a sentence before its first message: of visible coins, a send every step."""
    if isinstance(participation, VisibleCoins):
        return (Spending(message(noise, vectors), participation.steps),)
    spent = message_spendings(noise, vectors, participation)
    assert spent is not None
    return spent


def epsilon_sound(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> float | None:
    """Epsilon at ``delta`` of one sentence (or pair), all its training messages together; None over 4096.

    ``noise`` z = σ/C; ``encoder`` is what training the encoder spent on the same sentences, () where it is
    public: its steps and the messages compose adaptively.
    """
    return _epsilon(noise, vectors, participation, delta, encoder, DISCRETIZATION)


def calibrated_noise(
    epsilon: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> float:
    """The noise z, to four decimals upwards, at which :func:`epsilon_sound` is at most ``epsilon``.

    ``GuaranteeError`` where no noise below 10,000 reaches it, or the encoder alone costs more.
    """
    own = epsilon_of(encoder, delta, Relation.SUBSTITUTION) if encoder else 0.0
    if own is None or own >= epsilon:
        raise GuaranteeError(
            f"epsilon {epsilon:g} is spent by the encoder's own training: no message can be sent"
        )

    def cost(coarser: float, noise: float) -> float:
        found = _epsilon(noise, vectors, participation, delta, encoder, coarser * CALIBRATION_GRID)
        return LARGEST_EPSILON if found is None else max(found, 1e-12)

    rough = coarseness(CALIBRATION_GRID, epsilon, _most_steps(participation, encoder))
    search = Search(start=1.0, least=1e-3, most=_LARGEST_NOISE, tolerance=_TOLERANCE, parts=1e4)
    noise = noise_for(epsilon, partial(cost, 1.0), partial(cost, rough), search)
    if noise is None:
        raise GuaranteeError(f"no noise_multiplier below 10000 reaches epsilon {epsilon:g}")
    while (found := epsilon_sound(noise, vectors, participation, delta, encoder)) is None or found > epsilon:
        noise = math.ceil(noise * (1.0 + _TOLERANCE) * 1e4) / 1e4
    return noise


def _most_steps(told: Participation, encoder: Spendings) -> int:
    own = told.sends if isinstance(told, FixedSends) else told.steps
    return max(own, *(one.steps for one in encoder), 1)


def _epsilon(
    noise: float, vectors: int, told: Participation, delta: float, encoder: Spendings, grid: float
) -> float | None:
    whole, encoder = message(noise, vectors), in_clips(encoder)
    inverse = max(1.0 / m.noise_multiplier for m in (whole, *(one.mechanism for one in encoder)))
    widened = max(1.0, inverse, 0.1 * inverse**2)
    match told:
        case FixedSends() if not encoder:
            found = gaussian_epsilon(2.0 * math.sqrt(told.sends) / whole.noise_multiplier, delta)
        case VisibleCoins():
            parts = parts_of(encoder, Relation.SUBSTITUTION)
            sends = (_told(whole.noise_multiplier, told.rate), told.steps)
            found = composed_epsilon((*parts, sends), grid_of((*parts, sends), grid * widened), delta)
        case FixedSends():
            # J sends are one send at z/√J: the mean of the messages is sufficient
            one = Spending(message(noise / math.sqrt(told.sends), vectors), 1)
            return epsilon_of((*encoder, one), delta, Relation.SUBSTITUTION, grid)
        case HiddenCoins():
            hidden = Spending(message(noise, vectors, told.rate), told.steps)
            return epsilon_of((*encoder, hidden), delta, Relation.SUBSTITUTION, grid)
    return found if found < LARGEST_EPSILON else None


def _told(noise: float, rate: float) -> Branches:
    """One step whose coin is told: the sentence is sent, or it is not."""
    coins = ((rate, exchange(1.0, noise)), (1.0 - rate, Worlds(NOTHING, NOTHING, noise)))
    return tuple(one for one in coins if one[0] > 0.0)

"""How often a sentence is sent, and whether that can be seen (``docs/guarantees.md``)."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.settings import Settings
from redactory.foundation.stream import RandomStream
from redactory.training.accounting import second
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
from redactory.training.accounting.pairs import Branches as PairBranches
from redactory.training.accounting.pairs import Mixture, Pair, directions, substitution
from redactory.training.accounting.second import Bracket, Steps
from redactory.training.accounting.second_opinion import NOT_FINITE, Stated, stated
from redactory.training.accounting.spending import Spending, Spendings, in_clips
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import Rate


class FixedSends(Settings):
    """Every sentence is sent a fixed number of times."""

    kind: Literal["fixed"] = Field("fixed", description="Every sentence is sent equally often.")
    sends: PositiveInt = Field(
        1,
        description="J, how often each sentence is sent. One is enough: J sends at noise z carry what one "
        "send at z/√J carries, and the server may pass over a message as often as it likes.",
    )


class VisibleCoins(Settings):
    """In each step a coin decides whether a sentence is sent; the server sees which ones were."""

    kind: Literal["visible"] = Field(description="A coin for each step; who sends is seen.")
    rate: Rate = Field(description="p, the probability that a sentence is sent in a step.")
    steps: PositiveInt = Field(description="T, the number of steps.")


class HiddenCoins(Settings):
    """In each step every slot sends one message: of its sentence by a secret coin, else of noise alone."""

    kind: Literal["hidden"] = Field(description="A message in every step; whether of noise alone is secret.")
    rate: Rate = Field(description="p, the probability that a message is of the sentence.")
    steps: PositiveInt = Field(description="T, the number of steps, and of messages of every slot.")


Participation = Annotated[FixedSends | VisibleCoins | HiddenCoins, Field(discriminator="kind")]


# Epsilon of one sentence over all its messages, and the noise for a target.


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


def _most_steps(way: Participation, encoder: Spendings) -> int:
    own = way.sends if isinstance(way, FixedSends) else way.steps
    return max(own, *(one.steps for one in encoder), 1)


def _epsilon(
    noise: float, vectors: int, way: Participation, delta: float, encoder: Spendings, grid: float
) -> float | None:
    whole, encoder = message(noise, vectors), in_clips(encoder)
    inverse = max(1.0 / m.noise_multiplier for m in (whole, *(one.mechanism for one in encoder)))
    widened = max(1.0, inverse, 0.1 * inverse**2)
    match way:
        case FixedSends() if not encoder:
            found = gaussian_epsilon(2.0 * math.sqrt(way.sends) / whole.noise_multiplier, delta)
        case VisibleCoins():
            parts = parts_of(encoder, Relation.SUBSTITUTION)
            sends = (_seen(whole.noise_multiplier, way.rate), way.steps)
            found = composed_epsilon((*parts, sends), grid_of((*parts, sends), grid * widened), delta)
        case FixedSends():
            # J sends are one send at z/√J: the mean of the messages is sufficient
            one = Spending(message(noise / math.sqrt(way.sends), vectors), 1)
            return epsilon_of((*encoder, one), delta, Relation.SUBSTITUTION, grid)
        case HiddenCoins():
            hidden = Spending(message(noise, vectors, way.rate), way.steps)
            return epsilon_of((*encoder, hidden), delta, Relation.SUBSTITUTION, grid)
    return found if found < LARGEST_EPSILON else None


def _seen(noise: float, rate: float) -> Branches:
    """One step whose coin is seen: the sentence is sent, or it is not."""
    coins = ((rate, exchange(1.0, noise)), (1.0 - rate, Worlds(NOTHING, NOTHING, noise)))
    return tuple(one for one in coins if one[0] > 0.0)


# The second accountant's word on the messages: every epsilon that is printed was computed twice.


LARGEST_SECOND = 200.0
"""Epsilons above this one are bounds that protect nobody: no second opinion is asked for."""


def confirmed_epsilon(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> Stated:
    """:func:`~redactory.training.ldp.accounting.epsilon_sound`, stated where the second accountant proves it.

    ``GuaranteeError`` where they contradict each other.  No bounds where there is no epsilon, or one over
    200, or where a step of the encoder exchanges several rows.
    """
    terms = (noise, vectors, participation)
    value = epsilon_sound(*terms, delta, encoder)
    if value is None or value > LARGEST_SECOND or any(one.rows > 1 for one in encoder):
        return Stated(value, None, NOT_FINITE if value is None else None)
    return stated(
        lambda at: epsilon_sound(*terms, at, encoder),
        lambda at: bracket(*terms, at, encoder),
        delta,
        "the messages of one sentence",
    )


def bracket(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> Bracket:
    """Bounds of the epsilon of one sentence, all its training messages together."""
    own: Steps = (
        (_weighted_pairs(message(noise, vectors).noise_multiplier, participation), _steps(participation)),
    )
    before: Steps = tuple(
        (directions(one.mechanism, Relation.SUBSTITUTION)[0], one.steps) for one in encoder if one.steps
    )
    return second.bracket_of((*before, *own), delta)


def _weighted_pairs(noise: float, way: Participation) -> PairBranches:
    match way:
        case FixedSends():
            return ((1.0, substitution(1.0, noise / math.sqrt(way.sends))),)
        case HiddenCoins():
            return ((1.0, substitution(way.rate, noise)),)
        case VisibleCoins():
            nothing = Mixture((1.0,), (0.0,), noise)
            coins = ((way.rate, substitution(1.0, noise)), (1.0 - way.rate, Pair(nothing, nothing)))
            return tuple(one for one in coins if one[0] > 0.0)


def _steps(way: Participation) -> int:
    return 1 if isinstance(way, FixedSends) else way.steps


# Who sends in which step, and whether the sentence or nothing: the three kinds of participation.


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

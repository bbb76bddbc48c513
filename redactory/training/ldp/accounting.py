"""How often a sentence is sent, and whether that can be seen (``docs/guarantees.md``)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from redactory.foundation.bounds import format_upper, round_up
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.settings import Settings
from redactory.foundation.stream import RandomStream
from redactory.training.accounting import second
from redactory.training.accounting.bounds import LARGEST_EPSILON
from redactory.training.accounting.figures import DISCRETIZATION, Search, coarseness, epsilon_of, noise_for, single_grid
from redactory.training.accounting.losses import composed_epsilon
from redactory.training.accounting.pairs import NOTHING, Pair, Parts, Spending, Spendings, exchange, in_clips, parts_of
from redactory.training.accounting.second import NOT_FINITE, Bracket, Stated, stated
from redactory.training.mechanism import HiddenClassGaussian, PoissonGaussian, Relation
from redactory.training.settings import Rate


class FixedSends(Settings):
    """Every sentence is sent a fixed number of times."""

    kind: Literal["fixed"] = Field("fixed", description="Every sentence is sent equally often.")
    sends: PositiveInt = Field(
        1,
        description="J, how often each sentence is sent. One is enough: J sends at noise z carry the "
        "information of one at z/√J, and the server may process a message several times.",
    )


class VisibleCoins(Settings):
    """In each step a coin decides whether a sentence is sent; the server sees which ones were."""

    kind: Literal["public_bernoulli"] = Field(description="A coin for each step; who sends is visible.")
    rate: Rate = Field(description="p, the probability that a sentence is sent in a step.")
    steps: PositiveInt = Field(description="T, the number of steps.")


class HiddenCoins(Settings):
    """In each step every slot sends one message: of its sentence by a secret coin, else of noise alone."""

    kind: Literal["secret_bernoulli"] = Field(description="A message in every step; noise-only ones look the same.")
    rate: Rate = Field(description="p, the probability that a message encodes the sentence.")
    steps: PositiveInt = Field(description="T, the number of steps, and of messages per slot.")
    classes: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="K, the number of classes: a training message of pure noise carries a random one, and "
        "epsilon covers a sentence's class, too. Without it the class is sent unprotected.",
    )

    @model_validator(mode="after")
    def _a_class_is_hidden_by_others(self) -> Self:
        if self.classes is not None and self.rate >= 1.0:
            raise ValueError("classes: at rate 1 every message reveals its class; lower the rate")
        return self


Participation = Annotated[FixedSends | VisibleCoins | HiddenCoins, Field(discriminator="kind")]


# Epsilon of one sentence over all its messages, and the noise for a target.


CALIBRATION_GRID = 1e-3
_LARGEST_NOISE, _TOLERANCE = 10_000.0, 5e-5
LARGEST_SECOND = 200.0
"""Epsilons above this one are bounds that protect nobody: no second opinion is asked for."""


def sensitivity(vectors: int) -> float:
    """How far (L2, in units of C) one message moves when its sentence is exchanged: 2, or 2√2 for a pair."""
    if vectors not in (1, 2):
        raise ConfigurationError("a message holds 1 vector, or 2 if pairs are matched")
    return 2.0 * math.sqrt(vectors)


def message(noise: float, vectors: int, rate: float = 1.0) -> PoissonGaussian:
    """One message as a mechanism, lengths in units of C: its vectors are one, of norm at most √vectors."""
    if not 0.0 < noise < math.inf:
        raise ConfigurationError("noise_multiplier: must be positive")
    norm = sensitivity(vectors) / 2.0
    return PoissonGaussian(rate, noise / norm, norm, 1.0, noise="lattice")


def hidden_message(noise: float, vectors: int, way: HiddenCoins) -> PoissonGaussian | HiddenClassGaussian:
    """One message of a slot that sends in every step, its class hidden as well where ``way`` says so."""
    own = message(noise, vectors, way.rate)
    if way.classes is None:
        return own
    lengths = own.noise_multiplier, own.clip_norm, own.normaliser, own.noise
    return HiddenClassGaussian(way.rate, *lengths, classes=way.classes)


def message_spendings(noise: float, vectors: int, participation: Participation) -> Spendings | None:
    """What the messages of one sentence spend, as it is composed; None for coins that are seen.

    ``noise`` is z = σ/C, ``vectors`` 1 or 2 (pairs).  Coins that are seen are no mechanism of their own:
    :func:`booked` takes the most of them.
    """
    match participation:
        case FixedSends():
            return (Spending(message(noise, vectors), participation.sends),)
        case HiddenCoins():
            return (Spending(hidden_message(noise, vectors, participation), participation.steps),)
        case VisibleCoins():
            return None


def booked(noise: float, vectors: int, participation: Participation) -> Spendings:
    """What a budget books for a sentence before its first message: of visible coins, a send every step."""
    found = message_spendings(noise, vectors, participation)
    return found or (Spending(message(noise, vectors), steps_of(participation)),)


def _spent(noise: float, vectors: int, way: FixedSends | HiddenCoins) -> Spendings:
    """J sends are one at z/√J, for the mean of them is sufficient."""
    if isinstance(way, FixedSends):
        return (Spending(message(noise / math.sqrt(way.sends), vectors), 1),)
    return (Spending(hidden_message(noise, vectors, way), way.steps),)


def _seen(way: VisibleCoins, pair: Pair) -> Parts:
    """Steps of which each shows its coin; ``pair`` is an accountant's own statement of a message."""
    coins = ((way.rate, pair), (1.0 - way.rate, Pair(NOTHING, NOTHING, pair.deviation)))
    return ((tuple(one for one in coins if one[0] > 0.0), way.steps),)


def epsilon_sound(
    noise: float,
    vectors: int,
    participation: Participation,
    delta: float,
    encoder: Spendings = (),
    grid: float = DISCRETIZATION,
) -> float | None:
    """Epsilon at ``delta`` of one sentence (or pair), all its training messages together; None over 4096.

    ``noise`` z = σ/C; ``encoder`` is what training the encoder spent on the same sentences, () where it is
    public: its steps and the messages compose adaptively.  ``GuaranteeError`` where coins are seen and a step
    of the encoder exchanges several rows.
    """
    way, encoder, one = participation, in_clips(encoder), Spending(message(noise, vectors), 1)
    if isinstance(way, VisibleCoins):
        if any(spent.rows > 1 for spent in encoder):
            raise GuaranteeError("visible coins: no accounting beside an encoder that exchanges several rows")
        told = _seen(way, exchange(1.0, one.mechanism.noise_multiplier))
        parts = (*parts_of(encoder, Relation.SUBSTITUTION), *told)
        found: float | None = composed_epsilon(parts, single_grid((*encoder, one), grid), delta)
    else:
        spent = _spent(noise, vectors, way)
        found = epsilon_of((*encoder, *spent), delta, Relation.SUBSTITUTION, grid)
    return found if found is not None and found < LARGEST_EPSILON else None


def bracket(noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()) -> Bracket:
    """The second accountant's bounds of the epsilon of one sentence, all its training messages together."""
    if not isinstance(participation, VisibleCoins):
        spent = (*encoder, *_spent(noise, vectors, participation))
        return second.bracket(spent, delta, Relation.SUBSTITUTION)
    one = second.exchanged(1.0, message(noise, vectors).noise_multiplier)
    before = second.parts_of(encoder, Relation.SUBSTITUTION)
    return second.bracket_of_parts((*before, *_seen(participation, one)), delta)


def confirmed_epsilon(
    noise: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> Stated:
    """:func:`epsilon_sound`, stated where the second accountant proves it.

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


def calibrated_noise(
    epsilon: float, vectors: int, participation: Participation, delta: float, encoder: Spendings = ()
) -> float:
    """The noise z, to four decimals upwards, at which :func:`epsilon_sound` is at most ``epsilon``.

    ``GuaranteeError`` where no noise below 10,000 reaches it, or the encoder alone costs more.
    """
    own = epsilon_of(encoder, delta, Relation.SUBSTITUTION)
    if own is None or own >= epsilon:
        raise GuaranteeError(
            f"the training of the encoder alone spends epsilon {format_upper(epsilon)}: no message can be sent"
        )

    if getattr(participation, "classes", None) is not None:
        alone = epsilon_sound(_LARGEST_NOISE, vectors, participation, delta, encoder)
        if alone is None or alone > epsilon:
            raise GuaranteeError(
                f"epsilon {format_upper(epsilon)} is spent by the hidden classes alone: lower sampling.rate or steps"
            )

    def cost(coarser: float, noise: float) -> float:
        found = epsilon_sound(noise, vectors, participation, delta, encoder, coarser * CALIBRATION_GRID)
        return LARGEST_EPSILON if found is None else max(found, 1e-12)

    steps = max(steps_of(participation), *(one.steps for one in encoder), 1)
    search = Search(1.0, 1e-3, _LARGEST_NOISE, _TOLERANCE, 1e4)
    noise = noise_for(epsilon, cost, coarseness(CALIBRATION_GRID, epsilon, steps), search)
    while (found := epsilon_sound(noise, vectors, participation, delta, encoder)) is None or found > epsilon:
        noise = round_up(noise * (1.0 + _TOLERANCE), places=4)
    return noise


# Who sends in which step, and whether the sentence or nothing: the three kinds of participation.


class Sends(NamedTuple):
    """One step: the ``places`` that send, int64 in the order of sending, and which of them send their
    sentence, bool; the others send noise on the zero vector, with the class of ``drawn``, int64, if any."""

    places: NDArray[np.int64]
    real: NDArray[np.bool_]
    drawn: NDArray[np.int64] | None = None


def steps_of(participation: Participation) -> int:
    """J for fixed sends, else T: the steps of a slot are 0 to this, exclusive."""
    return participation.sends if isinstance(participation, FixedSends) else participation.steps


def strength(participation: Participation) -> float:
    """What share of a sentence's vector is expected in the mean of its messages, as a server takes it.

    Where classes are hidden it takes the mean of those that carry the slot's own.
    """
    if not isinstance(participation, HiddenCoins):
        return 1.0
    rate, classes = participation.rate, participation.classes
    return rate if classes is None else rate / (rate + (1.0 - rate) / classes)


def drawn_sends(participation: Participation, stream: RandomStream, step: int, slots: int, call: int) -> Sends:
    """The sends of ``step`` for ``slots`` slots; ``call`` tells the draws of one stream apart.

    Formal guarantees: coins are independent over slots and steps, with the rate as probability up to
    2⁻⁵³, and secret as the stream's root is; so are the classes of messages of noise alone, each as likely
    up to 2⁻⁵¹; the order is a uniform permutation, independent of them (``docs/guarantees.md``, "Local
    differential privacy").
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
            heads = _coins(participation.rate, stream, step, slots, call)[order]
            if participation.classes is None:
                return Sends(order, heads)
            shares = stream.uniform("classes", step, slots, call)[order]
            return Sends(order, heads, np.floor(shares * participation.classes).astype(np.int64))


def _coins(rate: float, stream: RandomStream, step: int, slots: int, call: int) -> NDArray[np.bool_]:
    return stream.uniform("coins", step, slots, call) < rate

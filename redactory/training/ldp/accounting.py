"""Compute epsilon and noise for how often a sentence is sent, and whether that is visible (``docs/guarantees.md``)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.settings import Settings
from redactory.foundation.stream import RandomStream
from redactory.training.accounting import (
    Comparison,
    ConfirmedEpsilon,
    NoiseSearch,
    Spending,
    Spendings,
    compare_examples,
    confirm_epsilon,
    find_noise,
)
from redactory.training.accounting.comparisons import Transition, choose_exchange_interval
from redactory.training.accounting.spendings import normalize_spendings, state_compositions
from redactory.training.mechanisms.hidden_class import HiddenClassGaussian
from redactory.training.mechanisms.mechanism import Mechanism, PoissonGaussian, Relation
from redactory.training.mechanisms.pairs import NO_SHIFT, Branches, DominatingPair, make_exchange_pair
from redactory.training.mechanisms.rederived_pairs import rederive_exchange_pair
from redactory.training.settings import Rate


class FixedSends(Settings):
    """Send every sentence a fixed number of times."""

    kind: Literal["fixed"] = Field("fixed", description="Every sentence is sent equally often.")
    sends: PositiveInt = Field(
        1,
        description="J, how often each sentence is sent. One is enough: J sends at noise z carry the "
        "information of one at z/√J, and the server may process a message several times.",
    )

    @property
    def steps(self) -> int:
        """J."""
        return self.sends


class VisibleSampling(Settings):
    """In each step a coin decides whether a sentence is sent; the server sees which ones were."""

    kind: Literal["public_bernoulli"] = Field(description="A coin for each step; who sends is visible.")
    rate: Rate = Field(description="p, the probability that a sentence is sent in a step.")
    steps: PositiveInt = Field(description="T, the number of steps.")


class HiddenSampling(Settings):
    """In each step every slot sends one message: its sentence if a secret coin says so, otherwise pure noise."""

    kind: Literal["secret_bernoulli"] = Field(description="A message in every step; noise-only ones look the same.")
    rate: Rate = Field(description="p, the probability that a message encodes the sentence.")
    steps: PositiveInt = Field(description="T, the number of steps, and of messages per slot.")
    classes: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="K, the number of classes: a training message of pure noise carries a random one, and "
        "epsilon covers a sentence's class, too. Without it the class is sent unprotected.",
    )

    @model_validator(mode="after")
    def _require_rate_below_one(self) -> Self:
        if self.classes is not None and self.rate >= 1.0:
            raise ValueError("classes: at rate 1 every message reveals its class; lower the rate")
        return self

    @property
    def signal_share(self) -> float:
        """The expected share of a sentence's vector in the mean of its messages, of its class if that is hidden."""
        return self.rate if self.classes is None else self.rate / (self.rate + (1.0 - self.rate) / self.classes)


Participation = Annotated[FixedSends | VisibleSampling | HiddenSampling, Field(discriminator="kind")]


# Epsilon of one sentence over all its messages, and the noise for a target.


_MAX_NOISE, _TOLERANCE = 10_000.0, 1e-4


def compute_sensitivity(vectors: int) -> float:
    """Return how far (L2, in units of C) one message moves when its sentence is exchanged: 2, or 2√2 for a pair."""
    if vectors not in (1, 2):
        raise ConfigurationError("a message holds 1 vector, or 2 if pairs are matched")
    return 2.0 * math.sqrt(vectors)


def make_message_mechanism(noise: float, vectors: int, rate: float = 1.0, classes: int | None = None) -> Mechanism:
    """Return one message as a mechanism in units of C; its joined vectors have norm at most √vectors.

    It is of a sentence with probability ``rate``, otherwise of pure noise, and hides which of ``classes`` it has.
    """
    if not 0.0 < noise < math.inf:
        raise ConfigurationError("noise_multiplier: must be positive")
    norm = compute_sensitivity(vectors) / 2.0
    if classes is None:
        return PoissonGaussian(rate, noise / norm, norm, 1.0, "lattice")
    return HiddenClassGaussian(rate, noise / norm, norm, 1.0, "lattice", classes=classes)


def make_message_spending(noise: float, vectors: int, participation: Participation) -> Spending:
    """Return what all messages of one sentence spend; for visible coins, one send per step, the most they can send.

    ``noise`` is z = σ/C, ``vectors`` 1 or 2 (pairs).
    """
    mechanism = make_message_mechanism(noise, vectors)
    if isinstance(participation, HiddenSampling):
        mechanism = make_message_mechanism(noise, vectors, participation.rate, participation.classes)
    return Spending(mechanism, participation.steps)


def _combine_sends(noise: float, vectors: int, sampling: FixedSends | HiddenSampling) -> Spending:
    """Combine J sends into one at z/√J, because their mean is sufficient."""
    if isinstance(sampling, FixedSends):
        noise, sampling = noise / math.sqrt(sampling.sends), FixedSends()
    return make_message_spending(noise, vectors, sampling)


def compare_message_worlds(
    noise: float, vectors: int, participation: Participation, encoder_costs: Spendings = ()
) -> Comparison:
    """Compare the worlds in which one sentence (or pair) is exchanged, over all its training messages.

    ``noise`` is z = σ/C. ``encoder_costs`` is what training the encoder spent on the same sentences, () for a public
    encoder; its steps and the messages compose adaptively. ``GuaranteeError`` if coins are visible and a step of the
    encoder exchanges several rows.
    """
    if not isinstance(participation, VisibleSampling):
        spendings = (*encoder_costs, _combine_sends(noise, vectors, participation))
        return compare_examples(spendings, Relation.SUBSTITUTION)
    if any(spending.rows > 1 for spending in encoder_costs):
        raise GuaranteeError("visible coins: no accounting beside an encoder that exchanges several rows")
    before = normalize_spendings(encoder_costs)
    message = make_message_spending(noise, vectors, FixedSends())
    sigma = message.mechanism.noise_multiplier
    pair, rederived_pair = make_exchange_pair(1.0, sigma), rederive_exchange_pair(1.0, sigma)
    made, rederived = state_compositions(before)
    transition = Transition(
        (*made, (_add_coins(participation, pair), participation.steps)),
        (*rederived, (_add_coins(participation, rederived_pair), participation.steps)),
        choose_exchange_interval((*before, message)),
    )
    return Comparison((transition,))


def _add_coins(sampling: VisibleSampling, pair: DominatingPair) -> Branches:
    """Play the pair of a message with probability p, otherwise nothing; everybody sees which."""
    branches = ((sampling.rate, pair), (1.0 - sampling.rate, DominatingPair(NO_SHIFT, NO_SHIFT, pair.deviation)))
    return tuple(branch for branch in branches if branch[0] > 0.0)


def confirm_message_epsilon(
    noise: float, vectors: int, participation: Participation, delta: float, encoder_costs: Spendings = ()
) -> ConfirmedEpsilon:
    """Confirm epsilon at ``delta`` of one sentence (or pair) over all its training messages."""
    comparison = compare_message_worlds(noise, vectors, participation, encoder_costs)
    return confirm_epsilon(comparison, delta, "the messages of one sentence")


def calibrate_message_noise(
    epsilon: float, vectors: int, participation: Participation, delta: float, encoder_costs: Spendings = ()
) -> float:
    """Find the smallest noise z, rounded up to 4 decimals, whose proved epsilon is at most ``epsilon``.

    ``GuaranteeError`` if no noise below 10,000 reaches it, or the encoder alone costs more.
    """
    if compare_examples(encoder_costs, Relation.SUBSTITUTION).bound_epsilon(delta).upper >= epsilon:
        raise GuaranteeError(
            f"the training of the encoder alone spends epsilon {format_upper(epsilon)} or more: no message can be sent"
        )

    def make_comparison(noise: float) -> Comparison:
        return compare_message_worlds(noise, vectors, participation, encoder_costs)

    has_classes = getattr(participation, "classes", None) is not None
    if has_classes and make_comparison(_MAX_NOISE).bound_epsilon(delta).upper > epsilon:
        raise GuaranteeError(
            f"epsilon {format_upper(epsilon)} is spent by the hidden classes alone: lower sampling.rate or steps"
        )
    return find_noise(make_comparison, epsilon, delta, NoiseSearch(1.0, 1e-3, _MAX_NOISE, _TOLERANCE, 1e4))


# Who sends in which step, and whether a sentence or only noise: the three kinds of participation.


class StepSends(NamedTuple):
    """The sends of one step.

    Holds the ``places`` that send, int64 in the order of sending, and which send their sentence, bool. The others send
    noise on the zero vector, with the drawn class, int64, if any.
    """

    slots: NDArray[np.int64]
    is_real: NDArray[np.bool_]
    drawn_classes: NDArray[np.int64] | None = None


def draw_step_sends(
    participation: Participation, stream: RandomStream, step: int, slot_count: int, call_number: int
) -> StepSends:
    """Draw the sends of ``step`` for ``slot_count`` slots; ``call_number`` separates the draws of one stream.

    Formal guarantees: coins are independent over slots and steps, with the rate as probability up to 2⁻⁵³, and as
    secret as the stream's root. So are the classes of pure-noise messages, each equally likely up to 2⁻⁵¹. The order is
    a uniform permutation, independent of them (``docs/guarantees.md``, "Local differential privacy").
    """
    order = stream.permutation("order", step, slot_count, call_number)
    if isinstance(participation, FixedSends):
        return StepSends(order, np.ones(slot_count, bool))
    sent = (stream.uniform("coins", step, slot_count, call_number) < participation.rate)[order]
    if isinstance(participation, VisibleSampling):
        return StepSends(order[sent], sent[sent])
    if participation.classes is None:
        return StepSends(order, sent)
    shares = stream.uniform("classes", step, slot_count, call_number)[order]
    return StepSends(order, sent, np.floor(shares * participation.classes).astype(np.int64))

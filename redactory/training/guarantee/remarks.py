"""What is odd about a training, a sentence each: told by ``plan``, around ``train``, and on the card.

Nothing that must not be known is told.  A card leaves the private part: its counts are public constants, or,
where points are exchanged, those that are the same in both worlds (``docs/guarantees.md``, "Side channels",
items 8 and 16); what is told of a loss was measured on public text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.guarantee.sweep import noise_to_signal

_FAR = 2.0
_HOPELESS = 10.0
"""Noise to signal of a whole training from which on hardly anything was learnt (docs/how-to/guarantee.md)."""
_RISEN = 0.1
"""How far above its least, in nats, a loss may end: a tenth of its perplexity."""


@dataclass(frozen=True)
class Facts:
    """What may be told of a training besides its spec; None where it is not known, or must not be.

    ``points`` are those that noisy steps draw from, ``plain`` those learnt without noise, ``users`` those of
    the corpus; ``parameters`` is the number of trainable ones, at most.  ``curve`` are the rows of what was
    measured on held-out text (:mod:`redactory.training.held_out`).  ``at_most``: ``points`` are no fewer,
    but may be more, than there are.
    """

    points: int | None = None
    plain: int | None = None
    users: int | None = None
    parameters: int | None = None
    curve: Sequence[Mapping[str, Any]] = ()
    at_most: bool = False


def remarks(spec: TrainingSpec, facts: Facts) -> list[str]:
    """Every sentence, without a full stop."""
    every = (_delta, _batch, _plain_batch, _noise, _loss, _one_class)
    return [sentence for each in every for sentence in each(spec, facts)]


def points_in_both_worlds(spec: TrainingSpec, counts: Mapping[str, int]) -> int | None:
    """The points of the side that is noised, duplicates and quarantined ones too; None where it is secret.

    That many there are in two corpora in which one point is exchanged for another; how many are left of them
    is not.  Under every other relation, of users and of conversations, and where counts decided what is
    public, none is told.
    """
    trainer = spec.trainer
    if trainer.noised is None or trainer.of_units or spec.selection or not counts:
        return None
    if spec.settings.whole_conversations:
        return None
    if trainer.noised == "vault":
        return counts["points"]
    return counts["private"] + counts["private_duplicate"] + counts["quarantined"]


def _delta(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    if spec.mechanism is None:
        return
    users, own = spec.trainer.samples_users, spec.settings
    if users:
        count = facts.users or own.federated.users or 1
    else:
        count = facts.points or round(own.expected_batch_size / own.sampling_rate)
    if spec.delta * count > 1.0:
        yield (
            f"train.delta is {format_upper(spec.delta)}, above one over the {count:,} "
            f"{'users' if users else 'examples'}: publishing a whole one, drawn at random, would satisfy "
            "it; set it far lower"
        )


def _batch(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    """Where so few points are drawn that many steps are noise alone, or the batch is far from them."""
    if facts.points is None or spec.mechanism is None or spec.trainer.samples_users:
        return
    rate, batch = spec.settings.sampling_rate, spec.settings.expected_batch_size
    draws, most = rate * facts.points, "at most " if facts.at_most else ""
    count = f"{draws:,.2g}" if draws < 10.0 else f"{draws:,.0f}"
    drawn = f"draws {most}{count} examples on average (train.sampling_rate {rate:g} of {most}{facts.points:,})"
    # where there may be fewer, no batch is known to be too small
    small = batch < draws / _FAR and not facts.at_most
    if draws < 1.0:
        yield f"a noisy step {drawn}: many steps are pure noise; raise train.sampling_rate"
    elif small or batch > draws * _FAR:
        times = max(batch / draws, draws / batch)
        ratio, steps, least = ("large", "long", "") if small else ("small", "short", most and "at least ")
        yield (
            f"train.expected_batch_size is {batch:g}, but a noisy step {drawn}: noise_to_batch is stated "
            f"{least}{times:,.3g} times too {ratio}, and with optimizer sgd steps are as much too {steps} "
            "(adam is not affected); set it to the rate times the number of examples that you expect of "
            "such text, not this count"
        )


def _plain_batch(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    size = spec.settings.public_batch_size
    if facts.plain is not None and size > facts.plain:
        yield (
            f"train.public_batch_size is {size:,}, but only {facts.plain:,} examples are trained on without "
            "noise: every such step takes them all; set it lower"
        )


def _noise(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    own, count = spec.mechanism, facts.parameters
    if own is None or count is None:
        return
    ratio = noise_to_signal(own.noise_multiplier, own.normaliser, spec.steps, count)
    if ratio > _HOPELESS:
        yield (
            f"the noise of all noisy steps together is {ratio:,.2g} times the maximum sum of their "
            f"gradients ({count:,} parameters, noise multiplier {own.noise_multiplier:.3g}, batches of "
            f"{own.normaliser:g}, {spec.steps:,} steps): they teach the model next to nothing; use more "
            "private examples, a smaller network or vocabulary, or a larger epsilon"
        )


def _loss(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    """Where the loss on held-out text ended above where it began, or above its least."""
    losses = [math.inf if row["loss"] is None else float(row["loss"]) for row in facts.curve]
    if len(losses) < 2:
        return
    first, last, least = losses[0], losses[-1], min(losses)
    lower = "lower train.learning_rate or train.dp_learning_rate, whichever raised it"
    if last >= first:
        yield (
            f"the loss on held-out public text was {first:.3g} before the first step and is {last:.3g} "
            f"after the last one: the training diverged, or learned nothing; {lower}"
        )
    elif last > least + _RISEN:
        yield (
            f"the loss on held-out public text ended at {last:.3g}, after {least:.3g} in step "
            f"{facts.curve[losses.index(least)]['step']:,}; {lower}, or decay it "
            "(train.learning_rate_schedule linear)"
        )


def _one_class(spec: TrainingSpec, facts: Facts) -> Iterator[str]:
    if facts.curve and facts.curve[-1].get("most_said") == 1.0:
        yield "the classifier predicts one class for every held-out public text: it has learned nothing"

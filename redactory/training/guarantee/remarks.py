"""Describe what is unusual about a training, a sentence each: for ``plan``, ``train`` and the card.

Secrets stay secret. A card leaves the private part: its counts are public constants or, if examples are
exchanged, counts that are equal in both worlds (``docs/guarantees.md``, "Side channels", items 8 and 16).
Losses were measured on public text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.guarantee.sweep import compute_noise_to_signal
from redactory.training.settings import TrainSettings

_MAX_BATCH_RATIO = 2.0
_MAX_NOISE_TO_SIGNAL = 10.0
"""Noise to signal of a whole training from which on hardly anything was learnt (docs/how-to/guarantee.md)."""
_LITTLE_NOISE_TO_SIGNAL, _MIN_RETAINED_SHARE = 4.0, 0.1
"""Noise to signal from which on about a third was learnt, and the share of a classifier's accuracy that is nothing."""
_DEFAULT_BATCH = TrainSettings.model_fields["expected_batch_size"].default
_MAX_LOSS_RISE = 0.1
"""How far above its least, in nats, a loss may end: a tenth of its perplexity."""


@dataclass(frozen=True)
class TrainingFacts:
    """What may be said about a training besides its spec; None if it is unknown, or must not be known.

    ``examples`` are the examples that noisy steps draw from, ``noise_free_examples`` those of noise-free steps,
    ``users`` the users of the corpus; ``parameters`` is the number of trainable ones, at most. ``held_out_curve`` are
    measurements on held-out text (:mod:`redactory.training.held_out`). ``is_upper_bound``: there may be fewer examples.
    """

    examples: int | None = None
    noise_free_examples: int | None = None
    users: int | None = None
    parameters: int | None = None
    held_out_curve: Sequence[Mapping[str, Any]] = ()
    is_upper_bound: bool = False


def make_remarks(spec: TrainingSpec, facts: TrainingFacts) -> list[str]:
    """Make every sentence, without a full stop."""
    checks = (
        _find_delta_problems,
        _find_batch_size_problems,
        _find_noise_free_batch_size_problems,
        _find_noise_problems,
        _find_loss_problems,
        _find_single_class_problems,
    )
    return [sentence for check in checks for sentence in check(spec, facts)]


def _compute_batch(spec: TrainingSpec, examples: int | None) -> float:
    """Return the mean number of examples in a step if that of all ``examples`` is known; otherwise the expected one."""
    mechanism = spec.mechanism
    assert mechanism is not None
    if examples is None or spec.trainer.samples_users:
        return mechanism.normaliser
    return max(examples * mechanism.sampling_rate, 1e-9)


def judge_noise(
    spec: TrainingSpec, parameters: int | None, retained_share: float | None = None, examples: int | None = None
) -> str | None:
    """Say in a sentence whether noisy steps can teach the model anything; None if its ``parameters`` are unknown.

    ``retained_share`` is the predicted share of a classifier's accuracy above chance (:mod:`.expected_accuracy`).
    """
    if spec.mechanism is None or (parameters is None and retained_share is None):
        return None
    noise, batch = spec.mechanism.noise_multiplier, _compute_batch(spec, examples)
    ratio = 0.0 if parameters is None else compute_noise_to_signal(noise, batch, spec.steps, parameters)
    source = "private text" if spec.trainer.noise_free_folders else "this text"
    if ratio > _MAX_NOISE_TO_SIGNAL or (retained_share is not None and retained_share < _MIN_RETAINED_SHARE):
        return f"This will learn nothing from {source}: the noise hides it"
    if ratio > _LITTLE_NOISE_TO_SIGNAL:
        return f"This will learn little from {source}: most of it is hidden by the noise"
    return f"This can learn from {source}: the noise leaves enough of it"


def count_noised_examples(spec: TrainingSpec, counts: Mapping[str, int]) -> int | None:
    """Count the examples of the noised split, with duplicates and quarantined ones; None if this is secret.

    This count is equal in two corpora in which one example is exchanged; the count that remains is not. Under every
    other relation, of users and of conversations, and if counts decided what is public, there is none.
    """
    trainer = spec.trainer
    if trainer.noised_folder is None or trainer.has_units or spec.selection or not counts:
        return None
    if spec.settings.has_whole_conversations:
        return None
    if trainer.noised_folder == "vault":
        return counts["examples"]
    return counts["private"] + counts["private_duplicate"] + counts["quarantined"]


def _find_delta_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    if spec.mechanism is None:
        return
    users, settings = spec.trainer.samples_users, spec.settings
    if users:
        count = facts.users or settings.federated.users or 1
    else:
        count = facts.examples or round(settings.expected_batch_size / settings.sampling_rate)
    if spec.delta * count > 1.0:
        yield (
            f"train.delta is {format_upper(spec.delta)}, above one over the {count:,} "
            f"{'users' if users else 'examples'}: publishing a whole one, drawn at random, would satisfy "
            "it; set it far lower"
        )


def _find_batch_size_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    """Report batches so small that many steps are noise alone, or far from the expected size."""
    if facts.examples is None or spec.mechanism is None or spec.trainer.samples_users:
        return
    settings = spec.settings
    rate, batch = settings.sampling_rate, settings.expected_batch_size
    draws, most = rate * facts.examples, "at most " if facts.is_upper_bound else ""
    count = f"{draws:,.2g}" if draws < 10.0 else f"{draws:,.0f}"
    drawn = f"draws {most}{count} examples on average (train.sampling_rate {rate:g} of {most}{facts.examples:,})"
    # where there may be fewer, no batch is known to be too small
    is_small = batch < draws / _MAX_BATCH_RATIO and not facts.is_upper_bound
    if draws < 1.0:
        yield f"a noisy step {drawn}: many steps are pure noise; raise train.sampling_rate (0.1 suits some hundred)"
    elif settings.optimizer == "adam" and (settings.model.kind == "encoder" or batch == _DEFAULT_BATCH):
        return  # a constant divisor of every gradient changes no step
    elif is_small or batch > draws * _MAX_BATCH_RATIO:
        factor = max(batch / draws, draws / batch)
        ratio, steps, least = ("large", "long", "") if is_small else ("small", "short", most and "at least ")
        yield (
            f"train.expected_batch_size is {batch:g}, but a noisy step {drawn}: noise_to_batch is stated "
            f"{least}{factor:,.3g} times too {ratio}, and with optimizer sgd steps are as much too {steps} "
            "(adam is not affected); set it to the rate times the number of examples that you expect of "
            "such text, not this count"
        )


def _find_noise_free_batch_size_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    size = spec.settings.public_batch_size
    if facts.noise_free_examples is not None and size > facts.noise_free_examples:
        yield (
            f"train.public_batch_size is {size:,}, but only {facts.noise_free_examples:,} examples are trained on "
            "without noise: every such step takes them all; set it lower"
        )


def _find_noise_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    mechanism, count = spec.mechanism, facts.parameters
    if mechanism is None or count is None:
        return
    batch = _compute_batch(spec, facts.examples)
    ratio = compute_noise_to_signal(mechanism.noise_multiplier, batch, spec.steps, count)
    if ratio > _MAX_NOISE_TO_SIGNAL:
        yield (
            f"the noise of all noisy steps together is {ratio:,.2g} times the maximum sum of their "
            f"gradients ({count:,} parameters, noise multiplier {mechanism.noise_multiplier:.3g}, batches of "
            f"{batch:,.4g}, {spec.steps:,} steps): they teach the model next to nothing; use more "
            "private examples, a smaller network or vocabulary, or a larger epsilon"
        )


def _find_loss_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    """Report a loss on held-out text that ended above its start, or above its minimum."""
    losses = [math.inf if row["loss"] is None else float(row["loss"]) for row in facts.held_out_curve]
    if len(losses) < 2:
        return
    first, last, least = losses[0], losses[-1], min(losses)
    advice = "lower train.learning_rate or train.dp_learning_rate, whichever raised it"
    if last >= first:
        yield (
            f"the loss on held-out public text was {first:.3g} before the first step and is {last:.3g} "
            f"after the last one: the training diverged, or learned nothing; {advice}"
        )
    elif last > least + _MAX_LOSS_RISE and not spec.settings.keeps_best_weights:
        yield (
            f"the loss on held-out public text ended at {last:.3g}, after {least:.3g} in step "
            f"{facts.held_out_curve[losses.index(least)]['step']:,}; {advice}, or decay it "
            "(train.learning_rate_schedule linear)"
        )


def _find_single_class_problems(spec: TrainingSpec, facts: TrainingFacts) -> Iterator[str]:
    if facts.held_out_curve and facts.held_out_curve[-1].get("most_said") == 1.0:
        yield "the classifier predicts one class for every held-out public text: it has learned nothing"

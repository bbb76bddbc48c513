"""CRT (SGD on public, DP-SGD on masked private examples), its variant without masked examples, and DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from redactory.training.mechanisms.mechanism import Relation
from redactory.training.trainers.base import EXAMPLE_NOUN, Trainer

if TYPE_CHECKING:
    from redactory.training.data import IntArray, TokenizedExamples
    from redactory.training.loop import TrainingContext
    from redactory.training.mechanisms.ledger import Admission
    from redactory.training.mechanisms.mechanism import Mechanism
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import NoiseFreeSteps, NoisySteps, ScheduledOptimizer, StepKind


class Crt(Trainer):
    """Algorithm 1 of the CRT paper. Formal guarantees: ``docs/guarantees.md``."""

    name = "crt"
    description = "SGD on public and DP-SGD on masked private examples"
    noise_free_folders = ("public",)
    noised_folder = "private"
    uses_policy = can_classify = can_chat = True
    assumptions: ClassVar[tuple[str, ...]] = (
        "The vocabulary, the network's size and every constant come from public text and the configuration alone.",
        "Bayesian epsilons are averages over the secrets of this corpus, for an adversary who does not know "
        "which of them was masked. For a secret known to have been missed by the strict policy, use "
        "epsilon_substitution.",
    )

    def samples_public(self, settings: TrainSettings) -> bool:
        """Whether a noisy step also samples public examples, so that each example counts alike: on vectors."""
        return settings.model.kind == "encoder"

    def find_settings_problem(self, settings: TrainSettings) -> str | None:
        """Refuse passes over ``public/`` where noisy steps sample it."""
        for key in ("public_share", "public_pretraining_epochs"):
            if self.samples_public(settings) and getattr(settings, key):
                return f"train.{key}: with an encoder every noisy step also samples public examples; remove it"
        return None

    def count_exchanged_rows(self, settings: TrainSettings, group_size: int | None) -> int:
        """Return the deduplication rule's ``group_size``; without a rule no epsilon is stated."""
        return group_size or 1

    def make_noise_free_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer
    ) -> NoiseFreeSteps | None:
        """Make passes over ``public/``; none on an encoder's vectors, where every noisy step also samples it."""
        if self.samples_public(context.settings):
            return None
        examples, rows = self._encode_public_rows(context)
        return context.make_noise_free_steps(scheduled_optimizer, examples, rows)

    def make_noisy_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer, mechanism: Mechanism, ledger: Admission
    ) -> StepKind:
        """Make the steps on ``private/``; on an encoder's vectors they also sample ``public/``."""
        steps = super().make_noisy_steps(context, scheduled_optimizer, mechanism, ledger)
        if self.samples_public(context.settings):
            examples, rows = self._encode_public_rows(context)
            rows = rows[~np.isin(rows, context.held_out_rows)]
            steps = replace(cast("NoisySteps", steps), public_examples=examples.select_examples(rows))
        return steps

    def _encode_public_rows(self, context: TrainingContext) -> tuple[TokenizedExamples, IntArray]:
        """Encode ``public/``; its rows, each distinct text once, or as often as it occurred."""
        from redactory.training.data import count_public_occurrences

        examples = context.encode_data_folders(context.run.public)
        rows = examples.included_rows
        if context.settings.public_weighting == "count":
            rows = np.repeat(rows, count_public_occurrences(context.run)[rows])
        return examples.examples, rows


class CrtDrop(Crt):
    """CRT with a zero gradient for masked examples: the other world lacks the secret's example."""

    name = "crt-drop"
    description = "the same, but a private example with a mask contributes nothing"
    relation = Relation.ADD_OR_REMOVE
    drops_masked = True
    comparison_notes = (
        "A private example with a mask contributes a zero gradient, but counts wherever examples are "
        "counted. A secret that the strict policy missed is compared with its example removed: one example "
        "present or absent, and groups likewise.",
    )


class DpSgd(Trainer):
    """DP-SGD on every original example: the baseline with a guarantee (``docs/guarantees.md``)."""

    name = "dpsgd"
    description = "DP-SGD on all original examples"
    noised_folder = "vault"
    can_classify = can_chat = True
    privacy_unit = f"one original {EXAMPLE_NOUN}"
    assumptions = ("Original texts are used, with duplicates: a secret in K examples is a group of K.",)

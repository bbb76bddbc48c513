"""Baselines without a guarantee: noise-free on masked texts, on originals, without entities; selective DP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redactory.training.mechanisms.mechanism import Relation
from redactory.training.trainers.base import Trainer

if TYPE_CHECKING:
    from redactory.training.loop import TrainingContext
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer


class RedactOnly(Trainer):
    """Noise-free SGD on the masked examples of both splits."""

    name = "redact-only"
    description = "no noise, on both splits' masked examples; no guarantee"
    noise_free_folders = ("public", "private")
    can_chat = True
    no_guarantee_reason = (
        "no noise: the model is trained on the masked texts, and on secrets that the strict policy missed; "
        "nothing is guaranteed"
    )


class Sgd(Trainer):
    """Noise-free SGD on the original examples."""

    name = "sgd"
    description = "no noise, on all original examples; no guarantee"
    noise_free_folders = ("vault",)
    can_chat = True
    no_guarantee_reason = "no noise: the model is trained on the original texts, nothing is guaranteed"


class Noiseless(Trainer):
    """Noise-free SGD on the originals as the trainers that protect users and entities read them."""

    name = "noiseless"
    description = "no noise, on all original examples, as users and entities hold them; no guarantee"
    noise_free_folders = ("vault",)
    can_classify = has_units = True
    relation = Relation.ADD_OR_REMOVE
    no_guarantee_reason = Sgd.no_guarantee_reason


class DeIdentification(Noiseless):
    """The same with all found entities masked."""

    name = "de-identification"
    description = "the same without their entities; no guarantee"
    masks_entities = True
    no_guarantee_reason = (
        "no noise: the model is trained on the texts with their entities masked. An entity that no detector or "
        "list finds is not masked, nor is anything else of a user; nothing is guaranteed"
    )


class Sdp(Trainer):
    """Selective DP-SGD (Shi et al. 2021): its noise is inside the steps, so it has no epsilon here."""

    name = "sdp"
    description = "noise on what the strict policy finds in original examples (Shi et al.); no guarantee"
    noise_free_folders = ("vault",)
    no_guarantee_reason = (
        "no finite epsilon: noise protects only the tokens that the strict policy finds, and the model is "
        "trained without noise on a secret that it missed; if a policy can miss, epsilon is infinite"
    )

    def find_settings_problem(self, settings: TrainSettings) -> str | None:
        """Require the one-layer LSTM of the publication and an explicit noise multiplier."""
        if settings.model.kind != "lstm" or settings.model.layers != 1:
            return "sdp adds noise to the state of one LSTM layer: set model kind to lstm, layers to 1"
        if settings.noise_multiplier is None:
            return "sdp has no epsilon to calibrate to: set noise_multiplier"
        if isinstance(settings.tokenizer, Path):
            return "train.tokenizer: sdp needs token positions: remove a file or folder"
        return None

    def make_noise_free_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer
    ) -> NoiseFreeSteps:
        """Make steps that train on each batch's public tuples, then on its private tuples with noise."""
        from redactory.training.selective_dp import make_selective_steps

        return make_selective_steps(context, scheduled_optimizer)

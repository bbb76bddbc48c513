"""Baselines without any guarantee: without noise on masked texts, on originals, without entities; S-DP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redactory.training.mechanism import Relation
from redactory.training.trainers.base import Trainer

if TYPE_CHECKING:
    from redactory.training.loop import Ingredients
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import Descent, PlainPhase


class RedactOnly(Trainer):
    """SGD on both sides' masked points."""

    name = "redact-only"
    about = "no noise, on both splits' masked examples; no guarantee"
    plain = ("public", "private")
    chats = True
    nothing = (
        "no noise: this trainer learns the masked texts; a secret that the strict policy missed is learned "
        "without noise, nothing is guaranteed"
    )


class Sgd(Trainer):
    """SGD on the originals."""

    name = "sgd"
    about = "no noise, on all original examples; no guarantee"
    plain = ("vault",)
    chats = True
    nothing = "no noise: this trainer learns the original texts, nothing is guaranteed"


class Noiseless(Trainer):
    """The originals, as the trainers that hide users and entities see them."""

    name = "noiseless"
    about = "no noise, on all original examples, as users and entities hold them; no guarantee"
    plain = ("vault",)
    classifies = of_units = True
    relation = Relation.ADD_OR_REMOVE
    nothing = Sgd.nothing


class DeIdentification(Noiseless):
    """The same with their entities masked."""

    name = "de-identification"
    about = "the same without their entities; no guarantee"
    masks_entities = True
    nothing = (
        "no noise: this trainer learns the texts with their entities masked; an entity that no detector or "
        "list finds is learned unmasked, and so is everything else of a user; nothing is guaranteed"
    )


class Sdp(Trainer):
    """Selective DP-SGD (Shi et al. 2021): its noise is inside the steps, so no figure of ours."""

    name = "sdp"
    about = "noise on what the strict policy finds in original examples (Shi et al.); no guarantee"
    plain = ("vault",)
    nothing = (
        "no finite epsilon: noise protects only the tokens that the strict policy finds, and a secret that "
        "it missed is learned without noise; if a policy can miss, epsilon is infinite"
    )

    def problem(self, settings: TrainSettings) -> str | None:
        """It is published for one network, and has no epsilon to calibrate to."""
        if settings.model.kind != "lstm" or settings.model.layers != 1:
            return "sdp adds noise to the state of one LSTM layer: set model kind to lstm, layers to 1"
        if settings.noise_multiplier is None:
            return "sdp has no epsilon to calibrate to: set noise_multiplier"
        if isinstance(settings.tokenizer, Path):
            return "train.tokenizer: sdp needs token positions: remove a file or folder"
        return None

    def plain_steps(self, made: Ingredients, descent: Descent) -> PlainPhase:
        """Each step's public tuples, then its private ones with noise."""
        from redactory.training.sdp import selective_phase

        return selective_phase(made, descent)

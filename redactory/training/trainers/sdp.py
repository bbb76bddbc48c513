"""Selective DP-SGD (Shi et al. 2021), a baseline: noise on what π marks of the originals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redactory.training.trainers.base import Trainer

if TYPE_CHECKING:
    from redactory.training.ingredients import Ingredients
    from redactory.training.phases import Descent, PlainPhase
    from redactory.training.settings import TrainSettings


class Sdp(Trainer):
    """Its noise is inside the steps; no mechanism of ours, and so no figure."""

    name = "sdp"
    about = "noise on what π marks of original points (Shi et al.); no guarantee"
    plain = ("vault",)
    nothing = (
        "no finite epsilon: noise protects only the tokens that π marks, and a secret that π missed is "
        "learnt without noise; under a policy that can miss, epsilon is infinite"
    )

    def problem(self, settings: TrainSettings) -> str | None:
        """It is published for one network, and has no epsilon to calibrate to."""
        if settings.model.kind != "lstm" or settings.model.layers != 1:
            return "sdp noises the state of one LSTM layer: model kind lstm, layers 1"
        if settings.noise_multiplier is None:
            return "sdp has no epsilon to calibrate to: give noise_multiplier"
        return None

    def in_pieces(self, settings: TrainSettings) -> bool:
        """A batch is one piece."""
        return False

    def plain_steps(self, made: Ingredients, descent: Descent) -> PlainPhase:
        """Each step's public tuples, then its private ones with noise."""
        from redactory.training.sdp import selective_phase

        return selective_phase(made, descent)

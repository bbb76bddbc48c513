"""Pretraining on donated text, done once for all trainings with the same constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from uedp_corpora import Corpus

from redactory.training import TrainSettings
from redactory.training.loop import TrainingContext
from redactory.training.steps import NoiseFreeSteps


@dataclass
class KeptPretraining(NoiseFreeSteps):
    """Pretraining of which the end is kept in ``weights``: the next one with the same constants starts there.

    It reads public text alone and draws from the seed, so that it has the same bits in every training.
    """

    weights: Path = Path()
    last: int = 0

    def step(self, number: int) -> None:
        """The step, or, where its end is known, nothing before the last."""
        if not self.weights.exists():
            super().step(number)
            if number == self.last:
                self.weights.parent.mkdir(exist_ok=True)
                torch.save(self.network.state_dict(), self.weights)
        elif number == self.last:
            self.network.load_state_dict(torch.load(self.weights))


@contextmanager
def pretrained_once(weights: Path) -> Iterator[None]:
    """Within, trainings keep what pretraining led to in ``weights``, or take it from there."""
    plain = TrainingContext.make_pretraining_steps

    def kept(self: TrainingContext) -> NoiseFreeSteps | None:
        phase = plain(self)
        if phase is None:
            return None
        last = self.settings.pretraining_epochs * phase.steps_per_pass - 1
        own = {entry.name: getattr(phase, entry.name) for entry in dataclasses.fields(phase) if entry.init}
        return KeptPretraining(**own, weights=weights, last=last)

    TrainingContext.make_pretraining_steps = kept  # type: ignore[method-assign]
    try:
        yield
    finally:
        TrainingContext.make_pretraining_steps = plain  # type: ignore[method-assign]


def kept_at(corpus: Corpus, settings: TrainSettings) -> Path:
    """Where the pretraining with these constants is kept."""
    keys = ("task", "classes", "model", "pretraining_epochs", "learning_rate", "public_batch_size", "seed")
    told = settings.model_dump_json(include=set(keys))
    return corpus.folder / "pretrained" / f"{blake2b(told.encode(), digest_size=8).hexdigest()}.pt"

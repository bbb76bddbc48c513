"""The trainers: which points are learnt without noise, which with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.accounting import calibrate_noise
from redactory.training.ledger import Admission
from redactory.training.mechanism import PoissonGaussian
from redactory.training.network import LstmLanguageModel
from redactory.training.phases import NoisyPhase, Phase, PlainPhase, make_optimizer
from redactory.training.points import EncodedPoints
from redactory.training.runinput import public_occurrences, texts
from redactory.training.sampling import PoissonSampler
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import Tokenizer


@dataclass(frozen=True)
class Trainer:
    """The folders a trainer learns from: ``plain`` without noise, ``noisy`` with it.

    ``occurrences``, where given, says how often each row of ``plain`` is seen in one pass.  One exchanged
    point of the corpus exchanges ``group_size`` rows of ``noisy``, by the rule of deduplication.
    """

    plain: Path | None
    noisy: Path | None
    occurrences: NDArray[np.int64] | None = None
    group_size: int = 1

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder it reads."""
        return tuple(folder for folder in (self.plain, self.noisy) if folder is not None)


def trainer_of(settings: TrainSettings, run: RunFolder) -> Trainer:
    """``crt`` is Algorithm 1 of the CRT paper; ``dpsgd`` and ``sgd`` are its baselines on original texts.

    Formal guarantees: only ``crt`` and ``dpsgd`` have one; what it says is in ``docs/guarantees.md``.
    """
    if settings.trainer == "sgd":
        return Trainer(plain=run.vault, noisy=None)
    if settings.trainer == "dpsgd":
        return Trainer(plain=None, noisy=run.vault)
    repeated = public_occurrences(run) if settings.public_epoch == "occurrences" else None
    # where no rule says how many, there will be no figure either: noise is then that of one row
    size = read_manifest(run)["dedup"]["group_size"] or 1
    return Trainer(plain=run.public, noisy=run.private, occurrences=repeated, group_size=size)


def steps_per_epoch(settings: TrainSettings) -> int:
    """⌈1/q⌉: in expectation each point is drawn once an epoch, whatever their number."""
    return math.ceil(1.0 / settings.sampling_rate)


def mechanism_of(settings: TrainSettings, trainer: Trainer) -> PoissonGaussian | None:
    """The mechanism of every noisy step, its noise calibrated where the settings give none."""
    if trainer.noisy is None:
        return None
    noise_multiplier = settings.noise_multiplier or calibrate_noise(
        settings.epsilon,
        settings.delta,
        settings.sampling_rate,
        settings.epochs * steps_per_epoch(settings),
        points=trainer.group_size,
    )
    return PoissonGaussian(
        sampling_rate=settings.sampling_rate,
        noise_multiplier=noise_multiplier,
        clip_norm=settings.clip_norm,
        normaliser=settings.expected_batch_size,
    )


@dataclass(frozen=True)
class Ingredients:
    """What every phase of one training shares."""

    settings: TrainSettings
    network: LstmLanguageModel
    tokenizer: Tokenizer
    stream: RandomStream

    def encode(self, folder: Path) -> EncodedPoints:
        """The points of a data folder."""
        return EncodedPoints.from_texts(texts(folder), self.tokenizer, self.settings.max_tokens)

    def plain_phase(self, folder: Path, occurrences: NDArray[np.int64] | None) -> PlainPhase:
        """SGD on ``folder``."""
        own, points = self.settings, self.encode(folder)
        once = np.arange(len(points), dtype=np.int64)
        return PlainPhase(
            network=self.network,
            optimizer=make_optimizer(self.network, own.optimizer, own.learning_rate),
            points=points,
            rows=once if occurrences is None else np.repeat(once, occurrences),
            batch_size=own.public_batch_size,
            minimum_steps=own.minimum_plain_steps,
            stream=self.stream,
        )

    def noisy_phase(self, folder: Path, mechanism: PoissonGaussian, ledger: Admission) -> NoisyPhase:
        """DP-SGD on ``folder``."""
        own = self.settings
        return NoisyPhase(
            network=self.network,
            optimizer=make_optimizer(self.network, own.optimizer, own.private_learning_rate),
            points=self.encode(folder),
            mechanism=mechanism,
            sampler=PoissonSampler(own.sampling_rate),
            steps_per_epoch=steps_per_epoch(own),
            physical_tokens=own.physical_tokens,
            stream=self.stream,
            ledger=ledger,
        )

    def phases(
        self, trainer: Trainer, mechanism: PoissonGaussian | None, ledger: Admission | None
    ) -> list[Phase]:
        """The phases of one epoch, in order."""
        found: list[Phase] = []
        if trainer.plain is not None:
            found.append(self.plain_phase(trainer.plain, trainer.occurrences))
        if trainer.noisy is not None and mechanism is not None and ledger is not None:
            found.append(self.noisy_phase(trainer.noisy, mechanism, ledger))
        return found

"""The trainers: which points are learnt without noise, which with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.accounting import calibrate_noise
from redactory.training.ledger import Admission
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian
from redactory.training.models.network import Network
from redactory.training.phases import Descent, NoisyPhase, PlainPhase, make_optimizer
from redactory.training.points import EncodedPoints, Placed
from redactory.training.runinput import public_occurrences, texts
from redactory.training.sampling import PoissonSampler, Sampler, TruncatedPoissonSampler
from redactory.training.schedule import Schedule
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import TextCodec, Tokenizer


@dataclass(frozen=True)
class Trainer:
    """The folders a trainer learns from: ``plain`` without noise, ``noisy`` with it.

    ``occurrences``, where given, says how often each row of ``plain`` is seen in one pass.  One exchanged
    point of the corpus exchanges ``group_size`` rows of ``noisy``, by the rule of deduplication.
    ``drops_masked``: a noised point with a mask contributes a zero gradient, so that a secret and its
    mask are a point there and a point gone.  ``marked``: π's spans say which tokens are noised.
    """

    plain: tuple[Path, ...]
    noisy: Path | None
    occurrences: NDArray[np.int64] | None = None
    group_size: int = 1
    drops_masked: bool = False
    marked: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder it reads."""
        return self.plain if self.noisy is None else (*self.plain, self.noisy)

    @property
    def relation(self) -> Relation:
        """What a secret and its mask are to the noised points."""
        return Relation.ADD_OR_REMOVE if self.drops_masked else Relation.SUBSTITUTION


def trainer_of(settings: TrainSettings, run: RunFolder) -> Trainer:
    """``crt`` is Algorithm 1 of the CRT paper; the others are its variant and its baselines.

    Formal guarantees: only ``crt``, ``crt-drop`` and ``dpsgd`` have one (``docs/guarantees.md``).
    """
    match settings.trainer:
        case "sgd":
            return Trainer(plain=(run.vault,), noisy=None)
        case "sdp":
            return Trainer(plain=(run.vault,), noisy=None, marked=True)
        case "redact-only":
            return Trainer(plain=(run.public, run.private), noisy=None)
        case "dpsgd":
            return Trainer(plain=(), noisy=run.vault)
    repeated = public_occurrences(run) if settings.public_epoch == "occurrences" else None
    return Trainer(
        plain=(run.public,),
        noisy=run.private,
        occurrences=repeated,
        # where no rule says how many, there will be no figure either: noise is then that of one row
        group_size=read_manifest(run)["dedup"]["group_size"] or 1,
        drops_masked=settings.trainer == "crt-drop",
    )


def steps_per_epoch(settings: TrainSettings) -> int:
    """⌈1/q⌉: in expectation each point is drawn once an epoch, whatever their number."""
    return math.ceil(1.0 / settings.sampling_rate)


def mechanism_of(settings: TrainSettings, trainer: Trainer) -> Mechanism | None:
    """The mechanism of every noisy step, its noise calibrated where the settings give none."""
    if trainer.noisy is None:
        return None

    def with_noise(noise_multiplier: float) -> Mechanism:
        shared = (settings.sampling_rate, noise_multiplier, settings.clip_norm, settings.expected_batch_size)
        if settings.truncated_batch_size is None or settings.dataset_size is None:
            return PoissonGaussian(*shared, noise=settings.noise)
        return TruncatedPoissonGaussian(
            *shared,
            noise=settings.noise,
            truncated_batch_size=settings.truncated_batch_size,
            points=settings.dataset_size,
        )

    return with_noise(settings.noise_multiplier or _calibrated(settings, trainer))


def _calibrated(settings: TrainSettings, trainer: Trainer) -> float:
    """The noise multiplier that reaches the target epsilon under the trainer's relation."""
    batch, slots = settings.truncated_batch_size, settings.dataset_size
    return calibrate_noise(
        settings.epsilon,
        settings.delta,
        settings.sampling_rate,
        settings.epochs * steps_per_epoch(settings),
        points=trainer.group_size,
        relation=trainer.relation,
        truncation=None if batch is None or slots is None else (batch, slots),
    )


def sampler_of(mechanism: Mechanism) -> Sampler:
    """The sampler that ``mechanism`` is accounted for."""
    if isinstance(mechanism, TruncatedPoissonGaussian):
        return TruncatedPoissonSampler(
            mechanism.sampling_rate, mechanism.truncated_batch_size, mechanism.points
        )
    return PoissonSampler(mechanism.sampling_rate)


@dataclass(frozen=True)
class Ingredients:
    """What every phase of one training shares."""

    settings: TrainSettings
    network: Network
    tokenizer: TextCodec
    stream: RandomStream

    def encode(self, *folders: Path) -> EncodedPoints:
        """The points of data folders, one after the other."""
        every: Iterator[str] = (text for folder in folders for text in texts(folder))
        return EncodedPoints.from_texts(every, self.tokenizer, self.settings.max_tokens)

    def placed(self, points: EncodedPoints) -> Placed:
        """``points``, whose batches lie where the network does."""
        return Placed(points, self.network.device)

    def descents(self) -> tuple[Descent, Descent]:
        """How steps without noise move the parameters, and how those with it do."""
        own, rule = self.settings, self.settings.optimizer
        first: Optimizer = make_optimizer(self.network, rule)
        second = first if own.optimizers == "one" else make_optimizer(self.network, rule)
        return Descent(first, own.learning_rate), Descent(second, own.private_learning_rate)

    def phases(
        self, trainer: Trainer, mechanism: Mechanism | None, ledger: Admission | None
    ) -> tuple[PlainPhase | None, NoisyPhase | None]:
        """The steps without noise and those with it, as far as the trainer has them."""
        first, second = self.descents()
        plain = self._plain(trainer, first) if trainer.plain else None
        noisy = None
        if trainer.noisy is not None and mechanism is not None and ledger is not None:
            noisy = self._noisy(trainer, trainer.noisy, second, mechanism, ledger)
        return plain, noisy

    def schedule(self, plain: PlainPhase | None, noisy: NoisyPhase | None) -> Schedule:
        """The order of the steps of both kinds; their step sizes follow it where they are to fall."""
        found = self._schedule(plain, noisy)
        if self.settings.learning_rate_schedule == "linear":
            for phase, steps in ((plain, found.plain), (noisy, found.noisy)):
                if phase is not None:
                    phase.fall_over(found.epochs * steps)
        return found

    def _schedule(self, plain: PlainPhase | None, noisy: NoisyPhase | None) -> Schedule:
        own = self.settings
        mixed = own.interleaving == "mixed" and noisy is not None
        with_noise = steps_per_epoch(own) if noisy is not None else 0
        without = 0
        if plain is not None and len(plain.rows):
            without = plain.steps_a_pass * math.ceil(own.minimum_plain_steps / plain.steps_a_pass)
            if mixed:
                without = round(with_noise * own.public_share / (1.0 - own.public_share))
        return Schedule(own.epochs, without, with_noise, mixed, self.stream)

    def _plain(self, trainer: Trainer, descent: Descent) -> PlainPhase:
        own, points = self.settings, self.encode(*trainer.plain)
        once = np.arange(len(points), dtype=np.int64)
        rows = once if trainer.occurrences is None else np.repeat(once, trainer.occurrences)
        if trainer.marked:
            return self._selective(trainer, descent, points, rows)
        return PlainPhase(
            self.network, descent, self.placed(points), rows, own.public_batch_size, self.stream
        )

    def _selective(
        self, trainer: Trainer, descent: Descent, points: EncodedPoints, rows: NDArray[np.int64]
    ) -> PlainPhase:
        from redactory.training.sdp import SelectivePhase, read_marks

        own = self.settings
        assert isinstance(self.tokenizer, Tokenizer)
        assert own.noise_multiplier is not None
        run = RunFolder(trainer.plain[0].parent)
        return SelectivePhase(
            self.network,
            descent,
            self.placed(points),
            rows,
            own.public_batch_size,
            self.stream,
            marks=read_marks(run, self.tokenizer, own.max_tokens, points),
            private_descent=Descent(descent.optimizer, own.private_learning_rate),
            noise_multiplier=own.noise_multiplier,
            clip_norm=own.clip_norm,
            state_clip_norm=own.state_clip_norm,
        )

    def _noisy(
        self, trainer: Trainer, folder: Path, descent: Descent, mechanism: Mechanism, ledger: Admission
    ) -> NoisyPhase:
        points = self.encode(folder)
        return NoisyPhase(
            network=self.network,
            descent=descent,
            points=self.placed(points),
            mechanism=mechanism,
            sampler=sampler_of(mechanism),
            physical_tokens=self.settings.physical_tokens,
            stream=self.stream,
            ledger=ledger,
            dropped=points.contain(self.tokenizer.mask_id) if trainer.drops_masked else None,
        )

"""The trainers: which points are learnt without noise, which with it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.accounting import calibrate_noise
from redactory.training.clipping import clipped_sum
from redactory.training.ledger import Admission, AnyMechanism
from redactory.training.ledgerfacts import relation_of
from redactory.training.mechanism import Mechanism, PoissonGaussian, TruncatedPoissonGaussian
from redactory.training.models.network import Network
from redactory.training.phases import Descent, NoisyPhase, PlainPhase, make_optimizer
from redactory.training.pieces import PieceMap, alone
from redactory.training.points import EncodedPoints, Placed, Points, class_numbers, classes_in
from redactory.training.runinput import PublicText, public_occurrences, texts
from redactory.training.sampling import PoissonSampler, Sampler, TruncatedPoissonSampler, steps_an_epoch
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import TextCodec, Tokenizer
from redactory.training.uedp.bounded import calibrated, points_affected
from redactory.training.uedp.federated import (
    FederatedPhase,
    federated_mechanism,
    federated_phase,
    federated_steps_per_epoch,
)
from redactory.training.uedp.local_update import UpdateMap
from redactory.training.uedp.units import Learnt, Originals, learnt, learnt_of, pretraining_of
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.settings import FEDERATED_TRAINERS
from redactory.training.walk import Schedule

_POINTS_NOISED = ("crt", "crt-drop", "dpsgd", "uedp-bounded")
"""The trainers whose noisy steps sum clipped gradients of single points."""


@dataclass(frozen=True)
class Trainer:
    """The folders a trainer learns from: ``plain`` without noise, ``noisy`` with it.

    ``occurrences``, where given, says how often each row of ``plain`` is seen in one pass.  One exchanged
    point of the corpus exchanges ``group_size`` rows of ``noisy``, by the rule of deduplication.
    ``marked``: π's spans say which tokens are noised.
    ``units``: points are what users and entities leave of the vault (:class:`Originals`), and a unit's
    points are there in one world and null in the other.
    """

    plain: tuple[Path, ...]
    noisy: Path | None
    occurrences: NDArray[np.int64] | None = None
    group_size: int = 1
    marked: bool = False
    units: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder whose text it learns from."""
        return self.plain if self.noisy is None else (*self.plain, self.noisy)


def trainer_of(settings: TrainSettings, run: RunFolder) -> Trainer:
    """``crt`` is Algorithm 1 of the CRT paper; the others are its variant and its baselines.

    Formal guarantees: only ``crt``, ``crt-drop`` and ``dpsgd`` have one (``docs/guarantees.md``), and, for
    users and entities, ``uedp-bounded``, ``uedp-alg1`` and ``user-level`` (``docs/explanation/uedp.md``).
    """
    match settings.trainer:
        case "de-identification" | "noiseless":
            return Trainer(plain=(run.vault,), noisy=None, units=True)
        case "uedp-alg1" | "user-level":
            return Trainer(plain=(), noisy=run.vault, units=True)
        case "uedp-bounded":
            rows = points_affected(settings) or 1  # without a cap there is no figure for a unit either
            return Trainer(plain=(), noisy=run.vault, group_size=rows, units=True)
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
    )


def steps_per_epoch(settings: TrainSettings) -> int:
    """⌈1/q⌉: in expectation each point (or user) is drawn once an epoch, whatever their number."""
    if settings.trainer in FEDERATED_TRAINERS:
        return federated_steps_per_epoch(settings.federated)
    return steps_an_epoch(settings.sampling_rate)


def processes_of(settings: TrainSettings) -> int:
    """How many processes have pieces of a step to share out: one where nothing is cut into pieces."""
    cut = settings.trainer in _POINTS_NOISED or (
        settings.public_micro_batch_size is not None and settings.trainer != "sdp"
    )
    return settings.workers if cut else 1


def mechanism_of(settings: TrainSettings, trainer: Trainer) -> AnyMechanism | None:
    """The mechanism of every noisy step, its noise calibrated where the settings give none."""
    if trainer.noisy is None:
        return None
    if settings.trainer in FEDERATED_TRAINERS:
        return federated_mechanism(settings)

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
    if settings.trainer == "uedp-bounded":
        return calibrated(settings, settings.epochs * steps_per_epoch(settings))
    batch, slots = settings.truncated_batch_size, settings.dataset_size
    return calibrate_noise(
        settings.epsilon,
        settings.delta,
        settings.sampling_rate,
        settings.epochs * steps_per_epoch(settings),
        points=trainer.group_size,
        relation=relation_of(settings),
        truncation=None if batch is None or slots is None else (batch, slots),
    )


def sampler_of(mechanism: Mechanism) -> Sampler:
    """The sampler that ``mechanism`` is accounted for."""
    if isinstance(mechanism, TruncatedPoissonGaussian):
        return TruncatedPoissonSampler(
            mechanism.sampling_rate, mechanism.truncated_batch_size, mechanism.points
        )
    return PoissonSampler(mechanism.sampling_rate)


# What the phases of one training are made of: its points, encoded, its optimizers, its order of steps.


Noisy = NoisyPhase | FederatedPhase
"""The steps with noise: on a sample of points, or on one of users."""


@dataclass(frozen=True)
class Ingredients:
    """What every phase of one training shares.

    ``originals`` are the points of a trainer with units, ``public_text`` what it is pretrained on; ``every``
    is the map that users' local updates are computed by, ``pieces`` that of the pieces of all other steps.
    """

    settings: TrainSettings
    network: Network
    tokenizer: TextCodec
    stream: RandomStream
    originals: Originals | None = None
    public_text: PublicText | None = None
    every: UpdateMap = map
    pieces: PieceMap = alone

    def encode(self, *folders: Path) -> EncodedPoints:
        """The points of data folders, one after the other."""
        every: Iterator[str] = (text for folder in folders for text in texts(folder))
        return EncodedPoints.from_texts(every, self.tokenizer, self.settings.max_tokens)

    def pretraining(self) -> PlainPhase | None:
        """Passes over public text before all other steps, with an optimizer of their own; None without."""
        own = self.settings
        if self.public_text is None or not own.pretraining_epochs:
            return None
        found = pretraining_of(self.public_text, own, self.tokenizer)
        descent = Descent(make_optimizer(self.network, own.optimizer), own.learning_rate)
        return self._plain_phase(descent, found.points, found.rows, purpose="pretraining")

    def _plain_phase(
        self, descent: Descent, points: Points, rows: NDArray[np.int64], purpose: str = "plain"
    ) -> PlainPhase:
        return PlainPhase(
            self.network,
            descent,
            self.placed(points),
            rows,
            self.settings.public_batch_size,
            self.stream,
            purpose=purpose,
            micro_batch=self.settings.public_micro_batch_size,
            every=self.pieces,
        )

    def placed(self, points: Points) -> Placed:
        """``points``, whose batches lie where the network does."""
        return Placed(points, self.network.device)

    def descents(self) -> tuple[Descent, Descent]:
        """How steps without noise move the parameters, and how those with it do."""
        own, rule = self.settings, self.settings.optimizer
        first: Optimizer = make_optimizer(self.network, rule)
        second = first if own.optimizers == "one" else make_optimizer(self.network, rule)
        return Descent(first, own.learning_rate), Descent(second, own.private_learning_rate)

    def phases(
        self, trainer: Trainer, mechanism: AnyMechanism | None, ledger: Admission | None
    ) -> tuple[PlainPhase | None, Noisy | None]:
        """The steps without noise and those with it, as far as the trainer has them."""
        first, second = self.descents()
        plain = self._plain(trainer, first) if trainer.plain else None
        noisy: Noisy | None = None
        if trainer.noisy is not None and mechanism is not None and ledger is not None:
            if isinstance(mechanism, PoissonUsersGaussian):
                noisy = self._federated(second, mechanism, ledger)
            else:
                noisy = self._noisy(trainer, trainer.noisy, second, mechanism, ledger)
        return plain, noisy

    def schedule(
        self, plain: PlainPhase | None, noisy: Noisy | None, pretraining: PlainPhase | None = None
    ) -> Schedule:
        """The order of the steps of all kinds; their step sizes follow it where they are to fall."""
        found = self._schedule(plain, noisy)
        if pretraining is not None:
            before = self.settings.pretraining_epochs * pretraining.steps_a_pass
            found = dataclasses.replace(found, before=before)
        if self.settings.learning_rate_schedule == "linear":
            for phase, steps in ((plain, found.plain), (noisy, found.noisy)):
                if phase is not None:
                    phase.fall_over(found.epochs * steps)
        return found

    def _schedule(self, plain: PlainPhase | None, noisy: Noisy | None) -> Schedule:
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
        if trainer.units:
            found = self._learnt()
            return self._plain_phase(descent, found.points, found.rows)
        points = self.encode(*trainer.plain)
        once = np.arange(len(points), dtype=np.int64)
        rows = once if trainer.occurrences is None else np.repeat(once, trainer.occurrences)
        if trainer.marked:
            return self._selective(trainer, descent, points, rows)
        return self._plain_phase(descent, points, rows)

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
        found = self._learnt() if trainer.units else self._private(folder)
        return NoisyPhase(
            network=self.network,
            descent=descent,
            points=self.placed(found.points),
            mechanism=mechanism,
            sampler=sampler_of(mechanism),
            physical_tokens=self.settings.physical_tokens,
            stream=self.stream,
            ledger=ledger,
            dropped=found.silent,
            clipped_sum=partial(clipped_sum, every=self.pieces),
        )

    def _federated(
        self, descent: Descent, mechanism: PoissonUsersGaussian, ledger: Admission
    ) -> FederatedPhase:
        own, originals = self.settings, self.originals
        assert originals is not None
        assert originals.incidence is not None
        return federated_phase(
            own.federated,
            own.physical_tokens,
            self.network,
            descent,
            self.placed(self._learnt().points),
            originals.incidence,
            mechanism,
            self.stream,
            ledger,
            self.every,
        )

    def _private(self, folder: Path) -> Learnt:
        own = self.settings
        return learnt(
            texts(folder), own, self.tokenizer, lambda: class_numbers(classes_in(folder), own.classes)
        )

    def _learnt(self) -> Learnt:
        assert self.originals is not None
        return learnt_of(self.originals, self.settings, self.tokenizer)

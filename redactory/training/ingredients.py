"""What the phases of one training are made of: its points, encoded, its optimizers, its order of steps."""

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
from redactory.training.classes import class_numbers, classes_in
from redactory.training.clipping import clipped_sum
from redactory.training.ledger import Admission
from redactory.training.mechanism import Mechanism
from redactory.training.mechanism_record import AnyMechanism
from redactory.training.models.network import Network
from redactory.training.phases import Descent, NoisyPhase, PlainPhase, make_optimizer
from redactory.training.pieces import PieceMap, alone
from redactory.training.points import EncodedPoints, Placed, Points
from redactory.training.publictext import PublicText
from redactory.training.runinput import texts
from redactory.training.schedule import Schedule
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import TextCodec, Tokenizer
from redactory.training.trainers import Trainer, sampler_of, steps_per_epoch
from redactory.training.uedp.federated import FederatedPhase, federated_phase
from redactory.training.uedp.learnt import Learnt, learnt, learnt_of, pretraining_of
from redactory.training.uedp.local_map import UpdateMap
from redactory.training.uedp.originals import Originals
from redactory.training.units.federated_mechanism import PoissonUsersGaussian

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

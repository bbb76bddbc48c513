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
from redactory.training.clipping import clipped_sum
from redactory.training.ledger import Admission
from redactory.training.mechanism import TruncatedPoissonGaussian
from redactory.training.models.network import Network
from redactory.training.phases import Descent, NoisyPhase, Phase, PlainPhase, make_optimizer
from redactory.training.pieces import PieceMap, alone
from redactory.training.points import EncodedPoints, Placed, Points, class_numbers, classes_in
from redactory.training.runinput import PublicText, texts
from redactory.training.sampling import PoissonSampler, Sampler, TruncatedPoissonSampler
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.tokenizer import TextCodec
from redactory.training.uedp.local_update import UpdateMap
from redactory.training.uedp.units import Learnt, Originals, learnt, learnt_of, pretraining_of
from redactory.training.units.federated_mechanism import AnyMechanism, PoissonUsersGaussian
from redactory.training.walk import Schedule


def sampler_of(mechanism: AnyMechanism) -> Sampler:
    """The sampler of points that ``mechanism`` is accounted for."""
    if isinstance(mechanism, TruncatedPoissonGaussian):
        return TruncatedPoissonSampler(
            mechanism.sampling_rate, mechanism.truncated_batch_size, mechanism.points
        )
    assert not isinstance(mechanism, PoissonUsersGaussian)
    return PoissonSampler(mechanism.sampling_rate)


@dataclass(frozen=True)
class Ingredients:
    """What every phase of one training on ``run`` shares.

    ``originals`` are the points of a trainer with units, ``public_text`` what it is pretrained on; ``every``
    is the map that users' local updates are computed by, ``pieces`` that of the pieces of all other steps.
    """

    run: RunFolder
    settings: TrainSettings
    network: Network
    tokenizer: TextCodec
    stream: RandomStream
    originals: Originals | None = None
    public_text: PublicText | None = None
    every: UpdateMap = map
    pieces: PieceMap = alone

    def pretraining(self) -> PlainPhase | None:
        """Passes over public text before all other steps, with an optimizer of their own; None without."""
        own = self.settings
        if self.public_text is None or not own.pretraining_epochs:
            return None
        found = pretraining_of(self.public_text, own, self.tokenizer)
        descent = Descent(make_optimizer(self.network, own.optimizer), own.learning_rate)
        return self.plain_phase(descent, found.points, found.rows, purpose="pretraining")

    def phases(
        self, mechanism: AnyMechanism | None, ledger: Admission | None
    ) -> tuple[PlainPhase | None, Phase | None]:
        """The steps without noise and those with it, as far as the trainer has them."""
        trainer, (first, second) = TRAINERS[self.settings.trainer], self.descents()
        plain = trainer.plain_steps(self, first)
        if mechanism is None or ledger is None:
            return plain, None
        return plain, trainer.noisy_steps(self, second, mechanism, ledger)

    def descents(self) -> tuple[Descent, Descent]:
        """How steps without noise move the parameters, and how those with it do."""
        own, rule = self.settings, self.settings.optimizer
        first: Optimizer = make_optimizer(self.network, rule)
        second = first if own.optimizers == "one" else make_optimizer(self.network, rule)
        return Descent(first, own.learning_rate), Descent(second, own.private_learning_rate)

    def schedule(
        self, plain: PlainPhase | None, noisy: Phase | None, pretraining: PlainPhase | None = None
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

    def _schedule(self, plain: PlainPhase | None, noisy: Phase | None) -> Schedule:
        own = self.settings
        mixed = own.interleaving == "mixed" and noisy is not None
        with_noise = TRAINERS[own.trainer].steps(own) // own.epochs if noisy is not None else 0
        without = 0
        if plain is not None and len(plain.rows):
            without = plain.steps_a_pass * math.ceil(own.minimum_plain_steps / plain.steps_a_pass)
            if mixed:
                without = round(with_noise * own.public_share / (1.0 - own.public_share))
        return Schedule(own.epochs, without, with_noise, mixed, self.stream)

    def encode(self, *folders: Path) -> EncodedPoints:
        """The points of data folders, one after the other."""
        every: Iterator[str] = (text for folder in folders for text in texts(folder))
        return EncodedPoints.from_texts(every, self.tokenizer, self.settings.max_tokens)

    def private(self, folder: Path) -> Learnt:
        """The points of a data folder as the task reads them."""
        own = self.settings
        return learnt(
            texts(folder),
            own,
            self.tokenizer,
            lambda: class_numbers(classes_in(folder), own.classes),
            TRAINERS[own.trainer].drops_masked,
        )

    def learnt(self) -> Learnt:
        """The originals as the task reads them."""
        assert self.originals is not None
        return learnt_of(self.originals, self.settings, self.tokenizer)

    def placed(self, points: Points) -> Placed:
        """``points``, whose batches lie where the network does."""
        return Placed(points, self.network.device)

    def passes(self, points: int, often: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The rows of one pass over so many ``points``: each once, or as ``often`` as is said."""
        once = np.arange(points, dtype=np.int64)
        return once if often is None else np.repeat(once, often)

    def plain_phase(
        self, descent: Descent, points: Points, rows: NDArray[np.int64], purpose: str = "plain"
    ) -> PlainPhase:
        """Steps without noise over ``rows`` of ``points``."""
        return PlainPhase(
            self.network,
            descent,
            self.placed(points),
            rows,
            self.settings.public_batch_size,
            self.stream,
            purpose=purpose,
        )

    def noisy_phase(
        self, descent: Descent, found: Learnt, mechanism: AnyMechanism, ledger: Admission
    ) -> NoisyPhase:
        """Steps with noise on samples of ``found``."""
        assert not isinstance(mechanism, PoissonUsersGaussian)
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

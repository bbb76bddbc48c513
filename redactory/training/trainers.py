"""The trainers: which points are learnt without noise, which with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.accounting import calibrate_noise
from redactory.training.ledgerfacts import relation_of
from redactory.training.mechanism import Mechanism, PoissonGaussian, TruncatedPoissonGaussian
from redactory.training.mechanism_record import AnyMechanism
from redactory.training.runinput import public_occurrences
from redactory.training.sampling import PoissonSampler, Sampler, TruncatedPoissonSampler, steps_an_epoch
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounded import calibrated, points_affected
from redactory.training.uedp.federated_noise import federated_mechanism, federated_steps_per_epoch
from redactory.training.units.federated_settings import FEDERATED_TRAINERS

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

"""From settings to the mechanism of a training that samples users: its normaliser, and its noise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import calibrate_noise
from redactory.training.accounting.bounds import LARGEST_EPSILON
from redactory.training.accounting.calibration import Search, noise_for
from redactory.training.mechanism import Relation
from redactory.training.sampling import steps_an_epoch
from redactory.training.uedp.algorithm1_accounting import paper_noise_ratio, patent_noise_ratio
from redactory.training.uedp.federated_figures import figures_of
from redactory.training.units.federated_mechanism import EntitySampling, PoissonUsersGaussian
from redactory.training.units.federated_settings import FederatedSettings
from redactory.training.units.relations import Protect

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings

_MOST_NOISE, _TOLERANCE, _ROUGH = 1e9, 1e-4, 8.0


def federated_mechanism(settings: TrainSettings) -> PoissonUsersGaussian:
    """The mechanism of ``uedp-alg1`` or ``user-level``, its noise calibrated where the settings give none.

    ``ConfigurationError`` where |U| is not declared, or noise is given twice; ``GuaranteeError`` where no
    noise reaches the target.
    """
    own = settings.federated
    if own.users is None:
        raise ConfigurationError("train.federated.users: the public number of users is needed")
    quiet = PoissonUsersGaussian(
        sampling_rate=own.user_rate,
        noise_multiplier=1.0,
        clip_norm=settings.clip_norm,
        normaliser=normaliser(own, settings.trainer),
        noise=settings.noise,
        users=own.users,
        entities=_sampling(own) if settings.trainer == "uedp-alg1" else None,
    )
    given = _given(settings, own.users)
    steps = settings.epochs * federated_steps_per_epoch(own)
    protect = protected(settings)
    ratio = given or calibrated(quiet, settings.epsilon, settings.delta, steps, protect)
    return replace(quiet, noise_multiplier=ratio)


def federated_steps_per_epoch(settings: FederatedSettings) -> int:
    """⌈1/q_u⌉: in expectation each user is drawn once an epoch, whatever their number."""
    return steps_an_epoch(settings.user_rate)


def protected(settings: TrainSettings) -> Protect:
    """What the figure of a training is for: DP-FedAvg hides users and nothing else."""
    return Protect.USERS if settings.trainer == "user-level" else settings.units.protect


def normaliser(settings: FederatedSettings, trainer: str) -> float:
    """q_u·W_u·(q_e·W_e + q_s·W_s) (equation 4), constants all; W_u = |U| with every w_u = 1.

    The last factor is 1 where no W_e is given, and for ``user-level``.
    """
    assert settings.users is not None
    mean = settings.user_rate * settings.users
    if trainer != "uedp-alg1" or settings.total_entity_weight is None:
        return mean
    extended = settings.total_extended_weight if settings.estimator == "f_E+" else None
    return mean * (
        settings.entity_rate * settings.total_entity_weight + settings.extended_rate * (extended or 0.0)
    )


def calibrated(
    quiet: PoissonUsersGaussian, target: float, delta: float, steps: int, protect: Protect
) -> float:
    """About the least ζ >= 0.5 whose sound epsilon over ``steps`` steps is at most ``target``."""
    if protect is Protect.USERS:
        rate = quiet.sampling_rate
        return calibrate_noise(target, delta, rate, steps, relation=Relation.ADD_OR_REMOVE)

    def spent(coarser: float, ratio: float) -> float:
        tried = replace(quiet, noise_multiplier=ratio)
        found = figures_of(tried, steps, delta, protect, coarser).sound.epsilon
        return LARGEST_EPSILON if found is None else max(found, 1e-9)

    search = Search(1.0, 0.5, _MOST_NOISE, _TOLERANCE)
    noise = noise_for(target, partial(spent, 1.0), partial(spent, _ROUGH), search)
    if noise is None:
        raise GuaranteeError("no noise reaches the target epsilon: raise train.epsilon, or lower M")
    return noise


def _given(settings: TrainSettings, users: int) -> float | None:
    """ζ where the settings give it: z is clips in DP-FedAvg, a multiple of expected users in Algorithm 1."""
    own = settings.federated
    if own.noise_scale is None:
        return settings.noise_multiplier
    if settings.noise_multiplier is not None:
        raise ConfigurationError("train.noise_multiplier and train.federated.noise_scale: keep one of them")
    if settings.trainer == "user-level":
        return own.noise_scale
    if own.noise_form == "patent":
        return patent_noise_ratio(own.noise_scale, users)
    return paper_noise_ratio(own.noise_scale, own.user_rate, users)


def _sampling(own: FederatedSettings) -> EntitySampling:
    return EntitySampling(
        entity_rate=own.entity_rate,
        extended_rate=own.extended_rate,
        estimator=own.estimator,
        rule=own.rule,
        max_users_per_entity=own.max_users_per_entity,
        entity_weight=own.entity_weight,
        extended_weight=own.extended_weight,
    )

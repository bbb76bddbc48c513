"""``uedp-bounded``: which points it keeps, what it states of itself, and how much noise it needs.

``docs/explanation/uedp.md``, "What is promised instead".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanism import Mechanism, PoissonGaussian
from redactory.training.uedp.bounded_accounting import BoundedTraining, Conditions, affected, calibrate
from redactory.training.uedp.bounding import R_LOC, Bounded, bound
from redactory.training.uedp.incidence import Incidence
from redactory.training.units.settings import Adjacency, Constants

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


def bounded(incidence: Incidence, settings: TrainSettings) -> Bounded:
    """The selection of ``settings`` on ``incidence``, its caps counted again.

    Formal guarantees: a function of the hypergraph and of point ids alone (condition (b)).
    """
    own = settings.bounding
    adjacency = Adjacency.USER_REMOVAL if own.rule == R_LOC else Adjacency.FIXED_GRAPH
    return bound(incidence, own.k_user, own.k_entity, own.rule, adjacency, own.entities_per_point)


def bounded_training(settings: TrainSettings, noise_multiplier: float, steps: int) -> BoundedTraining:
    """The constants that the figures of ``settings`` are computed from."""
    own = settings.bounding
    return BoundedTraining(
        settings.sampling_rate,
        noise_multiplier,
        steps,
        own.k_user,
        own.k_entity,
        settings.units.protect,
        own.rule,
        settings.units.missed_mentions,
    )


def conditions_of(settings: TrainSettings, mechanism: Mechanism | None) -> Conditions:
    """Conditions (a) to (e) as this trainer meets them, whatever the corpus.

    (a) copies are points of their own, or :func:`read_incidence` has listed every holder, else it refused;
    (b), (c) and (e) by construction; (d) by the words of the card.
    """
    return Conditions(
        copies_accounted=True,
        ordered_by_ids=True,
        null_is_zero=True,
        mentions_listed=True,
        only_noisy_steps=settings.trainer == "uedp-bounded",
        poisson=isinstance(mechanism, PoissonGaussian),
        constants=Constants.PUBLIC if settings.bounding.constants == "public" else Constants.GRAPH,
    )


def calibrated(settings: TrainSettings, steps: int) -> float:
    """The noise multiplier that reaches the target epsilon under C1."""
    training = bounded_training(settings, 1.0, steps)
    held = conditions_of(settings, PoissonGaussian(settings.sampling_rate, 1.0, 1.0, 1.0))
    return calibrate(settings.epsilon, training, held, settings.delta)


def points_affected(settings: TrainSettings) -> int | None:
    """K: kept points that a protected unit has at most; None where no cap is enforced."""
    try:
        return affected(bounded_training(settings, 1.0, 0)).gone
    except GuaranteeError:
        return None

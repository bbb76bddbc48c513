"""What ``uedp-alg1`` and ``user-level`` would cost: users are sampled, the update of each is clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from redactory.training.guarantee_figures import Figures, require_reasons
from redactory.training.uedp.algorithm1 import (
    NO_SHARE,
    Published,
    Rule,
    confirmed_figure,
    figure_of,
    figures_of,
    noise_scale,
    paper_noise_ratio,
    patent_noise_ratio,
    spread_curve,
)
from redactory.training.uedp.federated import calibrated
from redactory.training.uedp.forecast import common_problems, require, steps_curve
from redactory.training.uedp.published import AS_PUBLISHED, Estimator, published_epsilon, published_rate
from redactory.training.units.federated_mechanism import EntitySampling, PoissonUsersGaussian
from redactory.training.units.settings import Protect

ASSUMES = (
    "every user throws a coin of her own with the user rate in each step",
    "a user's whole update, all tensors and local steps, is clipped; weights of at most 1 and the normaliser "
    "are public constants",
    "nothing else is trained without noise",
)
ASSUMES_ENTITIES = "every entity, and every point without one, throws a coin of its own in each step"
NO_SECOND = "the second accountant does not know a step of which the coins of users are told"
WHY_NOT = {
    Estimator.F_E: "takes the rate of entities for an amplification, the expected number of users for a "
    "bound, and one clip for what is two",
    Estimator.F_E_PLUS: "takes the rate of entities and the share of sentences with one for an "
    "amplification, the expected number of users for a bound, and one clip for what is two",
    Estimator.USER_LEVEL: "in the reference code users are not sampled by coins, and each tensor is clipped "
    "for itself",
}


@dataclass(frozen=True)
class FederatedTraining:
    """A training that is thought of: its mechanism, ``steps`` T, and who is to be hidden.

    ``sensitive_share`` is the share of sentences with an entity, for the figure as published of f_E+ alone.
    """

    mechanism: PoissonUsersGaussian
    steps: int
    delta: float
    protect: Protect
    sensitive_share: float | None = None
    noise_calibrated: bool = False
    noise_form: str = "paper"

    @property
    def trainer(self) -> str:
        """DP-FedAvg samples no entities."""
        return "user-level" if self.mechanism.entities is None else "uedp-alg1"

    @property
    def published_noise(self) -> float:
        """z of the papers: ζ over q_u|U| + 1, or in the patent |U| + 1; ζ itself in DP-FedAvg."""
        return noise_scale(self.mechanism, self.noise_form)


@dataclass(frozen=True)
class FederatedRequest:
    """The same as numbers, of which exactly one of ``noise`` and ``target`` (epsilon) is given.

    ``noise`` is z of the papers: the noise on the sum of updates is ζ = z(q_u|U| + 1) clips (``paper``) or
    z(|U| + 1) (``patent``) in ``uedp-alg1``, and z clips in ``user-level``.  ``users`` |U| is a public
    constant; ``max_users_per_entity`` M a cap that the training enforces, |U| where it is absent;
    ``extended_rate`` q_s of points without an entity.
    """

    trainer: Literal["uedp-alg1", "user-level"]
    user_rate: float
    steps: int
    delta: float = 1e-5
    noise: float | None = None
    target: float | None = None
    users: int | None = None
    entity_rate: float = 0.5
    extended_rate: float = 1.0
    sensitive_share: float | None = None
    max_users_per_entity: int | None = None
    estimator: Literal["f_E", "f_E+"] = "f_E+"
    selection: Literal["any", "all"] = "any"
    noise_form: Literal["paper", "patent"] = "paper"
    protect: str = ""

    def training(self) -> FederatedTraining:
        """The training, its noise calibrated where there is a target."""
        protect = Protect(self.protect or ("users" if self.trainer == "user-level" else "both"))
        quiet = PoissonUsersGaussian(
            sampling_rate=self.user_rate,
            noise_multiplier=1.0,
            clip_norm=1.0,
            normaliser=1.0,
            users=self.users or 1,
            entities=None if self.trainer == "user-level" else self._entities,
        )
        if self.noise is not None:
            ratio = self._ratio(self.noise)
        else:
            assert self.target is not None
            ratio = calibrated(quiet, self.target, self.delta, self.steps, protect)
        mechanism = replace(quiet, noise_multiplier=ratio)
        return FederatedTraining(
            mechanism,
            self.steps,
            self.delta,
            protect,
            self.sensitive_share,
            self.noise is None,
            self.noise_form,
        )

    @property
    def _entities(self) -> EntitySampling:
        return EntitySampling(
            self.entity_rate, self.extended_rate, self.estimator, self.selection, self.max_users_per_entity
        )

    def _ratio(self, noise: float) -> float:
        if self.trainer == "user-level":
            return noise
        if self.noise_form == "patent":
            return patent_noise_ratio(noise, self.users or 1)
        return paper_noise_ratio(noise, self.user_rate, self.users or 1)


def forecast_federated(request: FederatedRequest, curves: bool = False) -> dict[str, Any]:
    """Figures of ``request`` as JSON; with ``curves`` also epsilon against steps (``steps_curve``).

    ``ConfigurationError`` where the numbers are not those of a training, ``GuaranteeError`` where no noise
    reaches the target or the accountants disagree.
    """
    _check(request)
    told = federated_forecast(request.training(), curves)
    if request.users is None:
        told |= {"users": None, "expected_users": None, "noise_to_batch": None}
    return told


def federated_forecast(training: FederatedTraining, curves: bool = False) -> dict[str, Any]:
    """As :func:`forecast_federated`, of a training whose noise is known."""
    terms, found = (training.mechanism, training.steps, training.delta, training.protect), Figures()
    figure, second = confirmed_figure(*terms)
    found.put("epsilon_sound", figure.epsilon, second, figure.reason or "")
    published = _published(training)
    value = None if published.value is None else published.value["epsilon"]
    found.put("epsilon_as_published", value, None, published.reason or "")
    if second is None:
        found.reasons["second"] = NO_SECOND
    require_reasons(found.values, found.reasons)
    told = {
        **_told(training),
        **_extent(training),
        "adjacency": figure.relation,
        "epsilon": figure.epsilon,
        **found.values,
        "curve": {str(size): epsilon for size, epsilon in spread_curve(*terms).items()},
        "as_published": published.value,
        "reasons": found.reasons,
        "second": found.second,
        "assumes": [*ASSUMES, *([] if training.mechanism.entities is None else [ASSUMES_ENTITIES])],
    }
    if curves:
        told["steps_curve"] = steps_curve(training.steps, *_by_steps(training))
    return told


def _by_steps(
    training: FederatedTraining,
) -> tuple[Callable[[int], float | None], Callable[[int], float | None]]:
    def published(steps: int) -> float | None:
        value = _published(replace(training, steps=steps)).value
        return None if value is None else float(value["epsilon"])

    return (
        lambda steps: figure_of(training.mechanism, steps, training.delta, training.protect).epsilon,
        published,
    )


def _told(training: FederatedTraining) -> dict[str, Any]:
    own = training.mechanism
    expected = own.users * own.sampling_rate
    told: dict[str, Any] = {
        "trainer": training.trainer,
        "protect": training.protect.value,
        "delta": training.delta,
        "users": own.users,
        "user_rate": own.sampling_rate,
        "expected_users": expected,
        "steps": training.steps,
        "noise": training.published_noise,
        "noise_calibrated": training.noise_calibrated,
        "noise_multiplier": own.noise_multiplier,
        "noise_to_batch": own.noise_multiplier / expected,
    }
    if own.entities is not None:
        told |= {
            "entity_rate": own.entities.entity_rate,
            "extended_rate": own.entities.extended_rate,
            "estimator": own.entities.estimator,
            "selection": own.entities.rule,
        }
    return told


def _extent(training: FederatedTraining) -> dict[str, Any]:
    """M with its source and the bounds below the figure; K = 1 update where users alone are hidden."""
    if training.protect is Protect.USERS:
        return {"K": 1}
    every = figures_of(training.mechanism, training.steps, training.delta, training.protect)
    return {
        "M": None if every.spread is None else every.spread.users,
        "M_source": None if every.spread is None else every.spread.source.value,
        "bounds": {"revealed": every.revealed, "chain": every.chain, "all_rule": every.all_rule},
    }


def _published(training: FederatedTraining) -> Published:
    """What the papers would print, under their label; in ``all``, of every estimator that can be computed."""
    own, share = training.mechanism, training.sensitive_share
    entity_rate = 1.0 if own.entities is None else own.entities.entity_rate
    estimators = [Estimator.USER_LEVEL]
    if own.entities is not None:
        estimators = [*estimators, Estimator.F_E, *([] if share is None else [Estimator.F_E_PLUS])]
    every = {}
    for one in estimators:
        rate = published_rate(one, own.sampling_rate, entity_rate, 1.0 if share is None else share)
        every[one.value] = published_epsilon(rate, training.published_noise, training.steps, training.delta)
    main = Estimator.USER_LEVEL if own.entities is None else Estimator(own.entities.estimator)
    if main.value not in every:
        return Published(None, NO_SHARE)
    value = {
        "note": AS_PUBLISHED,
        "estimator": main.value,
        "epsilon": every[main.value].epsilon,
        "sampling_rate": every[main.value].sampling_rate,
        "noise_scale": training.published_noise,
        "why_not": WHY_NOT[main],
        "all": {name: figure.epsilon for name, figure in every.items()},
    }
    return Published(value, None)


def _check(request: FederatedRequest) -> None:
    alone = request.trainer == "user-level"
    share, cap, users = request.sensitive_share, request.max_users_per_entity, request.users
    require(
        [
            *common_problems(request.steps, request.delta, request.noise, request.target),
            (not 0.0 < request.user_rate <= 1.0, "the user rate lies between 0 and 1"),
            (not 0.0 < request.entity_rate <= 1.0, "the entity rate lies between 0 and 1"),
            (not 0.0 <= request.extended_rate <= 1.0, "the extended rate lies between 0 and 1"),
            (share is not None and not 0.0 <= share <= 1.0, "the sensitive share lies between 0 and 1"),
            (users is not None and users < 1, "users: at least one"),
            (not alone and users is None, "users: the public number of users |U| is needed"),
            (request.selection not in {one.value for one in Rule}, "rule: any or all"),
            (request.estimator not in ("f_E", "f_E+"), "estimator: f_E or f_E+"),
            (request.noise_form not in ("paper", "patent"), "noise form: paper or patent"),
            (
                request.protect not in {"", *(one.value for one in Protect)},
                "protect: users, entities, both or either",
            ),
            (alone and request.protect not in ("", "users"), "user-level protects users alone"),
            (alone and cap is not None, "max users per entity: entities are not protected by user-level"),
            (
                cap is not None and not 1 <= cap <= (users or cap),
                "max users per entity: from 1 to the number of users",
            ),
        ]
    )

"""What hiding users and entities would cost, from numbers alone: shared parts of the three forecasts.

Formal guarantees: a forecast's epsilon is the one that the card would state of such a training, by the same
code, *provided that the training keeps the conditions* that the forecast lists; the card says whether it
did.  Nothing is read from a corpus (``docs/explanation/uedp.md``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending
from redactory.training.accounting.mixtures import group_curve
from redactory.training.accounting.second_opinion import removal_bracket, stated
from redactory.training.guarantee_figures import Figures, require_reasons
from redactory.training.mechanism import PoissonGaussian
from redactory.training.uedp.bounded_accounting import (
    BoundedTraining,
    Conditions,
    affected,
    calibrate,
    curve,
    local,
    suggested_cap,
    zero_out,
)
from redactory.training.uedp.bounding import GREEDY, NONE, R_LOC, RULES
from redactory.training.uedp.claim import NOT_PUBLISHED, ONLY_R_LOC
from redactory.training.units.settings import Adjacency, Constants, Figure, Protect, relation

SECOND_WORTH = 24.0
"""Largest K/σ at which the main figure is that of the exact pair, which a second accountant can confirm."""
LARGEST_SECOND = 500.0
_CURVE_POINTS = 8


def require(problems: Sequence[tuple[bool, str]]) -> None:
    """``ConfigurationError`` with the words of every problem that there is."""
    found = [words for is_wrong, words in problems if is_wrong]
    if found:
        raise ConfigurationError("; ".join(found))


def common_problems(
    steps: int, delta: float, noise: float | None, target: float | None
) -> list[tuple[bool, str]]:
    """What every forecast asks of its numbers."""
    return [
        ((noise is None) == (target is None), "give either the noise or a target epsilon"),
        (steps < 1, "there is at least one step"),
        (not 0.0 < delta < 1.0, "delta lies between 0 and 1"),
        (noise is not None and not 0.0 < noise < math.inf, "the noise is positive"),
        (target is not None and not 0.0 < target < math.inf, "epsilon must be more than 0, and finite"),
    ]


def put_group(
    found: Figures, name: str, figure: Figure, rate: float, sigma: float, steps: int, points: int
) -> None:
    """Take ``figure``, of ``points`` K sampled with ``rate`` q, once the second accountant confirms it.

    Where K/σ is over 24, or epsilon over 500, none is asked: the figure is then a bound of the exact pair's,
    and protects nobody.
    """
    if figure.epsilon is None or figure.epsilon >= LARGEST_SECOND or points / sigma > SECOND_WORTH:
        found.put(name, figure.epsilon, None, figure.reason or "")
        found.alone += [name] if figure.epsilon is not None else []
        return
    spent = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), steps),)
    main = group_curve(points, rate, sigma, steps)
    found.state(name, stated(main, lambda delta: removal_bracket(spent, delta, points), figure.delta, name))


def steps_curve(
    steps: int, sound: Callable[[int], float | None], published: Callable[[int], float | None]
) -> list[dict[str, Any]]:
    """Rows of ``steps``, ``epsilon`` and ``epsilon_as_published`` at up to eight numbers of steps."""
    numbers = sorted({max(1, round(steps * part / _CURVE_POINTS)) for part in range(1, _CURVE_POINTS + 1)})
    return [
        {"steps": count, "epsilon": sound(count), "epsilon_as_published": published(count)}
        for count in numbers
    ]


# What ``uedp-bounded`` would cost: epsilon or noise, the curve over K, and what other caps would change.


ASSUMES = (
    "every kept point throws a coin of its own with the sampling rate in each step",
    "conditions (a) to (e): copies are accounted for, the choice of points looks at ids and the hypergraph "
    "alone, a null point's gradient is exactly 0, protected is what the graph lists, nothing else is trained "
    "without noise",
)


@dataclass(frozen=True)
class BoundedRequest:
    """The public constants of a training that is thought of.

    Exactly one of ``noise`` σ and ``target`` (epsilon of the main figure) is given.  ``users`` U and
    ``points`` n are counts or bounds; with both, caps that are absent are suggested: k about n/U.
    ``public_constants``: q, T and the normaliser were chosen without looking at the corpus.
    """

    sampling_rate: float
    steps: int
    delta: float = 1e-5
    noise: float | None = None
    target: float | None = None
    users: int | None = None
    points: int | None = None
    k_user: int | None = None
    k_entity: int | None = None
    protect: str = "both"
    rule: str = GREEDY
    entities_per_point: int | None = None
    missed_mentions: int = 0
    batch: float | None = None
    public_constants: bool = False
    trainer: Literal["uedp-bounded"] = "uedp-bounded"

    @property
    def protected(self) -> Protect:
        """Who is hidden."""
        return Protect(self.protect)

    @property
    def caps(self) -> tuple[int | None, int | None]:
        """k_u and k_e: as given, else n/U for the units that are protected."""
        if self.rule == NONE:
            return None, None
        known = self.users is not None and self.points is not None
        cap = suggested_cap(self.points or 0, self.users or 1) if known else None
        user = self.k_user if self.k_user is not None or self.protected is Protect.ENTITIES else cap
        entity = self.k_entity
        if entity is None and self.protected is not Protect.USERS:
            entity = user
        return user, entity

    @property
    def kept_at_most(self) -> int | None:
        """min(n, k_u·U): what the caps leave of ``points``; None where it is not known."""
        if self.points is None:
            return None
        cap = self.caps[0]
        return self.points if cap is None or self.users is None else min(self.points, cap * self.users)

    @property
    def expected_batch(self) -> float | None:
        """The constant that divides the noisy sum: as given, else q times the points that are kept."""
        if self.batch is not None or self.kept_at_most is None:
            return self.batch
        return self.kept_at_most * self.sampling_rate

    @property
    def conditions(self) -> Conditions:
        """All of them held."""
        constants = Constants.PUBLIC if self.public_constants else Constants.GRAPH
        return Conditions(True, True, True, True, True, True, constants)

    def training(self, noise: float) -> BoundedTraining:
        """The training with this noise."""
        user, entity = self.caps
        return BoundedTraining(
            self.sampling_rate,
            noise,
            self.steps,
            user,
            entity,
            self.protected,
            self.rule,
            self.missed_mentions,
        )


def forecast_bounded(request: BoundedRequest, curves: bool = False) -> dict[str, Any]:
    """Figures of ``request`` as JSON; with ``curves`` also epsilon against steps (``steps_curve``).

    ``ConfigurationError`` where the numbers are not those of a training, ``GuaranteeError`` where no noise
    reaches the target or the accountants disagree.
    """
    _check(request)
    noise = request.noise
    if noise is None:
        assert request.target is not None
        exact = calibrate(request.target, request.training(1.0), request.conditions, request.delta)
        noise = math.ceil(exact * 1e4) / 1e4  # as the training rounds it
    training, found = request.training(noise), Figures()
    main = zero_out(training, request.conditions, request.delta)
    size = None if request.rule == NONE else affected(training).gone
    put_group(found, "epsilon_sound", main, training.sampling_rate, noise, training.steps, size or 0)
    vanishing = _user_removal(request, training)
    found.put("epsilon_user_removal", vanishing.epsilon, None, vanishing.reason or "")
    found.put("epsilon_as_published", None, None, NOT_PUBLISHED)
    groups = curve(training, request.conditions, request.delta)
    found.values["curve"] = {str(count): figure.epsilon for count, figure in groups.items()}
    lacking = next((figure.reason for figure in groups.values() if figure.reason is not None), None)
    if lacking is not None:
        found.reasons["curve"] = lacking
    require_reasons(found.values, found.reasons)
    told = {
        **_told(request, noise),
        "adjacency": main.relation,
        "K": size,
        "epsilon": found.values["epsilon_sound"],
        **found.values,
        "adjacency_user_removal": vanishing.relation,
        "adjacency_curve": next(iter(groups.values())).relation.replace(
            "at most 1 points", "at most K points"
        ),
        "reasons": found.reasons,
        "second": found.second,
        "assumes": list(ASSUMES),
        "choices": _choices(request, noise),
    }
    if curves:
        told["steps_curve"] = steps_curve(
            request.steps,
            lambda count: zero_out(replace(training, steps=count), request.conditions, request.delta).epsilon,
            lambda count: None,
        )
    return told


def _user_removal(request: BoundedRequest, training: BoundedTraining) -> Figure:
    """C2: the user's points vanish."""
    if request.rule != R_LOC or request.entities_per_point is None:
        name = relation(request.protected, Adjacency.USER_REMOVAL)
        return Figure(None, request.delta, name, ONLY_R_LOC)
    return local(training, request.conditions, request.delta, request.entities_per_point)


def _told(request: BoundedRequest, noise: float) -> dict[str, Any]:
    batch, (user, entity) = request.expected_batch, request.caps
    return {
        "trainer": request.trainer,
        "protect": request.protect,
        "delta": request.delta,
        "users": request.users,
        "points": request.points,
        "rule": request.rule,
        "k_user": user,
        "k_entity": entity,
        "entities_per_point": request.entities_per_point,
        "kept_at_most": request.kept_at_most,
        "sampling_rate": request.sampling_rate,
        "steps": request.steps,
        "epochs": round(request.steps * request.sampling_rate, 6),
        "noise_multiplier": noise,
        "noise_calibrated": request.noise is None,
        "expected_batch": batch,
        "noise_to_batch": None if not batch else noise / batch,
    }


def _choices(request: BoundedRequest, noise: float) -> list[dict[str, Any]]:
    """Other caps at the same noise and the same expected batch: what each keeps at most, and its epsilon.

    While every place is taken, epsilon does not depend on k: more points for nothing, up to k = n/U.
    """
    users, points, batch = request.users, request.points, request.expected_batch
    if users is None or points is None or not batch or request.rule == NONE:
        return []
    suggested = suggested_cap(points, users)
    caps = sorted({suggested, *(1 << power for power in range(suggested.bit_length() + 1))})
    rows = []
    for cap in caps:
        kept = min(points, cap * users)
        user = None if request.protected is Protect.ENTITIES else cap
        entity = None if request.protected is Protect.USERS else cap
        own = replace(
            request.training(noise), sampling_rate=min(1.0, batch / kept), k_user=user, k_entity=entity
        )
        rows.append(
            {
                "k": cap,
                "suggested": cap == suggested,
                "kept_at_most": kept,
                "sampling_rate": own.sampling_rate,
                "K": affected(own).gone,
                "epsilon": zero_out(own, request.conditions, request.delta).epsilon,
            }
        )
    return rows


def _check(request: BoundedRequest) -> None:
    require(
        [
            *common_problems(request.steps, request.delta, request.noise, request.target),
            (not 0.0 < request.sampling_rate <= 1.0, "the sampling rate lies between 0 and 1"),
            (
                request.protect not in {one.value for one in Protect},
                "protect: users, entities, both or either",
            ),
            (request.rule not in RULES, f"rule: one of {', '.join(RULES)}"),
            (
                any(n is not None and n < 1 for n in (request.users, request.points)),
                "users and points: at least one",
            ),
            (
                request.rule == NONE and (request.k_user is not None or request.k_entity is not None),
                "rule none keeps every point: leave out the caps",
            ),
            (
                (request.rule == R_LOC) != (request.entities_per_point is not None),
                "entities per point: a bound that rule r-loc needs and no other takes",
            ),
        ]
    )
    user, entity = request.caps
    lacks_user = user is None and request.protected is not Protect.ENTITIES
    lacks_entity = entity is None and request.protected is not Protect.USERS
    require(
        [
            (
                request.rule != NONE and lacks_user,
                "k-user: users are to be protected, so a cap is needed; with the numbers of users and points "
                "one is suggested",
            ),
            (
                request.rule != NONE and lacks_entity and not lacks_user,
                "k-entity: entities are to be protected, so a cap is needed",
            ),
        ]
    )

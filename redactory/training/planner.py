"""How many points a step draws, beside what the settings take them to be: what is odd, in words.

No number to choose is told: settings are public constants, and none may follow from a count of private points
(``docs/guarantees.md``, "Sampling and constants").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending, calibrate_noise
from redactory.training.accounting.curve import epsilon_curve
from redactory.training.accounting.published import crt_published
from redactory.training.confidentiality import bayesian_epsilon
from redactory.training.guarantee_figures import NOT_MEASURED, Claim, figures_of
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian
from redactory.training.settings import TrainSettings

_FAR = 4.0


def drawn(sampling_rate: float, points: int) -> float:
    """Points that a noisy step draws in expectation, of ``points``."""
    return sampling_rate * points


def oddities(settings: TrainSettings, noised: int | None, plain: int | None) -> list[str]:
    """What is odd about the batches of a training; a sentence each.

    ``noised`` are the points that noisy steps draw from, ``plain`` those learnt without noise; None where
    there are none, or their number is not known.
    """
    found: list[str] = []
    if noised is not None:
        found += odd_draws(settings.sampling_rate, noised, settings.expected_batch_size)
        found += _bounds(settings, noised)
    if plain is not None and settings.public_batch_size > plain:
        found.append(
            f"train.public_batch_size is {settings.public_batch_size:,}, and {plain:,} points are learnt "
            "without noise: every such step takes them all; set it lower"
        )
    return found


def odd_draws(sampling_rate: float, points: int, batch: float | None) -> Iterator[str]:
    """Where so few of ``points`` are drawn that many steps are noise alone, or ``batch`` is far from them.

    ``batch`` divides the noisy sum (``expected_batch_size``); None where it follows from the others.
    """
    draws = drawn(sampling_rate, points)
    told = f"draws {_some(draws)} on average (train.sampling_rate {sampling_rate:g} of {points:,})"
    if draws < 1.0:
        yield f"a noisy step {told}: many steps are noise alone; raise train.sampling_rate"
    elif batch is not None and not draws / _FAR <= batch <= draws * _FAR:
        times = max(batch / draws, draws / batch)
        ratio, steps = ("small", "short") if batch > draws else ("large", "long")
        yield (
            f"train.expected_batch_size is {batch:g}, and a noisy step {told}: noise_to_batch is told "
            f"{times:,.0f} times too {ratio}, and with optimizer sgd steps are as much too {steps} (adam "
            "does not mind); give it the rate times the points that you expect of such text, not this count"
        )


def _bounds(settings: TrainSettings, points: int) -> Iterator[str]:
    """Where bounds that are set for truncation do not fit."""
    draws, size = drawn(settings.sampling_rate, points), settings.truncated_batch_size
    if size is not None and draws > size:
        yield (
            f"train.truncated_batch_size is {size:,}, and a noisy step would draw {_some(draws)}: most "
            "samples are cut; raise it, or lower train.sampling_rate"
        )
    if settings.dataset_size is not None and size is not None and points > settings.dataset_size:
        yield (
            f"train.dataset_size is {settings.dataset_size:,}, and there are {points:,} noised points: "
            "training will be refused; raise it"
        )


def _some(points: float) -> str:
    return f"{points:,.2g} points" if points < 10.0 else f"{points:,.0f} points"


# What a training would cost before it is run: epsilon from noise, noise from epsilon, and what would
# help.


Planned = Literal["crt", "crt-drop", "dpsgd"]
_CURVE_POINTS = 12
_ROUGH = 2e-3


@dataclass(frozen=True)
class PlanRequest:
    """The public constants of a training that is thought of.

    Exactly one of ``noise`` (σ) and ``target`` is given; ``target`` is an epsilon for one named secret, or
    with ``bayesian`` for a secret that at least one policy catches.  ``gamma`` and ``delta_2`` are upper
    bounds of what the policies miss (1 and ``None`` where nothing was measured), ``rows`` what one
    exchanged point exchanges, ``private_points`` N the points that are noised, where they are known.
    """

    trainer: Planned
    sampling_rate: float
    steps: int
    delta: float
    noise: float | None = None
    target: float | None = None
    bayesian: bool = False
    private_points: int | None = None
    batch: float | None = None
    gamma: float = 1.0
    delta_2: float | None = None
    group_sizes: tuple[int, ...] = ()
    rows: int = 1
    truncated_batch_size: int | None = None
    dataset_size: int | None = None

    @property
    def relation(self) -> Relation:
        """What a secret and its mask are to the noised points."""
        dropped = self.trainer == "crt-drop" and self.rows == 1
        return Relation.ADD_OR_REMOVE if dropped else Relation.SUBSTITUTION

    @property
    def expected_batch(self) -> float | None:
        """The constant that divides the noisy sum: as given, else N·q."""
        if self.batch is not None or self.private_points is None:
            return self.batch
        return self.private_points * self.sampling_rate

    @property
    def truncation(self) -> tuple[int, int] | None:
        """Batch size and slots of a truncated sampler."""
        if self.truncated_batch_size is None or self.dataset_size is None:
            return None
        return self.truncated_batch_size, self.dataset_size

    def mechanism(self, noise: float) -> Mechanism:
        """The mechanism of a noisy step."""
        if self.truncation is None:
            return PoissonGaussian(self.sampling_rate, noise, 1.0, 1.0)
        batch, slots = self.truncation
        return TruncatedPoissonGaussian(
            self.sampling_rate, noise, 1.0, 1.0, truncated_batch_size=batch, points=slots
        )

    def claim(self, noise: float) -> Claim:
        """What is claimed of the training with this noise."""
        return Claim(
            spent=(Spending(self.mechanism(noise), self.steps, self.rows),),
            delta=self.delta,
            group_sizes=self.group_sizes,
            relation=self.relation,
            gamma=self.gamma,
            delta_2=self.delta_2,
            by_policy=self.trainer != "dpsgd",
        )


def plan_training(request: PlanRequest) -> dict[str, Any]:
    """Figures, noise-to-batch ratio, alternatives and a curve of epsilon over steps, as JSON.

    ``ConfigurationError`` where the numbers are not those of a training, ``GuaranteeError`` where no
    noise reaches the target.
    """
    _check(request)
    noise = request.noise if request.noise is not None else calibrated(request)
    curve = _curve(request, noise)  # on the grid of the calibration: while that is at hand
    claim = request.claim(noise)
    figures = figures_of(claim)
    reasons, coverage = dict(figures.reasons), request.delta_2
    if request.trainer == "dpsgd":
        coverage = None
        reasons["coverage_failure"] = "not applicable: every point is noised, the policies decide nothing"
    elif coverage is None:
        reasons["coverage_failure"] = NOT_MEASURED
    published = None
    if request.trainer == "crt" and request.rows == 1 and request.truncated_batch_size is None:
        published = crt_published(claim.spent, claim.delta, claim.gamma, claim.delta_2, claim.group_sizes)
    return {
        **_told(request, noise),
        **figures.values,
        "coverage_failure": coverage,
        "reasons": reasons,
        "second": figures.second,
        "as_published": published,
        "improve": alternatives(request, noise, figures.values["epsilon"]),
        "curve": curve,
    }


def calibrated(request: PlanRequest) -> float:
    """The noise multiplier that reaches the request's target."""
    assert request.target is not None
    target, delta = request.target, request.delta
    if request.bayesian:
        # log(1 + γ(e^ε − 1)) = target, and ε is that of δ/γ
        delta = min(delta / request.gamma, 1.0 - 1e-9)
        target = math.log1p(math.expm1(target) / request.gamma)
    return calibrate_noise(
        target,
        delta,
        request.sampling_rate,
        request.steps,
        points=request.rows,
        relation=request.relation,
        truncation=request.truncation,
    )


def alternatives(request: PlanRequest, noise: float, epsilon: float | None) -> list[dict[str, Any]]:
    """Other constants with the same epsilon: the noise they need, and how the ratio to the batch changes.

    ``factor`` is the noise on the mean gradient over that of the plan; the best comes first.
    """
    if epsilon is None or not epsilon or request.truncated_batch_size is not None:
        return []
    rate, steps = request.sampling_rate, request.steps
    tries = [
        ("twice the batch: twice the computation", 2.0 * rate, steps, 2.0),
        ("twice the batch in half the steps: the same computation", 2.0 * rate, max(1, steps // 2), 2.0),
        ("half the steps: half the computation", rate, max(1, steps // 2), 1.0),
        ("twice the private points with the same batch: the same computation", rate / 2.0, steps, 1.0),
    ]
    found = []
    for change, own_rate, own_steps, batches in tries:
        if own_rate > 1.0:
            continue
        own = calibrate_noise(
            epsilon,
            request.delta,
            own_rate,
            own_steps,
            discretization=_ROUGH,
            points=request.rows,
            relation=request.relation,
            tolerance=1e-3,
        )
        ratio = None if request.expected_batch is None else own / (batches * request.expected_batch)
        told = {"change": change, "sampling_rate": own_rate, "steps": own_steps, "noise_multiplier": own}
        found.append({**told, "noise_to_batch": ratio, "factor": round(own / batches / noise, 3)})
    return sorted(found, key=lambda entry: entry["factor"])


def _told(request: PlanRequest, noise: float) -> dict[str, Any]:
    batch, points = request.expected_batch, request.private_points
    return {
        "trainer": request.trainer,
        "relation": request.relation.value,
        "delta": request.delta,
        "sampling_rate": request.sampling_rate,
        "steps": request.steps,
        "epochs": round(request.steps * request.sampling_rate, 6),
        "noise_multiplier": noise,
        "noise_calibrated": request.noise is None,
        "private_points": request.private_points,
        "expected_batch": batch,
        "noise_to_batch": None if not batch else noise / batch,
        "points_drawn": None if points is None else drawn(request.sampling_rate, points),
        "remarks": [] if points is None else list(odd_draws(request.sampling_rate, points, request.batch)),
        "gamma": request.gamma,
        "delta_2": request.delta_2,
    }


def _curve(request: PlanRequest, noise: float) -> list[dict[str, Any]]:
    spent = Spending(request.mechanism(noise), request.steps, request.rows)
    named = epsilon_curve(spent, request.delta, request.relation, _CURVE_POINTS)
    inner = min(request.delta / request.gamma, 1.0) if request.gamma > 0.0 else 1.0
    missed = None if inner >= 1.0 else epsilon_curve(spent, inner, request.relation, _CURVE_POINTS)
    rows = []
    for place, (steps, value) in enumerate(zip(named.steps, named.values, strict=True)):
        row: dict[str, Any] = {"steps": steps, "epsilon": _finite(value)}
        if request.trainer != "dpsgd":
            at = None if missed is None else _finite(missed.values[place])
            row["epsilon_bayesian"] = bayesian_epsilon(lambda _, v=at: v, request.delta, request.gamma, 0.0)  # type: ignore[misc]
        rows.append(row)
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check(request: PlanRequest) -> None:
    wrong: Sequence[tuple[bool, str]] = (
        ((request.noise is None) == (request.target is None), "give either the noise or a target epsilon"),
        (not 0.0 < request.sampling_rate <= 1.0, "the sampling rate lies between 0 and 1"),
        (request.steps < 1, "there is at least one step"),
        (not 0.0 < request.delta < 1.0, "delta lies between 0 and 1"),
        (not 0.0 <= request.gamma <= 1.0, "gamma lies between 0 and 1"),
        (request.delta_2 is not None and not 0.0 <= request.delta_2 <= 1.0, "delta_2 lies between 0 and 1"),
        (request.delta_2 is not None and request.delta_2 > request.gamma, "delta_2 is at most gamma"),
        (request.noise is not None and not 0.0 < request.noise < math.inf, "the noise is positive"),
        (
            request.target is not None and not 0.0 < request.target < math.inf,
            "epsilon must be more than 0, and finite",
        ),
        (request.bayesian and request.gamma == 0.0, "with gamma 0 the Bayesian figure is 0 with any noise"),
        (request.bayesian and request.trainer == "dpsgd", "dpsgd has no Bayesian figure"),
        (any(size < 2 for size in request.group_sizes), "a group has at least 2 points"),
        (request.private_points is not None and request.private_points < 1, "there is at least one point"),
    )
    problems = [problem for is_wrong, problem in wrong if is_wrong]
    if problems:
        raise ConfigurationError("; ".join(problems))

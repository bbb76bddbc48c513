"""What a training would cost before it is run: its spec from the settings, figures by the card's own code.

No number to choose is suggested from a count of private points: settings are public constants
(``docs/guarantees.md``, "Sampling and constants").  A plan's epsilon is the one that the card would state,
provided that the training keeps the conditions that the plan lists; the card says whether it did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting.figures import epsilon_curve, finite, some_steps
from redactory.training.accounting.published import Estimator
from redactory.training.counted import Selection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.figures import Claim, bounded_of, figures_of, require_reasons, unit_figures
from redactory.training.guarantee.remarks import Facts, remarks
from redactory.training.guarantee.spec import MissRates, TrainingSpec, bayesian_epsilon
from redactory.training.guarantee.sweep import sweep
from redactory.training.mechanism import BandedGaussian, PoissonUsersGaussian
from redactory.training.model import parameters_at_most
from redactory.training.settings import TrainSettings
from redactory.training.trainers import trainer_of
from redactory.training.uedp.algorithm1 import as_published, figure_of, noise_scale
from redactory.training.uedp.bounded_accounting import affected, suggested_cap, tried_caps, zero_out
from redactory.training.units import Protect
from redactory.training.widths import widths

_CURVE_POINTS, _UNIT_CURVE_POINTS = 12, 8


@dataclass(frozen=True)
class Known:
    """Numbers that a plan may be given beside the settings; each is public, or None.

    ``steps`` stands in the place of ``epochs``; ``points`` are those that are noised, or the corpus's, and
    ``users`` its users; ``gamma`` and ``delta_2`` bound what the policies miss.  With ``bayesian`` the target
    ``train.epsilon`` is for a secret that at least one policy catches.
    """

    steps: int | None = None
    points: int | None = None
    users: int | None = None
    gamma: float = 1.0
    delta_2: float | None = None
    bayesian: bool = False

    def __post_init__(self) -> None:
        counts = (("step", self.steps), ("point", self.points), ("user", self.users))
        problems = (
            *((n is not None and n < 1, f"there must be at least one {what}") for what, n in counts),
            (not 0.0 <= self.gamma <= 1.0, "gamma must be between 0 and 1"),
            (not 0.0 <= (self.delta_2 or 0.0) <= 1.0, "delta_2 must be between 0 and 1"),
            ((self.delta_2 or 0.0) > self.gamma, "delta_2 must be at most gamma"),
            (self.bayesian and self.gamma == 0.0, "with gamma 0 the Bayesian epsilon is 0 with any noise"),
        )
        if found := [problem for is_wrong, problem in problems if is_wrong]:
            raise ConfigurationError("; ".join(found))


def kept_at_most(settings: TrainSettings, known: Known) -> int | None:
    """min(n, k_u·U): what caps leave of the points; None where it is not known."""
    cap = None if settings.bounding.rule == "none" else settings.bounding.k_user
    if known.points is None or cap is None or known.users is None:
        return known.points
    return min(known.points, cap * known.users)


def plan_training(
    settings: TrainSettings,
    known: Known | None = None,
    dedup: Mapping[str, Any] | None = None,
    by_steps: bool = False,
    selection: Selection | None = None,
    start: TrainingSpec | None = None,
) -> dict[str, Any]:
    """Figures, the noise beside the batch, a sweep of rates and steps, and epsilon against steps, as JSON.

    ``dedup`` is the ``rule`` of the private side and its ``group_size``; ``by_steps`` asks for the curve of a
    trainer that hides units, too; ``start`` is the model of the same run that it goes on from.
    ``ConfigurationError`` where nothing is noised, ``GuaranteeError`` where no noise reaches the target or
    the accountants disagree.
    """
    known, trainer, target = known or Known(), trainer_of(settings), settings
    dedup = dedup or {"rule": "S1", "group_size": 1}
    if trainer.noised is None:
        raise ConfigurationError(f"train.trainer {trainer.name} has no privacy mechanism: nothing to plan")
    if known.bayesian:
        if not trainer.by_policy:
            raise ConfigurationError(f"{settings.trainer} has no Bayesian epsilon")
        # log(1 + γ(e^ε − 1)) = target, and ε is that of δ/γ
        missed = math.log1p(math.expm1(settings.epsilon) / known.gamma)
        inner = min(settings.delta / known.gamma, 1.0 - 1e-9)
        target = settings.model_copy(update={"epsilon": missed, "delta": inner})
    rates = MissRates(known.gamma, 0.0 if selection else known.delta_2)
    spec = TrainingSpec.of(target, dedup, known.steps, rates=rates, seeded=False, selection=selection, start=start)
    spec = replace(spec, settings=settings)
    if start is not None and spec.refusal is not None:
        raise ConfigurationError(f"train.model.folder: {spec.refusal}; give weights that are public")
    if trainer.by_policy and spec.refusal is not None:
        raise ConfigurationError(
            f"dedup: rule {dedup['rule']} has no stability proof, so no epsilon can be planned: dedup.mode "
            "exact has one"
        )
    assert spec.mechanism is not None
    common = {
        "trainer": trainer.name,
        "delta": spec.delta,
        "sampling_rate": spec.mechanism.sampling_rate,
        "steps": spec.steps,
        "epochs": round(spec.steps * spec.mechanism.sampling_rate, 6),
        "noise_multiplier": spec.mechanism.noise_multiplier,
        "noise_calibrated": settings.noise_multiplier is None,
        **_bands(replace(spec, settings=target)),
    }
    found = _units(spec, known) if trainer.hides_units else _points(spec, known)
    steps = {"steps_curve": _by_steps(spec)} if trainer.hides_units and by_steps else {}
    return {**common, **found, **steps}


# Secrets and points.


def _points(spec: TrainingSpec, known: Known) -> dict[str, Any]:
    assert spec.mechanism is not None
    batch, points, rate = spec.settings.expected_batch_size, known.points, spec.mechanism.sampling_rate
    parameters = parameters_at_most(spec.settings)
    curve = _curve(spec)  # on the grid of the calibration: while that is at hand
    claim = Claim.of(spec)
    figures = figures_of(claim)
    figures.put(
        "coverage_failure",
        spec.rates.delta_2 if claim.by_policy else None,
        None,
        WORDS["recall_unknown" if claim.by_policy else "no_policies"],
    )
    return {
        "relation": spec.relation.value,
        "private_points": points,
        "expected_batch": batch,
        "noise_to_batch": spec.mechanism.noise_multiplier / batch,
        "points_drawn": None if points is None else rate * points,
        "parameters": parameters,
        "remarks": remarks(spec, Facts(points, parameters=parameters)),
        "gamma": known.gamma,
        "delta_2": spec.rates.delta_2,
        **figures.values,
        "reasons": figures.reasons,
        "second": figures.second,
        "as_published": claim.as_published,
        "sweep": sweep(spec, figures.values["epsilon"], parameters),
        "curve": curve,
    }


def _bands(spec: TrainingSpec) -> dict[str, Any]:
    """Each number of bands, that of the plan marked; nothing where noise is not to be correlated."""
    own = spec.settings
    if own.noise_bands == 1 or own.noise_multiplier is not None or spec.rows > 1:
        return {}
    chosen = spec.mechanism.matrix.bands if isinstance(spec.mechanism, BandedGaussian) else 1
    rows = [asdict(one) for one in widths(own, spec.steps, spec.relation)]
    return {"bands": [{**row, "chosen": row["bands"] == chosen} for row in rows]}


def _curve(spec: TrainingSpec) -> list[dict[str, Any]]:
    spent, claim = spec.spending, Claim.of(spec)
    assert spent is not None
    if spec.beside or spec.start is not None:
        return []  # of these steps alone it would be too low
    delta, gamma = spec.delta, claim.gamma
    named = epsilon_curve(spent, delta, claim.missed, _CURVE_POINTS)
    inner = min(delta / gamma, 1.0) if gamma > 0.0 else 1.0
    caught = [0.0] * len(named.steps)
    if claim.by_policy and inner < 1.0:
        caught = list(epsilon_curve(spent, inner, claim.missed, _CURVE_POINTS).values)
    rows = []
    for steps, value, missed in zip(named.steps, named.values, caught, strict=True):
        row: dict[str, Any] = {"steps": steps, "epsilon": finite(value)}
        if claim.by_policy:
            row["epsilon_bayesian"] = bayesian_epsilon(lambda _, v=missed: finite(v), delta, gamma, 0.0)  # type: ignore[misc]
        rows.append(row)
    return rows


# Users and entities.


def _units(spec: TrainingSpec, known: Known) -> dict[str, Any]:
    found = unit_figures(spec)
    values, reasons = dict(found.values), dict(found.reasons)
    published: dict[str, Any] = {}
    if isinstance(spec.mechanism, PoissonUsersGaussian):
        users, words = spec.mechanism, WORDS["units"]
        expected = users.users * users.sampling_rate
        own = {
            "users": users.users,
            "user_rate": users.sampling_rate,
            "expected_users": expected,
            "noise": noise_scale(users),
            "noise_to_batch": users.noise_multiplier / expected,
            **({"K": 1} if spec.protect is Protect.USERS else {}),
            "assumes": [*words["assumed_of_users"], *([] if users.entities is None else words["assumed_of_entities"])],
        }
        main = values["epsilon_as_published"]
        published["as_published"] = main and _published(spec, spec.mechanism, main)
        values["epsilon_as_published"] = main and main["epsilon"]
        for state in (values, reasons):
            state.pop("epsilon_user_removal")  # no user's points vanish here but by name
        if not found.second:
            reasons["second"] = found.no_second or ""
    else:
        assert spec.mechanism is not None
        batch = spec.settings.expected_batch_size
        own = {
            "users": known.users,
            "points": known.points,
            "kept_at_most": kept_at_most(spec.settings, known),
            "expected_batch": batch,
            "noise_to_batch": spec.mechanism.noise_multiplier / batch,
            "assumes": WORDS["units"]["assumed_of_points"],
            "choices": _choices(spec, known, batch),
        }
    require_reasons(values, reasons)
    parameters = parameters_at_most(spec.settings)
    return {
        "privacy_unit": spec.protect.value,
        **found.facts,
        **values,
        **published,
        "reasons": reasons,
        "second": found.second,
        "parameters": parameters,
        "remarks": remarks(spec, Facts(kept_at_most(spec.settings, known), users=known.users, parameters=parameters)),
        "sweep": sweep(spec, values["epsilon"], parameters),
        **own,
    }


def _choices(spec: TrainingSpec, known: Known, batch: float) -> list[dict[str, Any]]:
    """Other caps at the same noise and the same expected batch: what each keeps at most, and its epsilon.

    While every place is taken, epsilon does not depend on k: more points for nothing, up to k = n/U.
    """
    users, points = known.users, known.points
    if users is None or points is None or spec.settings.bounding.rule == "none":
        return []
    suggested, rows = suggested_cap(points, users), []
    for cap in tried_caps(suggested):
        kept = min(points, cap * users)
        own = replace(
            bounded_of(spec),
            sampling_rate=min(1.0, batch / kept),
            k_user=None if spec.protect is Protect.ENTITIES else cap,
            k_entity=None if spec.protect is Protect.USERS else cap,
        )
        row = {"k": cap, "suggested": cap == suggested, "kept_at_most": kept, "K": affected(own).gone}
        epsilon = zero_out(own, spec.delta).epsilon
        rows.append({**row, "sampling_rate": own.sampling_rate, "epsilon": epsilon})
    return rows


def _published(spec: TrainingSpec, own: PoissonUsersGaussian, main: dict[str, Any]) -> dict[str, Any]:
    """What the papers would print, under their label; in ``all``, of every estimator that can be computed."""
    estimators = [Estimator.USER_LEVEL, *([] if own.entities is None else [Estimator.F_E])]
    every = {one.value: as_published(own, spec.steps, spec.delta, one) for one in estimators}
    return {
        **{key: value for key, value in main.items() if key != "delta"},
        "why_not": WORDS["published"]["why_not"][main["estimator"]],
        "all": {name: found["epsilon"] for name, found in every.items() if found is not None},
    }


def _by_steps(spec: TrainingSpec) -> list[dict[str, Any]]:
    """Epsilon, and what would be published, at up to eight numbers of steps."""
    own, rows = spec.mechanism, []
    for count in some_steps(spec.steps, _UNIT_CURVE_POINTS):
        published = None
        if isinstance(own, PoissonUsersGaussian):
            epsilon = figure_of(own, count, spec.delta, spec.protect).epsilon
            published = (as_published(own, count, spec.delta) or {}).get("epsilon")
        else:
            epsilon = zero_out(replace(bounded_of(spec), steps=count), spec.delta).epsilon
        rows.append({"steps": count, "epsilon": epsilon, "epsilon_as_published": published})
    return rows

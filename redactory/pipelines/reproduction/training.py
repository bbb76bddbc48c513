"""The trainings of a reproduction: one model for each trainer, seed, miss rate and epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redactory.foundation.progress import Progress
from redactory.pipelines.reproduction.plan import BLIND_TO_PI, WITHOUT_NOISE, Plan
from redactory.redaction import RunFolder
from redactory.training.sampling import steps_an_epoch
from redactory.training.settings import TrainSettings

_ANY_NOISE = 1.0


@dataclass(frozen=True)
class Training:
    """One model: ``gamma`` is that of the run that it is trained on, ``target`` None without noise.

    ``bayesian``: the target is the amplified epsilon, not that of one point.
    """

    trainer: str
    seed: int
    gamma: float
    target: float | None
    bayesian: bool = False

    @property
    def name(self) -> str:
        """The model's name in its run."""
        told = "" if self.target is None else f"-{'bayes' if self.bayesian else 'e'}{self.target:g}"
        return f"{self.trainer}-s{self.seed}{told}"

    @property
    def key(self) -> str:
        """The model's name among those of all runs."""
        return f"gamma-{self.gamma:g}/{self.name}"


def trainings(plan: Plan) -> Iterator[Training]:
    """Every training that the figure needs; a trainer that does not ask π is trained at one miss rate."""
    for seed in range(1, plan.seeds + 1):
        for trainer in plan.trainers:
            for gamma in plan.gammas[:1] if trainer in BLIND_TO_PI else plan.gammas:
                for target in [None] if trainer in WITHOUT_NOISE else plan.epsilons:
                    bayesian = plan.figure == 2 and trainer.startswith("crt")
                    yield Training(trainer, seed, gamma, target, bayesian)


def settings_of(plan: Plan, one: Training, sides: dict[str, int]) -> TrainSettings:
    """The section ``train`` of one training; ``sides`` counts the points that noise is added over."""
    noised = sides["private" if one.trainer.startswith("crt") else "vault"]
    given = {
        **plan.train,
        "model": _network(plan),
        "seed": one.seed,
        "trainer": one.trainer,
        "name": one.name,
        "delta": plan.delta,
        "noise_multiplier": _ANY_NOISE,
    }
    settings = TrainSettings.model_validate(given)
    expected = max(1.0, settings.sampling_rate * noised)
    changes: dict[str, Any] = {"expected_batch_size": plan.train.get("expected_batch_size", expected)}
    if one.target is not None:
        changes["noise_multiplier"] = noise_of(settings, one)
    return settings.model_copy(update=changes)


def noise_of(settings: TrainSettings, one: Training) -> float:
    """The noise multiplier whose epsilon is the target.

    In Figure 2 that of ``crt`` and ``crt-drop`` is the Bayesian one, as on the figure's axis.  In Figures 3
    to 5 it is that of one point exchanged (``crt``, ``dpsgd``) or there or not (``crt-drop``, ``sdp``), so
    that every miss rate has the same noise.
    """
    assert one.target is not None
    target, delta = one.target, settings.delta
    if one.bayesian:
        # log(1 + γ(e^ε − 1)) = target at δ = γδ'
        target, delta = math.log1p(math.expm1(target) / one.gamma), delta / one.gamma
    exchanged = one.trainer in ("crt", "dpsgd")
    return _calibrated(target, delta, settings.sampling_rate, _steps(settings), exchanged)


def spent(settings: TrainSettings, one: Training) -> dict[str, float | None]:
    """{epsilon, epsilon_named, as_published} of one training, δ₂ being 0 on the labels.

    ``epsilon`` is Bayesian for ``crt`` and ``crt-drop`` and that of substitution for ``dpsgd``; of ``sdp`` it
    is infinite under a π that misses anything, and null.
    """
    from redactory.training.confidentiality import bayesian_epsilon

    nothing: dict[str, float | None] = {"epsilon": None, "epsilon_named": None, "as_published": None}
    if one.target is None or settings.noise_multiplier is None:
        return nothing
    mechanism = (settings.sampling_rate, settings.noise_multiplier, _steps(settings))
    delta, exchanged = settings.delta, one.trainer in ("crt", "dpsgd")
    published = _epsilon(*mechanism, delta, False)
    if one.trainer == "sdp":
        return {**nothing, "as_published": published}
    named = _epsilon(*mechanism, delta, exchanged)
    bayesian = named
    if one.trainer.startswith("crt"):
        bayesian = bayesian_epsilon(lambda at: _epsilon(*mechanism, at, exchanged), delta, one.gamma, 0.0)
    return {"epsilon": bayesian, "epsilon_named": named, "as_published": published}


@lru_cache(maxsize=64)
def _calibrated(target: float, delta: float, rate: float, steps: int, exchanged: bool) -> float:
    """Seeds and miss rates share their noise: it is looked for once."""
    from redactory.training.accounting import calibrate_noise
    from redactory.training.mechanism import Relation

    relation = Relation.SUBSTITUTION if exchanged else Relation.ADD_OR_REMOVE
    return float(calibrate_noise(target, delta, rate, steps, relation=relation, tolerance=1e-3))


@lru_cache(maxsize=256)
def _epsilon(rate: float, noise: float, steps: int, delta: float, exchanged: bool) -> float | None:
    from redactory.training.accounting import epsilon
    from redactory.training.mechanism import PoissonGaussian, Relation

    relation = Relation.SUBSTITUTION if exchanged else Relation.ADD_OR_REMOVE
    return epsilon(PoissonGaussian(rate, noise, 1.0, 1.0), steps, delta, relation)


def trained(run: RunFolder, settings: TrainSettings, progress: Progress) -> Any:
    """The model, trained or read where it is finished already."""
    from redactory.training import load_model, train_model

    train_model(run, settings, progress)
    return load_model(run.model(settings.model_name))


def _steps(settings: TrainSettings) -> int:
    return settings.epochs * steps_an_epoch(settings.sampling_rate)


def _network(plan: Plan) -> dict[str, Any]:
    """Fresh, of the width that was asked for."""
    if plan.kind == "gpt2":
        return {"kind": "gpt2", "width": plan.width, "layers": 2, "heads": 2, "context": 65}
    return {"kind": "lstm", "embedding_size": plan.width, "hidden_size": plan.width}

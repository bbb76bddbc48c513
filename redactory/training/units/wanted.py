"""What a training's settings lack or contradict, before anything is read."""

from __future__ import annotations

from typing import Any, Protocol

from redactory.training.models.settings import ModelSettings, TransformerSettings
from redactory.training.units.federated_settings import (
    FEDERATED_TRAINERS,
    FederatedSettings,
    federated_problem,
)
from redactory.training.units.settings import UEDP_TRAINERS, UNITS_PROTECTED, BoundingSettings, UnitSettings

_CLASSIFY = (*UEDP_TRAINERS, "dpsgd")


class Wanted(Protocol):
    """The keys of a training that must fit each other."""

    @property
    def trainer(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> ModelSettings: ...
    @property
    def public_text(self) -> Any: ...
    @property
    def pretraining_epochs(self) -> int: ...
    @property
    def units(self) -> UnitSettings: ...
    @property
    def bounding(self) -> BoundingSettings: ...
    @property
    def federated(self) -> FederatedSettings: ...
    @property
    def noise_multiplier(self) -> float | None: ...
    @property
    def truncated_batch_size(self) -> int | None: ...
    @property
    def budget(self) -> Any: ...
    @property
    def device(self) -> str: ...


def problem_of(settings: Wanted) -> str | None:
    """The first mistake in what ``settings`` say of task, units and public text, with its mend; else None."""
    found = (check(settings) for check in (_task, _public_text, _budget, _bounding, _federated))
    return next((problem for problem in found if problem is not None), None)


def _task(settings: Wanted) -> str | None:
    classify, classes = settings.task == "classify", settings.classes
    if classify and len(classes) < 2:
        return "train.classes: task classify needs the names of at least two classes"
    if len(set(classes)) != len(classes) or "" in classes:
        return "train.classes: a name is empty or stands there twice"
    if classes and not classify:
        return "train.classes: they belong to task classify"
    if classify and settings.model.kind in ("gpt2", "llama"):
        kind = settings.model.kind
        return f"train.model.kind: {kind} foretells words; task classify needs lstm, awd-lstm, bilstm or bert"
    if not classify and settings.model.kind in ("bert", "bilstm"):
        return f"train.model.kind: {settings.model.kind} tells classes; give task classify, or another kind"
    if classify and settings.trainer not in _CLASSIFY:
        return f"train.task: classify is trained by {', '.join(_CLASSIFY)}"
    return None


def _public_text(settings: Wanted) -> str | None:
    if settings.pretraining_epochs and settings.public_text is None:
        return "train.public_text: pretraining_epochs pass over it, and it is not given"
    if settings.trainer not in UEDP_TRAINERS:
        return "train.public_text serves " + ", ".join(UEDP_TRAINERS) if settings.public_text else None
    from_folder = isinstance(settings.model, TransformerSettings) and settings.model.folder is not None
    if settings.trainer in UNITS_PROTECTED and settings.public_text is None and not from_folder:
        return (
            f"train.public_text: {settings.trainer} hides users and entities, so not even the vocabulary may "
            "come from the corpus: give a file of text that is no part of it, or model.folder"
        )
    if settings.trainer in UNITS_PROTECTED and settings.truncated_batch_size is not None:
        return "train.truncated_batch_size: no epsilon is proved for users and entities under truncation"
    return None


def _budget(settings: Wanted) -> str | None:
    if settings.budget is None or settings.trainer not in UNITS_PROTECTED or not settings.units.lists:
        return None
    return (
        f"train.budget: what stands on units.{settings.units.lists[0]} is nowhere on record, so trainings "
        "cannot be told to hide the same units: leave out the budget or the list"
    )


def _bounding(settings: Wanted) -> str | None:
    if settings.trainer != "uedp-bounded":
        return None
    missing = settings.bounding.missing_cap(settings.units.protect)
    if missing is not None:
        return (
            f"train.bounding.{missing}: units.protect is {settings.units.protect.value}, so a cap is needed; "
            "redactory plan uedp-bounded suggests one"
        )
    if settings.bounding.rule == "none" and settings.noise_multiplier is None:
        return "train.noise_multiplier: rule none has no epsilon to calibrate to; give the noise"
    if settings.bounding.rule == "none" and settings.budget is not None:
        return "train.budget: rule none has no epsilon to book; give a rule with caps"
    if settings.bounding.rule == "r-loc" and settings.units.copies == "merge":
        return "train.units.copies: r-loc is proved for points of one user each: keep the copies"
    vanish = settings.bounding.rule == "none" and settings.bounding.constants == "public"
    if vanish and settings.units.copies == "merge":
        return (
            "train.units.copies: where points vanish, other users' copies of them would come: keep the "
            "copies, or give bounding.constants graph"
        )
    return None


def _federated(settings: Wanted) -> str | None:
    trainer, own = settings.trainer, settings.federated
    problem = federated_problem(trainer, own, settings.noise_multiplier)
    if problem is not None or trainer not in FEDERATED_TRAINERS:
        return problem
    if settings.units.copies == "merge":
        return f"train.units.copies: {trainer} is proved for points of one user each: keep the copies"
    several = (own.workers or 1) > 1
    if several and own.dask is not None:
        return "train.federated.workers: Dask's own workers compute: leave it out, or dask"
    if (several or own.dask is not None) and settings.device != "cpu":
        return "train.federated: several processes compute on device cpu alone"
    if trainer == "uedp-alg1" and settings.budget is not None:
        return "train.budget: trainings with uedp-alg1 cannot be composed with others: leave it out"
    return None

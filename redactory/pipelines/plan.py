"""Plan: what a training, or messages, would cost before anything is trained; budget: what was spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from redactory.evaluation.plots import UNITS, epsilon_plot, require_matplotlib
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, shorten
from redactory.foundation.files import write_text
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.ldp import ldp_settings
from redactory.pipelines.loading import Given, check, load_config, nested
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.train import measured_last, points_learnt, vocabulary_seen
from redactory.redaction import RunFolder, is_finished
from redactory.training.counted import Selection, planned

LDP = "ldp"
COUNTED = (
    "counted in the private part of the run: no epsilon covers these numbers, so do not publish them; a cap "
    "or a rate based on them depends on the graph (train.bounding.constants: graph), and no user-removal "
    "epsilon can be stated for it"
)


def plan(
    config: Given | None = None,
    *,
    output: str | Path | None = None,
    plot: str | Path | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> dict[str, Any]:
    """Epsilon, noise, its ratio to the batch and what would improve it, of a training or of messages.

    The training is that of ``config`` with ``settings``, or of ``settings`` alone: keys of the section
    ``train`` (``federated.users``), other sections' in full (``dedup.mode``), and the numbers of
    :class:`~redactory.training.guarantee.plan.Known`. With ``trainer`` ``ldp`` they are keys of
    :class:`~redactory.training.ldp.settings.LdpSettings`, and ``published.NUMBER`` for the figure as
    published. A finished run of ``config`` adds its points and its measured recall, or its users and
    entities. ``plot`` is an SVG file to write, epsilon against steps. Nothing is trained.
    """
    require_training_packages()
    if plot is not None:
        require_matplotlib()
    given = {key.removeprefix("train."): value for key, value in settings.items()}
    with waiting(progress, "account noise"):
        if config is None and given.get("trainer") == LDP:
            if plot is not None:
                raise ConfigurationError("a plan of messages (ldp) has no steps to plot: omit plot")
            return _of_messages(given)
        return _of_training(config, given, output, plot)


def _of_messages(given: Mapping[str, Any]) -> dict[str, Any]:
    from redactory.training.ldp.card import Published, plan_messages

    found = nested(given)
    del found["trainer"]
    paper = found.pop("published", {})
    unknown = paper.keys() - {entry.name for entry in fields(Published)}
    if unknown:
        raise ConfigurationError(f"published.{shorten(min(unknown))}: unknown number")
    return plan_messages(
        ldp_settings(found), Published(**{key: _number(f"published.{key}", n) for key, n in paper.items()})
    )


def _of_training(
    config: Given | None, given: dict[str, Any], output: str | Path | None, plot: str | Path | None
) -> dict[str, Any]:
    from redactory.training.guarantee import WORDS
    from redactory.training.guarantee.plan import Known, plan_training
    from redactory.training.guarantee.spec import DOCUMENT, MissRates
    from redactory.training.train import start_of
    from redactory.training.trainers import trainer_of

    names = [entry.name for entry in fields(Known) if entry.name in given]
    numbers = {name: _number(name, given.pop(name)) for name in names}
    if config is None:
        loaded = _numbers_alone(given, numbers)
    else:
        loaded = load_config(config, output=output)
        loaded = check(_sections(given, loaded.model_dump(exclude_unset=True))) if given else loaded
    run, train = RunFolder(Path(loaded.output)), loaded.train
    if loaded.known_in == DOCUMENT and not trainer_of(train).of_units:
        raise ConfigurationError(f"release.known_values: {WORDS['known_in_document']}")
    finished = config is not None and is_finished(run)
    recall = train.detector_recall_file or (measured_last(run) if finished else None)
    if recall is not None:
        recall.require_public(loaded.detect.public_labels)
    # with declared values, misses were measured of another function than this one
    known = None if loaded.input.known_value_columns else recall
    rates = MissRates.measured(known, loaded.detect.conservative.flags_everything)
    numbers = {"gamma": rates.gamma, "delta_2": rates.delta_2, **numbers}
    if finished and (noised := points_learnt(run, train)[0]):
        numbers.setdefault("points", noised)
    rule = loaded.dedup.rules()["private"]
    dedup = {"rule": rule.name, "group_size": rule.group_size}
    route, selection, start = loaded.route, None, start_of(run, train)
    if route.strategy != "policies":
        selection = Selection.calibrated(route.epsilon, route.delta, route.texts_per_user)
    if plot is not None and (selection or start):
        raise ConfigurationError("plot: a selection by counts, or an initial model, has no steps to plot: omit it")
    result = plan_training(train, Known(**numbers), dedup, plot is not None, selection, start)
    if selection is not None:
        result["selection"] = planned(route.epsilon, route.delta, route.texts_per_user)
    if config is not None:
        result["remarks"] = [*result.get("remarks", ()), *vocabulary_seen(loaded)[1]]
    if finished and "adjacency_curve" in result:
        result["corpus"] = _corpus(run, loaded)
    if plot is not None:
        curve, labels = (result["steps_curve"], [UNITS]) if "steps_curve" in result else (result["curve"], [])
        title = f"{result['trainer']}: {result.get('adjacency', result.get('relation'))}"
        title += f", noise {result['noise_multiplier']:g}, delta = {format_upper(result['delta'])}"
        write_text(Path(plot), epsilon_plot(curve, title, *labels))
        result["plot"] = str(plot)
    return result


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, int | float):
        raise ConfigurationError(f"{name}: expected a number")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _sections(given: Mapping[str, Any], into: Mapping[str, Any]) -> dict[str, Any]:
    """``into`` with ``given``, of which a key without a section of the configuration is one of ``train``."""
    placed = {
        key if key.partition(".")[0] in Config.model_fields and "." in key else f"train.{key}": value
        for key, value in given.items()
    }
    return nested(placed, into)


def _numbers_alone(given: Mapping[str, Any], numbers: dict[str, Any]) -> Config:
    """A configuration around ``given``; what only a training needs is assumed.

    For ``uedp-bounded`` caps that are absent are suggested by the numbers of users and points: k about n/U.
    The constant that divides the sum, where absent, is what a step draws of the points.
    """
    from redactory.training.guarantee.plan import Known, kept_at_most
    from redactory.training.trainers import TRAINERS
    from redactory.training.uedp.bounded_accounting import suggested_cap

    found = _sections(given, {"input": "numbers"})
    train = found.setdefault("train", {})
    trainer = TRAINERS.get(train.get("trainer", "crt"))
    if trainer is not None and trainer.hides_units:
        own, protect = dict(train.get("bounding", {})), train.get("units", {}).get("privacy_unit", "both")
        if {"users", "points"} <= numbers.keys() and own.get("rule") != "none" and not trainer.samples_users:
            cap = own.get("k_user") or suggested_cap(numbers["points"], numbers["users"])
            if protect != "entities":
                own["k_user"] = cap
            if protect != "users":
                own.setdefault("k_entity", cap)
            train["bounding"] = own
    config = check(found)
    points = kept_at_most(config.train, Known(**numbers))
    if points is not None and "expected_batch_size" not in train:
        train["expected_batch_size"] = points * config.train.sampling_rate
    return check(found)


def _corpus(run: RunFolder, config: Config) -> dict[str, Any]:
    """What each cap keeps of a finished run's points, and of which labels; noise for the target epsilon."""
    from redactory.training.trainers import trainer_of
    from redactory.training.uedp.bounded_accounting import Target, cap_choices
    from redactory.training.uedp.units import read_units

    own = config.train
    steps = trainer_of(own).steps(own)
    target = Target(own.epsilon, own.delta, round(own.expected_batch_size), steps)
    found = cap_choices(read_units(run, own.units), own.units.privacy_unit, target=target)
    return {"note": COUNTED, "target": own.epsilon, **found}


def budget(config: Given) -> dict[str, Any]:
    """What was spent of the budget that ``config`` names in ``train.budget``; nothing is written.

    Returns {budget, unit, epsilon, delta, spent, trainings: [{training, steps, delta, epsilon_after}]}: what
    all trainings cost one unit together, rounded up, and after each. What is left is not the difference:
    together they cost less than the sum (``docs/guarantees.md``, "Several models"). ``GuaranteeError`` where
    the file counts another unit or at another delta, ``CheckFailed`` where it was changed.
    """
    settings = load_config(config).train
    require_training_packages()
    from redactory.training.guarantee.budget import Budget

    found = Budget.of(settings)
    if settings.budget is None or found is None:
        raise ConfigurationError("train.budget: the configuration has none: set its path and its epsilon")
    return {"budget": str(settings.budget.path), **found.summary()}

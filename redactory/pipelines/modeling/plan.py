"""Plan the privacy cost of a training, or of messages, before it runs; report what a budget has spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from redactory import training
from redactory.evaluation.plots import PRIVACY_UNIT_LINES, SECRET_LINES, TARGET_LINES, plot_epsilon, require_matplotlib
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import write_text
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import (
    ConfigLike,
    expand_dotted_keys,
    load_config,
    parse_settings,
    validate_config,
)
from redactory.pipelines.curation.models import require_training_packages
from redactory.pipelines.modeling.train import (
    count_training_examples,
    load_latest_recall_measurement,
    preview_vocabulary,
)
from redactory.redaction import RunFolder, is_finished
from redactory.training import guarantee, ldp, uedp
from redactory.training.count_selection import CountSelection, plan_count_selection
from redactory.training.trainers import TRAINERS, get_trainer

LDP = "ldp"
COUNTED_NOTE = (
    "counted in the private part of the run: no epsilon covers these numbers, so do not publish them; the "
    "user-removal epsilon of train.bounding.rule r-loc does not hold with a cap or a rate that is based on them"
)


def plan(
    config: ConfigLike | None = None,
    *,
    output: str | Path | None = None,
    plot: str | Path | None = None,
    sweep: str | None = None,
    progress: Progress = ignore_progress,
    **settings: Any,
) -> dict[str, Any]:
    """Compute epsilon, noise, its ratio to the batch, and possible improvements for a training or for messages.

    The training is that of ``config`` with ``settings``, or of ``settings`` alone: keys of the section ``train``
    (``federated.users``), other sections' in full (``dedup.mode``), and the numbers of
    :class:`~redactory.training.guarantee.plan.PlanInputs`. With ``trainer`` ``ldp``, keys of
    :class:`~redactory.training.ldp.settings.LdpSettings`, and ``published.NUMBER`` for a published number. A finished
    run of ``config`` adds its examples and measured recall, or its users and entities. ``plot`` is an SVG file to
    write, epsilon against steps. With ``sweep="epsilon"`` the result has other targets, their noise and what it does,
    and ``plot`` draws those. Epsilons of groups are computed for ``group_sizes`` that are set. Nothing is trained.
    """
    require_training_packages()
    if plot is not None:
        require_matplotlib()
    if sweep not in (None, "epsilon"):
        raise ConfigurationError(f"sweep: only epsilon can be swept, not {sweep}")
    values = {key.removeprefix("train."): value for key, value in settings.items()}
    with report_start_and_end(progress, "account noise"):
        if config is None and values.get("trainer") == LDP:
            if plot is not None or sweep is not None:
                raise ConfigurationError("a plan of messages (ldp) has no steps to plot or sweep: omit plot and sweep")
            del values["trainer"]
            return ldp.plan_message_guarantee(parse_settings(ldp.LdpPlanSettings, values))
        return _plan_training(config, values, output, plot, sweep is not None)


def _plan_training(
    config: ConfigLike | None,
    values: dict[str, Any],
    output: str | Path | None,
    plot: str | Path | None,
    has_sweep: bool,
) -> dict[str, Any]:
    names = [entry.name for entry in fields(guarantee.plan.PlanInputs) if entry.name in values]
    numbers = {name: _parse_number(name, values.pop(name)) for name in names}
    if config is None:
        loaded = _make_planning_config(values, numbers)
    else:
        loaded = load_config(config, output=output)
        loaded = validate_config(_merge_sections(values, loaded.model_dump(exclude_unset=True))) if values else loaded
    run, train = RunFolder(Path(loaded.output)), loaded.train
    if loaded.known_values_scope == guarantee.spec.KNOWN_IN_DOCUMENT and not get_trainer(train).has_units:
        raise ConfigurationError(f"release.known_values: {guarantee.WORDS['known_in_document']}")
    has_run = config is not None and is_finished(run)
    recall = train.detector_recall_file or (load_latest_recall_measurement(run) if has_run else None)
    if recall is not None:
        recall.require_public_labels(loaded.detect.public_labels)
    # with declared values, the misses were measured on another function
    applicable_recall = None if loaded.input.known_value_columns else recall
    rates = guarantee.spec.MissRates.from_measurement(applicable_recall, loaded.detect.conservative.flags_everything)
    numbers = {"gamma": rates.gamma, "delta_2": rates.delta_2, **numbers}
    if has_run and (noisy_count := count_training_examples(run, train)[0]):
        numbers.setdefault("points", noisy_count)
    rule = loaded.dedup.get_rules()["private"]
    dedup = {"rule": rule.name, "group_size": rule.group_size}
    route, selection, start = loaded.route, None, None
    if getattr(train.model, "folder", None) is not None:
        start = training.train.load_base_spec(run, train)
    if route.strategy != "policies":
        selection = CountSelection.calibrate(route.epsilon, route.delta, route.texts_per_user)
    if plot is not None and (selection or start) and not has_sweep:
        raise ConfigurationError("plot: a selection by counts, or an initial model, has no steps to plot: omit it")
    if "group_sizes" not in train.model_fields_set:
        # each takes a second, and the card states them
        train = train.model_copy(update={"group_sizes": ()})
    result = guarantee.plan.plan_guarantee(
        train, guarantee.plan.PlanInputs(**numbers), dedup, plot is not None, selection, start, has_sweep
    )
    if selection is not None:
        result["selection"] = plan_count_selection(route.epsilon, route.delta, route.texts_per_user)
    if config is not None:
        result["vocabulary"], problems = preview_vocabulary(loaded)
        result["remarks"] = [*result.get("remarks", ()), *problems]
    if has_run and "adjacency_curve" in result:
        result["corpus"] = _summarize_caps(run, loaded)
    if plot is not None:
        write_text(Path(plot), _draw_plan(result))
        result["plot"] = str(plot)
    return result


def _draw_plan(result: dict[str, Any]) -> str:
    title = f"{result['trainer']}: {result.get('adjacency', result.get('relation'))}"
    if "epsilon_sweep" in result:
        title += f", {result['steps']:,} steps, delta = {format_upper(result['delta'])}"
        return plot_epsilon(result["epsilon_sweep"], title, TARGET_LINES, "epsilon", "noise multiplier, error")
    title += f", noise {result['noise_multiplier']:g}, delta = {format_upper(result['delta'])}"
    has_units = "steps_curve" in result
    lines = PRIVACY_UNIT_LINES if has_units else SECRET_LINES
    return plot_epsilon(result["steps_curve" if has_units else "curve"], title, lines)


def _parse_number(name: str, value: Any) -> Any:
    if not isinstance(value, int | float):
        raise ConfigurationError(f"{name}: expected a number")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _merge_sections(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` updated by ``values``; a key without a section belongs to ``train``."""
    qualified = {
        key if key.partition(".")[0] in Config.model_fields and "." in key else f"train.{key}": value
        for key, value in values.items()
    }
    return expand_dotted_keys(qualified, base)


def _make_planning_config(values: Mapping[str, Any], numbers: dict[str, Any]) -> Config:
    """Make a configuration from ``values`` with placeholders for keys that only a training needs.

    Missing caps of ``uedp-bounded`` follow from the numbers of users and examples: k is about n/U. A missing divisor of
    the sum is the expected number of examples per step.
    """
    sections = _merge_sections(values, {"input": {"path": "numbers", "label": "label"}})
    train = sections.setdefault("train", {})
    trainer = TRAINERS.get(train.get("trainer", "crt"))
    if trainer is not None and trainer.hides_units:
        bounding, protect = dict(train.get("bounding", {})), train.get("units", {}).get("privacy_unit", "both")
        if {"users", "points"} <= numbers.keys() and bounding.get("rule") != "none" and not trainer.samples_users:
            cap = bounding.get("k_user") or uedp.bounded_accounting.suggest_cap(numbers["points"], numbers["users"])
            if protect != "entities":
                bounding["k_user"] = cap
            if protect != "users":
                bounding.setdefault("k_entity", cap)
            train["bounding"] = bounding
    config = validate_config(sections)
    points = guarantee.plan.compute_max_kept_examples(config.train, guarantee.plan.PlanInputs(**numbers))
    if points is not None and "expected_batch_size" not in train:
        train["expected_batch_size"] = points * config.train.sampling_rate
    return validate_config(sections)


def _summarize_caps(run: RunFolder, config: Config) -> dict[str, Any]:
    """Summarize how many examples of a finished run each cap keeps, by label; and the noise for the target epsilon."""
    train_settings = config.train
    steps = get_trainer(train_settings).count_noisy_steps(train_settings)
    target = uedp.bounded_accounting.CalibrationTarget(
        train_settings.epsilon, train_settings.delta, round(train_settings.expected_batch_size), steps
    )
    choices = uedp.bounded_accounting.compare_caps(
        uedp.units.read_unit_incidence(run, train_settings.units, train_settings.has_whole_conversations),
        train_settings.units.privacy_unit,
        target=target,
    )
    return {"note": COUNTED_NOTE, "target": train_settings.epsilon, **choices}


def budget(config: ConfigLike) -> dict[str, Any]:
    """Report what was spent of the budget in ``train.budget`` of ``config``; nothing is written.

    Returns {budget, unit, epsilon, delta, spent, trainings: [{training, steps, delta, epsilon_after}]}: the joint cost
    of all trainings for one unit, rounded up, and the cost after each. The rest is more than the difference, because
    together they cost less than the sum (``docs/guarantees.md``, "Several models"). ``GuaranteeError`` if the file
    counts another unit or at another delta, ``CheckFailed`` if it was changed.
    """
    settings = load_config(config).train
    require_training_packages()
    training_budget = guarantee.budget.Budget.from_settings(settings)
    if settings.budget is None or training_budget is None:
        raise ConfigurationError("train.budget: the configuration has none: set its path and its epsilon")
    return {"budget": str(settings.budget.path), **training_budget.summarize()}

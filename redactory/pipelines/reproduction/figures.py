"""The figures of a reproduction: tables of means and ranges over seeds, and their pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from redactory.evaluation.bootstrap import Bootstrap
from redactory.evaluation.crt_trends import highest_by_chance
from redactory.evaluation.line_plot import Axes, Line, line_plot
from redactory.pipelines.reproduction.plan import BLIND_TO_PI, TRAINERS, Plan

Row = Mapping[str, Any]
COLOURS = {
    "sgd": "#555555",
    "redact-only": "#8a8a8a",
    "sdp": "#b58900",
    "dpsgd": "#cb4b16",
    "crt": "#268bd2",
    "crt-drop": "#2aa198",
}
_DASHES = {"sdp": "2 3", "redact-only": "7 3"}
_EPSILON_COLOURS = ("#268bd2", "#2aa198", "#cb4b16", "#6c71c4", "#b58900", "#555555")


def table_of(plan: Plan, results: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each trainer and place on the figure's axis, over its seeds."""
    groups: dict[tuple[str, float | None, float | None], list[Row]] = defaultdict(list)
    for row in results:
        groups[row["trainer"], row["gamma"], row["target"]].append(row)
    found = []
    for (trainer, gamma, target), rows in groups.items():
        first = rows[0]
        told = {key: first[key] for key in ("epsilon", "epsilon_named", "as_published", "noise_multiplier")}
        one = {"trainer": trainer, "gamma": gamma, "target": target, "seeds": len(rows), **told}
        places = plan.gammas if plan.figure != 2 and trainer in BLIND_TO_PI else (gamma,)
        found += [{**one, "gamma": place, **_figures(plan, rows)} for place in places]
    found.sort(key=lambda row: (TRAINERS.index(row["trainer"]), row["gamma"], row["target"] or 0.0))
    return found


def picture(plan: Plan, table: Sequence[Row], title: str) -> str:
    """The figure as SVG."""
    if plan.figure == 6:
        return _amplification(table, title)
    name = {2: "perplexity", 3: "highest"}.get(plan.figure, "accuracy")
    lines = []
    for trainer in dict.fromkeys(row["trainer"] for row in table):
        own = [row for row in table if row["trainer"] == trainer]
        told = f"{trainer} (as published)" if plan.figure == 2 and trainer == "sdp" else trainer
        style: dict[str, Any] = {"name": told, "colour": COLOURS[trainer], "dashes": _DASHES.get(trainer, "")}
        axis = "target" if plan.figure == 2 else "gamma"
        if own[0][axis] is None:
            lines.append(Line(**style, flat=own[0][name]["value"]))
            continue
        lines.append(Line(**style, points=[(row[axis], *_range(row[name])) for row in own]))
    return line_plot([*lines, *_reference(plan, table)], _axes(plan, title))


def _figures(plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
    if plan.figure == 2:
        return {name: _over([row[name] for row in rows]) for name in ("perplexity", "as_is", "masked")}
    if plan.figure == 3:
        inserted, control = (
            np.array([row["exposures"][side] for row in rows]) for side in ("inserted", "control")
        )
        return {
            "highest": _over([row["highest_exposure"] for row in rows]),
            "mean": _over([row["mean_exposure"] for row in rows]),
            "control_highest": _over([row["control_highest_exposure"] for row in rows]),
            "difference": _difference(inserted.mean(axis=0), control.mean(axis=0)),
            "chance": highest_by_chance(inserted.shape[1]),
        }
    key = "accuracy" if plan.figure == 4 else "group_accuracy"
    told = {
        "accuracy": _over([row[key]["value"] for row in rows]),
        "intervals": [[row[key]["low"], row[key]["high"]] for row in rows],
        "confidence": rows[0]["confidence"],
    }
    if plan.figure == 5:
        told["single"] = float(np.mean([row["accuracy"]["value"] for row in rows]))
    return told


def _over(values: Sequence[float]) -> dict[str, float]:
    return {"value": float(np.mean(values)), "least": min(values), "greatest": max(values)}


def _difference(inserted: Any, control: Any) -> dict[str, Any]:
    """Mean of inserted minus never inserted canaries, bootstrapped over canaries (seeds averaged)."""
    figure = {"value": float(inserted.mean() - control.mean())}
    tails = [
        Bootstrap(np.column_stack([side, np.ones(len(side))]), 0.95, seed=seed)
        for seed, side in enumerate((inserted, control))
    ]
    low, high = _joint([one.resamples(lambda s: s[:, 0] / s[:, 1]) for one in tails])
    return {**figure, "low": low, "high": high}


def _joint(two: Sequence[Any]) -> tuple[float, float]:
    low, high = np.percentile(two[0] - two[1], [2.5, 97.5])
    return float(low), float(high)


def _range(figure: Mapping[str, float]) -> tuple[float, float, float]:
    return figure["value"], figure["least"], figure["greatest"]


def _reference(plan: Plan, table: Sequence[Row]) -> list[Line]:
    if plan.figure == 3 and table:
        return [Line("95 % by chance", "#111111", flat=table[0]["chance"], dashes="1 3", width=1.2)]
    if plan.figure in (4, 5):
        return [Line("a fair coin", "#111111", flat=0.5, dashes="1 3", width=1.2)]
    return []


def _axes(plan: Plan, title: str) -> Axes:
    seeds = f"mean of {plan.seeds} seeds;" if plan.seeds > 1 else "one seed"
    notes = (seeds, "bars: least and greatest") if plan.seeds > 1 else (seeds,)
    if plan.figure == 2:
        return Axes(
            title, "epsilon (Bayesian for crt)", "perplexity outside of secrets", True, True, notes=notes
        )
    x = "miss rate γ of the policy π"
    if plan.figure == 3:
        return Axes(title, x, "highest canary exposure (bits)", low=0.0, high=20.0, notes=notes)
    who = "membership" if plan.figure == 4 else f"membership of groups of {plan.group_size}"
    return Axes(title, x, f"accuracy, {who}", low=0.4, high=1.0, notes=notes)


def _amplification(table: Sequence[Row], title: str) -> str:
    lines = []
    for number, target in enumerate(dict.fromkeys(row["target"] for row in table)):
        colour = _EPSILON_COLOURS[number % len(_EPSILON_COLOURS)]
        for key, told, dashes in (("sound", "sound", ""), ("as_published", "as published", "4 3")):
            own = [row for row in table if row["target"] == target and row[key] is not None]
            points = [(row["gamma"], row[key], row[key], row[key]) for row in own]
            lines.append(Line(f"ε′ = {target:g}, {told}", colour, points, dashes))
    notes = ("as published: no guarantee", "sound: one secret exchanged", "for its mask, δ₂ = 0")
    return line_plot(
        lines, Axes(title, "miss rate γ of the policy π", "Bayesian epsilon", low=0.0, notes=notes)
    )

"""JSON and SVG of the UeDP figures that are done."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uedp_epsilon
from line_plot import Axes, Line, line_plot
from uedp_epsilon import COLOURS
from uedp_jobs import TUNED
from uedp_trainings import METHODS, PRETRAINED, SHARED

Rows = Sequence[Mapping[str, Any]]
CORPORA = ("cuad", "cuad-45", "customersim")
NAMES = {
    "uedp-alg1": "uedp-alg1, M = 1 enforced",
    "uedp-alg1-all-users": "uedp-alg1, M = |U|",
    "user-level": "user-level (users only)",
}


def write(folder: Path, to: Path) -> None:
    """Everything that ``folder`` has results of, as files of ``to``."""
    to.mkdir(parents=True, exist_ok=True)
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    rows = averaged(runs)
    tables = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    _json(to / "uedp_datasets.json", tables)
    for told in json.loads((folder / "epsilon.json").read_text(encoding="utf-8")):
        _json(to / f"uedp_epsilon_{told['corpus']}.json", told)
        _svg(to / f"uedp_epsilon_{told['corpus']}.svg", uedp_epsilon.drawn(told))
    _json(to / "uedp_trainings.json", {"shared": SHARED, "tuned": TUNED, "table": rows, "runs": runs})
    for corpus in CORPORA:
        for start in ("donated", "scratch"):
            own = [r for r in rows if (r["figure"], r["corpus"], r["start"]) == ("perplexity", corpus, start)]
            if own:
                words = "pretrained on donated text" if start == "donated" else "from scratch"
                title = f"{corpus}, LSTM of 200, {words}: tokens outside of entities"
                _svg(to / f"uedp_perplexity_{corpus}_{start}.svg", against(own, title, "perplexity"))
    own = [r for r in rows if r["figure"] == "classify"]
    if own:
        title = "cuad, clause type from the first 16 words: 12 classes, held-out contracts"
        _svg(to / "uedp_classify.svg", against(own, title, "error_rate"))
    # a sweep's other points have the first seed alone
    _sweep([run for run in runs if run.get("seed", 1) == 1], to)


_TRAINING = ("figure", "corpus", "start", "method", "target", "note")


def averaged(runs: Rows) -> list[dict[str, Any]]:
    """One row for each training but its seed: means over the seeds, and the range of the main figure."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[tuple(run[key] for key in _TRAINING)].append(run)
    found = []
    for own in groups.values():
        key = "error_rate" if "error_rate" in own[0] else "perplexity"
        values = [run[key] for run in own]
        means = {
            name: _mean([run[name] for run in own]) for name in (key, "as_is", "masked", "seconds") if name in own[0]
        }
        found.append({**own[0], **means, "seeds": len(own), "least": min(values), "greatest": max(values)})
    return found


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of each number of mappings."""
    if isinstance(values[0], Mapping):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return sum(values) / len(values)


def against(rows: Rows, title: str, key: str) -> str:
    """A measure against sound epsilon; methods without one are lines across."""
    lines = []
    for method in (PRETRAINED, *METHODS):
        own = sorted((r for r in rows if r["method"] == method), key=lambda r: r["target"] or 0.0)
        if not own:
            continue
        name, colour = NAMES.get(method, method), COLOURS.get(method, "#86b300")
        if own[0]["target"] is None:
            lines.append(Line(name, colour, flat=own[0][key], style="--"))
        else:
            lines.append(Line(name, colour, [(r["target"], r[key]) for r in own]))
    ticks = sorted({row["target"] for row in rows if row["target"] is not None})
    if key == "error_rate":
        # as a line it would take most of the plot
        note = f"{NOTE}; always the most frequent class: {_majority(rows):.3f}"
        axes = Axes(title, "sound epsilon", "test error rate", True, notes=(note,), ticks=ticks)
    else:
        axes = Axes(title, "sound epsilon", "perplexity", True, _wide(rows), notes=(NOTE,), ticks=ticks)
    return line_plot(lines, axes)


def _wide(rows: Rows) -> bool:
    """Whether perplexity spans more than a factor of 2.5, and has a logarithmic axis."""
    values = [row["perplexity"] for row in rows]
    return bool(max(values) > 2.5 * min(values))


NOTE = "test users, delta = 1e-5; user-level hides users, not entities"


def _majority(rows: Rows) -> float:
    return float(rows[0]["as_is"]["majority_error_rate"])


def _sweep(rows: Rows, to: Path) -> None:
    """The two sweeps, at epsilon 8, with the main figure's training among the points."""
    main = [r for r in rows if r["figure"] == "perplexity" and r["corpus"] == "cuad" and r["target"] == 8.0]
    main = [r for r in main if r["start"] == "donated"]
    k = [r for r in [*rows, *main] if r["method"] == "uedp-bounded" and (r["figure"] == "k" or r in main)]
    q = [r for r in [*rows, *main] if r["method"] == "uedp-alg1" and (r["figure"] == "q-s" or r in main)]
    ks = sorted({(r["settings"]["bounding"]["k_user"], r["perplexity"]) for r in k})
    qs = sorted({(r["settings"]["federated"].get("related_entity_rate", 1.0), r["perplexity"]) for r in q})
    levels = [
        Line(r["method"], COLOURS.get(r["method"], "#86b300"), flat=r["perplexity"], style="--")
        for r in rows
        if (r["figure"], r["corpus"], r["start"], r["target"]) == ("perplexity", "cuad", "donated", None)
    ]
    y = ("perplexity", False, _wide([*k, *q]))
    if len(ks) > 1:
        bounded = Line("uedp-bounded", COLOURS["uedp-bounded"], ks)
        title = "cuad, cap on the points of a user, uedp-bounded at sound epsilon 8"
        axes = Axes(title, "k_user, most points of a user (k_entity = 1)", *y, notes=(NOTE,))
        _svg(to / "uedp_k.svg", line_plot([bounded, *levels], axes))
    if len(qs) > 1:
        alg1 = Line("uedp-alg1, M = 1", COLOURS["uedp-alg1"], qs)
        title = "cuad, rate q_s of points without an entity, uedp-alg1 at sound epsilon 8"
        _svg(to / "uedp_q_s.svg", line_plot([alg1, *levels], Axes(title, "q_s", *y, notes=(NOTE,))))


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _svg(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

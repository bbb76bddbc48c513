"""Reproduce: the figures of the CRT paper on a labelled corpus, the published trend stated beside ours."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redactory.evaluation.crt_trends import PUBLISHED, compared
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json, write_text
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.reproduction.corpus import Corpus, run_facts
from redactory.pipelines.reproduction.figures import picture, table_of
from redactory.pipelines.reproduction.formula import SAMPLING_RATE, STEPS, amplification
from redactory.pipelines.reproduction.measures import Measure, measure_of
from redactory.pipelines.reproduction.plan import Plan, checked
from redactory.pipelines.reproduction.training import Training, settings_of, spent, trained, trainings
from redactory.redaction import RunFolder


def reproduce_crt(
    figure: int,
    out: str | Path,
    *,
    data: str | Path | None = None,
    test: str | Path | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> dict[str, Any]:
    """Figure 2, 3, 4, 5 or 6 of the CRT paper, written to ``out`` as ``figure-N.json`` and ``figure-N.svg``.

    ``data`` and ``test`` are labelled rows (JSON lines: text, spans) to train on and to measure on; without
    them CustomerSim is simulated.  ``settings`` are the other fields of
    :class:`~redactory.pipelines.reproduction.plan.Plan`: rows, seeds, gammas, epsilons, trainers, width, ….
    π misses a share γ of the labelled values by construction, and π_c none.

    Models and measurements are kept in ``out``: figures there share what they have in common, and an
    interrupted reproduction goes on.  Returns {figure, published, ours: [{claim, trainer, holds}], table,
    facts, files}; no text.  ``ConfigurationError`` where ``out`` holds another corpus or other constants.
    """
    rows, held_out = (None if path is None else Path(path) for path in (data, test))
    try:
        plan = checked(Plan(figure, Path(out), data=rows, test=held_out, **settings))
    except TypeError:
        raise ConfigurationError(f"reproduce: unknown setting among {', '.join(sorted(settings))}") from None
    require_training_packages()
    plan.out.mkdir(parents=True, exist_ok=True)
    if plan.figure == 6:
        mechanism = {"sampling_rate": SAMPLING_RATE, "steps": STEPS, "delta": plan.delta}
        return _written(plan, amplification(plan, progress), {"mechanism": mechanism}, [])
    facts, results = _trained(plan, progress)
    return _written(plan, table_of(plan, results), facts, results)


def _trained(plan: Plan, progress: Progress) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train and measure what is not done yet; the facts, and every line of the figure."""
    facts = _same_as_before(plan)
    kept = _kept(plan)
    corpus: Corpus | None = None
    measure: Measure | None = None
    wanted = list(trainings(plan))
    for number, one in enumerate(wanted):
        if one.key not in kept:
            corpus = corpus or Corpus.of(plan)
            measure = measure or measure_of(plan, corpus)
            run = corpus.curated(one.gamma, progress)
            sides = facts["runs"].setdefault(f"{one.gamma:g}", run_facts(run))
            write_json(plan.out / "facts.json", facts)
            kept[one.key] = _one(plan, run, one, sides, measure, progress)
            with plan.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept[one.key]) + "\n")
        progress(f"figure {plan.figure}", number + 1, len(wanted), "models")
    return facts, [kept[one.key] for one in wanted]


def _one(
    plan: Plan,
    run: RunFolder,
    one: Training,
    sides: dict[str, int],
    measure: Measure,
    progress: Progress,
) -> dict[str, Any]:
    """Train, measure, and say what it cost."""
    settings = settings_of(plan, one, sides)
    begun = time.monotonic()
    model = trained(run, settings, progress)
    seconds = time.monotonic() - begun
    return {
        "key": one.key,
        "trainer": one.trainer,
        "seed": one.seed,
        "gamma": one.gamma,
        "target": one.target,
        "noise_multiplier": settings.noise_multiplier if one.target is not None else None,
        **spent(settings, one),
        **measure(model, one),
        "seconds": round(seconds, 1),
    }


def _written(
    plan: Plan, table: Sequence[Mapping[str, Any]], facts: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    name = f"figure-{plan.figure}"
    files = [plan.out / f"{name}.json", plan.out / f"{name}.svg"]
    page = {
        "figure": plan.figure,
        "published": PUBLISHED[plan.figure],
        "ours": compared(plan.figure, table),
        "facts": facts,
        "table": [dict(row) for row in table],
    }
    write_json(files[0], {**page, "runs": results})
    write_text(files[1], picture(plan, table, _title(plan)))
    return {**page, "files": [str(path) for path in files]}


def _title(plan: Plan) -> str:
    what = {
        2: "Perplexity against epsilon",
        3: "Canary exposure against the miss rate",
        4: "Membership inference against the miss rate",
        5: "Group membership inference",
        6: "What redaction makes of an epsilon",
    }[plan.figure]
    if plan.figure == 6:
        return f"{what} (δ = {plan.delta:g})"
    corpus = "simulated CustomerSim" if plan.data is None else plan.data.stem
    return f"{what}: {corpus}, {plan.kind.upper()} {plan.width}"


def _same_as_before(plan: Plan) -> dict[str, Any]:
    """The facts kept in the folder; ``ConfigurationError`` where they are of another reproduction."""
    path = plan.out / "facts.json"
    own = json.loads(json.dumps(plan.corpus()))
    if not path.exists():
        return {**own, "runs": {}}
    facts: dict[str, Any] = read_json(path)
    differ = [key for key in own if facts.get(key) != own[key]]
    if differ:
        raise ConfigurationError(
            f"out: {plan.out} holds a reproduction with other {', '.join(differ)}; give another folder"
        )
    return facts


def _kept(plan: Plan) -> dict[str, dict[str, Any]]:
    path = plan.results
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}

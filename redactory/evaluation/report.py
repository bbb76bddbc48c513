"""How a night compares with earlier ones, for the report: what was held back, and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.dedup.rules import told
from redactory.detectors import blind_of, blind_words
from redactory.evaluation import report_facts as facts
from redactory.evaluation.drift import METRICS
from redactory.evaluation.report_facts import pick_examples
from redactory.evaluation.report_models import (
    ModelReport,
    model_page,
    model_report,
    model_reports,
    shard_findings,
)
from redactory.evaluation.sample_labels import resting_on_labellers
from redactory.evaluation.simulator import CANARY_DIGITS
from redactory.foundation.errors import some
from redactory.foundation.files import read_json, write_text
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import is_finished

if TYPE_CHECKING:
    from jinja2 import Environment


_METRICS = {
    **METRICS,
    **{
        f"hits/{policy}/{by}": f"hits of {sign} per 1,000 points"
        for policy, sign in (("strict", "π"), ("conservative", "π_c"))
        for by in ("label", "detector")
    },
}


@dataclass(frozen=True)
class Chart:
    """Where this run's figure and the earlier ones lie, and their limits: percents from the upper edge."""

    values: list[float]
    expected: float
    low: float
    high: float

    @classmethod
    def of(cls, figure: Mapping[str, Any]) -> Chart:
        """A chart as high as all of them need, this run last."""
        values = [*figure["history"], figure["value"]]
        lowest, highest = min(*values, figure["low"]), max(*values, figure["high"])
        room = (highest - lowest or abs(highest) or 1.0) * 0.06

        def down(value: float) -> float:
            return float(100 * (highest + room - value) / (highest - lowest + 2 * room))

        return cls([down(value) for value in values], *(down(figure[k]) for k in ("expected", "low", "high")))


@dataclass(frozen=True)
class Row:
    """One figure beside its limits, as it is shown."""

    name: str
    metric: str
    value: str
    expected: str
    limits: str
    of: str
    outside: bool
    chart: Chart


@dataclass(frozen=True)
class Drift:
    """The judgement of the gate, or that there was none to make."""

    verdict: str
    empty: bool
    runs: list[str]
    other_policies: int
    least: int
    outside: list[Row]
    within: list[Row]


def drift_of(run: RunFolder) -> Drift | None:
    """What the gate kept of ``run``; None where it never stood before one."""
    if not is_finished(run.gate):
        return None
    result = read_json(run.gate.root / "result.json")
    rows = [_row(figure) for figure in result["compared"]]
    return Drift(
        result["verdict"],
        result.get("empty", False),
        result["runs"],
        len(result["other_policies"]),
        result["settings"]["least"],
        [row for row in rows if row.outside],
        [row for row in rows if not row.outside],
    )


def _row(figure: Mapping[str, Any]) -> Row:
    shares = figure["kind"] == "share"

    def said(value: float) -> str:
        return f"{100 * value:.1f}%" if shares else f"{value:,.1f}"

    metric = _METRICS[figure["metric"]]
    return Row(
        figure["label"] or metric,
        metric if figure["label"] else "",
        said(figure["value"]),
        said(figure["expected"]),
        f"{said(figure['low'])} to {said(figure['high'])}",
        f"{figure['count']:,} of {figure['n']:,}" if shares else some(figure["count"], "hit"),
        figure["outside"],
        Chart.of(figure),
    )


# ``report.html``: what a run did, for people, in one page that needs no network and no script.


_LARGEST_EXPOSURE = CANARY_DIGITS * math.log2(10)
_TEMPLATE, _MODEL_TEMPLATE = "report.html.j2", "model.html.j2"


def render_report(run: RunFolder) -> str:
    """The page of a finished run and its finished models, the same for the same run folder.

    It quotes some public points, shows private ones as skeletons only, and loads nothing.
    """
    manifest = read_json(run.manifest)
    counts = manifest["counts"]
    missed = read_json(run.recall.root / "result.json") if is_finished(run.recall) else None
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            manifest=manifest,
            counts=counts,
            blind=blind_words(blind_of(manifest)),
            flow=facts.flow(counts),
            laws=facts.conservation(manifest),
            found=facts.found(manifest),
            most_rows=facts.MOST_ROWS,
            most_histograms=facts.MOST_HISTOGRAMS,
            seconds=facts.total_seconds(manifest["stages"]),
            dedup=told(manifest["dedup"]),
            missed=missed,
            resting=resting_on_labellers(missed) if missed and "sample" in missed else [],
            shards=shard_findings(run),
            drift=drift_of(run),
            models=model_reports(run),
            examples=pick_examples(run),
            largest_exposure=_LARGEST_EXPOSURE,
            mask=MASK,
        )
    )


def render_model(report: ModelReport) -> str:
    """The page of one model: how good it is, what is promised, what attacks found; it loads nothing."""
    return _environment().get_template(_MODEL_TEMPLATE).render(model=report)


def pages_of(run: RunFolder) -> Iterator[tuple[Path, str]]:
    """Each page of a finished run and what stands on it: its finished models', and then its own report.

    A model has its page as HTML and as Markdown.
    """
    for name in run.model_names():
        folder = run.model(name)
        report = model_report(folder)
        yield folder.report, render_model(report)
        yield folder.measured, model_page(report)
    yield run.report, render_report(run)


def write_report(run: RunFolder) -> Path:
    """Commit :func:`pages_of` the run, mode 0600, and return the path of ``RUN/report.html``."""
    for path, page in pages_of(run):
        write_text(path, page)
    return run.report


@functools.cache
def _environment() -> Environment:
    """The templates and what they call; each is compiled once a process, not once a model."""
    # most commands write no report
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("redactory.evaluation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "share": facts.share,
        "amount": facts.amount,
        "size": facts.size,
        "duration": facts.duration,
        "engine": facts.engine_line,
        "ranked": facts.ranked,
        "some": some,
    }
    environment.filters.update(filters)
    return environment

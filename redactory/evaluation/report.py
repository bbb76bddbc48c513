"""``report.html``: what a run did, for people, in one page that needs no network and no script."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.dedup.told import told
from redactory.detectors import blind_of, blind_words
from redactory.evaluation import report_facts as facts
from redactory.evaluation.examples import pick_examples
from redactory.evaluation.model_page import model_page
from redactory.evaluation.report_drift import drift_of
from redactory.evaluation.report_models import ModelReport, model_report, model_reports
from redactory.evaluation.report_shards import shard_findings
from redactory.evaluation.sample_words import resting_on_labellers
from redactory.evaluation.simulator import CANARY_DIGITS
from redactory.foundation.files import read_json, write_text
from redactory.foundation.wording import some
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import is_finished

if TYPE_CHECKING:
    from jinja2 import Environment

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

"""Render the pages of a run and its models, for people; they need no network and no script.

The sentences are in ``words.j2``, the pages in the other templates.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from redactory.dedup.settings import summarize_dedup as dedup_summary
from redactory.detectors import describe_gaps, describe_languages
from redactory.detectors.settings import format_public_label_note, get_public_labels
from redactory.evaluation.canary import compute_chance_quantile
from redactory.evaluation.drift import METRICS
from redactory.evaluation.simulator import CANARY_DIGITS
from redactory.foundation.bounds import TEMPLATE_FILTERS
from redactory.foundation.errors import pluralize
from redactory.foundation.files import read_json, write_text
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.mask import MASK, describe_reason
from redactory.redaction.sealing import is_finished, read_result
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from jinja2 import Environment, Template

EVALUATIONS = ("perplexity", "accuracy", "canary", "extraction", "membership", "audit", "synthetic")
_MAX_TEXT_CHARS, _MAX_FULL_NUMBER = 320, 1e6


def write_report(run: RunFolder) -> Path:
    """Commit the run's :func:`render_pages`, mode 0600, and return the path of ``RUN/report.html``."""
    for path, page in render_pages(run):
        write_text(path, page)
    return run.report


def render_pages(run: RunFolder) -> Iterator[tuple[Path, str]]:
    """Yield path and content of each page of a finished run: its finished models', then its report.

    A model has its page as HTML and as Markdown.
    """
    for name in run.list_model_names():
        folder = run.get_model_folder(name)
        report = build_model_report(folder)
        yield folder.report, load_template("model.html.j2").render(model=report)
        yield folder.measured, load_template("model.md.j2").render(model=report).replace(MASK, f"`{MASK}`")
    yield run.report, render_report(run)


def render_report(run: RunFolder) -> str:
    """Render the page of a finished run and its finished models, the same for the same run folder.

    It quotes some public examples and no private one, and loads nothing.
    """

    def read_folder_result(folder: Any) -> Any:
        return read_json(folder.root / "result.json") if is_finished(folder) else None

    manifest = read_json(run.manifest)
    misses, shards = read_folder_result(run.recall), read_folder_result(run.redaction)
    hits = sorted(manifest["spans"], key=lambda hit: (-hit["count"], hit["label"]))
    hit_tables = [(name, [h for h in hits if h["policy"] == name]) for name in ("strict", "conservative", "public")]
    return load_template("report.html.j2").render(
        manifest=manifest,
        counts=manifest["counts"],
        uncovered=describe_gaps(manifest["uncovered"]),
        languages=describe_languages(manifest["uncovered"]),
        open=format_public_label_note(get_public_labels(manifest)),
        flow=build_flow_chart(manifest["counts"]),
        laws=list_conservation_laws(manifest),
        found=[table for table in hit_tables if table[1]],
        dedup=dedup_summary(manifest["dedup"]),
        missed=misses,
        resting=explain_zero_bounds(misses) if misses and "sample" in misses else [],
        shards=render_findings("shards", shards) if shards else [],
        drift=read_folder_result(run.gate),
        metrics={name: words.split(", by ")[0] for name, words in METRICS.items()},
        models=[build_model_report(run.get_model_folder(name)) for name in run.list_model_names()],
        public=_pick_public_examples(run.public),
        canary_digits=CANARY_DIGITS,
    )


def list_conservation_laws(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sums of a run that must hold: {whole: (name, count), parts: [(name, count)], holds}."""
    counts = manifest["counts"]
    names = {
        "rows": ["documents", "rejected"],
        "examples": ["public", "private", "duplicate", "quarantined"],
        "duplicate": ["public_duplicate", "private_duplicate"],
    }
    laws = {name: {part: counts[part] for part in parts} for name, parts in names.items()}
    laws |= {name: dict(sorted(manifest[name].items())) for name in ("rejected", "quarantined")}
    return [
        {"whole": (name, counts[name]), "parts": list(parts.items()), "holds": counts[name] == sum(parts.values())}
        for name, parts in laws.items()
        # skip "0 = 0", unless something should have been there
        if name in ("rows", "examples") or counts[name] or any(parts.values())
    ]


@dataclass(frozen=True)
class FlowBar:
    """A bar of the flow: the class for its colour, the denominator of its share, and its parts."""

    name: str
    count: int
    kind: str
    whole: int
    parts: tuple[FlowBar, ...]


def build_flow_chart(counts: Mapping[str, int]) -> FlowBar:
    """Build the flow of rows to documents, examples, splits and shards; missing counts have no bar."""

    def make_bar(name: str, kind: str, count: int, *parts: FlowBar, whole: int = 0) -> FlowBar:
        return FlowBar(name, count, kind, whole, tuple(part for part in parts if part.count))

    example_count, split_bars = counts["examples"], []
    for split in ("public", "private"):
        kept_count, left_out = counts[split], counts[f"{split}_duplicate"]
        parts = [
            make_bar(f"{split.capitalize()} split", split, kept_count, whole=example_count),
            make_bar("Duplicates", "duplicate", left_out, whole=example_count),
        ]
        parts = parts if split == "public" else parts[::-1]
        split_bars.append(make_bar(split.capitalize(), split, kept_count + left_out, *parts, whole=example_count))
    quarantined = make_bar("Quarantined", "quarantined", counts["quarantined"], whole=example_count)
    examples = make_bar("Examples", "neutral", example_count, *split_bars, quarantined)
    documents = make_bar("Documents", "neutral", counts["documents"], examples)
    rejected = make_bar("Rejected", "rejected", counts["rejected"], whole=counts["rows"])
    return make_bar("Rows", "neutral", counts["rows"], documents, rejected)


def _pick_public_examples(folder: Path, count: int = 8) -> list[str]:
    """Return the shortened texts of the ``count`` lowest released ids, a keyed random choice."""
    rows: list[tuple[str, str]] = []
    for batch in read_batches(folder, ["example_id", "text"]):
        # create Python objects for only a few of millions of examples
        least = batch.take(pc.select_k_unstable(batch, count, [("example_id", "ascending")]))
        rows = heapq.nsmallest(count, [*rows, *zip(*(c.to_pylist() for c in least.columns), strict=True)])
    return [text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "…" for _, text in rows]


# A model in words without mathematics: its guarantee and its measurements.


@dataclass(frozen=True)
class EvaluationFinding:
    """A metric, its subject and its meaning; ``alarming`` if an attack did better than chance."""

    title: str
    figure: str
    sentence: str
    alarming: bool = False


@dataclass(frozen=True)
class ModelReport:
    """One finished model: its guarantee card, its results by evaluation, and both in words."""

    name: str
    card: Mapping[str, Any]
    results: Mapping[str, Mapping[str, Any]]
    promises: list[str]
    figures: list[EvaluationFinding]
    utility: list[EvaluationFinding]
    attacks: list[EvaluationFinding]


def build_model_report(folder: ModelFolder) -> ModelReport:
    """Collect one finished model with all its evaluations."""
    card = read_json(folder.guarantee)
    results = {evaluation: read_result(folder, evaluation) or {} for evaluation in EVALUATIONS}
    curve = read_json(folder.held_out)["rows"] if folder.held_out.exists() else []
    utility, attacks = (render_findings(part, {**results, "held_out": curve}) for part in ("utility", "attacks"))
    words = list_promises(card), list_card_metrics(card), utility, attacks
    return ModelReport(folder.root.name, card, results, *words)


def render_findings(macro_name: str, *facts: Any) -> list[EvaluationFinding]:
    """Render ``facts`` with the macro ``macro_name`` of ``words.j2``."""
    findings: list[EvaluationFinding] = []

    def add_finding(title: str = "", figure: str = "", alarming: bool = False, *, caller: Callable[[], str]) -> str:
        findings.append(EvaluationFinding(title, figure, " ".join(caller().split()), alarming))
        return ""

    getattr(load_template("words.j2").make_module({"say": add_finding}), macro_name)(*facts)
    return findings


def list_promises(card: Mapping[str, Any]) -> list[str]:
    """What the card promises, in a few sentences each; empty if it promises nothing."""
    epsilon = card["epsilon"]
    return [] if epsilon is None else [finding.sentence for finding in render_findings("promises", card, epsilon)]


def explain_zero_bounds(score: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each bound that is 0 because everything that could contain a miss was labelled."""
    return [finding.sentence for finding in render_findings("zero_bounds", score)]


def list_card_metrics(card: Mapping[str, Any]) -> list[EvaluationFinding]:
    """The card's metrics, each with its meaning as title; one without a figure has the reason as its sentence."""
    return render_findings("card_metrics", card)


def load_template(name: str, package: str = __package__) -> Template:
    """Load a template of ``package``; each is compiled once per process."""
    return _create_environment(package).get_template(name)


def format_amount(value: float | None, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits; a dash for null."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _MAX_FULL_NUMBER else f"{value:.{digits}g}"


def format_share(part: int, whole: int) -> str:
    """Format a percentage that rounds neither something to 0 nor a part to 100 %."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if percent > 99.9 and part < whole:
        return ">99.9%"
    return f"{percent:.1f}%"


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _format_engine(engine_facts: Mapping[str, Any]) -> str:
    digests = engine_facts.get("sha256", ())
    digests = [digests] if isinstance(digests, str) else digests
    named = " ".join(str(engine_facts[key]) for key in ("name", "version") if key in engine_facts)
    packages = ", ".join(f"{name} {version}" for name, version in engine_facts.get("versions", {}).items())
    return "; ".join(filter(None, (named, *(f"sha256 {digest[:16]}…" for digest in digests), packages)))


@functools.cache
def _create_environment(package: str) -> Environment:
    # most commands write no report
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, ".") for name in (package, "redactory.training.guarantee")]),
        autoescape=lambda name: name is None or name.endswith((".html.j2", ".css.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=package != __package__,
    )
    environment.filters |= {
        **TEMPLATE_FILTERS,
        "amount": format_amount,
        "percent": lambda value: "–" if value is None else f"{100 * value:.1f}%",
        "share": format_share,
        "some": pluralize,
        "log2": math.log2,
        "duration": _format_duration,
        "engine": _format_engine,
        "highest_quantile": compute_chance_quantile,
        "reason_words": describe_reason,
    }
    return environment

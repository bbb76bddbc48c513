"""Fit a calibrated token tagger on labelled rows, and write its card."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from redactory.detectors.engine import Engine
from redactory.detectors.settings import FitSettings, TaggerSettings
from redactory.detectors.spacy_model import get_package_versions
from redactory.detectors.tagger import LabelledText, TaggerEngine, calibrate_tagger, find_tagger_folder, train_tagger
from redactory.evaluation.detection import ALL_LABELS, MatchCounts, count_matches
from redactory.evaluation.labelled import read_labelled_rows
from redactory.evaluation.plots import plot_reliability, render_plot
from redactory.evaluation.statistics import compute_binomial_p_value
from redactory.foundation.bounds import TEMPLATE_FILTERS
from redactory.foundation.canonical import folder_sha256, read_blocks
from redactory.foundation.errors import ConfigurationError, InputError, pluralize
from redactory.foundation.files import PUBLIC_FILE, TEMPORARY_PREFIX, write_json, write_text
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.loading import parse_settings

MIN_ROWS = 20
LabelledTexts = list[LabelledText]


def fit_tagger(
    labelled: Sequence[str | Path],
    out: str | Path,
    settings: FitSettings | Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    *,
    held_back: str | Path | None = None,
) -> dict[str, Any]:
    """Train a tagger on files of labelled rows and write it, with its card, to the new folder ``out``.

    A share of the distinct texts, chosen by digest, is held out: one half calibrates (CRT, appendix A.4, puts a
    threshold on scores, which is meaningful only for calibrated ones), the other measures the card's metrics and the
    effect of the calibration; with a file of rows ``held_back``, both calibrate, and the file measures. It must be a
    random sample and share no text with ``labelled``, else ``InputError``. ``held_out`` has the metrics of the tagger,
    ``start_held_out`` those of the start on the same rows, ``worse_than_start`` whether that is the better one, and
    ``compared`` {better: fitted, start or neither, more, fewer: texts in which the tagger covers more or fewer spans,
    chance: the p-value of a sign test of these}.
    """
    chosen = parse_settings(FitSettings, settings)
    folder = Path(out)
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists: give another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # an unkeyed digest would let any recipient test guesses of a small file
    files, key = [Path(path) for path in labelled], load_digest_key()
    rows = {text.text: text for path in files for text in _read_labelled_texts(path)}
    training, fitted_on, tested_on = _split_rows(list(rows.values()), chosen)
    if held_back is not None:
        files.append(Path(held_back))
        fitted_on, tested_on = [*fitted_on, *tested_on], _read_held_back_texts(files[-1], rows)
    temporary_folder = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}")
    shutil.rmtree(temporary_folder, ignore_errors=True)
    try:
        start = None if chosen.start is None else find_tagger_folder(chosen.start)
        nlp = train_tagger(training, chosen, progress, start)
        reliability = calibrate_tagger(nlp, fitted_on, tested_on)
        nlp.to_disk(temporary_folder)
        counts, record = _count_by_row(_load_tagger(temporary_folder), tested_on), chosen.model_dump(mode="json")
        start_counts = None if start is None else _count_by_row(_load_tagger(start), tested_on)
        scores, start_scores = _compute_scores(counts), start_counts and _compute_scores(start_counts)
        if start is not None:
            record["start"] = {"folder": start.name, "sha256": folder_sha256(start)}
        result = {
            "rows": len(training),
            "held_out_rows": len(fitted_on) + len(tested_on),
            "held_back": None if held_back is None else files[-1].name,
            "labels": dict(sorted(Counter(s[2] for row in training for s in row.spans).items())),
            "held_out": scores,
            "files": [{"name": path.name, "digest": key.compute_file_digest(read_blocks(path))} for path in files],
            "start_held_out": start_scores,
            "reliability": asdict(reliability),
            "settings": record,
            "versions": get_package_versions("redactory", "onnxruntime", "tokenizers", "numpy"),
            "worse_than_start": _is_worse(scores, start_scores),
            "compared": start_counts and _compare_with_start(counts, start_counts),
        }
        write_json(temporary_folder / "fit.json", result, PUBLIC_FILE)
        rendered_plots = render_plot("reliability.svg", plot_reliability, reliability.bins, reliability.error)
        environment = Environment(
            loader=PackageLoader("redactory.pipelines.measure", "."),
            undefined=StrictUndefined,
            trim_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters.update(TEMPLATE_FILTERS)
        page = environment.get_template("fit_card.md.j2")
        card = page.render(**result, name=folder.name, drawn=rendered_plots)
        for name, text in {**rendered_plots, "README.md": card}.items():
            write_text(temporary_folder / name, text, PUBLIC_FILE)
        temporary_folder.replace(folder)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)
    return {"tagger": str(folder), **result}


def _load_tagger(folder: Path) -> TaggerEngine:
    return TaggerEngine(TaggerSettings(models=(str(folder),)), "en")


def _read_held_back_texts(path: Path, fitted: Mapping[str, LabelledText]) -> LabelledTexts:
    rows = {row.text: row for row in _read_labelled_texts(path, to_fit=False)}
    if shared := len(rows.keys() & fitted.keys()):
        raise InputError(f"{path.name}: {pluralize(shared, 'text')} also in the rows to fit: hold other rows back")
    if not any(row.spans for row in rows.values()):
        raise InputError(f"{path.name}: no row has a labelled span, so nothing can be compared")
    return list(rows.values())


def _read_labelled_texts(path: Path, to_fit: bool = True) -> LabelledTexts:
    return [
        LabelledText(row["text"], tuple((s["start"], s["end"], s["label"]) for s in row["spans"]))
        for row in read_labelled_rows(path, to_fit=to_fit)
        if row["text"].strip()
    ]


def _split_rows(rows: LabelledTexts, settings: FitSettings) -> tuple[LabelledTexts, LabelledTexts, LabelledTexts]:
    """Split rows into training, calibration and test rows by the digest of each text, not by position."""
    if len(rows) < MIN_ROWS:
        raise InputError(f"a tagger needs at least {MIN_ROWS} distinct labelled texts, got {len(rows)}: label more")
    ordered = sorted(rows, key=lambda row: (hashlib.sha256(f"{settings.seed}\0{row.text}".encode()).hexdigest(), row))
    held_out_count = max(2, round(settings.held_out * len(rows)))
    if not any(row.spans for row in ordered[held_out_count:]):
        raise InputError("no row left for training has a labelled span: there is nothing to learn")
    return ordered[held_out_count:], ordered[: held_out_count // 2], ordered[held_out_count // 2 : held_out_count]


def _count_by_row(engine: Engine, rows: Sequence[LabelledText]) -> list[MatchCounts]:
    counts = []
    for row in rows:
        (engine_output,) = engine.read([row.text])
        predicted = [(span.start, span.end) for span in engine_output.spans if span.score >= 0.5]
        counts.append(count_matches(row.text, row.spans, predicted))
    return counts


def _compute_scores(rows: Sequence[MatchCounts]) -> dict[str, Any]:
    """Measure fully covered labelled spans, and the labelled share of found characters, at score 0.5.

    ``misses`` counts spans that are not covered; ``upper`` is its one-sided Clopper-Pearson bound.
    """
    counts: MatchCounts = sum(rows, Counter())

    def compute_share(label: str, numerator: str, denominator: str) -> float | None:
        total = counts[label, denominator]
        return round(counts[label, numerator] / total, 4) if total else None

    def count_misses(label: str) -> dict[str, Any]:
        n = counts[label, "labelled"]
        misses = n - counts[label, "cover_labelled"]
        return {"n": n, "misses": misses, "upper": clopper_pearson_upper(misses, n)}

    labels = sorted({label for label, _ in counts} - {ALL_LABELS})
    return {
        "rows": len(rows),
        "spans": counts[ALL_LABELS, "labelled"],
        "cover_recall": compute_share(ALL_LABELS, "cover_labelled", "labelled"),
        "char_precision": compute_share(ALL_LABELS, "chars_both", "chars_marked"),
        "missed": count_misses(ALL_LABELS),
        "by_label": {label: count_misses(label) for label in labels},
    }


def _compare_with_start(rows: Sequence[MatchCounts], start_rows: Sequence[MatchCounts]) -> dict[str, Any]:
    """Return {better, more, fewer, chance} of a tagger and its start, from their counts of the same rows."""
    pairs = list(zip(rows, start_rows, strict=True))
    gains = [row[ALL_LABELS, "cover_labelled"] - start[ALL_LABELS, "cover_labelled"] for row, start in pairs]
    more, fewer = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    scores, start_scores = _compute_scores(rows), _compute_scores(start_rows)
    worse, improved = _is_worse(scores, start_scores), _is_worse(start_scores, scores)
    better = "start" if worse else "fitted" if improved else "neither"
    # without an effect each text that differs is as likely to gain as to lose
    chance = compute_binomial_p_value(min(more, fewer), more + fewer, 0.5)
    return {"better": better, "more": more, "fewer": fewer, "chance": min(1.0, 2 * chance)}


def _is_worse(scores: Mapping[str, Any], start: Mapping[str, Any] | None) -> bool:
    """Whether a tagger covers fewer labelled spans than its start, or has a lower F2 (van Rijsbergen 1979).

    F2 weighs recall, of spans, four times as much as precision, of characters.
    """

    def rank(measured: Mapping[str, Any]) -> tuple[float, float]:
        recall, precision = measured["cover_recall"] or 0.0, measured["char_precision"] or 0.0
        return recall, 5 * precision * recall / (4 * precision + recall) if recall else 0.0

    return start is not None and any(
        score < at_start for score, at_start in zip(rank(scores), rank(start), strict=True)
    )

"""Fit a calibrated token tagger on labelled rows, and write its card."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redactory.detectors.engine import Engine
from redactory.detectors.settings import FitSettings, TaggerSettings
from redactory.detectors.spacy_model import get_package_versions
from redactory.detectors.tagger import LabelledText, TaggerEngine, calibrate_tagger, find_tagger_folder, train_tagger
from redactory.evaluation.detection import (
    ALL_LABELS,
    MatchCounts,
    count_matches,
    estimate_miss_rate,
    parse_labelled_spans,
)
from redactory.evaluation.labelled import read_labelled_rows, require_other_rows
from redactory.evaluation.plots import plot_reliability, render_plot
from redactory.evaluation.report import load_template
from redactory.foundation.canonical import folder_sha256, read_blocks
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import PUBLIC_FILE, TEMPORARY_PREFIX, write_json, write_text
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.loading import ConfigLike, load_config, parse_settings
from redactory.pipelines.measure.evaluate_detection import evaluate_detect

MIN_ROWS = 20
LabelledTexts = list[LabelledText]


def fit_tagger(
    labelled: Sequence[str | Path],
    out: str | Path,
    settings: FitSettings | Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    *,
    held_back: str | Path | None = None,
    config: ConfigLike | None = None,
) -> dict[str, Any]:
    """Train a tagger on files of labelled rows and write it, with its card, to the new folder ``out``.

    A share of the distinct texts, chosen by digest, is held out: one half calibrates (CRT, appendix A.4, puts a
    threshold on scores, which is meaningful only for calibrated ones), the other measures the card's metrics and the
    effect of the calibration. ``start_held_out`` has the metrics of the start on the same rows, and
    ``worse_than_start`` whether it is the better one. ``held_back``, a file of other rows, compares the policies of
    ``config`` (default: the built-in ones with the start) with those that add this tagger: {present, fitted:
    :func:`evaluate_detect`}, else None.
    """
    chosen, folder = parse_settings(FitSettings, settings), Path(out)
    if config is not None and held_back is None:
        raise ConfigurationError("config: its policies are compared on other labelled rows: add --held-back")
    base = {"detect": {"tagger": {"models": [chosen.start or "default"]}}} if config is None else config
    present = load_config(base, input={"path": str(held_back)})
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists: give another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # an unkeyed digest would let any recipient test guesses of a small file
    files, key = [Path(path) for path in labelled], load_digest_key()
    rows = {
        row["text"]: LabelledText(row["text"], tuple(parse_labelled_spans(row["spans"])))
        for path in files
        for row in read_labelled_rows(path, to_fit=True)
        if row["text"].strip()
    }
    require_other_rows(held_back, rows)
    # before the fit, because it may refuse the rows
    compared = {} if held_back is None else {"present": evaluate_detect(held_back, present, progress=progress)}
    training, fitted_on, tested_on = _split_rows(list(rows.values()), chosen)
    temporary_folder = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}")
    shutil.rmtree(temporary_folder, ignore_errors=True)
    try:
        start = None if chosen.start is None else find_tagger_folder(chosen.start)
        nlp = train_tagger(training, chosen, progress, start)
        reliability = calibrate_tagger(nlp, fitted_on, tested_on)
        nlp.to_disk(temporary_folder)
        scores, record = _score_tagger(temporary_folder, tested_on), chosen.model_dump(mode="json")
        start_scores = None if start is None else _score_tagger(start, tested_on)
        if start is not None:
            record["start"] = {"folder": start.name, "sha256": folder_sha256(start)}
        result = {
            "rows": len(training),
            "held_out_rows": len(fitted_on) + len(tested_on),
            "labels": dict(sorted(Counter(s[2] for row in training for s in row.spans).items())),
            "held_out": scores,
            "files": [{"name": path.name, "digest": key.compute_file_digest(read_blocks(path))} for path in files],
            "start_held_out": start_scores,
            "reliability": asdict(reliability),
            "settings": record,
            "versions": get_package_versions("redactory", "onnxruntime", "tokenizers", "numpy"),
            "worse_than_start": _is_worse(scores, start_scores),
        }
        write_json(temporary_folder / "fit.json", result, PUBLIC_FILE)
        rendered_plots = render_plot("reliability.svg", plot_reliability, reliability.bins, reliability.error)
        card = load_template("fit_card.md.j2").render(**result, name=folder.name, drawn=rendered_plots)
        for name, text in {**rendered_plots, "README.md": f"{card}\n"}.items():
            write_text(temporary_folder / name, text, PUBLIC_FILE)
        temporary_folder.replace(folder)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)
    if held_back is not None:
        models = present.detect.tagger.models if present.detect.tagger else ()
        tagger = TaggerSettings(models=(*models, str(folder.absolute())))
        fitted = present.model_copy(update={"detect": present.detect.model_copy(update={"tagger": tagger})})
        compared["fitted"] = evaluate_detect(held_back, fitted, progress=progress)
    return {"tagger": str(folder), **result, "held_back": compared or None}


def _score_tagger(folder: Path, rows: Sequence[LabelledText]) -> dict[str, Any]:
    return _score_engine(TaggerEngine(TaggerSettings(models=(str(folder),)), "en"), rows)


def _split_rows(rows: LabelledTexts, settings: FitSettings) -> tuple[LabelledTexts, LabelledTexts, LabelledTexts]:
    """Split rows into training, calibration and test rows by the digest of each text, not by position."""
    if len(rows) < MIN_ROWS:
        raise InputError(f"a tagger needs at least {MIN_ROWS} distinct labelled texts, got {len(rows)}: label more")
    ordered = sorted(rows, key=lambda row: (hashlib.sha256(f"{settings.seed}\0{row.text}".encode()).hexdigest(), row))
    held_out_count = max(2, round(settings.held_out * len(rows)))
    if not any(row.spans for row in ordered[held_out_count:]):
        raise InputError("no row left for training has a labelled span: there is nothing to learn")
    return ordered[held_out_count:], ordered[: held_out_count // 2], ordered[held_out_count // 2 : held_out_count]


def _score_engine(engine: Engine, rows: Sequence[LabelledText]) -> dict[str, Any]:
    """Measure fully covered labelled spans, and the labelled share of found characters, at score 0.5."""
    counts: MatchCounts = Counter()
    for row in rows:
        (engine_output,) = engine.read([row.text])
        predicted = [(span.start, span.end) for span in engine_output.spans if span.score >= 0.5]
        counts.update(count_matches(row.text, row.spans, predicted))

    def compute_share(label: str, numerator: str, denominator: str) -> float | None:
        total = counts[label, denominator]
        return round(counts[label, numerator] / total, 4) if total else None

    labels = {label: n for (label, name), n in sorted(counts.items()) if name == "labelled" and label != ALL_LABELS}
    return {
        "rows": len(rows),
        "spans": counts[ALL_LABELS, "labelled"],
        "cover_recall": compute_share(ALL_LABELS, "cover_labelled", "labelled"),
        "char_precision": compute_share(ALL_LABELS, "chars_both", "chars_marked"),
        "by_label": {label: estimate_miss_rate(n - counts[label, "cover_labelled"], n) for label, n in labels.items()},
    }


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

"""Measure what the policies find and miss in labelled text, and what the shards alone reveal."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redactory.detectors import Detector, DetectSettings, TextDetector, baselines, compute_policy_hashes
from redactory.detectors.rules import load_optional_words
from redactory.detectors.settings import PatternSettings, get_kinds, get_public_labels, require_unfitted_rows
from redactory.evaluation import detection, linkage
from redactory.evaluation.detection_errors import DetectionError, Suggestions, count_errors, find_errors, suggest_terms
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.recall import count_unmasked_secrets, measure_misses
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256, get_package_version
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, pluralize
from redactory.foundation.files import write_text
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.models import seal_result
from redactory.pipelines.curation.policy import make_run_router
from redactory.pipelines.curation.segment import make_segmenter
from redactory.pipelines.measure.label import load_recall_measurement, read_policy_fit, save_recall_measurement
from redactory.redaction import RunFolder, list_parts, read_manifest
from redactory.redaction.shards import read_batches, read_values


def evaluate_detect(
    labelled: str | Path,
    config: ConfigLike | None = None,
    *,
    detector: TextDetector | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Measure recall, precision, misses and public share on the labelled rows of a file.

    Texts are segmented and searched as in ``config``, or by the defaults; ``detector`` replaces the engines. Returns
    :func:`~redactory.evaluation.detection.measure_detection` with {labelled, rows, spans, spans_outside_examples,
    segment, policies: {name: hash}, public_labels}; spans with a public label are not secrets. ``ConfigurationError``
    if the policies were fitted on any of these rows (``docs/guarantees.md``, "Coverage failure").
    """
    settings = _load_settings(labelled, config)
    examples, file_facts = _read_labelled_examples(Path(labelled), settings)
    return file_facts | detection.measure_detection(detector or Detector(settings.detect), examples, progress)


def evaluate_against(
    labelled: str | Path,
    against: Iterable[str],
    config: ConfigLike | None = None,
    *,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Compare the policies and other engines on the labelled rows of a file.

    ``against`` names the engines: ``presidio``, ``spacy``, both also with ``:PIPELINE``; ``stanza:FOLDER``,
    ``transformers:FOLDER``, or an engine of another package, ``NAME`` or ``NAME:FOLDER``. Texts are segmented as in
    ``config``, and engines use its ``detect.language``. Returns {labelled, rows, spans, spans_outside_examples,
    segment, policies, public_labels, language, examples, distinct_examples, secrets, table: the rows of
    :func:`~redactory.evaluation.detection.compare_detectors`, engines: {name: description}, version, interval}. Before
    any text is read, raises ``ConfigurationError`` for an unknown, missing or repeated engine, ``InputError`` without
    labels.
    """
    settings = _load_settings(labelled, config)
    detect = settings.detect
    references = baselines.resolve_reference_engines(against, detect.language)
    examples, file_facts = _read_labelled_examples(Path(labelled), settings)
    secrets = sum(len(example.spans) for example in examples)
    if not secrets:
        raise InputError(
            f"{Path(labelled).name}: no secret is labelled in {pluralize(file_facts['rows'], 'row')}, so nothing can "
            "be measured; label each secret as a span"
        )
    engines = {reference.name: baselines.ReferenceDetector(reference, detect.public_labels) for reference in references}
    return {
        **file_facts,
        "language": detect.language,
        "examples": len(examples),
        "distinct_examples": len({example.text for example in examples}),
        "secrets": secrets,
        "table": detection.compare_detectors(Detector(detect), engines, examples, progress),
        "engines": {reference.name: reference.identity for reference in references},
        "version": get_package_version("redactory"),
        "interval": detection.INTERVAL_KINDS,
    }


def find_labelled_errors(
    labelled: str | Path,
    config: ConfigLike | None = None,
    *,
    detector: TextDetector | None = None,
    progress: Progress = ignore_progress,
) -> tuple[dict[str, Any], list[DetectionError], Suggestions]:
    """Find errors as :func:`evaluate_errors`; return its result, which has no text, then errors and terms with text."""
    settings = _load_settings(labelled, config)
    # rows that were chosen to fit a tagger are not a random sample, but they show its errors
    examples, file_facts = _read_labelled_examples(Path(labelled), settings, to_fit=True)
    cache = detection.DetectionCache(detector or Detector(settings.detect))
    cache.detect_new_texts([example.text for example in examples], progress)
    errors = list(find_errors(examples, cache, settings.detect))
    suggestions = suggest_terms(examples, errors)
    counts = {
        "examples": len(examples),
        "quarantined": sum(cache[example.text].failure is not None for example in examples),
        "errors": count_errors(errors),
        "deny": sum(map(len, suggestions.deny.values())),
        "allow": len(suggestions.allow),
        "withheld": suggestions.withheld,
        "lists": None,
    }
    return file_facts | counts, errors, suggestions


def evaluate_errors(
    labelled: str | Path,
    config: ConfigLike | None = None,
    *,
    lists: str | Path | None = None,
    detector: TextDetector | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Group what the strict policy misses and wrongly masks in labelled rows by kind, engine and recognizer.

    ``lists`` is a new file (mode 0600) for deny and allow lists that fix the errors, to copy into a configuration; they
    are original text. Returns {labelled, rows, spans, examples, quarantined, errors:
    :func:`~redactory.evaluation.detection_errors.count_errors`, deny, allow, withheld (numbers of terms), lists (the
    written file, or None)}; no text. ``ConfigurationError`` if the policies were fitted on any of these rows, or the
    file exists.
    """
    if lists is not None and os.path.lexists(lists):
        raise ConfigurationError(f"{lists} exists, and may be a configuration: give a new file")
    result, _, suggestions = find_labelled_errors(labelled, config, detector=detector, progress=progress)
    if lists is not None and (suggestions.deny or suggestions.allow):
        write_text(Path(lists), suggestions.to_yaml())
        result["lists"] = str(lists)
    return result


def _load_settings(labelled: str | Path, config: ConfigLike | None) -> Config:
    # only the labelled file is read, so a configuration with just a detect section suffices
    return load_config({} if config is None else config, input={"path": str(labelled)})


def _read_labelled_examples(
    path: Path, settings: Config, *, to_fit: bool = False
) -> tuple[list[detection.LabelledExample], dict[str, Any]]:
    """Return the examples of the rows of a file, and facts about rows and policies for the result."""
    detect, cut = settings.detect, make_segmenter(settings.segment)
    rows = list(read_labelled_rows(path, detect.public_labels, to_fit=to_fit))
    require_unfitted_rows([row["text"] for row in rows], detect.conservative.fitted, load_digest_key())
    examples = [
        detection.LabelledExample(number, text, spans, public)
        for number, row in enumerate(rows)
        for (text, spans), (_, public) in zip(
            split_labelled_row(row, cut), split_labelled_row({**row, "spans": row.get("public", ())}, cut), strict=True
        )
    ]
    count = sum(len(row["spans"]) for row in rows)
    placed = {(example.row, span["number"]) for example in examples for span in example.spans}
    return examples, {
        "labelled": str(path),
        "rows": len(rows),
        "spans": count,
        "spans_outside_examples": count - len(placed),
        "segment": settings.segment.mode,
        "policies": compute_policy_hashes(detect),
        "public_labels": list(detect.public_labels),
    }


def evaluate_recall(
    config: ConfigLike, *, output: str | Path | None = None, progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Measure labelled secrets that the policies miss, and which of them the shards still hold.

    The misses are sealed in the run's private state for the guarantee. They must be measured on secrets of this corpus
    that no policy was tuned on. The person who gives the labels vouches for that; only rows that ``fit_policy`` fitted
    this run's policy on are detected. A span with a public label of the run is not a secret: it is neither drawn nor
    missed. ``date`` is the day of the measurement, or of the first one with the same result.
    """
    settings = load_config(config, output=output)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.evaluate.labelled is None:
        raise ConfigurationError("evaluate.labelled: set it to a file of labelled rows")
    labelled, public = Path(settings.evaluate.labelled), get_public_labels(manifest)

    def measure_recall() -> dict[str, Any]:
        rows, cut = list(read_labelled_rows(labelled, public)), make_segmenter(settings.segment)
        require_unfitted_rows([row["text"] for row in rows], read_policy_fit(manifest), load_digest_key())
        secrets = [(text, [span]) for row in rows for text, spans in split_labelled_row(row, cut) for span in spans]
        # sample secrets uniformly, not rows, which hold different numbers of them
        order = RandomStream.from_seed(len(secrets)).permutation("labelled sample", 0, len(secrets))
        sample = [secrets[i] for i in sorted(order[: settings.evaluate.labelled_secrets].tolist())]
        examples, spans = [text for text, _ in sample], [span_list for _, span_list in sample]
        result = {
            "run": str(run.root),
            "secrets": len(secrets),
            "public_labels": list(public),
            "misses": measure_misses(make_run_router(manifest), examples, spans, progress=progress),
            "left": count_unmasked_secrets(run, rows),
        }
        result["date"] = find_measurement_date(run, result)
        save_recall_measurement(run, result)
        return result

    return run_with_sealed_traceback(run.state, measure_recall)


def find_measurement_date(run: RunFolder, result: dict[str, Any]) -> str:
    """Return the first day with this ``result``, so that a training that resumes after midnight agrees."""
    try:
        previous = load_recall_measurement(run) or {}
    except CheckFailed:
        previous = {}
    date = previous.pop("date", None)
    return date if date and previous == result else datetime.datetime.now(datetime.UTC).date().isoformat()


# Attacks on the shards alone.


_UNITS = ("document", "user")
TEACHER_NOTE = (
    "the run's tagger was trained on labels of spaCy's small English pipeline, so misses of both stay "
    "unseen here; for an independent check use another engine (stanza:FOLDER, transformers:FOLDER)"
)


def evaluate_redaction(
    run: str | Path,
    engine: str | None = None,
    sample: int = 5_000,
    rare: int = linkage.MAX_RARE_HOLDERS,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Run three attacks on the shards of a finished run alone; none needs a model.

    ``linkage``: private examples linked to public ones by rare phrases, by document and by user. ``residual``: spans
    that an ``engine`` that did not mask (spacy, patterns, tagger, or with its model spacy:PIPELINE, stanza:FOLDER,
    transformers:FOLDER) finds on ``sample`` examples of each split. ``across``: public examples that nearly duplicate a
    private one. An attack that is impossible is null, with its reason under ``reasons``. The result is sealed in the
    run's private state; ids, counts and labels, no text.
    """
    folder = RunFolder(Path(run))
    detect = DetectSettings.from_manifest(read_manifest(folder)["configuration"]["detect"])
    public = get_kinds(detect.public_labels)
    chosen, no_engine = choose_independent_engine(detect, engine)

    def run_attacks() -> dict[str, Any]:
        texts = {
            split: list(read_values(getattr(folder, split), "example_id", "text")) for split in ("public", "private")
        }
        authors, has_repeat_users = _map_authors(folder)
        linkages: dict[str, Any] = dict.fromkeys(authors)
        for unit in authors if has_repeat_users else ["document"]:
            shown, hidden = (
                [linkage.ReleasedExample(i, text, frozenset(authors[unit].get(i, ()))) for i, text in rows]
                for rows in texts.values()
            )
            linkages[unit] = linkage.run_linkage_attack(shown, hidden, rare, progress=progress)
        residual = None
        if chosen is not None:
            run_engines = Detector(baselines.build_engine_settings(chosen, detect.language)).run_engines
            words = load_optional_words(detect.language)
            is_teacher = detect.tagger is not None and chosen == "spacy"
            # leave the path of a model out of the result
            residual = {"engine": chosen.partition(":")[0], "note": TEACHER_NOTE if is_teacher else None} | {
                split: linkage.count_residual_identifiers(run_engines, rows, sample, 0, progress, words, public)
                for split, rows in texts.items()
            }
        cross_split = _summarize_cross_split_duplicates(folder)
        missing = {
            "linkage.user": None if has_repeat_users else "no user wrote more than one document: same as by document",
            "residual": no_engine or None,
            "across": None
            if cross_split
            else "the run was curated without dedup.report_cross_split: nothing was compared across the split",
        }
        result = {"run": str(folder.root), "linkage": linkages, "residual": residual, "across": cross_split}
        result["reasons"] = {name: reason for name, reason in missing.items() if reason}
        body = {"format": "redactory-evaluation/1", "parent": file_sha256(folder.manifest)}
        seal_result(folder.redaction, result, body)
        write_report(folder)
        return result

    return run_with_sealed_traceback(folder.state, run_attacks)


def choose_independent_engine(detect: DetectSettings, engine: str | None = None) -> tuple[str | None, str]:
    """Return an engine that did not mask, or None and why; ``ConfigurationError`` if ``engine`` did or is unknown."""
    if detect.presidio is not None and detect.patterns is None:
        # most of our patterns are its recognizers
        detect = detect.model_copy(update={"patterns": PatternSettings()})
    # not spaCy: the shipped tagger was trained on it, and most of its other spans are false
    free = [name for name in baselines.ENGINES_WITHOUT_MODEL if getattr(detect, name) is None]
    if engine is None:
        masked_with = " and ".join(baselines.ENGINES_WITHOUT_MODEL)
        reason = f"the run masked with {masked_with}; choose another engine to check it: {baselines.MODEL_SYNTAX}"
        return (free[0], "") if free else (None, reason)
    try:
        baselines.build_engine_settings(engine, detect.language)
    except ConfigurationError as error:
        raise ConfigurationError(f"engine: {error}") from None
    name = engine.partition(":")[0]
    if name in detect.engines or getattr(detect, name, None) is not None:
        raise ConfigurationError(
            f"engine: {name} masked this run, so its check is not independent; use "
            f"{' or '.join(free) or 'an engine that the run does not use'}"
        )
    return engine, ""


def _map_authors(run: RunFolder) -> tuple[dict[str, dict[str, set[str]]], bool]:
    """Map each released example to all its keyed documents and users; also, whether a user has several documents."""
    import pandas as pd

    columns = ["example_id", "released_id", "dup_of", "document", "user"]
    batches = [batch.to_pandas() for batch in read_batches(run.examples, columns)]
    examples = pd.concat(batches, ignore_index=True) if batches else pd.DataFrame(columns=columns)
    first_copies = examples["dup_of"].fillna(examples["example_id"])
    examples["released_id"] = first_copies.map(examples.set_index("example_id")["released_id"].dropna())
    authors: Any = {
        unit: examples.dropna(subset=unit).groupby("released_id")[unit].agg(set).to_dict() for unit in _UNITS
    }
    pairs = examples[[*_UNITS]].drop_duplicates()
    return authors, len(pairs) > pairs["user"].nunique(dropna=False)


def _summarize_cross_split_duplicates(run: RunFolder) -> dict[str, Any] | None:
    """Count the public examples that nearly duplicate a private one, and summarize their similarity."""
    if not list_parts(run.across):
        return None
    near = list(read_values(run.across, "released_id", "similarity"))
    public = Counter(released for released, _ in near)
    return {
        "pairs": len(near),
        "public_examples": len(public),
        "highest_similarity": max((float(value) for _, value in near), default=None),
        "listed": sorted(public)[:100],
    }

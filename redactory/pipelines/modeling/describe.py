"""Describe what a run would do; nothing is written."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

from redactory.dedup.signatures import describe_near_parameters
from redactory.detectors import (
    Detector,
    build_policies,
    build_policy_records,
    describe_gaps,
    describe_label_coverage,
    describe_languages,
    detect_languages,
    find_coverage_gaps,
)
from redactory.foundation.errors import RedactoryError, pluralize
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.curate import check_engines, check_metadata_columns, choose_text_column
from redactory.pipelines.curation.loading import ConfigLike, load_config, load_text_config
from redactory.pipelines.curation.personal_columns import is_field_name
from redactory.pipelines.curation.policy import Policy
from redactory.pipelines.curation_hints import describe_text_column
from redactory.pipelines.modeling.train import preview_vocabulary
from redactory.pipelines.readers import find_sources
from redactory.pipelines.readers.documents import RowCounts, preview_rows
from redactory.pipelines.store import is_url
from redactory.redaction import route_example
from redactory.training.settings import TRAINERS, TrainSettings

MAX_ROWS = 1_000
MAX_SHOWN_ROWS = 10
MAX_TRIAL_DOCUMENTS = 100
"""Maximum number of documents that the policies are applied to."""
MAX_TRIAL_CHARS = 300_000
"""Total length in characters after which no further document is added."""


def describe(config: ConfigLike, *, progress: Progress = ignore_progress, **changes: Any) -> dict[str, Any]:
    """Return the stages, the policies and their hashes, the columns found, the first bad rows, and a trial.

    Reads at most the first thousand rows of each file, and applies the policies to a hundred of them; no row is shown.
    """
    settings = load_config(config, **changes)
    sources = find_sources(settings.input.path, settings.input.format)
    settings, chosen = choose_text_column(settings, sources)
    check_engines(settings, progress)
    check_metadata_columns(settings, sources)
    counts, policy = RowCounts(settings.input), Policy(settings)
    samples = {source: preview_rows(source, counts, MAX_ROWS) for source in sources}
    bad = [
        {"source": rejection.source, "row": rejection.row, "reason": rejection.reason}
        for sample in samples.values()
        for rejection in sample.rejections
    ]
    languages = Counter(language for sample in samples.values() for language in detect_languages(sample.texts))
    gaps = find_coverage_gaps(settings.detect, languages, policy.masks_nothing())
    # without a training, packages for vocabularies may be missing
    has_training = settings.train.vocabulary_sources != TrainSettings().vocabulary_sources
    vocabulary, remarks = preview_vocabulary(settings) if has_training else (None, list[str]())
    refused = None
    try:
        counts.check_totals()
    except RedactoryError as error:
        refused = str(error)
    return {
        "uncovered": describe_gaps(gaps),
        "output": str(settings.output),
        "sources": [
            {
                "path": source.name,
                "format": source.format,
                "columns": _list_safe_column_names(sample.columns, settings, policy),
            }
            for source, sample in samples.items()
        ],
        "bad_rows": bad[:MAX_SHOWN_ROWS],
        "bad_rows_by_reason": dict(Counter(entry["reason"] for entry in bad)),
        "evaluation_files_missing": _find_missing_files(settings),
        "bad_rows_seen": len(bad),
        "columns_missing": [
            {
                "source": source.name,
                "key": f"input.{key}",
                "column": ", ".join(settings.input.fields.columns) if key == "text" else getattr(settings.input, key),
            }
            for source, sample in samples.items()
            for key in sample.missing_keys
        ],
        "rows_looked_at": MAX_ROWS,
        "refused": refused,
        "stages": _describe_stages(settings),
        "policies": build_policy_records(settings.detect),
        "labels": describe_label_coverage(settings.detect),
        "trial": _try_policies(policy, [text for sample in samples.values() for text in sample.documents], progress),
        "languages": describe_languages(gaps),
        "vocabulary": vocabulary,
        "remarks": [*([describe_text_column(chosen)] if chosen else []), *remarks],
        "configuration_hash": settings.compute_curation_hash(),
    }


def _list_safe_column_names(columns: Sequence[str], settings: Config, policy: Policy) -> list[str]:
    """Return the column names; one that is not a single word may be data, and is searched."""
    names = [name for name in columns if not is_field_name(name, settings.detect.language)]
    results = zip(names, policy.read_many(names), strict=True)
    spans = {name: [span for one in examples for span in one.spans] for name, examples in results}
    personal = {name for name, found_spans in spans.items() if any(span.policy == "strict" for span in found_spans)}
    return ["(a name that looks personal)" if name in personal else name for name in columns]


def _try_policies(policy: Policy, documents: list[str], progress: Progress) -> dict[str, Any]:
    """Count what the policies do to the examples of :data:`MAX_TRIAL_DOCUMENTS` documents (fewer if long), and why."""
    documents = documents[:MAX_TRIAL_DOCUMENTS]
    sizes = accumulate(map(len, documents), initial=0)
    texts = [text for text, before in zip(documents, sizes, strict=False) if before < MAX_TRIAL_CHARS]
    split_counts, reasons, masked, public = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with report_start_and_end(progress, "try the policies"):
        for examples in policy.route_many(texts, joined=True):
            for example in examples:
                split_counts[example.split] += 1
                reasons.update(example.reasons)
                masked.update(span.label for span in example.spans if span.policy == "strict")
                public.update(span.label for span in example.public)
    return {
        "documents": len(texts),
        "examples": split_counts.total(),
        **{split: split_counts[split] for split in ("public", "private", "quarantined")},
        "reasons": dict(reasons.most_common()),
        "masked": dict(masked.most_common()),
        "left_public": dict(public.most_common()),
    }


def _find_missing_files(settings: Config) -> list[str]:
    """Return the missing files of ``evaluate``, which would otherwise be noticed only after the training."""
    evaluate = settings.evaluate
    named = [("test", path) for path in evaluate.test]
    named += [(key, path) for key in ("canaries", "labelled") if (path := getattr(evaluate, key))]
    return [
        f"evaluate.{key}: {path}"
        for key, path in named
        if not (is_url(path) or Path(path).exists() or any(glob.iglob(path)))
    ]


def _describe_stages(config: Config) -> list[dict[str, str]]:
    from jinja2 import StrictUndefined, Template

    template = (files("redactory.pipelines.modeling") / "describe.j2").read_text(encoding="utf-8")
    strict, conservative = build_policies(config.detect)
    lines = Template(template, undefined=StrictUndefined, autoescape=False).render(
        config=config,
        masked=len(strict.min_scores),
        conservative_rules=conservative.settings.rules,
        rules=config.dedup.get_rules(),
        near=describe_near_parameters(config.dedup.near),
        trainer=TRAINERS[config.train.trainer],
        some=pluralize,
    )
    stages = (line.partition(": ") for line in lines.splitlines() if line)
    return [{"stage": stage, "does": does} for stage, _, does in stages]


# Explain: which engine found each span of a text, and what each policy does with it.


def explain(text: str, config: ConfigLike | None = None, *, progress: Progress = ignore_progress) -> dict[str, Any]:
    """Explain what detection does to ``text`` as one example; **the result quotes the text**.

    Returns {text, split, masked, failure, reasons, marks}; a mark is {start, end, value, label, score, detector, masks,
    makes_private, public}: the spans of engines and rules in text order.
    """
    settings = load_text_config(config)
    with report_start_and_end(progress, "load engines"):
        detector = Detector(settings.detect)
    (engine_output,) = detector.run_engines([text])
    detection = detector.apply_policies(text, engine_output)
    decision = route_example(text, detection)
    masked, flagged = set(detection.strict), set(detection.conservative)
    marks = [
        {
            **span._asdict(),
            "value": text[span.start : span.end],
            "masks": span in masked,
            "makes_private": span in masked or span in flagged,
            "public": span in detection.public,
        }
        for span in sorted({*engine_output.spans, *masked, *flagged})
    ]
    return {
        "text": text,
        "split": "quarantined" if decision.failure else decision.split,
        "masked": decision.text,
        "failure": decision.failure,
        "reasons": list(decision.reasons),
        "marks": marks,
    }


# The commented configurations of ``redactory init`` and of the demonstration.


def write_example_config(path: Path) -> None:
    """Write the example to a new file; ``FileExistsError`` if it exists."""
    with path.open("x", encoding="utf-8") as file:
        file.write((files("redactory.pipelines.modeling") / "example.yaml").read_text(encoding="utf-8"))

"""Evaluate detection: what a configuration's policies find and miss in any labelled file."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from redactory.detectors import Detector, DetectSettings, TextDetector, policy_hashes
from redactory.detectors.settings import refuse_fitted_rows
from redactory.evaluation.detection import POLICIES, LabelledPoint, measure_detection
from redactory.evaluation.leaks import secrets_left
from redactory.evaluation.recall import measure_misses
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config, SegmentSettings
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.sample import keep_recall, kept_recall
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import Cutter, segmenter
from redactory.redaction import RunFolder, read_manifest

Policy = Literal["strict", "conservative", "both"]


def evaluate_detect(
    labelled: str | Path,
    config: Given | None = None,
    policy: Policy = "both",
    *,
    detector: TextDetector | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Recall, precision, misses and public share on ``labelled``, JSONL in the span schema.

    Texts are segmented and read as ``config`` says (its ``segment`` and ``detect``), or by the defaults;
    every labelled span is a secret, mapped into the points.  ``policy`` chooses whose figures are given,
    ``strict`` (π), ``conservative`` (π and π_c together) or both; the miss rate of both together and the
    public share are always there.
    ``detector`` stands in for the configured engines.  The result is that of
    :func:`~redactory.evaluation.detection.measure_detection` with {labelled, rows, spans,
    spans_outside_points, segment, policies: {name: hash}}.

    ``ConfigurationError`` where the policies were fitted on any of these rows: a figure measured there
    says nothing of other texts (``docs/guarantees.md``, "Coverage failure").
    """
    path = Path(labelled)
    segment, detect = _settings(config, path)
    if policy not in (*POLICIES, "both"):
        raise ConfigurationError(f"policy: one of {', '.join(POLICIES)} or both")
    rows = list(labelled_rows(path))
    refuse_fitted_rows([row["text"] for row in rows], detect.conservative.fitted, load_digest_key())
    points = list(_points(rows, segmenter(segment)))
    spans = sum(len(row["spans"]) for row in rows)
    result = measure_detection(
        detector or Detector(detect), points, tuple(POLICIES) if policy == "both" else (policy,), progress
    )
    return {
        "labelled": str(path),
        "rows": len(rows),
        "spans": spans,
        "spans_outside_points": spans - _placed(points),
        "segment": segment.mode,
        "policies": policy_hashes(detect),
        **result,
    }


def _settings(config: Given | None, labelled: Path) -> tuple[SegmentSettings, DetectSettings]:
    if config is None:
        return SegmentSettings(), DetectSettings()
    # the labelled file is what is read: a file with a detect section alone will do
    given = load_config(config, input={"path": str(labelled)})
    return given.segment, given.detect


def _points(rows: Sequence[dict[str, Any]], cut: Cutter) -> Iterator[LabelledPoint]:
    for number, row in enumerate(rows):
        spans = [{**span, "number": place} for place, span in enumerate(row["spans"])]
        for text, inside in labelled_points({**row, "spans": spans}, cut):
            yield LabelledPoint(number, text, inside)


def _placed(points: Sequence[LabelledPoint]) -> int:
    return len({(point.row, span["number"]) for point in points for span in point.spans})


# Evaluate recall: what the policies miss of labelled secrets, and what of them the shards still hold.


def evaluate_recall(
    config: Given, *, output: str | Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """What the policies miss of labelled secrets, and which of them the shards still hold.

    The misses are sealed in the run's private state, where the guarantee takes them from: they must be
    measured on secrets of this corpus that no policy was tuned on.  Whoever gives the labels vouches for
    that; what is checked is that no row is one that ``fit_policy`` fitted this run's policy on.  ``date`` is
    the day of the measurement, or of the first one that gave the same.
    """
    settings = load_config(config, output=output)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.evaluate.labelled is None:
        raise ConfigurationError("evaluate.labelled: name a JSONL file with true spans there")
    return sealed(run.state, _recall, run, settings, manifest, Path(settings.evaluate.labelled), progress)


def _recall(
    run: RunFolder, config: Config, manifest: dict[str, Any], labelled: Path, progress: Progress
) -> dict[str, Any]:
    fitted = DetectSettings.model_validate(manifest["configuration"]["detect"]).conservative.fitted
    refuse_fitted_rows((row["text"] for row in labelled_rows(labelled)), fitted, load_digest_key())
    cut = segmenter(config.segment)
    secrets = [
        (text, span)
        for row in labelled_rows(labelled)
        for text, spans in labelled_points(row, cut)
        for span in spans
    ]
    # a uniform sample of the secrets themselves: rows hold different numbers of them
    order = RandomStream.from_seed(len(secrets)).permutation("labelled sample", 0, len(secrets))
    sample = [secrets[i] for i in sorted(order[: config.evaluate.labelled_secrets].tolist())]
    texts, spans = [text for text, _ in sample], [[span] for _, span in sample]
    result = {
        "run": str(run.root),
        "secrets": len(secrets),
        "misses": measure_misses(detect_fates(manifest), texts, spans, progress=progress),
        "left": secrets_left(run, labelled_rows(labelled)),
    }
    result["date"] = known_since(run, result)
    keep_recall(run, result)
    return result


def known_since(run: RunFolder, result: dict[str, Any]) -> str:
    """The day from which ``result`` is known: a training that goes on after midnight goes by the same."""
    try:
        earlier = kept_recall(run) or {}
    except CheckFailed:
        earlier = {}
    date = earlier.pop("date", None)
    return date if date and earlier == result else datetime.datetime.now(datetime.UTC).date().isoformat()

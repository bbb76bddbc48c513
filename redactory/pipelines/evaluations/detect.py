"""Evaluate detection: what a configuration's policies find and miss in any labelled file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from redactory.detectors import Detector, DetectSettings, TextDetector, policy_hashes
from redactory.detectors.fitted import refuse_fitted_rows
from redactory.evaluation.detection import POLICIES, LabelledPoint, measure_detection
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.labelling.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.segment import Cutter, segmenter

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

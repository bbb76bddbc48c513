"""Evaluate recall: what the policies miss of labelled secrets, and what of them the shards still hold."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from redactory.detectors import DetectSettings
from redactory.detectors.fitted import refuse_fitted_rows
from redactory.evaluation.leaks import secrets_left
from redactory.evaluation.recall import measure_misses
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.labelling.kept import keep_recall, kept_recall
from redactory.pipelines.labelling.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_manifest


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

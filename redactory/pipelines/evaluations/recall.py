"""Evaluate recall: what the policies miss of labelled secrets, and what of them the shards still hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.detectors import DetectSettings
from redactory.detectors.fitted import refuse_fitted_rows
from redactory.evaluation.leaks import secrets_left
from redactory.evaluation.recall import measure_misses
from redactory.evaluation.report import write_report
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import write_json
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config
from redactory.pipelines.evaluations.fates import detect_fates
from redactory.pipelines.labelling.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_manifest


def evaluate_recall(
    config: Given, *, output: str | Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """What the policies miss of labelled secrets, and which of them the shards still hold.

    The misses go into the run's private state, where the guarantee takes them from: they must be
    measured on secrets of this corpus that no policy was fitted on.
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
    write_json(run.recall, result)
    write_report(run)
    return result

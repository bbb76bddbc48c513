"""Audit, second half: γ and δ₂ from a labelled sample, put where the guarantee takes them from."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.detectors import DetectSettings, changed_since
from redactory.detectors.fitted import FittedPolicy, refuse_fitted_rows
from redactory.evaluation.labelled_sample import Marked
from redactory.evaluation.recall import DetectFate
from redactory.evaluation.sample_figures import figures, secrets_left
from redactory.evaluation.sample_labels import DrawnText, LabelledText, read_labels
from redactory.evaluation.sample_misses import measure_sample
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.labelling.kept import keep_recall, replaced, seal_result
from redactory.pipelines.labelling.sample import fitted_policy
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, broken_files, is_finished, read_manifest
from redactory.redaction.folder import SampleFolder
from redactory.redaction.releases import release_with

FORMAT = "redactory-sample-score/1"
ESTIMAND = (
    "the probability of a miss of a secret that is drawn by drawing a point of the run that holds one, each "
    "alike and copies as often as they occur, and then one of its secrets, each alike"
)


def audit_score(
    run: str | Path,
    labelled: str | Path,
    *,
    name: str = "sample",
    confidence: float = 0.95,
    unchanged: bool = False,
    date: datetime.date | None = None,
    fates: DetectFate | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """γ and δ₂ of a run from its labelled sample ``name``; they become what the guarantee is computed with.

    ``labelled`` is the sample's JSON lines or Label Studio's JSON export, every row there.  A file in which
    no row differs from what was filled in has hardly been labelled and is refused, unless ``unchanged``.
    F runs twice on every labelled secret; ``fates`` replaces the run's own engines.  ``date`` is today's
    by default.

    Returns ``misses`` as ``evaluate_recall`` does, with the bounds of
    ``redactory/evaluation/sample_bounds.py`` as ``upper`` (to three digits, rounded up) and weighted
    ``rate``; ``strata``, ``needed``, ``left`` and the rest of the record; no text.  Raises ``InputError``
    for labels that do not fit the draw, ``CheckFailed`` where the engines here are not the run's.
    """
    folder = RunFolder(Path(run))
    manifest = read_manifest(folder)
    if not 0 < confidence < 1:
        raise ConfigurationError("confidence must lie between 0 and 1, both ends excluded")
    date = date or datetime.datetime.now(datetime.UTC).date()
    sample, path = folder.sample(name), Path(labelled)
    arguments = (folder, manifest, sample, path, confidence, unchanged, date, fates, progress)
    return sealed(folder.state, _score, *arguments)


def refuse_fitted(rows: Sequence[LabelledText], fitted: FittedPolicy | None) -> None:
    """``ConfigurationError`` where the policy was fitted on any of ``rows``, or where that cannot be told.

    What a policy misses of the labels that its thresholds follow from says nothing about others
    (``docs/guarantees.md``, "Side channels", item 2).
    """
    if fitted is not None:
        refuse_fitted_rows([row.text for row in rows], fitted, load_digest_key())


def _score(
    run: RunFolder,
    manifest: dict[str, Any],
    sample: SampleFolder,
    labelled: Path,
    confidence: float,
    unchanged: bool,
    date: datetime.date,
    fates: DetectFate | None,
    progress: Progress,
) -> dict[str, Any]:
    draw = _read_draw(run, sample)
    rows = read_labels(labelled, _drawn(draw), DigestKey(bytes.fromhex(draw["key"])))
    changed = sum(row.changed for row in rows)
    if not changed and not unchanged:
        raise InputError(
            f"{labelled.name}: no row differs from what the policies had marked. Label every secret in every "
            "row first; if there truly is nothing to change, score it with --unchanged"
        )
    refuse_fitted(rows, fitted_policy(manifest))
    if fates is None:
        with waiting(progress, "load engines"):
            _require_same_policies(manifest)
            fates = detect_fates(manifest)
    measured = measure_sample(rows, fates, progress)
    result = {
        "run": str(run.root),
        "estimand": ESTIMAND,
        "secrets": sum(len(row.secrets) for row in rows),
        **figures(draw, measured, confidence, manifest["configuration"]["train"]["delta"]),
        "left": secrets_left(measured),
        "changed": changed,
        "texts": len(rows),
        "drawn": {key: draw[key] for key in ("date", "seed", "quarantined", "fitted_on", "policies")},
    }
    upper = {f"{name}_upper": result["misses"][name]["upper"] for name in ("gamma", "delta_2")}
    result["sample"] = {"name": draw["name"], "date": date.isoformat(), "texts": len(rows), **upper}
    result["replaces"] = replaced(run, result)
    _keep(run, sample, result)
    return result


def _require_same_policies(manifest: dict[str, Any]) -> None:
    settings = DetectSettings.model_validate(manifest["configuration"]["detect"])
    if changed := changed_since(settings, manifest["policies"]):
        raise CheckFailed(f"{changed}: nothing can be measured with it")


def _keep(run: RunFolder, sample: SampleFolder, result: dict[str, Any]) -> None:
    """Seal the result beside the sample, and put it where training and report look for it."""
    seal_result(sample.score, result, {"format": FORMAT, "parent": file_sha256(sample.manifest)})
    keep_recall(run, result)


def _read_draw(run: RunFolder, sample: SampleFolder) -> dict[str, Any]:
    """The record of the draw; the rows beside it may have been labelled in place, the record not."""
    if not is_finished(sample):
        raise RunStateError(f"{sample.root} holds no sample: draw one first (redactory audit sample)")
    broken = [problem for problem in broken_files(sample) if problem.startswith(("draw.json", "manifest"))]
    # what a takedown left of the samples is of people who are still there
    if broken or release_with(run, read_manifest(sample)["parent"]) is None:
        problem = "; ".join(broken) or "it was drawn from another run"
        raise CheckFailed(f"samples/{sample.root.name} is not as it was drawn: {problem}")
    draw: dict[str, Any] = read_json(sample.draw)
    return draw


def _drawn(draw: dict[str, Any]) -> list[DrawnText]:
    return [
        DrawnText(
            row["point_id"],
            row["stratum"],
            row["times"],
            row["digest"],
            tuple(Marked(*span) for span in row["prefilled"]),
            tuple((start, end) for start, end in row["masked"]),
        )
        for row in draw["rows"]
    ]

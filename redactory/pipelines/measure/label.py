"""Sample a finished run for people to label; measure and keep what the policies missed there.

Usage: ``docs/how-to/audit.md``; bounds: ``redactory/evaluation/sample_bounds.py``.
"""

from __future__ import annotations

import datetime
import secrets as entropy
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors import DetectSettings
from redactory.detectors.settings import (
    PolicyFit,
    flag_fitted_texts,
    get_kinds,
    get_public_labels,
    require_unfitted_rows,
)
from redactory.evaluation import sample as samples
from redactory.evaluation.labelled import write_labelling_files
from redactory.evaluation.recall import TextRouter
from redactory.evaluation.report import write_report
from redactory.evaluation.sample_bounds import STRATA
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, write_json
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.models import seal_result
from redactory.pipelines.curation.policy import make_run_router
from redactory.redaction import RunFolder, is_finished, list_broken_files, read_batches, read_manifest, seal_folder
from redactory.redaction.folder import SampleFolder
from redactory.redaction.sealing import find_release

_SEED_BITS, _KEY_BYTES = 53, 32
ESTIMAND = (
    "the probability of missing a secret, if first an example with a secret is drawn uniformly (copies "
    "count as often as they occur), then one of its secrets uniformly"
)


def label_random(
    run: str | Path,
    n: int = 400,
    *,
    seed: int | None = None,
    name: str = "sample",
    public_share: float = 0.6,
    date: datetime.date | None = None,
) -> dict[str, Any]:
    """Draw at most ``n`` texts of a finished run for people to label, into ``state/samples/NAME`` (0600).

    Examples are drawn independently, uniformly within a stratum (public; masked by π; private by π_c only), a share of
    ``public_share`` public; a stratum with few distinct texts is taken whole. Quarantined examples, and those that a
    policy was fitted on, are counted but not drawn. Returns file paths and sizes; no text. ``RunStateError`` if the
    name is taken, ``ConfigurationError`` for too few draws.
    """
    folder = RunFolder(Path(run))
    manifest, sample = read_manifest(folder), folder.get_sample_folder(name)
    if is_finished(sample):
        raise RunStateError(f"{sample.root} already holds a sample: draw the new one with another --sample")
    seed = entropy.randbits(_SEED_BITS) if seed is None else seed
    date = date or datetime.datetime.now(datetime.UTC).date()

    def draw_and_write_sample() -> dict[str, Any]:
        frame = samples.build_sampling_frame(folder, _find_fitted_examples(folder, manifest))
        sizes = {stratum: len(frame.list_stratum_ids(stratum)) for stratum in STRATA}
        if not sum(sizes.values()):
            raise RunStateError(f"{folder.root} has no example that could be labelled")
        plan, texts = samples.draw_sample(folder, frame, n, public_share, seed)
        summary = {
            "name": name,
            "date": date.isoformat(),
            "seed": seed,
            "n": n,
            "texts": len(texts),
            "public_share": public_share,
            "strata": {
                stratum: {
                    "examples": size,
                    "whole": stratum in plan.whole,
                    "draws": plan.draws.get(stratum, 0),
                    "texts": sum(text.stratum == stratum for text in texts),
                }
                for stratum, size in sizes.items()
            },
            "quarantined": frame.quarantined,
            "fitted_on": frame.fitted_on._asdict(),
            "policies": {policy_name: policy["hash"] for policy_name, policy in manifest["policies"].items()},
        }
        files = _write_sample(folder, sample, texts, summary, manifest)
        return {"run": str(folder.root), **summary, "folder": str(sample.root), "files": files}

    return run_with_sealed_traceback(folder.state, draw_and_write_sample)


def _write_sample(
    run: RunFolder,
    folder: SampleFolder,
    texts: list[samples.SampledText],
    summary: dict[str, Any],
    manifest: dict[str, Any],
) -> dict[str, str]:
    make_private_folder(folder.root.parent)
    make_private_folder(folder.root)
    rows = samples.to_labelling_rows(texts)
    version = f"strict policy {summary['policies']['strict'][:12]}"
    # labels that π masks, labels that occur, and one for everything else
    strict = manifest["configuration"]["detect"]["strict"]
    occurring = {span["label"] for row in rows for span in row["spans"]}
    labels = {*strict["labels"], *strict["extra_labels"], *occurring}
    # the key is stored beside the texts that it digests: it prevents guessing elsewhere from the digests alone
    key = DigestKey(entropy.token_bytes(_KEY_BYTES))
    write_labelling_files(rows, labels, version, folder.rows, folder.tasks, folder.interface)
    records = [text.to_record(key) for text in texts]
    write_json(folder.draw, {**summary, "key": key.secret.hex(), "rows": records})
    files = {name: getattr(folder, name) for name in ("rows", "tasks", "interface")}
    body = {"format": "redactory-sample/1", "parent": file_sha256(run.manifest), **summary}
    seal_folder(folder, body, [*files.values(), folder.draw])
    return {name: str(path) for name, path in files.items()}


def _find_fitted_examples(run: RunFolder, manifest: dict[str, Any]) -> samples.Ids | None:
    policy = read_policy_fit(manifest)
    if policy is None:
        return None
    key, fitted_ids = load_digest_key(), [np.empty(0, np.int64)]
    for batch in read_batches(run.vault, ["example_id", "text"]):
        is_fitted = np.array(flag_fitted_texts(batch["text"].to_pylist(), policy, key), dtype=bool)
        fitted_ids.append(batch["example_id"].to_numpy()[is_fitted])
    return np.concatenate(fitted_ids)


def read_policy_fit(manifest: dict[str, Any]) -> PolicyFit | None:
    """Return the fit of the run's conservative policy; None if it was not fitted."""
    return DetectSettings.from_manifest(manifest["configuration"]["detect"]).conservative.fitted


# The measured misses, kept in the run: training, guarantee and report use them.


def save_recall_measurement(run: RunFolder, result: dict[str, Any]) -> None:
    """Seal ``result`` as the current measurement, and render the report again."""
    seal_result(run.recall, result, {"format": "redactory-recall/1", "parent": file_sha256(run.manifest)})
    write_report(run)


def load_recall_measurement(run: RunFolder) -> dict[str, Any] | None:
    """Return the latest measurement, or None.

    ``CheckFailed`` if it changed after sealing: a guarantee must not depend on it.
    """
    if not is_finished(run.recall):
        return None
    if problems := list_broken_files(run.recall):
        raise CheckFailed(
            f"state/{run.recall.root.name} changed after sealing ({problems[0]}): measure the misses again "
            "(redactory label score, redactory run)"
        )
    result: dict[str, Any] = read_json(run.recall.root / "result.json")
    return result


def label_score(
    run: str | Path,
    labelled: str | Path,
    *,
    name: str = "sample",
    confidence: float = 0.95,
    unchanged: bool = False,
    date: datetime.date | None = None,
    route_texts: TextRouter | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Measure the miss rates γ and δ₂ of a run from its labelled sample ``name``, for the guarantees of its models.

    ``labelled`` is the sample's JSON lines or Label Studio's JSON export with all rows; a file without any change by
    the labeller is refused, unless ``unchanged``. A span with a public label of the run is no secret. ``route_texts``
    replaces the run's engines. Returns ``misses`` like ``evaluate_recall``, with the bounds of ``sample_bounds.py`` as
    ``upper`` and a weighted ``rate``; ``strata``, ``needed``, ``left``; no text. ``InputError`` if the labels do not
    match the draw, ``ConfigurationError`` if the engines here are not the run's.
    """
    folder = RunFolder(Path(run))
    manifest, sample = read_manifest(folder), folder.get_sample_folder(name)
    if not 0 < confidence < 1:
        raise ConfigurationError("confidence must lie strictly between 0 and 1")
    day = (date or datetime.datetime.now(datetime.UTC).date()).isoformat()

    def measure_misses() -> dict[str, Any]:
        draw = _read_draw_record(folder, sample)
        rows = _read_labels(Path(labelled), draw, unchanged)
        changed = sum(row.is_changed for row in rows)
        # only after the labels were compared with the prefilled ones: π may have masked some of these
        kinds = get_kinds(get_public_labels(manifest))
        rows = [row.without_kinds(kinds) for row in rows]
        # misses on the labels that a policy was fitted on say nothing about others
        require_unfitted_rows([row.text for row in rows], read_policy_fit(manifest), load_digest_key())
        with report_start_and_end(progress, "load engines"):
            router = route_texts or make_run_router(manifest)
        measured = samples.measure_sample_misses(rows, router, progress)
        delta = manifest["configuration"]["train"]["delta"]
        result = {
            "run": str(folder.root),
            "estimand": ESTIMAND,
            "public_labels": list(get_public_labels(manifest)),
            "secrets": sum(len(row.secrets) for row in rows),
            **samples.compute_sample_metrics(draw, measured, confidence, delta),
            "left": samples.count_sample_secrets(measured),
            "changed": changed,
            "texts": len(rows),
            "drawn": {key: draw[key] for key in ("date", "seed", "quarantined", "fitted_on", "policies")},
        }
        upper_bounds = _extract_upper_bounds(result["misses"])
        result["sample"] = {"name": draw["name"], "date": day, "texts": len(rows), **upper_bounds}
        result["replaces"] = _summarize_previous_recall(folder, result)
        # beside the sample, and where training and report find it
        body = {"format": "redactory-sample-score/1", "parent": file_sha256(sample.manifest)}
        seal_result(sample.score, result, body)
        save_recall_measurement(folder, result)
        return result

    return run_with_sealed_traceback(folder.state, measure_misses)


def _read_labels(file: Path, draw: dict[str, Any], unchanged: bool) -> list[samples.SampledText]:
    """Read the labelled rows of the draw; ``InputError`` if nobody seems to have labelled them."""
    drawn = [samples.SampledText.from_record(row) for row in draw["rows"]]
    rows = samples.read_labels(file, drawn, DigestKey(bytes.fromhex(draw["key"])))
    if not unchanged and not any(row.is_changed for row in rows):
        raise InputError(
            f"{file.name}: no row differs from the prefilled spans. Label every secret in every row first; "
            "if there is truly nothing to change, score it with --unchanged"
        )
    return rows


def _extract_upper_bounds(misses: dict[str, Any]) -> dict[str, float]:
    return {f"{rate}_upper": misses[rate]["upper"] for rate in ("gamma", "delta_2")}


def _summarize_previous_recall(run: RunFolder, result: dict[str, Any]) -> dict[str, Any] | None:
    """Return date and bounds of the measurement that ``result`` replaces; None without one, or if it is equal."""
    if not is_finished(run.recall):
        return None
    earlier: dict[str, Any] = read_json(run.recall.root / "result.json")
    misses = earlier["misses"]
    if misses == result["misses"] and earlier.get("left") == result["left"]:
        return None
    date = earlier.get("date") or earlier.get("sample", {}).get("date")
    return {"date": date, "confidence": misses["confidence"], **_extract_upper_bounds(misses)}


def _read_draw_record(run: RunFolder, sample: SampleFolder) -> dict[str, Any]:
    """Read the record of the draw; rows beside it may be labelled in place, the record may not change."""
    if not is_finished(sample):
        raise RunStateError(f"{sample.root} has no sample: draw one first (redactory label random)")
    problems = [problem for problem in list_broken_files(sample) if problem.startswith(("draw.json", "manifest"))]
    # after an erasure, the samples hold only people who are still in the run
    if problems or find_release(run, read_manifest(sample)["parent"]) is None:
        problem = "; ".join(problems) or "it was drawn from another run"
        raise CheckFailed(f"samples/{sample.root.name} is not as it was drawn: {problem}")
    draw: dict[str, Any] = read_json(sample.draw)
    return draw

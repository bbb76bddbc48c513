"""Sample a run for people to label, or choose documents for them; measure and keep what the policies missed there.

Usage: ``docs/how-to/audit.md``; bounds: ``redactory/evaluation/sample_bounds.py``.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import secrets as entropy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from redactory.detectors import DetectSettings
from redactory.detectors.settings import (
    PolicyFit,
    flag_fitted_texts,
    get_kinds,
    get_public_labels,
    require_unfitted_rows,
)
from redactory.evaluation import sample as samples
from redactory.evaluation.labelled import CHOSEN_KEY, read_labelled_rows, write_labelling_files
from redactory.evaluation.recall import TextRouter
from redactory.evaluation.report import write_report
from redactory.evaluation.sample_bounds import STRATA
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, write_json
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.models import seal_result
from redactory.pipelines.curation.policy import Example, Policy, make_run_router
from redactory.pipelines.readers import Document, find_sources
from redactory.pipelines.readers.documents import RowCounts
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
        summary: dict[str, Any] = {
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
        rows = samples.to_labelling_rows(texts)
        # labels that π masks, labels that occur, and one for everything else
        strict = manifest["configuration"]["detect"]["strict"]
        occurring = {span["label"] for row in rows for span in row["spans"]}
        labels = {*strict["labels"], *strict["extra_labels"], *occurring}
        make_private_folder(sample.root.parent)
        make_private_folder(sample.root)
        version = f"strict policy {summary['policies']['strict'][:12]}"
        write_labelling_files(rows, labels, version, sample.rows, sample.tasks, sample.interface)
        # the key is stored beside the texts that it digests: it prevents guessing elsewhere from the digests alone
        key = DigestKey(entropy.token_bytes(_KEY_BYTES))
        records = [text.to_record(key) for text in texts]
        write_json(sample.draw, {**summary, "key": key.secret.hex(), "rows": records})
        files = {name: getattr(sample, name) for name in ("rows", "tasks", "interface")}
        body = {"format": "redactory-sample/1", "parent": file_sha256(folder.manifest), **summary}
        seal_folder(sample, body, [*files.values(), sample.draw])
        paths = {name: str(path) for name, path in files.items()}
        return {"run": str(folder.root), **summary, "folder": str(sample.root), "files": paths}

    return run_with_sealed_traceback(folder.state, draw_and_write_sample)


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
    drawn = TypeAdapter(list[samples.SampledText]).validate_python(draw["rows"])
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


# The documents that a tagger learns most from.
#
# Preferred are documents with words that the engines are unsure of and that no chosen document has; every
# fourth is drawn at random, because an engine can be sure and wrong. The choice can train a tagger, but it is
# not a sample: each row says so, and every measurement refuses it (``evaluation/labelled.py``).


CANDIDATES_PER_DOCUMENT = 20
"""Number of documents searched per chosen document."""
RANDOM_INTERVAL = 4
"""One in this many documents is drawn at random."""
_DOUBT_RANGE = 0.1, 0.9
"""Range of probabilities of a secret for which a word counts as uncertain."""
_DIGIT = re.compile(r"\d")
Doubts = Mapping[str, float]


def label_active(
    config: ConfigLike,
    out: str | Path,
    n: int = 50,
    *,
    labelled: Sequence[str | Path] = (),
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Choose ``n`` documents of the configured input to label; write them to the new folder ``out`` (0700).

    Draws ``CANDIDATES_PER_DOCUMENT`` times ``n`` distinct documents that no file of ``labelled`` holds, by a digest
    under ``seed``, and searches them; if no engine gives a confidence per word, the first ``n`` are chosen. ``spans``
    are prefilled from the strict policy. Returns counts and file paths; no text. ``InputError`` if nothing is left to
    label.
    """
    settings, folder = load_config(config), Path(out)
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists: give another folder, or remove it")
    labelled_rows = [row for path in labelled for row in read_labelled_rows(Path(path), to_fit=True)]
    with report_start_and_end(progress, "read"):
        texts = _draw_candidates(
            settings, {row["text"].strip() for row in labelled_rows}, CANDIDATES_PER_DOCUMENT * n, seed
        )
    if not texts:
        raise InputError("the input has no document with text that is not already labelled")
    span_policy = Policy(settings)
    with report_start_and_end(progress, "load engines"):
        span_policy.load_engines()
    documents = list[tuple[str, list[Example]]]()
    for number, (text, examples) in enumerate(zip(texts, span_policy.route_many(texts, joined=True), strict=True), 1):
        if all(example.failure is None for example in examples):
            documents.append((text, examples))
        progress("choose", number, len(texts), "documents")
    doubts = [_find_uncertain_words(text, examples) for text, examples in documents]
    chosen = select_most_uncertain(doubts, [len(text) for text, _ in documents], n)
    rows: list[dict[str, Any]] = []
    for number, (index, method) in enumerate(chosen, 1):
        text, examples = documents[index]
        strict_spans = (span for example in examples for span in example.spans if span.policy == "strict")
        spans = [span._asdict() for span in samples.select_prefilled_spans(strict_spans)]
        rows.append({"id": f"{number:04}", CHOSEN_KEY: method, "text": text, "spans": spans})
    if not rows:
        raise InputError("no document could be read completely by every engine: see redactory scan")
    strict = settings.detect.strict
    # offer the labels that were used before
    labels = {span["label"] for row in labelled_rows for span in row["spans"]} or {*strict.labels, *strict.extra_labels}
    labels |= {span["label"] for row in rows for span in row["spans"]}
    files = {name: folder / name for name in ("chosen.jsonl", "label-studio.json", "label-studio.xml")}
    make_private_folder(folder)
    write_labelling_files(rows, labels, f"policies {span_policy.hash[:12]}", *files.values())
    return {
        "folder": str(folder),
        "looked_at": len(texts),
        "labelled_before": len(labelled_rows),
        "chosen": dict(Counter(method for _, method in chosen)),
        "words": sum(len(row["text"].split()) for row in rows),
        "files": {name: str(path) for name, path in files.items()},
    }


def select_most_uncertain(doubts: Sequence[Doubts], sizes: Sequence[int], n: int) -> list[tuple[int, str]]:
    """Return the indices of at most ``n`` documents in order, each with its method (``doubt`` or ``random``).

    Greedy: each chosen document halves the doubt of its words. The doubt of a document is divided by the square root of
    its size, because long documents are more work.
    """
    word_counts, remaining, selection = Counter[str](), dict.fromkeys(range(len(doubts))), list[tuple[int, str]]()

    def compute_gain(index: int) -> float:
        doubt = sum(amount * 2.0 ** -word_counts[word] for word, amount in doubts[index].items())
        return doubt / math.sqrt(sizes[index])

    while remaining and len(selection) < n:
        best = max(remaining, key=compute_gain)
        by_doubt = len(selection) % RANDOM_INTERVAL < RANDOM_INTERVAL - 1 and compute_gain(best) > 0
        # the order of candidates is random
        index, method = (best, "doubt") if by_doubt else (next(iter(remaining)), "random")
        word_counts.update(doubts[index].keys())
        del remaining[index]
        selection.append((index, method))
    return selection


def _draw_candidates(settings: Config, excluded_texts: set[str], limit: int, seed: int) -> list[str]:
    """Return the ``limit`` distinct texts with the smallest digests: a random draw that ignores copies."""
    candidates, counts = dict[bytes, str](), RowCounts(settings.input)
    for source in find_sources(settings.input.path, settings.input.format):
        for row in counts.read_and_count(source):
            if isinstance(row, Document) and row.text.strip() not in excluded_texts:
                text = row.text.strip().encode()
                candidates[hashlib.blake2b(text, digest_size=16, key=str(seed).encode()).digest()] = row.text
                if len(candidates) >= 2 * limit:
                    candidates = dict(sorted(candidates.items())[:limit])
    counts.check_totals()
    return [text for _, text in sorted(candidates.items())[:limit]]


def _find_uncertain_words(text: str, examples: Sequence[Example]) -> Doubts:
    """Return the words that an engine is unsure about, without case and digits; doubt 1 is probability 1/2."""
    low, high = _DOUBT_RANGE
    word_doubts: dict[str, float] = {}
    for example in examples:
        for span in example.spans:
            if span.label == "UNSURE" and low <= span.score <= high:
                word = _DIGIT.sub("0", text[span.start : span.end].casefold())
                word_doubts[word] = max(word_doubts.get(word, 0.0), 1.0 - abs(2.0 * span.score - 1.0))
    return word_doubts

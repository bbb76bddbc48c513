"""Fit the conservative policy: find the most public text whose miss rate is bounded with a stated confidence.

Policies are tried along a path from the safest to the riskiest, fixed before any label is seen. The bound only falls,
so no later policy makes private what an earlier one leaves public: the public split and the set of missed secrets
only grow.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    Detection,
    Detector,
    DetectSettings,
    EngineOutput,
    StrictPolicy,
    build_policies,
    compute_policy_hashes,
)
from redactory.detectors.settings import write_fit_record
from redactory.evaluation.labelled import read_labelled_rows, require_other_rows, split_labelled_row
from redactory.evaluation.statistics import compute_binomial_p_value, count_passing_settings, count_secrets_needed
from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import write_text
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.loading import ConfigLike, load_config, validate_config
from redactory.pipelines.curation.segment import make_segmenter
from redactory.pipelines.measure.evaluate_detection import evaluate_detect
from redactory.redaction import PUBLIC, route_example

DOUBT_LEVELS = (0.0, *(digit * 10.0**-place for place in range(6, 0, -1) for digit in (1, 2, 3, 5, 7)), 1.0)
"""1 - ``min_non_entity_probability``: the doubt about a token up to which its example stays public."""
ESTIMAND = (
    "the probability that both policies miss a secret, if first a {unit} with a secret is drawn uniformly, "
    "then one of the {unit}'s secrets uniformly"
)
_HEADER = """\
# Written by redactory fit policy. `fitted` says on what; measurements refuse the rows in that file.
"""
_KEY = "min_non_entity_probability"
"""The setting that distinguishes the policies of the path."""
_SEED_DIGITS = 16


def build_policy_sequence(detect: DetectSettings) -> list[ConservativeSettings]:
    """Return the policies in order.

    At first every token must certainly be a non-entity; then the bound falls. The rules stay as ``detect`` has them.
    """
    return [
        detect.conservative.model_copy(update={"min_non_entity_probability": round(1.0 - doubt, 10), "fitted": None})
        for doubt in DOUBT_LEVELS
    ]


def find_first_public_policy_index(
    text: str, engine_output: EngineOutput, strict: StrictPolicy, path: Sequence[ConservativePolicy]
) -> int:
    """Return the index of the first policy of ``path`` with which F leaves the example public.

    ``len(path)`` if it never becomes public. Bisects: what one policy leaves public all later ones do.
    """
    strict_spans = tuple(strict.select_spans(text, engine_output)) if engine_output.failure is None else ()

    def is_public(policy: ConservativePolicy) -> bool:
        conservative_spans = tuple(policy.select_spans(text, engine_output)) if engine_output.failure is None else ()
        return route_example(text, Detection(strict_spans, conservative_spans, engine_output.failure)).split == PUBLIC

    return bisect_left(path, True, key=is_public)


# The labelled secrets of a file; one is drawn from each independent unit.


@dataclass
class LabelledSecrets:
    """The contents of a labelled file.

    ``rows`` are the texts of the rows. ``examples`` counts the occurrences of each distinct example text,
    ``clean_examples`` those without any labelled span. ``secrets`` has the secrets of each unit (the user, or the row
    if it names none); a secret is the texts of the examples that contain any part of one labelled span.
    """

    rows: list[str] = field(default_factory=list)
    examples: Counter[str] = field(default_factory=Counter)
    clean_examples: Counter[str] = field(default_factory=Counter)
    secrets: dict[Hashable, list[tuple[str, ...]]] = field(default_factory=dict)
    unit: Literal["user", "row"] = "row"

    @property
    def secret_count(self) -> int:
        """Number of secrets of all units."""
        return sum(len(unit_secrets) for unit_secrets in self.secrets.values())


def read_labelled_secrets(path: Path, segment: SegmentSettings, public: Iterable[str] = ()) -> LabelledSecrets:
    """Read a file of labelled rows, segmented into examples; ``InputError`` if it is invalid.

    A span is not a secret here if it has a ``public`` label, or is in no example (such as the name of a speaker): it is
    in no shard.
    """
    cut, labels = make_segmenter(segment), LabelledSecrets()
    for number, row in enumerate(read_labelled_rows(path, public)):
        user = row.get("user_id")
        unit = ("row", number) if user is None else ("user", user)
        labels.unit = labels.unit if user is None else "user"
        labels.rows.append(row["text"])
        secrets: dict[int, list[str]] = defaultdict(list)
        for text, spans in split_labelled_row(row, cut):
            labels.examples[text] += 1
            labels.clean_examples[text] += not spans
            for span in spans:
                secrets[span["number"]].append(text)
        if secrets:
            labels.secrets.setdefault(unit, []).extend(tuple(texts) for texts in secrets.values())
    return labels


def draw_secrets(labels: LabelledSecrets, file_sha256: str) -> list[tuple[str, ...]]:
    """Draw one secret of each unit, uniformly among its secrets.

    The seed is the file's digest: the same file gives the same draw, and nobody can retry seeds until they like the
    result.
    """
    stream = RandomStream.from_seed(int(file_sha256[:_SEED_DIGITS], 16))
    draws = stream.uniform("one secret of each unit", 0, len(labels.secrets))
    return [
        unit_secrets[int(fraction * len(unit_secrets))]
        for unit_secrets, fraction in zip(labels.secrets.values(), draws, strict=True)
    ]


def fit_policy(
    labelled: str | Path,
    *,
    out: str | Path,
    config: ConfigLike | None = None,
    miss_rate: float = 0.001,
    confidence: float = 0.95,
    held_back: str | Path | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Choose the conservative policy so that the share of secrets missed by both policies is bounded.

    Learn-then-Test along :func:`build_policy_sequence`: with confidence ``confidence``, both policies together miss at
    most the share ``miss_rate`` of secrets drawn like those in ``labelled``; one secret per user (or row) is tested.
    Of the policies that keep the bound, the one with the largest public share is chosen, and among equals the safest.
    Writes ``out``: ``config`` with another ``detect.conservative``, and beside it the record of the fit with keyed
    digests of the rows. If no policy with public text keeps the bound, ``chosen`` is null and nothing is written.
    ``held_back``, a file of other rows, compares the policies: {present, chosen: :func:`evaluate_detect`}, else None.
    ``InputError`` if the file has too few secrets to show the bound even without a miss.
    """
    labelled, out = Path(labelled), Path(out)
    if not (0 < miss_rate < 1 and 0 < confidence < 1):
        raise ConfigurationError("miss_rate and confidence must lie strictly between 0 and 1")
    if out.exists():
        raise ConfigurationError(f"{out} exists; give another name")
    loaded_config = None if config is None else load_config(config)
    detect = loaded_config.detect if loaded_config else DetectSettings()
    segment = loaded_config.segment if loaded_config else SegmentSettings()
    labels = read_labelled_secrets(labelled, segment, detect.public_labels)
    n, needed = len(labels.secrets), count_secrets_needed(miss_rate, confidence)
    if n < needed:
        raise InputError(
            f"{labelled.name}: needs {needed:,} labelled secrets, the file has {n:,} (one per {labels.unit}, since "
            f"those of the same one are not independent; {labels.secret_count:,} in all). That many, "
            f"without a miss, prove a miss rate of {format_upper(miss_rate)} at confidence "
            f"{format_lower(confidence)}: label more, or accept a higher miss rate"
        )
    require_other_rows(held_back, labels.rows)
    path, secrets = build_policy_sequence(detect), draw_secrets(labels, file_sha256(labelled))
    levels = _find_public_steps(labels.examples, detect, path, progress)
    curve, chosen = _compute_miss_curve(path, levels, labels, secrets, miss_rate, confidence)
    result = {
        "labelled": labelled.name,
        "rows": len(labels.rows),
        "examples": labels.examples.total(),
        "clean_examples": labels.clean_examples.total(),
        "unit": labels.unit,
        "secrets": len(labels.secrets),
        "secrets_labelled": labels.secret_count,
        "miss_rate": miss_rate,
        "confidence": confidence,
        "estimand": ESTIMAND.format(unit=labels.unit),
        "public_labels": list(detect.public_labels),
        "curve": curve,
        "present": {_KEY: detect.conservative.min_non_entity_probability},
        "chosen": None if chosen is None else curve[chosen],
        "held_back": None,
        "out": None,
    }
    if chosen is None:
        return result
    record = {key: result[key] for key in ("rows", "secrets", "unit", "miss_rate", "confidence")}
    policies = compute_policy_hashes(detect.model_copy(update={"conservative": path[chosen]}))
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    record |= {"misses": curve[chosen]["misses"], "segment": segment.mode, "policies": policies, "date": date}
    key, record_file = load_digest_key(), out.with_name(f"{out.stem}.fitted.json")
    # the rows, and the examples with a secret
    identifying_texts = {*labels.rows}.union(*chain.from_iterable(labels.secrets.values()))
    write_fit_record(record_file, record, identifying_texts, key)
    settings = loaded_config.model_dump(mode="json", exclude_unset=True) if loaded_config else {}
    conservative = {_KEY: curve[chosen][_KEY], "fitted": str(record_file.absolute())}
    written = settings.setdefault("detect", {})
    written["conservative"] = written.get("conservative", {}) | conservative
    validate_config({"input": "any", **settings})
    write_text(out, _HEADER + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    if held_back is not None:
        configs = {"present": config, "chosen": out}
        result["held_back"] = {n: evaluate_detect(held_back, c, progress=progress) for n, c in configs.items()}
    return result | {"out": str(out), "rows_file": str(record_file), "key_fresh": key.is_generated}


def _compute_miss_curve(
    path: Sequence[ConservativeSettings],
    levels: Mapping[str, int],
    labels: LabelledSecrets,
    secrets: Sequence[tuple[str, ...]],
    miss_rate: float,
    confidence: float,
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the metrics of each step, and the chosen step, if one keeps the bound."""

    def count_public_by_step(texts: Iterable[tuple[str, int]]) -> list[int]:
        """Count the (text, count) pairs that become public, by step of the path."""
        counts = np.zeros(len(path) + 1, np.int64)
        for text, count in texts:
            counts[levels[text]] += count
        return [int(total) for total in counts.cumsum()[:-1]]

    # F(s with the secret masked) is always private, because it holds a mask (CRT, A.6, item 4). So the two
    # splits differ, and both policies miss the secret, exactly if an example with it becomes public
    misses = count_public_by_step((min(secret, key=levels.__getitem__), 1) for secret in secrets)
    public, clean = count_public_by_step(labels.examples.items()), count_public_by_step(labels.clean_examples.items())
    kept_steps = count_passing_settings(misses, len(secrets), miss_rate, confidence)
    curve = [
        {
            _KEY: step.min_non_entity_probability,
            "public_share": public[j] / max(labels.examples.total(), 1),
            "clean_public_share": clean[j] / max(labels.clean_examples.total(), 1),
            "misses": misses[j],
            "rate": misses[j] / len(secrets),
            "upper": clopper_pearson_upper(misses[j], len(secrets), confidence),
            "p_value": compute_binomial_p_value(misses[j], len(secrets), miss_rate),
            "holds": j < kept_steps,
        }
        for j, step in enumerate(path)
    ]
    # the bound holds for all of them simultaneously, so choosing by public share costs nothing
    largest = public[kept_steps - 1] if kept_steps else 0
    return curve, public.index(largest) if largest else None


def _find_public_steps(
    texts: Counter[str], detect: DetectSettings, path: Sequence[ConservativeSettings], progress: Progress
) -> dict[str, int]:
    """Return the step from which on each distinct text is public; each text is searched once."""
    with report_start_and_end(progress, "load engines"):
        detector = Detector(detect)
        policies = [build_policies(detect.model_copy(update={"conservative": step}))[1] for step in path]
    strict, levels, remaining = build_policies(detect)[0], dict[str, int](), iter(texts)
    while batch := list(islice(remaining, detect.batch_size)):
        for text, engine_output in zip(batch, detector.run_engines(batch), strict=True):
            prepared = detector.prepare_output(text, engine_output)
            levels[text] = find_first_public_policy_index(text, prepared, strict, policies)
        progress("detect", len(levels), len(texts), "texts")
    return levels

"""The labelled secrets of a file, one drawn of each unit that is independent of the others."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from redactory.detectors import ConservativeSettings, Detector, DetectSettings, policies_of, policy_hashes
from redactory.detectors.settings import FittedPolicy, write_fitted_rows
from redactory.evaluation.policy_path import first_public, policies_along, policy_path
from redactory.evaluation.statistics import binomial_p_value, fixed_sequence, secrets_needed
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import write_text
from redactory.foundation.intervals import upper_bound
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent, waiting
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config, SegmentSettings
from redactory.pipelines.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.segment import segmenter

_NUMBER = "number"
_SEED_DIGITS = 16

Secret = tuple[str, ...]
"""The texts of the points in which any part of one labelled span stands."""


@dataclass
class Labels:
    """What a labelled file holds.

    ``rows`` are the rows' texts; ``points`` counts the occurrences of each distinct text of a point,
    ``clean`` those of points without any labelled span; ``secrets`` has the secrets of each unit: of each
    user where rows name one (a row without one is its own user), else of each row.
    """

    rows: list[str] = field(default_factory=list)
    points: Counter[str] = field(default_factory=Counter)
    clean: Counter[str] = field(default_factory=Counter)
    secrets: dict[Hashable, list[Secret]] = field(default_factory=lambda: defaultdict(list))
    unit: Literal["user", "row"] = "row"

    def texts(self) -> set[str]:
        """The texts by which the rows are told again: their own, and of each point with a secret."""
        return {*self.rows, *(text for own in self.secrets.values() for secret in own for text in secret)}


def read_labels(path: Path, segment: SegmentSettings) -> Labels:
    """The labels of a JSONL file in the span schema, its rows cut into points; ``InputError`` as there.

    A span that lies in no point (a speaker's name, say) is no secret here: it stands in no shard.
    """
    cut, labels = segmenter(segment), Labels()
    for number, row in enumerate(labelled_rows(path)):
        user = row.get("user_id")
        unit = ("row", number) if user is None else ("user", user)
        labels.unit = labels.unit if user is None else "user"
        labels.rows.append(row["text"])
        spans = [{**span, _NUMBER: i} for i, span in enumerate(row["spans"])]
        secrets: dict[int, list[str]] = defaultdict(list)
        for text, inside in labelled_points({**row, "spans": spans}, cut):
            labels.points[text] += 1
            labels.clean[text] += not inside
            for span in inside:
                secrets[span[_NUMBER]].append(text)
        if secrets:
            labels.secrets[unit] += [tuple(texts) for texts in secrets.values()]
    return labels


def draw_secrets(labels: Labels, file_sha256: str) -> list[Secret]:
    """One secret of each unit, each of its secrets alike.

    The draw is seeded by the file's digest: the same file gives the same draw, and there is no seed that
    could be tried again until the result pleases.
    """
    stream = RandomStream.from_seed(int(file_sha256[:_SEED_DIGITS], 16))
    draws = stream.uniform("one secret of each unit", 0, len(labels.secrets))
    return [own[int(draw * len(own))] for own, draw in zip(labels.secrets.values(), draws, strict=True)]


# Fit the conservative policy: the most public text whose miss rate is bounded with a stated confidence.


ESTIMAND = (
    "the probability that both policies miss a secret that is drawn by drawing a {unit} that has one, each "
    "alike, and then one of the {unit}'s secrets, each alike"
)
_HEADER = """\
# Written by redactory fit --policy. `fitted` says on what; measurements refuse the rows in its rows_file.
"""


@dataclass(frozen=True)
class _Fit:
    """The path, and what each step of it does: cumulative, for the public side only grows along it."""

    path: list[ConservativeSettings]
    misses: list[int]
    public: list[float]
    clean: list[float]
    secrets: int


def fit_policy(
    labelled: str | Path,
    *,
    out: str | Path,
    config: Given | None = None,
    miss_rate: float = 0.001,
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Choose π_c by Learn-then-Test along :func:`~redactory.evaluation.policy_path.policy_path`.

    ``labelled`` is JSONL in the span schema.  With confidence ``confidence``, at most the share
    ``miss_rate`` of secrets drawn like these is missed by π and π_c together.  One secret of each user is
    tested (of each row, where rows name no user), drawn at random: those of one user are not independent;
    ``estimand`` in the result says what is bounded, ``present`` what ``config`` has now.  Of the policies
    that keep the bound the one with the largest public share is chosen, and of several such the safest.

    Writes ``out``: ``config`` with its ``detect.conservative`` exchanged, or without a ``config`` that
    section alone; and beside it keyed digests of the rows, so that no miss is measured on them later.
    Where no policy keeps the bound, ``chosen`` is null and nothing is written.  Raises ``InputError``
    where the file has too few secrets to show the bound even without a miss.
    """
    labelled, out = Path(labelled), Path(out)
    if not (0 < miss_rate < 1 and 0 < confidence < 1):
        raise ConfigurationError("miss_rate and confidence must lie between 0 and 1, both ends excluded")
    if out.exists():
        raise ConfigurationError(f"{out} exists; give another name")
    given = None if config is None else load_config(config)
    detect, segment = (given.detect, given.segment) if given else (DetectSettings(), SegmentSettings())
    labels = read_labels(labelled, segment)
    _require_enough(labelled.name, labels, miss_rate, confidence)
    digest = file_sha256(labelled)
    fit = _fit(labels, digest, detect, progress)
    curve, chosen = _choose(fit, miss_rate, confidence)
    asked = {"miss_rate": miss_rate, "confidence": confidence}
    result = {
        "labelled": labelled.name,
        **_counts(labels),
        **asked,
        "estimand": ESTIMAND.format(unit=labels.unit),
        "curve": curve,
        "present": _step(detect.conservative),
        "chosen": None if chosen is None else curve[chosen],
        "out": None,
    }
    if chosen is None:
        return result
    shown = {"secrets": fit.secrets, "unit": labels.unit, "misses": fit.misses[chosen], **asked}
    record = {**shown, "segment": segment.mode}
    return result | _write(out, given, detect, fit.path[chosen], labels, record)


def _counts(labels: Labels) -> dict[str, Any]:
    return {
        "rows": len(labels.rows),
        "points": labels.points.total(),
        "clean_points": labels.clean.total(),
        "unit": labels.unit,
        # one of each unit is tested
        "secrets": len(labels.secrets),
        "secrets_labelled": sum(len(own) for own in labels.secrets.values()),
    }


def _choose(fit: _Fit, miss_rate: float, confidence: float) -> tuple[list[dict[str, Any]], int | None]:
    """The curve along the path, and the place on it of the policy that is chosen, if one keeps the bound."""
    kept = fixed_sequence(fit.misses, fit.secrets, miss_rate, confidence)
    curve = [_point(fit, j, miss_rate, confidence, j < kept) for j in range(len(fit.path))]
    # all that keep the bound do so at once: choosing among them by their public share costs nothing
    return curve, fit.public.index(fit.public[kept - 1]) if kept else None


def _require_enough(name: str, labels: Labels, miss_rate: float, confidence: float) -> None:
    needed, total = (
        secrets_needed(miss_rate, confidence),
        sum(len(own) for own in labels.secrets.values()),
    )
    if len(labels.secrets) < needed:
        raise InputError(
            f"{name}: {needed:,} labelled secrets would be needed, the file has {len(labels.secrets):,} (one "
            f"of each {labels.unit}, for those of one are not independent; {total:,} in all). So many show a "
            f"miss rate of {miss_rate:g} at confidence {confidence:g} without a single miss: label more, or "
            "ask for a higher miss rate"
        )


def _fit(labels: Labels, digest: str, detect: DetectSettings, progress: Progress) -> _Fit:
    path = policy_path(detect)
    levels = _levels(labels.points, detect, path, progress)
    # F(s with the secret masked) is always private, for it holds a mask (CRT, A.6, item 4): so the two
    # sides differ, and both policies have missed the secret, just when a point with it goes public
    drawn = [min(levels[text] for text in secret) for secret in draw_secrets(labels, digest)]
    return _Fit(
        path,
        _cumulative(drawn, [1] * len(drawn), len(path)),
        _shares(labels.points, levels, len(path)),
        _shares(labels.clean, levels, len(path)),
        len(drawn),
    )


def _levels(
    texts: Counter[str], detect: DetectSettings, path: Sequence[ConservativeSettings], progress: Progress
) -> dict[str, int]:
    """The step from which on each distinct text goes public; each is read once."""
    with waiting(progress, "load engines"):
        detector, policies = Detector(detect), policies_along(detect, path)
    strict = policies_of(detect)[0]
    levels: dict[str, int] = {}
    unread = iter(texts)
    while batch := list(islice(unread, detect.batch_size)):
        for text, reading in zip(batch, detector.read(batch), strict=True):
            levels[text] = first_public(text, reading, strict, policies)
        progress("detect", len(levels), len(texts), "texts")
    return levels


def _cumulative(levels: Sequence[int], weights: Sequence[int], steps: int) -> list[int]:
    """The weight of what has been reached by each step."""
    at = np.zeros(steps + 1, np.int64)
    np.add.at(at, np.asarray(levels, np.int64), np.asarray(weights, np.int64))
    return [int(total) for total in at.cumsum()[:steps]]


def _shares(counts: Counter[str], levels: dict[str, int], steps: int) -> list[float]:
    reached = _cumulative([levels[text] for text in counts], list(counts.values()), steps)
    return [number / max(counts.total(), 1) for number in reached]


def _step(policy: ConservativeSettings) -> dict[str, Any]:
    """What tells a policy of the path from the others."""
    return {
        "plain_confidence": policy.plain_confidence,
        "sure": policy.sure,
        "rules": list(policy.rules),
    }


def _point(fit: _Fit, j: int, miss_rate: float, confidence: float, holds: bool) -> dict[str, Any]:
    """One point of the curve; ``holds`` says that the bound was shown for it."""
    step, misses = fit.path[j], fit.misses[j]
    return {
        **_step(step),
        "public_share": fit.public[j],
        "clean_public_share": fit.clean[j],
        "misses": misses,
        "rate": misses / fit.secrets,
        "upper": upper_bound(misses, fit.secrets, confidence),
        "p_value": binomial_p_value(misses, fit.secrets, miss_rate),
        "holds": holds,
    }


def _write(
    out: Path,
    given: Config | None,
    detect: DetectSettings,
    step: ConservativeSettings,
    labels: Labels,
    record: dict[str, Any],
) -> dict[str, Any]:
    """Write the side file, then the policy; what the result says of both."""
    key, rows_file = load_digest_key(), out.with_name(f"{out.stem}.fitted-rows.json").absolute()
    fitted = FittedPolicy(
        **record,
        rows=len(labels.rows),
        policies=policy_hashes(detect.model_copy(update={"conservative": step})),
        date=datetime.datetime.now(datetime.UTC).date(),
        rows_file=str(rows_file),
        rows_sha256=write_fitted_rows(rows_file, labels.texts(), key),
    )
    chosen = step.model_dump(mode="json", include={"plain_confidence", "sure", "rules"})
    section = chosen | {"fitted": fitted.model_dump(mode="json", exclude_none=True)}
    whole = given.model_dump(mode="json", exclude_unset=True) if given else {}
    whole["detect"] = whole.get("detect", {}) | {"conservative": section}
    check({"input": "any", **whole})
    write_text(out, _HEADER + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))
    return {"out": str(out), "rows_file": str(rows_file), "key_fresh": key.fresh}

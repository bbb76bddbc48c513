"""What a labelled sample gives: γ and δ₂ in all and by label, with their bounds, and what is still needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redactory.evaluation.learn_then_test import secrets_needed
from redactory.evaluation.sample_bounds import (
    EMPTY,
    PUBLIC,
    STRATA,
    Drawn,
    Stratum,
    Unmeasured,
    Whole,
    estimates,
    public_draws_needed,
    rounded_up,
    upper_bounds,
)
from redactory.evaluation.sample_labels import secrets_drawn
from redactory.evaluation.sample_misses import MeasuredText
from redactory.foundation.stream import RandomStream

_COMMON_GOAL = 1e-3
_COUNTS = ("secrets", "left_public", "left_private", "withheld")

Draw = Mapping[str, Any]
"""The record of a draw, as ``draw.json`` holds it."""


def figures(draw: Draw, texts: Sequence[MeasuredText], confidence: float, delta: float) -> dict[str, Any]:
    """``misses``, ``strata`` and ``needed`` of a score.

    ``misses`` has the keys of ``measure_misses``: the labelled secrets and π's and both policies' misses of
    them as plain counts, the weighted ``rate``, and as ``upper`` the bounds of :func:`upper_bounds`, to
    three digits, rounded up.  A label's figures are of the secrets that carry it, each at ``confidence``.
    ``needed`` says of ``delta`` and of 10⁻³ how many secrets drawn independently (``docs/guarantees.md``,
    "Coverage failure"), or how many public draws of a sample like this one, would have to show no miss
    for δ₂ to be bounded by it.
    """
    fitted, quarantined = draw["fitted_on"], draw["quarantined"]
    unmeasured = Unmeasured(fitted["public"], fitted["private"] + quarantined)

    def shares(own: Mapping[str, Stratum], label: str | None) -> dict[str, Any]:
        upper, rate = upper_bounds(own, confidence, unmeasured), estimates(own)
        counts = _counted(texts, label)
        return {
            "n": counts["secrets"],
            **{
                name: {
                    "misses": counts[name],
                    "rate": rate and getattr(rate, name),
                    "upper": rounded_up(getattr(upper, name)),
                }
                for name in ("gamma", "delta_2")
            },
        }

    strata = _strata(draw, texts, None)
    known = sorted({secret.label for text in texts for secret in text.row.secrets})
    labels = {label: shares(_strata(draw, texts, label), label) for label in known}
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    misses = {
        **shares(strata, None),
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }
    needed = [
        {
            "delta_2": goal,
            "secrets": secrets_needed(goal, confidence),
            "public_draws": public_draws_needed(strata, goal, confidence, unmeasured),
        }
        for goal in sorted({delta, _COMMON_GOAL}, reverse=True)
    ]
    return {"misses": misses, "strata": {n: _shown(draw, n, s) for n, s in strata.items()}, "needed": needed}


def secrets_left(texts: Sequence[MeasuredText]) -> dict[str, Any]:
    """How many labelled secrets stand open, by label and side: unweighted counts of the sample.

    A secret is ``left_public`` in a public point, and ``left_private`` in a private one where π's masks do
    not cover all of it.  The keys are those of ``redactory.evaluation.leaks.secrets_left``.
    """
    labels: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for drawn, secrets in ((text.row.drawn, text.row.secrets) for text in texts):
        for start, end, label in secrets:
            covered = any(low <= start and end <= high for low, high in drawn.masked)
            labels[label]["secrets"] += 1
            labels[label]["left_public"] += drawn.stratum == PUBLIC
            labels[label]["left_private"] += drawn.stratum != PUBLIC and not covered
    total = {name: sum(counts[name] for counts in labels.values()) for name in _COUNTS}
    return {"documents": len(texts), **total, "labels": {label: labels[label] for label in sorted(labels)}}


def _strata(draw: Draw, texts: Sequence[MeasuredText], label: str | None) -> dict[str, Stratum]:
    """What the sample says of each stratum; of the secrets with ``label`` alone where one is given."""
    stream = RandomStream.from_seed(draw["seed"])
    strata = dict[str, Stratum]()
    for name in STRATA:
        own, points = [t for t in texts if t.row.drawn.stratum == name], draw["strata"][name]["points"]
        if not points:
            strata[name] = EMPTY
        elif draw["strata"][name]["whole"]:
            shares = [_share(text, label) for text in own]
            strata[name] = Whole(points, sum(h for h, _ in shares), sum(m for _, m in shares))
        else:
            units = [missed for text in own for missed in _units(text, stream, label)]
            strata[name] = Drawn(points, draw["strata"][name]["draws"], len(units), sum(units))
    return strata


def _share(text: MeasuredText, label: str | None) -> tuple[float, float]:
    """The text's copies times the share of its secrets that are asked for, and that are missed of these."""
    asked = [missed for secret, missed in _pairs(text) if label in (None, secret.label)]
    each = text.row.drawn.times / max(1, len(text.row.secrets))
    return each * len(asked), each * sum(asked)


def _units(text: MeasuredText, stream: RandomStream, label: str | None) -> Iterator[bool]:
    """Of every draw that gave a secret that is asked for, whether it is missed."""
    missed = dict(_pairs(text))
    return (missed[s] for s in secrets_drawn(text.row, stream) if label in (None, s.label))


def _pairs(text: MeasuredText) -> Iterator[tuple[Any, bool]]:
    return zip(text.row.secrets, text.missed, strict=True)


def _counted(texts: Sequence[MeasuredText], label: str | None) -> dict[str, int]:
    """Labelled secrets and misses, each distinct text once."""
    counts = {"secrets": 0, "gamma": 0, "delta_2": 0}
    for text in texts:
        asked = [missed for secret, missed in _pairs(text) if label in (None, secret.label)]
        counts["secrets"] += len(asked)
        counts["gamma"] += sum(asked)
        counts["delta_2"] += len(asked) if text.row.drawn.stratum == PUBLIC else 0
    return counts


def _shown(draw: Draw, name: str, stratum: Stratum) -> dict[str, Any]:
    """A stratum as the result tells it: counts of draws, or of points where it was labelled whole."""
    whole = isinstance(stratum, Whole)
    secrets = stratum.holding if isinstance(stratum, Whole) else stratum.secrets
    return {
        "points": stratum.points,
        "texts": draw["strata"][name]["texts"],
        "whole": whole,
        "draws": stratum.points if isinstance(stratum, Whole) else stratum.draws,
        "secrets": secrets,
        "missed_by_strict": stratum.missing if isinstance(stratum, Whole) else stratum.missed,
        "missed_by_both": secrets if name == PUBLIC else 0,
    }

"""Counts of extracted secrets and of controls: in all, by label, by how often training data held a secret."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redactory.foundation.intervals import lower_bound, upper_bound

TIMES_SEEN = ((0, 0), (1, 1), (2, 4), (5, 9), (10, 99), (100, None))
"""Bounds of the groups, both inclusive; the last is open."""
_NONE = "no secret was tried"
_NO_CONTROL = "no control value could be made"


class Trial(NamedTuple):
    """One secret: whether it was found, whether it has a control, and whether that was found."""

    label: str
    times_seen: int
    found: bool
    has_control: bool
    control_found: bool


def extraction_figures(trials: Sequence[Trial]) -> dict[str, Any]:
    """{secrets, secrets_found, controls, controls_found, found, controls_share, p_value, by_label,
    by_times_seen, reasons}.

    ``found`` and ``controls_share`` are {value, low, high}, 95 % Clopper-Pearson; the ``p_value`` of Fisher's
    exact test is that of at least so many secrets found, were those with a control found no more easily than
    controls are.
    """
    labels = sorted({trial.label for trial in trials})
    groups = [
        (low, high, [t for t in trials if t.times_seen >= low and _below(t, high)])
        for low, high in TIMES_SEEN
    ]
    whole = _counts(trials)
    return {
        **whole,
        "found": _share(whole["secrets_found"], whole["secrets"]),
        "controls_share": _share(whole["controls_found"], whole["controls"]),
        "p_value": _p_value(trials),
        "by_label": {label: _counts(t for t in trials if t.label == label) for label in labels},
        "by_times_seen": [{"from": low, "to": high, **_counts(own)} for low, high, own in groups],
        "reasons": [
            *([] if trials else [_NONE]),
            *([_NO_CONTROL] if trials and not whole["controls"] else []),
        ],
    }


def _below(trial: Trial, high: int | None) -> bool:
    return high is None or trial.times_seen <= high


def _counts(trials: Iterable[Trial]) -> dict[str, int]:
    own = list(trials)
    return {
        "secrets": len(own),
        "secrets_found": sum(t.found for t in own),
        "controls": sum(t.has_control for t in own),
        "controls_found": sum(t.control_found for t in own),
    }


def _share(count: int, n: int) -> dict[str, float | None]:
    if not n:
        return {"value": None, "low": None, "high": None}
    return {"value": count / n, "low": lower_bound(count, n, 0.975), "high": upper_bound(count, n, 0.975)}


def _p_value(trials: Sequence[Trial]) -> float | None:
    """Of a table of two arms with as many in each: P(at least so many of those found are secrets)."""
    paired = [t for t in trials if t.has_control]
    n = len(paired)
    if not n:
        return None
    found = sum(t.found for t in paired)
    both = found + sum(t.control_found for t in paired)
    most = min(n, both)
    logs = [
        _log_choose(n, k) + _log_choose(n, both - k) - _log_choose(2 * n, both)
        for k in range(found, most + 1)
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) if 0 <= k <= n else -math.inf

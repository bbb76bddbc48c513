"""What was spent: steps of a mechanism, their privacy event, and the pairs of all steps, stated twice."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanisms.mechanism import Mechanism
from redactory.training.mechanisms.pairs import Composition


@dataclass(frozen=True)
class Spending:
    """``steps`` adaptive steps of ``mechanism``, of which one exchanged example exchanges ``rows`` rows.

    ``rows`` is 1 unless a rule of deduplication says otherwise (``docs/guarantees.md``, "Deduplication"), or a unit
    has several examples.
    """

    mechanism: Mechanism
    steps: int
    rows: int = 1

    def to_event(self) -> dict[str, Any]:
        """Return the event tree as JSON: dp_accounting's classes and fields."""
        return {"class": "SelfComposedDpEvent", "event": self.mechanism.to_event(), "count": self.steps}


Spendings = tuple[Spending, ...]
_MAX_WEIGHT_ERROR = 1e-9
MAX_GROUP_SHIFT_RATIO = 20.0
"""Of K examples together, in deviations of the noise: with less noise no group is protected."""


def normalize_spendings(spendings: Spendings) -> Spendings:
    """Normalise for accountants: equal mechanisms together, lengths in units of the clip, at least one step."""
    steps: Counter[tuple[Mechanism, int]] = Counter()
    for one in spendings:
        mechanism = replace(one.mechanism, clip_norm=1.0, normaliser=1.0, noise="float")
        steps[mechanism, one.rows] += one.steps
    return tuple(Spending(mechanism, count, rows) for (mechanism, rows), count in steps.items() if count)


def compute_failure_delta(spendings: Spendings) -> float:
    """Return the chance of events outside of which the pairs of ``spendings`` hold, such as failed thresholds."""
    return math.fsum(spending.steps * spending.mechanism.failure_delta for spending in spendings)


def make_event_tree(spendings: Spendings) -> dict[str, Any]:
    """Make one event for all ``spendings``; ``NoOpDpEvent`` for none."""
    events = [spending.to_event() for spending in spendings if spending.steps]
    if not events:
        return {"class": "NoOpDpEvent"}
    return events[0] if len(events) == 1 else {"class": "ComposedDpEvent", "events": events}


def state_compositions(spendings: Spendings, removed: int | None = None) -> tuple[Composition, Composition]:
    """State the pairs of all steps twice: for one exchanged row of each spending, or for ``removed`` examples.

    A removed example is in ``rows`` rows of each spending.
    """
    stated = [(one.mechanism.state_pairs(removed and removed * one.rows), one.steps) for one in spendings]
    for statements, _ in stated:
        for branches in statements:
            laws = [law.weights for _, pair in branches for law in (pair.p, pair.q)]
            laws.append(tuple(weight for weight, _ in branches))
            if any(abs(math.fsum(weights) - 1.0) > _MAX_WEIGHT_ERROR for weights in laws):
                raise GuaranteeError("the probabilities of a dominating pair do not add up to 1")
    return tuple((first, steps) for (first, _), steps in stated), tuple((again, steps) for (_, again), steps in stated)

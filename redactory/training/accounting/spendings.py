"""What was spent: steps of a mechanism, their privacy event, and the pairs of all steps, stated twice."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

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


Statements = tuple[Composition, Composition]
"""The pairs of all steps, and the same pairs stated again."""


def state_exchange(spendings: Spendings) -> Statements:
    """State the pairs for one exchanged row of each spending."""
    mechanisms = [(spending.mechanism, spending.steps) for spending in spendings]
    return (
        tuple((mechanism.make_exchange_pairs(), steps) for mechanism, steps in mechanisms),
        tuple((mechanism.rederive_exchange_pairs(), steps) for mechanism, steps in mechanisms),
    )


def state_removal(spendings: Spendings, size: int) -> Statements:
    """State the pairs for ``size`` examples there or not, each in ``rows`` rows of a spending."""
    sizes = [(spending.mechanism, size * spending.rows, spending.steps) for spending in spendings]
    return (
        tuple((mechanism.make_removal_pairs(count), steps) for mechanism, count, steps in sizes),
        tuple((mechanism.rederive_removal_pairs(count), steps) for mechanism, count, steps in sizes),
    )

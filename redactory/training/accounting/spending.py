"""What was spent: mechanisms with their steps, as they are composed, whatever model they served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redactory.training.mechanism import Mechanism


@dataclass(frozen=True)
class Spending:
    """``steps`` adaptive steps of ``mechanism``, of which one exchanged point exchanges ``rows`` rows.

    ``rows`` is 1 but where a rule of deduplication says otherwise (``docs/guarantees.md``,
    "Deduplication").
    """

    mechanism: Mechanism
    steps: int
    rows: int = 1

    def event(self) -> dict[str, Any]:
        """The event tree: dp_accounting's classes and fields, as JSON."""
        return {"class": "SelfComposedDpEvent", "event": self.mechanism.event(), "count": self.steps}


Spendings = tuple[Spending, ...]


def in_clips(spent: Spendings) -> Spendings:
    """What accountants look at: lengths in units of the clip, whatever the mean is over, and some steps."""
    return tuple(
        replace(one, mechanism=replace(one.mechanism, clip_norm=1.0, normaliser=1.0, noise="float"))
        for one in spent
        if one.steps
    )


def event_tree(spent: Spendings) -> dict[str, Any]:
    """One event for all that was spent; ``NoOpDpEvent`` for nothing."""
    events = [one.event() for one in spent if one.steps]
    if not events:
        return {"class": "NoOpDpEvent"}
    return events[0] if len(events) == 1 else {"class": "ComposedDpEvent", "events": events}

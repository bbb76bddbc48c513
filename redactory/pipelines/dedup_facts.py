"""What a manifest says of deduplication: the rules that the guarantee goes by, and what was measured."""

from __future__ import annotations

from collections import Counter
from typing import Any

from redactory.dedup import DedupSettings, rule_of
from redactory.dedup.banding import parameters
from redactory.foundation.errors import CheckFailed
from redactory.foundation.intervals import upper_bound
from redactory.redaction import PRIVATE, PUBLIC

CONFIDENCE = 0.95


def dedup_facts(settings: DedupSettings, counts: Counter[str]) -> dict[str, Any]:
    """The section ``dedup`` of the manifest, from the settings and the counts of all stages.

    ``rule`` and ``group_size`` are those of the private side: the public one is trained without noise, and
    what drops its points sees public points alone (``docs/guarantees.md``, "Deduplication").
    """
    private, modes = rule_of(settings, PRIVATE), settings.modes()
    facts: dict[str, Any] = {
        "mode": settings.mode,
        "scope": settings.scope,
        "rule": private.name,
        "group_size": private.group_size,
        "sides": {
            side: {"mode": settings.mode_of(side), "rule": rule_of(settings, side).name}
            for side in (PUBLIC, PRIVATE)
        },
        "across": counts["across/points"] if settings.across else None,
    }
    if "bloom" in modes:
        sides = (side for side in (PUBLIC, PRIVATE) if settings.mode_of(side) == "bloom")
        facts["bloom"] = {side: _filter_facts(settings, side, counts) for side in sides}
    if "minhash" in modes or settings.across:
        facts["near"] = {**parameters(settings.near), **_named(counts, "near/", ("compared", "crowded"))}
    if "minhash" in modes:
        facts["near"].update(_named(counts, "near/", ("dropped", "grouped", "largest_group")))
    return facts


def check_across(facts: dict[str, Any], limit: int | None) -> None:
    """``CheckFailed`` where more public points than ``limit`` nearly duplicate a private one."""
    if limit is not None and facts["across"] > limit:
        raise CheckFailed(
            f"{facts['across']} public points nearly duplicate a private one, and release.max_cross_split "
            f"allows {limit}: nothing is released. audit/across lists them by point_id, vault/ has their "
            "text. To release them all the same, raise the limit and resume (--resume)."
        )


def _filter_facts(settings: DedupSettings, side: str, counts: Counter[str]) -> dict[str, Any]:
    """A filter's parameters, and its false positives as they were measured."""
    names = ("capacity", "added", "dropped", "new", "lost")
    capacity, added, dropped, new, lost = (counts[f"bloom/{side}/{name}"] for name in names)
    return {
        "capacity": capacity,
        "error_rate": settings.bloom.error_rate,
        "texts_added": added,
        "points_dropped": dropped,
        "measured_on": new,
        "measured_lost": lost,
        "loss_rate": lost / new if new else None,
        "loss_rate_upper": upper_bound(lost, new, CONFIDENCE) if new else None,
    }


def _named(counts: Counter[str], prefix: str, names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts[prefix + name] for name in names}

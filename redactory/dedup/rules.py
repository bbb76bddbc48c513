"""What each mode proves: its rule, and how many kept texts one exchanged point can exchange.

``docs/guarantees.md``, "Deduplication".  The guarantee takes both from a run's manifest, so what stands
here is a promise: ``tests/dedup/test_rules.py`` tries every corpus of a small world against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redactory.dedup.settings import DedupSettings, Mode
from redactory.foundation.errors import some


@dataclass(frozen=True)
class Rule:
    """``group_size``: substitutions in the multiset of kept texts when one point is exchanged.

    None where no bound holds: then no finite epsilon can be stated.
    """

    name: str
    group_size: int | None


RULES: dict[Mode, Rule] = {
    "exact": Rule("S1", 1),
    "folded": Rule("S2", 2),
    "none": Rule("none", 1),
    "minhash": Rule("near-greedy", None),
    "bloom": Rule("bloom", None),
}


def rule_of(settings: DedupSettings, side: str) -> Rule:
    """The rule that a side is deduplicated by."""
    return RULES[settings.mode_of(side)]


# What a run's deduplication did and what it proves, in sentences: for the console, the report, the card.


def told(facts: dict[str, Any]) -> list[str]:
    """Sentences about the section ``dedup`` of a manifest."""
    return [*_sides(facts), *_earlier(facts), *_filters(facts), *_near(facts), *_across(facts)]


def _sides(facts: dict[str, Any]) -> Iterator[str]:
    for side, own in facts.get("sides", {}).items():
        size = RULES[own["mode"]].group_size
        if side == "public":
            alone = "what is dropped follows from public points alone"
            proved = "nothing is dropped" if own["mode"] == "none" else alone
        elif size is None:
            proved = f"no stability proof (rule {own['rule']}), so the guarantee has no finite epsilon"
        else:
            texts = "one text" if size == 1 else f"{size} texts"
            proved = f"one point exchanged exchanges at most {texts} (rule {own['rule']})"
        yield f"{side} side, mode {own['mode']}: {proved}"


def _earlier(facts: dict[str, Any]) -> Iterator[str]:
    index = facts.get("index")
    if index is None:
        return
    number = len(index["runs"])
    found = " and ".join(f"{count:,} {side}" for side, count in index["duplicate_earlier"].items())
    yield (
        f"earlier runs: {found} points repeat what the index saw in {some(number, 'earlier run')}"
        if number
        else "earlier runs: this is the first run of its index"
    )


def _filters(facts: dict[str, Any]) -> Iterator[str]:
    for side, own in facts.get("bloom", {}).items():
        lost, new = own["measured_lost"], own["measured_on"]
        if not new:
            yield f"{side} filter: the side has no text"
            continue
        yield (
            f"{side} filter: of {some(new, 'new text')} watched, {lost:,} taken for repeats and "
            f"lost, a rate of at most {own['loss_rate_upper']:.2g} (95 % confidence); made for "
            f"{some(own['capacity'], 'text')} at a rate of {own['error_rate']:g}, it holds "
            f"{own['texts_added']:,}"
        )
        if own["texts_added"] > own["capacity"]:
            yield f"{side} filter: it holds more texts than it was made for; raise dedup.bloom.capacity"


def _near(facts: dict[str, Any]) -> Iterator[str]:
    near = facts.get("near")
    if near is None:
        return
    if "dropped" in near:
        yield (
            f"near-duplicates: {some(near['dropped'], 'text')} dropped, in groups of at most "
            f"{near['largest_group']:,}; Jaccard similarity from {near['threshold']:g} of "
            f"{near['shingle']}-word shingles, found by {near['bands']} bands of {near['rows']}"
        )
    if near["crowded"]:
        yield (
            f"near-duplicates: {some(near['crowded'], 'time')} a text was compared with some, not all, of a "
            "crowded bucket: some pairs may have stayed unseen"
        )


def _across(facts: dict[str, Any]) -> Iterator[str]:
    count = facts.get("across")
    if count:
        points = "point nearly duplicates" if count == 1 else "points nearly duplicate"
        once = " (a repeated text is listed once)" if facts["mode"] == "none" else ""
        yield (
            f"across the split: {count:,} public {points} a private one, suspected misses of the "
            f"conservative policy, listed in audit/across{once}"
        )
    elif count is not None:
        yield "across the split: no public point nearly duplicates a private one"

"""What each mode proves: its rule, and how many kept texts one exchanged point can exchange.

``docs/guarantees.md``, "Deduplication".  The guarantee takes both from a run's manifest, so what stands
here is a promise: ``tests/dedup/test_rules.py`` tries every corpus of a small world against it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redactory.dedup.settings import DedupSettings, Mode
from redactory.foundation.errors import some

if TYPE_CHECKING:
    from jinja2 import Template


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


@functools.cache
def _template() -> Template:
    # on first use: Jinja takes a tenth of a second
    from jinja2 import Template

    text = (files("redactory.dedup") / "summary.j2").read_text(encoding="utf-8")
    template: Template = Template(text, autoescape=False)
    return template


def summary(facts: dict[str, Any]) -> list[str]:
    """What a run's deduplication did and proves, in sentences about the section ``dedup`` of its manifest."""
    written = _template().render(facts=facts, rules=RULES, some=some, many="{:,}".format)
    return written.strip().splitlines()

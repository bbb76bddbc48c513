"""Which numbers are planted in a simulated corpus, in which rows, and which of them a policy is to miss."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redactory.evaluation.canary_sets import PLACE
from redactory.foundation.errors import ConfigurationError

CANARY_TEMPLATE, CANARY_DIGITS = f"My ID is: {PLACE}", 6
DEFAULT_TEMPLATE = f"My ID is: {{{CANARY_DIGITS}}}"
_MOST_DIGITS = 18
_TEMPLATE = re.compile(r"(?P<before>[^{}]*[^{}0-9])\{(?P<digits>[0-9]{1,2})\}")


@dataclass(frozen=True)
class Canary:
    """A number and the words before it."""

    before: str
    digits: str = field(repr=False)
    missed: bool = False


@dataclass(frozen=True)
class CanaryPlan:
    """``planted``: the canaries of each row that has one; ``told``: the canary file."""

    planted: Mapping[int, Sequence[Canary]]
    told: dict[str, Any]

    @classmethod
    def drawn(
        cls,
        draw: random.Random,
        rows: int,
        canaries: int,
        copies: int,
        miss_rate: float,
        templates: Sequence[str],
        seed: int,
    ) -> CanaryPlan:
        """``canaries`` numbers of each template and as many controls, ``copies`` of each in random rows."""
        if not 0.0 <= miss_rate <= 1.0:
            raise ConfigurationError("simulate: the canaries' miss rate must lie between 0 and 1")
        if not templates or len(set(templates)) != len(templates):
            raise ConfigurationError("simulate: at least one canary template, each once")
        planted: dict[int, list[Canary]] = defaultdict(list)
        missing = random.Random(f"canary misses-{seed}")
        sets, taken = [], set[str]()
        for template in templates:
            before, digits = template_parts(template)
            numbers = _numbers(draw, digits, 2 * canaries, taken)
            taken.update(numbers)
            missed = [index for index in range(canaries) if missing.random() < miss_rate]
            for index, number in enumerate(numbers[:canaries]):
                canary = Canary(before, number, index in missed)
                for _ in range(copies):
                    planted[draw.randrange(rows)].append(canary)
            sets.append(
                {
                    "template": before + PLACE,
                    "inserted": numbers[:canaries],
                    "control": numbers[canaries:],
                    "copies": copies,
                    "seed": seed,
                    "miss_rate": miss_rate,
                    "missed": missed,
                }
            )
        return cls(planted, sets[0] if len(sets) == 1 else {"sets": sets})


def sets_of(canaries: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sets of a canary file that :meth:`CanaryPlan.drawn` told."""
    return list(canaries["sets"]) if "sets" in canaries else [dict(canaries)]


def template_parts(template: str) -> tuple[str, int]:
    """The words and the number of digits of a template such as "My ID is: {6}"."""
    match = _TEMPLATE.fullmatch(template)
    digits = int(match["digits"]) if match else 0
    if match is None or not 1 <= digits <= _MOST_DIGITS or not match["before"].isprintable():
        raise ConfigurationError(
            "simulate: a canary template is words in one line and then a number of digits in braces, at "
            f"most {_MOST_DIGITS}, such as '{DEFAULT_TEMPLATE}'"
        )
    return match["before"], digits


def _numbers(draw: random.Random, digits: int, count: int, taken: set[str]) -> list[str]:
    """``count`` different numbers, none of them ``taken``."""
    space = 10**digits
    if count + len(taken) > space:
        raise ConfigurationError(f"simulate: at most {space // 2} canaries can be told apart")
    drawn = (f"{n:0{digits}d}" for n in draw.sample(range(space), min(space, count + len(taken))))
    return [number for number in drawn if number not in taken][:count]

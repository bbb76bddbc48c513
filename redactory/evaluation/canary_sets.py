"""Canaries as their file holds them: one template with its numbers, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redactory.foundation.errors import InputError

PLACE = "{digits}"


@dataclass(frozen=True)
class CanarySet:
    """Numbers of ``digits`` digits after the words ``before``; ``missed`` are indices of ``inserted``."""

    before: str
    digits: int
    inserted: tuple[str, ...] = field(repr=False)
    control: tuple[str, ...] = field(repr=False)
    copies: int
    missed: frozenset[int] = frozenset()

    @property
    def candidates(self) -> int:
        """|R|: all numbers of as many digits."""
        return int(10**self.digits)


def canary_sets(canaries: Mapping[str, Any]) -> list[CanarySet]:
    """The sets of a canary file: {template, inserted, control, copies, missed?}, or {"sets": [such]}.

    ``InputError`` for canaries that do not fit their template or each other.
    """
    sets = canaries.get("sets", [canaries])
    if not sets:
        raise InputError("canaries: at least one set is needed")
    try:
        return [_set(one) for one in sets]
    except (KeyError, TypeError, AttributeError):
        raise InputError("canaries: each set needs template, inserted, control and copies") from None


def with_missed(sets: Sequence[CanarySet], missed: Sequence[bool]) -> list[CanarySet]:
    """The sets with what π in fact missed, one a canary that was inserted, over all sets in order."""
    if len(missed) != sum(len(one.inserted) for one in sets):
        raise InputError("canaries: missed must say of each inserted canary whether it was")
    said = iter(missed)
    return [replace(one, missed=frozenset(n for n in range(len(one.inserted)) if next(said))) for one in sets]


def _set(one: Mapping[str, Any]) -> CanarySet:
    template = str(one["template"])
    inserted, control = tuple(one["inserted"]), tuple(one["control"])
    numbers = inserted + control
    if not template.endswith(PLACE) or template.count(PLACE) != 1:
        raise InputError(f"canaries: the template must end with {PLACE}")
    lengths = {len(number) for number in numbers}
    if len(lengths) != 1 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise InputError("canaries: at least one number, all of decimal digits, as many in each")
    missed = frozenset(one.get("missed", ()))
    if not missed <= set(range(len(inserted))):
        raise InputError("canaries: missed must hold indices of inserted canaries")
    return CanarySet(
        template.removesuffix(PLACE), lengths.pop(), inserted, control, int(one["copies"]), missed
    )

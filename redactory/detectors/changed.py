"""What of a policy is another one here and now than in the record of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redactory.detectors.policy import policy_records
from redactory.detectors.settings import DetectSettings

NAMED = 4
"""Differences that a message lists."""


def changed_since(settings: DetectSettings, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Which policy is another one here and now than in a run's ``records``, and by what; None where none is.

    Keys are named, and of packages the versions: the other values may be words of a list.
    """
    now = policy_records(settings)
    for name, record in now.items():
        if record["hash"] != records[name]["hash"]:
            found = [one for one in differing(records[name], record) if one["key"] != "hash"]
            told = [_in_words(**one) for one in found[:NAMED]] + ["and more"] * (len(found) > NAMED)
            return (
                f"the {name} policy is not that of the run any more: {', '.join(told) or 'its hash differs'}"
            )
    return None


def _in_words(key: str, old: Any, new: Any) -> str:
    package = key.partition("versions.")[2]
    return f"{package} was {old} and is {new}" if package else f"{key} differs"


def differing(before: Any, after: Any) -> list[dict[str, Any]]:
    """The keys whose values differ: [{key, old, new}]; what only one of the two has is null in the other."""
    left, right = dict(_flat(before)), dict(_flat(after))
    return [
        {"key": key, "old": left.get(key), "new": right.get(key)}
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value

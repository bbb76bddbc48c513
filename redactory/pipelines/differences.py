"""How two runs differ in what their shards follow from: by the names of keys and files, without values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redactory.foundation.errors import RunStateError

NAMED = 8
"""Differences that a message lists; a changed model would fill a page with what follows from it."""


class AnotherRun(RunStateError):
    """What lies in the run folder was begun, or made, of something else than what is asked for now."""


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first part in which two identities (``Journal.begin``) differ, and what differs in it; or None."""
    # the input last: its digests follow from the key
    for part in sorted({**now, **before}, key=lambda part: part == "input"):
        old, new = before.get(part), now.get(part)
        if old == new:
            continue
        found = list(_files(old, new) if isinstance(old, list) and isinstance(new, list) else _keys(old, new))
        more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        return f"{part} ({', '.join([*found[:NAMED], *more])})" if found else part
    return None


def _keys(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """The paths of the settings that differ."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if key and old != new:
            yield key
        return
    for name in sorted({*old, *new}):
        yield from _keys(old.get(name), new.get(name), f"{key}.{name}" if key else name)


def _files(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    """Which files of the input differ, and how."""
    before, now = ({entry["path"]: entry for entry in entries} for entries in (old, new))
    yield from (f"{path} is missing" for path in before if path not in now)
    yield from (f"{path} is new" for path in now if path not in before)
    yield from (f"{path} has changed" for path in now if path in before and before[path] != now[path])
    if before == now:
        yield "the files come in another order"

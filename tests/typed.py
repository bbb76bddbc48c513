"""Whether a value is what its type says: mappings by their keys, and everything below."""

from __future__ import annotations

import types
import typing
from typing import Any


def problems(value: Any, kind: Any, place: str = "") -> list[str]:
    """Where ``value`` is not of type ``kind``: missing, strange and wrong keys by their path."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return []
    if typing.is_typeddict(kind):
        return _of_mapping(value, kind, place)
    if origin in (typing.Union, types.UnionType):
        found = [problems(value, part, place) for part in parts]
        return min(found, key=len)
    if origin is typing.Literal:
        return [] if value in parts else [f"{place}: {value!r}"]
    if origin is list:
        return _wrong(value, list, place) or [
            told for n, one in enumerate(value) for told in problems(one, parts[0], f"{place}.{n}")
        ]
    if origin is dict:
        return _wrong(value, dict, place) or [
            told for key, one in value.items() for told in problems(one, parts[1], f"{place}.{key}")
        ]
    return _wrong(value, (int, float) if kind is float else (type(None) if kind is None else kind), place)


def _of_mapping(value: Any, kind: Any, place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place}: {type(value).__name__}"]
    hints = typing.get_type_hints(kind)
    missing = [f"{place}.{key}: missing" for key in kind.__required_keys__ - value.keys()]
    strange = [f"{place}.{key}: strange" for key in value.keys() - hints.keys()]
    wrong = [
        told
        for key in value.keys() & hints.keys()
        for told in problems(value[key], hints[key], f"{place}.{key}")
    ]
    return [*missing, *strange, *wrong]


def _wrong(value: Any, kind: Any, place: str) -> list[str]:
    good = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    return [] if good else [f"{place}: {type(value).__name__}"]

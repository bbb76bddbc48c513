"""Whether what nobody masks looks personal: by its name, or because its values are hits of a policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from redactory.detectors.rules import words_if_any
from redactory.redaction.values import tells

_PERSONAL = re.compile(
    r"(?:^|_|\b)(?:(?:sur|user|last|first|full)?name|e?mail|phone|mobile|fax|address|street|city|zip|postcode"
    r"|born|birth|dob|ssn|iban|account|card|passport|license|ip|login)(?:$|_|\b)",
    re.IGNORECASE,
)
_RARE, REST = 0.1, "…"
"""A field that a smaller share of the rows has is not named: it may be somebody's name, used as a key."""
_TOOLS = (".function.name", ".function_call.name")


def personal(
    values: Mapping[str, Set[Any]], hits: Callable[[list[str]], Sequence[object]], language: str
) -> Iterator[str]:
    """The paths, of those that ``values`` are given of, that look personal.

    By their names, or where a fifth of their texts are hits that tell something by themselves; ``hits``
    says of each text, by being true, that the strict policy has something to say of it.
    """
    words = words_if_any(language)
    for path, found in values.items():
        kept = sorted(value for value in found - {""} if isinstance(value, str))
        telling = [value for value in kept if tells(value, words)]
        hit = sum(map(bool, hits(telling))) if telling else 0
        # a tool's name is nobody's
        named = found - {""} and _PERSONAL.search(path.rpartition(".")[2]) and not path.endswith(_TOOLS)
        if named or (telling and hit * 5 >= len(kept)):
            yield path


def up(path: str) -> Iterator[str]:
    """A path, and those above it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def shown(path: str, seen: Mapping[str, int], rows: int) -> str:
    """``path``, as far down as many of the ``rows`` have it; ``seen`` says how many have which."""
    known = next((above for above in up(path) if seen[above] >= _RARE * rows), "")
    return path if known == path else f"{known}.{REST}".lstrip(".")

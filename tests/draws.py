"""Every draw from the random stream by its name: what hides something must never be drawn twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from redactory.foundation.stream import RandomStream

_COMPARED_BYTES = 16


class RecordedDraw(NamedTuple):
    """One call of ``RandomStream.random_bytes``: the root key and the name of the draw, and how much was
    drawn."""

    root: bytes
    purpose: str
    step: int
    index: int
    count: int


@contextmanager
def require_unique_draws(*allowed_purposes: str) -> Iterator[list[RecordedDraw]]:
    """Record all draws in this block; ``AssertionError`` at its end where two of them are one.

    Two draws are one if they have the same root and name, or the same octets.  ``again`` names the purposes
    that are drawn again on purpose, such as the groups of points.  Draws of other processes are not seen.
    """
    draws: list[RecordedDraw] = []
    octets, prefixes = RandomStream.random_bytes, list[bytes]()

    def recorded(stream: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        drawn_octets = octets(stream, purpose, step, count, index)
        if count:
            draws.append(RecordedDraw(stream.root, purpose, step, index, count))
            if purpose not in allowed_purposes and count >= _COMPARED_BYTES:
                prefixes.append(drawn_octets[:_COMPARED_BYTES])
        return drawn_octets

    with mock.patch.object(RandomStream, "random_bytes", recorded):
        yield draws
    repeated = [
        name for name, n in Counter(draw[:4] for draw in draws).items() if n > 1 and name[1] not in allowed_purposes
    ]
    assert not repeated, f"drawn twice: {[name[1:] for name in repeated[:5]]}"
    assert len(set(prefixes)) == len(prefixes), "two draws have the same octets"

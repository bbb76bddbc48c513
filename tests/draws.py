"""Every draw from the random stream by its name: what hides something must never be drawn twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from redactory.foundation.stream import RandomStream

_COMPARED = 16


class Draw(NamedTuple):
    """One call of ``RandomStream.octets``: the root key and the name of the draw, and how much was drawn."""

    root: bytes
    purpose: str
    step: int
    index: int
    count: int


@contextmanager
def each_draw_once(*again: str) -> Iterator[list[Draw]]:
    """Record all draws in this block; ``AssertionError`` at its end where two of them are one.

    Two draws are one if they have the same root and name, or the same octets.  ``again`` names the purposes
    that are drawn again on purpose, such as the groups of points.  Draws of other processes are not seen.
    """
    drawn: list[Draw] = []
    octets, begins = RandomStream.octets, list[bytes]()

    def recorded(own: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        found = octets(own, purpose, step, count, index)
        if count:
            drawn.append(Draw(own.root, purpose, step, index, count))
            if purpose not in again and count >= _COMPARED:
                begins.append(found[:_COMPARED])
        return found

    with mock.patch.object(RandomStream, "octets", recorded):
        yield drawn
    repeated = [name for name, n in Counter(one[:4] for one in drawn).items() if n > 1 and name[1] not in again]
    assert not repeated, f"drawn twice: {[name[1:] for name in repeated[:5]]}"
    assert len(set(begins)) == len(begins), "two draws have the same octets"

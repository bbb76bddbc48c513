"""The scene of one row: its random stream, and the one person who is spoken of by several slots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from varied.names import Names, draw_names

T = TypeVar("T")


class Scene:
    """What the fillers of one row share.  Every draw comes from ``draw``."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    @cached_property
    def me(self) -> Names:
        """The row's own person: given name and surname."""
        return draw_names(self.draw)

    def names(self) -> Names:
        """Somebody new."""
        return draw_names(self.draw)

    def one(self, *choices: str) -> str:
        """One of the strings."""
        return self.draw.choice(choices)

    def of(self, choices: Sequence[T]) -> T:
        """One of a sequence."""
        return self.draw.choice(choices)

    def chance(self, share: float) -> bool:
        """True in ``share`` of the calls."""
        return self.draw.random() < share

    def digits(self, count: int) -> str:
        """``count`` digits; the first is not 0."""
        return str(self.draw.randrange(10 ** (count - 1), 10**count))

    def shape(self, pattern: str) -> str:
        """``pattern`` with # a digit, ^ a digit but 0, ? a capital, ~ a capital or digit, ! a hex digit."""
        draw = self.draw
        return "".join(
            draw.choice(_SIGNS[sign]) if sign in _SIGNS else sign for sign in pattern
        )  # a table, not five branches: this is the hottest loop of the simulator


_SIGNS = {
    "#": "0123456789",
    "^": "123456789",
    "?": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "~": "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789",
    "!": "0123456789abcdef",
}

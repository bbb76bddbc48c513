"""Perplexity outside of secrets, against a count by hand."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from redactory.evaluation.outside_secrets import HeldOut
from redactory.foundation.errors import InputError

TEXTS = [
    ("call Ann Lee now", [(5, 12)]),
    ("nothing to hide", []),
    ("Ann", [(0, 3)]),
]


class _Words:
    """Words are tokens; begin 0, end 1, mask 2."""

    end_id, mask_id = 1, 2

    def places(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"\S+", text)]

    def encode(self, text: str) -> list[int]:
        return [2 if word == "<MASK>" else 3 + len(word) for word in text.split()]


@dataclass
class _Known:
    """Every word costs ``plain`` nats, ``Ann`` and ``Lee`` cost ``secret``, a mask ``masked``, an end 1."""

    plain: float
    secret: float
    masked: float
    tokenizer: Any = field(default_factory=_Words)

    def token_log_probs(self, texts: list[str], batch_size: int = 1) -> list[NDArray[np.float64]]:
        costs = {"Ann": self.secret, "Lee": self.secret, "<MASK>": self.masked}
        return [-np.array([*(costs.get(w, self.plain) for w in text.split()), 1.0]) for text in texts]


def test_secrets_and_masks_are_left_out_in_both_forms() -> None:
    held_out = HeldOut.of(TEXTS, 10)
    # five plain words and three ends, whatever form is read
    expected = math.exp((5 * 2.0 + 3 * 1.0) / 8)
    for masked in (False, True):
        found = held_out.measure(_Known(2.0, 50.0, 30.0), masked)  # type: ignore[arg-type]
        assert found["perplexity"] == pytest.approx(expected)
    assert found["as_is"] == pytest.approx(math.exp((5 * 2 + 3 * 50 + 3) / 11))
    assert found["masked"] == pytest.approx(math.exp((5 * 2 + 2 * 30 + 3) / 10))


def test_at_most_so_many_points_and_at_least_one() -> None:
    assert len(HeldOut.of(TEXTS, 2).texts) == 2
    with pytest.raises(InputError, match="test"):
        HeldOut.of([], 5)

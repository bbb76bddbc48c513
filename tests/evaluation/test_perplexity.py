"""Perplexity against figures that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from redactory.evaluation.utility import measure_perplexity
from redactory.foundation.errors import InputError


class Coin:
    """A model under which every character and every end has one probability."""

    def __init__(self, probability: float) -> None:
        self.log_prob = math.log(probability) if probability else -math.inf

    def compute_token_log_probs(self, texts: Sequence[str]) -> list[NDArray[np.float64]]:
        return [np.full(len(text) + 1, self.log_prob) for text in texts]


def test_a_coin_has_perplexity_two() -> None:
    result = measure_perplexity(Coin(0.5), ["ab cd", "", "efg"])  # type: ignore[arg-type]
    assert (result["tokens"], result["words"], result["texts"]) == (11, 3, 3)
    assert result["perplexity"] == pytest.approx(2.0)
    assert result["perplexity_per_word"] == pytest.approx(2.0 ** (11 / 3))
    assert result["log_prob"] == pytest.approx(-11 * math.log(2))
    assert "reason" not in result


def test_what_is_no_number_is_null_with_a_reason() -> None:
    impossible = measure_perplexity(Coin(0.0), ["a"])  # type: ignore[arg-type]
    assert impossible["perplexity"] is impossible["log_prob"] is None
    assert impossible["reason"]
    wordless = measure_perplexity(Coin(0.5), [""])  # type: ignore[arg-type]
    assert wordless["perplexity"] == pytest.approx(2.0)
    assert wordless["perplexity_per_word"] is None
    with pytest.raises(InputError):
        measure_perplexity(Coin(0.5), [])  # type: ignore[arg-type]


def test_chunks_make_no_difference() -> None:
    seen: list[int] = []
    result = measure_perplexity(Coin(0.25), ["abc"] * 5000, lambda work, done, total, unit="": seen.append(done))  # type: ignore[arg-type]
    assert result["perplexity"] == pytest.approx(4.0, rel=1e-12)
    assert (result["tokens"], seen) == (20_000, [2048, 4096, 5000])

"""π misses the share it is told to, the same values everywhere, and π_c none."""

from __future__ import annotations

import random

import pytest
from scipy import stats

from redactory.evaluation.labelled_policies import LabelledPolicies

VALUES = [f"{n:05d}-{n % 7}" for n in range(1500)]
ROWS = [
    {"text": f"my number is {value}.", "spans": [{"start": 13, "end": 13 + len(value), "label": "NUMBER"}]}
    for value in VALUES
]
COUNTED = VALUES[:10]


def _missed(gamma: float, seed: int = 1) -> list[str]:
    policies = LabelledPolicies.of(ROWS, gamma, seed, COUNTED)
    found = policies.detect(row["text"] for row in ROWS)
    return [value for value, one in zip(VALUES, found, strict=True) if not one.strict]


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_the_share_that_is_missed_is_gamma(gamma: float) -> None:
    others = len(set(_missed(gamma)) - set(COUNTED))
    assert stats.binomtest(others, len(VALUES) - 10, gamma).pvalue > 1e-3
    assert stats.binomtest(others, len(VALUES) - 10, gamma + 0.1).pvalue < 1e-6


@pytest.mark.parametrize(("gamma", "missed"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.3, 3), (0.5, 5)])
def test_of_counted_values_it_is_exact(gamma: float, missed: int) -> None:
    policies = LabelledPolicies.of([], gamma, 1, COUNTED)
    assert [policies.misses(value) for value in COUNTED] == [n < missed for n in range(10)]


def test_what_is_missed_grows_with_gamma() -> None:
    assert set(_missed(0.0)) == set()
    assert set(_missed(0.1)) < set(_missed(0.3))
    assert _missed(0.3) != _missed(0.3, seed=2)


def test_pi_c_misses_nothing_and_a_text_is_read_alone() -> None:
    policies = LabelledPolicies.of(ROWS, 0.5, 1)
    texts = [row["text"] for row in ROWS[:200]]
    whole = list(policies.detect(texts))
    assert all(one.conservative for one in whole)
    order = random.Random(1).sample(range(200), 200)
    again = list(policies.detect([texts[n] for n in order]))
    assert [again[order.index(n)] for n in range(200)] == whole


def test_a_value_within_a_word_is_none() -> None:
    rows = [{"text": "I am Ann", "spans": [{"start": 5, "end": 8, "label": "PERSON"}]}]
    policies = LabelledPolicies.of(rows, 0.0, 1)
    inside, alone = policies.detect(["an Annex of", "so Ann said"])
    assert not inside.strict
    assert [(s.start, s.end, s.label) for s in alone.strict] == [(3, 6, "PERSON")]

"""What text that a model wrote is worth, and what it shows, on texts whose answers are known."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation.generation import _restrict_to_likeliest
from redactory.evaluation.synthetic import (
    NgramModel,
    compare_nearest_neighbours,
    compute_mauve,
    measure_classifier_error,
    measure_leakage,
    measure_text_quality,
)
from redactory.foundation.errors import InputError

WORDS = [
    *("rent", "lease", "tenant", "pay", "month", "doctor", "nurse"),
    *("pill", "fever", "rest", "north", "south", "east", "west"),
]
CANARIES = {"template": "My PIN is {digits}", "inserted": ["123456", "654321"], "control": ["777777"], "copies": 3}


def drawn(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) for _ in range(count)]


def test_copies_are_found_and_fresh_texts_are_not() -> None:
    members, others = drawn(1, 60), drawn(2, 60)
    copied = measure_leakage(members[:30], members, others)
    assert copied["above_chance"] == ["nearest", "membership"]
    assert not copied["holds"]
    assert copied["nearest"]["value"] == 1.0
    assert copied["nearest"]["to_members"] == pytest.approx(0.0)
    fresh = measure_leakage(drawn(3, 30), members, others)
    assert fresh["holds"]
    assert fresh["nearest"]["low"] <= fresh["nearest"]["value"] <= fresh["nearest"]["high"]
    with pytest.raises(InputError, match="at least 10"):
        measure_leakage(members[:9], members, others)


def test_planted_numbers_are_found_in_texts_alone() -> None:
    members, others = drawn(1, 40), drawn(2, 40)
    inserted = [f"{n:06d}" for n in range(20)]
    many = {**CANARIES, "inserted": inserted, "control": [f"9{n:05d}" for n in range(20)]}
    written = [*drawn(3, 30), *(f"My PIN is {number}" for number in inserted[:12])]
    found = measure_leakage(written, members, others, many)
    assert found["canaries"]["inserted_found"] == 12
    assert found["canaries"]["control_found"] == 0
    assert found["above_chance"] == ["canaries"]
    quiet = measure_leakage(drawn(3, 30), members, others, CANARIES)["canaries"]
    assert quiet == {"inserted": 2, "inserted_found": 0, "control": 1, "control_found": 0, "p_value": 1.0}


def test_chance_holds_nearest_neighbours_as_often_as_it_says() -> None:
    """Of texts drawn alike about one in ten lies outside an interval of 90 per cent, and not half."""
    outside = 0
    for seed in range(60):
        found = compare_nearest_neighbours(
            drawn(1000 + seed, 15), drawn(2000 + seed, 20), drawn(3000 + seed, 20), 0.9,
            seed, draws=300,
        )  # fmt: skip
        outside += not found["low"] <= found["value"] <= found["high"]
    assert outside <= 15


def test_real_text_is_as_good_as_itself_and_noise_is_not() -> None:
    held_out = [(text, "home" if "rent" in text else "other") for text in drawn(4, 60)]
    real = [(text, "home" if "rent" in text else "other") for text in drawn(5, 80)]
    noise = [("zz yy xx " * 4, "home")] * 40
    good, bad = (measure_text_quality(rows, real, held_out, ("home", "other")) for rows in (real[:40], noise))
    assert good["unigram_distance"]["written"] < 0.05 < 0.99 < bad["unigram_distance"]["written"]
    assert good["classifier_error"]["written"] < bad["classifier_error"]["written"]
    assert (good["coverage"], bad["coverage"]) == (1.0, 0.5)
    assert bad["next_word_accuracy"]["written"] < good["next_word_accuracy"]["written"]
    assert bad["distinct_2"]["written"] < 0.05
    assert good["mauve"]["written"] is None


@given(st.lists(st.text("ab ", max_size=8), min_size=1, max_size=6), st.text("abc ", max_size=6))
@settings(max_examples=40)
def test_shares_of_words_are_probabilities(texts: list[str], text: str) -> None:
    model = NgramModel(texts)
    known = {word for one in texts for word in one.split()} | {"\n"}
    before = tuple(["\n", "\n", *text.split()][-2:])
    total = sum(model._compute_probability(before, word) for word in known)
    # what is left is the share of a word that was never seen
    assert total + model._compute_probability(before, "never") == pytest.approx(1.0)
    assert model.compute_mean_log_prob(text) <= 0.0
    assert model.count_correct_predictions(text)[1] == len(text.split()) + 1


def test_a_classifier_learns_what_tells_classes_apart() -> None:
    train = [("pay the rent", "home"), ("the lease ends", "home"), ("take a pill", "health")] * 3
    assert measure_classifier_error(train, [("the rent", "home"), ("a pill", "health"), ("x", None)]) == 0.0
    assert measure_classifier_error([("no class", None)], [("a", "home")]) is None


def test_mauve_is_one_of_equals_and_low_of_strangers() -> None:
    draw = np.random.default_rng(1)
    ours, same, other = draw.normal(0, 1, (200, 4)), draw.normal(0, 1, (200, 4)), draw.normal(9, 1, (200, 4))
    assert compute_mauve(ours, same) > 0.9
    assert compute_mauve(ours, other) < 0.1


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_the_nucleus_is_the_fewest_that_have_the_share(scores: list[float], top_p: float) -> None:
    kept = np.isfinite(_restrict_to_likeliest(np.array([scores]), None, top_p)[0])
    shares = np.exp(scores) / np.exp(scores).sum()
    assert shares[kept].sum() >= top_p - 1e-9
    assert kept[int(shares.argmax())]
    assert kept.sum() == 1 or shares[kept].sum() - shares[kept].min() < top_p + 1e-9
    assert not kept.all() or math.isclose(shares[kept].sum(), 1.0)
    assert Counter(kept.tolist())[True] >= 1

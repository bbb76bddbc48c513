"""What is told of a training that is odd: only where it is, and nothing that must not be known."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.training.guarantee.remarks import TrainingFacts, count_noised_examples, make_remarks
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.settings import TrainSettings

ON_VECTORS: dict[str, Any] = {"trainer": "crt", "task": "classify", "classes": ("a", "b"), "expected_batch_size": 256}
FITTING: dict[str, Any] = {"sampling_rate": 0.1, "expected_batch_size": 10, "noise_multiplier": 1.0}
USERS = {"trainer": "user-level", "public_text": "x.txt", "federated": {"users": 50, "user_rate": 0.5}}


def spec(**changes: Any) -> TrainingSpec:
    settings = TrainSettings(**{**FITTING, **changes})
    return TrainingSpec.from_settings(settings, {"rule": "S1", "group_size": 1})


def curve(*losses: float | None, **last: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"step": 10 * n, "loss": loss} for n, loss in enumerate(losses)]
    rows[-1].update(last)
    return rows


@given(st.floats(1e-4, 1.0), st.integers(1, 10**7), st.floats(1e-3, 1e7))
def test_a_remark_stands_where_the_divisor_is_far_from_what_is_drawn(rate: float, points: int, batch: float) -> None:
    own, draws = spec(sampling_rate=rate, expected_batch_size=batch, delta=1e-8), rate * points
    told = make_remarks(own, TrainingFacts(points))
    if draws < 1.0:
        assert "pure noise" in told[0]
    elif batch > 2 * draws:
        assert re.search("times too small.* too short", told[0])
    elif batch < draws / 2:
        assert re.search("times too large.* too long", told[0])
    else:
        assert told == []
    assert len(told) <= 1


@pytest.mark.parametrize(
    ("changes", "facts", "says"),
    [
        ({}, {}, None),
        ({}, {"examples": 100, "noise_free_examples": 32, "parameters": 10}, None),
        ({"expected_batch_size": 255}, {"examples": 63}, r"draws 6\.3 examples .* stated 40\.5 times too small"),
        (
            {"expected_batch_size": 255},
            {"examples": 63, "is_upper_bound": True},
            r"draws at most 6\.3 examples .* of at most 63\): .* at least 40\.5 times too small",
        ),
        ({}, {"examples": 9_000, "is_upper_bound": True}, None),
        (ON_VECTORS, {"examples": 63}, None),
        (ON_VECTORS, {"examples": 9}, "pure noise"),
        ({**ON_VECTORS, "optimizer": "sgd"}, {"examples": 63}, "times too small"),
        ({"public_batch_size": 8}, {"noise_free_examples": 7}, "public_batch_size is 8, but only 7 examples"),
        ({"delta": 0.009}, {}, None),
        ({"delta": 0.011}, {}, "delta is 0.011, above one over the 100 examples"),
        ({"delta": 0.009}, {"examples": 120}, "above one over the 120 examples"),
        ({**USERS, "delta": 0.03}, {}, "above one over the 50 users"),
        ({**USERS, "delta": 0.019}, {"examples": 9_000}, None),
        ({}, {"parameters": 10**4}, None),
        ({}, {"parameters": 10**6}, "1,000,000 parameters, .* next to nothing"),
        ({"trainer": "sgd"}, {"parameters": 10**6, "examples": 1}, None),
        ({}, {"held_out_curve": curve(9.0)}, None),
        ({}, {"held_out_curve": curve(9.0, 5.0, 5.05)}, None),
        ({}, {"held_out_curve": curve(9.0, 5.0, 5.2)}, None),  # the best weights are saved
        ({"recipe": "fixed"}, {"held_out_curve": curve(9.0, 5.0, 5.2)}, "ended at 5.2, after 5 in step 10;"),
        ({}, {"held_out_curve": curve(9.0, 5.0, 9.5)}, "was 9 before .* is 9.5 after .* diverged"),
        ({}, {"held_out_curve": curve(9.0, None)}, "is inf after .* diverged"),
        ({"trainer": "sgd"}, {"held_out_curve": curve(0.7, 0.6, most_said=1.0)}, "one class for every"),
        ({}, {"held_out_curve": curve(0.7, 0.6, most_said=0.9)}, None),
    ],
)
def test_what_is_odd_is_told_and_nothing_else(changes: dict[str, Any], facts: dict[str, Any], says: str | None) -> None:
    told = make_remarks(spec(**changes), TrainingFacts(**facts))
    assert (told == []) if says is None else any(re.search(says, one) for one in told), told
    assert not any(one.endswith(".") for one in told)


@pytest.mark.parametrize(
    ("trainer", "points"), [("crt", 30 + 4 + 2), ("crt-drop", 36), ("dpsgd", 50), ("sgd", None), ("user-level", None)]
)
def test_a_card_counts_what_is_the_same_in_both_worlds(trainer: str, points: int | None) -> None:
    """A point exchanged can take a duplicate's place, or be quarantined: what is left of them is not told."""
    counts = {"examples": 50, "private": 30, "private_duplicate": 4, "quarantined": 2, "public": 14}
    own = spec(**{**(USERS if trainer == "user-level" else {}), "trainer": trainer})
    assert count_noised_examples(own, counts) == points
    neighbour = {**counts, "private": 29, "private_duplicate": 4, "quarantined": 3}
    assert count_noised_examples(own, neighbour) == points

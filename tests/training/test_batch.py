"""What is told of batches that do not fit the points: only where they do not, and which way."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from redactory.training.guarantee.plan import _odd_draws, remarks_on
from redactory.training.settings import TrainSettings


@given(st.floats(1e-4, 1.0), st.integers(1, 10**7), st.floats(1e-3, 1e7))
def test_a_remark_stands_where_the_divisor_is_far_from_what_is_drawn(
    rate: float, points: int, batch: float
) -> None:
    draws = rate * points
    told = list(_odd_draws(rate, points, batch))
    if draws < 1.0:
        assert "noise alone" in told[0]
    elif batch > 4 * draws:
        assert re.search("times too small.* too short", told[0])
    elif batch < draws / 4:
        assert re.search("times too large.* too long", told[0])
    else:
        assert told == []
    assert len(told) <= 1


def test_the_factor_is_that_of_the_two() -> None:
    (told,) = _odd_draws(0.1, 63, 256)
    assert re.findall(r"draws (\S+) points .* stated (\S+) times too small", told) == [("6.3", "41")]
    assert "not this count" in told


def test_bounds_and_plain_batches_that_do_not_fit() -> None:
    fitting = TrainSettings(
        sampling_rate=0.1,
        expected_batch_size=10,
        truncated_batch_size=20,
        dataset_size=100,
        public_batch_size=8,
    )
    assert remarks_on(fitting, 100, 8) == []
    assert remarks_on(fitting, None, None) == []
    (plain,) = remarks_on(fitting, 100, 7)
    assert "train.public_batch_size is 8, and 7 points" in plain
    told = remarks_on(fitting, 300, None)
    assert [one.split(" is ")[0] for one in told] == ["train.truncated_batch_size", "train.dataset_size"]

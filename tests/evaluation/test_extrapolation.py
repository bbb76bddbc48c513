"""Exposure from a sample against exact ranks, and when the fitted law is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from redactory.evaluation.canary import (
    EXTRAPOLATED,
    SAMPLED,
    WEIGHTED,
    SkewNormal,
    canary_exposure,
    extrapolated_exposure,
    fitted,
    likelier,
    middle_rank,
)
from redactory.evaluation.continuations import DrawnNumbers, continuation_log_probs, drawn_numbers
from redactory.foundation.stream import RandomStream
from redactory.training.model import LanguageModel
from redactory.training.models.build import network_of
from redactory.training.models.settings import LstmSettings
from redactory.training.tokenizer import Tokenizer
from tests.evaluation.small_model import Parrot


@pytest.fixture(scope="module")
def scores() -> NDArray[np.float64]:
    """A million candidates: six digits, each with its own probabilities that depend on the digit before."""
    draw = RandomStream.from_seed(5).uniform("tables", 0, 6 * 100).reshape(6, 10, 10)
    tables = np.log(draw**0.7)
    tables -= np.log(np.exp(tables).sum(-1, keepdims=True))
    total = tables[0, 0]
    for table in tables[1:]:
        total = (total[:, None] + table[np.arange(len(total)) % 10]).reshape(-1)
    return total


def _sampled(scores: NDArray[np.float64], n: int, seed: int = 1) -> NDArray[np.float64]:
    draws = RandomStream.from_seed(seed).uniform("sample", 0, n)
    return scores[(draws * len(scores)).astype(np.int64)]


def _normal(n: int, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(n)


def test_against_exact_ranks_of_a_million(scores: NDArray[np.float64]) -> None:
    order = np.argsort(-scores)
    asked = np.array([order[rank - 1] for rank in (1, 30, 1_000, 30_000, 500_000, 1_000_000)])
    exact = [math.log2(1e6) - math.log2(middle_rank(scores, int(i))) for i in asked]
    found = extrapolated_exposure(_sampled(scores, 20_000), scores[asked], 10**6)
    assert [row["method"] for row in found] == [EXTRAPOLATED] * 3 + [SAMPLED] * 3
    for row, bits, slack in zip(found, exact, (4.5, 2.0, 1.0, 0.3, 0.1, 0.1), strict=True):
        assert abs(row["exposure"] - bits) < slack
        assert row["low"] <= row["exposure"] <= row["high"]
        # a bound at 95 %, which a sample may miss by a little
        assert row["at_least"] <= bits + 0.1
        assert row["reason"] is None


def test_a_skew_normal_law_gives_its_own_tail_back() -> None:
    from scipy.stats import skewnorm

    sample = skewnorm.rvs(-3.0, -10.0, 2.0, size=20_000, random_state=np.random.default_rng(2))
    law = fitted(sample).law
    assert law is not None
    points = skewnorm.isf([1e-3, 1e-5, 1e-7], -3.0, -10.0, 2.0)
    np.testing.assert_allclose(law.exposure(points), np.log2([1e3, 1e5, 1e7]), rtol=0.12)
    assert SkewNormal(0.0, 1.0, 0.0).exposure(np.array([0.0]))[0] == pytest.approx(1.0)


def test_a_law_that_does_not_fit_is_refused_with_its_reason() -> None:
    normal = _normal(20_000)
    lump = np.where(np.arange(20_000) % 100 == 0, 15.0 + 0.1 * normal, normal)
    for sample, reason in (
        (lump, "not skew-normal"),
        (normal[:1_999], "fewer"),
        (np.zeros(5_000), "same score"),
    ):
        found = fitted(sample)
        assert found.law is None
        assert reason in str(found.reason)
    (row,) = extrapolated_exposure(lump - 1_000.0, np.array([40.0]) - 1_000.0, 10**9)
    assert row["exposure"] is None
    assert row["method"] is None
    assert "skew-normal" in row["reason"]
    # none of 20,000 scored as high: the share is at most 3/20,000 at 95 %
    assert row["at_least"] == pytest.approx(math.log2(20_000 / 3.0), abs=0.01)
    assert sum(fitted(_normal(4_000, seed)).law is None for seed in range(20)) <= 3


def test_intervals_hold_the_true_share_as_often_as_they_say() -> None:
    held = 0
    for seed in range(60):
        sample = RandomStream.from_seed(seed).uniform("u", 0, 2_000)
        (row,) = extrapolated_exposure(sample - 1_000.0, np.array([0.9 - 1_000.0]), 10**9)
        held += row["low"] <= math.log2(10) <= row["high"]
    assert 52 <= held <= 60


def test_no_exposure_goes_beyond_the_candidates_and_ties_are_halves() -> None:
    sample = _normal(20_000)
    (row,) = extrapolated_exposure(sample - 1_000.0, np.array([99.0 - 1_000.0]), 1_000)
    assert row["exposure"] == pytest.approx(math.log2(1_000))
    (flat,) = extrapolated_exposure(np.full(5_000, -18.4), np.full(1, -18.4), 10**8)
    assert (flat["method"], flat["exposure"]) == (SAMPLED, 1.0)


def test_a_space_too_large_is_sampled_and_what_is_known_by_heart_stands_out() -> None:
    number, control = "417417417", "862862862"
    canaries = {"template": "My ID is: {digits}", "inserted": [number], "control": [control], "copies": 1}
    leaky = canary_exposure(Parrot.of([f"My ID is: {number}"], 0.9), canaries, samples=2_000)
    flat = canary_exposure(Parrot.of([], 0.0), canaries, samples=2_000)
    known = leaky["canaries"][0]
    # it has nine tenths of the probability at every digit: at most 1/0.9^9 candidates can be as likely
    assert known["method"] == WEIGHTED
    assert known["at_least"] > math.log2(1e9) - 1.0
    assert known["exposure"] == pytest.approx(math.log2(1e9), abs=1e-9)
    assert leaky["chance"]["highest_p_value"] < 1e-6
    assert flat["mean_exposure"] == flat["control_mean_exposure"] == 1.0
    assert leaky["candidates"] == 10**9
    assert number not in str(leaky)


def test_what_the_model_draws_gives_ranks_that_a_uniform_sample_cannot() -> None:
    tokenizer = Tokenizer.from_texts(["My ID is"], 10)
    network = network_of(LstmSettings(embedding_size=8, hidden_size=12), tokenizer)
    network.initialise(RandomStream.from_seed(1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(6.0)
    model = LanguageModel(tokenizer, network.double())
    scores = continuation_log_probs(model, "My ID is: ", 5)
    drawn = drawn_numbers(model, "My ID is: ", 5, 6_000, RandomStream.from_seed(2))
    assert drawn is not None
    assert (drawn.log_q >= drawn.log_p - 1e-9).all()
    order = np.argsort(-scores)
    held = 0
    for rank in (100, 300, 1_000, 3_000, 10_000):
        before = likelier(drawn, float(scores[order[rank - 1]]))
        assert before.most >= rank - 1
        assert abs(math.log2((1 + before.count) / rank)) < 0.5
        held += before.low is not None and before.high is not None and before.low <= rank - 1 <= before.high
    assert held >= 4
    asked = scores[order[[99, 299]]]
    rows = extrapolated_exposure(_sampled(scores, 2_000), asked, 10**5, drawn)
    assert [row["method"] for row in rows] == [WEIGHTED] * 2
    # a law of drawing that is not the model's own is found out
    wrong = DrawnNumbers(drawn.log_p, drawn.log_q + 2.0)
    assert abs(math.log2((1 + likelier(wrong, float(scores[order[299]])).count) / 300)) > 1

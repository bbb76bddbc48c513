"""Lower bounds from guessed coins: against linear programs, exact laws and a mechanism of known epsilon."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import ndtr

from redactory.evaluation.one_run_audit import (
    CanaryForm,
    audit_scores,
    compute_curve_p_value,
    compute_epsilon_lower_bound,
    compute_gaussian_lower_bound,
    draw_coins,
    get_coins_path,
    make_curve_level_function,
    make_gaussian_level_function,
    plant_canaries,
    read_coins,
)
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import MASK
from redactory.training.accounting.bounds import compute_gaussian_epsilon

DELTA = 1e-5
COUNTS = [(1, 1, 1), (5, 5, 4), (20, 20, 16), (20, 10, 9), (40, 12, 12)]
PRIVATE = [(0.5, 0.0), (1.0, 1e-3), (2.0, 0.01)]


def _largest_chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest P(>= correct) of any law of right guesses that the exchange of one coin allows."""
    counts = np.arange(guesses + 1)
    rows, bounds = [], []
    for least in range(1, guesses + 1):
        right = np.where(counts >= least, counts, 0) / canaries
        wrong = np.where(counts >= least - 1, guesses - counts, 0) / canaries
        rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
        bounds += [delta, 1.0 - math.exp(-epsilon) * (1.0 - delta)]
    ones = np.ones((1, guesses + 1))
    found = optimize.linprog(-(counts >= correct).astype(float), rows, bounds, ones, [1.0], (0, 1))
    return float(-found.fun)


@pytest.mark.parametrize(("epsilon", "delta"), PRIVATE)
@pytest.mark.parametrize("counts", COUNTS)
def test_the_recursion_solves_the_linear_program(counts: tuple[int, int, int], epsilon: float, delta: float) -> None:
    found = compute_curve_p_value(*counts, make_curve_level_function([(epsilon, delta)]))
    exact = _largest_chance(*counts, epsilon, delta)
    assert exact - 1e-9 <= found <= exact * (1.0 + 1e-5)


def test_randomised_response_is_bounded_within_two_percent() -> None:
    for guesses, correct in ((200, 170), (1_000, 700)):
        exact = optimize.brentq(
            lambda e, v=correct, n=guesses: stats.binom.sf(v - 1, n, 1 / (1 + math.exp(-e))) - 0.05, 0, 9
        )
        assert 0.98 * exact <= compute_epsilon_lower_bound(guesses, guesses, correct, 0.0) <= exact


def test_one_canary_is_guessed_as_well_as_the_curve_allows() -> None:
    assert compute_curve_p_value(1, 1, 1, make_gaussian_level_function(1.3)) == pytest.approx(ndtr(0.65), rel=1e-5)


def test_a_curve_known_at_many_points_allows_no_more_than_at_one_and_no_less_than_itself() -> None:
    def spent(epsilon: float) -> float:
        return float(ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon))

    curve = [(epsilon, spent(epsilon)) for epsilon in np.linspace(0.0, 8.0, 81)]
    for counts in COUNTS:
        whole, at_one = (
            compute_curve_p_value(*counts, make_curve_level_function(curve)),
            min(compute_curve_p_value(*counts, make_curve_level_function([point])) for point in curve[::20]),
        )
        exact = compute_curve_p_value(*counts, make_gaussian_level_function(1.0))
        assert exact <= whole * (1.0 + 1e-5)
        assert whole <= at_one * (1.0 + 1e-5)
        assert whole == pytest.approx(exact, rel=0.02)


def _released(canaries: int, shift: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The sum of one canary's ±shift/2 in a direction of its own and Gaussian noise; and the coins."""
    draw = np.random.default_rng(0)
    coins = draw.random(canaries) < 0.5
    return np.where(coins, shift / 2.0, -shift / 2.0) + noise * draw.normal(size=canaries), coins


@pytest.mark.parametrize("shift", [0.25, 0.5, 1.0])
def test_a_bare_gaussian_is_bounded_from_below_within_thirty_percent(shift: float) -> None:
    """A direction a canary, 100,000 of them, the surest thousand guessed; the curve is known to be Gaussian.

    Of a training of which nothing is known, so close a bound is had of small epsilons alone.
    """
    scores, coins = _released(100_000, shift, 1.0)
    true = compute_gaussian_epsilon(shift, DELTA)
    found = audit_scores(scores, coins, DELTA, shares=(0.01,))
    assert 0.7 * true <= found["epsilon_lower_gaussian"] <= true
    assert 0.4 * true <= found["epsilon_lower"] <= found["epsilon_lower_gaussian"]


def test_a_mechanism_that_forgets_its_noise_is_seen() -> None:
    claimed = compute_gaussian_epsilon(1.0, DELTA)
    honest, coins = _released(1_000, 1.0, 1.0)
    assert audit_scores(honest, coins, DELTA, shares=(1.0, 0.1))["epsilon_lower"] <= claimed
    broken, coins = _released(1_000, 1.0, 0.01)
    found = audit_scores(broken, coins, DELTA, shares=(1.0, 0.1))
    assert found["epsilon_lower"] > claimed
    assert (found["guesses"], found["correct"]) == (1_000, 1_000)
    # noise of the square of the deviation, the defect of a published code: claimed for 0.2, done with 0.04
    squared, coins = _released(1_000, 0.2, 0.04)
    assert audit_scores(squared, coins, DELTA, shares=(1.0,))["epsilon_lower"] > compute_gaussian_epsilon(
        0.2 / 0.2, DELTA
    )


def test_scores_that_know_no_coin_show_nothing() -> None:
    draw = np.random.default_rng(1)
    found = audit_scores(draw.normal(size=2_000), draw.random(2_000) < 0.5, DELTA)
    assert found["epsilon_lower"] < 0.15
    assert audit_scores(np.zeros(100), np.ones(100, bool), DELTA)["epsilon_lower"] == 0.0


def test_more_right_guesses_never_bound_less() -> None:
    for lower in (compute_epsilon_lower_bound, compute_gaussian_lower_bound):
        bounds = [lower(100, 50, correct, DELTA) for correct in range(0, 51, 5)]
        assert bounds == sorted(bounds)
        assert bounds[0] == 0.0
        assert bounds[-1] > 2.0


def test_impossible_counts_are_refused() -> None:
    for counts in ((10, 11, 3), (10, 5, 6), (10, 5, -1)):
        with pytest.raises(ValueError, match="correct"):
            compute_epsilon_lower_bound(*counts, DELTA)
    for scores in (np.array([1.0]), np.array([1.0, math.nan])):
        with pytest.raises(ValueError, match="score"):
            audit_scores(scores, np.array([True, False]), DELTA)


def test_the_error_is_divided_among_the_shares_that_are_guessed() -> None:
    draw = np.random.default_rng(5)
    coins = draw.random(200) < 0.5
    found = audit_scores(coins + draw.normal(0.0, 0.6, 200), coins, 1e-5, 0.95)
    rows = found["by_share"]
    assert len(rows) > 1
    for row in rows:
        terms = (200, row["guesses"], row["correct"], 1e-5)
        assert row["epsilon_lower"] == compute_epsilon_lower_bound(*terms, 1 - 0.05 / len(rows))
    assert max(row["epsilon_lower"] for row in rows) == found["epsilon_lower"] > 0


# Canaries with coins: what is planted, what is not, and that nothing else changes.


ROWS = [{"id": f"d{i}", "user_id": f"u{i}", "text": f"line {i}", "spans": []} for i in range(50)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("form", get_args(CanaryForm))
def test_the_corpus_holds_what_the_coins_say_and_nothing_else(corpus: Path, tmp_path: Path, form: CanaryForm) -> None:
    out = tmp_path / "planted.jsonl"
    told = plant_canaries(corpus, out, canaries=40, form=form, seed=1)
    coins, rows = read_coins(get_coins_path(out)), _rows(out)
    assert [row for row in rows if row["id"].startswith("d")] == ROWS
    planted = [row for row in rows if row["id"].startswith("audit-")]
    assert len({row["user_id"] for row in planted}) == len(planted) == told["planted"]
    here = sorted(row["text"] for row in planted)
    first = [coins.render_sentence(a) for (a, _), coin in zip(coins.numbers, coins.coins, strict=True) if coin]
    second = [coins.render_sentence(b) for (_, b), coin in zip(coins.numbers, coins.coins, strict=True) if not coin]
    instead = {"pair": second, "masked": [coins.render_sentence(MASK)] * len(second), "absent": []}[form]
    assert here == sorted([*first, *instead])
    for row in planted:
        values = [row["text"][span["start"] : span["end"]] for span in row["spans"]]
        assert values == ([] if MASK in row["text"] else [row["text"][-8:]])
    numbers = {n for pair in coins.numbers for n in pair}
    assert len(numbers) == 80
    assert told["canaries"] == 40
    assert told["rows"] == len(rows)
    assert coins.seeded
    assert get_coins_path(out).stat().st_mode & 0o77 == 0


def test_coins_are_fair_and_fresh() -> None:
    heads = sum(draw_coins(4_000).coins)
    assert abs(heads - 2_000) < 200
    assert draw_coins(50).coins != draw_coins(50).coins
    assert draw_coins(50, seed=3) == draw_coins(50, seed=3)


def test_the_place_of_a_canary_does_not_tell_its_coin(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "planted.jsonl"
    plant_canaries(corpus, out, canaries=200, form="masked", seed=2)
    masked = [place for place, row in enumerate(r for r in _rows(out) if r["id"][0] == "a") if MASK in row["text"]]
    assert 70 < sum(masked) / len(masked) < 130


def test_columns_of_other_names_are_planted_in(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"name": "x", "words": "y"}')  # no line end
    plant_canaries(corpus, tmp_path / "o.jsonl", canaries=3, columns={"text": "words", "id": "name"}, seed=1)
    rows = _rows(tmp_path / "o.jsonl")
    assert len(rows) == 4
    assert all(set(row) <= {"name", "words", "user_id"} for row in rows)


def test_what_cannot_be_planted_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="exists"):
        plant_canaries(corpus, corpus, canaries=3)
    for wrong in ({"canaries": 0}, {"form": "both"}, {"template": "x"}, {"template": "{digits} x"}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            draw_coins(**{"canaries": 2, **wrong})  # type: ignore[arg-type]
    bad = tmp_path / "bad.jsonl"
    for content in ("", "secret 123\n", "[1]\n"):
        bad.write_text(content)
        with pytest.raises(InputError) as error:
            plant_canaries(bad, tmp_path / "never.jsonl", canaries=3)
        assert "secret" not in str(error.value)
    for content in ("{}", '{"format": "redactory-coins/1"}', "x", "[]"):
        bad.write_text(content)
        with pytest.raises(InputError, match="coins"):
            read_coins(bad)

"""The bounds of a stratified sample: their coverage counted out exactly, and that simpler ones would fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from redactory.evaluation import sample_bounds
from redactory.evaluation.sample import LabelledSpan, SampledText, draw_secret_indices
from redactory.evaluation.sample_bounds import (
    MASKED,
    PUBLIC,
    STRATA,
    SUSPECTED,
    GammaDeltaRates,
    SamplePlan,
    Stratum,
    UnmeasuredExamples,
    compute_upper_bounds,
    count_public_draws_needed,
    estimate_rates,
    plan_sample,
)
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper
from redactory.foundation.stream import RandomStream

CONFIDENCE = 0.9
NOTHING = UnmeasuredExamples()
EMPTY_STRATUM = Stratum(0, None, 0.0, 0.0)


@pytest.fixture(autouse=True, scope="module")
def _remembered_bounds() -> Iterator[None]:
    """Enumerations ask for the same few bounds many thousand times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_bounds, "clopper_pearson_upper", _bound)
        patch.setattr(sample_bounds, "clopper_pearson_lower", functools.cache(clopper_pearson_lower))
        yield


Population = dict[str, tuple[int, int, float, float]]
"""By stratum: points; draws, none if it is labelled whole; φ, of points with a secret; ρ, of these missed."""


def population(
    public: tuple[int, int, float], masked: tuple[int, int, float, float], suspected: tuple[int, int, float]
) -> Population:
    return {PUBLIC: (*public, 1.0), MASKED: masked, SUSPECTED: (*suspected, 1.0)}


def truth(of: Population) -> GammaDeltaRates:
    holding = {name: points * phi for name, (points, _, phi, _) in of.items()}
    missed = sum(holding[name] * of[name][3] for name in STRATA)
    return GammaDeltaRates(missed / sum(holding.values()), holding[PUBLIC] / sum(holding.values()))


def samples(of: Population) -> Iterator[tuple[float, dict[str, Stratum]]]:
    """Every sample that can come out, with its probability."""
    outcomes: list[list[tuple[float, Stratum]]] = []
    for points, draws, phi, rho in of.values():
        own: list[tuple[float, Stratum]] = []
        if not draws:
            own.append((1.0, Stratum(points, None, points * phi, points * phi * rho)))
        for secrets in range(draws + 1) if draws else ():
            chance = float(binom.pmf(secrets, draws, phi))
            for missed in [secrets] if rho == 1 else range(secrets + 1):
                share = float(binom.pmf(missed, secrets, rho))
                own.append((chance * share, Stratum(points, draws, secrets, missed)))
        outcomes.append([outcome for outcome in own if outcome[0] > 1e-7])
    for three in product(*outcomes):
        probability = three[0][0] * three[1][0] * three[2][0]
        yield probability, dict(zip(of, (stratum for _, stratum in three), strict=True))


def coverage(of: Population, bound: Callable[[dict[str, Stratum]], GammaDeltaRates]) -> GammaDeltaRates:
    """With what probability each bound is at least the truth: exact up to what is left out as rare."""
    real, gamma, delta_2 = truth(of), 0.0, 0.0
    for probability, strata in samples(of):
        found = bound(strata)
        gamma += probability * (found.gamma >= real.gamma)
        delta_2 += probability * (found.delta_2 >= real.delta_2)
    return GammaDeltaRates(gamma, delta_2)


def joined(strata: dict[str, Stratum]) -> GammaDeltaRates:
    return compute_upper_bounds(strata, CONFIDENCE, NOTHING)


def pooled(strata: dict[str, Stratum]) -> GammaDeltaRates:
    """What is wrong: all secrets of the sample as if drawn alike."""
    drawn = {name: s for name, s in strata.items() if s.draws}
    secrets = sum(s.secrets for s in drawn.values())
    missed = sum(s.missed for s in drawn.values())
    return GammaDeltaRates(*(_bound(misses, secrets, CONFIDENCE) for misses in (missed, drawn[PUBLIC].secrets)))


_bound = functools.cache(clopper_pearson_upper)


RARE_PUBLIC = population((60_000, 20, 0.08), (9_000, 6, 0.999, 0.01), (500, 4, 0.6))
MANY_SUSPECTED = population((500, 20, 0.02), (3_000, 6, 0.95, 0.02), (9_000, 6, 0.7))
FEW_CAUGHT = population((2_000, 12, 0.3), (4_000, 12, 0.9, 0.3), (2_000, 8, 0.4))
TIGHT = population((5_000, 30, 0.078), (5_000, 0, 0.998, 0.0), (0, 0, 0.0))
WHOLE_PUBLIC = population((100, 0, 0.01), (4_000, 30, 0.9, 0.08), (10, 0, 0.5))
WHOLE_MASKED = population((4_000, 20, 0.12), (100, 0, 0.9, 0.3), (500, 8, 0.4))
HALF_CAUGHT = population((0, 0, 0.0), (1_000, 60, 0.5, 0.0), (500, 0, 1.0))
POPULATIONS = [RARE_PUBLIC, MANY_SUSPECTED, FEW_CAUGHT, TIGHT, WHOLE_PUBLIC, WHOLE_MASKED, HALF_CAUGHT]


@pytest.mark.parametrize("of", POPULATIONS)
def test_the_bounds_cover_as_often_as_they_say_and_hardly_more_often(of: Population) -> None:
    found = coverage(of, joined)
    assert min(found) >= CONFIDENCE - 1e-4
    assert of is not TIGHT or found.delta_2 < CONFIDENCE + 0.015


def plugged_in(strata: dict[str, Stratum]) -> GammaDeltaRates:
    """What is wrong too: the share of points with a secret taken as seen."""
    found = estimate_rates(strata)
    return GammaDeltaRates(1.0, found.delta_2 if found else 1.0)


@pytest.mark.parametrize(
    ("of", "bound", "rate"),
    [(RARE_PUBLIC, pooled, "delta_2"), (MANY_SUSPECTED, pooled, "gamma"), (RARE_PUBLIC, plugged_in, "delta_2")],
)
def test_simpler_bounds_would_not_cover(of: Population, bound: Any, rate: str) -> None:
    assert getattr(coverage(of, bound), rate) < CONFIDENCE - 0.1


_MISSED = st.integers(0, 40).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))
_COUNTS = st.tuples(st.integers(1, 10**6), st.integers(1, 40), _MISSED)
_DRAWN = _COUNTS.map(lambda t: Stratum(t[0], max(t[1], t[2][0]), *t[2]))
_SHARES = st.tuples(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
_WHOLE = _SHARES.map(lambda t: Stratum(t[0], None, t[0] * t[1], t[0] * t[1] * t[2]))
_STRATUM = _DRAWN | _WHOLE


@settings(max_examples=100, deadline=None)
@given(_STRATUM, _STRATUM, _STRATUM, st.integers(0, 1000), st.sampled_from([0.5, 0.95, 0.999]))
def test_bounds_keep_their_order(
    public: Stratum, masked: Stratum, suspected: Stratum, left_out: int, confidence: float
) -> None:
    strata = {PUBLIC: public, MASKED: masked, SUSPECTED: suspected}
    bound = compute_upper_bounds(strata, confidence, NOTHING)
    assert 0 <= bound.delta_2 <= bound.gamma <= 1 + 1e-12
    wider = compute_upper_bounds(strata, confidence, UnmeasuredExamples(left_out, left_out))
    assert wider.gamma >= bound.gamma - 1e-12
    assert wider.delta_2 >= bound.delta_2 - 1e-12
    without = {**strata, MASKED: replace(masked, missed=0)}
    assert compute_upper_bounds(without, confidence, NOTHING).gamma <= bound.gamma + 1e-12
    # in truth whatever stands in a public point is missed, and so is what π did not mask
    seen = estimate_rates(
        {
            PUBLIC: replace(public, missed=public.secrets),
            MASKED: masked,
            SUSPECTED: replace(suspected, missed=suspected.secrets),
        }
    )
    if confidence > 0.9 and seen is not None:
        assert bound.delta_2 >= seen.delta_2 - 1e-9
        assert bound.gamma >= seen.gamma - 1e-9


def test_what_is_known_whole_has_no_interval() -> None:
    of = population((100, 0, 0.02), (400, 0, 0.9, 0.1), (50, 0, 0.4))
    ((_, strata),) = samples(of)
    assert compute_upper_bounds(strata, 0.95, NOTHING) == pytest.approx(truth(of))
    assert estimate_rates(strata) == pytest.approx(truth(of))
    clean = {**strata, PUBLIC: Stratum(100, None, 0.0, 0.0)}
    assert compute_upper_bounds(clean, 0.95, NOTHING).delta_2 == 0.0
    assert compute_upper_bounds(clean, 0.95, UnmeasuredExamples(private=9)).delta_2 == 0.0
    assert compute_upper_bounds(clean, 0.95, UnmeasuredExamples(public=9)).delta_2 == pytest.approx(9 / (9 + 360 + 20))


def test_what_is_not_there_and_what_is_not_known() -> None:
    empty = dict.fromkeys(STRATA, EMPTY_STRATUM)
    assert compute_upper_bounds(empty, 0.95, NOTHING) == (1.0, 0.0)
    assert estimate_rates(empty) is None
    unseen = {PUBLIC: Stratum(10, 1, 1, 1), MASKED: Stratum(10, 1, 0, 0), SUSPECTED: Stratum(10, 1, 0, 0)}
    assert compute_upper_bounds(unseen, 0.95, NOTHING) == (1.0, 1.0)
    all_private: dict[str, Stratum] = {PUBLIC: EMPTY_STRATUM, MASKED: Stratum(100, 50, 50, 0), SUSPECTED: EMPTY_STRATUM}
    bound = compute_upper_bounds(all_private, 0.95, NOTHING)
    assert bound.delta_2 == 0.0
    assert bound.gamma == pytest.approx(1 - (0.9 * 0.05) ** (1 / 50), rel=1e-6)
    quarantined = compute_upper_bounds(all_private, 0.95, UnmeasuredExamples(private=10))
    assert quarantined.gamma > bound.gamma
    assert quarantined.delta_2 == 0.0
    drawn = [(0, 1, 0, 0), (5, 0, 0, 0), (5, 1, 2, 0), (5, 3, 1, 2)]
    for wrong in [*drawn, (5, None, 6.0, 0.0), (5, None, 2.0, 3.0), (5, None, 1.0, -1.0)]:
        with pytest.raises(ValueError, match="needs"):
            Stratum(*wrong)


def test_the_draws_that_are_said_to_be_needed_are_just_enough() -> None:
    private: dict[str, Stratum] = {MASKED: Stratum(9_000, 80, 78, 1), SUSPECTED: Stratum(5_000, 80, 30, 30)}
    strata = {PUBLIC: Stratum(20_000, 240, 2, 2), **private}
    for goal in (0.05, 1e-3):
        n = count_public_draws_needed(strata, goal, 0.95, NOTHING)
        assert n is not None
        assert compute_upper_bounds({PUBLIC: Stratum(20_000, n, 0, 0), **private}, 0.95, NOTHING).delta_2 <= goal
        assert compute_upper_bounds({PUBLIC: Stratum(20_000, n - 1, 0, 0), **private}, 0.95, NOTHING).delta_2 > goal
    assert count_public_draws_needed({**strata, PUBLIC: EMPTY_STRATUM}, 1e-3, 0.95, NOTHING) == 0
    assert count_public_draws_needed({**strata, PUBLIC: Stratum(9_000, None, 20.0, 20.0)}, 1e-3, 0.95, NOTHING) is None
    assert count_public_draws_needed({**strata, PUBLIC: Stratum(9_000, None, 5.0, 5.0)}, 1e-3, 0.95, NOTHING) == 0
    unknown = dict.fromkeys(private, Stratum(9, 1, 0, 0))
    assert count_public_draws_needed({**strata, **unknown}, 1e-3, 0.95, NOTHING) is None
    assert count_public_draws_needed(strata, 1e-3, 0.95, UnmeasuredExamples(public=500)) is None


def test_what_a_whole_stratum_saves_goes_to_the_others() -> None:
    points = {PUBLIC: 76_000, MASKED: 9_000, SUSPECTED: 1_000}
    plan = plan_sample(points, {PUBLIC: 130, MASKED: 4_000, SUSPECTED: 30}, 400, 0.6)
    assert plan == SamplePlan(frozenset({PUBLIC, SUSPECTED}), {MASKED: 240})
    for n, share in [(2, 0.6), (10, 0.0), (10, 1.0)]:
        with pytest.raises(ValueError, match="share"):
            plan_sample(points, points, n, share)


_SIZES = st.tuples(st.integers(0, 5_000), st.floats(0, 1)).map(lambda t: (t[0], min(t[0], 1 + int(t[0] * t[1]))))


@settings(max_examples=300, deadline=None)
@given(st.tuples(_SIZES, _SIZES, _SIZES), st.integers(3, 500), st.floats(0.05, 0.95))
def test_every_draw_goes_to_a_stratum_that_has_points(
    sizes: tuple[tuple[int, int], ...], n: int, public_share: float
) -> None:
    points = {name: size for name, (size, _) in zip(STRATA, sizes, strict=True)}
    texts = {name: own for name, (_, own) in zip(STRATA, sizes, strict=True)}
    plan = plan_sample(points, texts, n, public_share)
    assert plan.whole | plan.draws.keys() == set(STRATA)
    assert not plan.whole & plan.draws.keys()
    assert all(1 <= draws < texts[name] for name, draws in plan.draws.items())
    labelled = sum(texts[name] for name in plan.whole) + sum(plan.draws.values())
    assert labelled == n if plan.draws else labelled <= n
    if len(plan.draws) == 3:
        assert abs(plan.draws[PUBLIC] - public_share * n) <= 3
        ratio = (points[MASKED] / points[SUSPECTED]) ** 0.5
        if min(plan.draws.values()) > 1:
            assert abs(plan.draws[MASKED] - ratio * plan.draws[SUSPECTED]) <= 1 + ratio


def _simulated(secrets_of: Callable[[int], int], missed_share: float, seed: int) -> tuple[Stratum, Stratum]:
    """A masked stratum of 200 points, 40 draws: by one secret a draw, and by all secrets of a draw."""
    noise = np.random.default_rng(seed)
    drawn = noise.integers(0, 200, 40)
    # a point has many secrets or few, and is missed as a whole or not at all
    rows = [
        SampledText(int(i), MASKED, int(count), missed=(bool(i < missed_share * 200),) * secrets_of(i))
        for i, count in zip(*np.unique(drawn, return_counts=True), strict=True)
    ]
    rows = [replace(row, secrets=tuple(LabelledSpan(n, n + 1, "X") for n in range(len(row.missed)))) for row in rows]
    stream = RandomStream.from_seed(seed)
    taken = [row.missed[place] for row in rows for place in draw_secret_indices(row, stream)]
    every = [missed for row in rows for missed in row.missed for _ in range(row.times)]
    return Stratum(200, 40, len(taken), sum(taken)), Stratum(200, len(every), len(every), sum(every))


def test_one_secret_of_each_draw_makes_independent_units_and_all_of_them_do_not() -> None:
    runs, share = 400, 0.15
    one, every = zip(*(_simulated(lambda i: 8, share, seed) for seed in range(runs)), strict=True)
    rest: dict[str, Stratum] = {PUBLIC: EMPTY_STRATUM, SUSPECTED: EMPTY_STRATUM}
    failed = sum(compute_upper_bounds({**rest, MASKED: s}, 0.95, NOTHING).gamma < share for s in one)
    assert failed <= binom.ppf(0.999, runs, 0.05)
    too_often = sum(compute_upper_bounds({**rest, MASKED: s}, 0.95, NOTHING).gamma < share for s in every)
    assert too_often > binom.ppf(0.999, runs, 0.05)

"""Algorithm 1's sound figures: the numbers, a world computed whole, an attack, and every refusal."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr, logsumexp, ndtr

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting.bounds import revealed
from redactory.training.accounting.pairs import mixture_of
from redactory.training.accounting.published import published_epsilon
from redactory.training.uedp.algorithm1 import (
    Algorithm1,
    Algorithm1Conditions,
    Rule,
    Spread,
    SpreadSource,
    paper_noise_ratio,
    patent_noise_ratio,
    shift_law,
    sound_epsilon,
)
from redactory.training.units import Constants, Protect
from tests.training.uedp.worlds import Law, added, hockey_stick, sampled_sum

DELTA = 1e-5
HELD = Algorithm1Conditions(True, True, True, True, True, Constants.PUBLIC)
CONLL, SEC, AG = (946, 50), (1_592, 100), (7_536, 500)


def run_of(
    data: tuple[int, int], spread: int, rule: Rule = Rule.ANY, steps: int = 50, patent: bool = False
) -> Algorithm1:
    users, a_step = data
    rate = a_step / users
    noise = patent_noise_ratio(2.0, users) if patent else paper_noise_ratio(2.0, rate, users)
    source = SpreadSource.ALL_USERS if spread == users else SpreadSource.FIXED_GRAPH
    return Algorithm1(users, rate, 0.5, noise, steps, Spread(spread, source), rule)


@pytest.mark.parametrize(
    ("data", "spread", "steps", "patent", "expected"),
    [
        (CONLL, 1, 50, False, 0.030),
        (CONLL, 5, 50, False, 0.127),
        (CONLL, 20, 50, False, 0.532),
        (CONLL, 100, 50, False, 3.09),
        (CONLL, 946, 50, False, 54.25),
        (CONLL, 946, 50, True, 1.442),
        (SEC, 20, 50, False, 0.305),
        (SEC, 1_592, 50, False, 54.32),
        (SEC, 1_592, 50, True, 1.746),
        (AG, 20, 50, False, 0.056),
        (SEC, 20, 500, False, 1.071),
        (SEC, 1_592, 500, False, 342.2),
        (CONLL, 946, 2_634, False, 1_514.0),
    ],
)
def test_the_any_rule_has_these_figures(
    data: tuple[int, int], spread: int, steps: int, patent: bool, expected: float
) -> None:
    found = sound_epsilon(run_of(data, spread, steps=steps, patent=patent), HELD, DELTA).sound.epsilon
    assert found == pytest.approx(expected, rel=4e-3, abs=6e-4)


@pytest.mark.parametrize(("spread", "expected"), [(1, 0.0304), (5, 0.127), (20, 0.381), (100, 1.707)])
def test_the_all_rule_has_these_figures(spread: int, expected: float) -> None:
    """Below the any rule's; at M = 5 and 1 that bound is the smaller one."""
    found = sound_epsilon(run_of(CONLL, spread, Rule.ALL), HELD, DELTA)
    assert found.sound.epsilon == pytest.approx(expected, rel=4e-3)
    if spread <= 5:
        assert found.all_rule == pytest.approx({1: 0.061, 5: 0.145}[spread], abs=6e-4)


def test_users_alone_and_entities_alone_cost_less() -> None:
    run = run_of(CONLL, 20)
    by = {protect: sound_epsilon(run, HELD, DELTA, protect).sound.epsilon or math.nan for protect in Protect}
    assert by[Protect.USERS] == pytest.approx(0.0089, abs=1e-4)
    assert by[Protect.USERS] < by[Protect.ENTITIES] < by[Protect.BOTH]
    assert by[Protect.EITHER] == by[Protect.ENTITIES]


def lower_bound(run: Algorithm1, co_entities: int) -> float:
    """What an attack finds: e' stands, with other entities, in a sentence of M users, and turns their update.

    All M updates are +1 without and −1 with a used e'-sentence; the attacker looks at the sum of all steps.
    """
    assert run.spread is not None
    n, rate, q_e = run.steps * run.spread.users, run.user_rate, run.entity_rate
    size = 1 << (2 * n + 3).bit_length()
    wave = np.exp(2j * np.pi * np.fft.fftfreq(size))

    def step(used: float) -> np.ndarray:
        law = 1 - rate + rate * (used / wave + (1 - used) * wave)
        return np.asarray(law ** (n // run.steps))

    mixed = q_e * step(1.0) + (1 - q_e) * step(1 - (1 - q_e) ** co_entities)
    there = np.maximum(np.real(np.fft.fft(mixed**run.steps)) / size, 0.0)
    place = np.arange(size)
    place[place > size // 2] -= size
    count = np.arange(n + 1)
    gone = stats.binom.logpmf(count, n, rate)
    noise = run.noise_ratio * math.sqrt(run.steps)
    usual, seen = gone > -700, there > 1e-15
    best = 0.0
    for threshold in np.linspace(-n * rate - 8 * noise, n * rate, 400):
        mass = float(there[seen] @ ndtr((threshold - place[seen]) / noise)) - 1e-11 - DELTA
        if mass > 0:
            other = logsumexp(gone[usual] + log_ndtr((threshold - count[usual]) / noise))
            best = max(best, math.log(mass) - float(other))
    return best


@pytest.mark.parametrize(("spread", "least"), [(20, 0.50), (100, 3.0), (946, 52.0)])
def test_an_attack_lies_just_below_the_figure_and_far_above_the_published_one(
    spread: int, least: float
) -> None:
    run = run_of(CONLL, spread)
    sound = sound_epsilon(run, HELD, DELTA).sound.epsilon
    attack = lower_bound(run, 10)
    assert sound is not None
    assert least < attack <= sound <= 1.08 * attack
    published = published_epsilon(50 / 946 * 0.5 * 11_176 / 14_040, 2.0, 50, DELTA)
    assert spread == 20 or attack > 5 * published


def test_one_clip_for_a_changed_user_would_fall_below_the_attack() -> None:
    """Sabotage: β instead of 2β, as Lemma 1 has it."""
    run = run_of(CONLL, 946)
    law, halved = shift_law(946, run.user_rate, Protect.BOTH), Counter[float]()
    for shift, weight in zip(law.means, law.weights, strict=True):
        halved[shift // 2 + shift % 2] += weight
    assert revealed(mixture_of(halved), run.noise_ratio, run.steps, DELTA) < 0.6 * lower_bound(run, 10)


def worlds_of(
    rule: Rule, holders: int, q_u: float, q_e: float, co: float, protect: Protect
) -> tuple[Law, Law]:
    """One step's sum in D and D': holders send +1, or −1 where e' is used; u' sends +1 or nothing."""
    there: Law = {}
    for e_sampled, coin in ((True, q_e), (False, 1 - q_e)):
        used = (1.0 if rule is Rule.ANY else co) if e_sampled else (co if rule is Rule.ANY else 0.0)
        holder: Law = {1.0: q_u * (1 - used), -1.0: q_u * used, 0.0: 1 - q_u}
        law: Law = {0.0: coin}
        for _ in range(holders):
            law = added((a + b, v * w) for a, v in law.items() for b, w in holder.items())
        there = added([*there.items(), *law.items()])
    if protect is Protect.BOTH:
        there = added((a + b, v * w) for a, v in there.items() for b, w in ((0.0, 1 - q_u), (1.0, q_u)))
    return sampled_sum([1.0] * holders, q_u), there


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(list(Rule)),
    st.integers(1, 4),
    st.floats(0.05, 0.9),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0),
    st.floats(1.0, 5.0),
    st.sampled_from([Protect.BOTH, Protect.ENTITIES]),
)
def test_one_step_of_a_small_world_is_never_above_its_figure(
    rule: Rule, holders: int, q_u: float, q_e: float, co: float, zeta: float, protect: Protect
) -> None:
    spread = Spread(holders, SpreadSource.FIXED_GRAPH)
    run = Algorithm1(10, q_u, q_e, zeta, 1, spread, rule)
    sound = sound_epsilon(run, replace(HELD, weights=Constants.GRAPH), 1e-2, protect).sound.epsilon
    assert sound is not None
    gone, there = worlds_of(rule, holders, q_u, q_e, co, protect)
    assert hockey_stick(there, gone, zeta, sound) <= 1e-2 + 1e-5
    assert hockey_stick(gone, there, zeta, sound) <= 1e-2 + 1e-5


@pytest.mark.parametrize(
    "broken",
    ["poisson_users", "poisson_entities", "whole_update_clipped", "constant_normaliser", "only_noisy_steps"],
)
def test_a_condition_that_does_not_hold_leaves_no_figure(broken: str) -> None:
    found = sound_epsilon(run_of(CONLL, 5), replace(HELD, **{broken: False}), DELTA)
    assert found.sound.epsilon is None
    assert found.sound.reason is not None
    assert found.sound.reason.startswith("no finite epsilon: ")
    assert (found.revealed, found.chain, found.all_rule) == (None, None, None)


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (None, "no cap"),
        (Spread(20, SpreadSource.OBSERVED), "counted, not capped"),
        (Spread(20, SpreadSource.ALL_USERS), "another number"),
    ],
)
def test_an_entity_without_an_enforced_cap_has_no_figure(spread: Spread | None, words: str) -> None:
    run = replace(run_of(CONLL, 20), spread=spread)
    figure = sound_epsilon(run, HELD, DELTA).sound
    assert figure.epsilon is None
    assert words in (figure.reason or "")
    assert sound_epsilon(run, HELD, DELTA, Protect.USERS).sound.epsilon is not None


def test_points_may_vanish_only_where_no_cap_and_no_weight_follows_the_data() -> None:
    everyone, capped = run_of(CONLL, 946, patent=True), run_of(CONLL, 5)
    counted = replace(HELD, weights=Constants.GRAPH)
    names = {
        (run.spread.users, held.weights): sound_epsilon(run, held, DELTA, Protect.USERS).sound.relation
        for run in (everyone, capped)
        if run.spread
        for held in (HELD, counted)
    }
    assert names.pop((946, Constants.PUBLIC)) == "user removal"
    assert set(names.values()) == {"user zero-out on a fixed graph"}
    assert sound_epsilon(capped, HELD, DELTA).sound.relation == "user-entity zero-out on a fixed graph"


def test_no_steps_cost_nothing_and_nonsense_is_refused() -> None:
    assert sound_epsilon(run_of(CONLL, 5, steps=0), HELD, DELTA).sound.epsilon == 0.0
    with pytest.raises(ConfigurationError):
        sound_epsilon(run_of(CONLL, 5), HELD, 0.0)
    with pytest.raises(ConfigurationError):
        replace(run_of(CONLL, 5), user_rate=0.0)
    with pytest.raises(ConfigurationError, match="max_users_per_entity"):
        replace(run_of(CONLL, 5), spread=Spread(947, SpreadSource.FIXED_GRAPH))

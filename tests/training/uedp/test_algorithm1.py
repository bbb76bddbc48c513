"""Algorithm 1's sound figures: the numbers, a world computed whole, an attack, and every refusal."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr, logsumexp, ndtr

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import ConfirmedEpsilon
from redactory.training.accounting.bounds import compute_revealed_shift_epsilon
from redactory.training.accounting.published_epsilons import compute_moments_epsilon
from redactory.training.mechanisms.pairs import make_mixture
from redactory.training.mechanisms.users import EntitySampling, PoissonUsersGaussian
from redactory.training.uedp.federated_accounting import (
    confirm_federated_epsilon,
    make_shift_mixture,
    name_federated_relation,
)
from redactory.training.unit_settings import PrivacyUnit
from tests.training.uedp.worlds import Law, added, hockey_stick, sampled_sum

DELTA = 1e-5
CONLL, SEC, AG = (946, 50), (1_592, 100), (7_536, 500)


def run_of(data: tuple[int, int], spread: int | None, patent: bool = False) -> Any:
    """z = 2 of the paper's noise, or of the patent's."""
    users, a_step = data
    rate = a_step / users
    noise = 2.0 * (users + 1.0) if patent else 2.0 * (rate * users + 1.0)
    entities = EntitySampling(0.5, 0.5, None if spread == users else spread)
    return PoissonUsersGaussian(rate, noise, 1.0, 1.0, users=users, entities=entities)


def sound(run: Any, steps: int = 50, protect: PrivacyUnit = PrivacyUnit.BOTH, delta: float = DELTA) -> ConfirmedEpsilon:
    return confirm_federated_epsilon(run, steps, delta, protect)


@pytest.mark.slow
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
def test_an_entity_of_some_users_has_these_figures(
    data: tuple[int, int], spread: int, steps: int, patent: bool, expected: float
) -> None:
    found = sound(run_of(data, spread, patent=patent), steps).value
    assert found == pytest.approx(expected, rel=4e-3, abs=6e-4)


def test_users_alone_and_entities_alone_cost_less() -> None:
    run = run_of(CONLL, 20)
    by = {protect: sound(run, protect=protect).value or math.nan for protect in PrivacyUnit}
    assert by[PrivacyUnit.USERS] == pytest.approx(0.0089, abs=1e-4)
    assert by[PrivacyUnit.USERS] < by[PrivacyUnit.ENTITIES] < by[PrivacyUnit.BOTH]
    assert by[PrivacyUnit.EITHER] == by[PrivacyUnit.ENTITIES]


def lower_bound(run: Any, spread: int, co_entities: int = 10, steps: int = 50) -> float:
    """What an attack finds: e' stands, with other entities, in a sentence of M users, and turns their update.

    All M updates are +1 without and −1 with a used e'-sentence; the attacker looks at the sum of all steps.
    """
    n, rate, q_e = steps * spread, run.sampling_rate, run.entities.entity_rate
    size = 1 << (2 * n + 3).bit_length()
    wave = np.exp(2j * np.pi * np.fft.fftfreq(size))

    def step(used: float) -> np.ndarray:
        law = 1 - rate + rate * (used / wave + (1 - used) * wave)
        return np.asarray(law**spread)

    mixed = q_e * step(1.0) + (1 - q_e) * step(1 - (1 - q_e) ** co_entities)
    there = np.maximum(np.real(np.fft.fft(mixed**steps)) / size, 0.0)
    place = np.arange(size)
    place[place > size // 2] -= size
    count = np.arange(n + 1)
    gone = stats.binom.logpmf(count, n, rate)
    noise = run.noise_multiplier * math.sqrt(steps)
    usual, seen = gone > -700, there > 1e-15
    best = 0.0
    for threshold in np.linspace(-n * rate - 8 * noise, n * rate, 400):
        mass = float(there[seen] @ ndtr((threshold - place[seen]) / noise)) - 1e-11 - DELTA
        if mass > 0:
            other = logsumexp(gone[usual] + log_ndtr((threshold - count[usual]) / noise))
            best = max(best, math.log(mass) - float(other))
    return best


@pytest.mark.parametrize(("spread", "least"), [(20, 0.50), (100, 3.0), (946, 52.0)])
def test_an_attack_lies_just_below_the_figure_and_far_above_the_published_one(spread: int, least: float) -> None:
    run = run_of(CONLL, spread)
    figure, attack = sound(run).value, lower_bound(run, spread)
    assert least < attack <= figure <= 1.08 * attack
    published = compute_moments_epsilon(50 / 946 * 0.5 * 11_176 / 14_040, 2.0, 50, DELTA)
    assert spread == 20 or attack > 5 * published


def test_one_clip_for_a_changed_user_would_fall_below_the_attack() -> None:
    """Sabotage: β instead of 2β, as Lemma 1 has it."""
    run, halved = run_of(CONLL, 946), Counter[float]()
    law = make_shift_mixture(946, run.sampling_rate, PrivacyUnit.BOTH)
    for shift, weight in zip(law.means, law.weights, strict=True):
        halved[shift // 2 + shift % 2] += weight
    assert compute_revealed_shift_epsilon(make_mixture(halved), run.noise_multiplier, 50, DELTA) < 0.6 * lower_bound(
        run, 946
    )


def worlds_of(holders: int, q_u: float, q_e: float, co: float, protect: PrivacyUnit) -> tuple[Law, Law]:
    """One step's sum in D and D': holders send +1, or −1 where e' is used; u' sends +1 or nothing."""
    there: Law = {}
    for e_sampled, coin in ((True, q_e), (False, 1 - q_e)):
        used = 1.0 if e_sampled else co
        holder: Law = {1.0: q_u * (1 - used), -1.0: q_u * used, 0.0: 1 - q_u}
        law: Law = {0.0: coin}
        for _ in range(holders):
            law = added((a + b, v * w) for a, v in law.items() for b, w in holder.items())
        there = added([*there.items(), *law.items()])
    if protect is PrivacyUnit.BOTH:
        there = added((a + b, v * w) for a, v in there.items() for b, w in ((0.0, 1 - q_u), (1.0, q_u)))
    return sampled_sum([1.0] * holders, q_u), there


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 4),
    st.floats(0.05, 0.9),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0),
    st.floats(1.0, 5.0),
    st.sampled_from([PrivacyUnit.BOTH, PrivacyUnit.ENTITIES]),
)
def test_one_step_of_a_small_world_is_never_above_its_figure(
    holders: int, q_u: float, q_e: float, co: float, zeta: float, protect: PrivacyUnit
) -> None:
    own = EntitySampling(q_e, q_e, holders)
    run = PoissonUsersGaussian(q_u, zeta, 1.0, 1.0, users=10, entities=own)
    epsilon: Any = sound(run, 1, protect, 1e-2).value
    gone, there = worlds_of(holders, q_u, q_e, co, protect)
    assert hockey_stick(there, gone, zeta, epsilon) <= 1e-2 + 1e-5
    assert hockey_stick(gone, there, zeta, epsilon) <= 1e-2 + 1e-5


def test_points_may_vanish_only_where_no_cap_follows_the_data() -> None:
    names = {
        spread: [
            name_federated_relation(run_of(CONLL, spread, patent=True), p)
            for p in (PrivacyUnit.USERS, PrivacyUnit.BOTH)
        ]
        for spread in (946, 5)
    }
    assert names[946] == ["user removal", "user-entity removal"]
    assert names[5] == ["user zero-out on a fixed graph", "user-entity zero-out on a fixed graph"]
    without = replace(run_of(CONLL, 5), entities=None)
    figure = sound(without)
    assert figure.value is None
    assert "does not sample or protect entities" in (figure.reason or "")
    assert sound(without, protect=PrivacyUnit.USERS).value is not None


def test_no_steps_cost_nothing_and_nonsense_is_refused() -> None:
    assert sound(run_of(CONLL, 5), 0).value == 0.0
    with pytest.raises(ConfigurationError):
        sound(run_of(CONLL, 5), delta=0.0)

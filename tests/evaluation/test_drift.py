"""Control limits: an example worked by hand, the promised rate of false alarms, and shifts that are seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from redactory.evaluation import drift
from redactory.evaluation.drift import (
    METRICS,
    DriftResult,
    DriftSettings,
    MetricCount,
    MetricKey,
    MinimumChange,
    RunMetrics,
    compare_with_history,
    compute_laney_limits,
    extract_metrics,
)

NO_FLOOR = MinimumChange(0, 0, 0)
PUBLIC, NUMBERS = MetricKey("public"), MetricKey("spans/strict/label", "NUMBER")


def _shares(*counts: int, of: int = 1_000) -> list[RunMetrics]:
    return [{PUBLIC: MetricCount("share", count, of)} for count in counts]


def _rates(label: str, *counts: int, of: int = 1_000) -> list[RunMetrics]:
    whole = MetricKey("spans/strict/label")
    return [
        {
            whole: MetricCount("rate", 0, of),
            **({MetricKey(whole.metric, label): MetricCount("rate", count, of)} if count else {}),
        }
        for count in counts
    ]


def _outside(
    history: Sequence[RunMetrics], today: RunMetrics, floor: MinimumChange = drift.MINIMUM_CHANGE, **more: Any
) -> list[DriftResult]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "MINIMUM_CHANGE", floor)
        return [f for f in compare_with_history(history, today, DriftSettings(**more)) if f.outside]


def test_laneys_limits_worked_out_by_hand() -> None:
    before = [MetricCount("share", count, 100) for count in (10, 20, 10, 20)]
    centre, sigma, varied = compute_laney_limits(before, 400)
    # p̄ = 60/400 = 0.15; with one more of each kind 61/402 = 0.151741, so that σ_i of 100 is
    # √(0.151741·0.848259/100) = 0.0358769; z = -1.39365, 1.39365, ...
    # three moving ranges of 2.78731, over 1.12838: σ_z = 2.47019; σ_i of 400 = 0.0179385
    assert centre == pytest.approx(0.15)
    assert sigma == pytest.approx(0.0179385, rel=1e-4)
    assert varied == pytest.approx(2.47019, rel=1e-4)
    rates = [MetricCount("rate", count, 50) for count in (100, 100, 100)]
    # no run differs from the next: the counts' own spread is left, √(301/150/50)
    assert compute_laney_limits(rates, 50) == (2.0, pytest.approx(0.200333, rel=1e-5), 1.0)


def _nights(draw: np.random.Generator, runs: int, spread: float, size: int = 2_000) -> list[RunMetrics]:
    """Runs of one steady corpus, whose counts vary ``spread`` times as much as independent rows would."""
    share = 0.2
    rho = (spread**2 - 1) / (size - 1)
    own = np.full(runs, share)
    if rho:
        own = draw.beta(share * (1 - rho) / rho, (1 - share) * (1 - rho) / rho, runs)
    return _shares(*draw.binomial(size, own).tolist(), of=size)


@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("runs", [5, 14])
def test_steady_nights_are_held_about_as_rarely_as_promised(runs: int, spread: float) -> None:
    draw, nights, sigmas = np.random.default_rng(5), 400, 2.5
    held = 0
    for _ in range(nights):
        *history, today = _nights(draw, runs + 1, spread)
        held += bool(_outside(history, today, floor=NO_FLOOR, sigmas=sigmas))
    promised = 2 * float(stats.norm.sf(sigmas))
    # with five runs σ_z is uncertain; the docs say two times, and chance is allowed for on top
    assert stats.binomtest(held, nights, 2 * promised, alternative="greater").pvalue > 0.001


def test_a_shift_is_caught_and_plain_binomial_limits_would_cry_every_other_night() -> None:
    draw, caught, cried = np.random.default_rng(6), 0, 0
    for _ in range(60):
        history = _nights(draw, 14, 3.0)
        today = _nights(draw, 1, 3.0)[0]
        caught += bool(_outside(history, _shares(1_000, of=2_000)[0]))
        before, now = [h[PUBLIC] for h in history], today[PUBLIC]
        centre = sum(c.count for c in before) / sum(c.total for c in before)
        cried += abs(now.value - centre) > 3 * math.sqrt(centre * (1 - centre) / now.total)
    assert caught == 60
    assert cried > 6


def test_a_new_label_a_vanished_one_and_a_rare_one() -> None:
    none, some = _rates("NUMBER", *[0] * 8), _rates("NUMBER", *[40] * 8)
    assert [f.label for f in _outside(none, _rates("NUMBER", 30)[0])] == ["NUMBER"]
    assert [f.value for f in _outside(some, _rates("NUMBER", 0)[0])] == [0.0]
    # one or two of a rare label come and go
    assert not _outside(none, _rates("NUMBER", 2)[0], floor=NO_FLOOR)
    assert not _outside(_rates("NUMBER", *[1] * 8), _rates("NUMBER", 0)[0], floor=NO_FLOOR)
    # a label that came in bundles is not missed as soon as one that came every night alike
    bundles = _rates("NUMBER", *[5, 75] * 4)
    assert not _outside(bundles, _rates("NUMBER", 0)[0])
    # nobody is told of the sum that stands in for labels that are not there
    assert {f.label for f in compare_with_history(none, _rates("NUMBER", 30)[0], DriftSettings())} == {"NUMBER"}


def test_what_always_was_so_and_differs_by_less_than_the_floor_is_no_finding() -> None:
    steady = _shares(*[0] * 10, of=100_000)
    assert not _outside(steady, _shares(900, of=100_000)[0])
    assert _outside(steady, _shares(900, of=100_000)[0], floor=NO_FLOOR)
    assert _outside(steady, _shares(1_100, of=100_000)[0])
    all_public = _shares(*[500] * 10, of=500)
    found = compare_with_history(all_public, _shares(480, of=500)[0], DriftSettings())[0]
    assert (found.outside, found.low, found.high) == (True, 0.99, 1.0)


def test_too_few_runs_ignored_figures_and_empty_runs_are_not_judged_and_only_the_last_count() -> None:
    shifted, five, empty = _shares(900)[0], _shares(*[100] * 5), {PUBLIC: MetricCount("share", 0, 0)}
    assert compare_with_history(five[1:], shifted, DriftSettings()) == []
    assert compare_with_history([*five[1:], empty], shifted, DriftSettings()) == []
    assert compare_with_history(five, empty, DriftSettings()) == []
    assert _outside(five, shifted)
    assert not _outside(five, shifted, ignore=("public",))
    history = _shares(*[100] * 20, *[500] * 6)
    assert _outside(history, _shares(500)[0], runs=26)
    assert _outside(history, _shares(500)[0], runs=6) == []
    assert [f.runs for f in compare_with_history(history, _shares(500)[0], DriftSettings(runs=6))] == [6]
    assert _outside(history, _shares(100)[0], runs=6)


def test_the_figures_of_a_manifest_add_up() -> None:
    hits = [
        {"policy": "strict", "label": "A", "detector": "x", "count": 3},
        {"policy": "strict", "label": "A", "detector": "y", "count": 4},
        {"policy": "conservative", "label": "B", "detector": "y", "count": 5},
    ]
    counts = dict.fromkeys(("public", "private", "duplicate", "quarantined", "rejected"), 10)
    manifest = {
        "counts": {**counts, "examples": 40, "rows": 20},
        "spans": hits,
        "dedup": {"index": {"duplicate_earlier": {"public": 1, "private": 2}}},
    }
    found = extract_metrics(manifest)
    assert {key.metric for key in found} == set(METRICS)
    assert found[MetricKey("public")] == MetricCount("share", 10, 20)
    assert found[MetricKey("duplicate")] == MetricCount("share", 7, 40)
    assert found[MetricKey("duplicate_earlier")] == MetricCount("share", 3, 40)
    assert found[MetricKey("spans/strict/label", "A")] == MetricCount("rate", 7, 40)
    assert found[MetricKey("spans/strict/detector", "y")].value == 100.0
    assert MetricKey("spans/strict/label", "B") not in found
    assert MetricKey("duplicate_earlier") not in extract_metrics({**manifest, "dedup": {}})

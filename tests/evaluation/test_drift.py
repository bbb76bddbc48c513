"""Control limits: an example worked by hand, how often steady runs are held, and shifts that are seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from redactory.evaluation import drift
from redactory.evaluation.drift import (
    METRICS,
    MetricCount,
    MetricKey,
    RunMetrics,
    compare_with_history,
    compute_laney_limits,
    extract_metrics,
)

PUBLIC, NUMBERS = MetricKey("public"), MetricKey("spans/strict/label", "NUMBER")
FLOORS = ("MIN_SHARE_CHANGE", "MIN_RATE_CHANGE", "MIN_RELATIVE_CHANGE")


def _shares(*counts: int, of: int = 1_000) -> list[RunMetrics]:
    return [{PUBLIC: MetricCount("share", count, of)} for count in counts]


def _rates(*counts: int, of: int = 1_000) -> list[RunMetrics]:
    whole = {MetricKey(NUMBERS.metric): MetricCount("rate", 0, of)}
    return [whole | ({NUMBERS: MetricCount("rate", count, of)} if count else {}) for count in counts]


def _outside(history: Sequence[RunMetrics], today: RunMetrics, ignore: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [result for result in compare_with_history(history, today, ignore) if result["outside"]]


@pytest.fixture
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FLOORS:
        monkeypatch.setattr(drift, name, 0.0)


def test_laneys_limits_worked_out_by_hand() -> None:
    before = [MetricCount("share", count, 100) for count in (10, 20, 10, 20)]
    # p̄ = 60/400 = 0.15; with one more of each kind 61/402 = 0.151741, so that σ_i of 100 is
    # √(0.151741·0.848259/100) = 0.0358769; z = -1.39365, 1.39365, ...
    # three moving ranges of 2.78731, over 1.12838: σ_z = 2.47019; σ_i of 400 = 0.0179385
    assert compute_laney_limits(before, 400) == (pytest.approx(0.15), pytest.approx(0.0179385 * 2.47019, rel=1e-4))
    rates = [MetricCount("rate", count, 50) for count in (100, 100, 100)]
    # no run differs from the next: the counts' own spread is left, √(301/150/50)
    assert compute_laney_limits(rates, 50) == (2.0, pytest.approx(0.200333, rel=1e-5))


def test_the_limits_are_students_quantiles_for_the_number_of_metrics() -> None:
    # tables of Student's t: 4 degrees of freedom and 0.5 % above it, 13 and 0.025 %
    assert drift.compute_limit_width(5, 2) == pytest.approx(4.604, abs=1e-3)
    assert drift.compute_limit_width(14, 40) == pytest.approx(4.597, abs=1e-3)
    steady = {MetricKey("public"): MetricCount("share", 200, 1_000)}
    wide = steady | {MetricKey("spans/strict/label", f"L{n}"): MetricCount("rate", 100, 1_000) for n in range(39)}
    rooms = [compare_with_history([run] * 5, run)[0] for run in (steady, wide)]
    assert rooms[1]["high"] - 0.2 > 2 * (rooms[0]["high"] - 0.2)


METRICS_OF_A_RUN, REJECTED = 40, MetricKey("rejected")
SPREADS = np.resize([1.0, 2.0, 3.0], METRICS_OF_A_RUN)


def _steady_runs(draw: np.random.Generator, runs: int, size: int) -> list[RunMetrics]:
    """Draw runs with 40 steady metrics, which vary one, two or three times as much as independent rows would."""
    counts = []
    for number, spread in enumerate(SPREADS):
        share, rho = (0.2, 0.05)[number % 2], max((spread**2 - 1) / (size - 1), 1e-9)
        shares = draw.beta(share * (1 - rho) / rho, (1 - share) * (1 - rho) / rho, runs)
        counts.append(draw.binomial(size, shares))
    keys = [MetricKey("spans/strict/label", f"L{n}") for n in range(METRICS_OF_A_RUN)]
    metrics = [
        {key: MetricCount("rate", int(count), size) for key, count in zip(keys, run, strict=True)}
        for run in np.transpose(counts)
    ]
    return [run | {REJECTED: MetricCount("share", run[keys[3]].count, size)} for run in metrics]


@pytest.mark.usefixtures("no_floor")
@pytest.mark.parametrize("runs", [5, 6, 8, 11, 14])
def test_a_steady_run_is_seldom_held_after_any_number_of_runs_and_a_shift_is_caught(runs: int) -> None:
    draw, nights, size, held, cried, missed = np.random.default_rng(5), 200, 5_000, 0, 0, Counter[str]()
    for _ in range(nights):
        *history, today = _steady_runs(draw, runs + 1, size)
        held += bool(_outside(history, today))
        label = MetricKey("spans/strict/label", "L2")
        twice = today | {REJECTED: MetricCount("share", 2 * today[REJECTED].count, size)}
        vanished = today | {label: MetricCount("rate", 0, size)}
        missed["twice"] += "rejected" not in {result["metric"] for result in _outside(history, twice)}
        missed["vanished"] += "L2" not in {result["label"] for result in _outside(history, vanished)}
        share = sum(night[label].count for night in history) / (size * runs)
        cried += abs(today[label].value / drift.RATE_SCALE - share) > 3 * math.sqrt(share * (1 - share) / size)
    assert held <= 0.1 * nights
    # while the history is short, limits are wide
    assert missed["twice"] <= (0.15 if runs < 8 else 0.02) * nights
    assert missed["vanished"] <= (0.4 if runs < 8 else 0.02) * nights
    # plain binomial limits would call every fourth night unusual
    assert cried > nights / 4


def test_a_new_label_a_vanished_one_and_a_rare_one(monkeypatch: pytest.MonkeyPatch) -> None:
    none, some = _rates(*[0] * 8), _rates(*[40] * 8)
    assert [f["label"] for f in _outside(none, _rates(30)[0])] == ["NUMBER"]
    assert [f["value"] for f in _outside(some, _rates(0)[0])] == [0.0]
    # a label that came in bundles is not missed as soon as one that came every night alike
    assert not _outside(_rates(*[5, 75] * 4), _rates(0)[0])
    # nobody is told of the sum that stands in for labels that are not there
    assert {f["label"] for f in compare_with_history(none, _rates(30)[0])} == {"NUMBER"}
    for name in FLOORS:
        monkeypatch.setattr(drift, name, 0.0)
    # one or two of a rare label come and go
    assert not _outside(none, _rates(4)[0])
    assert _outside(none, _rates(5)[0])
    assert not _outside(_rates(*[1] * 8), _rates(0)[0])


def test_what_differs_by_less_than_the_floor_is_no_finding() -> None:
    steady = _shares(*[0] * 10, of=100_000)
    assert not _outside(steady, _shares(900, of=100_000)[0])
    assert _outside(steady, _shares(1_100, of=100_000)[0])
    found = compare_with_history(_shares(*[500] * 10, of=500), _shares(480, of=500)[0])[0]
    assert (found["outside"], found["low"], found["high"]) == (True, 0.99, 1.0)


def test_too_few_runs_ignored_metrics_and_empty_runs_are_not_judged_and_only_the_last_count() -> None:
    shifted, five, empty = _shares(900)[0], _shares(*[100] * 5), {PUBLIC: MetricCount("share", 0, 0)}
    assert compare_with_history(five[1:], shifted) == []
    assert compare_with_history([*five[1:], empty], shifted) == []
    assert compare_with_history(five, empty) == []
    assert _outside(five, shifted)
    assert not _outside(five, shifted, ignore=("public",))
    # what came before the last 14 is forgotten
    history = _shares(*[100] * 20, *[500] * drift.MAX_HISTORY)
    assert not _outside(history, _shares(500)[0])
    assert _outside(history, _shares(100)[0])


def test_the_metrics_of_a_manifest_add_up() -> None:
    hits: list[dict[str, Any]] = [
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

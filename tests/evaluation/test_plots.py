"""Pictures by matplotlib: sound SVG with the words that belong to them, the same bytes each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

import redactory
from redactory.evaluation import plots
from redactory.foundation.errors import ConfigurationError

CURVE = [{"steps": n, "epsilon": n / 9, "epsilon_bayesian": None if n < 4 else n / 20} for n in range(1, 12)]
ROC = {"roc": [[0.0, 0.01], [0.001, 0.1], [0.01, 0.3], [1.0, 1.0]]}
CANARIES = [
    {"inserted": True, "missed": True, "exposure": 14.0},
    {"inserted": True, "missed": False, "exposure": None},
    {"inserted": False, "exposure": 1.0},
]
GROUPS = [
    {"from": 1, "to": 3, "secrets": 40, "secrets_found": 9, "controls": 40, "controls_found": 0},
    {"from": 4, "to": None, "secrets": 0, "secrets_found": 0, "controls": 0, "controls_found": 0},
]


@pytest.mark.parametrize(
    ("plot", "facts", "words"),
    [
        (
            plots.plot_epsilon,
            (CURVE, "q < 1 & $ε$"),
            ("q < 1 & $ε$", "one named secret", "a secret that a policy catches"),
        ),
        (plots.plot_epsilon, ([], "none"), ("none", "noisy steps")),
        (
            plots.plot_membership,
            ({"members": 1000, "individual": ROC, "rmia": ROC, "reference": None},),
            ("perplexity", "the same, by rank (RMIA)", "chance", "1,000 sentences"),
        ),
        (
            plots.plot_exposure,
            ({"canaries": CANARIES, "largest_possible": 19.9, "chance": {"highest_95": 7.61}},),
            ("planted, missed by strict", "1 without", "never planted", "chance's highest: 7.6"),
        ),
        (plots.plot_exposure, ({"canaries": [], "largest_possible": 19.9},), ("known by heart: 19.9",)),
        (plots.plot_extraction, ({"by_times_seen": GROUPS, "samples": 300},), ("1 to 3", "40 secrets", "300 texts")),
        (plots.plot_extraction, ({"by_times_seen": GROUPS[1:], "samples": 1},), ("no secret was tried",)),
        (plots.plot_reliability, (((0.02, 0.0, 30), (0.99, 1.0, 600)), 0.0123), ("0.0123", "share that is plain")),
        (plots.plot_reliability, ((), 0.0), ("stated probability of plain",)),
    ],
)
def test_a_picture_says_what_it_shows_and_is_the_same_each_time(
    plot: Callable[..., str], facts: Any, words: tuple[str, ...]
) -> None:
    drawn = plot(*facts)
    shown = " ".join("".join(ElementTree.fromstring(drawn).itertext()).split())
    for word in words:
        assert shown.count(word) >= words.count(word), word
    assert "<script" not in drawn
    assert plot(*facts) == drawn


def test_without_matplotlib_a_measurement_has_no_picture_and_a_plot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plots.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else found(name))
    assert plots.render_plot("roc.svg", plots.plot_membership, {}) == {}
    with pytest.raises(ConfigurationError, match=r"pip install 'redactory\[plots\]'"):
        redactory.plan(trainer="dpsgd", plot="absent/plan.svg")

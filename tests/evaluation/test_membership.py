"""Membership inference on models whose likelihoods are known: built to leak, and built not to."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from redactory.evaluation import membership
from redactory.evaluation.membership import (
    SecretSentence,
    compute_auc,
    compute_rmia_scores,
    compute_roc,
    compute_true_positive_rate,
    draw_member_texts,
    find_best_threshold,
    find_most_common_label,
    measure_roc_metrics,
    measure_threshold_accuracy,
    run_membership_attack,
    split_halves,
)
from redactory.foundation.errors import InputError

MEMBERS = [f"my number is {i}" for i in range(300)]
OTHERS = [f"my number is {i}" for i in range(1000, 1300)]
SCORES = st.lists(st.integers(0, 6), min_size=1, max_size=25).map(lambda v: np.array(v, float))


@dataclass(frozen=True)
class KnownModel:
    """Each sentence has its own hardness; what is ``learnt`` loses some of it."""

    learnt: frozenset[str] = frozenset()
    gain: float = 0.0
    own: str = ""
    weight: float = 0.0

    def compute_token_log_probs(self, texts: list[str]) -> list[NDArray[np.float64]]:
        return [self._scores(text) for text in texts]

    def _scores(self, text: str) -> NDArray[np.float64]:
        common, private = (_draws(text), _draws(text + self.own))
        return -3.0 * common - self.weight * private + (self.gain if text in self.learnt else 0.0)


def _draws(text: str) -> NDArray[np.float64]:
    octets = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=32).digest(), "<u4")
    return octets / 2.0**32


@functools.cache
def _attacked(gain: float, **given: Any) -> dict[str, Any]:
    return run_membership_attack(KnownModel(frozenset(MEMBERS), gain), MEMBERS, OTHERS, groups=100, **given)  # type: ignore[arg-type]


def test_a_model_that_learnt_nothing_is_a_coin_to_the_attacks() -> None:
    found = _attacked(0.0, reference=KnownModel(own="r", weight=0.3))
    for name in ("individual", "group", "reference", "rmia", "reference_alone"):
        accuracy = found[name]["accuracy"]
        assert accuracy["low"] <= 0.5 <= accuracy["high"], name
        assert found[name]["auc"]["low"] <= 0.5 <= found[name]["auc"]["high"], name
    assert found["individual"]["scored"] == 300
    assert found["individual"]["tpr"]["0.01"]["value"] < 0.1


def test_what_was_learnt_is_told_the_better_by_groups_and_by_a_reference() -> None:
    found = _attacked(0.3, reference=KnownModel(own="r", weight=0.3))
    accuracy = {name: found[name]["accuracy"]["value"] for name in ("individual", "group", "reference", "rmia")}
    assert found["individual"]["accuracy"]["low"] > 0.5
    assert accuracy["individual"] < min(accuracy["group"], accuracy["reference"], accuracy["rmia"])
    assert found["reference"]["tpr"]["0.01"]["value"] > 2 * found["individual"]["tpr"]["0.01"]["value"]
    assert found["reference_alone"]["accuracy"]["low"] <= 0.5 <= found["reference_alone"]["accuracy"]["high"]


def test_each_attack_reads_the_model_that_it_is_about() -> None:
    knows, knows_nothing = (KnownModel(frozenset(MEMBERS), gain) for gain in (4.0, 0.0))
    told = dict.fromkeys(("individual", "group", "reference", "rmia"), (True, False))
    told["reference_alone"] = (False, True)
    for number, (model, reference) in enumerate(((knows, knows_nothing), (knows_nothing, knows))):
        given: Any = {"reference": reference, "groups": 100}
        found = run_membership_attack(model, MEMBERS, OTHERS, **given)  # type: ignore[arg-type]
        for name, known in told.items():
            assert (found[name]["auc"]["value"] > 0.9) is known[number], (name, number)
            assert (found[name]["accuracy"]["value"] > 0.98) is known[number], (name, number)
    without = _attacked(4.0)
    assert without["individual"]["tpr"]["0.001"]["value"] == 1.0
    assert without["reference"] is without["rmia"] is without["reference_alone"] is None


def test_a_threshold_is_not_scored_on_what_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same half for both would tell more than chance of sixteen scores that say nothing."""
    monkeypatch.setattr(membership, "measure_roc_metrics", lambda *_: {})
    draw = np.random.default_rng(0)
    told: dict[str, list[float]] = {"perplexity": [], "rmia": [], "best": []}
    for seed in range(200):
        scores = draw.normal(size=(2, 8))
        chosen, scored = split_halves(scores, seed)
        assert (np.sort(np.concatenate([chosen, scored], axis=1)) == np.sort(scores)).all()
        told["perplexity"].append(membership._run_score_attack(scores, 0.95, seed)["accuracy"]["value"])
        told["rmia"].append(membership._run_rmia_attack(scores, 0.95, seed)["accuracy"]["value"])
        accuracy = measure_threshold_accuracy(*chosen, find_best_threshold(*chosen), 0.95)["accuracy"]
        told["best"].append(accuracy["value"])
    assert np.mean(told["perplexity"]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(told["rmia"]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(told["best"]) > 0.65


def test_what_is_known_of_the_half_that_chose_the_threshold_is_no_success() -> None:
    """The members there are known by heart, those that are scored are like the others."""
    chosen, _ = split_halves(np.tile(np.arange(len(MEMBERS), dtype=float), (2, 1)), 0)
    learnt = frozenset(MEMBERS[int(place)] for place in chosen[0])
    reference: Any = KnownModel(own="r", weight=0.3)
    model: Any = KnownModel(learnt, 4.0)
    found = run_membership_attack(model, MEMBERS, OTHERS, groups=100, reference=reference)
    for name in ("individual", "group", "reference", "rmia"):
        assert found[name]["accuracy"]["value"] == pytest.approx(0.5, abs=0.1), name


@settings(deadline=None, max_examples=60)
@given(SCORES, SCORES)
def test_area_threshold_and_curve_are_those_of_all_pairs(members: Any, others: Any) -> None:
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    assert compute_auc(members, others) == pytest.approx(np.mean(pairs))
    for rate in (0.0, 0.1, 0.5, 1.0):
        cuts = [-np.inf, *np.unique(np.concatenate([members, others]))]
        best = max((members > c).mean() for c in cuts if (others > c).sum() <= rate * len(others))
        assert compute_true_positive_rate(members, others, rate) == best

    def right(cut: float) -> float:
        return float((members > cut).mean() + (others <= cut).mean())

    assert right(find_best_threshold(members, others)) == pytest.approx(max(map(right, np.arange(-0.5, 7.5, 0.5))))
    curve = np.array(compute_roc(members, others))
    assert (curve[0] == 0.0).all()
    assert (curve[-1] == 1.0).all()
    assert (np.diff(curve, axis=0) >= 0.0).all()
    assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(compute_auc(members, others), abs=0.5)
    # RMIA ranks as the ratio does
    beaten = [np.mean([(r > z) + (r == z) / 2 for z in others]) for r in members]
    np.testing.assert_allclose(compute_rmia_scores(members, others), beaten)


def test_an_interval_covers_the_area_of_the_law() -> None:
    draw = np.random.default_rng(0)
    true, covered = 0.6381, 0  # P(X > Y), X ~ N(1/2, 1), Y ~ N(0, 1)
    for seed in range(40):
        figure = measure_roc_metrics(draw.normal(0.5, 1, 120), draw.normal(0, 1, 120), seed=seed, resamples=200)["auc"]
        covered += figure["low"] <= true <= figure["high"]
    assert covered >= 34


def test_others_are_sentences_of_the_corpus_with_a_value_of_their_own() -> None:
    sentences = [SecretSentence(f"call {i % 40:03d} now", 5, 8, "PHONE") for i in range(100)]
    sentences.append(SecretSentence("I am Ann", 5, 8, "PERSON"))
    assert find_most_common_label(sentences) == "PHONE"
    asked: list[str] = []

    def fresh(given: Any) -> list[str | None]:
        asked.extend(one.value for one in given)
        return [None if i == 3 else f"9{i:02d}" for i in range(len(given))]

    members, others = draw_member_texts(sentences[:100], fresh, count=10)
    assert len(members) == len(others) == 9
    assert len(set(members)) == 9
    assert set(members) <= {one.text for one in sentences}
    assert all(text.startswith("call 9") for text in others)
    assert not {text[5:8] for text in members} & set(asked)
    assert "Ann" not in repr(sentences[-1])
    with pytest.raises(InputError, match="at least 4"):
        run_membership_attack(KnownModel(), MEMBERS[:3], OTHERS)  # type: ignore[arg-type]

"""The two policies and their hashes."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    CustomRecognizer,
    DetectSettings,
    Reading,
    Span,
    StrictPolicy,
    StrictSettings,
    policy,
)
from redactory.detectors.policy import VERSIONED, policy_record

SPANS = st.builds(
    Span,
    st.integers(0, 4),
    st.integers(5, 9),
    st.sampled_from(["PERSON", "CARDINAL", "DATE"]),
    st.sampled_from([0.0, 0.29, 0.3, 0.31, 1.0]),
    st.sampled_from(["spacy", "presidio"]),
)
PLAIN = st.tuples(st.integers(0, 4), st.integers(5, 9), st.sampled_from([0.0, 0.5, 0.8999, 0.9, 1.0]))
READINGS = st.builds(Reading, st.lists(SPANS).map(tuple), st.lists(PLAIN).map(tuple))
LABELS = st.dictionaries(st.sampled_from(["PERSON", "CARDINAL", "DATE"]), st.sampled_from([0.0, 0.3, 0.5]))


@given(READINGS, LABELS)
def test_strict_marks_listed_labels_from_their_bound_on(reading: Reading, labels: dict[str, float]) -> None:
    marked = list(StrictPolicy(StrictSettings(labels=labels)).marks("some text", reading))
    assert marked == [s for s in reading.spans if s.label in labels and not s.score < labels[s.label]]


@given(READINGS, LABELS, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_conservative_marks_every_span_and_every_doubt(
    reading: Reading, labels: dict[str, float], bound: float
) -> None:
    cautious = ConservativePolicy(ConservativeSettings(plain_confidence=bound, rules=()))
    marked = list(cautious.marks("some text", reading))
    unsure = [s for s in marked if s.detector == "plain-confidence"]
    assert marked[: len(reading.spans)] == list(reading.spans)
    assert [(s.start, s.end) for s in unsure] == [(s, e) for s, e, plain in reading.plain if plain < bound]
    assert len(marked) == len(reading.spans) + len(unsure)
    assert set(StrictPolicy(StrictSettings(labels=labels)).marks("some text", reading)) <= set(marked)


def test_rules_mark_as_their_own_labels() -> None:
    text = "so Anna paid 5 to a@b"
    marked = ConservativePolicy(ConservativeSettings()).marks(text, Reading())
    assert {(s.label, text[s.start : s.end]) for s in marked} == {
        ("CAPITAL", "Anna"),
        ("NAME", "Anna"),
        ("DIGIT", "5"),
        ("SYMBOL", "a@b"),
    }


BLANK = {"model": "blank:en"}
CUSTOM = {"name": "Own", "label": "BADGE", "patterns": {"blue": 0.4}}


def hashes(**changes: Any) -> tuple[str, str]:
    settings = DetectSettings.model_validate({**BLANK, **changes})
    strict = policy_record(settings, StrictPolicy(settings.strict))
    return strict["hash"], policy_record(settings, ConservativePolicy(settings.conservative))["hash"]


BOTH, STRICT, CONSERVATIVE = (True, True), (True, False), (False, True)


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"strict": {"labels": {"PERSON": 0.3}}}, STRICT),
        ({"conservative": {"plain_confidence": 0.91}}, CONSERVATIVE),
        ({"conservative": {"rules": ["digit", "symbol", "capital"]}}, CONSERVATIVE),
        ({"conservative": {"flags_everything": True}}, CONSERVATIVE),
        ({"recognizers": ["EmailRecognizer"]}, BOTH),
        ({"custom": [CUSTOM]}, BOTH),
        ({"model": "blank:de"}, BOTH),
        ({"language": "de"}, BOTH),
        ({"max_chars": 19_999}, BOTH),
        ({"batch_size": 1}, (False, False)),
        ({}, (False, False)),
    ],
)
def test_the_hash_changes_with_what_matters(changes: dict[str, Any], moved: tuple[bool, bool]) -> None:
    before, after = hashes(), hashes(**changes)
    assert (before[0] != after[0], before[1] != after[1]) == moved


def test_small_changes_count() -> None:
    base = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.3}}}
    turned = {"strict": {"labels": {"DATE": 0.3, "PERSON": 0.3}}}
    higher = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.30001}}}
    assert hashes(**base) == hashes(**turned) != hashes(**higher)
    customs = [
        CUSTOM,
        {**CUSTOM, "patterns": {"blue": 0.41}},
        {**CUSTOM, "patterns": {"blu": 0.4}},
        {**CUSTOM, "label": "OTHER"},
        {**CUSTOM, "context": ["badge"]},
        {**CUSTOM, "deny_list": ["red"]},
    ]
    assert len({hashes(custom=[custom]) for custom in customs}) == len(customs)


def test_the_two_policies_never_share_a_hash() -> None:
    strict, conservative = hashes()
    assert strict != conservative


@pytest.mark.parametrize("package", VERSIONED)
def test_the_hash_changes_with_a_version(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before = hashes()
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version(name) + ".new" * (name == package)
    )
    after = hashes()
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_hash_changes_with_the_models_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before, true = hashes(), policy.identify("blank:en")
    monkeypatch.setattr(policy, "identify", lambda _: type(true)(true.name, true.version, "0" * 64))
    assert hashes() != before


def test_hashed_leaves_out_the_batch_only() -> None:
    settings = DetectSettings()
    assert set(DetectSettings.model_fields) - set(settings.hashed()) == {"batch_size"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"max_chars": 0},
        {"conservative": {"plain_confidence": 1.1}},
        {"conservative": {"rules": ["vowel"]}},
        {"strict": {"labels": {"PERSON": float("nan")}}},
        {"strict": {"threshold": 0.3}},
        {"custom": [{"name": "Own"}]},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DetectSettings.model_validate(wrong)


def test_a_pattern_is_not_quoted_by_a_settings_error() -> None:
    with pytest.raises(ValidationError) as caught:
        CustomRecognizer.model_validate({"name": "Own", "label": "X", "patterns": {"blue": "hunter-secret"}})
    assert "hunter" not in str(caught.value)

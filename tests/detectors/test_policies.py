"""The two policies: what they mark of a reading."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    Detector,
    DetectSettings,
    Reading,
    Span,
    StrictPolicy,
    StrictSettings,
    policies_of,
)
from redactory.detectors.engine import Plain
from redactory.detectors.rules import RULES, SOFT_RULES
from redactory.redaction import PRIVATE, PUBLIC, route
from tests.detectors.finder import OFF

SPANS = st.builds(
    Span,
    st.integers(0, 4),
    st.integers(5, 9),
    st.sampled_from(["PERSON", "CARDINAL", "DATE", "BADGE"]),
    st.sampled_from([0.0, 0.29, 0.3, 0.31, 1.0]),
    st.sampled_from(["spacy", "presidio", "list"]),
)
TOKENS = st.builds(
    Plain,
    st.integers(0, 4),
    st.integers(5, 9),
    st.sampled_from([0.0, 0.5, 0.8999, 0.9, 1.0]),
    st.sampled_from(["spacy", "tagger"]),
)
ALLOWED = st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), max_size=2).map(tuple)
READINGS = st.builds(Reading, st.lists(SPANS).map(tuple), st.lists(TOKENS).map(tuple))
WITH_ALLOWED = st.builds(Reading, st.lists(SPANS).map(tuple), st.lists(TOKENS).map(tuple), ALLOWED)
LABELS = st.dictionaries(st.sampled_from(["PERSON", "CARDINAL", "DATE"]), st.sampled_from([0.0, 0.3, 0.5]))
TEXT = "some text"


@given(READINGS, LABELS, LABELS)
def test_strict_marks_listed_labels_from_their_bound_on(
    reading: Reading, labels: dict[str, float], more: dict[str, float]
) -> None:
    policy = StrictPolicy(StrictSettings(labels=labels, more_labels=more), custom=("BADGE",))
    bounds = {"BADGE": 0.0, **labels, **more}
    assert list(policy.marks(TEXT, reading)) == [
        s
        for s in reading.spans
        if s.detector == "list" or (s.label in bounds and not s.score < bounds[s.label])
    ]


def test_the_labels_of_own_recognizers_are_masked_at_any_score() -> None:
    own = [{"name": "Own", "label": "BADGE", "patterns": {"blue": 0.01}}]
    strict, _ = policies_of(DetectSettings.model_validate({"patterns": {"custom": own}}))
    hit, other = (Span(0, 4, label, 0.01, "presidio") for label in ("BADGE", "OTHER"))
    assert list(strict.marks("blue", Reading((hit, other)))) == [hit]
    without, _ = policies_of(DetectSettings(patterns=None))
    assert list(without.marks("blue", Reading((hit,)))) == []


@given(READINGS, LABELS, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_conservative_marks_every_span_and_every_doubt(
    reading: Reading, labels: dict[str, float], bound: float
) -> None:
    cautious = ConservativePolicy(ConservativeSettings(plain_confidence=bound, rules=()))
    marked = list(cautious.marks(TEXT, reading))
    unsure = marked[len(reading.spans) :]
    assert marked[: len(reading.spans)] == list(reading.spans)
    assert [(s.start, s.end, s.label, s.detector) for s in unsure] == [
        (start, end, "UNSURE", f"{detector}-plain")
        for start, end, plain, detector in reading.plain
        if plain < bound
    ]
    assert set(StrictPolicy(StrictSettings(labels=labels)).marks(TEXT, reading)) <= set(marked)


def test_rules_mark_as_their_own_labels() -> None:
    text = "so Anna paid 5 to a@b"
    settings = ConservativeSettings(rules=("digit", "symbol", "capital", "name"))
    marked = ConservativePolicy(settings).marks(text, Reading())
    assert {(s.label, text[s.start : s.end]) for s in marked} == {
        ("CAPITAL", "Anna"),
        ("NAME", "Anna"),
        ("DIGIT", "5"),
        ("SYMBOL", "a@b"),
    }


EVERY_RULE = ("digit", "symbol", "capital", "name", "word")


@given(WITH_ALLOWED, st.sampled_from(["a B c 5 d@e", "Anna Bxq", "bxq yes", "x"]))
def test_an_allowed_place_drops_what_lies_within_it_and_nothing_else(reading: Reading, text: str) -> None:
    unrestrained = Reading(reading.spans, reading.plain)
    for policy in policies_of(DetectSettings(conservative=ConservativeSettings(rules=EVERY_RULE))):
        expected = [
            span
            for span in policy.marks(text, unrestrained)
            if span.detector == "list"
            or all(span.start < start or span.end > end for start, end in reading.allowed)
        ]
        assert list(policy.marks(text, reading)) == expected


def test_allow_lists_reach_rules_and_tokens_and_deny_lists_beat_them() -> None:
    lists = {"allow": [{"words": ["Acme 24", "Oslo"]}], "deny": [{"words": ["Oslo"], "label": "CLIENT"}]}
    rules = {"rules": ["digit", "symbol", "capital"]}
    settings = {**OFF, "conservative": rules}
    with_lists, without = (
        Detector(DetectSettings.model_validate({**settings, **more})) for more in ({"lists": lists}, {})
    )
    texts = ["we like Acme 24 here", "we like Acme 24 in Rome", "all of Oslo", "Acme alone"]
    found = list(with_lists.detect(texts))
    assert [{s.label for s in d.conservative} for d in found] == [
        set(),
        {"CAPITAL"},
        {"CLIENT", "CAPITAL"},
        set(),
    ]
    assert [[s.label for s in d.strict] for d in found] == [[], [], ["CLIENT"], []]
    assert all(d.conservative for d in list(without.detect(texts))[:3])
    doubt = Reading(plain=(Plain(8, 12, 0.1, "x"), Plain(0, 2, 0.1, "x")), allowed=((8, 15),))
    marked = with_lists.decide(texts[0], doubt).conservative
    assert [(s.start, s.end) for s in marked if s.label == "UNSURE"] == [(0, 2)]


def tokens_of(text: str, draw: st.DrawFn) -> tuple[Plain, ...]:
    """Scores of some of the text's words by two engines that cut them differently."""
    scores = st.sampled_from([0.2, 0.94, 0.95, 1.0])
    tokens = []
    for detector, step in (("spacy", 3), ("tagger", 5)):
        for start in range(0, len(text), step):
            if draw(st.integers(0, 5)):
                tokens.append(Plain(start, min(start + step, len(text)), draw(scores), detector))
    return tuple(tokens)


@st.composite
def scored_texts(draw: st.DrawFn) -> tuple[str, Reading]:
    pieces = st.sampled_from(["we", "met", "Anna", "in", "Zxqville", "on", "5th", "zxq", "a@b", "Then."])
    text = " ".join(draw(st.lists(pieces, max_size=6)))
    return text, Reading(plain=tokens_of(text, draw))


@given(scored_texts(), st.sampled_from([0.0, 0.95, 1.0]))
def test_soft_rules_are_forgiven_where_every_token_under_the_hit_is_surely_plain(
    scored: tuple[str, Reading], sure: float
) -> None:
    text, reading = scored
    settings = ConservativeSettings(rules=EVERY_RULE, sure=sure, plain_confidence=0.0)
    marked = {(s.label, s.start, s.end) for s in ConservativePolicy(settings).marks(text, reading)}
    expected = set()
    for rule in EVERY_RULE:
        for start, end in RULES[rule](text, "en"):
            scores = [
                [token.probability for token in reading.plain if token.start <= place < token.end]
                for place in range(start, end)
            ]
            surely_plain = all(own and min(own) >= sure for own in scores)
            if rule not in SOFT_RULES or sure == 1 or not surely_plain:
                expected.add((rule.upper(), start, end))
    assert marked == expected


@pytest.mark.parametrize("text", ["", " ", "a", "Hello there."])
def test_flagging_everything_makes_every_text_private(text: str) -> None:
    for flagged in (False, True):
        conservative = {"rules": [], "flags_everything": flagged}
        detector = Detector(DetectSettings.model_validate({**OFF, "conservative": conservative}))
        (detection,) = detector.detect([text])
        fate = route(text, detection)
        assert (fate.side, fate.text, fate.masks) == (PRIVATE if flagged else PUBLIC, text, 0)
        assert fate.reasons == (("rule:EVERYTHING",) if flagged else ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"max_chars": 0},
        {"conservative": {"plain_confidence": 1.1}},
        {"conservative": {"sure": -0.1}},
        {"conservative": {"rules": ["vowel"]}},
        {"strict": {"labels": {"PERSON": float("nan")}}},
        {"strict": {"threshold": 0.3}},
        {"patterns": {"custom": [{"name": "Own"}]}},
        {"model": "blank:en"},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DetectSettings.model_validate(wrong)

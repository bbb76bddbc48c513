"""The path of policies: known before any label, every rule in it, and the public side only grows along it."""

from __future__ import annotations

import typing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    Detection,
    DetectSettings,
    EngineOutput,
    Span,
    build_policies,
)
from redactory.detectors.engine import TIMEOUT, NonEntityScore
from redactory.detectors.rules import SOFT_RULES
from redactory.detectors.settings import RuleName
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.measure.fit_policy import (
    DOUBT_LEVELS,
    RULE_ORDER,
    build_conservative_policies,
    build_policy_sequence,
    find_first_public_policy_index,
)
from redactory.redaction import MASK, PUBLIC, route_example

WORDS = ("ok", "thanks", "Anna", "zorbling", "IBM", "7", "a@b", "paris", MASK)


def _detect(*rules: RuleName) -> DetectSettings:
    return DetectSettings(conservative=ConservativeSettings(rules=rules))


@pytest.mark.parametrize("rules", [RULE_ORDER, ("digit",), (), ("capital", "word")])
def test_bounds_only_fall_and_rules_only_go(rules: tuple[RuleName, ...]) -> None:
    path = build_policy_sequence(_detect(*rules))
    assert set(RULE_ORDER) == set(typing.get_args(RuleName))
    assert (path[0].min_non_entity_probability, path[0].confident_threshold) == (1.0, 1.0)
    assert (set(path[0].rules), path[-1].rules) == (set(RULE_ORDER), ())
    # what confidence forgives is given up only after it; what the configuration leaves out before it
    hard = set(RULE_ORDER) - SOFT_RULES
    assert {rule for rule in hard if rule in path[len(hard - set(rules))].rules} == hard & set(rules)
    assert all(set(step.rules) >= SOFT_RULES for step in path if step.confident_threshold > 1 - DOUBT_LEVELS[-1] + 1e-9)
    for safer, riskier in pairwise(path):
        assert safer != riskier
        assert safer.min_non_entity_probability >= riskier.min_non_entity_probability
        assert safer.confident_threshold >= riskier.confident_threshold
        assert set(safer.rules) >= set(riskier.rules)
    assert not any(step.flags_everything for step in path)
    assert len(path) == len(DOUBT_LEVELS) + len(RULE_ORDER)


def test_a_language_without_a_word_list_goes_without_its_rule() -> None:
    unnamed = ConservativeSettings(rules=("digit", "symbol"))
    for step in build_policy_sequence(DetectSettings(language="de", conservative=unnamed)):
        assert "word" not in step.rules
    named = DetectSettings(language="de", conservative=ConservativeSettings(rules=("word",)))
    assert "word" in build_policy_sequence(named)[0].rules


@st.composite
def _readings(draw: st.DrawFn) -> tuple[str, EngineOutput]:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    text, places = "", []
    for word in words:
        text += " " * bool(text)
        places.append((len(text), len(text) + len(word)))
        text += word
    if draw(st.integers(0, 9)) == 0:
        return text, EngineOutput(failure=TIMEOUT)
    doubt = st.sampled_from([0.0, 1e-6, 1e-4, 0.004, 0.03, 0.3, 0.9])
    scored = draw(st.booleans())
    plain = [NonEntityScore(*place, 1 - draw(doubt), "x") for place in places if scored and draw(st.integers(0, 4))]
    tagged = [Span(*p, draw(st.sampled_from(["PERSON", "ODD"])), draw(doubt), "x") for p in places[:1]]
    spans = tagged if draw(st.integers(0, 3)) == 0 else []
    allowed = [place for place in places if draw(st.integers(0, 5)) == 0]
    return text, EngineOutput(tuple(spans), tuple(plain), tuple(allowed))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(read=_readings(), rules=st.sets(st.sampled_from(RULE_ORDER)))
def test_the_public_split_grows_and_bisection_finds_where(read: tuple[str, EngineOutput], rules: set[RuleName]) -> None:
    text, reading = read
    detect = _detect(*sorted(rules))
    policies = build_conservative_policies(detect, build_policy_sequence(detect))
    sides = [_side(text, reading, detect, policy) for policy in policies]
    level = find_first_public_policy_index(text, reading, build_policies(detect)[0], policies)
    assert sides == ["private"] * level + [PUBLIC] * (len(policies) - level)


def _side(text: str, reading: EngineOutput, detect: DetectSettings, policy: ConservativePolicy) -> str:
    """As detection and routing come to it."""
    if reading.failure:
        return route_example(text, Detection(failure=reading.failure)).split
    strict = tuple(sorted(set(build_policies(detect)[0].select_spans(text, reading))))
    return route_example(text, Detection(strict, tuple(sorted(set(policy.select_spans(text, reading)))))).split


def test_rules_that_are_fitted_decide_of_no_language_whether_it_is_read() -> None:
    by_model = DetectSettings(language="auto")
    read = {
        policy.covered_languages for policy in build_conservative_policies(by_model, build_policy_sequence(by_model))
    }
    assert read == {frozenset({"en", "de", "es", "fr", "it", "nl", "pt"})}
    by_rules = DetectSettings(language="auto", tagger=None)
    with pytest.raises(ConfigurationError, match="or set the language"):
        build_conservative_policies(by_rules, build_policy_sequence(by_rules))

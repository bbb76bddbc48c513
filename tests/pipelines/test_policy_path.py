"""The path of policies: known before any label, and the public split only grows along it."""

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
from redactory.detectors.settings import RuleName
from redactory.pipelines.measure.fit_policy import build_policy_sequence, find_first_public_policy_index
from redactory.redaction import MASK, PUBLIC, route_example

EVERY_RULE: tuple[RuleName, ...] = typing.get_args(RuleName)
WORDS = ("ok", "thanks", "Anna", "zorbling", "IBM", "7", "a@b", "paris", MASK)


def _detect(*rules: RuleName) -> DetectSettings:
    return DetectSettings(conservative=ConservativeSettings(rules=rules))


@pytest.mark.parametrize("rules", [EVERY_RULE, ("digit",), ()])
def test_the_bound_only_falls_and_the_rules_stay(rules: tuple[RuleName, ...]) -> None:
    path = build_policy_sequence(_detect(*rules))
    bounds = [step.min_non_entity_probability for step in path]
    assert (bounds[0], bounds[-1]) == (1.0, 0.0)
    assert all(safer > riskier for safer, riskier in pairwise(bounds))
    assert all(step.rules == rules and not step.flags_everything for step in path)


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
@given(read=_readings(), rules=st.sets(st.sampled_from(EVERY_RULE)))
def test_the_public_split_grows_and_bisection_finds_where(read: tuple[str, EngineOutput], rules: set[RuleName]) -> None:
    text, reading = read
    detect = _detect(*sorted(rules))
    steps = build_policy_sequence(detect)
    policies = [build_policies(detect.model_copy(update={"conservative": step}))[1] for step in steps]
    sides = [_side(text, reading, detect, policy) for policy in policies]
    level = find_first_public_policy_index(text, reading, build_policies(detect)[0], policies)
    assert sides == ["private"] * level + [PUBLIC] * (len(policies) - level)


def _side(text: str, reading: EngineOutput, detect: DetectSettings, policy: ConservativePolicy) -> str:
    """As detection and routing come to it."""
    if reading.failure:
        return route_example(text, Detection(failure=reading.failure)).split
    strict = tuple(sorted(set(build_policies(detect)[0].select_spans(text, reading))))
    return route_example(text, Detection(strict, tuple(sorted(set(policy.select_spans(text, reading)))))).split

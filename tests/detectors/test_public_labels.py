"""Labels that may be public: what surely has one is neither masked nor a reason, nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import compute_policy_hashes
from redactory.detectors.engine import EngineOutput, NonEntityScore, Span
from redactory.detectors.policy import build_policies
from redactory.detectors.settings import DetectSettings, get_kind
from redactory.pipelines.curation.policy import Policy

LABELS = ("ORG", "DATE_TIME", "PERSON", "MISC")
PUBLIC = ("ORGANIZATION", "DATE")
made = st.builds(
    lambda start, length, label, score: Span(start, start + length, label, score, "tagger"),
    st.integers(0, 20),
    st.integers(1, 6),
    st.sampled_from(LABELS),
    st.sampled_from([0.1, 0.4, 0.6, 0.9]),
)


tokens = st.builds(
    lambda start, length, plain: NonEntityScore(start, start + length, plain, "tagger"),
    st.integers(0, 20),
    st.integers(1, 6),
    st.sampled_from([0.3, 0.89, 0.9, 1.0]),
)


@given(st.lists(made, max_size=6), st.lists(tokens, max_size=3))
def test_only_what_is_surely_public_and_may_be_nothing_else_is_opened(
    spans: list[Span], plain: list[NonEntityScore]
) -> None:
    strict, conservative = build_policies(DetectSettings())
    reading = EngineOutput(tuple(spans), tuple(plain))
    opened = strict.allow_public(reading, PUBLIC)
    others = [span for span in spans if get_kind(span.label) not in PUBLIC]
    for start, end in opened.allowed_ranges:
        assert any((s.start, s.end) == (start, end) and strict.reaches_min_score(s) and s not in others for s in spans)
        assert not any(other.start < end and start < other.end for other in others)
        assert all(t.probability >= 0.9 for t in plain if t.start < end and start < t.end), "one in doubt"
    text = "x" * 30
    for policy in (strict, conservative):
        before = {span for span in policy.select_spans(text, reading) if span in others}
        assert before <= set(policy.select_spans(text, opened)), "a hit of another label never goes"


def test_overlapping_ranges_are_opened_together_or_not_at_all() -> None:
    """Else a masked street cuts the postcode that another engine found across its end."""
    address = [Span(0, 10, "ORG", 0.9, "a"), Span(8, 14, "ORG", 0.9, "b"), Span(12, 20, "DATE_TIME", 0.9, "b")]
    spans = (*address, Span(3, 5, "PERSON", 0.1, "a"), Span(22, 25, "ORG", 0.9, "a"))
    strict, _ = build_policies(DetectSettings())
    assert strict.allow_public(EngineOutput(spans, ()), PUBLIC).allowed_ranges == ((22, 25),)
    assert len(strict.allow_public(EngineOutput(tuple(address), ()), PUBLIC).allowed_ranges) == 3


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return {"all secret": Policy.load({}), "some public": Policy.load({"detect": {"public_labels": list(PUBLIC)}})}


@pytest.mark.parametrize(
    ("text", "side", "redacted"),
    [
        ("The meeting is on Tuesday, March 14, 2019.", "public", None),
        ("Acme Corporation reported higher sales on Tuesday.", "public", None),
        ("Mary Smith works for Acme Corporation.", "private", "<MASK> works for Acme Corporation."),
    ],
)
def test_days_and_firms_may_be_public(policies: dict[str, Policy], text: str, side: str, redacted: str | None) -> None:
    assert policies["all secret"].decide_split(text) == "private"
    assert policies["some public"].decide_split(text) == side
    assert policies["some public"].redact(text) == (redacted or text)


def test_no_rule_fires_inside_and_all_do_outside() -> None:
    conservative = {"rules": ["digit", "symbol", "capital", "name", "word"]}
    policy = Policy.load({"detect": {"public_labels": list(PUBLIC), "conservative": conservative}})
    hits = policy.scan("Acme Corporation pays 55 to mary@example.org on Tuesday.")
    assert {hit.label for hit in hits if hit.detector == "rule"} >= {"DIGIT", "SYMBOL"}
    assert not any(hit.end <= len("Acme Corporation") for hit in hits)


def test_the_hash_says_which_labels_and_stays_where_there_are_none() -> None:
    plain, public = DetectSettings(), DetectSettings(public_labels=PUBLIC)
    assert compute_policy_hashes(plain) != compute_policy_hashes(public)
    assert compute_policy_hashes(plain) == compute_policy_hashes(DetectSettings(public_labels=()))

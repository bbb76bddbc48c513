"""Misses and their bounds, against the figures of the guarantees page and against scipy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from redactory.evaluation.recall import measure_misses
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper

RATES = ("gamma", "delta_2")


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 50_000), share=st.floats(0, 1), confidence=st.sampled_from([0.9, 0.95, 0.99, 0.999]))
def test_bounds_are_the_quantiles_of_beta(n: int, share: float, confidence: float) -> None:
    misses = round(share * n)
    upper = 1.0 if misses == n else beta.ppf(confidence, misses + 1, n - misses)
    lower = 0.0 if misses == 0 else beta.ppf(1 - confidence, misses, n - misses + 1)
    assert clopper_pearson_upper(misses, n, confidence) == pytest.approx(upper, rel=1e-6)
    assert clopper_pearson_lower(misses, n, confidence) == pytest.approx(lower, rel=1e-6, abs=1e-12)


def test_no_labels_promise_nothing() -> None:
    assert (clopper_pearson_lower(0, 0), clopper_pearson_upper(0, 0)) == (0.0, 1.0)
    empty = measure_misses(_fate, [], [])
    assert (empty["n"], empty["gamma"]["rate"], empty["delta_2"]["upper"]) == (0, None, 1.0)
    with pytest.raises(ValueError, match="misses"):
        clopper_pearson_upper(3, 2)


def _fate(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A toy F: π masks digits and capitalised words, but a title before a name hides the name from it."""
    decisions = []
    for text in texts:
        if "\0" in text:
            decisions.append(("quarantined", text))
            continue
        redacted = re.sub(r"(?<!Dr )\b[A-Z][a-z]+\b|\d+", "<MASK>", text)
        decisions.append(("private" if "<MASK>" in redacted or "Dr " in text else "public", redacted))
    return decisions


def test_each_kind_of_miss() -> None:
    cases = [
        ("call Ann", 5, 8, "PERSON", 0, 0),  # caught
        ("call ann", 5, 8, "PERSON", 1, 1),  # missed by both
        ("ask Dr Lee", 7, 10, "PERSON", 1, 0),  # missed by π, the point is private all the same
        ("id 12a", 3, 6, "ID", 1, 0),  # a partial catch is a miss
        ("ref \0 9", 6, 7, "ID", 0, 0),  # quarantined with and without it, and masked alike below
    ]
    texts = [case[0] for case in cases]
    spans = [[{"start": start, "end": end, "label": label}] for _, start, end, label, _, _ in cases]
    result = measure_misses(_fate, texts, spans)
    # the quarantined text differs from its masked twin, for this F quotes what it quarantines
    assert result["gamma"]["misses"] == sum(case[4] for case in cases) + 1
    assert result["delta_2"]["misses"] == sum(case[5] for case in cases)
    assert result["labels"]["PERSON"]["n"] == 3
    assert result["labels"]["PERSON"]["delta_2"]["misses"] == 1
    assert result["labels"]["ID"]["gamma"] == {"misses": 2, "rate": 1.0, "upper": 1.0}
    assert result["highest_gamma"] == {"label": "ID", "upper": 1.0}
    assert result["joint_confidence"] == pytest.approx(0.9)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.9999])
def test_every_bound_holds_at_the_confidence_that_is_asked_for(confidence: float) -> None:
    texts = ["call Ann", "call ann", "ask Dr Lee", "ask Dr Who", "id 12", "id 7", "id x"]
    spans = [[{"start": text.rindex(" ") + 1, "end": len(text), "label": text[:2]}] for text in texts]
    result = measure_misses(_fate, texts, spans, confidence=confidence)
    strata = [result, *result["labels"].values()]
    strata += [one for of_kind in result["strata"].values() for one in of_kind.values()]
    bounds = [(one[rate]["misses"], one["n"], one[rate]["upper"]) for one in strata for rate in RATES]
    assert {(4, 7), (2, 7), (0, 2), (1, 3)} <= {(misses, n) for misses, n, _ in bounds}
    for misses, n, upper in bounds:
        exact = 1.0 if misses == n else beta.ppf(confidence, misses + 1, n - misses)
        assert upper == pytest.approx(exact, rel=1e-9), (misses, n)
    assert result["confidence"] == confidence
    assert result["joint_confidence"] == pytest.approx(max(0.0, 2 * confidence - 1))
    assert result["highest_gamma"]["upper"] == max(one["gamma"]["upper"] for one in result["labels"].values())


def test_each_secret_of_a_text_is_taken_out_alone() -> None:
    calls: list[list[str]] = []

    def remember(texts: Sequence[str]) -> list[tuple[str, str]]:
        calls.append(list(texts))
        return _fate(texts)

    text = "Ann met bob"
    spans = [[{"start": 0, "end": 3, "label": "PERSON"}, {"start": 8, "end": 11, "label": "PERSON"}]]
    result = measure_misses(remember, [text], spans)
    assert calls == [[text], ["<MASK> met bob", "Ann met <MASK>"]]
    assert (result["gamma"]["misses"], result["delta_2"]["misses"]) == (1, 0)


def test_a_span_outside_its_text_is_refused_without_quoting_it() -> None:
    with pytest.raises(ValueError, match="is outside a text of") as error:
        measure_misses(_fate, ["secret"], [[{"start": 2, "end": 9, "label": "X"}]])
    assert "secret" not in str(error.value)

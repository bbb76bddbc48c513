"""The recognizers that are shipped: forms found, plain text left alone, linear time."""

from __future__ import annotations

import itertools

import pytest
import regex

from redactory.detectors import DetectSettings, StrictPolicy
from redactory.detectors.presidio_patterns import PatternEngine
from redactory.detectors.recognizers import FAMILIES
from redactory.detectors.recognizers.family import DOUBTFUL, Family, Terms
from redactory.detectors.settings import PatternSettings
from redactory.detectors.triggers import words_of
from redactory.redaction import mask
from tests.detectors.pattern_texts import FOUND, PLAIN, unmarked


@pytest.fixture(scope="module")
def engine() -> PatternEngine:
    return PatternEngine(PatternSettings(), "en")


@pytest.fixture(scope="module")
def policy() -> StrictPolicy:
    return StrictPolicy(DetectSettings().strict)


@pytest.mark.parametrize("label", FOUND)
def test_forms_are_masked_whole_and_under_their_label(
    engine: PatternEngine, policy: StrictPolicy, label: str
) -> None:
    for marked in FOUND[label]:
        text, start, end = unmarked(marked)
        (reading,) = engine.read([text])
        spans = list(policy.marks(text, reading))
        covered = {place for s in spans for place in range(s.start, s.end)}
        assert {i for i in range(start, end) if not text[i].isspace()} <= covered, marked
        assert label in {s.label for s in spans if s.start < end and start < s.end}, marked


def test_plain_text_is_left_alone(engine: PatternEngine, policy: StrictPolicy) -> None:
    readings = engine.read(PLAIN)
    assert [text for text, r in zip(PLAIN, readings, strict=True) if list(policy.marks(text, r))] == []


def test_doubtful_forms_are_seen_by_the_conservative_policy_until_context_raises_them(
    engine: PatternEngine, policy: StrictPolicy
) -> None:
    doubtful, told = engine.read(["walk past 23 elm st today", "my address: 23 elm st"])
    assert {s.score for s in doubtful.spans if s.label == "STREET_ADDRESS"} == {DOUBTFUL}
    assert not list(policy.marks("walk past 23 elm st today", doubtful))
    assert {s.score for s in told.spans if s.label == "STREET_ADDRESS"} >= {DOUBTFUL + 0.35}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Mr. Jones, aged 42, met her.", "<MASK> Jones, aged <MASK>, met her."),
        ("Call 212-555-0187 or (212) 555-0199.", "Call <MASK> or <MASK>."),
        ("I was 42 in 42nd street 42", "I was <MASK> in 42nd street 42"),
        ("3 of 3 rooms, 3 Oak Road", "3 of 3 rooms, <MASK>"),
    ],
)
def test_the_place_is_masked_and_not_the_word(
    engine: PatternEngine, policy: StrictPolicy, text: str, masked: str
) -> None:
    (reading,) = engine.read([text])
    assert mask(text, ((s.start, s.end) for s in policy.marks(text, reading))) == masked


FILLERS = ("1 ", "a ", "A ", "A-", "1-1.", "A1-", "a.a@", " ", "1, A ")
LENGTH, PATIENCE = 40_000, 3.0
"""Code points, and seconds of processor time for which one expression may search through so many."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_expression_takes_linear_time(family: Family) -> None:
    """The slowest takes a tenth of the time that it is given; of quadratic time, the fastest overstep it."""
    for name, form in family.forms.items():
        expression = regex.compile(form.expression)
        for word, filler in itertools.product(sorted(form.needs.words)[:1] or [""], FILLERS):
            text = f"{word} {filler * LENGTH}"[:LENGTH]
            try:
                for _ in expression.finditer(text, timeout=PATIENCE):
                    pass
            except TimeoutError:
                pytest.fail(f"{name} does not end on {text[:20]!r}")


def test_an_expression_of_quadratic_time_would_be_found() -> None:
    slow = regex.compile(r"address\s*[:=-]?\s*\d")
    with pytest.raises(TimeoutError):
        slow.findall("address" + " " * LENGTH, timeout=PATIENCE / 4)


def test_white_space_is_bounded_in_every_expression() -> None:
    for family in FAMILIES:
        for form in family.forms.values():
            assert r"\s*" not in form.expression
            assert r"\s+" not in form.expression


def test_names_of_forms_are_their_own_and_scores_lie_between_0_and_1() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(0 < form.score <= 1 for family in FAMILIES for form in family.forms.values())
    assert {family.label for family in FAMILIES} <= set(DetectSettings().strict.labels)


@pytest.mark.parametrize("case", ["any", "written", "capitals"])
def test_terms_match_only_with_one_of_their_words(case: str) -> None:
    terms = Terms("po_box C/ Straße av. one-time_code", case)  # type: ignore[arg-type]
    expression = regex.compile(terms.form)
    for text in ("PO BOX", "po  box", "C/", "Straße", "STRASSE", "av.", "one-time code", "ONE-TIME CODE"):
        if expression.fullmatch(text):
            assert words_of(text) & terms.words
    assert expression.fullmatch("po box")
    assert bool(expression.fullmatch("PO BOX")) == (case != "written")

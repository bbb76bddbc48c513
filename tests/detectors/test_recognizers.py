"""The recognizers that are shipped: forms found, plain text left alone, linear time."""

from __future__ import annotations

import time

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from presidio_analyzer.predefined_recognizers import PhoneRecognizer, UrlRecognizer

from redactory.detectors import DetectSettings, StrictPolicy
from redactory.detectors.detector import WINDOW_CHARS
from redactory.detectors.patterns import PatternEngine, add_word_lookahead
from redactory.detectors.recognizers import (
    SCORES,
    BuiltinRecognizer,
    PatternFragments,
    create_predefined_recognizers,
    load_builtin_recognizers,
)
from redactory.detectors.settings import DEFAULT_PRESIDIO_RECOGNIZERS, PatternSettings
from redactory.detectors.triggers import split_words
from redactory.redaction import mask_intervals
from tests.detectors.pattern_texts import ANNOUNCED, FOUND, PLAIN, UNTOLD, unmarked

POLICY = StrictPolicy(DetectSettings().strict)


@pytest.mark.parametrize("label", FOUND)
def test_forms_are_masked_whole_and_under_their_label(engine: PatternEngine, label: str) -> None:
    for marked in FOUND[label]:
        text, start, end = unmarked(marked)
        (reading,) = engine.read([text])
        spans = list(POLICY.select_spans(text, reading))
        covered = {place for s in spans for place in range(s.start, s.end)}
        assert {i for i in range(start, end) if not text[i].isspace()} <= covered, marked
        assert label in {s.label for s in spans if s.start < end and start < s.end}, marked


@pytest.mark.parametrize("language", ANNOUNCED)
def test_a_secret_made_of_words_is_found_behind_its_announcement(language: str) -> None:
    engine = PatternEngine(PatternSettings(), language)
    for marked in ANNOUNCED[language]:
        text, start, end = unmarked(marked)
        (reading,) = engine.read([text])
        found = {place for s in reading.spans for place in range(s.start, s.end)}
        assert {i for i in range(start, end) if not text[i].isspace()} <= found, marked


def test_what_is_said_of_a_password_is_none(engine: PatternEngine) -> None:
    readings = engine.read(UNTOLD)
    assert [text for text, reading in zip(UNTOLD, readings, strict=True) if reading.spans] == []


def test_plain_text_is_left_alone(engine: PatternEngine) -> None:
    readings = engine.read(PLAIN)
    assert [text for text, r in zip(PLAIN, readings, strict=True) if list(POLICY.select_spans(text, r))] == []


def test_doubtful_forms_are_seen_by_the_conservative_policy_until_context_raises_them(engine: PatternEngine) -> None:
    doubtful, raised = engine.read(["walk past 23 elm st today", "my address: 23 elm st"])
    assert {s.score for s in doubtful.spans if s.label == "STREET_ADDRESS"} == {SCORES["doubtful"]}
    assert not list(POLICY.select_spans("walk past 23 elm st today", doubtful))
    assert {s.score for s in raised.spans if s.label == "STREET_ADDRESS"} >= {SCORES["doubtful"] + 0.35}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Mr. Jones, aged 42, met her.", "<MASK> Jones, aged <MASK>, met her."),
        ("Call 212-555-0187 or (212) 555-0199.", "Call <MASK> or <MASK>."),
        ("I was 42 in 42nd street 42", "I was <MASK> in 42nd street 42"),
        ("3 of 3 rooms, 3 Oak Road", "3 of 3 rooms, <MASK>"),
    ],
)
def test_the_place_is_masked_and_not_the_word(engine: PatternEngine, text: str, masked: str) -> None:
    (reading,) = engine.read([text])
    assert mask_intervals(text, ((s.start, s.end) for s in POLICY.select_spans(text, reading))) == masked


FILLERS = ("1 ", "a ", "A ", "A-", "1-1.", "A1-", "a.a@", " ", "1, A ")
LENGTH, PATIENCE = 40_000, 3.0
"""Code points, and seconds of processor time for which one expression may search through so many."""


@pytest.mark.slow
@pytest.mark.parametrize("one", load_builtin_recognizers(), ids=lambda one: one.name)
def test_every_expression_takes_linear_time(one: BuiltinRecognizer) -> None:
    """The slowest takes a tenth of the time that it is given; of quadratic time, the fastest overstep it."""
    for name, form in one.forms.items():
        # two long runs of white space would cost the square of one
        assert r"\s*" not in form.expression and r"\s+" not in form.expression  # noqa: PT018
        expression = regex.compile(form.expression)
        word = min(form.trigger.words, default="")
        for filler in (*FILLERS, f"{word} ", f"{word} 1 "):
            text = f"{word} {filler * LENGTH}"[:LENGTH]
            try:
                for _ in expression.finditer(text, timeout=PATIENCE):
                    pass
            except TimeoutError:
                pytest.fail(f"{name} does not end on {text[:20]!r}")


HOSTS = ("www.a.", "www.", "a.", "1.", "1-1.", "http://a.", "'a.", "a.comm", "a-", "::", "00:", "AA11 ")


def test_no_expression_of_presidios_is_slow_in_a_window() -> None:
    """Links tried 675 domains behind each full stop, again from each place: 2 to 4 s a window."""
    for recognizer in create_predefined_recognizers(DEFAULT_PRESIDIO_RECOGNIZERS, "en"):
        for pattern in getattr(recognizer, "patterns", ()):
            find = regex.compile(add_word_lookahead(pattern.regex), regex.I | regex.M | regex.S).finditer
            for filler in (*FILLERS, *HOSTS):
                try:
                    list(find((filler * WINDOW_CHARS)[:WINDOW_CHARS], timeout=PATIENCE / 4))
                except TimeoutError:
                    pytest.fail(f"{recognizer.name}, {pattern.name} does not end on {filler!r}")


PIECES_OF_LINKS = (
    *("www.", "WWW2.", "http://", "https://", ".", ".", "-", "/", "'", '"', " ", "a", "1", "ſ", "K", "İ"),
    *(".com", ".community", ".CO", ".uk", ".accountants", ".accountan", ".xxx", ".new", ".news", ".zz"),
)


@given(st.lists(st.sampled_from(PIECES_OF_LINKS), max_size=12).map("".join))
@example("a" * 200 + ".com")
def test_domains_that_are_looked_up_match_what_they_did(text: str) -> None:
    for pattern in UrlRecognizer.PATTERNS:
        found = regex.finditer(add_word_lookahead(pattern.regex), text, regex.I)
        assert [m.span() for m in found] == [m.span() for m in regex.finditer(pattern.regex, text, regex.I)]


def test_searching_telephone_numbers_takes_linear_time() -> None:
    recognizer = PhoneRecognizer(supported_regions=("US", "DE"))
    for filler in ("+1 555 ", "+44 20 ", "jan 1 ", "1 ", "(1) ", "1-1.", "1", "555-", "+1 212 555 0187 "):
        started = time.process_time()
        recognizer.analyze((filler * LENGTH)[:LENGTH], ["PHONE_NUMBER"])
        assert time.process_time() - started < 4 * PATIENCE, filler


def test_names_are_their_own_scores_lie_between_0_and_1_and_hits_are_masked() -> None:
    names = [one.name for one in load_builtin_recognizers()]
    assert len(set(names)) == len(names)
    assert all(0 < form.score <= 1 for one in load_builtin_recognizers() for form in one.forms.values())
    assert {one.label for one in load_builtin_recognizers()} <= set(DetectSettings().strict.labels)


@pytest.mark.parametrize("case", ["any", "written", "capitals"])
def test_terms_match_only_with_one_of_their_words(case: str) -> None:
    pieces = PatternFragments({"TERMS": {"terms": "po_box C/ Straße av. one-time_code", "case": case}})
    expression = regex.compile(pieces.expressions["TERMS"])
    for text in ("PO BOX", "po  box", "C/", "Straße", "STRASSE", "av.", "one-time code", "ONE-TIME CODE"):
        if expression.fullmatch(text):
            assert split_words(text) & pieces.words["TERMS"]
    assert expression.fullmatch("po box")
    assert bool(expression.fullmatch("PO BOX")) == (case != "written")

"""Texts in one case are read in title case too, where that keeps every place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import Detection, Detector
from redactory.detectors.detector import _in_title_case
from redactory.detectors.settings import ConservativeSettings
from tests.detectors.finder import Finder, with_engines, with_settings

CASED = ("my name is anna kowalski", "MY NAME IS ANNA KOWALSKI")


@pytest.mark.parametrize("text", CASED)
def test_a_text_in_one_case_is_read_in_title_case_too(text: str) -> None:
    plain, both = (
        with_engines(Finder("Anna Kowalski"), Finder("name"), conservative={"rules": [], "case_variants": on})
        for on in (False, True)
    )
    (before,), (after,) = plain.detect([text]), both.detect([text])
    assert {text[s.start : s.end].lower() for s in before.strict} <= {"name"}
    assert {text[s.start : s.end].lower() for s in after.strict} >= {"anna kowalski"}
    assert set(before.strict) <= set(after.strict), "what was read in the text itself stays"


def test_case_variants_change_nothing_where_letters_are_mixed_or_places_would_move() -> None:
    finder = Finder("Anna")
    detector = with_engines(finder, conservative={"rules": [], "case_variants": True})
    for text in ("My name is anna", "ßa anna", "ŉa anna", "12 34", ""):
        (found,) = detector.detect([text])
        assert found == Detection(), text
    (there,) = detector.detect(["straße of anna"])
    assert [(s.start, s.end) for s in there.strict] == [(10, 14)]


def test_case_variants_stay_with_their_text() -> None:
    texts = ["my anna", "My anna", "ßa anna", "her anna", "MY ANNA"]
    detector = with_engines(Finder("Anna"), conservative={"rules": [], "case_variants": True}, batch_size=3)
    found = [[(s.start, s.end) for s in d.strict] for d in detector.detect(texts)]
    assert found == [[(3, 7)], [], [], [(4, 8)], [(3, 7)]]


def test_the_real_engines_read_names_in_small_letters(detector: Detector) -> None:
    text = "i met angela merkel and barack obama in london"
    cased = with_settings(detector, conservative=ConservativeSettings(case_variants=True))
    (found,) = cased.detect([text])
    assert {"angela merkel", "barack obama", "london"} <= {text[s.start : s.end] for s in found.strict}


@given(st.text(max_size=12) | st.text("ßŉΣİıǆǅᾳſ aA'", max_size=12))
def test_title_case_keeps_every_place(text: str) -> None:
    title = _in_title_case(text)
    if title is not None:
        assert len(title) == len(text)
        # two ways to compare, for a dotless ı has another case-folding, and a Kelvin sign another capital
        assert all(
            a.casefold() == b.casefold() or a.upper() == b.upper() for a, b in zip(title, text, strict=True)
        )

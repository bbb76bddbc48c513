"""Windows of long texts: they cover, they overlap, and what is short is found wherever the cuts fall."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import Detector, DetectSettings, Span
from redactory.detectors import detector as module
from redactory.detectors.detector import windows
from tests.detectors.detector_texts import TEXTS
from tests.detectors.finder import OFF, Finder, with_engines, with_settings

LONG_TEXTS = st.text("ab é.!?\"'’\n", max_size=200) | st.text(max_size=200)
SIZES = st.integers(3, 60).flatmap(lambda chars: st.tuples(st.just(chars), st.integers(1, (chars - 1) // 2)))


def cut_short(text: str, places: list[tuple[int, int]], length: int) -> list[int]:
    """By brute force: the starts of the pieces of that length that lie whole in no window."""
    starts = range(max(0, len(text) - length) + 1)
    whole = {s for s in starts for start, end in places if start <= s and min(s + length, len(text)) <= end}
    return [s for s in starts if s not in whole]


@given(LONG_TEXTS, SIZES)
def test_windows_cover_overlap_and_are_short_enough(text: str, sizes: tuple[int, int]) -> None:
    chars, overlap = sizes
    places = list(windows(text, chars, overlap))
    assert places[0][0] == 0
    assert places[-1][1] == len(text)
    assert all(0 <= end - start <= chars for start, end in places)
    assert all(start < end for start, end in places) or not text
    for (start, end), (following, last) in itertools.pairwise(places):
        assert start < following <= end - overlap, "neighbours share the overlap, and windows move on"
        assert end < last, "none lies whole in its neighbour"
    assert (len(places) > 1) == (len(text) > chars)


@given(LONG_TEXTS, SIZES)
def test_what_is_no_longer_than_the_overlap_lies_whole_in_a_window(text: str, sizes: tuple[int, int]) -> None:
    places = list(windows(text, *sizes))
    for length in range(1, sizes[1] + 1):
        assert cut_short(text, places, length) == []


def test_cuts_fall_between_sentences_else_words_else_anywhere() -> None:
    sentences = "One two three four five. " * 10
    words = "onetwo " * 40
    for text, good in ((sentences, {". "}), (words, {"o "})):
        inner = {text[end - 2 : end] for _, end in windows(text, 64, 16) if end < len(text)}
        assert inner == good
        starts = {text[start - 2 : start] for start, _ in windows(text, 64, 16) if start}
        assert starts == good
    assert [end for _, end in windows("x" * 100, 64, 16)] == [64, 100]


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 64)
    monkeypatch.setattr(module, "OVERLAP", 16)


FILLER = "some words. And more of them, again and again " * 4


def missed(detector: Detector) -> list[int]:
    """Where a name of as many letters as windows share, put into a long text, is not found in place."""
    lost = []
    for place in range(len(FILLER) + 1):
        text = FILLER[:place] + "Anna Kowalskitwo" + FILLER[place:]
        (found,) = detector.detect([text])
        if {(s.start, s.end) for s in found.strict} != {(place, place + 16)}:
            lost.append(place)
    return lost


@pytest.mark.usefixtures("short_windows")
def test_a_name_is_found_wherever_the_cuts_of_a_long_text_fall() -> None:
    finder = Finder("Anna Kowalskitwo")
    assert missed(with_engines(finder)) == []
    assert max(len(text) for batch in finder.batches for text in batch) == 64


@pytest.mark.usefixtures("short_windows")
def test_windows_without_overlap_are_found_to_lose_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def side_by_side(text: str, chars: int, overlap: int) -> Iterator[tuple[int, int]]:
        return ((i, min(i + chars, len(text))) for i in range(0, max(len(text), 1), chars))

    monkeypatch.setattr(module, "windows", side_by_side)
    assert missed(with_engines(Finder("Anna Kowalskitwo")))


@pytest.mark.usefixtures("short_windows")
def test_the_real_engines_find_what_lies_across_a_cut(detector: Detector) -> None:
    filler = "we talked about the weather and then about food. " * 8
    texts = [filler[:place] + "anna.smith@example.org " + filler[place:] for place in range(49, 343, 49)]
    for text, found in zip(texts, detector.detect(texts), strict=True):
        assert "anna.smith@example.org" in {text[s.start : s.end] for s in found.strict}


@pytest.mark.usefixtures("short_windows")
def test_a_text_in_windows_is_read_the_same_in_any_batch(detector: Detector) -> None:
    texts = [text for text in TEXTS if len(text) < 600]
    expected = [detector.read([text])[0] for text in texts]
    assert detector.read(texts) == expected
    assert with_settings(detector, batch_size=3).read(texts) == expected


@pytest.mark.usefixtures("short_windows")
def test_a_list_reads_a_long_text_whole() -> None:
    """A term may be longer than what windows share."""
    term = "Anna " + "of the long name " * 5 + "Kowalski"
    windowed, whole = Finder(".+"), Finder(term)
    detector = with_engines(windowed, whole=[whole])
    for place in range(0, len(FILLER), 7):
        text = f"{FILLER[:place]} {term} {FILLER[place:]}"
        (found,) = detector.detect([text])
        start = place + 1
        assert Span(start, start + len(term), "PERSON", 0.9, "finder") in found.strict
    assert max(len(text) for batch in windowed.batches for text in batch) <= 64
    lists = {"deny": [{"words": [term], "label": "CLIENT"}]}
    off = {**OFF, "conservative": {"rules": []}}
    listed = Detector(DetectSettings.model_validate({**off, "lists": lists}))
    (found,) = listed.detect([f"{FILLER} {term} {FILLER}"])
    assert [s.label for s in found.strict] == ["CLIENT"]

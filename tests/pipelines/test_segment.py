"""Segmenters: a document comes back character for character, and sentences stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.pipelines.curation.config import SegmentMode, SegmentSettings
from redactory.pipelines.curation.segment import is_known_role, make_segmenter

MODES: list[SegmentMode] = ["sentence", "turn", "line", "document"]
TEXTS = st.text(st.sampled_from("aA .!?\n\r\t:SYUR1'\u2028\u00a0é")) | st.text()


@pytest.mark.parametrize("mode", MODES)
@given(TEXTS)
def test_the_points_give_the_document_back(mode: SegmentMode, text: str) -> None:
    segments = make_segmenter(SegmentSettings(mode=mode))(text)
    assert "".join(s.prefix + s.text + s.suffix for s in segments) == text
    assert all(s.text == s.text.strip() for s in segments)
    if text.strip():
        assert all(s.text for s in segments)


@pytest.mark.parametrize(
    "secret",
    [
        "10208 Denise Manors Apt. 433 Williamsfort, NY 68061",
        "Dr. J. R. Smith",
        "St. Mary's Hosp. No. 5",
        "j o . d o e @ m a i l . o r g",
    ],
)
def test_an_abbreviation_does_not_cut_a_secret(secret: str) -> None:
    text = f"Thank you for waiting. It goes to {secret}. Anything else?"
    segments = make_segmenter(SegmentSettings())(text)
    assert any(secret in s.text for s in segments)
    assert len(segments) >= 2


def test_a_turn_leaves_its_speaker_behind_and_a_time_or_a_link_is_none() -> None:
    text = "SYS: Hello there.\nUSR: Hi!  \n\nBye: now\nno speaker here\n12:30 is fine\nhttp://example.org\n"
    turns = [("SYS", "Hello there."), ("USR", "Hi!"), ("Bye", "now"), (None, "no speaker here")]
    turns += [(None, "12:30 is fine"), (None, "http://example.org")]
    assert [(s.speaker, s.text) for s in make_segmenter(SegmentSettings(mode="turn"))(text)] == turns


def test_a_role_is_one_however_it_is_written_and_a_name_is_none() -> None:
    assert all(map(is_known_role, ("user", "Assistant", " SYSTEM ", "function_call")))
    assert not any(map(is_known_role, ("Anna", "user Anna", "users", "", None)))

"""Engines: what a configuration switches on, what each stands on, and what several say together."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import Detector, DetectSettings, Reading, Span
from redactory.detectors.engine import (
    ENGINE_ERROR,
    MISALIGNED,
    TIMEOUT,
    TOO_LONG,
    Plain,
    engines_of,
    identities_of,
    joined,
)
from redactory.detectors.settings import SpacySettings
from redactory.detectors.spacy_ner import SpacyEngine
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.settings import Settings
from tests.detectors.finder import OFF

SPANS = st.builds(Span, st.integers(0, 9), st.integers(10, 19), st.just("A"), st.floats(0, 1), st.just("x"))
TOKENS = st.builds(Plain, st.integers(0, 9), st.integers(10, 19), st.floats(0, 1), st.just("x"))
PLACES = st.tuples(st.integers(0, 9), st.integers(10, 19))
SOUND = st.builds(
    Reading,
    st.lists(SPANS, max_size=3).map(tuple),
    st.lists(TOKENS, max_size=3).map(tuple),
    st.lists(PLACES, max_size=2).map(tuple),
)
FAILED = st.builds(Reading, failure=st.sampled_from([TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED]))


@given(st.lists(SOUND, max_size=4))
def test_what_any_engine_says_is_said(readings: list[Reading]) -> None:
    together = joined(readings)
    assert together.failure is None
    assert list(together.spans) == [span for reading in readings for span in reading.spans]
    assert list(together.plain) == [token for reading in readings for token in reading.plain]
    assert list(together.allowed) == [place for reading in readings for place in reading.allowed]


@given(st.lists(SOUND, max_size=3), FAILED, st.lists(SOUND | FAILED, max_size=3))
def test_a_failure_of_one_engine_is_a_failure_of_all(
    before: list[Reading], failed: Reading, after: list[Reading]
) -> None:
    assert joined([*before, failed, *after]) == Reading(failure=failed.failure)


@given(SOUND, st.integers(0, 50))
def test_a_shifted_reading_says_the_same_elsewhere(reading: Reading, by: int) -> None:
    text = "0123456789" * 2
    moved = reading.shifted(by)
    longer = "-" * by + text
    for old, new in zip((*reading.spans, *reading.plain), (*moved.spans, *moved.plain), strict=True):
        assert longer[new.start : new.end] == text[old.start : old.end]
        assert new[2:] == old[2:]
    for (start, end), (left, right) in zip(reading.allowed, moved.allowed, strict=True):
        assert longer[left:right] == text[start:end]


def sections() -> set[str]:
    """The names of the settings that are a section of their own and may be null: the engines."""
    kinds = {name: field.annotation for name, field in DetectSettings.model_fields.items()}
    return {
        name
        for name, kind in kinds.items()
        if type(None) in typing.get_args(kind)
        and any(isinstance(k, type) and issubclass(k, Settings) for k in typing.get_args(kind))
    }


def test_every_section_switches_an_engine_on(tagger_folder: Path, tmp_path: Path) -> None:
    """One that no engine reads would be a setting that is silently without effect."""
    (tmp_path / "broken").mkdir()
    some: dict[str, Any] = {
        "tagger": {"models": [str(tagger_folder)]},
        "spacy": {"model": "blank:en"},
        "patterns": {},
        "stanza": {"folder": str(tmp_path / "broken")},
        "transformers": {"folder": str(tmp_path / "broken")},
        "lists": {"deny": [{"words": ["Anna"]}]},
    }
    assert sections() == set(some)
    for name, section in some.items():
        settings = DetectSettings.model_validate({**OFF, name: section})
        if name in ("stanza", "transformers"):
            with pytest.raises(ConfigurationError, match=f"detect.{name}"):
                engines_of(settings)
        else:
            windowed, whole = engines_of(settings)
            (engine,) = windowed or whole
            assert bool(whole) == (name == "lists")
            assert [type(r) for r in engine.read(["Anna", ""])] == [Reading, Reading]
            assert list(identities_of(settings)) == [name]


def test_without_engines_the_rules_remain() -> None:
    rules = {"rules": ["digit", "capital", "name"]}
    nothing = DetectSettings.model_validate({**OFF, "conservative": rules})
    assert engines_of(nothing) == ([], [])
    assert identities_of(nothing) == {}
    detections = list(Detector(nothing).detect(["all is well", "I met Anna, 5 times", ""]))
    assert [{s.label for s in d.conservative} for d in detections] == [
        set(),
        {"CAPITAL", "NAME", "DIGIT"},
        set(),
    ]
    assert not any(d.strict or d.failure for d in detections)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"spacy": {"model": "no_such_pipeline"}}, r"detect\.spacy\.model"),
        ({"spacy": {"model": "no/such/folder"}}, r"detect\.spacy\.model"),
        ({"tagger": {"models": ["no/such/folder"]}}, r"detect\.tagger\.models"),
    ],
)
def test_an_engine_that_is_not_here_is_named_with_its_key(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        engines_of(DetectSettings.model_validate({**OFF, **section}))


def test_a_pipe_that_is_no_transition_based_recognizer_is_refused(tmp_path: Path) -> None:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler", name="ner")
    nlp.to_disk(tmp_path / "ruler")
    with pytest.raises(ConfigurationError, match=r"detect\.spacy\.model"):
        SpacyEngine(SpacySettings(model=str(tmp_path / "ruler")), "en")

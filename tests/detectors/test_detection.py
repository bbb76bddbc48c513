"""Detection is a function of the text alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import Detector, Reading, Span
from redactory.detectors.settings import SpacySettings, TaggerSettings
from redactory.detectors.spacy_ner import SpacyEngine
from redactory.detectors.tagger import TaggerEngine
from tests.detectors.detector_texts import TEXTS
from tests.detectors.finder import Finder, with_engines, with_settings


def same_in_batches(detector: Detector, alone: dict[str, Reading], texts: Sequence[str], size: int) -> bool:
    """Whether every span and every probability is bit for bit that of the text alone."""
    detector = with_settings(detector, batch_size=size)
    readings = [r for i in range(0, len(texts), size) for r in detector.read(texts[i : i + size])]
    return readings == [alone[text] for text in texts]


@pytest.mark.parametrize(("seed", "size"), [(None, 1), (None, 64), (1, 7), (2, 64)])
def test_a_reading_does_not_depend_on_its_batch(
    detector: Detector, alone: dict[str, Reading], size: int, seed: int | None
) -> None:
    texts = list(TEXTS)
    if seed is not None:
        random.Random(seed).shuffle(texts)
    assert same_in_batches(detector, alone, texts, size)


def test_a_reading_that_sees_its_neighbours_is_found(
    detector: Detector, alone: dict[str, Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: probabilities move in the last place with the size of the batch."""
    engine = next(e for e in detector._windowed if e.read([TEXTS[1]])[0].plain)
    true_read = engine.read

    def read(texts: Sequence[str]) -> list[Reading]:
        return [
            Reading(
                r.spans, tuple(p._replace(probability=p.probability + 1e-16 * len(texts)) for p in r.plain)
            )
            for r in true_read(texts)
        ]

    monkeypatch.setattr(engine, "read", read)
    assert not same_in_batches(detector, alone, TEXTS, 7)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_detections_come_in_order_from_any_iterable(detector: Detector, size: int) -> None:
    expected = [next(iter(detector.detect([text]))) for text in TEXTS[:20]]
    other = with_settings(detector, batch_size=size)
    assert list(other.detect(iter(TEXTS[:20]))) == expected
    assert list(other.detect([])) == []


def test_our_decoding_is_spacys() -> None:
    engine = SpacyEngine(SpacySettings(), "en")
    theirs = []
    for doc in engine.nlp.pipe(TEXTS):
        places = [(e.start_char, e.end_char, e.label_) for e in doc.ents if e.text.strip()]
        texts = [doc.text[start:end] for start, end, _ in places]
        theirs.append(
            [
                (start + len(t) - len(t.lstrip()), end - len(t) + len(t.rstrip()), label)
                for (start, end, label), t in zip(places, texts, strict=True)
            ]
        )
    ours = [[(s.start, s.end, s.label) for s in reading.spans] for reading in engine.read(TEXTS)]
    assert ours == theirs
    assert sum(map(len, ours)) > 50, "the texts do hold entities"


def test_whatever_is_masked_makes_its_point_private(detector: Detector) -> None:
    for detection in detector.detect(TEXTS):
        assert set(detection.strict) <= set(detection.conservative)
        assert list(detection.strict) == sorted(set(detection.strict))
        assert list(detection.conservative) == sorted(set(detection.conservative))


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [
        ("My name is Anna Smith and I live here.", "PERSON", "Anna Smith"),
        ("You can write to john.doe@example.co.uk today.", "EMAIL_ADDRESS", "john.doe@example.co.uk"),
        ("My social security number is 536-22-8726.", "US_SSN", "536-22-8726"),
        (
            "I live at 12 Oak Street, Springfield, IL 62704.",
            "STREET_ADDRESS",
            "12 Oak Street, Springfield, IL 62704",
        ),
        ("the address is aa:bb:cc:dd:ee:ff here", "MAC_ADDRESS", "aa:bb:cc:dd:ee:ff"),
        ("connect to fe::ab please", "IP_ADDRESS", "fe::ab"),
        ("my code is QWERTYUIOP", "IDENTIFIER", "QWERTYUIOP"),
        ("card 4111 1111 1111 1111", "CREDIT_CARD", "4111 1111 1111 1111"),
    ],
)
def test_by_example(detector: Detector, text: str, label: str, value: str) -> None:
    (detection,) = detector.detect([text])
    assert value in {text[s.start : s.end] for s in detection.strict if s.label == label}


def test_the_engines_readings_are_joined() -> None:
    detector = with_engines(Finder("Anna"), Finder("Oslo", "LOCATION"))
    (found,) = detector.detect(["Anna in Oslo"])
    assert found.strict == (
        Span(0, 4, "PERSON", 0.9, "finder"),
        Span(8, 12, "LOCATION", 0.9, "finder"),
    )


WORDS = [f"qu{number}zor and Zi{number}gar met in Ve{number}dan." for number in range(300)]


def grown_by(engine: Any, nlp: Any) -> tuple[int, int]:
    """How much the string store and the vocabulary grow with texts full of new words."""
    engine.read(["warm up"])
    before = len(nlp.vocab.strings), sum(1 for _ in nlp.vocab)
    for start in range(0, len(WORDS), 50):
        engine.read(WORDS[start : start + 50])
    return len(nlp.vocab.strings) - before[0], sum(1 for _ in nlp.vocab) - before[1]


def test_memory_stays_flat(tagger_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = TaggerEngine(TaggerSettings(models=(str(tagger_folder),)), "en")
    spacys = SpacyEngine(SpacySettings(), "en")
    for engine, nlp in ((ours, ours._taggers[0]._nlp), (spacys, spacys.nlp)):
        assert grown_by(engine, nlp) == (0, 0)
        # sabotage: without the zone, the check sees every new word
        with monkeypatch.context() as patch:
            patch.setattr(type(nlp), "memory_zone", lambda self: contextlib.nullcontext())
            strings, lexemes = grown_by(engine, nlp)
        assert min(strings, lexemes) > 800

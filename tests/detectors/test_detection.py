"""Detection is a function of the text alone, and what cannot be detected fails alone and aloud."""

from __future__ import annotations

import copy
import logging
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import Detection, Detector, DetectSettings, Reading
from redactory.detectors.detector import ENGINE_ERROR, TOO_LONG
from redactory.detectors.settings import ConservativeSettings
from redactory.detectors.spacy_ner import SpacyNer
from tests.detectors.detector_texts import TEXTS


def with_settings(detector: Detector, **changes: Any) -> Detector:
    """The same engines under other settings of batching and length."""
    other = copy.copy(detector)
    other._settings = detector._settings.model_copy(update=changes)
    return other


@pytest.fixture(scope="module")
def alone(detector: Detector) -> dict[str, Reading]:
    """What the engines read in each text when it comes alone."""
    return {text: detector.read([text])[0] for text in TEXTS}


def same_in_batches(detector: Detector, alone: dict[str, Reading], texts: Sequence[str], size: int) -> bool:
    """Whether every span and every probability is bit for bit that of the text alone."""
    readings = [r for i in range(0, len(texts), size) for r in detector.read(texts[i : i + size])]
    return readings == [alone[text] for text in texts]


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("seed", [None, 1, 2])
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
    true_read = SpacyNer.read

    def read(self: SpacyNer, texts: Sequence[str]) -> Any:
        for doc, spans, plain in true_read(self, texts):
            yield doc, spans, tuple((s, e, p + 1e-16 * len(texts)) for s, e, p in plain)

    monkeypatch.setattr(SpacyNer, "read", read)
    assert not same_in_batches(detector, alone, TEXTS, 7)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_detections_come_in_order_from_any_iterable(detector: Detector, size: int) -> None:
    expected = [next(iter(detector.detect([text]))) for text in TEXTS[:20]]
    other = with_settings(detector, batch_size=size)
    assert list(other.detect(iter(TEXTS[:20]))) == expected
    assert list(other.detect([])) == []


def test_our_decoding_is_spacys(detector: Detector) -> None:
    ours = [doc for doc, _, _ in SpacyNer(detector._nlp).read(TEXTS)]
    theirs = list(detector._nlp.pipe(TEXTS))
    entities = [[(e.start_char, e.end_char, e.label_) for e in doc.ents] for doc in ours]
    assert entities == [[(e.start_char, e.end_char, e.label_) for e in doc.ents] for doc in theirs]
    assert sum(map(len, entities)) > 50, "the texts do hold entities"


def test_spans_lie_in_their_text_and_scores_are_probabilities(alone: dict[str, Reading]) -> None:
    for text, reading in alone.items():
        assert reading.failure is None
        for span in reading.spans:
            assert 0 <= span.start < span.end <= len(text)
            assert 0 <= span.score <= 1
            assert span.detector in ("spacy", "presidio")
            assert (
                span.detector == "presidio"
                or text[span.start : span.end].strip() == text[span.start : span.end]
            )
        for start, end, plain in reading.plain:
            assert 0 <= start < end <= len(text)
            assert 0 <= plain <= 1
    assert len(alone["Yes."].plain) == 2


def test_whatever_is_masked_makes_its_point_private(detector: Detector) -> None:
    detections = dict(zip(TEXTS, detector.detect(TEXTS), strict=True))
    for detection in detections.values():
        assert set(detection.strict) <= set(detection.conservative)
        assert list(detection.strict) == sorted(set(detection.strict))
        assert list(detection.conservative) == sorted(set(detection.conservative))
    assert detections["Is this seat taken?"] == Detection()


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


def test_a_text_that_is_too_long_fails_and_its_neighbours_do_not(detector: Detector) -> None:
    limit = with_settings(detector, max_chars=20)
    texts = ["x" * 20, "x" * 21, "Yes.", "Anna " * 10, "😀" * 20, "😀" * 21]
    found = list(limit.detect(texts))
    assert [d.failure for d in found] == [None, TOO_LONG, None, TOO_LONG, None, TOO_LONG]
    assert all(d == Detection(failure=TOO_LONG) for d in found if d.failure)
    assert found[2] == next(iter(detector.detect(["Yes."])))


def test_a_text_that_breaks_the_tokenizer_fails_alone(detector: Detector, alone: dict[str, Reading]) -> None:
    broken = "a lone surrogate \ud800 of Anna Smith"
    texts = [*TEXTS[:5], broken, *TEXTS[5:12], broken]
    readings = detector.read(texts)
    assert [r.failure for r in readings] == [ENGINE_ERROR if t == broken else None for t in texts]
    assert [r for t, r in zip(texts, readings, strict=True) if t != broken] == [alone[t] for t in TEXTS[:12]]
    assert list(detector.detect([broken])) == [Detection(failure=ENGINE_ERROR)]


@pytest.mark.parametrize("engine", ["_ner", "_patterns"])
def test_an_engine_that_raises_on_one_text_fails_that_text_only(
    detector: Detector, alone: dict[str, Reading], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    true_read = getattr(detector, engine).read

    def read(given: Any) -> Any:
        texts = given if isinstance(given, list) else [given.text]
        if TEXTS[2] in texts:
            raise RuntimeError(f"cannot read {texts}")
        return true_read(given)

    monkeypatch.setattr(getattr(detector, engine), "read", read)
    readings = detector.read(TEXTS[:6])
    assert [r.failure for r in readings] == [None, None, ENGINE_ERROR, None, None, None]
    assert all(r == alone[t] for t, r in zip(TEXTS[:6], readings, strict=True) if r.failure is None)
    assert readings[2] == Reading(failure=ENGINE_ERROR)


def test_everything_is_everything(blank: Detector) -> None:
    settings = DetectSettings(
        model="blank:en", conservative=ConservativeSettings(flags_everything=True, rules=())
    )
    cautious = Detector(settings)
    assert all(d.conservative for t, d in zip(TEXTS, cautious.detect(TEXTS), strict=True) if t)
    assert not all(d.conservative for t, d in zip(TEXTS, blank.detect(TEXTS), strict=True) if t)


def logged(monkeypatch: pytest.MonkeyPatch, detector: Detector, texts: list[str]) -> str:
    """All that any logger hands to a handler, at the most talkative level, while ``texts`` are detected."""
    said: list[str] = []

    def record(self: logging.Logger, entry: logging.LogRecord) -> None:
        said.append(f"{entry.name} {entry.getMessage()} {entry.exc_info} {entry.__dict__}")

    monkeypatch.setattr(logging.Logger, "callHandlers", record)
    loggers = [logging.getLogger(name) for name in [None, *logging.root.manager.loggerDict]]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        logger.manager._clear_cache()
    logging.getLogger("anything").debug("heard")
    list(detector.detect(texts))
    for logger in loggers:
        logger.manager._clear_cache()
    return "\n".join(said)


TALKATIVE = [
    "My zanzibarish social security number is 536-22-8726, zanzibarish.",
    "zanzibarish \ud800",
    "zanzibarish " * 3000,
    "Mail zanzibarish@example.org or https://zanzibarish.com, card 4111 1111 1111 1111",
]


def test_no_log_line_carries_text(monkeypatch: pytest.MonkeyPatch, detector: Detector) -> None:
    said = logged(monkeypatch, detector, TALKATIVE)
    assert "heard" in said
    assert not [word for word in ("zanzibar", "8726", "4111", "social") if word in said]


def test_presidio_left_alone_would_be_heard(monkeypatch: pytest.MonkeyPatch, detector: Detector) -> None:
    """Sabotage: without the filter, the check above hears the context words."""
    monkeypatch.setattr(logging.getLogger("presidio-analyzer"), "filters", [])
    assert "social" in logged(monkeypatch, detector, TALKATIVE)


OFFLINE = """
import socket, sys
asked = []
def refuse(*a, **k):
    asked.append("asked")
    raise OSError("no network here")
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = socket.socket.connect = refuse
from redactory.detectors import Detector, DetectSettings
(found,) = Detector(DetectSettings(model="blank:en")).detect(["Write to jo@example.co.uk now."])
print(len(asked), sorted({s.label for s in found.strict}))
"""


def test_no_host_is_resolved(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split(maxsplit=1)[0] == "0"
    assert "EMAIL_ADDRESS" in done.stdout
    assert list(tmp_path.iterdir()) == [], "and no cache is left in the user's home"

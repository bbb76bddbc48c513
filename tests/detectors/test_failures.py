"""What cannot be detected fails alone and aloud, and no message, log or look-up gives a text away."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import CustomRecognizer, Detection, Detector, DetectSettings, EngineOutput, Span
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, TOO_LONG, NonEntityScore
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import PatternSettings
from redactory.redaction import mask_intervals
from tests.detectors.support import TEXTS, Finder, analyzer_of, with_engines, with_settings


def test_a_text_that_is_too_long_fails_and_its_neighbours_do_not(blank: Detector) -> None:
    limit = with_settings(blank, max_chars=20)
    texts = ["x" * 20, "x" * 21, "Yes.", "Anna " * 10, "😀" * 20, "😀" * 21]
    found = list(limit.detect(texts))
    assert [d.failure for d in found] == [None, TOO_LONG, None, TOO_LONG, None, TOO_LONG]
    assert all(d == Detection(failure=TOO_LONG) for d in found if d.failure)
    assert found[2] == next(iter(blank.detect(["Yes."])))


def test_a_text_that_breaks_the_tokenizer_fails_alone(detector: Detector, alone: dict[str, EngineOutput]) -> None:
    broken = "a lone surrogate \ud800 of Anna Smith"
    texts = [*TEXTS[:5], broken, *TEXTS[5:12], broken]
    readings = detector.run_engines(texts)
    assert [r.failure for r in readings] == [ENGINE_ERROR if t == broken else None for t in texts]
    assert [r for t, r in zip(texts, readings, strict=True) if t != broken] == [alone[t] for t in TEXTS[:12]]
    assert list(detector.detect([broken])) == [Detection(failure=ENGINE_ERROR)]


def test_an_engine_that_raises_on_one_text_fails_that_text_only(
    detector: Detector, alone: dict[str, EngineOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in detector._window_engines:

        def read(texts: Sequence[str], true_read: Any = engine.read) -> list[EngineOutput]:
            if TEXTS[2] in texts:
                raise RuntimeError(f"cannot read {texts}")
            return true_read(texts)  # type: ignore[no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(engine, "read", read)
            readings = detector.run_engines(TEXTS[:6])
            (detection,) = detector.detect([TEXTS[2]])
        assert [r.failure for r in readings] == [None, None, ENGINE_ERROR, None, None, None]
        assert all(r == alone[t] for t, r in zip(TEXTS[:6], readings, strict=True) if r.failure is None)
        assert readings[2] == EngineOutput(failure=ENGINE_ERROR), "and nothing of the message is kept"
        assert detection == Detection(failure=ENGINE_ERROR)


class Sloppy(Finder):
    """Breaks the promise of an engine where a text holds ``bad``, in the batch and alone."""

    def __init__(self, answer: Any) -> None:
        super().__init__("Anna")
        self.answer = answer

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        readings = super().read(texts)
        if any("bad" in text for text in texts):
            return self.answer(texts, readings)  # type: ignore[no-any-return]
        return readings


def replaced(reading: EngineOutput) -> Any:
    """An answer in which the bad texts get ``reading``."""
    return lambda texts, readings: [reading if "bad" in t else r for t, r in zip(texts, readings, strict=True)]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (lambda texts, readings: readings[:-1], ENGINE_ERROR),
        (lambda texts, readings: [*readings, EngineOutput()], ENGINE_ERROR),
        (lambda texts, readings: iter(readings), ENGINE_ERROR),
        (lambda texts, readings: None, ENGINE_ERROR),
        (replaced(EngineOutput((Span(0, 8, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(EngineOutput((Span(-1, 2, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(EngineOutput((Span(2, 2, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(EngineOutput(non_entity_scores=(NonEntityScore(5, 99, 1.0, "x"),))), MISALIGNED),
        (replaced(EngineOutput(non_entity_scores=(NonEntityScore(0, 3, float("nan"), "x"),))), ENGINE_ERROR),
        (replaced(EngineOutput((Span(0, 3, "PERSON", float("inf"), "x"),))), ENGINE_ERROR),
        (replaced(EngineOutput(failure="pattern_timeout")), "pattern_timeout"),
    ],
)
def test_an_engine_that_breaks_its_promise_fails_closed(answer: Any, failure: str) -> None:
    texts = ["Anna is", "bad one", "it is Anna", "nobody"]
    sound = list(with_engines(Finder("is"), Finder("Anna")).detect(texts))
    assert [len(d.strict) for d in sound] == [2, 0, 2, 0]
    for detector in (with_engines(Finder("is"), Sloppy(answer)), with_engines(Finder("is"), whole=[Sloppy(answer)])):
        found = list(detector.detect(texts))
        assert found == [sound[0], Detection(failure=failure), *sound[2:]]


def logged(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> str:
    """All that any logger hands to a handler, at the most talkative level, during ``work``."""
    said: list[str] = []

    def record(self: logging.Logger, entry: logging.LogRecord) -> None:
        said.append(f"{entry.name} {entry.getMessage()} {entry.exc_info} {entry.__dict__}")

    monkeypatch.setattr(logging.Logger, "callHandlers", record)
    loggers = [logging.getLogger(name) for name in [None, *logging.root.manager.loggerDict]]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        logger.manager._clear_cache()
    logging.getLogger("anything").debug("heard")
    work()
    for logger in loggers:
        logger.manager._clear_cache()
    return "\n".join(said)


TALKATIVE = [
    "My zanzibarish social security number is 536-22-8726, zanzibarish.",
    "zanzibarish \ud800",
    "zanzibarish " * 3000,
    "Mail zanzibarish@example.org or https://zanzibarish.com, card 4111 1111 1111 1111",
]


def test_nothing_that_is_said_carries_text(
    monkeypatch: pytest.MonkeyPatch, detector: Detector, capfd: pytest.CaptureFixture[str]
) -> None:
    said = logged(monkeypatch, lambda: list(detector.detect(TALKATIVE)))
    assert "heard" in said
    said += "".join(capfd.readouterr())
    assert not [word for word in ("zanzibar", "8726", "4111", "social") if word in said]


def test_what_presidios_analyzer_logs_would_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the check above hears what Presidio says of a text where nobody silences it."""
    analyzed = analyzer_of(PatternEngine(PatternSettings(recognizers=("UsSsnRecognizer",)), "en"))
    monkeypatch.setattr(logging.getLogger("presidio-analyzer"), "filters", [])
    said = logged(monkeypatch, lambda: analyzed(TALKATIVE[0]))
    assert "social" in said


OFFLINE = """
import socket, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # what is not needed, and slow to load
asked = []
def refuse(*a, **k):
    asked.append("asked")
    raise OSError("no network here")
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = socket.socket.connect = refuse
from redactory.detectors import Detector, DetectSettings
text = "Write to jo@example.co.uk at shop.example.org now."
(found,) = Detector(DetectSettings(tagger=None, spacy=None)).detect([text])
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


def masked(detector: Detector, text: str) -> str:
    (detection,) = detector.detect([text])
    assert detection.failure is None
    return mask_intervals(text, ((span.start, span.end) for span in detection.strict))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        # a longer and a shorter hit of one place, hits side by side, and hits that overlap in part
        ("Call 212-555-0187 x44 now", "Call <MASK> now"),
        ("see https://www.example.museum/a?b=1 there", "see <MASK> there"),
        ("12 Oak Street, Springfield, IL 62704 is it", "<MASK> is it"),
        ("card 4111 1111 1111 1111 2222 is hers", "card <MASK> is hers"),
        ("IBAN GB82 WEST 1234 5698 7654 33, yes", "IBAN <MASK>, yes"),
        ("12/03/1980 10:15:00 or so", "<MASK> or so"),
        ("mail john.o'hara+x@sub.example.co.uk!", "mail <MASK>!"),
        ("id 123e4567-e89b-12d3-a456-426614174000.", "id <MASK>."),
        # Presidio drops numbers whose check digit is wrong; a mistyped number is a secret all the same
        ("card 4111 1111 1111 1112", "card <MASK>"),
        ("it is DE89 3704 0044 0532 0130 01.", "it is <MASK>."),
        ("it is 123-45-6789.", "it is <MASK>."),
        ("it is root@localhost.localdomain.", "it is <MASK>."),
        ("it is 123e4567-e89b-02d3-a456-426614174000.", "it is <MASK>."),
        # by its place and not by its word
        ("42 met 142, aged 42, of 4242", "42 met 142, aged <MASK>, of 4242"),
    ],
)
def test_hits_are_masked_whole_and_by_place(blank: Detector, text: str, left: str) -> None:
    assert masked(blank, text) == left


def test_partly_overlapping_hits_are_masked_as_one() -> None:
    custom = (
        CustomRecognizer(name="One", label="ONE", patterns={"alpha beta": 0.5, "beta gamma": 0.4}),
        CustomRecognizer(name="Two", label="TWO", patterns={"gamma delt": 0.3, "amma": 0.9}),
    )
    both = Detector(DetectSettings(tagger=None, spacy=None, patterns=PatternSettings(custom=custom)))
    assert masked(both, "so alpha beta gamma delta it is") == "so <MASK>a it is"
    assert masked(both, "gammadelta") == "g<MASK>delta"

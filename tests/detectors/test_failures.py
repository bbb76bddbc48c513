"""What cannot be detected fails alone and aloud, and no message, log or look-up gives a text away."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import Detection, Detector, Reading, Span
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, TOO_LONG, Plain
from tests.detectors.detector_texts import TEXTS
from tests.detectors.finder import Finder, with_engines, with_settings


def test_a_text_that_is_too_long_fails_and_its_neighbours_do_not(blank: Detector) -> None:
    limit = with_settings(blank, max_chars=20)
    texts = ["x" * 20, "x" * 21, "Yes.", "Anna " * 10, "😀" * 20, "😀" * 21]
    found = list(limit.detect(texts))
    assert [d.failure for d in found] == [None, TOO_LONG, None, TOO_LONG, None, TOO_LONG]
    assert all(d == Detection(failure=TOO_LONG) for d in found if d.failure)
    assert found[2] == next(iter(blank.detect(["Yes."])))


def test_a_text_that_breaks_the_tokenizer_fails_alone(detector: Detector, alone: dict[str, Reading]) -> None:
    broken = "a lone surrogate \ud800 of Anna Smith"
    texts = [*TEXTS[:5], broken, *TEXTS[5:12], broken]
    readings = detector.read(texts)
    assert [r.failure for r in readings] == [ENGINE_ERROR if t == broken else None for t in texts]
    assert [r for t, r in zip(texts, readings, strict=True) if t != broken] == [alone[t] for t in TEXTS[:12]]
    assert list(detector.detect([broken])) == [Detection(failure=ENGINE_ERROR)]


def test_an_engine_that_raises_on_one_text_fails_that_text_only(
    detector: Detector, alone: dict[str, Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in detector._windowed:

        def read(texts: Sequence[str], true_read: Any = engine.read) -> list[Reading]:
            if TEXTS[2] in texts:
                raise RuntimeError(f"cannot read {texts}")
            return true_read(texts)  # type: ignore[no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(engine, "read", read)
            readings = detector.read(TEXTS[:6])
            (detection,) = detector.detect([TEXTS[2]])
        assert [r.failure for r in readings] == [None, None, ENGINE_ERROR, None, None, None]
        assert all(r == alone[t] for t, r in zip(TEXTS[:6], readings, strict=True) if r.failure is None)
        assert readings[2] == Reading(failure=ENGINE_ERROR), "and nothing of the message is kept"
        assert detection == Detection(failure=ENGINE_ERROR)


class Sloppy(Finder):
    """Breaks the promise of an engine where a text holds ``bad``, in the batch and alone."""

    def __init__(self, answer: Any) -> None:
        super().__init__("Anna")
        self.answer = answer

    def read(self, texts: Sequence[str]) -> list[Reading]:
        readings = super().read(texts)
        if any("bad" in text for text in texts):
            return self.answer(texts, readings)  # type: ignore[no-any-return]
        return readings


def replaced(reading: Reading) -> Any:
    """An answer in which the bad texts get ``reading``."""
    return lambda texts, readings: [
        reading if "bad" in t else r for t, r in zip(texts, readings, strict=True)
    ]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (lambda texts, readings: readings[:-1], ENGINE_ERROR),
        (lambda texts, readings: [*readings, Reading()], ENGINE_ERROR),
        (lambda texts, readings: iter(readings), ENGINE_ERROR),
        (lambda texts, readings: None, ENGINE_ERROR),
        (replaced(Reading((Span(0, 8, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(Reading((Span(-1, 2, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(Reading((Span(2, 2, "PERSON", 1.0, "x"),))), MISALIGNED),
        (replaced(Reading(plain=(Plain(5, 99, 1.0, "x"),))), MISALIGNED),
        (replaced(Reading(plain=(Plain(0, 3, float("nan"), "x"),))), ENGINE_ERROR),
        (replaced(Reading((Span(0, 3, "PERSON", float("inf"), "x"),))), ENGINE_ERROR),
        (replaced(Reading(failure="pattern_timeout")), "pattern_timeout"),
    ],
)
def test_an_engine_that_breaks_its_promise_fails_closed(answer: Any, failure: str) -> None:
    texts = ["Anna is", "bad one", "it is Anna", "nobody"]
    sound = list(with_engines(Finder("is"), Finder("Anna")).detect(texts))
    assert [len(d.strict) for d in sound] == [2, 0, 2, 0]
    for detector in (
        with_engines(Finder("is"), Sloppy(answer)),
        with_engines(Finder("is"), whole=[Sloppy(answer)]),
    ):
        found = list(detector.detect(texts))
        assert found == [sound[0], Detection(failure=failure), *sound[2:]]


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


def test_an_engine_that_logs_its_text_would_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the check above hears an engine that quotes what it reads."""

    class Chatty(Finder):
        def read(self, texts: Sequence[str]) -> list[Reading]:
            logging.getLogger("chatty").debug("reading %s", texts)
            return super().read(texts)

    assert "zanzibar" in logged(monkeypatch, with_engines(Chatty("x")), TALKATIVE)


OFFLINE = """
import socket, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # what is not needed, and slow to load
asked = []
def refuse(*a, **k):
    asked.append("asked")
    raise OSError("no network here")
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = socket.socket.connect = refuse
from redactory.detectors import Detector, DetectSettings
(found,) = Detector(DetectSettings(tagger=None, spacy=None)).detect(["Write to jo@example.co.uk now."])
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

"""Known holes of pattern recognizers, each closed: nothing half masked, nothing said aloud, no host asked."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from redactory.detectors import CustomRecognizer, Detection, Detector, DetectSettings
from redactory.detectors.engine import TIMEOUT
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import ListSettings, PatternSettings, WordList
from redactory.redaction import mask
from tests.detectors.pattern_oracle import analyzer_of


def detector_of(*custom: CustomRecognizer, deny: tuple[str, ...] = ()) -> Detector:
    lists = ListSettings(deny=(WordList(words=deny),)) if deny else None
    patterns = PatternSettings(custom=custom)
    return Detector(DetectSettings(tagger=None, spacy=None, patterns=patterns, lists=lists))


def masked(detector: Detector, text: str) -> str:
    (detection,) = detector.detect([text])
    assert detection.failure is None
    return mask(text, ((span.start, span.end) for span in detection.strict))


@pytest.fixture(scope="module")
def patterns() -> Detector:
    return detector_of()


def test_a_time_out_is_a_failure_and_no_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presidio_analyzer.pattern_recognizer.REGEX_TIMEOUT_SECONDS", 0.02)
    slow = detector_of(CustomRecognizer(name="Slow", label="SLOW", patterns={"(x+x+)+y": 0.5}))
    assert list(slow.detect(["x" * 5_000])) == [Detection(failure=TIMEOUT)]


SECRETS = (
    "My friend Quibblethorpe's social security number is 536-22-8726.",
    "Zanzibarra pays by card 4111 1111 1111 1111, account number 98765432, DE89370400440532013000",
    "write to wigglesworth.frobnitz@example.co.uk or https://frobnitz.example.com/page",
    "Frobnitz lives at 12 Oak Street, Springfield, IL 62704, aged 42, phone 212-555-0187",
    "GB00WEST12345698765433 is no valid code of Snorkelbank",
)
WORDS = frozenset(
    word
    for text in SECRETS
    for word in text.replace(",", " ").replace("'", " ").replace(".", " ").split()
    if len(word) > 3
)


class _Everything(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said += (record.getMessage(), repr(record.args), str(record.exc_info))


@pytest.fixture
def everything_said() -> Iterator[list[str]]:
    """All that any logger says, at the lowest level, whatever handlers it has."""
    handler = _Everything()
    names = [None, *logging.root.manager.loggerDict]
    loggers = [logging.getLogger(name) for name in {*names, "presidio-analyzer", "decision_process", "spacy"}]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
        logger.addHandler(handler)
    yield handler.said
    for logger, level, disabled in before:
        logger.setLevel(level)
        logger.disabled = disabled
        logger.removeHandler(handler)


def test_no_word_of_a_text_is_logged_at_the_lowest_level(
    patterns: Detector, everything_said: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    found = list(patterns.detect(SECRETS))
    assert all(d.strict for d in found)
    assert detector_of(deny=("Zanzibarra",)).read(SECRETS)
    printed = capfd.readouterr()
    said = "\n".join([*everything_said, printed.out, printed.err]).lower()
    assert [word for word in WORDS if word.lower() in said] == []


def test_presidios_analyzer_would_log_them(everything_said: list[str]) -> None:
    """Sabotage: the recorder hears what Presidio says where nobody silences it."""
    from presidio_analyzer.app_tracer import AppTracer

    engine = PatternEngine(PatternSettings(recognizers=("UsSsnRecognizer",)), "en")
    logger = logging.getLogger("presidio-analyzer")
    filters, logger.filters = logger.filters, []
    try:
        analyzed = analyzer_of(engine)(SECRETS[0])
        AppTracer().trace("id", str(analyzed) + SECRETS[0])
    finally:
        logger.filters = filters
    said = "\n".join(everything_said).lower()
    assert "context list is: " in said
    assert "social" in said
    assert "quibblethorpe" in said


NESTED = (
    # a longer and a shorter hit of one place, hits side by side, and hits that overlap in part
    ("Call 212-555-0187 x44 now", "Call <MASK> now"),
    ("see https://www.example.museum/a?b=1 there", "see <MASK> there"),
    ("12 Oak Street, Springfield, IL 62704 is it", "<MASK> is it"),
    ("card 4111 1111 1111 1111 2222 is hers", "card <MASK> is hers"),
    ("IBAN GB82 WEST 1234 5698 7654 33, yes", "IBAN <MASK>, yes"),
    ("12/03/1980 10:15:00 or so", "<MASK> or so"),
    ("mail john.o'hara+x@sub.example.co.uk!", "mail <MASK>!"),
    ("id 123e4567-e89b-12d3-a456-426614174000.", "id <MASK>."),
)


@pytest.mark.parametrize(("text", "told"), NESTED)
def test_nested_and_overlapping_hits_leave_no_tail(patterns: Detector, text: str, told: str) -> None:
    assert masked(patterns, text) == told


def test_partly_overlapping_hits_are_masked_as_one() -> None:
    both = detector_of(
        CustomRecognizer(name="One", label="ONE", patterns={"alpha beta": 0.5, "beta gamma": 0.4}),
        CustomRecognizer(name="Two", label="TWO", patterns={"gamma delt": 0.3, "amma": 0.9}),
    )
    assert masked(both, "so alpha beta gamma delta it is") == "so <MASK>a it is"
    assert masked(both, "gammadelta") == "g<MASK>delta"


def test_masking_is_by_place_and_not_by_word() -> None:
    detector = detector_of(CustomRecognizer(name="Names", label="PERSON", patterns={r"\bMark\b": 0.9}))
    text = "Marketing met Mark today, and Marks & Mark's markets"
    assert masked(detector, text) == "Marketing met <MASK> today, and Marks & <MASK>'s markets"
    assert masked(detector, "42 met 142, aged 42, of 4242") == "42 met 142, aged <MASK>, of 4242"


def test_no_host_is_asked_for_an_e_mail_address_or_a_link(
    patterns: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    fresh = detector_of()
    for loaded in (patterns, fresh):
        assert masked(loaded, "to a.b@example.co.uk at shop.example.org") == "to <MASK> at <MASK>"


def test_context_raises_a_score_without_a_lemmatizer(patterns: Detector) -> None:
    (reading,) = patterns.read(["My social security number: 536-22-8726"])
    assert [s.score for s in reading.spans if s.label == "US_SSN"] == [0.85]


def test_an_invalid_checksum_does_not_unmask_what_has_the_form(patterns: Detector) -> None:
    """Presidio drops numbers whose check digit is wrong; a mistyped number is a secret all the same."""
    for text in (
        "card 4111 1111 1111 1112",
        "DE89 3704 0044 0532 0130 01",
        "123-45-6789",
        "root@localhost.localdomain",
        "123e4567-e89b-02d3-a456-426614174000",
    ):
        assert masked(patterns, f"it is {text}.").removeprefix("it is ").removeprefix("card ") == "<MASK>."

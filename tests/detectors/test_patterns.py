"""Presidio's patterns: the trigger loses nothing, context counts, a time-out shows, mistakes are named."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from redactory.detectors import CustomRecognizer, Detection, Detector, DetectSettings, Span, presidio_patterns
from redactory.detectors.detector import TIMEOUT
from redactory.detectors.presidio_patterns import TRIGGER, PatternTimeout, PresidioPatterns
from redactory.foundation.errors import ConfigurationError
from tests.detectors.detector_texts import TEXTS

ALWAYS = re.compile("")
OLD_TRIGGER = re.compile(r"\d|@|://|\w\.\w")
"""An earlier trigger, which let hardware and IPv6 addresses without a digit and long capitals through."""


def hits(detector: Detector, text: str, trigger: re.Pattern[str]) -> list[Span]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presidio_patterns, "TRIGGER", trigger)
        return detector._patterns.read(detector._nlp.make_doc(text))


def loses(detector: Detector, trigger: re.Pattern[str]) -> list[str]:
    """The texts where a trigger hides a hit."""
    return [text for text in TEXTS if hits(detector, text, trigger) != hits(detector, text, ALWAYS)]


def test_the_trigger_loses_nothing(blank: Detector) -> None:
    assert loses(blank, TRIGGER) == []
    assert sum(bool(hits(blank, text, TRIGGER)) for text in TEXTS) > 12
    assert sum(not TRIGGER.search(text) for text in TEXTS) > 12, "and it does spare work"


def test_a_trigger_that_loses_hits_is_found(blank: Detector) -> None:
    assert len(loses(blank, OLD_TRIGGER)) >= 4


PIECES = [
    *"aA:-/.+()_'=%éßЖא字😀²½Ⅷx",
    "be",
    "AB",
    "QWER",
    "face",
    "com",
    "www",
    "http",
    "JAN",
    "APO",
    "ext",
    "phone",
]
UNTRIGGERED = st.lists(
    st.sampled_from([*PIECES, " ", "\n"])
    | st.characters(exclude_categories=["Cs"]),
    max_size=24,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(UNTRIGGERED)
@example("a:b:c:d:e:f")
@example("deadbeef-dead-beef-dead-beefdeadbeef")
@example("http:// .com")
@example("ABCDEFG")
def test_without_a_trigger_there_is_no_hit(blank: Detector, text: str) -> None:
    assume(not TRIGGER.search(text))
    assert hits(blank, text, ALWAYS) == []


def scores(detector: Detector, text: str, label: str) -> list[float]:
    (reading,) = detector.read([text])
    return [s.score for s in reading.spans if s.label == label]


def test_context_words_raise_a_score(blank: Detector, detector: Detector) -> None:
    for loaded in (blank, detector):
        (plain,) = scores(loaded, "it says 536-22-8726 there", "US_SSN")
        (told,) = scores(loaded, "My social security number: 536-22-8726", "US_SSN")
        assert told >= plain + 0.3


def test_without_lemmas_context_would_say_nothing(blank: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: lemmas as a pipeline without a lemmatizer leaves them."""
    true_artifacts = PresidioPatterns._artifacts

    def bare(self: PresidioPatterns, doc: Any) -> Any:
        artifacts = true_artifacts(self, doc)
        artifacts.lemmas, artifacts.keywords = ["" for _ in doc], []
        return artifacts

    monkeypatch.setattr(PresidioPatterns, "_artifacts", bare)
    (told,) = scores(blank, "My social security number: 536-22-8726", "US_SSN")
    assert told == 0.5


def own(**fields: Any) -> CustomRecognizer:
    return CustomRecognizer(**{"name": "Own", "label": "BADGE", **fields})


def detector_of(*custom: CustomRecognizer, **fields: Any) -> Detector:
    return Detector(DetectSettings(model="blank:en", custom=custom, **fields))


def test_own_recognizers_see_every_text() -> None:
    loaded = detector_of(own(patterns={r"\bblue [a-z]+": 0.4}, context=("badge",)), own(deny_list=("Zorg",)))
    texts = ["my badge is blue heron", "say blue heron", "Zorg was here", "zorgs were not", "nothing"]
    found = [
        [(text[s.start : s.end], s.score) for s in r.spans]
        for text, r in zip(texts, loaded.read(texts), strict=True)
    ]
    assert found == [[("blue heron", 0.75)], [("blue heron", 0.4)], [("Zorg", 1.0)], [], []]


def test_a_recognizer_beyond_the_defaults_sees_every_text() -> None:
    loaded = detector_of(recognizers=("SgFinRecognizer",))
    assert [r.name for r in loaded._patterns._always.registry.recognizers] == ["SgFinRecognizer"]


SLOW, BAIT = "(x+x+)+y", "x" * 5000


@pytest.fixture
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presidio_analyzer.pattern_recognizer.REGEX_TIMEOUT_SECONDS", 0.02)


@pytest.fixture(params=["as it is", "disabled", "logger disabled", "level", "filter"])
def _logging(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever an application does to logging, a time-out must be seen."""
    logger = logging.getLogger("presidio-analyzer")

    def nothing(_: logging.LogRecord) -> bool:
        return False

    if request.param == "disabled":
        logging.disable(logging.CRITICAL)
    elif request.param == "logger disabled":
        logger.disabled = True
    elif request.param == "level":
        logger.setLevel(logging.CRITICAL)
    elif request.param == "filter":
        logger.filters.insert(0, nothing)
    yield
    logging.disable(logging.NOTSET)
    logger.disabled = False
    logger.setLevel(logging.NOTSET)
    logger.removeFilter(nothing)


@pytest.mark.usefixtures("_short_patience", "_logging")
def test_a_pattern_that_does_not_end_is_a_failure_of_its_text() -> None:
    loaded = detector_of(own(patterns={SLOW: 0.5}))
    badge = Span(0, 3, "BADGE", 0.5, "presidio")
    assert list(loaded.detect(["xxy", BAIT, "hello", BAIT + "1"])) == [
        Detection((badge,), (badge,)),
        Detection(failure=TIMEOUT),
        Detection(),
        Detection(failure=TIMEOUT),
    ]


@pytest.mark.usefixtures("_short_patience")
def test_a_time_out_is_seen_by_an_older_detector_too() -> None:
    older = detector_of(own(patterns={SLOW: 0.5}))
    newer = detector_of(own(patterns={SLOW: 0.5}))
    assert [d.failure for loaded in (older, newer) for d in loaded.detect([BAIT])] == [TIMEOUT, TIMEOUT]


@pytest.mark.usefixtures("_short_patience")
def test_a_time_out_of_a_shipped_pattern_is_seen(blank: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "presidio_analyzer.predefined_recognizers.generic.iban_recognizer.REGEX_TIMEOUT_SECONDS", 0
    )
    with pytest.raises(PatternTimeout):
        blank._patterns.read(blank._nlp.make_doc("DE89370400440532013000"))


SECRET = "hunter-secret"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"recognizers": ("NoSuchRecognizer",)}, "no 'NoSuchRecognizer'"),
        ({"recognizers": ("__name__",)}, "no '__name__'"),
        ({"recognizers": ("EntityRecognizer2",)}, "no 'EntityRecognizer2'"),
        ({"recognizers": ("AzureAILanguageRecognizer",)}, "AzureAILanguageRecognizer"),
        ({"custom": (own(),)}, "'Own' has neither"),
        ({"custom": (own(patterns={f"({SECRET}": 0.5}),)}, "'Own', pattern 1 is no regular expression"),
        ({"custom": (own(patterns={"fine": 0.5, f"*{SECRET}": 0.5}),)}, "'Own', pattern 2"),
        ({"custom": (own(patterns={SECRET: 1.5}),)}, "between 0 and 1"),
    ],
)
def test_a_mistake_is_named_and_no_pattern_quoted(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)) as caught:
        detector_of(**fields) if "custom" not in fields else detector_of(*fields["custom"])
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("model", ["no_such_model_at_all", "/no/such/folder", "json", "..", ""])
def test_a_model_that_is_not_here(model: str) -> None:
    with pytest.raises(ConfigurationError, match=r"detect\.model"):
        Detector(DetectSettings(model=model))


def test_presidios_own_dialect_is_taken() -> None:
    (detection,) = detector_of(own(patterns={r"\bq\p{Lu}+\b": 0.5})).detect(["say qÉ now"])
    assert Span(4, 6, "BADGE", 0.5, "presidio") in detection.conservative

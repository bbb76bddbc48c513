"""The pattern engine: what Presidio's analyzer finds, found faster; time-outs seen, mistakes named."""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from redactory.detectors import CustomRecognizer, Detection, Detector, DetectSettings, Span
from redactory.detectors.engine import TIMEOUT, EngineOutput
from redactory.detectors.patterns import PatternEngine, load_tokenizer
from redactory.detectors.recognizers import create_recognizers, list_custom_labels, load_builtin_recognizers
from redactory.detectors.settings import PatternSettings
from redactory.detectors.triggers import compute_traits, split_words
from redactory.foundation.errors import ConfigurationError
from tests.detectors.pattern_texts import FOUND, PLAIN, unmarked
from tests.detectors.support import NASTY, TEXTS, Found, analyzer_of, found_by

WRITTEN = [*PLAIN, *(unmarked(text)[0] for texts in FOUND.values() for text in texts)]
AWKWARD = [
    "aaa:bbb:card:4111111111111111",
    "the:the card: 4111 1111 1111 1111 the",
    "card" + " the" * 30 + " 4111111111111111",
    "4111111111111111 card",
    "ssn:536-22-8726 social  security 536 22 8726",
    "٠١٢٣٤٥٦٧٨٩ phone ٢١٢٥٥٥٠١٨٧",
    "PAſſPORT no. 912803456, LİCENCE H12345678, KARD 4111111111111111",
    "2125550187x12 +12125550187 0012125550187 1 int 345 #12",
    "a@b.co,c@d.org;e@f.localhost 'http://x.com/y' \"www.z.net\"",
    "Call 212-555-0187/212-555-0199 or (212) 555-0100 ext 5",
    "A-Z]]1234 ]]12 x]]99",
    "2021-03-04T15:33:22.5Z 3/14 03/2021 31.12.99 1-JAN JAN-21",
    "::1 fe80::1%eth0/64 ::ffff:10.0.0.1 1:2:3:4:5:6:7:8 00-1A-2B-3C-4D-5E 0012.3456.789A",
    "1BoatSLRHtKNngkdXEeobR76b53LETtpyT bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
]


@pytest.fixture(scope="module")
def analyzed(engine: PatternEngine) -> Callable[[str], Found]:
    return analyzer_of(engine)


def test_the_hits_are_those_of_presidios_analyzer(engine: PatternEngine, analyzed: Callable[[str], Found]) -> None:
    texts = [*TEXTS, *NASTY, *AWKWARD, *WRITTEN]
    texts += [text.upper() for text in WRITTEN[::3]] + [text.swapcase() for text in WRITTEN[1::3]]
    for text in texts:
        assert found_by(engine, text) == analyzed(text)
    assert sum(bool(found_by(engine, text)) for text in texts) > 200


@pytest.mark.parametrize("separator", ["\n", "\n\n", " and ", ", ", "; ", " / "])
def test_neighbouring_coordinates_take_no_digit_from_each_other(engine: PatternEngine, separator: str) -> None:
    """The degrees of a coordinate once counted as the seconds of the one before it."""
    places = [unmarked(text)[0] for text in FOUND["IDENTIFIER"] if "°" in text and re.search("\\d.*\\d", text)]
    assert len(places) > 8
    for first, second in itertools.permutations(places, 2):
        text = f"{first}{separator}{second}"
        [output] = engine.read([text])
        hidden = {place for span in output.spans for place in range(span.start, span.end)}
        assert not [place for place, letter in enumerate(text) if letter.isdigit() and place not in hidden], text


LEXICON_WORDS = sorted(
    {word for one in load_builtin_recognizers() for form in one.forms.values() for word in form.trigger.words}
)
PIECE = (
    st.sampled_from([*WRITTEN, *AWKWARD])
    | st.sampled_from(LEXICON_WORDS)
    | st.text("0123456789 -./:()+@#xXABab", max_size=16)
    | st.sampled_from([" ", "\n", "ſ", "K", "İ", "²", "½", "é", "\u00a0", "’", ":", "the", "number"])
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECE, max_size=5), st.sampled_from(["", " ", ":", ", ", "\n"]), st.randoms(use_true_random=False))
@example(["born", "in:1980"], "", random.Random(0))
def test_the_hits_are_those_of_presidios_analyzer_on_any_text(
    engine: PatternEngine, analyzed: Callable[[str], Found], pieces: list[str], seam: str, rnd: random.Random
) -> None:
    text = seam.join(pieces)
    for _ in range(rnd.randint(0, 3)):
        at = rnd.randint(0, len(text))
        text = text[:at] + rnd.choice(["", "1", "A", "-", " "]) + text[at + rnd.randint(0, 2) :]
    assert found_by(engine, text) == analyzed(text)


def test_triggers_spare_work(engine: PatternEngine) -> None:
    traits = [compute_traits(text) for text in WRITTEN]
    runners = [runner for runner in engine.runners if runner.patterns]
    ran = sum(
        runner.trigger.fires(t) and any(trigger.fires(t) for trigger, *_ in runner.patterns or ())
        for t in traits
        for runner in runners
    )
    assert 0 < ran < 0.3 * len(WRITTEN) * len(runners)


@pytest.mark.parametrize("pattern", ["strasse", "passport", "öre", "σας", "kilo"])
def test_words_are_equal_where_expressions_hold_letters_equal(pattern: str) -> None:
    letters = {
        letter: [chr(c) for c in range(0x2FFFF) if not 0xD800 <= c < 0xE000 and one.fullmatch(chr(c))]
        for letter in set(pattern)
        for one in [regex.compile(f"(?i:{letter})")]
    }
    for position, letter in enumerate(pattern):
        for other in letters[letter]:
            text = f"x, {pattern[:position]}{other}{pattern[position + 1 :]}. y"
            assert split_words(pattern) <= split_words(text)


def score_of(engine: PatternEngine, text: str, label: str) -> float:
    (score,) = (score for _, _, found, score in found_by(engine, text) if found == label)
    return score


def test_context_words_raise_a_score_without_a_lemmatizer(engine: PatternEngine) -> None:
    assert score_of(engine, "it says 536-22-8726 there", "US_SSN") == 0.5
    assert score_of(engine, "My social security number: 536-22-8726", "US_SSN") == 0.85


@pytest.mark.parametrize("language", ["de", "xx", "ja", "qq"])
def test_a_language_without_a_tokenizer_here_takes_the_general_one(language: str) -> None:
    (reading,) = PatternEngine(PatternSettings(), language).read(["social security 536-22-8726"])
    assert Span(16, 27, "US_SSN", 0.85, "presidio") in reading.spans


def test_the_tokenizers_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    load_tokenizer.cache_clear()
    engine = PatternEngine(PatternSettings(recognizers=()), "en")
    fresh = len(engine._nlp.vocab.strings)
    monkeypatch.setattr("redactory.detectors.patterns.MAX_STRINGS", fresh + 500)
    most = 0
    for number in range(2_000):
        engine.build_context(f"word{number}").get_nearby_keywords(0)
        most = max(most, len(engine._nlp.vocab.strings))
    assert most < fresh + 600


def own(**fields: Any) -> CustomRecognizer:
    return CustomRecognizer(**{"name": "Own", "label": "BADGE", **fields})


def detector_of(*custom: CustomRecognizer, **fields: Any) -> Detector:
    return Detector(DetectSettings(tagger=None, spacy=None, patterns=PatternSettings(custom=custom, **fields)))


def test_own_recognizers_see_every_text() -> None:
    loaded = detector_of(own(patterns={r"\bblue [a-z]+": 0.4}, context=("badge",)), own(patterns={"Zorg": 1}))
    texts = ["my badge is blue heron", "say blue heron", "Zorg was here", "they were not", "nothing"]
    found = [
        [(text[s.start : s.end], s.score) for s in r.spans]
        for text, r in zip(texts, loaded.run_engines(texts), strict=True)
    ]
    assert found == [[("blue heron", 0.75)], [("blue heron", 0.4)], [("Zorg", 1.0)], [], []]


def test_a_recognizer_may_need_a_word_of_its_context() -> None:
    def found(text: str, **fields: Any) -> list[tuple[str, float]]:
        loaded = detector_of(own(patterns={r"\b[A-Z]\d{3}\b": 0.4, "Z999": 1.0}, context=("badge",), **fields))
        [output] = loaded.run_engines([text])
        return [(text[s.start : s.end], s.score) for s in output.spans if s.label == "BADGE"]

    for near, far in (("her badge is K123", "her gate is K123"), ("Badges: Z999", "gates: Z999")):
        assert found(near, require_context=True) == found(near) != []
        assert found(far, require_context=True) == []
        assert found(far) != []
    for context in ((), (" ",)):
        with pytest.raises(ValidationError, match="require_context needs words in context"):
            own(patterns={"x": 1.0}, context=context, require_context=True)


def test_a_recognizer_beyond_the_defaults_sees_every_text() -> None:
    engine = PatternEngine(PatternSettings(recognizers=("SgFinRecognizer",)), "en")
    assert found_by(engine, "S1234567D") == analyzer_of(engine)("S1234567D")
    assert "SG_NRIC_FIN" in {label for _, _, label, _ in found_by(engine, "S1234567D")}


FILE = """
recognizers:
  - name: Badges
    supported_entity: BADGE
    supported_languages: [{language: en, context: [badge]}, {language: de}]
    patterns: [{name: birds, regex: 'blue [a-z]+', score: 0.05}]
  - name: Words
    supported_language: en
    supported_entity: CODENAME
    deny_list: [Zorg, Glarb]
  - name: Poorly scored
    supported_entity: FISH
    score_thresholds: {default: 0.5}
    patterns:
      - {name: fish, regex: '\\btrout\\b', score: 0.4}
      - {name: more, regex: '\\bred trout\\b', score: 0.6}
  - name: Off
    enabled: false
    supported_entity: NEVER
    deny_list: [never]
  - name: UsNpiRecognizer
    type: predefined
    supported_languages: [en]
  - InPanRecognizer
"""


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[[str], str]:
    def write(content: str) -> str:
        path = tmp_path / "own.yaml"
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


def test_a_file_in_presidios_form_is_taken_as_it_is(yaml_file: Callable[[str], str]) -> None:
    settings = PatternSettings(recognizers=(), files=(yaml_file(FILE),))
    engine = PatternEngine(settings, "en")
    analyzed = analyzer_of(engine)
    texts = ["my badge: blue heron", "BLUE heron", "Zorg, glarb, never", "a trout and a red trout", "ABCPD1234E"]
    for text in texts:
        assert found_by(engine, text) == analyzed(text)
    labels = [
        {label for _, _, label, _ in found_by(engine, text)} & {"BADGE", "CODENAME", "FISH", "IN_PAN"} for text in texts
    ]
    assert labels == [{"BADGE"}, {"BADGE"}, {"CODENAME"}, {"FISH"}, {"IN_PAN"}]
    assert (2, 7, "FISH") not in {(start, end, label) for start, end, label, _ in found_by(engine, texts[3])}
    assert list_custom_labels(settings, "en") == ("BADGE", "CODENAME", "FISH", "IN_PAN", "US_NPI")
    assert list_custom_labels(settings, "de") == ("BADGE", "FISH", "IN_PAN")
    (german,) = PatternEngine(settings, "de").read(["blue heron, Zorg"])
    assert [span.label for span in german.spans] == ["BADGE"]


def test_the_identity_tells_of_a_files_content(yaml_file: Callable[[str], str]) -> None:
    settings = PatternSettings(files=(yaml_file(FILE),))
    before = PatternEngine.collect_fingerprint(settings, "en")
    yaml_file(FILE.replace("0.05", "0.06"))
    assert before == {**PatternEngine.collect_fingerprint(settings, "en"), "files": before["files"]}
    assert before["files"] != PatternEngine.collect_fingerprint(settings, "en")["files"]


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


@pytest.mark.usefixtures("_short_patience")
def test_a_pattern_that_does_not_end_is_a_failure_of_its_text() -> None:
    loaded = detector_of(own(patterns={SLOW: 0.5}), recognizers=())
    found = list(loaded.detect(["xxy", BAIT, "hello", BAIT]))
    assert found[1] == found[3] == Detection(failure=TIMEOUT)
    assert [d.failure for d in found] == [None, TIMEOUT, None, TIMEOUT]
    assert found[0].strict == (Span(0, 3, "BADGE", 0.5, "presidio"),)


@pytest.mark.usefixtures("_logging")
def test_a_time_out_inside_presidio_is_seen_by_an_older_engine_too(
    engine: PatternEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = PatternEngine(PatternSettings(recognizers=("IbanRecognizer",)), "en")
    for module in ("pattern_recognizer", "predefined_recognizers.generic.iban_recognizer"):
        monkeypatch.setattr(f"presidio_analyzer.{module}.REGEX_TIMEOUT_SECONDS", 0)
    texts = ["DE89370400440532013000", "Yes."]
    assert engine.read(texts) == newer.read(texts) == [EngineOutput(failure=TIMEOUT), EngineOutput()]


SECRET = "hunter-secret"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"recognizers": ("NoSuchRecognizer",)}, "no 'NoSuchRecognizer'"),
        ({"recognizers": ("__name__",)}, "no '__name__'"),
        ({"recognizers": ("EntityRecognizers",)}, "no 'EntityRecognizers'"),
        ({"recognizers": ("AzureAILanguageRecognizer",)}, "AzureAILanguageRecognizer"),
        ({"recognizers": ("SpacyRecognizer",)}, "'SpacyRecognizer' cannot be created (not a pattern"),
        ({"custom": (own(),)}, "'Own' has no patterns"),
        ({"custom": (own(patterns={f"({SECRET}": 0.5}),)}, "'Own', pattern 1: invalid regular"),
        ({"custom": (own(patterns={"fine": 0.5, f"*{SECRET}": 0.5}),)}, "'Own', pattern 2"),
        ({"custom": (own(patterns={SECRET: 1.5}),)}, "between 0 and 1"),
        ({"custom": (own(patterns={"(" * 5_000 + SECRET + ")" * 5_000: 0.5}),)}, "'Own', pattern 1"),
    ],
)
def test_a_mistake_is_named_and_no_pattern_quoted(fields: dict[str, Any], told: str) -> None:
    for mistaken in (create_recognizers, PatternEngine):
        with pytest.raises(ConfigurationError, match=re.escape(told)) as caught:
            mistaken(PatternSettings(**fields), "en")
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("recognizers: [", "own.yaml is not a YAML file"),
        ("- name: x", "own.yaml is not a YAML file"),
        ("other: 1", "own.yaml is not a YAML file"),
        ("recognizers: 3", "own.yaml has no list 'recognizers'"),
        ("recognizers: []", "own.yaml has no enabled recognizer for 'en'"),
        (
            FILE.replace("'blue [a-z]+'", f"'({SECRET}'"),
            "own.yaml, recognizer 1 ('Badges'): patterns.0.regex: invalid regular expression at character",
        ),
        (
            FILE.replace("'blue [a-z]+'", f"'{'(' * 5_000}{SECRET}{')' * 5_000}'"),
            "patterns.0.regex: this regular expression has too many nested parentheses",
        ),
        (FILE.replace("0.6", "6"), "recognizer 3 ('Poorly scored'): patterns.1.score: must be at most 1, got 6"),
        (FILE.replace("[Zorg, Glarb]", SECRET), "('Words'): deny_list: expected a list like [one, two], got a string"),
        (FILE.replace("deny_list: [Zorg", "denylist: [Zorg"), "recognizer 2 ('Words'): Presidio cannot create it"),
        (FILE.replace("regex: '\\btrout\\b', ", ""), "('Poorly scored'): patterns.0.regex: "),
        (FILE.replace("- InPan", "- 3 #"), "recognizer 6 ('3'): Presidio cannot create it"),
        (FILE.replace("InPanRecognizer", "NoSuchRecognizer"), "own.yaml, recognizer 6 ('NoSuchRecognizer')"),
        (FILE.replace("InPanRecognizer", "SpacyRecognizer"), "Presidio cannot create it (not a pattern"),
        (FILE.replace("supported_entity: CODENAME", "fish: 1"), "('Words'): Presidio cannot create it"),
    ],
)
def test_a_files_mistake_names_the_file_and_the_recognizer(
    yaml_file: Callable[[str], str], content: str, told: str
) -> None:
    file = yaml_file(content)
    with pytest.raises(ConfigurationError, match=re.escape(told)) as caught:
        create_recognizers(PatternSettings(files=(file,)), "en")
    assert file in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_presidios_own_dialect_is_taken() -> None:
    (detection,) = detector_of(own(patterns={r"\bq\p{Lu}+\b": 0.5})).detect(["say qÉ now"])
    assert Span(4, 6, "BADGE", 0.5, "presidio") in detection.conservative

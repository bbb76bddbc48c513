"""Detectors of engines that find what they are told to."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redactory.detectors import Detector, DetectSettings, EngineOutput, Span
from redactory.detectors.engine import Engine
from redactory.detectors.patterns import PatternEngine, load_tokenizer
from redactory.detectors.settings import FitSettings
from redactory.detectors.tagger import LabelledText

OFF: dict[str, Any] = {"tagger": None, "spacy": None, "patterns": None}
"""No engine at all."""


def with_settings(detector: Detector, **changes: Any) -> Detector:
    """The same engines under other settings of batching, length and case."""
    other = copy.copy(detector)
    other._settings = detector._settings.model_copy(update=changes)
    return other


def with_engines(*engines: Engine, whole: Sequence[Engine] = (), **changes: Any) -> Detector:
    """A detector of these engines, without rules; those in ``whole`` read long texts whole."""
    settings = {**OFF, "conservative": {"rules": []}, **changes}
    other = Detector(DetectSettings.model_validate(settings))
    other._window_engines, other._whole_text_engines = list(engines), list(whole)
    return other


class Finder:
    """An engine that finds an expression, and keeps the sizes of the batches that it was handed."""

    def __init__(self, expression: str, label: str = "PERSON") -> None:
        self.expression, self.label = re.compile(expression), label
        self.batches: list[list[str]] = []

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        self.batches.append(list(texts))
        return [
            EngineOutput(tuple(Span(*m.span(), self.label, 0.9, "finder") for m in self.expression.finditer(text)))
            for text in texts
        ]


# Texts that break tokenizers.


NASTY = (
    "I don't know Anna, she's gonna leave",
    "😀 Anna 👨‍👩‍👧 Maria!!",
    "\u200fAnna\u200e lives\u202e in Oslo",
    "مرحبا يا أحمد في دمشق",
    "\u200b",
    "An\u200bna",
    "\x00 Anna \x07\x00",
    "cafe\u0301 José ﬁne ½ 株式会社",
    "\x1f\x1c Anna\x85\u2028Robert\u00a0\u3000",
    "Anna\r\n\r\nRobert\n\tOslo \n",
    "x" * 1_000 + " Anna",
    "(" * 400 + "'" * 400,
    "a\u0301" * 200,
    "[SEP] Anna [PAD] <s> </s> [UNK] ##na ▁ Ġ",
    "<MASK> lives in <MASK>",
)

EMPTY = ("", " ", "\n", " \t\r\n\u00a0\u3000\u2028")


def covered_by(reading: EngineOutput, text: str) -> bool:
    """Whether the scored tokens leave out nothing but white space, in order, and spans lie on them."""
    reached = 0
    for start, end, probability, _ in reading.non_entity_scores:
        if not (reached <= start < end <= len(text) and 0 <= probability <= 1):
            return False
        if text[reached:start].strip():
            return False
        reached = end
    starts, ends = {p.start for p in reading.non_entity_scores}, {p.end for p in reading.non_entity_scores}
    whole = all(s.start in starts and s.end in ends and 0 <= s.score <= 1 for s in reading.spans)
    return whole and not text[reached:].strip()


def alone(readings: Iterable[EngineOutput]) -> EngineOutput:
    """The one reading of a batch of one."""
    (reading,) = readings
    return reading


# Presidio's own analyzer with the recognizers of a pattern engine.


Found = list[tuple[int, int, str, float]]


def analyzer_of(engine: PatternEngine, language: str = "en") -> Callable[[str], Found]:
    """What ``AnalyzerEngine.analyze`` finds, with lower-cased words for lemmas."""
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpArtifacts, SpacyNlpEngine

    nlp = load_tokenizer(language)
    loaded: Any = SpacyNlpEngine(models=[{"lang_code": language, "model_name": "loaded"}])
    loaded.nlp = {language: nlp}
    registry = RecognizerRegistry(
        recognizers=[step.recognizer for step in engine.runners], supported_languages=[language]
    )
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=loaded, supported_languages=[language])

    def found(text: str) -> Found:
        doc = nlp.make_doc(text)
        artifacts = NlpArtifacts(
            entities=[],
            tokens=doc,
            tokens_indices=[token.idx for token in doc],
            lemmas=[token.lower_ for token in doc],
            nlp_engine=loaded,
            language=language,
        )
        hits = analyzer.analyze(text, language, nlp_artifacts=artifacts)
        return sorted((h.start, h.end, h.entity_type, round(h.score, 6)) for h in hits)

    return found


def found_by(engine: PatternEngine, text: str) -> Found:
    """What the engine itself finds."""
    (reading,) = engine.read([text])
    assert reading == EngineOutput(reading.spans)
    return [(s.start, s.end, s.label, s.score) for s in reading.spans]


# Sentences of many kinds; none of the people, numbers or places in them is real.


TEXTS = [
    "Hello, how can I help you today?",
    "My name is Anna Smith and I live at 12 Oak Street, Springfield, IL 62704.",
    "My social security number is 536-22-8726.",
    "You can write to john.doe@example.co.uk or call (212) 555-0187.",
    "The order AB12CD34 was shipped on March 3rd, 2021 to Berlin.",
    "Please pay 1,250.00 dollars to DE89370400440532013000.",
    "card: 4111 1111 1111 1111, exp 05/27",
    "the server is at 192.168.1.17, its hardware address aa:bb:cc:dd:ee:ff",
    "aa:bb:cc:dd:ee:ff",
    "connect to fe::ab please",
    "My code is QWERTYUIOP.",
    "I waited...in the rain",
    "See https://example.com/a?b=c and www.example.org.",
    "id 123e4567-e89b-12d3-a456-426614174000",
    "Dr. Maria Garcia-Lopez moved from Paris to New York in 1999.",
    "I'm fine, thanks; I'll call O'Brien on Tuesday.",
    "MICROSOFT AND APPLE ANNOUNCED A DEAL WITH THE UNITED NATIONS.",
    "barack obama went to london with angela merkel",
    "Is this seat taken?",
    "Yes.",
    "ok",
    "?",
    "",
    " ",
    "\n\n\t",
    "\u200b",
    "😀",
    "👨‍👩‍👧‍👦 We love you, Emma! 🎉",
    "שלום, קוראים לי דוד ואני גר בתל אביב.",
    "اسمي محمد وأعيش في القاهرة، رقمي ٠١٢٣٤٥٦٧٨٩",
    "我叫王小明,住在北京。",
    "Москва — столица России.",
    "e\u0301cole de Zoe\u0308 a\u0300 Lyon",
    "ﬁnance ½ ② ⅷ ᴬ",
    "x" * 300,
    "a-b_c/d\\e#f|g~h`i^j",
    "<MASK> said that <MASK> would come.",
    "   leading and trailing   spaces   ",
    "line one\nline two by Peter Parker\r\nline three",
    "He paid $5 in May; she paid €7 in June; they paid £9 in July.",
    "The patient's NHS number is 943 476 5919, licence BB1388568.",
    "passport 912803456 and driver licence H12345678",
    "1 2 3 4 5 6 7 8 9 10",
    "U.S.A. vs. U.K., Inc. and Ltd.",
    "“Quoted,” said Jane. ‘Single,’ said Joe.",
    "A sentence without any name, number or place in it, only plain words.",
    "To be, or not to be, that is the question. " * 40,
    "Anna met Bob in Rome. Bob met Carl in Oslo. " * 30,
]

SMALL_FIT = FitSettings(start=None, epochs=3, learning_rate=1e-2, seed=1)
"""A tagger that learns :func:`labelled_texts` in about a second."""

GIVEN = ["Anna", "Maria", "Carla", "Robert", "Peter", "Susan", "Emma", "Oliver"]
FAMILY = ["Smith", "Miller", "Garcia", "Kowalski", "Brown", "Lopez", "Nowak", "Stone"]
TOWNS = ["Paris", "Berlin", "Oslo", "Lyon", "Boston", "Madrid", "Vienna", "Dublin"]
CLAUSES = [
    "the weather is fine today",
    "please call me back later",
    "I would like to return my order",
    "thank you for your help",
    "it does not work any more",
    "can you check the status of it",
]


def labelled_texts(count: int, seed: int) -> list[LabelledText]:
    """Distinct sentences of a few forms with a person, a place, a code or nothing to hide in them."""
    draw = random.Random(seed)
    rows: dict[str, LabelledText] = {}
    while len(rows) < count:
        row = _labelled_text(draw)
        rows[row.text] = row
    return list(rows.values())


def _labelled_text(draw: random.Random) -> LabelledText:
    clause, number = draw.choice(CLAUSES), draw.randrange(1000)
    secret, label, before, after = draw.choice(
        [
            (f"{draw.choice(GIVEN)} {draw.choice(FAMILY)}", "PERSON", "My name is ", f", {clause}."),
            (draw.choice(TOWNS), "LOCATION", f"I live in house {number} in ", f" and {clause}."),
            (f"{number:03}-{draw.randrange(9999):04}", "IDENTIFIER", "The code is ", f"; {clause}."),
            ("", "", f"{clause.capitalize()}, ", f"{draw.choice(CLAUSES)} and {draw.choice(CLAUSES)}."),
        ]
    )
    spans = ((len(before), len(before) + len(secret), label),) if secret else ()
    return LabelledText(before + secret + after, spans)

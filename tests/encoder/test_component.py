"""The tagger as a spaCy component: tokens get the most sensitive of their pieces, and other programs can load it."""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
from presidio_analyzer.nlp_engine import NerModelConfiguration, NlpEngineProvider, SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import SpacyRecognizer
from spacy.tokens import Doc

from redactory.detectors.settings import TaggerSettings
from redactory.detectors.tagger import TaggerEngine
from redactory.detectors.tagger.engine import DEFAULT_FOLDER
from redactory.detectors.tagger.head import FACTORY, MAX_UNKNOWN_PROBABILITY, Head, align_probabilities, load_head
from redactory.encoder import EncodedText, load_encoder
from redactory.encoder.model import OVERLAP
from redactory.foundation.errors import ConfigurationError

load_default_engine = functools.cache(lambda: TaggerEngine(TaggerSettings(), "en"))
HEAD = Head(("O", "PERSON", "IDENTIFIER"), np.eye(3, dtype=np.float32) * 4, np.zeros(3, np.float32))


def encoded(ranges: list[tuple[int, int]], columns: list[int], known: list[bool] | None = None) -> EncodedText:
    """Pieces whose most probable label is that of ``columns``."""
    vectors = np.eye(3, dtype=np.float32)[columns].reshape(-1, 3)
    is_known = np.array(known if known is not None else [True] * len(ranges))
    return EncodedText(np.array(ranges, np.int64).reshape(-1, 2), is_known, vectors)


def tokens(*ranges: tuple[int, int]) -> NDArray[np.int64]:
    return np.array(ranges, np.int64).reshape(-1, 2)


@given(st.data())
def test_a_token_has_the_row_of_its_most_sensitive_piece(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    cuts = st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set[int]())
    parts = [sorted({0, length, *data.draw(cuts)}) for _ in "tp"]
    token_ranges, piece_ranges = ([*pairwise(part)] for part in parts)
    columns = data.draw(st.lists(st.integers(0, 2), min_size=len(piece_ranges), max_size=len(piece_ranges)))
    output = encoded(piece_ranges, columns)
    rows = HEAD.compute_probabilities(output.vectors)
    result = align_probabilities("a" * length, tokens(*token_ranges), output, HEAD)
    for (start, end), row in zip(token_ranges, result, strict=True):
        inside = [n for n, (first, last) in enumerate(piece_ranges) if first < end and start < last]
        assert row[0] == min(rows[n][0] for n in inside)
        assert any((row == rows[n]).all() for n in inside)


def test_a_token_that_nothing_read_is_sensitive() -> None:
    result = align_probabilities("a ☃", tokens((0, 1), (2, 3)), encoded([(0, 1)], [0]), HEAD)
    assert result[0, 0] > 0.9
    assert result[1].tolist() == [0, 0, 1]
    assert align_probabilities("\x00", tokens((0, 1)), encoded([], []), HEAD)[0, 0] == 0
    assert align_probabilities("", tokens(), encoded([], []), HEAD).shape == (0, 3)


def test_letters_that_the_encoder_does_not_know_are_never_surely_harmless() -> None:
    known, unknown = (
        align_probabilities("𐰀", tokens((0, 1)), encoded([(0, 1)], [0], [k]), HEAD) for k in (True, False)
    )
    assert known[0, 0] > 0.9
    assert unknown[0, 0] == 0.5
    assert unknown.sum() == pytest.approx(1)
    sign = align_probabilities("☃", tokens((0, 1)), encoded([(0, 1)], [0], [False]), HEAD)
    assert sign[0, 0] > 0.9


def test_any_spacy_program_loads_the_tagger() -> None:
    nlp = spacy.load(DEFAULT_FOLDER)
    assert nlp.pipe_names == [FACTORY]
    found = [(entity.text, entity.label_) for entity in nlp("Please call Anna Kowalska in Hamburg.").ents]
    assert found == [("Anna Kowalska", "PERSON"), ("Hamburg", "LOCATION")]
    texts = ["Ruf Peter Weber an.", "", "Nothing here."]
    assert [[e.text for e in doc.ents] for doc in nlp.pipe(texts)] == [["Peter Weber"], [], []]


MIXED = [
    "My name is Anna Kowalska.",
    "",
    " \n",
    "Привет, меня зовут Анна Иванова, I live in Berlin.",
    "東京のOlga Petrova",
    "𐰀𐰁 x\u200b",
    "Mary met John in Boston. " * 60,
]


@settings(max_examples=10)
@given(st.permutations(range(len(MIXED))))
def test_a_text_is_read_alike_alone_and_in_any_batch_and_order(order: list[int]) -> None:
    engine = load_default_engine()
    outputs = engine.read([MIXED[number] for number in order])
    for number, output in zip(order, outputs, strict=True):
        assert [output] == engine.read([MIXED[number]])


@pytest.mark.parametrize("offset", range(8))
def test_a_name_at_the_seam_of_two_windows_is_found(offset: int) -> None:
    """The seam lies half the overlap before the end of the first window; the name slides across it."""
    encoder = load_encoder()
    filler = "it does not work any more and we wait . " * 60
    ends = encoder.encode(filler).ranges[:, 1]
    seam = encoder.window - OVERLAP // 2
    place = filler.rindex(" ", 0, int(ends[seam - offset])) + 1
    text = f"{filler[:place]}please call Katarzyna Wiśniewska {filler[place:]}"
    first = encoder.encode(text).ranges[:, 0].searchsorted(text.index("Katarzyna"))
    assert abs(first - seam) < 12
    (output,) = load_default_engine().read([text])
    found = [text[span.start : span.end] for span in output.spans if span.score >= 0.5]
    assert found == ["Katarzyna Wiśniewska"]


@pytest.mark.parametrize("text", ["𐰀𐰁𐰂", "we met 𐰀𐰁𐰂 there", "ask 𓀀𓀁 today", "ᚠᚢᚦ is here", "x\U000f0000y"])
def test_letters_that_the_tokenizer_does_not_know_make_a_text_private(text: str) -> None:
    encoded = load_encoder().encode(text)
    unknown = [place for place, known in zip(encoded.ranges.tolist(), encoded.is_known, strict=True) if not known]
    assert unknown
    (output,) = load_default_engine().read([text])
    for start, end in unknown:
        if any(map(str.isalnum, text[start:end])):
            inside = [t.probability for t in output.non_entity_scores if t.start < end and start < t.end]
            assert inside
            assert max(inside) <= MAX_UNKNOWN_PROBABILITY


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Меня зовут Анна Иванова and my friend is Peter Weber.", ["Анна Иванова", "Peter Weber"]),
        ("Please call Γιώργος Παπαδόπουλος or John Smith.", ["Γιώργος Παπαδόπουλος", "John Smith"]),
    ],
)
def test_names_in_two_scripts_of_one_sentence_are_found(text: str, names: list[str]) -> None:
    (output,) = load_default_engine().read([text])
    assert {text[s.start : s.end] for s in output.spans if s.score >= 0.5} >= set(names)


def test_the_component_joins_another_pipeline(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    component: Any = nlp.add_pipe(FACTORY, config={"threshold": 0.9})
    with pytest.raises(ConfigurationError, match="has no head"):
        nlp("Anna")
    component.from_disk(DEFAULT_FOLDER / FACTORY)
    assert [e.label_ for e in nlp("My name is Anna Kowalska.").ents] == ["PERSON"]
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    doc: Doc = again("My name is Anna Kowalska.")
    assert [e.text for e in doc.ents] == ["Anna Kowalska"]


def test_presidio_finds_names_with_the_tagger() -> None:
    configuration = {
        "nlp_engine_name": "spacy",
        "models": [{"lang_code": "de", "model_name": str(DEFAULT_FOLDER)}],
        "ner_model_configuration": {"model_to_presidio_entity_mapping": {"PERSON": "PERSON", "LOCATION": "LOCATION"}},
    }
    engine = NlpEngineProvider(nlp_configuration=configuration).create_engine()
    artifacts = engine.process_text("Anna Kowalska wohnt in Hamburg.", "de")
    assert [(e.text, e.label_) for e in artifacts.entities] == [("Anna Kowalska", "PERSON"), ("Hamburg", "LOCATION")]


def test_presidio_analyzes_with_the_tagger() -> None:
    """A whole analyzer on ``SpacyNlpEngine``: the tagger's entities become results, offsets and all."""
    mapping = {"PERSON": "PERSON", "LOCATION": "LOCATION"}
    nlp_engine = SpacyNlpEngine(
        models=[{"lang_code": "en", "model_name": str(DEFAULT_FOLDER)}],
        ner_model_configuration=NerModelConfiguration(model_to_presidio_entity_mapping=mapping),
    )
    registry = RecognizerRegistry(recognizers=[SpacyRecognizer()], supported_languages=["en"])
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=nlp_engine, supported_languages=["en"])
    text = "Please call Anna Kowalska in Hamburg."
    results = sorted(analyzer.analyze(text, "en"), key=lambda result: result.start)
    assert [(text[r.start : r.end], r.entity_type) for r in results] == [
        ("Anna Kowalska", "PERSON"),
        ("Hamburg", "LOCATION"),
    ]


def test_a_head_for_another_encoder_is_refused(tmp_path: Path) -> None:
    nlp = spacy.load(DEFAULT_FOLDER)
    nlp.to_disk(tmp_path / "other")
    settings = tmp_path / "other" / FACTORY / "head.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"encoder": "', '"encoder": "0'), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="other: this tagger was fitted for another encoder; fit it again"):
        load_head(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="no tagger of redactory fit tagger"):
        load_head(tmp_path)

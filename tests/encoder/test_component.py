"""The tagger as a spaCy component: tokens get the most sensitive of their pieces, and other programs can load it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from presidio_analyzer.nlp_engine import NlpEngineProvider
from spacy.tokens import Doc

from redactory.detectors.tagger.component import FACTORY, Head, align_probabilities, load_head
from redactory.detectors.tagger.engine import DEFAULT_FOLDER
from redactory.encoder import EncodedText
from redactory.foundation.errors import ConfigurationError

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


def test_the_component_joins_another_pipeline(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    component = nlp.add_pipe(FACTORY, config={"threshold": 0.9})
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


def test_a_head_for_another_encoder_is_refused(tmp_path: Path) -> None:
    nlp = spacy.load(DEFAULT_FOLDER)
    nlp.to_disk(tmp_path / "other")
    settings = tmp_path / "other" / FACTORY / "head.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"encoder": "', '"encoder": "0'), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="other: this tagger was fitted for another encoder; fit it again"):
        load_head(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="no tagger of redactory fit tagger"):
        load_head(tmp_path)

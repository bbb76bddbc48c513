"""The Stanza engine, on a tagger that was trained for a second."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from spacy.tokens import Doc
from stanza.models.common.crf import CRFLoss

from redactory.detectors import stanza_ner
from redactory.detectors.engine import MISALIGNED, EngineOutput
from redactory.detectors.settings import StanzaSettings
from redactory.detectors.stanza_ner import StanzaEngine, StanzaToken, compute_marginals, decode_entities, is_aligned
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import alone


@pytest.fixture(scope="module")
def folder(models: dict[str, Path]) -> Path:
    return models["stanza"]


@pytest.fixture(scope="module")
def engine(folder: Path) -> StanzaEngine:
    return StanzaEngine(StanzaSettings(folder=str(folder)), "en")


@pytest.fixture(scope="module")
def stanza_itself(folder: Path) -> Any:
    """Stanza's own processor around the same model, untouched."""
    import stanza

    options = {"package": None, "processors": {"ner": "tiny"}, "ner_check_requirements": False}
    pipeline = stanza.Pipeline(
        "en", dir=str(folder), download_method=None, use_gpu=False, logging_level="CRITICAL", **options
    )
    return pipeline.processors["ner"]


def places(reading: EngineOutput, text: str) -> list[tuple[str, str]]:
    assert reading.failure is None
    return [(text[span.start : span.end], span.label) for span in reading.spans]


def test_plain_is_the_share_of_all_tag_sequences_that_leave_a_token_out(
    engine: StanzaEngine, stanza_itself: Any
) -> None:
    words = ["hello", "Robert", "Oslo"]
    trainer = stanza_itself.trainers[0]
    logits: list[torch.Tensor] = []
    hook = trainer.model.register_forward_hook(lambda model, inputs, output: logits.append(output[1][0]))
    stanza_itself.process(_document([words]))
    hook.remove()
    crf, tags = trainer.model.crits[0], trainer.vocab["tag"].items(0)
    expected = np.zeros(len(words))
    mask = torch.zeros(1, len(words), dtype=torch.bool)
    with torch.no_grad():
        for sequence in itertools.product(range(len(tags)), repeat=len(words)):
            probability = np.exp(-crf(logits[0], mask, torch.tensor([sequence]))[0].item())
            expected += probability * (np.array(sequence) == tags.index("O"))
    found = [p.probability for p in alone(engine.read([" ".join(words)])).non_entity_scores]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_spans_are_those_that_stanza_decodes(engine: StanzaEngine, stanza_itself: Any) -> None:
    texts = ["Anna lives in Paris .", "my friend Omar does n't like Lima", "Zebulon is late", "John Oslo Anna"]
    document = stanza_itself.process(_document([text.split() for text in texts]))
    for text, sentence in zip(texts, document.sentences, strict=True):
        expected = [(entity.text, entity.type) for entity in sentence.build_ents()]
        assert places(alone(engine.read([text])), text) == expected


def _document(sentences: list[list[str]]) -> Any:
    from stanza.models.common.doc import Document

    return Document([[{"id": i + 1, "text": w} for i, w in enumerate(words)] for words in sentences])


class Expanding:
    """A tokenizer that, like a multi-word token's expansion, gives words that do not stand in the text."""

    def __init__(self, vocab: Any, tokenizer: Any) -> None:
        self.vocab, self.tokenizer = vocab, tokenizer

    def __call__(self, text: str) -> Doc:
        return Doc(self.vocab, words=["do", "not"]) if text == "don't" else self.tokenizer(text)


def test_a_word_that_does_not_stand_in_the_text_fails_that_text_alone(
    engine: StanzaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.read(["Anna lives in Paris."])
    nlp = engine._tokenizer
    monkeypatch.setattr(nlp, "tokenizer", Expanding(nlp.vocab, nlp.tokenizer))
    readings = engine.read(["I don't know Anna", "Anna lives in Paris."])
    assert readings == [EngineOutput(failure=MISALIGNED), *before]


@pytest.mark.parametrize(
    "words",
    [
        [StanzaToken(0, 2, "ab")],
        [StanzaToken(0, 2, "ab"), StanzaToken(3, 4, "x")],
        [StanzaToken(3, 5, "cd"), StanzaToken(0, 2, "ab")],
        [StanzaToken(0, 2, "ab"), StanzaToken(1, 5, "b cd")],
        [StanzaToken(0, 2, "ab"), StanzaToken(3, 3, ""), StanzaToken(3, 4, "c")],
    ],
)
def test_words_out_of_place_are_not_aligned(words: list[StanzaToken]) -> None:
    assert is_aligned("ab cd", [StanzaToken(0, 2, "ab"), StanzaToken(3, 5, "cd")])
    assert not is_aligned("ab cd", words)


def test_lines_are_read_apart(engine: StanzaEngine) -> None:
    first, second = "Anna lives in", "Paris, thank you"
    text = f"{first}\r\n{second}"
    one, two = engine.read([first, second])
    moved = two.remap_offsets(lambda place: place + len(first) + 2)
    assert alone(engine.read([text])) == EngineOutput(
        one.spans + moved.spans, one.non_entity_scores + moved.non_entity_scores
    )


def test_an_endless_word_is_read_in_pieces(engine: StanzaEngine) -> None:
    reading = alone(engine.read(["x" * 5_000 + " Anna"]))
    assert [p.end - p.start for p in reading.non_entity_scores] == [stanza_ner.MAX_RUN_CHARS] * 50 + [4]


def _resources(folder: Path, change: Any) -> None:
    path = folder / "resources.json"
    resources = json.loads(path.read_text())
    change(resources)
    path.write_text(json.dumps(resources))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_a_package_must_be_named_where_there_are_several(copy: Path) -> None:
    shutil.copy(copy / "en/ner/tiny.pt", copy / "en/ner/other.pt")
    _resources(copy, lambda r: r["en"]["ner"].update(other={"dependencies": []}))
    with pytest.raises(ConfigurationError, match=r"detect\.stanza\.package.*other, tiny"):
        StanzaEngine(StanzaSettings(folder=str(copy)), "en")
    named = StanzaEngine(StanzaSettings(folder=str(copy), package="other"), "en")
    assert places(alone(named.read(["Anna"])), "Anna") == [("Anna", "PER")]


@pytest.mark.parametrize(
    ("spoil", "key"),
    [
        (shutil.rmtree, r"detect\.stanza\.folder.*resources\.json"),
        (lambda f: (f / "resources.json").write_text("{"), r"detect\.stanza\.folder.*resources\.json"),
        (lambda f: (f / "en/ner/tiny.pt").unlink(), r"detect\.stanza\.folder.*tiny"),
        (lambda f: (f / "en/ner/tiny.pt").write_bytes(b"no model"), r"detect\.stanza\.folder.*tiny"),
        (lambda f: _resources(f, lambda r: r.update(de=r.pop("en"))), r"detect\.stanza\.package.*none"),
    ],
)
def test_a_folder_without_the_model_is_a_configuration_error(copy: Path, spoil: Any, key: str) -> None:
    spoil(copy)
    with pytest.raises(ConfigurationError, match=key):
        StanzaEngine(StanzaSettings(folder=str(copy)), "en")


def test_a_language_without_a_tokenizer_is_a_configuration_error(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"detect\.language"):
        StanzaEngine(StanzaSettings(folder=str(folder)), "nolanguage")


@given(st.lists(st.tuples(st.sampled_from(["O", "PER", "LOC"]), st.integers(1, 4)), max_size=6))
def test_well_formed_tags_decode_as_in_stanza(runs: list[tuple[str, int]]) -> None:
    from stanza.models.ner.utils import decode_from_bioes

    tags: list[str] = []
    for kind, length in runs:
        marks = ["S"] if length == 1 else ["B", *"I" * (length - 2), "E"]
        tags += ["O"] * length if kind == "O" else [f"{mark}-{kind}" for mark in marks]
    expected = [(run["start"], run["end"] + 1, run["type"]) for run in decode_from_bioes(tags)]
    assert decode_entities(tags) == expected


# Marginals of the CRF against every tag sequence, weighed by Stanza's own loss.


Chain = tuple[NDArray[np.float64], NDArray[np.float64]]

WEIGHTS = st.floats(-30, 30, width=32)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    count, tags = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    emissions = draw(st.lists(WEIGHTS, min_size=count * tags, max_size=count * tags))
    transitions = draw(st.lists(WEIGHTS, min_size=tags * tags, max_size=tags * tags))
    return np.reshape(emissions, (count, tags)), np.reshape(transitions, (tags, tags))


@given(chains())
@settings(max_examples=40, deadline=None)
def test_marginals_are_sums_over_all_sequences(chain: tuple[NDArray[np.float64], NDArray[np.float64]]) -> None:
    emissions, transitions = chain
    count, tags = emissions.shape
    crf = CRFLoss(tags)
    crf._transitions.data = torch.tensor(transitions)
    scores, mask = torch.tensor(emissions)[None], torch.zeros(1, count, dtype=torch.bool)
    expected = np.zeros((count, tags))
    for sequence in itertools.product(range(tags), repeat=count):
        probability = np.exp(-crf(scores, mask, torch.tensor([sequence]))[0].item())
        expected[range(count), sequence] += probability
    found = compute_marginals(torch.tensor(emissions), torch.tensor(transitions))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_long_chains_with_large_weights_stay_probabilities(scale: float) -> None:
    random = np.random.default_rng(1)
    emissions, transitions = random.normal(size=(700, 9)), random.normal(size=(9, 9))
    found = compute_marginals(torch.tensor(scale * emissions), torch.tensor(scale * transitions)).numpy()
    assert np.isfinite(found).all()
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(wrong: float) -> None:
    spoilt = torch.tensor([[0.0, wrong], [0.0, 0.0]])
    for weights in ((spoilt, torch.zeros(2, 2)), (torch.zeros(2, 2), spoilt)):
        with pytest.raises(ValueError, match="finite"):
            compute_marginals(*weights)

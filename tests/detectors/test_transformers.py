"""The Hugging Face engine, on a BERT with random weights."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from redactory.detectors.engine import MISALIGNED, Capability, EngineOutput
from redactory.detectors.engine_registry import load_engines
from redactory.detectors.policy import build_policies
from redactory.detectors.settings import DetectSettings, TransformersSettings, get_kinds
from redactory.detectors.transformers_ner import TransformersEngine, WordPiece, merge_pieces
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import alone
from tests.detectors.tiny_models import bert_folder, privacy_filter_folder

LONG = "Anna lives in Paris and I don't know Robert. " * 12


def engine_of(path: Path, **changes: Any) -> TransformersEngine:
    chosen: dict[str, Any] = {"folder": str(path)} | changes
    return TransformersEngine(TransformersSettings(**chosen), "en")


@pytest.fixture(scope="module")
def folder(models: dict[str, Path]) -> Path:
    return models["transformers"]


@pytest.fixture(scope="module")
def engine(folder: Path) -> TransformersEngine:
    return engine_of(folder)


class Plainly:
    """The same folder read with transformers alone: each token's place and label probabilities."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForTokenClassification

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForTokenClassification.from_pretrained(folder).eval()

    def tokens(self, text: str, window: int, stride: int) -> list[list[tuple[int, int, list[float]]]]:
        """Windows of the text's tokens, cut by hand."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        inner, windows, first = window - 2, [], 0
        while True:
            piece = slice(first, first + inner)
            with torch.no_grad():
                logits = self.model(torch.tensor([[2, *ids[piece], 3]])).logits[0, 1:-1]
            scores = logits.double().softmax(-1).tolist()
            windows.append([(*place, row) for place, row in zip(offsets[piece], scores, strict=True)])
            if first + inner >= len(ids):
                return windows
            first += inner - stride


@pytest.fixture(scope="module")
def plainly(folder: Path) -> Plainly:
    return Plainly(folder)


@pytest.mark.parametrize("text", ["Anna lives in Paris.", "Zebulon doesn't know leatrice", LONG])
def test_every_word_takes_its_most_suspicious_piece_of_all_windows(
    engine: TransformersEngine, plainly: Plainly, text: str
) -> None:
    windows = plainly.tokens(text, engine._window, engine._stride)
    assert (len(windows) > 3) == (text is LONG)
    tokens = [token for window in windows for token in window]
    reading = alone(engine.read([text]))
    assert reading.failure is None
    for start, end, probability, _ in reading.non_entity_scores:
        inside = [row[0] for first, last, row in tokens if start <= first and last <= end]
        assert probability == pytest.approx(min(inside), rel=1e-3)
    # whatever the best label alone would tag lies in a span
    for first, last, row in tokens:
        if max(row) > row[0]:
            assert any(s.start <= first and last <= s.end for s in reading.spans)


def test_what_is_public_counts_as_plain(folder: Path, plainly: Plainly) -> None:
    engine = engine_of(folder)
    engine.treat_as_public({"LOCATION"})
    reading = alone(engine.read([LONG]))
    tokens = [t for window in plainly.tokens(LONG, engine._window, engine._stride) for t in window]
    for start, end, probability, _ in reading.non_entity_scores:
        inside = [row for first, last, row in tokens if start <= first and last <= end]
        worst = min(row[0] + row[3] + row[4] for row in inside)
        assert probability == pytest.approx(min(worst, 1.0), rel=1e-3)
    for span in reading.spans:
        words = [p.probability for p in reading.non_entity_scores if span.start <= p.start < span.end]
        assert min(words) >= 0.5 if span.label == "LOC" else max(words) < 0.5
    assert {span.label for span in reading.spans} == {"PER", "LOC"}


def test_spans_are_runs_of_suspicious_words(engine: TransformersEngine) -> None:
    reading = alone(engine.read([LONG]))
    assert {span.label for span in reading.spans} == {"PER", "LOC"}
    assert all(span.detector == "transformers" for span in reading.spans)
    for span in reading.spans:
        inside = [p.probability for p in reading.non_entity_scores if span.start <= p.start and p.end <= span.end]
        assert max(inside) < 0.5
        assert span.score == pytest.approx(1 - sum(inside) / len(inside), abs=1e-6)
    outside = [
        p for p in reading.non_entity_scores if not any(s.start <= p.start and p.end <= s.end for s in reading.spans)
    ]
    assert all(p.probability >= 0.5 for p in outside)


@pytest.mark.parametrize("dropped", ["\x00", "\u200b", "\ufffd"])
def test_a_character_that_the_tokenizer_drops_fails_its_text_alone(engine: TransformersEngine, dropped: str) -> None:
    texts = [f"Anna {dropped} lives", "Anna lives"]
    assert engine.read(texts) == [EngineOutput(failure=MISALIGNED), alone(engine.read(texts[1:]))]


def labelled_folder(folder: Path, *names: str) -> Path:
    return bert_folder(folder, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})


def capability_of(folder: Path) -> Capability:
    (capability,) = TransformersEngine.list_capabilities(TransformersSettings(folder=str(folder)), "en")
    return capability


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        ("PER O LOC", "LOC PER"),
        ("I-PER O I-LOC", "LOC PER"),
        ("O B-PER I-PER B-LOC I-LOC", "LOC PER"),
        ("O B-PER I-PER E-PER S-PER", "PER"),
        ("O B-PER I-PER L-PER U-PER", "PER"),
        ("O B_FULL_NAME I_FULL_NAME B_LOC I_LOC", "FULL_NAME LOC"),
        ("B-TOWN NAME O S-NAME L-TOWN", "NAME TOWN"),
        ("O E_MAIL I_D PER", "E_MAIL I_D PER"),
    ],
)
def test_kinds_are_labels_without_the_prefixes_of_tags(tmp_path: Path, labels: str, kinds: str) -> None:
    folder = labelled_folder(tmp_path, *labels.split())
    assert capability_of(folder).labels == set(kinds.split())
    engine = engine_of(folder)
    assert engine._kinds == kinds.split()
    assert set() != {span.label for span in alone(engine.read([LONG])).spans} <= set(kinds.split())


def test_a_model_without_a_plain_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"folder.*'O'.*L-TOWN, NAME, S-NAME, none.*id2label"):
        engine_of(labelled_folder(tmp_path, "B-TOWN", "NAME", "none", "S-NAME", "L-TOWN"))


def test_the_architecture_of_openai_s_privacy_filter_is_read(tmp_path: Path) -> None:
    folder = privacy_filter_folder(tmp_path)
    kinds = "ACCOUNT DATE EMAIL_ADDRESS PERSON PHONE_NUMBER STREET_ADDRESS URL secret"
    assert get_kinds(capability_of(folder).labels) == set(kinds.split())
    text = "Anna lives in Zoë's 😀 house. " * 9
    engine = engine_of(folder)
    assert engine._window < len(AutoTokenizer.from_pretrained(folder)(text)["input_ids"])
    reading = alone(engine.read([text]))
    words = {text[word.start : word.end] for word in reading.non_entity_scores}
    assert words == {"Anna", "lives", "in", "Zoë", "'", "s", "😀", "house", "."}
    assert {span.label for span in reading.spans} <= capability_of(folder).labels
    assert len({span.label for span in reading.spans}) > 1
    settings = DetectSettings(tagger=None, patterns=None, transformers=TransformersSettings(folder=str(folder)))
    strict = build_policies(settings)[0]
    assert list(strict.select_spans(text, reading)) == list(reading.spans)
    settings = settings.model_copy(update={"public_labels": ("PERSON",)})
    assert load_engines(settings)[0][0]._public_kinds == [engine._kinds.index("private_person")]


def _headless(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig.from_pretrained(folder)).save_pretrained(folder)


def _slow(folder: Path) -> None:
    from transformers import ByT5Tokenizer

    (folder / "tokenizer.json").unlink()
    ByT5Tokenizer().save_pretrained(folder)


def _one_label(folder: Path) -> None:
    bert_folder(folder, id2label={0: "O"}, label2id={"O": 0})


def _not_finite(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _foreign_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForTokenClassification": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('code of the folder ran')")


@pytest.mark.parametrize(
    ("spoil", "key"),
    [
        (lambda f: (f / "config.json").unlink(), r"folder.*config\.json"),
        (lambda f: (f / "model.safetensors").unlink(), r"folder.*cannot load a token classifier"),
        (lambda f: (f / "model.safetensors").write_bytes(b"none"), r"folder.*cannot load a token classifier"),
        (lambda f: (f / "tokenizer.json").unlink(), r"folder"),
        (_headless, r"folder.*classifier\.bias, classifier\.weight"),
        (_slow, r"folder.*slow"),
        (_one_label, r"folder.*only the non-entity label"),
        (_not_finite, r"folder.*cannot read"),
        (_foreign_code, r"folder.*cannot load a token classifier"),
    ],
)
def test_a_folder_that_cannot_serve_is_a_configuration_error(tmp_path: Path, spoil: Any, key: str) -> None:
    spoil(bert_folder(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"detect\.transformers\.{key}"):
        engine_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"folder": "bert-base-cased"}, r"folder.*not a folder"),
        ({"device": "nowhere"}, r"device.*'nowhere'"),
        # where there is no data, nothing can be read: the setting is honoured
        ({"device": "meta"}, r"folder.*cannot read"),
    ],
)
def test_wrong_settings_are_configuration_errors(folder: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"detect\.transformers\.{key}"):
        engine_of(folder, **changes)


def test_pieces_join_inside_words_only() -> None:
    text = "McDonald's Zoë e\u0301a 😀!"
    ends = [0, 2, 8, 9, 10, None, 11, 13, 14, None, 15, 16, 17, 18, None, 19, 20]
    cuts = [(a, b) for a, b in itertools.pairwise(ends) if a is not None and b is not None] + [(19, 20)]
    pieces = [WordPiece(*cut, 0.9 - 0.01 * i, f"K{i}") for i, cut in enumerate(cuts)] + [WordPiece(20, 21, 0.99, "K")]
    words = list(merge_pieces(text, pieces))
    assert [text[w.start : w.end] for w in words] == ["McDonald", "'", "s", "Zoë", "e\u0301a", "😀", "!"]
    assert (words[0].non_entity, words[0].kind) == (pieces[1].non_entity, "K1")
    assert (words[5].non_entity, words[5].kind) == (pieces[10].non_entity, "K10")

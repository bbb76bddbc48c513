"""Training a transformer further, on a BERT with random weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from redactory.detectors.classifier.engine import TransformersEngine
from redactory.detectors.classifier.fitting import (
    ClassifierSettings,
    RowEncoder,
    TrainedClassifier,
    calibrate_classifier,
    pad_batch,
    train_classifier,
)
from redactory.detectors.settings import TransformersSettings
from redactory.detectors.tagger import LabelledText, Reliability
from redactory.detectors.tagger.fitting import BINS, UNKNOWN_LABEL
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.measure.fit import _split_rows, fit_tagger
from tests.detectors.support import labelled_texts
from tests.detectors.tiny_models import bert_folder

ROWS = labelled_texts(300, seed=1)
TRAINING, FITTED_ON, UNSEEN = ROWS[:200], ROWS[200:250], ROWS[250:]
LONG = "Anna lives in Paris and Ro-bert5 doesn't know Zebulon. " * 5
LABELS = ("O", "IDENTIFIER", "LOCATION", "PERSON")
QUICK = ClassifierSettings(epochs=1, learning_rate=3e-3, batch_words=400)
"""A toy model learns from steps a hundred times as large as a grown one's."""


def engine_of(folder: Path) -> TransformersEngine:
    return TransformersEngine(TransformersSettings(folder=str(folder)), "en")


def labels_of(words: Sequence[tuple[int, int]], row: LabelledText) -> list[str]:
    """For each place the label of the last span that shares a character with it, character by character."""
    found = []
    for start, end in words:
        hits = [label for a, b, label in row.spans if set(range(a, b)) & set(range(start, end))]
        found.append(hits[-1] if hits else "O")
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("base"), initializer_range=0.05)


class Trained:
    """A classifier as training left it and as calibration left it, in memory and on disk."""

    def __init__(self, base: Path, folder: Path) -> None:
        chosen = ClassifierSettings(epochs=7, learning_rate=3e-3, batch_words=400)
        self.classifier: TrainedClassifier = train_classifier(base, TRAINING, chosen)
        self.before: Any = copy.deepcopy(self.classifier.model)
        self.reliability: Reliability = calibrate_classifier(self.classifier, FITTED_ON, UNSEEN)
        self.folder = folder
        self.classifier.to_disk(folder)
        self.engine = engine_of(folder)


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(base, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def reader(base: Path) -> RowEncoder:
    return _reader(base)


def _reader(base: Path) -> RowEncoder:
    from transformers import AutoTokenizer

    return RowEncoder(AutoTokenizer.from_pretrained(base), LABELS, 16, 7)


def test_it_learns_what_the_rows_show_and_says_it_on_unseen_texts(trained: Trained) -> None:
    found = [
        any(s.start <= start and end <= s.end and s.label == label for s in reading.spans)
        for row, reading in zip(UNSEEN, trained.engine.read([r.text for r in UNSEEN]), strict=True)
        for start, end, label in row.spans
    ]
    assert len(found) > 25
    assert sum(found) / len(found) > 0.9


def test_the_temperature_divides_the_logits_and_nothing_else_changes(trained: Trained) -> None:
    before, after = trained.before.state_dict(), trained.classifier.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    ratio = before["classifier.weight"].double() / after["classifier.weight"].double()
    temperature = float(ratio.median())
    assert round(temperature, 3) == round(trained.reliability.temperature, 3) != 1
    reader = trained.classifier.encoder
    of_one_window = [row for row in UNSEEN if len(reader.encode(row).windows) == 1]
    assert len(of_one_window) > 10
    for row in of_one_window:
        encoded = reader.tokenizer(row.text, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            logits = trained.before(**encoded).logits[0].double()
        plain = torch.softmax(logits / temperature, dim=-1)[:, 0].tolist()
        (reading,) = trained.engine.read([row.text])
        for word in reading.non_entity_scores:
            inside = [p for (a, b), p in zip(offsets, plain, strict=True) if word.start <= a < b <= word.end]
            assert word.probability == pytest.approx(min(inside), rel=1e-4)


def test_the_reliability_is_that_of_what_the_engine_says(trained: Trained) -> None:
    said, true = [], []
    for row, reading in zip(UNSEEN, trained.engine.read([r.text for r in UNSEEN]), strict=True):
        said += [word.probability for word in reading.non_entity_scores]
        true += [label == "O" for label in labels_of([w[:2] for w in reading.non_entity_scores], row)]
    error = 0.0
    for number in range(BINS):
        inside = [(p, t) for p, t in zip(said, true, strict=True) if min(int(p * BINS), BINS - 1) == number]
        error += abs(sum(p - t for p, t in inside)) / len(said)
    assert trained.reliability.tokens == len(said)
    assert trained.reliability.error == pytest.approx(error, abs=1e-4)


def test_the_same_seed_gives_the_same_bits_whatever_ran_before(base: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    # a training in this process may have asked for it
    deterministic = torch.are_deterministic_algorithms_enabled()
    weights = []
    for seed in (0, 0, 1):
        torch.rand(3)
        torch.set_num_threads(threads + 1)
        before = torch.get_rng_state()
        chosen = QUICK.model_copy(update={"seed": seed})
        weights.append(train_classifier(base, TRAINING[:60], chosen).model.state_dict())
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["classifier.weight"], weights[2]["classifier.weight"])


def test_the_last_layer_is_new_though_the_base_has_one_of_its_size(base: Path, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)})
    was = load_file(folder / "model.safetensors")
    was["classifier.bias"] += 1
    save_file(was, folder / "model.safetensors", {"format": "pt"})
    still = QUICK.model_copy(update={"learning_rate": 1e-12})
    got = train_classifier(folder, TRAINING[:60], still).model.state_dict()
    assert (got["classifier.weight"] - was["classifier.weight"]).abs().min() > 1e-6
    assert got["classifier.bias"].abs().max() < 1e-6
    assert all(torch.allclose(got[n], was[n], atol=1e-6) for n in was if not n.startswith("classifier"))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_row_is_cut_as_the_engine_cuts_it_and_all_of_a_word_has_its_label(
    reader: RowEncoder, whole_engine: TransformersEngine, data: st.DataObject
) -> None:
    text = LONG[: data.draw(st.integers(1, len(LONG)))]
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    cuts = data.draw(st.lists(st.tuples(places, st.sampled_from([*LABELS[1:], "NEW"])), max_size=4))
    row = LabelledText(text, tuple((a, b, label) for (a, b), label in cuts if a < b))
    read = reader.encode(row)
    words = [(word.start, word.end) for word in whole_engine.read([text])[0].non_entity_scores]
    columns = {label: number for number, label in enumerate(LABELS)} | {"NEW": UNKNOWN_LABEL}
    assert read.truth == [columns[label] for label in labels_of(words, row)]
    for window in read.windows:
        assert {len(ids) for ids in window.inputs.values()} == {len(window.words)}
        assert len(window.words) <= reader.window
        assert window.truth == [read.truth[word] if word >= 0 else UNKNOWN_LABEL for word in window.words]
        pieces = reader.tokenizer.convert_ids_to_tokens(window.inputs["input_ids"])
        assert [word < 0 for word in window.words] == [piece in ("[CLS]", "[SEP]") for piece in pieces]
    assert {word for window in read.windows for word in window.words} - {-1} == set(range(len(words)))


@pytest.fixture(scope="module")
def whole_engine(base: Path) -> TransformersEngine:
    return engine_of(base)


def test_padding_is_not_seen(trained: Trained) -> None:
    reader = trained.classifier.encoder
    windows = [window for row in UNSEEN[:8] for window in reader.encode(row).windows]
    inputs, truth = pad_batch(windows, 7)
    with torch.no_grad():
        together = trained.classifier.model(**inputs).logits
        for number, window in enumerate(windows):
            length = len(window.truth)
            alone, own = pad_batch([window], 7)
            assert torch.allclose(together[number, :length], trained.classifier.model(**alone).logits[0], atol=1e-4)
            assert truth[number].tolist() == own[0].tolist() + [UNKNOWN_LABEL] * (truth.shape[1] - length)


def test_the_folder_holds_no_word_of_the_rows_and_no_path(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [*TRAINING[:40], LabelledText("ask Xylophila Quenzibar", ((4, 23, "PERSON"),))]
    capfd.readouterr()
    classifier = train_classifier(base, rows, QUICK)
    calibrate_classifier(classifier, rows, rows)
    classifier.to_disk(tmp_path / "out")
    assert "".join(capfd.readouterr()) == ""
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert written["tokenizer.json"] == (base / "tokenizer.json").read_bytes()
    for content in written.values():
        assert not any(word in content for word in (b"Xylophila", b"Quenzibar", str(base).encode()))


def _slow(folder: Path) -> None:
    from transformers import ByT5Tokenizer

    (folder / "tokenizer.json").unlink()
    ByT5Tokenizer().save_pretrained(folder)


def _without(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda f: (f / "config.json").unlink(), r"not a folder with a config\.json"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot load a token classifier"),
        (_slow, "slow"),
        (_without, r"random: bert\.encoder\.layer\.1\.output\.dense\.weight"),
        (_of_another_size, r"random: bert\.encoder\.layer\.0\.intermediate"),
    ],
)
def test_a_base_that_cannot_serve_is_a_configuration_error(tmp_path: Path, spoil: Any, problem: str) -> None:
    spoil(bert_folder(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"base: .*{problem}"):
        train_classifier(tmp_path, TRAINING[:30], QUICK)


def test_what_cannot_be_trained_is_refused(base: Path, reader: RowEncoder) -> None:
    with pytest.raises(InputError, match="labelled 'O'"):
        train_classifier(base, [LabelledText("ask Anna", ((4, 8, "O"),))], QUICK)
    with pytest.raises(ConfigurationError, match="diverged"):
        train_classifier(base, TRAINING[:30], QUICK.model_copy(update={"learning_rate": 1e30}))
    with pytest.raises(ConfigurationError, match="Identity has no linear last layer"):
        _ = TrainedClassifier(torch.nn.Identity(), reader).head
    with pytest.raises(InputError) as error:
        reader.encode(LabelledText("Quenzibar \ud800", ()))
    assert "Quenzibar" not in str(error.value)
    assert error.value.__suppress_context__


def _written(rows: Sequence[LabelledText], path: Path) -> Path:
    keys = ("start", "end", "label")
    lines = [
        json.dumps({"text": row.text, "spans": [dict(zip(keys, s, strict=True)) for s in row.spans]}) for row in rows
    ]
    path.write_text("\n".join(lines))
    return path


def test_fit_writes_a_folder_with_its_card_that_the_engine_takes(base: Path, tmp_path: Path) -> None:
    labelled = _written(ROWS, tmp_path / "rows.jsonl")
    chosen = {"epochs": 5, "learning_rate": 3e-3, "batch_words": 400, "held_out": 0.3}
    result = fit_tagger([labelled], tmp_path / "mine", chosen, base=base)
    keys = "tagger rows held_out_rows labels reliability held_out settings files versions"
    assert set(result) == set(keys.split())
    assert min(result["held_out"]["cover_recall"], result["held_out"]["char_precision"]) > 0.7
    assert result["settings"]["base"]["folder"] == base.name
    assert "width" not in result["settings"]
    stored = json.loads((tmp_path / "mine" / "fit.json").read_text())
    assert stored == json.loads(json.dumps({k: v for k, v in result.items() if k != "tagger"}))
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "`detect.transformers: {folder: mine}`" in card
    assert result["settings"]["base"]["sha256"] in card
    assert (tmp_path / "mine" / "reliability.svg").is_file()
    assert not list(tmp_path.glob(".tmp-*"))
    kept = [row.text for row in _split_rows(ROWS, ClassifierSettings.model_validate(chosen))[2]]
    read = engine_of(tmp_path / "mine").read(kept)
    assert result["reliability"]["tokens"] == sum(len(reading.non_entity_scores) for reading in read)


def _headless(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig.from_pretrained(folder)).save_pretrained(folder)


def test_an_encoder_without_a_last_layer_serves(tmp_path: Path) -> None:
    _headless(bert_folder(tmp_path))
    classifier = train_classifier(tmp_path, TRAINING[:30], QUICK)
    assert classifier.head.out_features == len(classifier.encoder.labels)


def test_settings_that_the_base_decides_are_refused(base: Path, tmp_path: Path) -> None:
    labelled = _written(ROWS[:30], tmp_path / "rows.jsonl")
    with pytest.raises(ConfigurationError, match="determines depth, width"):
        fit_tagger([labelled], tmp_path / "out", {"width": 64, "depth": 2}, base=base)
    assert not (tmp_path / "out").exists()

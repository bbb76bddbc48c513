"""Classifiers: pools over what is read, points without a class, what is written and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import seal_folder
from redactory.redaction.shards import CLASS, LABELLED_VAULT, VAULT, write_part
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import NO_CLASS, TokenizedExamples, encode_classes, read_folder_classes
from redactory.training.model import TextClassifier, build_classifier, load_classifier, load_model, save_model
from redactory.training.models.hugging_face import SequenceClassifier
from redactory.training.models.network import ClassifierNetwork
from redactory.training.models.recurrent import LstmEncoder, LstmLanguageModel, PooledClassifier
from redactory.training.models.settings import (
    AwdLstmSettings,
    BagSettings,
    BertSettings,
    BiLstmSettings,
    FolderSettings,
    LoraSettings,
    LstmSettings,
    ModelSettings,
)
from redactory.training.tokenizer import FolderTokenizer, Tokenizer
from tests.training.clipping.networks import reference
from tests.training.conftest import PUBLIC_TEXTS
from tests.training.tiny_folders import write_bert_folder

CLASSES = ("rent", "law", "other")
TEXTS = ["Hello, how are you?", "My ID is: 1023", "", "the law of the state", "pay"]
NUMBERS = np.array([0, 1, NO_CLASS, 1, 2])
WORDS = Tokenizer.from_texts(PUBLIC_TEXTS, 50)
KINDS: dict[str, ModelSettings] = {
    "lstm": LstmSettings(embedding_size=6, hidden_size=7, layers=2),
    "awd-lstm": AwdLstmSettings(kind="awd-lstm", embedding_size=6, hidden_size=7),
    "bilstm": BiLstmSettings(kind="bilstm", embedding_size=6, hidden_size=7, bottleneck=4),
    "bag": BagSettings(kind="bag", embedding_size=6),
    "bert": BertSettings(kind="bert", layers=1, width=16, heads=2, context=64),
}


def fresh(kind: str, seed: int = 3) -> ClassifierNetwork:
    network = build_classifier(KINDS[kind], WORDS, CLASSES)
    network.initialise(RandomStream.from_seed(seed))
    return network.double()


def rows(numbers: np.ndarray[Any, Any] = NUMBERS) -> TokenizedExamples:
    return replace(TokenizedExamples.from_texts(TEXTS, WORDS, 40), labels=numbers)


def test_pools_are_those_of_each_text_alone() -> None:
    network = build_classifier(LstmSettings(embedding_size=6, hidden_size=7), WORDS, CLASSES)
    assert isinstance(network, PooledClassifier)
    network.initialise(RandomStream.from_seed(3))
    network.double()
    batch = rows().make_batch(range(5))
    with torch.no_grad():
        found, states = network.logits(batch).numpy(), network.encoder.hidden_states(batch).numpy()
        weight, bias = network.head.weight.numpy(), network.head.bias.numpy()
    for row, length in enumerate(rows().lengths):
        own = states[row, :length]
        pooled = np.concatenate([own[-1], own.max(0), own.mean(0)])
        np.testing.assert_allclose(found[row], weight @ pooled + bias, rtol=1e-10)


def test_an_lstm_classifier_reads_scaled_embeddings_with_open_forget_gates() -> None:
    """PyTorch's own LSTM with the same weights, and the language model that nothing is changed for."""
    encoder = LstmEncoder(WORDS.size, LstmSettings(embedding_size=6, hidden_size=7, layers=2))
    plain = LstmLanguageModel(WORDS.size, LstmSettings(embedding_size=6, hidden_size=7, layers=2))
    for network in (encoder, plain):
        network.initialise(RandomStream.from_seed(3))
    reference_lstm, batch = torch.nn.LSTM(6, 7, 2, batch_first=True), rows().make_batch(range(5))
    reference_lstm.load_state_dict(encoder.lstm.state_dict())
    with torch.no_grad():
        expected, _ = reference_lstm(encoder.embedding(batch.inputs) * 6**0.5)
        torch.testing.assert_close(encoder.hidden_states(batch), expected, rtol=1e-5, atol=1e-6)
        for name, parameter in encoder.lstm.named_parameters():
            difference = parameter - plain.lstm.get_parameter(name)
            gates = torch.zeros_like(difference)
            if name.startswith("bias_ih"):
                gates[7:14] = 1.0
            torch.testing.assert_close(difference, gates)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_other_points_change_no_loss(kind: str) -> None:
    network = fresh(kind).eval()
    with torch.no_grad():
        together = network.example_losses(rows().make_batch(range(5)))
        alone = torch.cat([network.example_losses(rows().make_batch([row])) for row in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
    assert (together != 0).tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_without_a_class_is_a_null_point(kind: str) -> None:
    """Its gradient is exactly 0, so the sum with it is, bit for bit, the sum without it."""
    network = fresh(kind).train()
    network.begin_step(RandomStream.from_seed(4), "noisy step", 0)
    with_it = compute_clipped_sum(network, rows(), np.arange(5), 0.1, 10_000)
    none = compute_clipped_sum(network, rows(), np.array([2]), 0.1, 10_000)
    assert torch.equal(none, torch.zeros_like(none))
    without = compute_clipped_sum(network, rows(), np.array([0, 1, 3, 4]), 0.1, 10_000)
    torch.testing.assert_close(with_it, without, rtol=1e-12, atol=1e-15)
    assert float(with_it.norm()) > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_clipped_gradients_are_those_of_autograd(kind: str) -> None:
    network, clip = fresh(kind).train(), 0.05
    network.begin_step(RandomStream.from_seed(4), "noisy step", 0)
    total = compute_clipped_sum(network, rows(), np.arange(5), clip, 10_000)
    expected, _ = reference(network, lambda row: network.example_losses(rows().make_batch([row])), 5, clip)
    torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-12)


def test_every_parameter_is_learnt_and_none_serves_words() -> None:
    for kind in ("lstm", "awd-lstm", "bilstm", "bag"):
        network = fresh(kind)
        names = [name for name, _ in network.named_parameters()]
        assert not any("output" in name for name in names)
        losses = network.example_losses(rows().make_batch([0, 1, 3, 4]))
        found = torch.autograd.grad(losses.sum(), list(network.parameters()))
        assert all(bool(gradient.any()) for gradient in found), kind


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_follow_from_the_stream(kind: str) -> None:
    first, again, other = (torch.cat([p.flatten() for p in fresh(kind, seed).parameters()]) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_is_written_and_read_again(kind: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).get_model_folder(kind)
    own = TextClassifier(WORDS, fresh(kind).float(), max_tokens=5)
    save_model(folder, own)
    read = load_classifier(folder)
    assert (read.classes, read.max_tokens) == (CLASSES, 5)
    np.testing.assert_array_equal(read.compute_class_log_probs(TEXTS), own.compute_class_log_probs(TEXTS))
    np.testing.assert_allclose(np.exp(own.compute_class_log_probs(TEXTS)).sum(1), 1.0)
    assert own.compute_class_log_probs([]).shape == (0, 3)
    seal_folder(folder, {}, [])
    with pytest.raises(InputError, match="classifier"):
        load_model(folder)


def test_a_classifier_reads_as_much_as_it_was_trained_on_and_no_more_than_it_can() -> None:
    network = fresh("lstm").float()
    cut = TextClassifier(WORDS, network, max_tokens=4)
    np.testing.assert_array_equal(cut.compute_class_log_probs(["abcdefgh"]), cut.compute_class_log_probs(["abcdxyz"]))
    whole = TextClassifier(WORDS, network)
    assert (whole.compute_class_log_probs(["abcdefgh"]) != whole.compute_class_log_probs(["abcdxyz"])).any()
    long = TextClassifier(WORDS, fresh("bert").float())
    np.testing.assert_array_equal(long.compute_class_log_probs(["a" * 200]), long.compute_class_log_probs(["a" * 100]))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert_folder(tmp_path_factory.mktemp("bert") / "bert", positions=64)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_a_pretrained_bert_draws_missing_weights(lora: LoraSettings | None, pretrained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    section = FolderSettings(folder=pretrained, lora=lora)
    tokenizer = FolderTokenizer.from_folder(pretrained)
    made: list[ClassifierNetwork] = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(made))  # the library's own draws differ, ours do not
        network = build_classifier(section, tokenizer, CLASSES)
        network.initialise(RandomStream.from_seed(seed))
        assert isinstance(network, SequenceClassifier)
        assert network.classes == CLASSES
        made.append(network)
    first, again, other = (dict(network.named_parameters()) for network in made)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    differ = {name for name, value in first.items() if not torch.equal(value, other[name])}
    assert {"pooler", "classifier"} <= {part for name in differ for part in name.split(".")}
    learnt = {name for name, value in first.items() if value.requires_grad}
    if lora is not None:
        assert learnt == {n for n in first if any(part in n for part in ("lora_", "pooler", "classifier"))}
    else:
        assert learnt == set(first)
        assert not any("embeddings" in name or "encoder" in name for name in differ)
    points = replace(TokenizedExamples.from_texts(TEXTS, tokenizer, 40), labels=NUMBERS)
    assert float(compute_clipped_sum(made[0], points, np.arange(5), 0.1, 10_000).norm()) > 0.05
    folder, own = RunFolder(tmp_path).get_model_folder("bert"), TextClassifier(tokenizer, made[0], 40)
    save_model(folder, own)
    np.testing.assert_allclose(
        load_classifier(folder).compute_class_log_probs(TEXTS), own.compute_class_log_probs(TEXTS), rtol=1e-5
    )
    theirs = AutoModelForSequenceClassification.from_pretrained(folder.root, local_files_only=True)
    assert theirs.config.id2label == dict(enumerate(CLASSES))


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.sampled_from([*CLASSES, "else", ""]))))
def test_a_class_is_its_place_among_the_public_names(found: list[str | None]) -> None:
    numbers = encode_classes(found, CLASSES)
    assert [CLASSES[n] if n != NO_CLASS else None for n in numbers] == [
        name if name in CLASSES else None for name in found
    ]


def test_classes_are_read_in_order_and_refused_where_there_are_none(tmp_path: Path) -> None:
    given = ["rent", None, "law"]
    for schema, folder in ((LABELLED_VAULT, tmp_path / "with"), (VAULT, tmp_path / "vault")):
        columns: dict[str, Any] = {name: [""] * 3 for name in schema.names}
        columns.update({"example_id": [0, 1, 2], **({CLASS: given} if CLASS in schema.names else {})})
        write_part(folder / "part-00000.parquet", pa.table(columns, schema=schema))
    assert list(read_folder_classes(tmp_path / "with")) == given
    with pytest.raises(ConfigurationError, match=r"input\.label"):
        list(read_folder_classes(tmp_path / "vault"))

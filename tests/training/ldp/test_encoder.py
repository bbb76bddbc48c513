"""Stage 1 and what is read of its folder: the same vectors for the same text, whatever stands around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch, PublicText
from redactory.training.ldp.encoder import BATCH_SIZE, SentenceEncoder, pretrain_encoder
from redactory.training.ldp.settings import EncoderSettings
from redactory.training.models.recurrent import BiLstmEncoder
from redactory.training.models.settings import BiLstmSettings
from tests.training.ldp.ldp_sides import ROWS, small, write_rows
from tests.training.tiny_folders import write_bert_folder

TEXTS = [text for text, _ in ROWS]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> PublicText:
    return PublicText(write_rows(tmp_path_factory.mktemp("public") / "rows.jsonl"))


@pytest.fixture(scope="module")
def made(public: PublicText, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("encoders") / "own"
    summary = pretrain_encoder(public, small(), out)
    assert summary["accuracy_on_public_text"] > 0.95
    assert (summary["rows"], summary["classes"]) == (len(ROWS), ["+", "-"])
    return out


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert_folder(tmp_path_factory.mktemp("folders") / "bert", positions=40)


def test_a_public_encoder_separates_its_classes(made: Path, public: PublicText) -> None:
    encoder = SentenceEncoder.load(made)
    found = encoder.represent(TEXTS).numpy()
    assert found.shape == (len(TEXTS), *encoder.get_shape("latent")) == (40, 4)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    sign = np.array([1.0 if label == "+" else -1.0 for _, label in ROWS])
    assert (found @ (sign @ found) * sign > 0).mean() > 0.95
    assert (encoder.provenance["kind"], encoder.spendings) == ("public", ())
    assert (encoder.provenance["text_sha256"], encoder.network.classes) == (public.sha256, ("+", "-"))
    # nothing trains it
    assert not any(p.requires_grad for p in encoder.network.parameters())
    assert not encoder.represent(TEXTS[:1]).requires_grad


@pytest.mark.parametrize("kind", ["latent", "token"])
def test_no_other_text_moves_a_bit_of_a_representation(kind: str, made: Path) -> None:
    encoder = SentenceEncoder.load(made)
    texts = [*TEXTS, "", "a word that nobody knows", "x" * 100]
    together = encoder.represent(texts, kind)  # type: ignore[arg-type]
    assert len(texts) > BATCH_SIZE
    assert together.shape == (len(texts), *encoder.get_shape(kind))  # type: ignore[arg-type]
    for row in (0, 7, 31, 40, 41, 42):
        assert torch.equal(encoder.represent([texts[row]], kind)[0], together[row])  # type: ignore[arg-type]
    other = encoder.represent(["b" * 50, *texts[1:]], kind)  # type: ignore[arg-type]
    assert torch.equal(other[1:], together[1:])
    assert encoder.represent([], kind).shape == (0, *encoder.get_shape(kind))  # type: ignore[arg-type]


def test_tokens_are_embeddings_of_one_length_and_zero_behind_the_end(made: Path) -> None:
    encoder = SentenceEncoder.load(made, max_tokens=5)
    assert encoder.get_shape("token") == (5, 8)
    found, table = encoder.represent(["good film"], "token")[0], encoder.token_embedding.get_parameter("weight")
    ids = [*encoder.tokenizer.encode("good film"), encoder.tokenizer.end_id]
    count = min(len(ids), 5)
    assert torch.equal(found[:count], table[ids[:5]])
    assert not found[count:].any()
    whole, cut = encoder.represent(["xyzabc!", "xyzabQ?"], "token")
    assert torch.equal(whole, cut)


def test_a_wider_representation_is_projected_by_a_matrix_that_everybody_knows(made: Path) -> None:
    encoder, narrow = SentenceEncoder.load(made), SentenceEncoder.load(made, dimension=3)
    assert (narrow.get_shape("latent"), narrow.get_shape("token")) == ((3,), (12, 3))
    wide = encoder.represent(TEXTS)
    solved = np.linalg.lstsq(wide.numpy(), narrow.represent(TEXTS).numpy(), rcond=None)[0]
    np.testing.assert_allclose(wide.numpy() @ solved, narrow.represent(TEXTS).numpy(), atol=1e-4)
    assert SentenceEncoder.load(made, dimension=99).get_shape("latent") == (4,)
    pairs = encoder.represent([(TEXTS[0], TEXTS[30]), (TEXTS[5], TEXTS[5])])
    assert pairs.shape == (2, 2, 4)
    assert torch.equal(pairs[0], wide[[0, 30]])


def test_the_digest_is_that_of_what_runs(made: Path, public: PublicText, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(made)
    others = [SentenceEncoder.load(made, dimension=3), SentenceEncoder.load(made, max_tokens=5)]
    pretrain_encoder(public, small(seed=1), tmp_path / "seeded")
    others.append(SentenceEncoder.load(tmp_path / "seeded"))
    assert len({encoder.digest, *(other.digest for other in others)}) == 4
    pretrain_encoder(public, small(), tmp_path / "again")
    assert SentenceEncoder.load(tmp_path / "again").digest == encoder.digest
    before = encoder.digest
    with torch.no_grad():
        next(encoder.network.parameters())[0, 0] += 1
    assert encoder.digest != before


def test_noise_while_learning_is_of_the_step_and_changes_the_weights(public: PublicText, tmp_path: Path) -> None:
    noisy = [small(noise_multiplier=0.5, epochs=2), small(epochs=2), small(noise_multiplier=0.5, epochs=2)]
    for number, own in enumerate(noisy):
        pretrain_encoder(public, own, tmp_path / str(number))
    first, bare, again = (SentenceEncoder.load(tmp_path / str(n)).represent(TEXTS) for n in range(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, bare)


def test_a_frozen_folder_is_taught_on_top_and_read_again(public: PublicText, bert: Path, tmp_path: Path) -> None:
    own = small(model={"kind": "folder", "folder": bert}, epochs=25, max_tokens=64)
    summary = pretrain_encoder(public, own, tmp_path / "top")
    assert summary["accuracy_on_public_text"] > 0.7
    read = SentenceEncoder.load(tmp_path / "top")
    assert (read.max_tokens, read.get_shape("latent"), read.get_shape("token")) == (39, (4,), (39, 16))
    assert read.provenance["base"]["declared"] == "public"
    bare = SentenceEncoder.load(bert, declared_public=True)
    assert torch.equal(read.represent(TEXTS[:2], "token"), bare.represent(TEXTS[:2], "token")[:, :39])
    weight, bias = (read.network.get_parameter(f"bottleneck.{name}") for name in ("weight", "bias"))
    expected = bare.represent(TEXTS, "latent") @ weight.T + bias
    torch.testing.assert_close(read.represent(TEXTS), expected, rtol=1e-4, atol=1e-5)
    assert str(bert) not in json.dumps(read.provenance)


def test_a_sentence_encoder_is_read_as_it_pools(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sentences"
    shutil.copytree(bert, folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    first, mean = (SentenceEncoder.load(path, declared_public=True) for path in (folder, bert))
    assert first.digest != mean.digest
    assert mean.digest == SentenceEncoder.load(bert, declared_public=True).digest
    assert not torch.equal(first.represent(TEXTS[:1]), mean.represent(TEXTS[:1]))
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ConfigurationError, match="pooling"):
        SentenceEncoder.load(folder, declared_public=True)


def test_what_was_changed_or_is_no_encoder_is_refused(made: Path, public: PublicText, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "provenance.json", "config.json"):
        folder = tmp_path / name
        shutil.copytree(made, folder)
        (folder / name).write_bytes((folder / name).read_bytes() + b" ")
        with pytest.raises(CheckFailed, match="changed after sealing"):
            SentenceEncoder.load(folder)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match="encoder: "):
            SentenceEncoder.load(folder, declared_public=True)
    with pytest.raises(InputError, match=r"row 2 .*surrogate") as refusal:
        SentenceEncoder.load(made).represent(["fine", "secret\ud800"])
    assert "secret" not in str(refusal.value)


def test_public_text_needs_two_classes_and_settings_their_sense(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a b", "label": "only"}\n{"text": "c"}\n')
    with pytest.raises(InputError, match="two classes"):
        pretrain_encoder(PublicText(path), small(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="bottleneck"):
        EncoderSettings(model={"kind": "bilstm", "bottleneck": 3})


def test_a_bilstm_has_the_states_of_torch_s_own_over_packed_texts() -> None:
    lengths = torch.tensor([5, 1, 3, 6])
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 11, (4, 6)))
    batch = Batch(ids, torch.zeros(4, 1, dtype=torch.int64), torch.arange(6)[None] < lengths[:, None])
    own = BiLstmEncoder(11, BiLstmSettings(kind="bilstm", embedding_size=5, hidden_size=7))
    own.initialise(RandomStream.from_seed(3))
    own.double()
    theirs = nn.LSTM(5, 7, batch_first=True, bidirectional=True).double()
    weights = dict(own.ahead.state_dict())
    theirs.load_state_dict(weights | {f"{name}_reverse": value for name, value in own.back.state_dict().items()})
    packed = pack_padded_sequence(own.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True)
    found, real = own.hidden_states(batch), batch.real[..., None]
    assert found.shape == (4, 6, own.width) == (4, 6, 14)
    torch.testing.assert_close(found * real, expected * real, rtol=1e-12, atol=1e-12)

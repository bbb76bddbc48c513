"""The BiLSTM as a network of ours: the states of torch's own, over texts of different lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from redactory.foundation.stream import RandomStream
from redactory.training.models.recurrent import BiLstmEncoder
from redactory.training.points import Batch
from redactory.training.settings import TrainSettings

LENGTHS = torch.tensor([5, 1, 3, 6])


def _batch() -> Batch:
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 11, (4, 6)))
    return Batch(ids, torch.zeros(4, 1, dtype=torch.int64), torch.arange(6)[None] < LENGTHS[:, None])


def _theirs(own: BiLstmEncoder) -> nn.LSTM:
    theirs = nn.LSTM(5, 7, batch_first=True, bidirectional=True).double()
    weights = dict(own.ahead.state_dict())
    weights |= {f"{name}_reverse": value for name, value in own.back.state_dict().items()}
    theirs.load_state_dict(weights)
    return theirs


def test_states_are_those_of_torch_over_packed_texts() -> None:
    own, batch = BiLstmEncoder(11, 5, 7), _batch()
    own.initialise(RandomStream.from_seed(3))
    own.double()
    packed = pack_padded_sequence(
        own.embedding(batch.inputs), LENGTHS, batch_first=True, enforce_sorted=False
    )
    expected, _ = pad_packed_sequence(_theirs(own)(packed)[0], batch_first=True)
    found = own.hidden(batch)
    assert found.shape == (4, 6, own.width) == (4, 6, 14)
    real = batch.real[..., None]
    torch.testing.assert_close(found * real, expected * real, rtol=1e-12, atol=1e-12)


def test_classes_by_dp_sgd_may_be_told_and_next_words_by_a_bilstm_may_not() -> None:
    model = {"kind": "bilstm", "bottleneck": 4}
    assert (
        TrainSettings(trainer="dpsgd", task="classify", classes=("a", "b"), model=model).model.kind
        == "bilstm"
    )
    with pytest.raises(ValueError, match="bilstm predicts classes"):
        TrainSettings(trainer="dpsgd", model=model)
    with pytest.raises(ValueError, match="classify is trained by"):
        TrainSettings(trainer="sgd", task="classify", classes=("a", "b"), model=model)

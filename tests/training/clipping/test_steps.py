"""The sum of a step over physical batches of encoded points."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import TokenizedExamples, split_micro_batches
from redactory.training.models.recurrent import LstmLanguageModel
from tests.training.clipping.networks import assert_equal, gradient_of, reference
from tests.training.conftest import build_lstm

VOCABULARY = 11
SEQUENCES = st.lists(st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=9), max_size=7)


def points_of(sequences: list[list[int]]) -> TokenizedExamples:
    offsets = np.cumsum([0, *map(len, sequences)])
    return TokenizedExamples(np.asarray([*chain.from_iterable(sequences)], np.int32), offsets.astype(np.int64), 1, 0)


def network_of(seed: int) -> LstmLanguageModel:
    network = build_lstm(VOCABULARY, 3, 4).double()
    network.initialise(RandomStream.from_seed(seed))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    return network


@settings(max_examples=25, deadline=None)
@given(
    sequences=SEQUENCES,
    clip_norm=st.sampled_from([1e-3, 0.5, 1e3]),
    tokens=st.sampled_from([1, 12, 4096]),
    seed=st.integers(0, 99),
)
def test_physical_batches_change_nothing(sequences: list[list[int]], clip_norm: float, tokens: int, seed: int) -> None:
    points, network = points_of(sequences), network_of(seed)
    found = compute_clipped_sum(network, points, np.arange(len(points)), clip_norm, tokens)
    losses = lambda row: network.example_losses(points.make_batch([row]))  # noqa: E731
    expected, norms = reference(network, losses, len(points), clip_norm)
    assert_equal(found, expected, 1e-10, 0.1 * float(norms.clamp(max=clip_norm).sum()))


@settings(max_examples=15, deadline=None)
@given(sequences=SEQUENCES.filter(len), seed=st.integers(0, 99))
def test_one_point_alone_has_at_most_the_clipping_norm(sequences: list[list[int]], seed: int) -> None:
    points, network = points_of(sequences), network_of(seed)
    for row in range(len(points)):
        own = float(compute_clipped_sum(network, points, np.array([row]), 0.3, 4096).norm())
        assert own <= 0.3 * (1 + 1e-12)
        whole = gradient_of(network, network.example_losses(points.make_batch([row])).sum())
        assert own == pytest.approx(min(0.3, float(whole.norm())), rel=1e-9)


def test_no_rows_give_exactly_zero() -> None:
    network = network_of(0)
    found = compute_clipped_sum(network, points_of([[2, 3]]), np.empty(0, np.int64), 1.0, 4096)
    assert found.shape == (sum(p.numel() for p in network.parameters()),)
    assert not found.any()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    tokens=st.integers(1, 200),
    chosen=st.sets(st.integers(0, 59)),
)
def test_physical_batches_hold_every_row_once(lengths: list[int], tokens: int, chosen: set[int]) -> None:
    own = np.asarray(lengths, np.int64)
    rows = np.asarray(sorted(row for row in chosen if row < len(lengths)), np.int64)
    pieces = split_micro_batches(rows, own, tokens)
    assert sorted(int(row) for piece in pieces for row in piece) == rows.tolist()
    assert all(len(piece) == 1 or len(piece) * own[piece].max() <= tokens for piece in pieces)

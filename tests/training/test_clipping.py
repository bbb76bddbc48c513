"""Book-keeping clipping equals clipping of gradients computed one point at a time by autograd."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import clipped_sum
from redactory.training.network import LstmLanguageModel
from redactory.training.points import EncodedPoints, physical_batches

VOCABULARY = 11


def points_of(sequences: list[list[int]]) -> EncodedPoints:
    offsets = np.cumsum([0, *map(len, sequences)])
    return EncodedPoints(
        np.asarray([*chain.from_iterable(sequences)], np.int32), offsets.astype(np.int64), 1, 0
    )


def network_of(
    embedding: int, hidden: int, seed: int, dtype: torch.dtype, scale: float = 3.0
) -> LstmLanguageModel:
    network = LstmLanguageModel(VOCABULARY, embedding, hidden).to(dtype)
    network.initialise(RandomStream.from_seed(seed))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    return network


def gradient_of(network: LstmLanguageModel, points: EncodedPoints, row: int) -> Tensor:
    """One point's gradient through the fused LSTM and autograd: shares no code with the tape."""
    loss = network.token_losses(points.batch([row])).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


def reference(network: LstmLanguageModel, points: EncodedPoints, clip_norm: float) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in network.parameters()), dtype=next(network.parameters()).dtype)
    for row in range(len(points)):
        gradient = gradient_of(network, points, row)
        total += gradient * min(1.0, clip_norm / float(gradient.norm()))
    return total


SEQUENCES = st.lists(st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=9), max_size=7)


@settings(max_examples=60, deadline=None)
@given(
    sequences=SEQUENCES,
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    clip_norm=st.sampled_from([1e-3, 0.5, 3.0, 1e3]),
    tokens=st.sampled_from([1, 12, 4096]),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equals_clipping_one_point_at_a_time(
    sequences: list[list[int]],
    sizes: tuple[int, int],
    clip_norm: float,
    tokens: int,
    seed: int,
    dtype: torch.dtype,
) -> None:
    points, network = points_of(sequences), network_of(*sizes, seed, dtype)
    found = clipped_sum(network, points, np.arange(len(points)), clip_norm, tokens)
    expected = reference(network, points, clip_norm)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    # Each point's share is known to `tolerance`; their sum may cancel.
    scale = max(float(expected.norm()), min(clip_norm, 1.0) * len(points) * 0.1)
    assert float((found - expected).norm()) <= tolerance * scale


@settings(max_examples=40, deadline=None)
@given(sequences=SEQUENCES.filter(len), seed=st.integers(0, 99))
def test_one_point_alone_has_at_most_the_clipping_norm(sequences: list[list[int]], seed: int) -> None:
    points, network = points_of(sequences), network_of(3, 4, seed, torch.float64)
    for row in range(len(points)):
        own = float(clipped_sum(network, points, np.array([row]), 0.3, 4096).norm())
        assert own <= 0.3 * (1 + 1e-12)
        assert own == pytest.approx(min(0.3, float(gradient_of(network, points, row).norm())), rel=1e-9)


def test_no_rows_give_exactly_zero() -> None:
    network = network_of(3, 4, 0, torch.float32)
    found = clipped_sum(network, points_of([[2, 3]]), np.empty(0, np.int64), 1.0, 4096)
    assert found.shape == (sum(p.numel() for p in network.parameters()),)
    assert not found.any()


def test_a_point_without_a_finite_gradient_counts_as_zero() -> None:
    network = network_of(3, 4, 0, torch.float64)
    with torch.no_grad():
        network.embedding.weight[10] = torch.inf
    # Token 10 as an input spoils its own point only (as a last target it is never read).
    points = points_of([[2, 3, 4], [10, 3, 4], [5, 6, 10]])
    found = clipped_sum(network, points, np.arange(3), 0.5, 4096)
    assert torch.isfinite(found).all()
    good = clipped_sum(network, points, np.array([0, 2]), 0.5, 4096)
    torch.testing.assert_close(found, good, rtol=1e-12, atol=1e-14)
    assert not clipped_sum(network, points, np.array([1]), 0.5, 4096).any()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    tokens=st.integers(1, 200),
    chosen=st.sets(st.integers(0, 59)),
)
def test_physical_batches_hold_every_row_once_within_the_bound(
    lengths: list[int], tokens: int, chosen: set[int]
) -> None:
    own = np.asarray(lengths, np.int64)
    rows = np.asarray(sorted(row for row in chosen if row < len(lengths)), np.int64)
    pieces = physical_batches(rows, own, tokens)
    assert sorted(int(row) for piece in pieces for row in piece) == rows.tolist()
    assert all(len(piece) == 1 or len(piece) * own[piece].max() <= tokens for piece in pieces)


def test_the_recorded_forward_pass_is_the_fused_one() -> None:
    from redactory.training.tape import Tape

    network, points = network_of(5, 6, 3, torch.float64), points_of([[2, 3, 4, 5], [6], [7, 8, 2]])
    batch = points.batch([0, 1, 2])
    recorded = network.recorded_losses(batch, Tape(dict(network.named_parameters())))
    fused = torch.stack([network.token_losses(points.batch([row])).sum() for row in range(3)])
    torch.testing.assert_close(recorded, fused, rtol=1e-12, atol=1e-12)

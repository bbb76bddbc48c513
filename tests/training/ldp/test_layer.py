"""The DP layer: what it clips, that its noise is the accounted one, and that noise is never used twice."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.lattice import spacing
from redactory.training.ldp.layer import DPLayer

SEED = RandomStream.from_seed(5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_clipping_is_that_of_the_paper_whatever_comes(rows: list[list[float]], clip: float) -> None:
    layer = DPLayer(clip, 1.0)
    found = layer.clip(torch.tensor(rows, dtype=torch.float64)).numpy()
    assert layer.not_finite == sum(not np.isfinite(row).all() for row in rows)
    for row, own in zip(rows, found, strict=True):
        length = math.hypot(*row)
        assert math.hypot(*own) <= clip * (1 + 1e-12)
        if not np.isfinite(row).all():
            assert not own.any()
        elif length <= clip * (1 - 1e-12):
            np.testing.assert_array_equal(own, row)
        elif math.isfinite(length):
            np.testing.assert_allclose(own, np.array(row) * (clip / length), rtol=1e-9, atol=1e-300)


def test_an_example_is_its_whole_tensor_and_antipodes_are_two_clips_apart() -> None:
    layer = DPLayer(0.5, 1.0)
    clipped = layer.clip(torch.randn(4, 7, 3))
    np.testing.assert_allclose(clipped.flatten(1).norm(dim=1).numpy(), 0.5, rtol=1e-12)
    far = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])
    apart = float((layer.clip(far)[0] - layer.clip(far)[1]).norm())
    assert apart == pytest.approx(layer.sensitivity, rel=1e-12) == 1.0


def _noise(
    multiplier: float, count: int = 1500, clip: float = 2.0
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    layer = DPLayer(clip, multiplier, SEED)
    assert layer.seeded
    return layer(torch.zeros(count, 8)).numpy().astype(np.float64).ravel()


def test_the_noise_is_the_accounted_one_and_a_weaker_one_is_told_from_it() -> None:
    drawn = _noise(1.5)
    assert stats.kstest(drawn / 3.0, "norm").pvalue > 1e-3
    for weaker in (1.4, 1.0):
        assert stats.kstest(_noise(weaker) / 3.0, "norm").pvalue < 1e-4
    # two values of one example, and two examples: no dependence
    table = drawn.reshape(-1, 8)
    assert abs(np.corrcoef(table[:, 0], table[:, 1])[0, 1]) < 4 / math.sqrt(len(table))
    assert abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 4 / math.sqrt(len(table))


def test_the_noise_does_not_depend_on_what_it_hides() -> None:
    x = torch.randn(20, 6) * 3
    own, bare = DPLayer(1.0, 0.5, SEED), DPLayer(1.0, 0.5, SEED)
    np.testing.assert_allclose(own(x) - bare(torch.zeros(20, 6)), own.clip(x), atol=3e-6)


def test_values_lie_on_the_lattice_of_one_example() -> None:
    found = DPLayer(1.0, 0.01)(torch.zeros(50, 16)).double().numpy() / spacing(1.0, 16)
    np.testing.assert_array_equal(found, np.rint(found))
    assert (found % 2).any()


def test_noise_is_never_used_twice() -> None:
    layer, zeros = DPLayer(1.0, 1.0), torch.zeros(3, 4)
    copied, stored = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    own = [layer(zeros), layer(zeros), copied(zeros), stored(zeros), DPLayer(1.0, 1.0, SEED)(zeros)]
    own += [DPLayer(1.0, 1.0, RandomStream(bytes(32)))(zeros) for _ in range(2)]
    rows = torch.cat(own)
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_a_seed_repeats_the_noise_step_by_step() -> None:
    first, again = DPLayer(1.0, 1.0, SEED), DPLayer(1.0, 1.0, SEED)
    assert torch.equal(
        torch.cat([first(torch.zeros(2, 3)), first(torch.zeros(1, 3))]), again(torch.zeros(3, 3))
    )


def test_evaluation_keeps_the_noise_and_no_gradient_passes() -> None:
    layer = DPLayer(1.0, 1.0).eval()
    assert not list(layer.parameters())
    x = torch.randn(2, 3, requires_grad=True)
    y = layer(x)
    assert (y.dtype, y.requires_grad, y.shape) == (torch.float32, False, x.shape)
    assert float((y - layer(x)).abs().min()) > 0


def test_what_cannot_be_promised_is_refused() -> None:
    for clip, noise in ((-1.0, 1.0), (1.0, 0.0), (1.0, math.inf)):
        with pytest.raises(ConfigurationError, match=r"ldp\."):
            DPLayer(clip, noise)
    with pytest.raises(ConfigurationError, match="clip"):
        DPLayer(1.0, 1.0).noised(torch.tensor([[1.0, 0.1]]))
    with pytest.raises(ConfigurationError, match="examples"):
        DPLayer(1.0, 1.0)(torch.zeros(3))

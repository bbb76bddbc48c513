"""Marginals of the CRF against every tag sequence, weighed by Stanza's own loss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax
from stanza.models.common.crf import CRFLoss

from redactory.detectors.stanza_ner import marginals

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
def test_marginals_are_sums_over_all_sequences(
    chain: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    emissions, transitions = chain
    count, tags = emissions.shape
    crf = CRFLoss(tags)
    crf._transitions.data = torch.tensor(transitions)
    scores, mask = torch.tensor(emissions)[None], torch.zeros(1, count, dtype=torch.bool)
    expected = np.zeros((count, tags))
    for sequence in itertools.product(range(tags), repeat=count):
        probability = np.exp(-crf(scores, mask, torch.tensor([sequence]))[0].item())
        expected[range(count), sequence] += probability
    np.testing.assert_allclose(marginals(emissions, transitions), expected, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_long_chains_with_large_weights_stay_probabilities(scale: float) -> None:
    random = np.random.default_rng(1)
    found = marginals(scale * random.normal(size=(700, 9)), scale * random.normal(size=(9, 9)))
    assert np.isfinite(found).all()
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)


def test_without_transitions_it_is_a_softmax_of_each_row() -> None:
    emissions = np.random.default_rng(2).normal(size=(20, 5))
    np.testing.assert_allclose(marginals(emissions, np.zeros((5, 5))), softmax(emissions, axis=1))


def test_transitions_run_from_row_to_column() -> None:
    follow = np.array([[0.0, 50.0], [0.0, 0.0]])
    assert marginals(np.zeros((2, 2)), follow)[1, 1] > 0.99


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(wrong: float) -> None:
    spoilt = np.array([[0.0, wrong], [0.0, 0.0]])
    with pytest.raises(ValueError, match="finite"):
        marginals(spoilt, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="finite"):
        marginals(np.zeros((2, 2)), spoilt)

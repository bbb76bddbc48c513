"""Perplexity and exposure on the language model that training makes, not only on the tests' own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from redactory.evaluation import canary_exposure
from redactory.evaluation import utility as perplexity
from redactory.evaluation.continuations import continuation_log_probs
from redactory.foundation.stream import RandomStream
from redactory.training.model import LanguageModel
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def lstm() -> LanguageModel:
    """Fresh weights, in float64 so that every order of sums gives the same ranks."""
    tokenizer = Tokenizer.from_texts(["My ID is on the card.", "My order is late, is it?"], size=50)
    network = LstmLanguageModel(tokenizer.size, embedding_size=24, hidden_size=32)
    network.initialise(RandomStream.from_seed(5))
    return LanguageModel(tokenizer, network.double())


def test_the_trie_ranks_as_the_model_scores_whole_texts(lstm: LanguageModel) -> None:
    before = "My ID is: "
    texts = [f"{before}{number:03d}" for number in range(1000)]
    whole = np.array([scores[-4:-1].sum() for scores in lstm.token_log_probs(texts)])
    trie = continuation_log_probs(lstm, before, 3)
    np.testing.assert_allclose(trie, whole, rtol=0, atol=1e-12)
    assert (np.argsort(trie) == np.argsort(whole)).all()


def test_fresh_weights_know_no_canary_and_no_text(lstm: LanguageModel) -> None:
    canaries = {
        "template": "My ID is: {digits}", "inserted": ["0417", "9925"], "control": ["3306"], "copies": 1,
    }  # fmt: skip
    result = canary_exposure(lstm, canaries)
    assert result["candidates"] == 10_000
    assert result["highest_exposure"] < math.log2(10_000)
    measured = perplexity(lstm, ["My order is late.", "Is it?"])
    assert measured["perplexity"] == pytest.approx(lstm.tokenizer.size, rel=0.2)

"""The walk over tokens against whole texts, for transformers with a cache and tokenizers of any cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from redactory.evaluation.canary import canary_exposure, middle_rank
from redactory.evaluation.continuations import continuation_log_probs, given_log_probs
from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream
from redactory.training.model import LanguageModel
from redactory.training.models.build import network_of
from redactory.training.models.folder_tokenizer import FolderTokenizer
from redactory.training.models.settings import Gpt2Settings, LstmSettings
from redactory.training.tokenizer import Tokenizer
from tests.training.tiny_folders import causal_folder

BEFORE = "My ID is: "


def _gpt2(folder: Path, single_digits: bool = True, **config: Any) -> LanguageModel:
    causal_folder(folder, "gpt2", **config)
    tokenizer = FolderTokenizer.from_folder(folder, single_digits)
    network = network_of(Gpt2Settings(kind="gpt2", folder=folder), tokenizer).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            # random weights of 0.02 give all numbers nearly one score
            parameter.mul_(4.0)
    return LanguageModel(tokenizer, network)


def _brute_force(model: LanguageModel, strings: list[str]) -> NDArray[np.float64]:
    """Log probability of the whole text but its end: what all share changes no rank."""
    texts = [BEFORE + string for string in strings]
    return np.array([scores[:-1].sum() for scores in model.token_log_probs(texts, batch_size=2_000)])


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_s_cache_gives_brute_force_rank_for_rank(tmp_path: Path, tied: bool) -> None:
    model = _gpt2(tmp_path, tie_word_embeddings=tied)
    names = dict(model.network.named_parameters(remove_duplicate=False))
    assert (names["model.lm_head.weight"] is names["model.transformer.wte.weight"]) == tied
    scores = continuation_log_probs(model, BEFORE, 4)
    slow = _brute_force(model, [f"{n:04d}" for n in range(10_000)])
    np.testing.assert_allclose(scores - scores[0], slow - slow[0], rtol=0, atol=1e-9)
    assert (np.argsort(scores, kind="stable") == np.argsort(slow, kind="stable")).all()
    for number in (0, 417, 9_999):
        assert middle_rank(scores, number) == middle_rank(slow, number)


def test_a_tokenizer_that_joins_digits_is_ranked_exactly_too(tmp_path: Path) -> None:
    model = _gpt2(tmp_path, single_digits=False)
    lengths = {len(model.tokenizer.encode(f"{BEFORE}{n}")) for n in ("102", "999", "231")}
    assert len(lengths) == 2
    scores = continuation_log_probs(model, BEFORE, 3)
    slow = _brute_force(model, [f"{n:03d}" for n in range(1_000)])
    np.testing.assert_allclose(scores - scores[0], slow - slow[0], rtol=0, atol=1e-9)
    result = canary_exposure(
        model, {"template": BEFORE + "{digits}", "inserted": ["102"], "control": ["999"], "copies": 1}
    )
    assert [row["rank"] for row in result["canaries"]] == [middle_rank(slow, n) for n in (102, 999)]


def test_a_cache_that_forgets_a_place_is_found_out(tmp_path: Path) -> None:
    model = _gpt2(tmp_path)
    right = continuation_log_probs(model, BEFORE, 2)
    step = model.network.step
    model.network.step = lambda ids, state: step(ids, tuple(part[:, :, 1:] for part in state))  # type: ignore[method-assign]
    assert not np.allclose(continuation_log_probs(model, BEFORE, 2), right, atol=1e-6)


def test_given_strings_are_those_of_the_whole_walk_in_any_order_and_number() -> None:
    tokenizer = Tokenizer.from_texts(["My ID is"], 10)
    network = network_of(LstmSettings(embedding_size=8, hidden_size=12), tokenizer)
    network.initialise(RandomStream.from_seed(1))
    model = LanguageModel(tokenizer, network.double())
    whole = continuation_log_probs(model, BEFORE, 3)
    slow = _brute_force(model, [f"{n:03d}" for n in range(1_000)])
    np.testing.assert_allclose(whole - whole[0], slow - slow[0], rtol=0, atol=1e-12)
    strings = ["417", "002", "999", "417", "410"]
    np.testing.assert_allclose(
        given_log_probs(model, BEFORE, strings), whole[[417, 2, 999, 417, 410]], atol=1e-12
    )
    mixed = ["41", "417", "4", "Ada", "41"]
    slow = _brute_force(model, mixed) - _brute_force(model, [""])[0]
    np.testing.assert_allclose(given_log_probs(model, BEFORE, mixed), slow, atol=1e-12)
    assert len(given_log_probs(model, BEFORE, [])) == 0


def test_what_does_not_fit_the_context_or_is_no_string_is_refused(tmp_path: Path) -> None:
    model = _gpt2(tmp_path)
    assert len(continuation_log_probs(model, "a" * 61, 3)) == 1_000
    with pytest.raises(CheckFailed, match="context"):
        continuation_log_probs(model, "a" * 62, 3)
    with pytest.raises(CheckFailed, match="same tokens"):
        given_log_probs(model, BEFORE, ["", "1"])

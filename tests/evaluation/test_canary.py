"""Exposure by the trie against exposure by brute force; chance's own exposures are recognised as chance."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from redactory.evaluation import canary_copies_left, canary_exposure
from redactory.evaluation.canary import exposure_against_chance, highest_quantile, middle_rank
from redactory.evaluation.continuations import continuation_log_probs, given_log_probs
from redactory.evaluation.plots import exposure_plot
from redactory.foundation.errors import CheckFailed, InputError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder, part_name
from redactory.redaction.shards import PRIVATE, PUBLIC, write_part
from redactory.training.model import LanguageModel
from redactory.training.models.build import network_of
from redactory.training.models.folder_tokenizer import FolderTokenizer
from redactory.training.models.settings import Gpt2Settings, LstmSettings
from redactory.training.tokenizer import Tokenizer
from tests.evaluation.small_model import SmallModel
from tests.training.tiny_folders import causal_folder

BEFORE = "My ID is: "


def _brute_force(model: Any, strings: list[str]) -> NDArray[np.float64]:
    """Log probability of the whole text but its end: what all share changes no rank."""
    texts = [BEFORE + string for string in strings]
    return np.array([scores[:-1].sum() for scores in model.token_log_probs(texts, batch_size=2_000)])


def _numbers(digits: int) -> list[str]:
    return [f"{number:0{digits}d}" for number in range(10**digits)]


def _same_ranks(scores: NDArray[np.float64], slow: NDArray[np.float64], atol: float) -> None:
    np.testing.assert_allclose(scores - scores[0], slow - slow[0], rtol=0, atol=atol)
    assert (np.argsort(scores, kind="stable") == np.argsort(slow, kind="stable")).all()


def _gpt2(folder: Path, single_digits: bool = True, **config: Any) -> LanguageModel:
    causal_folder(folder, "gpt2", **config)
    tokenizer = FolderTokenizer.from_folder(folder, single_digits)
    network = network_of(Gpt2Settings(kind="gpt2", folder=folder), tokenizer).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            # random weights of 0.02 give all numbers nearly one score
            parameter.mul_(4.0)
    return LanguageModel(tokenizer, network)


def _canaries(inserted: list[str], control: list[str], **more: Any) -> dict[str, Any]:
    return {"template": BEFORE + "{digits}", "inserted": inserted, "control": control, "copies": 4, **more}


# The walk over tokens against whole texts.


def test_trie_equals_brute_force_rank_for_rank(model: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _brute_force(model, _numbers(3))
    _same_ranks(continuation_log_probs(model, BEFORE, 3), slow, 1e-12)
    monkeypatch.setattr("redactory.evaluation.continuations._LARGEST_BATCH", 7)
    monkeypatch.setattr("redactory.evaluation.continuations._SMALLEST_BATCH", 7)
    _same_ranks(continuation_log_probs(model, BEFORE, 3), slow, 1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_s_cache_gives_brute_force_rank_for_rank(tmp_path: Path, tied: bool) -> None:
    model = _gpt2(tmp_path, tie_word_embeddings=tied)
    names = dict(model.network.named_parameters(remove_duplicate=False))
    assert (names["model.lm_head.weight"] is names["model.transformer.wte.weight"]) == tied
    right = continuation_log_probs(model, BEFORE, 4)
    _same_ranks(right, _brute_force(model, _numbers(4)), 1e-9)
    step = model.network.step
    # a cache that forgets a place is found out
    model.network.step = lambda ids, state: step(ids, tuple(part[:, :, 1:] for part in state))  # type: ignore[method-assign]
    assert not np.allclose(continuation_log_probs(model, BEFORE, 2), right[:100], atol=1e-6)


def test_a_tokenizer_that_joins_digits_is_ranked_exactly_too(tmp_path: Path) -> None:
    model = _gpt2(tmp_path, single_digits=False)
    lengths = {len(model.tokenizer.encode(f"{BEFORE}{n}")) for n in ("102", "999", "231")}
    assert len(lengths) == 2
    slow = _brute_force(model, _numbers(3))
    _same_ranks(continuation_log_probs(model, BEFORE, 3), slow, 1e-9)
    result = canary_exposure(model, _canaries(["102"], ["999"]))
    assert [row["rank"] for row in result["canaries"]] == [middle_rank(slow, n) for n in (102, 999)]


def test_given_strings_are_those_of_the_whole_walk_in_any_order_and_number() -> None:
    tokenizer = Tokenizer.from_texts(["My ID is"], 10)
    network = network_of(LstmSettings(embedding_size=8, hidden_size=12), tokenizer)
    network.initialise(RandomStream.from_seed(1))
    model = LanguageModel(tokenizer, network.double())
    whole = continuation_log_probs(model, BEFORE, 3)
    _same_ranks(whole, _brute_force(model, _numbers(3)), 1e-12)
    strings = ["417", "002", "999", "417", "410"]
    found = given_log_probs(model, BEFORE, strings)
    np.testing.assert_allclose(found, whole[[417, 2, 999, 417, 410]], atol=1e-12)
    mixed = ["41", "417", "4", "Ada", "41"]
    slow = _brute_force(model, mixed) - _brute_force(model, [""])[0]
    np.testing.assert_allclose(given_log_probs(model, BEFORE, mixed), slow, atol=1e-12)
    assert len(given_log_probs(model, BEFORE, [])) == 0


def test_what_does_not_fit_the_context_or_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    model = _gpt2(tmp_path)
    assert len(continuation_log_probs(model, "a" * 61, 3)) == 1_000
    with pytest.raises(CheckFailed, match="context"):
        continuation_log_probs(model, "a" * 62, 3)
    with pytest.raises(CheckFailed, match="same tokens"):
        given_log_probs(model, BEFORE, ["", "1"])


# Exposure of canaries.


def test_what_is_known_by_heart_is_exposed(model: SmallModel, known_by_heart: str) -> None:
    result = canary_exposure(model, _canaries([known_by_heart], ["862"]), copies_left=[3])
    first, control = result["canaries"]
    known = {"index": 0, "inserted": True, "rank": 1.0, "exposure": math.log2(1000), "copies_left": 3}
    assert first == known
    assert control["exposure"] < 5
    assert result["highest_exposure"] == result["mean_exposure"] == result["largest_possible"]
    assert result["control_highest_exposure"] == control["exposure"]
    assert (result["candidates"], result["copies"], result["copies_left"]) == (1000, 4, 3)
    assert known_by_heart not in str(result)


def test_a_model_that_knows_nothing_gives_the_middle(model: SmallModel) -> None:
    ignorant = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in ignorant.network.output.parameters():
            parameter.zero_()
    result = canary_exposure(ignorant, _canaries(["012345", "999999"], []))
    assert [row["rank"] for row in result["canaries"]] == [500_000.5] * 2
    assert result["mean_exposure"] == pytest.approx(1.0, abs=1e-5)
    assert result["control_mean_exposure"] is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_middle_rank_is_the_mean_over_all_ways_to_order_ties(values: list[int], data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(values) - 1))
    ranks = [place for place, value in enumerate(sorted(values, reverse=True), 1) if value == values[which]]
    assert middle_rank(np.array(values, dtype=np.float64), which) == sum(ranks) / len(ranks)


def test_several_templates_and_missed_canaries(model: SmallModel, known_by_heart: str) -> None:
    sets = [
        _canaries([known_by_heart, "501"], ["862", "113"], missed=[0]),
        {**_canaries(["77"], ["31"]), "template": "Call {digits}"},
    ]
    result = canary_exposure(model, {"sets": sets}, copies_left=[4, 1, 0])  # type: ignore[arg-type]
    assert result["candidates"] is None
    assert result["missed"] == 1
    assert result["highest_exposure_missed"] == result["highest_exposure"] > result["highest_exposure_caught"]
    rows = [(row["set"], row["index"], row["inserted"]) for row in result["canaries"]]
    assert rows == [(0, 0, True), (0, 1, True), (0, 0, False), (0, 1, False), (1, 0, True), (1, 0, False)]
    assert [row.get("copies_left") for row in result["canaries"]] == [4, 1, None, None, 0, None]
    fact = canary_exposure(model, {"sets": sets}, missed=[False, True, True])  # type: ignore[arg-type]
    assert (fact["missed"], fact["highest_exposure_caught"]) == (2, result["highest_exposure"])
    picture = exposure_plot(result)
    ElementTree.fromstring(picture)
    assert known_by_heart not in picture


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        (_canaries(["12", "123"], []), {}),
        (_canaries(["1x3"], []), {}),
        (_canaries([], []), {}),
        (_canaries(["123"], []), {"copies_left": [1, 2]}),
        (_canaries(["123"], []), {"missed": []}),
        (_canaries(["123"], [], missed=[1]), {}),
        ({**_canaries(["123"], []), "template": "{digits} is my ID"}, {}),
        ({"sets": []}, {}),
    ],
)
def test_canaries_that_do_not_fit_are_refused(model: SmallModel, wrong: Any, given: Any) -> None:
    with pytest.raises(InputError, match="canaries: "):
        canary_exposure(model, wrong, **given)


def test_copies_left_counts_points_not_substrings(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    public = ["My ID is: 123456", "123456 and 123456", "1234567", "A123456", "none"]
    private = ["my <MASK> 123456.", "(999999)", "<MASK>"]
    sides = (run.public, public, PUBLIC), (run.private, private, PRIVATE)
    for folder, texts, schema in sides:
        rows = [{"point_id": f"p{i}", "user": "u", "text": t, "reasons": []} for i, t in enumerate(texts)]
        write_part(folder / part_name(0), pa.Table.from_pylist(rows, schema=schema))
    left = canary_copies_left((run.public, run.private), _canaries(["123456", "999999", "000000"], []))
    assert left == [3, 1, 0]


# Against chance.


def _by_chance(seed: int, count: int) -> list[float]:
    ranks = np.ceil(RandomStream.from_seed(seed).uniform("ranks", 0, count) * 1e6)
    return [float(bits) for bits in np.log2(1e6 / ranks)]


def test_the_law_of_ten_canaries_is_the_known_one() -> None:
    chance = exposure_against_chance(_by_chance(0, 10), _by_chance(1, 10))["chance"]
    assert chance["highest_expected"] == pytest.approx(4.23, abs=0.005)
    assert chance["highest_95"] == pytest.approx(7.61, abs=0.005)
    assert chance["mean_expected"] == pytest.approx(1.4427, abs=1e-4)
    assert highest_quantile(1, 0.5) == 1.0


def test_p_values_of_chance_are_uniform_and_those_of_a_leak_small() -> None:
    found = [exposure_against_chance(_by_chance(seed, 10), ())["chance"] for seed in range(2, 402)]
    for name in ("highest_p_value", "mean_p_value"):
        values = np.sort([chance[name] for chance in found])
        gaps = np.abs(values - (np.arange(400) + 0.5) / 400)
        # Kolmogorov's bound at 400 draws, one in a thousand
        assert gaps.max() < 1.95 / np.sqrt(400)
    leak = exposure_against_chance([19.9, *_by_chance(1, 9)], ())["chance"]
    assert leak["highest_p_value"] < 1e-4
    assert leak["mean_p_value"] < 0.01


def test_intervals_hold_no_difference_for_chance_and_show_a_leak() -> None:
    held = 0
    for seed in range(40):
        intervals = exposure_against_chance(_by_chance(seed, 10), _by_chance(1000 + seed, 10))["intervals"]
        difference = intervals["mean_difference"]
        held += difference["low"] <= 0.0 <= difference["high"]
    assert held >= 33
    leak = exposure_against_chance([6.0 + bits for bits in _by_chance(1, 10)], _by_chance(2, 10))["intervals"]
    assert leak["mean_difference"]["low"] > 2.0
    gap = leak["mean_exposure"]["value"] - leak["control_mean_exposure"]["value"]
    assert leak["mean_difference"]["value"] == pytest.approx(gap)
    empty = exposure_against_chance((), (1.0, 2.0))
    assert set(empty["chance"].values()) == {None}
    assert empty["intervals"]["mean_difference"] == {"value": None, "low": None, "high": None}
    assert empty["intervals"]["control_mean_exposure"]["value"] == 1.5

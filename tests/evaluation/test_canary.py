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
from numpy.typing import NDArray
from scipy.stats import binomtest

from redactory.evaluation.canary import (
    SAMPLED,
    WEIGHTED,
    compare_exposure_with_chance,
    compute_chance_quantile,
    count_canary_copies,
    count_likelier_candidates,
    estimate_exposure_from_sample,
    measure_canary_exposure,
)
from redactory.evaluation.continuations import SampledNumbers, sample_numbers, score_all_numbers, score_strings
from redactory.evaluation.plots import plot_exposure
from redactory.foundation.errors import CheckFailed, InputError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder, format_part_name
from redactory.redaction.shards import PRIVATE, PUBLIC, write_part
from redactory.training.model import LanguageModel, build_language_network
from redactory.training.models.settings import FolderSettings, LstmSettings
from redactory.training.tokenizer import FolderTokenizer, Tokenizer
from tests.evaluation.small_model import Parrot, SmallModel
from tests.training.tiny_folders import causal_folder

BEFORE = "My ID is: "


def _brute_force(model: Any, strings: list[str]) -> NDArray[np.float64]:
    """Log probability of the whole text but its end: what all share changes no rank."""
    texts = [BEFORE + string for string in strings]
    return np.array([scores[:-1].sum() for scores in model.compute_token_log_probs(texts)])


def _numbers(digits: int) -> list[str]:
    return [f"{number:0{digits}d}" for number in range(10**digits)]


def _same_ranks(scores: NDArray[np.float64], slow: NDArray[np.float64], atol: float) -> None:
    np.testing.assert_allclose(scores - scores[0], slow - slow[0], rtol=0, atol=atol)
    assert (np.argsort(scores, kind="stable") == np.argsort(slow, kind="stable")).all()


def _gpt2(folder: Path, single_digits: bool = True, **config: Any) -> LanguageModel:
    causal_folder(folder, "gpt2", **config)
    tokenizer = FolderTokenizer.from_folder(folder, single_digits)
    network = build_language_network(FolderSettings(kind="folder", folder=folder), tokenizer).double().eval()
    # random weights of 0.02 give all numbers nearly one score
    return _scaled(LanguageModel(tokenizer, network), 4.0)


def _lstm(scale: float = 1.0) -> LanguageModel:
    tokenizer = Tokenizer.from_texts(["My ID is"], 10)
    network = build_language_network(LstmSettings(embedding_size=8, hidden_size=12), tokenizer)
    network.initialise(RandomStream.from_seed(1))
    return _scaled(LanguageModel(tokenizer, network.double()), scale)


def _scaled(model: LanguageModel, scale: float) -> LanguageModel:
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(scale)
    return model


def _canaries(inserted: list[str], control: list[str], **more: Any) -> dict[str, Any]:
    return {"template": BEFORE + "{digits}", "inserted": inserted, "control": control, "copies": 4, **more}


# The walk over tokens against whole texts.


def test_trie_equals_brute_force_rank_for_rank(model: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _brute_force(model, _numbers(3))
    _same_ranks(score_all_numbers(model, BEFORE, 3), slow, 1e-12)
    monkeypatch.setattr("redactory.evaluation.continuations._LARGEST_BATCH", 7)
    monkeypatch.setattr("redactory.evaluation.continuations._SMALLEST_BATCH", 7)
    _same_ranks(score_all_numbers(model, BEFORE, 3), slow, 1e-12)


def test_a_transformer_s_cache_gives_brute_force_rank_for_rank(tmp_path: Path) -> None:
    model = _gpt2(tmp_path)
    right = score_all_numbers(model, BEFORE, 3)
    _same_ranks(right, _brute_force(model, _numbers(3)), 1e-9)
    assert len(score_all_numbers(model, "a" * 61, 2)) == 100
    with pytest.raises(CheckFailed, match="context"):
        score_all_numbers(model, "a" * 62, 3)
    with pytest.raises(CheckFailed, match="same tokens"):
        score_strings(model, BEFORE, ["", "1"])
    step = model.network.step
    # a cache that forgets a place is found out
    model.network.step = lambda ids, state: step(ids, tuple(part[:, :, 1:] for part in state))  # type: ignore[method-assign]
    assert not np.allclose(score_all_numbers(model, BEFORE, 2), right[:100], atol=1e-6)


def test_a_tokenizer_that_joins_digits_is_ranked_exactly_too(tmp_path: Path) -> None:
    model = _gpt2(tmp_path, single_digits=False)
    lengths = {len(model.tokenizer.encode(f"{BEFORE}{n}")) for n in ("102", "999", "231")}
    assert len(lengths) == 2
    slow = _brute_force(model, _numbers(3))
    _same_ranks(score_all_numbers(model, BEFORE, 3), slow, 1e-9)
    result = measure_canary_exposure(model, _canaries(["102"], ["999"]))
    ranks = [(slow > slow[n]).sum() + ((slow == slow[n]).sum() + 1) / 2 for n in (102, 999)]
    assert [row["rank"] for row in result["canaries"]] == ranks


def test_given_strings_are_those_of_the_whole_walk_in_any_order_and_number() -> None:
    model = _lstm()
    whole = score_all_numbers(model, BEFORE, 3)
    strings = ["417", "002", "999", "417", "410"]
    found = score_strings(model, BEFORE, strings)
    np.testing.assert_allclose(found, whole[[417, 2, 999, 417, 410]], atol=1e-12)
    mixed = ["41", "417", "4", "Ada", "41"]
    slow = _brute_force(model, mixed) - _brute_force(model, [""])[0]
    np.testing.assert_allclose(score_strings(model, BEFORE, mixed), slow, atol=1e-12)
    assert len(score_strings(model, BEFORE, [])) == 0


# Exposure of canaries.


def test_what_is_known_by_heart_is_exposed(model: SmallModel, known_by_heart: str) -> None:
    result = measure_canary_exposure(model, _canaries([known_by_heart], ["862"]), copies_left=[3])
    first, control = result["canaries"]
    known = {"index": 0, "inserted": True, "missed": False, "rank": 1.0, "copies_left": 3}
    assert first == {**known, "exposure": math.log2(1000)}
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
    result = measure_canary_exposure(ignorant, _canaries(["01234", "99999"], []))
    assert [row["rank"] for row in result["canaries"]] == [50_000.5] * 2
    assert result["control_mean_exposure"] is None


def test_several_templates_and_missed_canaries(model: SmallModel, known_by_heart: str) -> None:
    sets = [
        _canaries([known_by_heart, "501"], ["862", "113"], missed=[0]),
        {**_canaries(["77"], ["31"]), "template": "Call {digits}"},
    ]
    result = measure_canary_exposure(model, {"sets": sets}, copies_left=[4, 1, 0])  # type: ignore[arg-type]
    assert result["candidates"] is None
    assert result["missed"] == 1
    assert result["highest_exposure_missed"] == result["highest_exposure"] > result["highest_exposure_caught"]
    rows = [(row["set"], row["index"], row["inserted"]) for row in result["canaries"]]
    assert rows == [(0, 0, True), (0, 1, True), (0, 0, False), (0, 1, False), (1, 0, True), (1, 0, False)]
    assert [row.get("copies_left") for row in result["canaries"]] == [4, 1, None, None, 0, None]
    fact = measure_canary_exposure(model, {"sets": sets}, missed=[False, True, True])  # type: ignore[arg-type]
    assert (fact["missed"], fact["highest_exposure_caught"]) == (2, result["highest_exposure"])
    picture = plot_exposure(result)
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
        measure_canary_exposure(model, wrong, **given)


def test_copies_left_counts_points_not_substrings(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    public = ["My ID is: 123456", "123456 and 123456", "1234567", "A123456", "none"]
    private = ["my <MASK> 123456.", "(999999)", "<MASK>"]
    sides = (run.public, public, PUBLIC), (run.private, private, PRIVATE)
    for folder, texts, schema in sides:
        rows = [{"example_id": f"p{i}", "user": "u", "text": t, "reasons": []} for i, t in enumerate(texts)]
        write_part(folder / format_part_name(0), pa.Table.from_pylist(rows, schema=schema))
    left = count_canary_copies((run.public, run.private), _canaries(["123456", "999999", "000000"], []))
    assert left == [3, 1, 0]


# More candidates than can be ranked.


def _sampled(scores: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    draws = RandomStream.from_seed(1).uniform("sample", 0, n)
    return scores[(draws * len(scores)).astype(np.int64)]


def test_sample_and_draws_together_give_the_exact_ranks() -> None:
    model = _lstm(6.0)
    scores = score_all_numbers(model, BEFORE, 5)
    drawn = sample_numbers(model, BEFORE, 5, 6_000, RandomStream.from_seed(2))
    assert drawn is not None
    assert (drawn.sampling_log_probs >= drawn.model_log_probs - 1e-9).all()
    ranks = (100, 300, 1_000, 3_000, 30_000, 50_000, 100_000)
    asked = np.sort(scores)[::-1][[rank - 1 for rank in ranks]]
    rows = list(estimate_exposure_from_sample(_sampled(scores, 2_000), asked, 10**5, drawn))
    assert [row["method"] for row in rows][:2] == [WEIGHTED] * 2
    assert rows[-1]["method"] == SAMPLED
    for row, rank in zip(rows, ranks, strict=True):
        exact = math.log2(1e5 / rank)
        assert abs(row["exposure"] - exact) < 0.5
        assert row["low"] <= row["exposure"] <= row["high"]
        # a bound at 95 %, which a sample may miss by a little
        assert row["at_least"] <= exact + 0.1
    # a law of drawing that is not the model's own is found out
    wrong = SampledNumbers(drawn.model_log_probs, drawn.sampling_log_probs + 2.0)
    assert abs(math.log2((1 + count_likelier_candidates(wrong, float(asked[1]))[0]) / 300)) > 1


def test_without_draws_a_canary_beyond_the_sample_has_a_bound_alone() -> None:
    sample = np.random.default_rng(1).standard_normal(20_000) - 1_000.0
    (row,) = estimate_exposure_from_sample(sample, np.array([40.0]) - 1_000.0, 10**9)
    assert row["exposure"] is row["method"] is None
    assert "merges digits" in row["reason"]
    # none of 20,000 scored as high: the share is at most 3/20,000 at 95 %
    assert row["at_least"] == pytest.approx(math.log2(20_000 / 3.0), abs=0.01)
    (flat,) = estimate_exposure_from_sample(np.full(5_000, -18.4), np.full(1, -18.4), 10**8)
    assert (flat["method"], flat["exposure"]) == (SAMPLED, 1.0)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_sample_is_two_sided_and_exact(confidence: float) -> None:
    n = 500
    for above in (30, 31, 100, 250, 499):
        sample = -np.arange(n, dtype=np.float64)
        (row,) = estimate_exposure_from_sample(sample, np.array([0.5 - above]), 10**9, confidence=confidence)
        ends = binomtest(above, n).proportion_ci(confidence)
        assert (row["low"], row["high"]) == pytest.approx((-math.log2(ends.high), -math.log2(ends.low)))
        # its own bound has one side
        once = binomtest(above, n, alternative="less").proportion_ci(confidence)
        assert row["at_least"] == pytest.approx(-math.log2(once.high))


def test_a_space_too_large_is_sampled_and_what_is_known_by_heart_stands_out() -> None:
    number, control = "417417417", "862862862"
    canaries = {"template": "My ID is: {digits}", "inserted": [number], "control": [control], "copies": 1}
    leaky = measure_canary_exposure(Parrot.of([f"My ID is: {number}"], 0.9), canaries, samples=2_000)
    flat = measure_canary_exposure(Parrot.of([], 0.0), canaries, samples=2_000)
    known = leaky["canaries"][0]
    # it has nine tenths of the probability at every digit: at most 1/0.9^9 candidates can be as likely
    assert known["method"] == WEIGHTED
    assert known["at_least"] > math.log2(1e9) - 1.0
    assert known["exposure"] == pytest.approx(math.log2(1e9), abs=1e-9)
    assert leaky["chance"]["highest_p_value"] < 1e-6
    assert flat["mean_exposure"] == flat["control_mean_exposure"] == 1.0
    assert leaky["candidates"] == 10**9
    assert number not in str(leaky)


# Against chance.


def _by_chance(seed: int, count: int) -> list[float]:
    ranks = np.ceil(RandomStream.from_seed(seed).uniform("ranks", 0, count) * 1e6)
    return [float(bits) for bits in np.log2(1e6 / ranks)]


def test_the_law_of_ten_canaries_is_the_known_one() -> None:
    chance = compare_exposure_with_chance(_by_chance(0, 10), _by_chance(1, 10))["chance"]
    assert chance["highest_expected"] == pytest.approx(4.23, abs=0.005)
    assert chance["highest_95"] == pytest.approx(7.61, abs=0.005)
    assert chance["mean_expected"] == pytest.approx(1.4427, abs=1e-4)
    assert compute_chance_quantile(1, 0.5) == 1.0


def test_p_values_of_chance_are_uniform_and_those_of_a_leak_small() -> None:
    found = [compare_exposure_with_chance(_by_chance(seed, 10), ())["chance"] for seed in range(2, 402)]
    for name in ("highest_p_value", "mean_p_value"):
        values = np.sort([chance[name] for chance in found])
        gaps = np.abs(values - (np.arange(400) + 0.5) / 400)
        # Kolmogorov's bound at 400 draws, one in a thousand
        assert gaps.max() < 1.95 / np.sqrt(400)
    leak = compare_exposure_with_chance([19.9, *_by_chance(1, 9)], ())["chance"]
    assert leak["highest_p_value"] < 1e-4
    assert leak["mean_p_value"] < 0.01


def test_intervals_hold_no_difference_for_chance_and_show_a_leak() -> None:
    held = 0
    for seed in range(40):
        intervals = compare_exposure_with_chance(_by_chance(seed, 10), _by_chance(1000 + seed, 10))["intervals"]
        difference = intervals["mean_difference"]
        held += difference["low"] <= 0.0 <= difference["high"]
    assert held >= 33
    leak = compare_exposure_with_chance([6.0 + bits for bits in _by_chance(1, 10)], _by_chance(2, 10))["intervals"]
    assert leak["mean_difference"]["low"] > 2.0
    empty = compare_exposure_with_chance((), (1.0, 2.0))
    assert set(empty["chance"].values()) == {None}
    assert empty["intervals"]["mean_difference"] == {"value": None, "low": None, "high": None}
    assert empty["intervals"]["control_mean_exposure"]["value"] == 1.5

"""Exposure by the trie against exposure by brute force."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation import canary_copies_left, canary_exposure
from redactory.evaluation.canary import middle_rank
from redactory.evaluation.continuations import continuation_log_probs
from redactory.foundation.errors import CheckFailed, InputError
from redactory.redaction.folder import RunFolder, part_name
from redactory.redaction.shards import PRIVATE, PUBLIC, write_part
from tests.evaluation.small_model import SmallModel

_BEFORE = "My ID is: "


def _brute_force(model: SmallModel, digits: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    texts = [f"{_BEFORE}{number:0{digits}d}" for number in range(10**digits)]
    return np.array([row[len(_BEFORE) : -1].sum() for row in model.token_log_probs(texts)])


def _canaries(inserted: list[str], control: list[str]) -> dict[str, Any]:
    return {"template": "My ID is: {digits}", "inserted": inserted, "control": control, "copies": 4}


def test_trie_equals_brute_force_rank_for_rank(model: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _brute_force(model, 3)
    whole = continuation_log_probs(model, _BEFORE, 3)
    monkeypatch.setattr("redactory.evaluation.continuations._LARGEST_BATCH", 7)
    monkeypatch.setattr("redactory.evaluation.continuations._SMALLEST_BATCH", 7)
    pieces = continuation_log_probs(model, _BEFORE, 3)
    for scores in (whole, pieces):
        np.testing.assert_allclose(scores, slow, rtol=0, atol=1e-12)
        assert (np.argsort(scores) == np.argsort(slow)).all()


def test_a_walk_that_forgets_the_state_is_found_out(model: SmallModel) -> None:
    forgetful = copy.deepcopy(model)
    step = forgetful.network.step
    forgetful.network.step = lambda ids, state: step(ids, forgetful.network.initial_state(len(ids)))  # type: ignore[method-assign]
    slow = _brute_force(model, 2)
    assert (np.argsort(continuation_log_probs(model, _BEFORE, 2)) == np.argsort(slow)).all()
    assert (np.argsort(continuation_log_probs(forgetful, _BEFORE, 2)) != np.argsort(slow)).any()


def test_what_is_known_by_heart_is_exposed(model: SmallModel, known_by_heart: str) -> None:
    result = canary_exposure(model, _canaries([known_by_heart], ["862"]), copies_left=[3])
    first, control = result["canaries"]
    assert first == {
        "index": 0, "inserted": True, "rank": 1.0, "exposure": math.log2(1000), "copies_left": 3,
    }  # fmt: skip
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


def test_what_does_not_fit_is_refused(model: SmallModel) -> None:
    for wrong in (_canaries(["12", "123"], []), _canaries(["1x3"], []), _canaries([], [])):
        with pytest.raises(InputError):
            canary_exposure(model, wrong)
    with pytest.raises(InputError):
        canary_exposure(model, _canaries(["123"], []), copies_left=[1, 2])
    with pytest.raises(InputError):
        canary_exposure(model, {**_canaries(["123"], []), "template": "{digits} is my ID"})
    pairs = copy.deepcopy(model)
    pairs.tokenizer.encode = lambda text: [2 + len(text) // 2]  # type: ignore[method-assign]
    with pytest.raises(CheckFailed):
        canary_exposure(pairs, _canaries(["123"], []))


def test_copies_left_counts_points_not_substrings(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    public = ["My ID is: 123456", "123456 and 123456", "1234567", "A123456", "none"]
    private = ["my <MASK> 123456.", "(999999)", "<MASK>"]
    write_part(
        run.public / part_name(0),
        pa.table({"point_id": [f"p{i}" for i in range(len(public))], "text": public}, schema=PUBLIC),
    )
    rows = [{"point_id": f"q{i}", "user": "u", "text": t, "reasons": []} for i, t in enumerate(private)]
    write_part(run.private / part_name(0), pa.Table.from_pylist(rows, schema=PRIVATE))
    assert canary_copies_left((run.public, run.private), _canaries(["123456", "999999", "000000"], [])) == [
        3,
        1,
        0,
    ]

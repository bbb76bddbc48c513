"""The simulated corpus: its spans are the truth, and a seed is all it depends on."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from faker import Faker
from hypothesis import given, settings
from hypothesis import strategies as st

import redactory.evaluation
from redactory.evaluation.simulator import get_canary_path, simulate, simulate_dialogues
from redactory.foundation.errors import ConfigurationError

_SAID = yaml.safe_load((Path(redactory.evaluation.__file__).parent / "dialogues.yaml").read_text("utf-8"))
_TEMPLATE_WORDS = set(re.findall(r"\w+", f"{json.dumps(_SAID)} SYS USR My ID is"))


def _without_spans(row: dict[str, Any]) -> str:
    pieces, position = [], 0
    for span in row["spans"]:
        pieces.append(row["text"][position : span["start"]])
        position = span["end"]
    return " ".join([*pieces, row["text"][position:]])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**63), rows=st.integers(1, 60), canaries=st.integers(0, 4), copies=st.integers(1, 5))
def test_spans_are_exact_and_nothing_else_is_secret(seed: int, rows: int, canaries: int, copies: int) -> None:
    simulation = simulate_dialogues(rows, seed, canaries, copies)
    told = list(simulation.rows)
    assert len(told) == rows
    assert len({row["id"] for row in told}) == rows
    for row in told:
        ends = 0
        for span in row["spans"]:
            assert row["text"][span["start"] : span["end"]] == span["value"]
            assert span["start"] >= ends
            ends = span["end"]
        assert all(line.startswith(("SYS: ", "USR: ")) for line in row["text"].split("\n"))
        assert set(re.findall(r"\w+", _without_spans(row))) <= _TEMPLATE_WORDS
    found = Counter(span["value"] for row in told for span in row["spans"] if span["label"] == "CANARY")
    assert found == Counter(simulation.canaries["inserted"] * copies)
    assert not found.keys() & set(simulation.canaries["control"])
    assert len(simulation.canaries["control"]) == len(simulation.canaries["inserted"]) == canaries


def test_a_seed_gives_the_same_bytes_whatever_other_randomness_did(tmp_path: Path) -> None:
    first = simulate(tmp_path / "a.jsonl", 150, 7, canaries=3, copies=2)
    Faker.seed(99)
    Faker("en_US").name()
    random.seed(3)
    second = simulate(str(tmp_path / "b.jsonl"), 150, 7, canaries=3, copies=2)
    other = simulate(tmp_path / "c.jsonl", 150, 8, canaries=3, copies=2)
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    assert a == b != c
    assert first["secrets"] == second["secrets"] != other["secrets"]
    assert get_canary_path(tmp_path / "a.jsonl").read_bytes() == get_canary_path(tmp_path / "b.jsonl").read_bytes()


def test_canaries_leave_the_dialogues_around_them_as_they_were() -> None:
    plain = simulate_dialogues(40, 5).rows
    planted = simulate_dialogues(40, 5, canaries=10, copies=4).rows
    for left, right in zip(plain, planted, strict=True):
        kept = [line for line in right["text"].split("\n") if not line.startswith("USR: My ID is: ")]
        assert "\n".join(kept) == left["text"]


def test_summary_and_rows_agree(tmp_path: Path) -> None:
    seen: list[int] = []
    summary = simulate(
        tmp_path / "x.jsonl", 1200, 1, 2, 3, progress=lambda work, done, total, unit="": seen.append(done)
    )
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    visits = Counter(row["user_id"] for row in rows)
    assert summary["rows"] == len(rows) == 1200
    assert summary["users"] == len(visits)
    assert summary["secrets"] == Counter(span["label"] for row in rows for span in row["spans"])
    assert summary["secrets"]["CANARY"] == 6
    assert set(summary["secrets"]) == {*_SAID["secret_labels"].values(), "CANARY"}
    assert {1, 2, 3} <= set(visits.values()) <= {1, 2, 3, 4}
    assert any(not row["spans"] for row in rows)
    assert seen == [1000, 1200]
    # a million rows are never held
    assert next(simulate_dialogues(10**6, 1, canaries=10, copies=20).rows)["id"] == "sim-1-0"


@pytest.mark.parametrize(("rows", "canaries", "copies"), [(-1, 0, 1), (0, 1, 1), (5, 1, 0), (5, 500_001, 1)])
def test_impossible_wishes_are_refused(rows: int, canaries: int, copies: int) -> None:
    with pytest.raises(ConfigurationError):
        simulate_dialogues(rows, 1, canaries, copies)

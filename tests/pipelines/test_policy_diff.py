"""The difference of two policies: by key, empty where the hashes are equal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import ConservativeSettings
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.policy import policy_diff
from tests.pipelines.support import DigitDetector, write_rows

DETECT: dict[str, Any] = {"tagger": None, "spacy": {"model": "blank:en"}, "patterns": None}


def config(**detect: Any) -> dict[str, Any]:
    rules = {"rules": ["digit", "capital"], **detect.pop("conservative", {})}
    return {"input": "-", "detect": {**DETECT, **detect, "conservative": rules}}


def keys(differences: dict[str, list[dict[str, Any]]]) -> tuple[set[str], set[str]]:
    """The keys that differ, of π and of π_c, but for the hash, which must be among them."""
    found = []
    for name in ("strict", "conservative"):
        own = {d["key"] for d in differences[name]}
        assert ("hash" in own) == bool(own)
        found.append(own - {"hash"})
    return found[0], found[1]


def test_the_same_policies_do_not_differ() -> None:
    assert policy_diff(config(), Config.model_validate(config())) == {"strict": [], "conservative": []}


@pytest.mark.parametrize(
    ("changes", "strict", "conservative"),
    [
        ({"conservative": {"min_non_entity_probability": 0.8}}, set(), {"min_non_entity_probability"}),
        ({"conservative": {"rules": ["digit"]}}, set(), {"rules"}),
        ({"strict": {"extra_labels": {"LAW": 0.2}}}, {"extra_labels.LAW"}, set()),
        ({"max_chars": 7}, {"dependencies.engines.max_chars"}, {"dependencies.engines.max_chars"}),
    ],
)
def test_what_differs_is_named_by_its_key(changes: dict[str, Any], strict: set[str], conservative: set[str]) -> None:
    forth, back = policy_diff(config(), config(**changes)), policy_diff(config(**changes), config())
    assert keys(forth) == keys(back) == (strict, conservative)
    turned = {name: [{**d, "old": d["new"], "new": d["old"]} for d in own] for name, own in back.items()}
    assert forth == turned


def test_values_are_given_and_null_where_there_is_none() -> None:
    changed = config(conservative={"min_non_entity_probability": 0.5}, strict={"extra_labels": {"LAW": 0.2}})
    differences, before = policy_diff(config(), changed), ConservativeSettings().min_non_entity_probability
    assert {"key": "min_non_entity_probability", "old": before, "new": 0.5} in differences["conservative"]
    assert {"key": "extra_labels.LAW", "old": None, "new": 0.2} in differences["strict"]


def test_a_model_differs_by_its_content(tmp_path: Path) -> None:
    import spacy

    first, second = tmp_path / "first", tmp_path / "second"
    spacy.blank("en").to_disk(first)
    shutil.copytree(first, second)
    (second / "tokenizer").write_bytes((second / "tokenizer").read_bytes() + b"\0")
    differences = policy_diff(config(spacy={"model": str(first)}), config(spacy={"model": str(second)}))
    assert keys(differences) == ({"dependencies.identities.spacy.sha256"}, {"dependencies.identities.spacy.sha256"})


def test_a_finished_run_is_compared_with_a_configuration(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "1", "text": "all is well"}])
    given = {**config(), "input": str(rows)}
    curate(given, output=tmp_path / "run", detector=DigitDetector())
    assert policy_diff(tmp_path / "run", given) == {"strict": [], "conservative": []}
    assert policy_diff(str(tmp_path / "run"), tmp_path / "run") == {"strict": [], "conservative": []}
    other = config(conservative={"min_non_entity_probability": 0.8})
    assert keys(policy_diff(tmp_path / "run", other)) == (set(), {"min_non_entity_probability"})

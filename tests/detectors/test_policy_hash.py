"""The hash of a policy changes with everything that can change what it marks, and with nothing else."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import DetectSettings, changed_since, policy_hashes, policy_records
from redactory.detectors import rules as words
from redactory.detectors.policy import VERSIONED
from redactory.detectors.rules import _words_hash
from redactory.foundation.canonical import version_of

BLANK: dict[str, Any] = {"tagger": None, "spacy": {"model": "blank:en"}, "patterns": None}
RULES_ON = {"rules": ["digit", "symbol", "capital", "name"]}
CUSTOM = {"name": "Own", "label": "BADGE", "patterns": {"blue": 0.4}}


def hashes(**changes: Any) -> tuple[str, str]:
    conservative = {**RULES_ON, **changes.get("conservative", {})}
    settings = DetectSettings.model_validate({**BLANK, **changes, "conservative": conservative})
    found = policy_hashes(settings)
    return found["strict"], found["conservative"]


BOTH, STRICT, CONSERVATIVE, NEITHER = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"strict": {"labels": {"PERSON": 0.3}}}, STRICT),
        ({"strict": {"more_labels": {"MORE": 0.3}}}, STRICT),
        ({"conservative": {"plain_confidence": 0.91}}, CONSERVATIVE),
        ({"conservative": {"sure": 0.98}}, CONSERVATIVE),
        ({"conservative": {"rules": ["digit", "symbol", "capital"]}}, CONSERVATIVE),
        ({"conservative": {"flags_everything": True}}, CONSERVATIVE),
        ({"patterns": {}}, BOTH),
        ({"spacy": {"model": "blank:de"}}, BOTH),
        ({"spacy": None}, BOTH),
        ({"lists": {"deny": [{"words": ["Acme"]}]}}, BOTH),
        ({"language": "de"}, BOTH),
        ({"max_chars": 19_999}, BOTH),
        ({"batch_size": 1}, NEITHER),
        ({}, NEITHER),
    ],
)
def test_the_hash_changes_with_what_matters(changes: dict[str, Any], moved: tuple[bool, bool]) -> None:
    before, after = hashes(), hashes(**changes)
    assert (before[0] != after[0], before[1] != after[1]) == moved


def test_small_changes_count() -> None:
    base = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.3}}}
    turned = {"strict": {"labels": {"DATE": 0.3, "PERSON": 0.3}}}
    higher = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.30001}}}
    assert hashes(**base) == hashes(**turned) != hashes(**higher)
    customs = [
        CUSTOM,
        {**CUSTOM, "patterns": {"blue": 0.41}},
        {**CUSTOM, "patterns": {"blu": 0.4}},
        {**CUSTOM, "label": "OTHER"},
        {**CUSTOM, "context": ["badge"]},
        {**CUSTOM, "deny_list": ["red"]},
    ]
    patterns: list[dict[str, Any]] = [
        {},
        {"recognizers": ["EmailRecognizer"]},
        *({"custom": [c]} for c in customs),
    ]
    assert len({hashes(patterns=section) for section in patterns}) == len(patterns)


def test_what_changed_is_named_and_no_word_of_a_list() -> None:
    settings = DetectSettings.model_validate(BLANK)
    records = json.loads(json.dumps(policy_records(settings)))
    assert changed_since(settings, records) is None
    records["strict"]["stands_on"]["versions"]["redactory"] = "0.0.1"
    records["strict"]["hash"] = "another"
    told = changed_since(settings, records)
    assert told is not None
    assert "the strict policy is not that of the run any more: redactory was 0.0.1 and is " in told
    listed = DetectSettings.model_validate({**BLANK, "lists": {"deny": [{"words": ["Zed"]}]}})
    told = changed_since(listed, policy_records(settings))
    assert told is not None
    assert "Zed" not in told


@pytest.mark.parametrize("package", VERSIONED)
def test_the_hash_changes_with_a_version(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before = hashes(spacy=None)
    version = importlib.metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: version(name) + ".new" * (name == package))
        version_of.cache_clear()
        after = hashes(spacy=None)
    version_of.cache_clear()
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_hash_follows_the_terms_of_lists_and_not_their_place(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.txt", "second.txt", "other.txt")]
    for file, terms in zip(files, ("Acme\nOslo\n", "Acme\nOslo\n", "Acme\nParis\n"), strict=True):
        file.write_text(terms, encoding="utf-8")
    first, second, other = (hashes(lists={"deny": [{"file": str(f)}]}) for f in files)
    assert first == second
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_the_hash_changes_with_the_word_list_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with_words, without = {"conservative": {"rules": ["word"]}}, {"conservative": {"rules": ["digit"]}}
    before, unused = hashes(**with_words), hashes(**without)
    with monkeypatch.context() as patch:
        patch.setattr(words, "words_of", lambda language: frozenset({"only", "these"}))
        _words_hash.cache_clear()
        after = hashes(**with_words)
    _words_hash.cache_clear()
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    assert hashes(**without) == unused

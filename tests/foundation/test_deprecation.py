"""Old keys and old words are taken for the new ones, and each use is told; all else stays as it is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.foundation.deprecation import Deprecated, DeprecatedUse, with_new_keys, with_new_words
from redactory.foundation.errors import ConfigurationError

KEYS = {
    "dedup.rule": Deprecated("dedup.mode", "0.3.0", "0.5.0", "write dedup.mode"),
    "processes": Deprecated("workers", "0.3.0", "0.5.0", "write workers"),
    "hidden": Deprecated("train.model.hidden_size", "0.4.0", "1.0.0", "write train.model.hidden_size"),
}
WORDS = {
    "look": Deprecated("scan", "0.3.0", "0.5.0", "write redactory scan"),
    "labels export": Deprecated("labels to-label-studio", "0.3.0", "0.5.0", "write labels to-label-studio"),
    "scan --only": Deprecated("scan --column", "0.3.0", "0.5.0", "write --column"),
}
_NESTED: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["dedup", "mode", "train", "workers", "a"]), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            {"processes": 2},
            {"workers": 2},
            "processes is deprecated since 0.3.0 and goes with 0.5.0: write workers",
        ),
        (
            {"dedup": {"rule": "none", "scope": "user"}},
            {"dedup": {"scope": "user", "mode": "none"}},
            "dedup.rule",
        ),
        ({"hidden": 8}, {"train": {"model": {"hidden_size": 8}}}, "goes with 1.0.0"),
        (
            {"hidden": 8, "train": {"epochs": 1}},
            {"train": {"epochs": 1, "model": {"hidden_size": 8}}},
            "hidden",
        ),
    ],
)
def test_an_old_key_is_taken_for_the_new_one(old: dict[str, Any], new: dict[str, Any], told: str) -> None:
    before = repr(old)
    with pytest.warns(DeprecatedUse, match="job.yaml: .*" + told.replace(".", r"\.")):
        assert with_new_keys(old, KEYS, "job.yaml: ") == new
    assert repr(old) == before


def test_the_old_and_the_new_key_at_once_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"job\.yaml: dedup\.rule: .*old name of dedup\.mode.*remove"
    ):
        with_new_keys({"dedup": {"rule": "none", "mode": "exact"}}, KEYS, "job.yaml: ")


@given(st.dictionaries(st.sampled_from(["dedup", "train", "workers", "a"]), _NESTED))
def test_a_configuration_without_old_keys_is_handed_on(value: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_new_keys(value, KEYS) is value


def test_where_no_section_is_the_check_has_the_word() -> None:
    with pytest.warns(DeprecatedUse):
        assert with_new_keys({"hidden": 8, "train": "x"}, KEYS) == {"hidden": 8, "train": "x"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (["look", "a.txt"], ["scan", "a.txt"], "redactory look is deprecated"),
        (["labels", "export", "a"], ["labels", "to-label-studio", "a"], "redactory labels export"),
        (["scan", "--only", "x", "a"], ["scan", "--column", "x", "a"], "redactory scan --only"),
        (["scan", "--only=x", "--", "--only"], ["scan", "--column=x", "--", "--only"], "write --column"),
        (["look", "--only", "x"], ["scan", "--column", "x"], "redactory scan --only"),
    ],
)
def test_old_words_are_taken_for_the_new_ones(old: list[str], new: list[str], told: str) -> None:
    with pytest.warns(DeprecatedUse, match=told):
        assert with_new_words(old, WORDS) == new


@pytest.mark.parametrize(
    "words", [["scan", "look"], ["curate", "--only", "x"], ["labels"], [], ["scan", "--", "--only"]]
)
def test_other_words_stay(words: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_new_words(words, WORDS) == words

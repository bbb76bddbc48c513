"""Canonical JSON and the hashes over it."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.foundation.canonical import canonical_json, folder_sha256, hash_of

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def turned_round(value: Any) -> Any:
    """The same value with every mapping built in the opposite order."""
    if isinstance(value, dict):
        return {key: turned_round(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [turned_round(item) for item in value]
    return value


@given(VALUES)
def test_the_order_of_a_mapping_never_shows(value: Any) -> None:
    assert canonical_json(turned_round(value)) == canonical_json(value)
    assert hash_of(turned_round(value)) == hash_of(value)


@given(VALUES)
def test_nothing_is_lost(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(VALUES, VALUES)
def test_values_that_differ_have_hashes_that_differ(one: Any, other: Any) -> None:
    same = json.dumps(turned_round(one), sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (hash_of(one) == hash_of(other)) == same


def test_the_form_is_fixed_for_good() -> None:
    value = {"b": [1, 2.5, None, True], "a": "é\n<MASK>"}
    assert canonical_json(value) == '{"a":"é\\n<MASK>","b":[1,2.5,null,true]}'.encode()
    assert hash_of(value) == hashlib.sha256(canonical_json(value)).hexdigest()
    assert hash_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": {"b": [0, x]}}])
def test_no_number_that_json_lacks(number: float, wrap: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(wrap(number))


def folder(root: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return folder_sha256(root)


def test_a_folder_is_its_names_and_contents(tmp_path: Path) -> None:
    files = {"config.cfg": b"a", "vocab/strings.json": b"b"}
    own = folder(tmp_path / "own", files)
    assert folder(tmp_path / "copy", dict(reversed(files.items()))) == own
    assert folder(tmp_path / "compiled", {**files, "__pycache__/x.pyc": b"c"}) == own
    others = [
        {**files, "config.cfg": b"A"},
        {**files, "more": b""},
        {"config.cfg": b"a"},
        {"config.cfg": b"a", "vocab/strings2.json": b"b"},
        {"config.cfg": b"a", "vocab2/strings.json": b"b"},
        {"config.cfg": b"b", "vocab/strings.json": b"a"},
    ]
    hashes = {folder(tmp_path / str(number), other) for number, other in enumerate(others)}
    assert len(hashes) == len(others)
    assert own not in hashes

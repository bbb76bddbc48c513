"""What every settings class inherits, and the reports of stages."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from redactory.foundation.canonical import canonical_json, folder_sha256, json_sha256
from redactory.foundation.progress import StageReport, merge_reports
from redactory.foundation.settings import Settings

SECRET = "xyzzy-4711-hunter2"


class Inner(Settings):
    size: int = Field(1, ge=1)


class Outer(Settings):
    mode: Literal["one", "two"] = "one"
    rate: float = Field(0.5, gt=0, le=1)
    names: tuple[str, ...] = ()
    inner: Inner = Inner()
    table: dict[str, float] = Field({})


@pytest.mark.parametrize(
    "given_values",
    [
        {"mode": SECRET},
        {"rate": SECRET},
        {"rate": 4711.0},
        {"names": SECRET},
        {"names": [[SECRET]]},
        {"inner": SECRET},
        {"inner": {"size": SECRET}},
        {"inner": {"size": -4711}},
        {"table": {"a": SECRET}},
        {"unknown": SECRET},
        {"table": {"a": math.nan}},
        {"table": {"a": -math.inf}},
    ],
)
def test_a_wrong_setting_is_refused_and_its_value_not_quoted(given_values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(given_values)
    assert "xyzzy" not in str(caught.value)
    assert "4711" not in str(caught.value)
    assert next(iter(given_values)) in str(caught.value), "the key is named"


def test_settings_are_frozen_and_defaults_are_checked() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Outer().rate = 0.1  # type: ignore[misc]

    class Wrong(Settings):
        size: int = Field(0, ge=1)

    with pytest.raises(ValidationError):
        Wrong()


REPORTS = st.builds(
    StageReport,
    st.just("redact"),
    st.dictionaries(st.sampled_from(["rows", "masks", "x"]), st.integers(0, 99)).map(Counter),
    st.integers(0, 999).map(lambda n: n / 8),
    st.integers(0, 999).map(lambda n: n / 2),
)


@given(st.lists(REPORTS, max_size=6), st.randoms())
def test_merged_reports_add_up_in_any_order(reports: list[StageReport], random: Any) -> None:
    merged = merge_reports("redact", reports)
    assert merged.counts == sum((r.counts for r in reports), Counter())
    assert merged.seconds == sum(r.seconds for r in reports)
    assert merged.peak_mb == max((r.peak_mb for r in reports), default=0)
    random.shuffle(reports)
    assert merge_reports("redact", reports) == merged


# Canonical JSON and the hashes over it.


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
    assert json_sha256(turned_round(value)) == json_sha256(value)


@given(VALUES)
def test_nothing_is_lost(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


def test_the_form_is_fixed_for_good() -> None:
    value = {"b": [1, 2.5, None, True], "a": "é\n<MASK>"}
    assert canonical_json(value) == '{"a":"é\\n<MASK>","b":[1,2.5,null,true]}'.encode()
    assert json_sha256(value) == hashlib.sha256(canonical_json(value)).hexdigest()
    assert json_sha256({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


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

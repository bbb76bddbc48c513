"""What every settings class inherits, and the reports of stages."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

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
    ],
)
def test_a_wrong_setting_is_refused_and_its_value_not_quoted(given_values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(given_values)
    assert "xyzzy" not in str(caught.value)
    assert "4711" not in str(caught.value)
    assert next(iter(given_values)) in str(caught.value), "the key is named"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_infinity_in_a_setting(number: float) -> None:
    with pytest.raises(ValidationError):
        Outer(table={"a": number})


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

"""pandas reads the shards as they are."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from redactory.redaction import MASK
from tests.integrations.sides import SIDES, rows_of


@pytest.mark.parametrize("side", SIDES)
def test_a_side_is_a_folder_of_parquet(curated: Path, side: str) -> None:
    frame = pandas.read_parquet(curated / side)
    due = rows_of(curated, side)
    assert list(frame.columns) == SIDES[side]
    assert len(frame) == len(due) > 50
    for column in set(SIDES[side]) - {"reasons"}:
        assert frame[column].tolist() == [row[column] for row in due]
    if side == "private":
        assert [list(reasons) for reasons in frame.reasons] == [row["reasons"] for row in due]


def test_the_record_of_points_goes_with_the_shards(curated: Path) -> None:
    """What the how-to shows: which user a private point is of, and no mask on the public side."""
    public, private = (pandas.read_parquet(curated / side) for side in SIDES)
    points = pandas.read_parquet(curated / "audit" / "points")
    together = private.merge(points, left_on="point_id", right_on="released_id", suffixes=("", "_of_point"))
    assert len(together) == len(private)
    assert (together.user == together.user_of_point).all()
    assert (together.fate == "private").all()
    assert not public.text.str.contains(MASK, regex=False).any()
    assert private.text.str.contains(MASK, regex=False).any()

"""DuckDB reads the shards with SQL, and the private ones of an encrypted run with the run's data key."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from redactory.foundation.keys import new_key
from redactory.redaction import RunFolder, is_encrypted, key_of, parts
from tests.integrations.sides import SIDES, by_id, rows_of, run_of


@pytest.mark.parametrize("side", SIDES)
def test_a_side_is_a_table(curated: Path, side: str) -> None:
    table = duckdb.sql(f"SELECT * FROM read_parquet('{curated}/{side}/part-*.parquet') ORDER BY point_id")
    assert table.columns == SIDES[side]
    found = [dict(zip(SIDES[side], row, strict=True)) for row in table.fetchall()]
    assert found == by_id(rows_of(curated, side))


def test_reasons_are_counted_over_files_that_stay_where_they_are(curated: Path) -> None:
    counted = duckdb.sql(
        f"SELECT reason, count(*) FROM read_parquet('{curated}/private/part-*.parquet'), "
        "unnest(reasons) AS reasons(reason) GROUP BY reason"
    ).fetchall()
    reasons = [reason for row in rows_of(curated, "private") for reason in row["reasons"]]
    assert dict(counted) == {reason: reasons.count(reason) for reason in set(reasons)}


def test_an_encrypted_side_takes_the_data_key_and_nothing_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    new_key("encryption", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(tmp_path / "key"))
    run = run_of(tmp_path / "closed")
    folder = RunFolder(run)
    assert all(map(is_encrypted, parts(folder.private)))
    key = key_of(folder.private / "part")
    assert key is not None
    read = f"FROM read_parquet('{run}/private/part-*.parquet'"
    with duckdb.connect() as connection:
        connection.execute(f"PRAGMA add_parquet_key('run', '{base64.b64encode(key.secret).decode()}')")
        connection.execute(f"PRAGMA add_parquet_key('other', '{base64.b64encode(b'k' * 32).decode()}')")
        found = connection.execute(
            f"SELECT * EXCLUDE (reasons) {read}, encryption_config = {{footer_key: 'run'}}) ORDER BY point_id"
        ).fetchall()
        due = by_id(rows_of(run, "private"))
        assert found == [(row["point_id"], row["user"], row["text"]) for row in due]
        with pytest.raises(duckdb.Error):
            connection.execute(f"SELECT text {read})").fetchall()
        with pytest.raises(duckdb.Error):
            connection.execute(f"SELECT text {read}, encryption_config = {{footer_key: 'other'}})").fetchall()

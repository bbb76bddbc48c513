"""Other libraries read both sides of a run as our own reader does: pandas, DuckDB, Spark, datasets."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pytest
from pyspark.sql import SparkSession

import redactory
from redactory.foundation.keys import create_key_file
from redactory.redaction import MASK, RunFolder, find_run_key, is_encrypted, list_parts
from tests.integrations.sides import SIDES, by_id, rows_of, run_of

SPARK = {
    # a few rows are read before a compiler would pay
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ActiveProcessorCount=1",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
Table = tuple[list[str], list[dict[str, Any]]]
Reader = Callable[[Path, str], Table]


def by_pandas(run: Path, side: str) -> Table:
    frame = pandas.read_parquet(run / side)
    lists = {name: [list(own) for own in frame[name]] for name in frame.columns if name == "reasons"}
    return list(frame.columns), frame.assign(**lists).to_dict("records")


def by_duckdb(run: Path, side: str) -> Table:
    table = duckdb.sql(f"SELECT * FROM read_parquet('{run}/{side}/part-*.parquet')")
    return table.columns, [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session, one thread."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        builder = SparkSession.builder.master("local[1]")
        session = builder.config(map={**SPARK, "spark.sql.warehouse.dir": str(folder)}).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """``datasets.load_dataset``, offline, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        import datasets

        datasets.disable_progress_bars()
        cache = str(tmp_path_factory.mktemp("datasets"))
        yield lambda folder, *name, **more: datasets.load_dataset(str(folder), *name, cache_dir=cache, **more)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("read", [by_pandas, by_duckdb])
def test_a_side_is_a_table(curated: Path, read: Reader, side: str) -> None:
    columns, rows = read(curated, side)
    assert columns == SIDES[side]
    assert by_id(rows) == by_id(rows_of(curated, side))
    assert any(MASK in row["text"] for row in rows) == (side == "private")


@pytest.mark.slow
def test_spark_takes_parts_as_its_units_of_work(spark: SparkSession, curated: Path) -> None:
    for side, columns in SIDES.items():
        table = spark.read.parquet(str(curated / side))
        assert table.columns == columns
        assert by_id([row.asDict() for row in table.collect()]) == by_id(rows_of(curated, side))
        assert {Path(name).name for name in table.inputFiles()} == {p.name for p in list_parts(curated / side)}


def test_each_side_is_a_configuration_for_datasets_and_public_the_default(load: Any, curated: Path) -> None:
    import datasets

    assert datasets.get_dataset_config_names(str(curated)) == ["public", "private"]
    for side in SIDES:
        (found,) = load(curated, side).values()
        assert found.column_names == SIDES[side]
        assert found.to_list() == rows_of(curated, side)
    assert load(curated, split="train").to_list() == rows_of(curated, "public")
    stream = load(curated, "private", split="train", streaming=True)
    assert stream.num_shards == 3
    shares = [list(stream.shard(num_shards=3, index=number)) for number in range(3)]
    assert [row for share in shares for row in share] == list(stream) == rows_of(curated, "private")


def test_an_export_has_the_public_side_alone(load: Any, tmp_path: Path) -> None:
    import datasets

    run = run_of(tmp_path)
    told = redactory.export(run, tmp_path / "shards")
    assert datasets.get_dataset_config_names(told["to"]) == ["public"]
    assert load(Path(told["to"]), split="train").to_list() == rows_of(run, "public")
    # nothing was left behind in it
    assert redactory.verify(told["to"])["ok"]


def test_the_record_of_points_goes_with_the_shards(curated: Path) -> None:
    """What the how-to shows: which user a private point is of."""
    private, points = (pandas.read_parquet(curated / name) for name in ("private", "audit/examples"))
    together = private.merge(points, left_on="example_id", right_on="released_id", suffixes=("", "_of_point"))
    assert len(together) == len(private)
    assert (together.user == together.user_of_point).all()
    assert (together.decision == "private").all()


def test_duckdb_takes_the_data_key_of_an_encrypted_side_and_nothing_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key_file("encryption", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(tmp_path / "key"))
    run = run_of(tmp_path / "closed")
    folder = RunFolder(run)
    assert all(map(is_encrypted, list_parts(folder.private)))
    key = find_run_key(folder.private / "part")
    assert key is not None
    read = f"FROM read_parquet('{run}/private/part-*.parquet'"
    with duckdb.connect() as connection:
        for name, secret in (("run", key.secret), ("other", b"k" * 32)):
            connection.execute(f"PRAGMA add_parquet_key('{name}', '{base64.b64encode(secret).decode()}')")
        found = connection.execute(
            f"SELECT * EXCLUDE (reasons) {read}, encryption_config = {{footer_key: 'run'}}) ORDER BY example_id"
        ).fetchall()
        assert found == [(row["example_id"], row["user"], row["text"]) for row in by_id(rows_of(run, "private"))]
        for wrong in ("", ", encryption_config = {footer_key: 'other'}"):
            with pytest.raises(duckdb.Error):
                connection.execute(f"SELECT text {read}{wrong})").fetchall()

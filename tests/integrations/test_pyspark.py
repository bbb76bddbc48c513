"""Spark reads the shards: one local session, one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from redactory.redaction import MASK, parts
from tests.integrations.sides import SIDES, by_id, rows_of

SETTINGS = {
    # a few rows are read before a compiler would pay
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ActiveProcessorCount=1",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        builder = SparkSession.builder.master("local[1]")
        session = builder.config(map={**SETTINGS, "spark.sql.warehouse.dir": str(folder)}).getOrCreate()
        yield session
        session.stop()


@pytest.mark.parametrize("side", SIDES)
def test_a_side_is_a_table(spark: SparkSession, curated: Path, side: str) -> None:
    table = spark.read.parquet(str(curated / side))
    assert table.columns == SIDES[side]
    assert by_id([row.asDict() for row in table.collect()]) == by_id(rows_of(curated, side))


def test_parts_are_the_units_of_work_and_the_public_side_holds_no_mask(
    spark: SparkSession, curated: Path
) -> None:
    table = spark.read.parquet(str(curated / "public"))
    assert {Path(name).name for name in table.inputFiles()} == {p.name for p in parts(curated / "public")}
    assert table.filter(col("text").contains(MASK)).count() == 0
    assert spark.read.parquet(str(curated / "private")).filter(col("text").contains(MASK)).count() > 0

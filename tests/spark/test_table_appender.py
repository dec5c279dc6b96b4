"""Appends of this library to a table that Spark changes and reads."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from commits.table_appender import TableAppender
from tests.written_tables import WRITERS, sorted_rows, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_changes_and_reads_a_table_between_appends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What asks more of a writer is left to deltalake; all other changes are gone on behind."""
    path = str(tmp_path / "table")
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} (number BIGINT, at TIMESTAMP, price DECIMAL(9, 2), "
        "place STRUCT<x: DOUBLE, tags: ARRAY<STRING>>, town STRING) USING DELTA "
        "PARTITIONED BY (town)"
    )
    at, price = pa.timestamp("us", "UTC"), pa.decimal128(9, 2)
    place = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
    town = "a/b ü=50%"

    def rows(number: int) -> pa.Table:
        return pa.table(
            {
                "number": [number],
                "at": pa.array([number * 1_000_000 + 999], at),
                "price": pa.array([Decimal(number)], price),
                "place": pa.array([{"x": float("nan"), "tags": [str(number)]}], place),
                "town": [town],
            }
        )

    def numbers(where: str) -> list[int]:
        found = spark.sql(f"SELECT number FROM {name} WHERE {where}").collect()
        return sorted(row.number for row in found)

    appender = TableAppender(path)
    changes = [
        f"OPTIMIZE {name}",
        f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.logRetentionDuration' = '40 days')",
        f"DELETE FROM {name} WHERE number = 0",
        f"INSERT INTO {name} SELECT 100, at, price, place, town FROM {name} WHERE number = 1",
    ]
    for number in range(12):
        assert appender.append(rows(number)) is not None
        if number % 3 == 2:
            spark.sql(changes[number // 3])
    assert numbers(f"town = '{town}'") == [*range(1, 12), 100]
    assert numbers("at > timestamp_micros(11000000) and place.x > 1 and price = 11.00") == [11]
    spark.sql(f"ALTER TABLE {name} ADD COLUMN more INT")
    assert appender.append(rows(12)) is None
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 1")
    assert appender.append(rows(13)) is not None
    spark.sql("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    spark.sql("RESET spark.databricks.delta.retentionDurationCheck.enabled")
    assert numbers("true") == [0, 13]
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT few CHECK (number < 100)")
    assert appender.append(rows(101)) is None


@pytest.mark.parametrize("kind", WRITERS)
def test_spark_reads_the_rows_that_deltalake_reads(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Also with checkpoints, compacted segments and removed files."""
    expected = written(kind, tmp_path / "table")
    found = spark.read.format("delta").load(str(tmp_path / "table")).toArrow()
    assert sorted_rows(found.select(expected.column_names).cast(expected.schema)) == sorted_rows(
        expected
    )

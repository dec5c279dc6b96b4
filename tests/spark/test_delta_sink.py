"""The fenced Delta sink behind Spark's own streams."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from coopconsume.errors import BatchRefused, CheckpointReplaced
from coopconsume.sinks.fenced_delta import FencedDeltaSink, SinkProgress
from tests.spark.support import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def rows_of(spark: SparkSession, path: Path) -> list[int]:
    """What is in the table."""
    return sorted(row.id for row in spark.read.format("delta").load(str(path)).collect())


@pytest.mark.slow
def test_a_stream_writes_each_batch_once_and_a_zombie_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Started again with another checkpoint, by a newer run, while the older one wakes."""
    source, table = tmp_path / "source", tmp_path / "table"
    spark.range(0, 3).coalesce(1).write.parquet(str(source))
    single = FencedDeltaSink(str(tmp_path / "single"), "job", 1)

    def stream(sink: FencedDeltaSink, checkpoint: str) -> None:
        frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        query = (
            frame.parquet(str(source))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE)

    stream(single, "first")
    shutil.rmtree(tmp_path / "first" / "commits")  # as after a crash before the commit
    stream(single, "first")
    with pytest.raises(Exception, match="checkpoint was created again"):
        stream(single, "second")
    assert rows_of(spark, tmp_path / "single") == [0, 1, 2]
    spark.range(3, 5).coalesce(1).write.mode("append").parquet(str(source))

    old, new = (FencedDeltaSink(str(table), "job", epoch) for epoch in (1, 2))
    stream(old, "one")
    assert rows_of(spark, table) == [0, 1, 2, 3, 4]
    assert old.mark() == SinkProgress(1, 2)
    with pytest.raises(Exception, match="checkpoint was created again"):
        stream(new, "two")
    new(spark.range(3, 5), 1)  # as after a crash before the checkpoint was written
    assert rows_of(spark, table) == [0, 1, 2, 3, 4]
    assert new.mark() == SinkProgress(2, 2)
    new(spark.range(5, 7), 2)
    assert new.mark() == SinkProgress(2, 3)
    for batch in (2, 3):
        with pytest.raises(BatchRefused, match="epoch 1, in force is 2"):
            old(spark.range(90, 99), batch)
    assert rows_of(spark, table) == [0, 1, 2, 3, 4, 5, 6]


def test_a_zombie_that_wakes_between_its_look_and_its_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other run has opened its epoch meanwhile, and Delta skips what the zombie writes."""
    table = str(tmp_path / "table")
    old, new = (FencedDeltaSink(table, "job", epoch) for epoch in (1, 2))
    old(spark.range(0, 1), 0)
    append = old._append

    def late(rows, mark) -> None:
        new(spark.range(1, 2), 1)
        append(rows, mark)

    old._append = late  # type: ignore[method-assign]
    with pytest.raises(BatchRefused):
        old(spark.range(90, 91), 1)
    assert rows_of(spark, tmp_path / "table") == [0, 1]


def test_runs_at_once_do_not_both_write(spark: SparkSession, tmp_path: Path) -> None:
    """Three epochs in a hurry on a table that is not there yet: each batch once, by one of them."""
    table = str(tmp_path / "table")
    refused: list[int] = []
    failures: list[BaseException] = []

    def write(epoch: int) -> None:
        sink = FencedDeltaSink(table, "job", epoch)
        for batch in range(3):
            try:
                sink(spark.range(batch, batch + 1), batch)
            except BatchRefused:
                refused.append(epoch)
                return
            except CheckpointReplaced:
                continue  # Another run has written this batch and the next one.
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=write, args=(epoch,)) for epoch in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    assert 3 not in refused
    assert rows_of(spark, tmp_path / "table") == [0, 1, 2]

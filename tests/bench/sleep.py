"""One partition, handlers that wait: what running keys side by side is worth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import PLAIN_COLUMNS, PlainLoop, Sleeper
from tests.bench.harness import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tests.bench.harness import Harness

_CONCURRENCY = 8
_OURS = f"coopconsume, {SLOTS} slots of {_CONCURRENCY} handlers"
_PLAIN = "plain Spark, foreachBatch"


def sleep(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds from the first handler's start to the last commit, against foreachBatch."""
    records = harness.size(10_000, 1_000)
    topic = "sleep"
    harness.load(topic, records, keys=1_000, value_bytes=100)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: _ours(harness, topic, records),
        _PLAIN: lambda _: _plain(harness, topic, records),
    }
    report = Report(
        "Waiting handlers, one partition",
        f"{records:,} records, 1,000 keys, 0 to 5 ms of sleep a record by a hash of its offset, "
        f"at most {SLOTS * _CONCURRENCY} handlers at once, in the order of each key. From the "
        "first handler's start to the last commit. Plain Spark's one task keeps the order by "
        "handling one record at a time.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "s")
    report.ratios = [Ratio("ours / plain Spark", _OURS, _PLAIN, at_most=0.2)]
    return [report]


def _sleeper(harness: Harness) -> Sleeper:
    folder = harness.path("first-starts")
    folder.mkdir()
    return Sleeper(str(folder))


def _ours(harness: Harness, topic: str, records: int) -> float:
    sleeper, committed = _sleeper(harness), [0.0]

    def note(_: object) -> None:
        committed[0] = time.time()

    with harness.consumer(topic) as consumer:
        builder = consumer.foreach(sleeper, concurrency=_CONCURRENCY).onProgress(note)
        query = builder.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = query.lastProgress
    if progress is None or progress["totals"]["done"] != records:
        raise AssertionError(f"{records} records were to be done: {progress}")
    return committed[0] - sleeper.first_start()


def _plain(harness: Harness, topic: str, records: int) -> float:
    sleeper, handled = _sleeper(harness), [0]

    def each(frame: DataFrame, _: int) -> None:
        rows = (
            frame.selectExpr(*PLAIN_COLUMNS).mapInArrow(PlainLoop(sleeper), "rows bigint").collect()
        )
        handled[0] += sum(row.rows for row in rows)

    query = (
        harness.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", harness.broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(harness.path("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ended = time.time()
    if handled[0] != records:
        raise AssertionError(f"{records} records were to be handled, not {handled[0]}")
    return ended - sleeper.first_start()

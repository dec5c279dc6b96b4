"""What a client of Spark Connect does, as a program: ``python -m tests.spark.connect_client``.

A program of its own, as PySpark is either classic or a client in one process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coopconsume import CooperativeConsumer, Record, Reject, RetryPolicy
from coopconsume.errors import MissingOption
from tests.spark.support import PATIENCE, Recorded, until


def fails(record: Record) -> None:
    """Offset 7 fails whenever it is tried, 9 is rejected."""
    if record.offset == 7:
        raise RuntimeError("never")
    if record.offset == 9:
        raise Reject("no")


def takes_long(_record: Record) -> None:
    """Take a while."""
    time.sleep(0.2)


def polls(options: dict[str, Any], spark: SparkSession) -> None:
    """Every other record is committed by hand."""
    with CooperativeConsumer(options, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        consumer.commit(frame.where("offset % 2 = 0"))


def drains(options: dict[str, Any], history: str, dead: str) -> None:
    """The rest is handled, until nothing is left; the session is the active one."""
    with CooperativeConsumer(options) as consumer:
        job = consumer.foreach(
            Recorded(history, fails), concurrency=2, dead_letter=dead,
            retry=RetryPolicy(max_attempts=2, backoff=0.1),
        )  # fmt: skip
        query = job.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)


def stops(options: dict[str, Any], spark: SparkSession, history: str) -> None:
    """A job is stopped in the middle of a batch."""
    with CooperativeConsumer(options, spark) as consumer:
        query = consumer.foreach(Recorded(history, takes_long), concurrency=2).start()
        until(lambda: any(file.stat().st_size for file in Path(history).glob("*")))
        query.stop()
        assert query.awaitTermination(PATIENCE)


def main(config: dict[str, Any]) -> None:
    """Poll, drain, stop."""
    spark = SparkSession.builder.remote(config["remote"]).getOrCreate()
    with (
        pytest.raises(MissingOption, match="slots"),
        CooperativeConsumer(config["options"], spark) as consumer,
    ):
        consumer.subscribe()
    options = config["options"] | {"slots": 2}
    polls(options, spark)
    drains(options, config["history"], config["dead"])
    stops(config["other"], spark, config["other_history"])
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

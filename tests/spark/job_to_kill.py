"""A job in a process of its own, for tests that kill it: ``python -m tests.spark.job_to_kill``."""

from __future__ import annotations

import json
import sys

from coopconsume import CooperativeConsumer, RetryPolicy, local_session
from tests.spark.support import Recorded, Sleep


class FailsSometimes:
    """Sleeps by the offset; every 101st record fails on its first two attempts."""

    def __init__(self, most: float) -> None:
        self.sleep = Sleep(most)

    def __call__(self, record):
        """Sleep, then fail or not; an output row for what is done."""
        self.sleep(record)
        if record.offset % 101 == 5 and record.attempt < 3:
            raise RuntimeError("not yet")
        return {"partition": record.partition, "offset": record.offset}


def main(config: dict) -> None:
    """Drain the topic, or be killed at it; wait for a line, so that Spark can be up before."""
    spark = local_session("to-be-killed", cores=6)
    if not sys.stdin.readline():
        return
    with CooperativeConsumer(config["options"], spark) as consumer:
        query = consumer.foreach(
            Recorded(config["history"], FailsSometimes(config["most"])),
            concurrency=2,
            retry=RetryPolicy(backoff=0.2, max_backoff=0.2),
            output=config["output"],
            output_schema="partition int, offset bigint",
        )
        query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

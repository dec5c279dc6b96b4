"""One application of the group as a program: ``python -m tests.chaos.app SETTINGS``.

It handles records until its standard input closes, then stops in order.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from coopconsume import CooperativeConsumer, RetryPolicy, local_session
from coopconsume.local.session import stop_session
from tests.spark.support import Recorded

if TYPE_CHECKING:
    from coopconsume import Record


class Work:
    """Takes some milliseconds.

    Args:
        seconds: A call takes, on average.
        fails: Whether one record in 97 fails on its first attempt.
        long: Seconds that one record in 149 takes, if they are not 0.
    """

    def __init__(self, seconds: float, *, fails: bool, long: float = 0.0) -> None:
        self.seconds = seconds
        self.fails = fails
        self.long = long

    def __call__(self, record: Record) -> None:
        """Sleep, then fail or not."""
        if self.long and record.offset % 149 == 11:
            time.sleep(self.long)
            return
        time.sleep(self.seconds * (0.5 + record.offset * 2654435761 % 1000 / 1000))
        if self.fails and record.offset % 97 == 5 and record.attempt == 1:
            raise RuntimeError("not yet")


def main(settings: dict[str, Any]) -> None:
    """Run until standard input closes."""
    logging.basicConfig(format="%(created).3f %(name)s %(message)s")
    logging.getLogger("coopconsume").setLevel(logging.INFO)
    spark = local_session(settings["name"], cores=settings["options"]["slots"])
    work = Work(settings["seconds"], fails=settings["fails"], long=settings["long"])
    with CooperativeConsumer(settings["options"], spark) as consumer:
        if settings["claim"] is not None:
            topic, partition = settings["claim"]
            consumer.assign({(topic, partition): []}, takeover=True)
        query = (
            consumer.foreach(
                Recorded(settings["history"], work),
                concurrency=settings["concurrency"],
                retry=RetryPolicy(backoff=0.2, max_backoff=0.2),
            )
            .queryName(settings["name"])
            .start()
        )
        sys.stdin.read()
        if query.isActive:
            query.stop()
        query.awaitTermination(120)
    stop_session(spark)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

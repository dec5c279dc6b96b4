"""One application of the group as a program: ``python -m tests.chaos.app SETTINGS``.

It handles records until its standard input closes, then stops in order. It fails if its query does.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coopconsume import CooperativeConsumer, RetryPolicy, local_session
from coopconsume.testing.local.session import stop_session
from coopconsume.worker.channel.server import ChannelServer
from tests.event_process import wait_for_end
from tests.spark.support import Recorded

if TYPE_CHECKING:
    from coopconsume import Record, State
    from coopconsume.worker.channel.spec import ChannelSpec


class Work:
    """Takes some milliseconds, or as many seconds as the value of the record says.

    Args:
        seconds: A call takes, on average.
        fails: Whether one record in 31 fails on its first attempt.
    """

    def __init__(self, seconds: float, *, fails: bool) -> None:
        self.seconds = seconds
        self.fails = fails

    def __call__(self, record: Record, state: State | None = None) -> None:
        """Count the record of its key if there is a state; sleep, then fail or not."""
        if state is not None:
            count, _ = state.get([0, -1])
            state.set([count + 1, record.offset])
        if record.value:
            time.sleep(float(record.value))
            return
        time.sleep(self.seconds * (0.5 + record.offset * 2654435761 % 1000 / 1000))
        if self.fails and record.offset % 31 == 5 and record.attempt == 1:
            raise RuntimeError("not yet")


def _reach_driver_through(port: int) -> None:
    """Have slots connect to a port that leads to the driver."""
    own_spec = ChannelServer.spec

    def spec(server: ChannelServer) -> ChannelSpec:
        return replace(own_spec(server), port=port)

    patch.object(ChannelServer, "spec", spec).start()


def main(settings: dict[str, Any]) -> None:
    """Run until standard input closes or the query ends."""
    logging.basicConfig(format="%(created).3f %(name)s %(message)s")
    logging.getLogger("coopconsume").setLevel(logging.INFO)
    _reach_driver_through(settings["network"])
    spark = local_session(settings["name"], cores=settings["options"]["slots"])
    work = Work(settings["seconds"], fails=settings["fails"])
    with CooperativeConsumer(settings["options"], spark) as consumer:
        if settings["claim"] is not None:
            topic, partition = settings["claim"]
            consumer.assign({(topic, partition): []}, takeover=True)
        handler = Recorded(settings["history"], work)
        words: dict[str, Any] = {
            "concurrency": settings["concurrency"],
            "retry": RetryPolicy(backoff=1.0, max_backoff=1.0),
        }
        if settings["state"]:
            builder = consumer.foreach_with_state(
                handler, state_schema="array<bigint>", state=settings["state"], **words
            )
        else:
            builder = consumer.foreach(handler, ordering=settings["ordering"], **words)
        if settings["real_time"]:
            builder.trigger(realTime=settings["real_time"])
        query = builder.queryName(settings["name"]).start()
        closed = threading.Event()
        threading.Thread(target=wait_for_end, args=(closed,), daemon=True).start()
        while query.isActive and not closed.wait(0.2):
            pass
        if query.isActive:
            query.stop()
        query.awaitTermination(120)
    stop_session(spark)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

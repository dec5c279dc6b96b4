"""A job in a process of its own, for tests that kill it: ``python -m tests.spark.job_to_kill``."""

from __future__ import annotations

import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume import CooperativeConsumer, Reject, RetryPolicy, local_session
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.runtime.commit.state_log import StateLog
from coopconsume.runtime.dispatch.reports import Reports
from coopconsume.runtime.dispatch.spark_jobs import SparkJobs
from coopconsume.sinks import MergeTable
from tests.spark.support import Recorded, Sleep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Of a batch, by name: the method at which the driver stands still, and whether that comes first.
PHASES = {
    "before Spark reads": (SparkJobs, "_run", True),
    "before a report is taken": (Reports, "reported", True),
    "before output": (MergeTable, "write", True),
    "between a change of the state and output": (StateLog, "append", False),
    "between output and commit": (MergeTable, "write", False),
    "after commit": (EpochAssignment, "commit", False),
}


def stop_at(phase: str, number: int, marker: str) -> None:
    """Have this process stand still at the n-th time of a phase, for somebody to kill it."""
    calls = itertools.count(1)
    kind, name, first = PHASES[phase]
    original = getattr(kind, name)

    def waiting_to_be_killed(*args, **kwargs):
        due = next(calls) == number
        answer = None if due and first else original(*args, **kwargs)
        if due:
            Path(marker).touch()
            time.sleep(600)
        return answer

    setattr(kind, name, waiting_to_be_killed)


class FailsSometimes:
    """Sleeps by the offset; every 101st record fails on its first two attempts.

    Another 101st may be rejected. While a file is not there, a record takes a second, or longer.
    """

    def __init__(
        self, most: float, *, rejects: bool = False, gate: str | None = None, held: float = 1.0
    ) -> None:
        self.sleep = Sleep(most)
        self.rejects = rejects
        self.gate = gate
        self.held = held

    def __call__(self, record):
        """Sleep, then fail or not; an output row for what is done."""
        self.sleep(record)
        until = time.monotonic() + self.held
        while self.gate and not Path(self.gate).exists() and time.monotonic() < until:
            time.sleep(0.02)
        if self.rejects and record.offset % 101 == 9:
            raise Reject("no")
        if record.offset % 101 == 5 and record.attempt < 3:
            raise RuntimeError("not yet")
        return {"partition": record.partition, "offset": record.offset}


class Remembers:
    """Keeps the offsets of all records of a key, in the order in which they were handled."""

    def __init__(self, handler) -> None:
        self.handler = handler

    def __call__(self, record, state):
        """Change the state before the record may fail."""
        state.set([*state.get([]), record.offset])
        return self.handler(record)


def main(configs: list[dict]) -> None:
    """Drain topics, or be killed at it; wait for a line, so that Spark can be up before.

    Each configuration is a job of a group, and all share the session. One that is to be killed does
    not end by itself, however late the kill.
    """
    spark = local_session("to-be-killed", cores=sum(one.get("cores", 6) for one in configs))
    if not sys.stdin.readline():
        return
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(partial(run, spark), configs):
            pass
    spark.stop()


def run(spark: SparkSession, config: dict) -> None:
    """Run a job to its end."""
    if "stop" in config:
        stop_at(*config["stop"])
    with CooperativeConsumer(config["options"], spark) as consumer:
        work = FailsSometimes(
            config["most"], rejects=bool(config.get("dead")), gate=config.get("gate"),
            held=config.get("held", 1.0),
        )  # fmt: skip
        handler = Recorded(config["history"], Remembers(work) if "state" in config else work)
        words = {
            "concurrency": 2,
            "retry": RetryPolicy(backoff=0.2, max_backoff=0.2),
            "output": config["output"],
            "output_schema": "partition int, offset bigint",
            "output_mode": config.get("mode", "append"),
            "dead_letter": config.get("dead"),
        }
        if "state" in config:
            query = consumer.foreach_with_state(
                handler, state_schema="array<bigint>", state=config["state"], **words
            )
        else:
            ordering = config.get("ordering", "key")
            query = consumer.foreach(handler, ordering=ordering, **words)
        if config.get("live"):
            query.trigger(realTime="10 minutes")
        elif not config.get("endless"):
            query.trigger(availableNow=True)
        running = query.start()
        stops_at = config.get("stops_at")
        while stops_at and not Path(stops_at).exists() and not running.awaitTermination(0.2):
            pass
        if stops_at:
            running.stop()
        running.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

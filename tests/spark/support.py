"""Handlers that record what they do, and the state of a run for the checker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume import Reject, Retry, current_slot
from coopconsume.testing.history import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from coopconsume import Record, State


class Recorded:
    """Calls a function with each record and writes to the history what came of it."""

    def __init__(self, directory: Path | str, work: Any = None) -> None:
        self._recorder = Recorder(str(directory))
        self._work = work

    def __call__(self, record: Record, *state: State) -> Any:
        """Run the work under the recorder; Retry and Reject may be raised or returned."""
        with self._recorder.call(record, current_slot(), *state) as call:
            answer = self._work(record, *state) if self._work else None
            if isinstance(answer, Reject):
                call.settle("reject", str(answer))
            elif isinstance(answer, Retry):
                call.settle("retry", str(answer))
            return answer


class Sleep:
    """Sleeps by a hash of the offset, up to so many seconds."""

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, record: Record) -> None:
        """Sleep."""
        time.sleep(self.most * (record.offset * 2654435761 % 1000) / 1000)


#: Seconds to wait for what takes some: no test is to fail for a slow machine.
PATIENCE = 600.0


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s"
        time.sleep(0.05)
    return answer


def committed_frame(spark: SparkSession, *place: str) -> DataFrame:
    """The rows that count, as a frame; a Spark for which there is no Delta gets them by Arrow."""
    # Workers without these packages take their handlers from this module.
    from coopconsume import committed_rows
    from coopconsume.spark_versions import minor_of

    if minor_of(spark.version).delta is None:
        return spark.createDataFrame(committed_rows(*place))
    return committed_rows(*place, spark=spark)


def options(kafka: Any, folder: Path, topic: str, **more: Any) -> dict[str, Any]:
    """Options of a consumer of one topic, in a group of its own, with its tables in a folder."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": f"{topic}-group",
        "subscribe": topic,
        "commitTable": str(folder / "commits"),
        "slots": 4,
        "batchTime": "5 seconds",
        "handlerTimeout": "60 seconds",
        # A slow machine is not to cost a job its membership.
        "kafka.session.timeout.ms": 45_000,
    } | more


def done_book(store: Any, group: str) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """What the commit log counts as done, as ranges."""
    book = {}
    for tp, commits in store.state(group).items():
        below = [(0, commits.stable_offset - 1)] if commits.stable_offset else []
        book[tp] = below + commits.ranges.pairs()
    return book


def pending_book(store: Any, group: str) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """What the commit log holds as pending, as ranges."""
    return {tp: [(o, o) for o in held] for tp, held in store.pending(group).items()}

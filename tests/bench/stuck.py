"""A job of many slots with a key that is stuck, in a process with a Spark of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from coopconsume import CooperativeConsumer, KeyRange, key_hash, local_session
from coopconsume.testing.local.session import stop_session
from tests.bench.handlers import Stuck
from tests.bench.processes import figures_of, print_figures

if TYPE_CHECKING:
    from tests.bench.harness import Harness

SLOTS = 32
CONCURRENCY = 4
_KEY = b"key-7"


def stuck_rate(harness: Harness, topic: str, records: int, seconds: int) -> float:
    """Records a second of the other slots while one key is stuck for some seconds."""
    folder = harness.path("first-starts")
    folder.mkdir()
    options = harness.options(
        topic, slots=SLOTS, batchTime=seconds + 20, handlerTimeout=60
    )  # fmt: skip
    (rate,) = figures_of("tests.bench.stuck", options, str(folder), records, seconds)
    return rate


def _run(options: dict[str, Any], folder: str, records: int, seconds: int) -> list[float]:
    (its,) = [r for r in KeyRange().split(SLOTS) if r.contains(key_hash(_KEY) or 0)]
    keys = [b"key-%d" % (n % 1_000) for n in range(records)]
    beside = sum(not its.contains(key_hash(key) or 0) for key in keys)
    spark = local_session("coopconsume-bench-stuck", cores=SLOTS + 2)
    seen: list[tuple[float, int]] = []
    handler = Stuck(folder, options["subscribe"], _KEY, float(seconds))
    try:
        with CooperativeConsumer(options, spark) as consumer:
            query = consumer.foreach(handler, concurrency=CONCURRENCY).onProgress(
                lambda event: seen.append((time.time(), event["totals"]["done"]))
            ).trigger(availableNow=True).start()  # fmt: skip
            query.awaitTermination()
    finally:
        stop_session(spark)
    reached = next(at for at, done in seen if done >= beside)
    return [beside / (reached - handler.first_start())]


if __name__ == "__main__":
    print_figures(_run)

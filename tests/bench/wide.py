"""Topics of few and of many partitions, an empty handler: what a partition costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.handlers import FirstCall
from tests.bench.throughput import empty_job, tuned_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

#: Records by the number of partitions: with fewer, a short run would measure starts and ends.
_RECORDS = {
    1: 10_000_000, 8: 2_000_000, 32: 2_000_000, 100: 1_000_000, 300: 1_000_000, 1_000: 1_000_000
}  # fmt: skip
_LIMIT = "limit"
_FIRST_WITHIN = 10.0


def wide(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds for the same records in more and more partitions, beside plain Spark."""
    report = Report(
        "Wide topics",
        "Records of 100 bytes, 10,000 keys, an empty Python handler. Ours: from making the "
        "consumer, on an empty commit table, to its end after an availableNow query. "
        "Plain Spark reads as many, with the same fetch settings and the same call of each record. "
        "Here one turn is for warmth.",
    )
    first = Report(
        "Wide topics: the first record",
        "From `start()`, on an empty commit table, to the first call of a handler.",
    )
    counts = [count for count in _RECORDS if count <= harness.size(1_000, 100)]
    for count in counts:
        records = harness.size(_RECORDS[count], 10_000)
        topic = f"wide-{count}"
        harness.load(topic, records, keys=10_000, value_bytes=100, partitions=count)
        name = f"{count:,} partition{'s' * (count > 1)}, {records:,} records"
        ours, plain = name, f"{name}, plain Spark"
        sides = {
            ours: _timed(empty_job, harness, topic, records),
            plain: _timed(tuned_plain, harness, topic, records),
        }
        report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "s")
        report.ratios.append(Ratio(f"ours / plain Spark, {name}", ours, plain, at_most=1.1))
        values = take_turns({name: _first_call_of(harness, topic)}, harness.turns, say=say)
        first.add_all(values, "s")
        first.ratios.append(Ratio(f"{name} / limit", name, _LIMIT, at_most=1.0))
    report.notes.append(
        "With few partitions, plain Spark handles records in the tasks that read them. A job deals "
        "the keys of each partition to its slots, by a shuffle."
    )
    first.add(_LIMIT, [_FIRST_WITHIN] * harness.turns, "s")
    return [report, first]


def _timed(
    side: Callable[[Harness, str, int], None], harness: Harness, topic: str, records: int
) -> Callable[[int], float]:
    return lambda _: seconds_of(lambda: side(harness, topic, records))


def _first_call_of(harness: Harness, topic: str) -> Callable[[int], float]:
    """Seconds from the start of a query to its first call of a handler."""

    def first_call(_: int) -> float:
        noted = harness.path("first")
        with harness.consumer(topic) as consumer:
            started = time.time()
            query = consumer.foreach(FirstCall(str(noted))).start()
            while not noted.exists():
                if (error := query.exception()) is not None:
                    raise error
                time.sleep(0.01)
            query.stop()
        return noted.stat().st_mtime - started

    return first_call

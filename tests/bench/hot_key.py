"""A job whose keys are hot and cold, in a process with a Spark of its own."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume import CooperativeConsumer, local_session
from coopconsume.testing.local.session import stop_session
from tests.bench.figures import Ratio, Report
from tests.bench.handlers import Timed
from tests.bench.processes import figures_of, print_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

SLOTS = 8
CONCURRENCY = 8
_KEYS = 1_000
_HOTTEST = b"key-0"
_EXPONENTS = (0.9, 1.1)
_REAL_TIME = "real time"
_MODES = ("batches", _REAL_TIME)


def hot_key(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds that a job takes, beside those of the calls of its hottest key."""
    records = harness.size(60_000, 2_000)
    report = Report(
        "A hot key",
        f"{records:,} records of {_KEYS:,} keys by Zipf's law, one partition, 5 ms a record, "
        f"{SLOTS} slots of {CONCURRENCY} calls at once, in the order of each key, in a Spark of "
        "its own with more task slots than that. From the first call to the last commit, beside "
        "the time of the hottest key's calls.",
    )
    for exponent in _EXPONENTS:
        topic = f"zipf-{exponent}"
        _fill(harness, topic, records, exponent)
        for mode in _MODES:
            name = f"s = {exponent}, {mode}"
            own = f"{name}, the calls of the hottest key"
            turns = [_job(harness, topic, records, mode, say) for _ in range(harness.turns)]
            report.add(name, [took for took, _ in turns], "s")
            report.add(own, [calls for _, calls in turns], "s")
            report.ratios.append(Ratio(f"{name} / its hottest key", name, own, at_most=1.15))
    return [report]


def _fill(harness: Harness, topic: str, records: int, exponent: float) -> None:
    from confluent_kafka import Producer

    harness.broker.create_topic(topic)
    choice = random.Random(7)
    weights = [*itertools.accumulate((n + 1) ** -exponent for n in range(_KEYS))]
    producer = Producer({"bootstrap.servers": harness.broker.bootstrap_servers, "linger.ms": 20})
    for key in choice.choices(range(_KEYS), cum_weights=weights, k=records):
        producer.produce(topic, b"%0100d" % key, b"key-%d" % key)
        producer.poll(0)
    producer.flush()


def _job(
    harness: Harness, topic: str, records: int, mode: str, say: Callable[[str], None]
) -> tuple[float, float]:
    """Returns the seconds of a job, and those of the calls of its hottest key."""
    folder = harness.path("calls")
    folder.mkdir()
    options = harness.options(topic, slots=SLOTS)
    took, calls = figures_of("tests.bench.hot_key", options, str(folder), records, mode)
    say(f"  {mode}, {topic}: {took:.1f} s, calls of the hottest key {calls:.1f} s")
    return took, calls


def _run(options: dict[str, Any], folder: str, records: int, mode: str) -> list[float]:
    spark = local_session("coopconsume-bench-hot-key", cores=SLOTS + 2)
    seen: list[tuple[float, int]] = []
    try:
        with CooperativeConsumer(options, spark) as consumer:
            writer = consumer.foreach(Timed(folder, _HOTTEST), concurrency=CONCURRENCY)
            writer.onProgress(lambda event: seen.append((time.time(), event["totals"]["done"])))
            if mode == _REAL_TIME:
                writer.trigger(realTime="5 minutes")
            query = writer.start()
            while not seen or seen[-1][1] < records:
                if (error := query.exception()) is not None:
                    raise error
                time.sleep(0.01)
            query.stop()
    finally:
        stop_session(spark)
    lines = [line for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    calls = [tuple(map(float, line.split())) for line in lines]
    reached = next(at for at, done in seen if done >= records)
    first = min(began for began, *_ in calls)
    return [reached - first, sum(ended - began for began, ended, is_hot in calls if is_hot)]


if __name__ == "__main__":
    print_figures(_run)

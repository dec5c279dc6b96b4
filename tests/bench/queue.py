"""A work queue: records that one consumer acquires and acknowledges, and what a hold takes."""

from __future__ import annotations

import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition

from coopconsume.queue import QueueConsumer
from tests.bench.figures import Ratio, Report, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_RATE, _LEAST = "acquired and acknowledged", "target"
_HOLD, _BARE = "a hold by three replicas", "a bare produce and read back"
_TABLES, _TABLE_RATE = f"{_HOLD}, Delta tables", f"{_RATE}, a Delta table"
_BATCH, _GOAL = 500, 5_000.0


def queue(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Records a second through a queue of one replica, and milliseconds of a hold by three."""
    return [_rate(harness, say), _hold(harness, say)]


def _rate(harness: Harness, say: Callable[[str], None]) -> Report:
    records = harness.size(50_000, 5_000)
    harness.load("queue-rate", records, keys=10_000, value_bytes=100)

    def work_off(replicas: list[str] | None) -> float:
        options = harness.options("queue-rate", startingOffsets="earliest")
        done = 0
        with QueueConsumer(_of_a_queue(options), "queue-rate", replicas) as consumer:
            began = time.perf_counter()
            while done < records:
                for record in consumer.poll(_BATCH):
                    consumer.acknowledge(record)
                done += consumer.commit().done
            return records / (time.perf_counter() - began)

    report = Report(
        "A work queue",
        f"{records:,} records of 100 bytes, one partition, one consumer: polls of {_BATCH}, "
        "acknowledged and committed each time. The replica is a topic, or a table on a local disk.",
    )
    sides: dict[str, Callable[[int], float]] = {
        _RATE: lambda _: work_off(None),
        _TABLE_RATE: lambda _: work_off([str(harness.path("queue-table"))]),
    }
    report.add_all(take_turns(sides, harness.turns, say=say), "records/s")
    report.add(_LEAST, [_GOAL], "records/s")
    report.ratios = [
        Ratio(f"{side} / target", side, _LEAST, at_least=1.0) for side in (_RATE, _TABLE_RATE)
    ]
    return report


def _hold(harness: Harness, say: Callable[[str], None]) -> Report:
    count = harness.size(200, 20)
    harness.load("queue-hold", count, keys=count, value_bytes=100)
    report = Report(
        "A hold by three replicas",
        "One record is acquired from three replicas, topics of one broker or tables on a local "
        "disk: first from one of them, then from others. Beside it the bare client: a record is "
        "produced with acks=all, and read back by a consumer that waits for it, both with a "
        f"replica's settings. Each value is the median of {count}.",
    )
    sides = {
        _HOLD: lambda _: _held(harness, count),
        _TABLES: lambda _: _held(harness, count, tables=True),
        _BARE: lambda _: _bare(harness, count),
    }
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "ms")
    report.ratios = [Ratio("hold / produce and read back", _HOLD, _BARE, at_most=3.0)]
    return report


def _of_a_queue(options: dict[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, value in options.items()
        if name.startswith("kafka.") or name == "startingOffsets"
    }


def _held(harness: Harness, count: int, *, tables: bool = False) -> float:
    options = _of_a_queue(harness.options("queue-hold", startingOffsets="earliest"))
    name = str(options["kafka.group.id"])
    took = []
    replicas = [f"{name}-r{n}" for n in range(3)]
    if tables:
        replicas = [str(harness.path("queue-table")) for _ in replicas]
    with QueueConsumer(options, "queue-hold", replicas) as consumer:
        session, ends = consumer._opened(), {0: count}
        for number in range(count):
            began = time.perf_counter()
            while (granted := session.acquire(1, ends, 30.0)) is None or not granted.offsets:
                session.run(0.01)
            took.append(time.perf_counter() - began)
            session.wait([session.settle("accept", granted.offsets)], 30.0)
            # A hold is measured alone: no replica is at work on the acknowledgement before it.
            states = session.member.replicas.states
            while any(state.done(0).stable_offset <= number for state in states):
                session.run(0.01)
    return 1000 * median(took)


def _bare(harness: Harness, count: int) -> float:
    topic = str(harness.options("queue-bare")["kafka.group.id"])
    harness.broker.create_topic(topic, 1)
    servers = {"bootstrap.servers": harness.broker.bootstrap_servers}
    producer = Producer(
        servers
        | {
            "acks": "all",
            "linger.ms": 0,
            "max.in.flight": 1,
            "socket.nagle.disable": True,
        }
    )
    took = []
    with closing(Consumer(servers | {"group.id": "none", "fetch.wait.max.ms": 250})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(count):
            began = time.perf_counter()
            producer.produce(topic, b"x" * 200, partition=0)
            while not consumer.consume(1, 0.5):
                pass
            took.append(time.perf_counter() - began)
    return 1000 * median(took)

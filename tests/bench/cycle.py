"""One record from poll to commit: the least that a cycle takes."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from coopconsume import TopicPartition
from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import PLAIN_COLUMNS, PlainLoop, handler
from tests.bench.harness import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka import KafkaProducer

    from coopconsume import CooperativeConsumer
    from tests.bench.harness import Harness

_OURS = "poll, mapInArrow and collect, commit"
_BARE = "bare read, shuffle, mapInArrow, collect"
_POLL, _WORK, _COMMIT = "of it: poll", "of it: mapInArrow and collect", "of it: commit"
_QUERY = "running query: from produced to committed"


def cycle(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds from poll to commit of one record, against the same read without any of it."""
    from kafka import KafkaProducer

    topic, bare_topic = "cycle", "cycle-bare"
    for name in (topic, bare_topic):
        harness.broker.create_topic(name, 1)
    producer = KafkaProducer(bootstrap_servers=harness.broker.bootstrap_servers)
    rounds = harness.size(20, 3)
    parts: dict[str, list[float]] = {_POLL: [], _WORK: [], _COMMIT: []}
    try:
        with harness.consumer(topic) as consumer:
            sides: dict[str, Callable[[int], float]] = {
                _OURS: lambda turn: _ours(
                    consumer, producer, topic, rounds, parts if turn > 0 else {}
                ),
                _BARE: lambda _: _bare(harness, producer, bare_topic, rounds),
            }
            values = take_turns(sides, harness.turns, say=say)
        values[_QUERY] = _running(harness, producer, topic, harness.turns, say)
    finally:
        producer.close()
    report = Report(
        "Smallest cycle",
        f"One record at a time, in a warm session with {SLOTS} slots; each value is the mean of "
        f"{rounds} rounds. The bare side knows its offsets beforehand and commits nothing; it "
        "reads by Spark's own settings, so that a read at the end of a log waits for what the "
        "last one asked for ahead (`fetch.max.wait.ms`, 500 where ours is 10).",
    )
    for name in (_OURS, *parts, _BARE, _QUERY):
        report.add(name, parts[name] if name in parts else values[name], "ms")
    report.ratios = [Ratio("poll to commit / bare", _OURS, _BARE, at_most=2.0)]
    report.notes.append(
        "The running query asks for the end of the log twice a second: about a quarter of a second "
        "of its time is the mean wait for that."
    )
    return [report]


def _produce(producer: KafkaProducer, topic: str) -> int:
    sent = producer.send(topic, key=b"key", value=b"." * 100, partition=0)
    offset: int = sent.get(timeout=30).offset
    return offset


def _ours(
    consumer: CooperativeConsumer,
    producer: KafkaProducer,
    topic: str,
    rounds: int,
    parts: dict[str, list[float]],
) -> float:
    spent = [0.0, 0.0, 0.0]
    for _ in range(rounds):
        offset = _produce(producer, topic)
        began = time.perf_counter()
        frame = consumer.poll(timeout=10)
        polled = time.perf_counter()
        rows = (
            frame.selectExpr(*PLAIN_COLUMNS).mapInArrow(PlainLoop(handler), "rows bigint").collect()
        )
        worked = time.perf_counter()
        result = consumer.commit({TopicPartition(topic, 0): [(offset, offset)]})
        ended = time.perf_counter()
        stable = result[TopicPartition(topic, 0)].stable_offset
        if sum(row.rows for row in rows) != 1 or stable != offset + 1:
            raise AssertionError(f"offset {offset} alone was to be done: {rows}, {result}")
        for i, seconds in enumerate((polled - began, worked - polled, ended - worked)):
            spent[i] += 1000 * seconds / rounds
    for name, milliseconds in zip(parts, spent, strict=False):
        parts[name].append(milliseconds)
    return sum(spent)


def _bare(harness: Harness, producer: KafkaProducer, topic: str, rounds: int) -> float:
    spent = 0.0
    for _ in range(rounds):
        offset = _produce(producer, topic)
        began = time.perf_counter()
        rows = (
            harness.spark.read.format("kafka")
            .option("kafka.bootstrap.servers", harness.broker.bootstrap_servers)
            .option("assign", json.dumps({topic: [0]}))
            .option("startingOffsets", json.dumps({topic: {"0": offset}}))
            .option("endingOffsets", json.dumps({topic: {"0": offset + 1}}))
            .load()
            .repartition(SLOTS, "key")
            .sortWithinPartitions("offset")
            .selectExpr(*PLAIN_COLUMNS)
            .mapInArrow(PlainLoop(handler), "rows bigint")
            .collect()
        )
        spent += time.perf_counter() - began
        if sum(row.rows for row in rows) != 1:
            raise AssertionError(f"one record was to be read: {rows}")
    return 1000 * spent / rounds


def _running(
    harness: Harness, producer: KafkaProducer, topic: str, turns: int, say: Callable[[str], None]
) -> list[float]:
    """Milliseconds from a record's acknowledgement to its commit, by a query that is running."""
    stable, moved = [0], threading.Condition()

    def note(progress: dict[str, list[dict[str, int]]]) -> None:
        with moved:
            stable[0] = progress["partitions"][0]["stableOffset"]
            moved.notify_all()

    def is_committed(offset: int) -> bool:
        """Waits for it."""
        with moved:
            return moved.wait_for(lambda: stable[0] > offset, timeout=60)

    values = []
    with harness.consumer(topic, startingOffsets="latest") as consumer:
        query = consumer.foreach(handler).onProgress(note).start()
        for turn in range(turns + 1):
            spent = []
            for _ in range(5):
                offset = _produce(producer, topic)
                began = time.perf_counter()
                if not is_committed(offset):
                    raise AssertionError(f"offset {offset} was not committed: {query.exception()}")
                spent.append(1000 * (time.perf_counter() - began))
            if turn:
                values.append(sum(spent) / len(spent))
                say(f"  turn {turn}: {_QUERY}: {values[-1]:.0f}")
        query.stop()
    return values

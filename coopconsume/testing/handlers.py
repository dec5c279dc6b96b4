"""Runs a handler on a real broker and Spark session, with faults, and checks what it did."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.consumer import CooperativeConsumer
from coopconsume.record import RetryPolicy
from coopconsume.sinks import committed_rows
from coopconsume.testing.faults import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from commits import PartitionCommits
    from coopconsume.record import Record
    from coopconsume.testing.faults import Fault
    from coopconsume.testing.history import History, Verdict
    from coopconsume.testing.local.broker import LocalKafka
    from coopconsume.worker.report import Ordering

_TIMEOUT = 600.0


@dataclass(frozen=True)
class HandlerRun:
    """The outcomes of the records of one run.

    Attributes:
        verdict: Whether each record was handled, in order, and not repeated without a fault that
            explains it; ``verdict.ok``, and ``str(verdict)`` for what went wrong.
        history: Every handler call.
        rows: The rows that the handler returned for records that count as done.
        dead_letters: The dead letters, with ``_offset``, ``key``, ``value`` and ``reason``.
    """

    verdict: Verdict
    history: History
    rows: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]


def run_handler(
    handler: Callable[[Record], Any],
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    kafka: LocalKafka,
    spark: SparkSession,
    faults: Callable[[Record], Fault | None] | None = None,
    concurrency: int = 1,
    ordering: Ordering = "key",
    retry: RetryPolicy | None = None,
    output_schema: str | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float = _TIMEOUT,
) -> HandlerRun:
    """Runs a handler over records in a real job, and checks every promise of coopconsume.

    The records go into one partition of a new topic. The job ends once each of them is done or a
    dead letter.

    Args:
        handler: Plain or ``async``, perhaps with `open` and `close`, as for `foreach`.
        records: Key and value of each.
        kafka: The broker.
        spark: The session.
        faults: As for `recorded`.
        concurrency: As for `foreach`.
        ordering: As for `foreach`.
        retry: As for `foreach`; by default three attempts without a wait.
        output_schema: Of the rows that the handler returns, if it returns some.
        options: More options of the consumer, such as ``slots``.
        timeout: Seconds that the job may take, above 0.

    Raises:
        TimeoutError: The job did not end in time; it was stopped.
    """
    policy = retry or RetryPolicy(max_attempts=3, backoff=0.0)
    topic = f"handler-{uuid.uuid4().hex[:12]}"
    produced = _produce(kafka, topic, records)
    with tempfile.TemporaryDirectory(prefix="coopconsume-handler-") as name:
        folder = Path(name)
        paths = {part: str(folder / part) for part in ("commits", "dead", "rows", "history")}
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": topic,
            "subscribe": topic, "commitTable": paths["commits"], **(options or {}),
        }  # fmt: skip
        Path(paths["history"]).mkdir()
        with CooperativeConsumer(given, spark) as consumer:
            job = consumer.foreach(
                recorded(handler, paths["history"], faults), concurrency=concurrency,
                ordering=ordering, retry=policy, dead_letter=paths["dead"],
                output=paths["rows"] if output_schema else None, output_schema=output_schema,
            )  # fmt: skip
            query = job.trigger(availableNow=True).start()
            try:
                if not query.awaitTermination(timeout):
                    raise TimeoutError(f"the job still runs after {timeout:g} s: {query.status}")
            finally:
                query.stop()
            store = consumer.membership().store
            state, pending = store.state(topic), store.pending(topic)
        dead, rows = _rows(paths["dead"], paths, topic), _rows(paths["rows"], paths, topic)
        history, verdict = _judged(
            paths["history"], {(topic, 0): produced}, state, pending, dead, ordering, policy
        )
    return HandlerRun(verdict, history, rows, dead)


def _produce(
    kafka: LocalKafka, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]
) -> dict[int, bytes | None]:
    from kafka import KafkaProducer

    kafka.create_topic(topic)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    try:
        sent = [(key, producer.send(topic, value, key)) for key, value in records]
        return {future.get(_TIMEOUT).offset: key for key, future in sent}
    finally:
        producer.close()


def _rows(path: str, paths: Mapping[str, str], group: str) -> list[dict[str, Any]]:
    if not Path(path).exists():
        return []
    found: list[dict[str, Any]] = committed_rows(path, paths["commits"], group).to_pylist()
    return sorted(found, key=lambda row: int(row["_offset"]))


def _judged(
    directory: str,
    produced: Mapping[tuple[str, int], Mapping[int, bytes | None]],
    state: Mapping[tuple[str, int], PartitionCommits],
    pending: Mapping[tuple[str, int], Iterable[int]],
    dead: Iterable[Mapping[str, Any]],
    ordering: Ordering,
    policy: RetryPolicy,
) -> tuple[History, Verdict]:
    from coopconsume.testing.history import Disturbance, Seen, check, read_history

    history = read_history(directory)
    calls = list(history)
    # A worker with a call that has no end was killed: what it had not reported is done again.
    last = {call.process: max(call.start_ns, call.end_ns or 0) + 1 for call in calls}
    killed = {
        int(call.process.partition("-")[0]): last[call.process]
        for call in calls
        if call.end_ns is None
    }
    (tp,) = produced
    verdict = check(
        history, produced,
        {
            at: [(0, commits.stable_offset - 1)] * (commits.stable_offset > 0)
            + commits.ranges.pairs()
            for at, commits in state.items()
        },
        {at: [(offset, offset) for offset in offsets] for at, offsets in pending.items()},
        {tp: [(letter["_offset"], letter["_offset"]) for letter in dead]},
        seen=Seen([Disturbance(at, at + 1, frozenset([pid])) for pid, at in killed.items()],
                  gone=killed),
        ordering=ordering, max_attempts=policy.max_attempts,
    )  # fmt: skip
    return history, verdict

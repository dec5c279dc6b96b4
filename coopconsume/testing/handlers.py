"""Runs a handler on a real broker and Spark session, with faults, and checks what it did."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.consumer import CooperativeConsumer
from coopconsume.errors import NotDecodable
from coopconsume.kafka.connection import Connection
from coopconsume.record import RetryPolicy
from coopconsume.runtime.job_spec import HandlerSettings
from coopconsume.sinks import committed_rows
from coopconsume.testing.faults import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from commits import CommitStore
    from coopconsume.decoding.declaration import Declared
    from coopconsume.query import CooperativeForeach
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
    handler: Callable[[Record[Any, Any]], Any],
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    kafka: LocalKafka,
    spark: SparkSession,
    faults: Callable[[Record[Any, Any]], Fault | None] | None = None,
    concurrency: int = 1,
    ordering: Ordering = "key",
    retry: RetryPolicy | None = None,
    output_schema: str | None = None,
    value: Declared[Any] | None = None,
    key: Declared[Any] | None = None,
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
        value: As for `foreach`. A record that does not decode is a dead letter without a call.
        key: As for `foreach`.
        options: More options of the consumer, such as ``slots``.
        timeout: Seconds that the job may take, above 0.

    Raises:
        TimeoutError: The job did not end in time; it was stopped.
    """
    topic = f"handler-{uuid.uuid4().hex[:12]}"
    produced = _produce(kafka, topic, records)
    with tempfile.TemporaryDirectory(prefix="coopconsume-handler-") as name:
        paths = {part: f"{name}/{part}" for part in ("commits", "dead", "rows", "history")}
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": topic,
            "subscribe": topic, "commitTable": paths["commits"], **(options or {}),
        }  # fmt: skip
        settings = HandlerSettings(
            concurrency, ordering, retry or RetryPolicy(max_attempts=3, backoff=0.0),
            paths["dead"], value=value, key=key,
            output=paths["rows"] if output_schema else None, output_schema=output_schema,
        )  # fmt: skip
        with CooperativeConsumer(given, spark) as consumer:
            job = consumer.foreach(recorded(handler, paths["history"], faults), **vars(settings))
            _finish(job.trigger(availableNow=True), timeout)
        dead, rows = _rows(paths["dead"], paths, topic), _rows(paths["rows"], paths, topic)
        history = _calls(paths["history"], produced, is_typed=key is not None)
        with Connection(consumer.options, spark=spark) as at:
            verdict = _judged(history, topic, produced, at.store, dead, settings=settings)
        return HandlerRun(verdict, history, rows, dead)


def _finish(job: CooperativeForeach, timeout: float) -> None:
    query = job.start()
    try:
        if not query.awaitTermination(timeout):
            raise TimeoutError(f"the job still runs after {timeout:g} s: {query.status}")
    finally:
        query.stop()


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


def _calls(directory: str, produced: Mapping[int, bytes | None], *, is_typed: bool) -> History:
    """Returns the recorded calls; those with a decoded key get the bytes that were produced."""
    from coopconsume.testing.history import History, read_history

    Path(directory).mkdir(exist_ok=True)  # Without a call nothing made it.
    history = read_history(directory)
    if not is_typed:
        return history
    return History.of(replace(call, key=produced[call.offset]) for call in history)


def _judged(
    history: History,
    topic: str,
    produced: Mapping[int, bytes | None],
    store: CommitStore,
    dead: Iterable[Mapping[str, Any]],
    *,
    settings: HandlerSettings,
) -> Verdict:
    from coopconsume.testing.history import Disturbance, Seen, check

    calls = list(history)
    # A worker with a call that has no end was killed: what it had not reported is done again.
    last = {call.process: max(call.start_ns, call.end_ns or 0) + 1 for call in calls}
    killed = {
        int(call.process.partition("-")[0]): last[call.process]
        for call in calls
        if call.end_ns is None
    }
    at = topic, 0
    letters = {letter["_offset"]: letter["reason"] for letter in dead}
    # What does not decode is given up without a call, as it is to be.
    uncalled = letters.keys() - {call.offset for call in calls}
    undecodable = {one for one in uncalled if letters[one].startswith(NotDecodable.__name__)}
    return check(
        history,
        {at: {one: key for one, key in produced.items() if one not in undecodable}},
        {
            tp: [(0, commits.stable_offset - 1)] * (commits.stable_offset > 0)
            + commits.ranges.pairs()
            for tp, commits in store.state(topic).items()
        },
        {tp: [(one, one) for one in offsets] for tp, offsets in store.pending(topic).items()},
        {at: [(one, one) for one in letters if one not in undecodable]},
        seen=Seen([Disturbance(ns, ns + 1, frozenset([pid])) for pid, ns in killed.items()],
                  gone=killed),
        ordering=settings.ordering, max_attempts=settings.policy.max_attempts,
    )  # fmt: skip

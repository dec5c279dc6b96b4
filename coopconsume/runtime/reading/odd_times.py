"""Records with timestamps that Spark cannot hold, and how they are read nevertheless.

Kafka takes any number as the timestamp of a record, for example nanoseconds in place of
milliseconds. Spark's Kafka source converts it to microseconds, and fails with "long overflow" at
the whole read. Such records are read by kafka-python instead, in the driver, and Spark reads around
them. Nothing is done for them before a read has failed, as they are rare.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.identity import LOG_IDENTITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from coopconsume.options import Options
    from coopconsume.runtime.reading.spans import Span

    T = TypeVar("T")

log = logging.getLogger(__name__)

#: Timestamps in milliseconds from here on, or down from its negative, are read by kafka-python.
#: Spark's microseconds overflow a little beyond.
LAST_MS: Final = 9_000_000_000_000_000
_OVERFLOW: Final = "long overflow"
_NAMED: Final = 10
_POLL_MS: Final = 1_000
_PATIENCE: Final = 30.0


class Row(NamedTuple):
    """A record in the columns of Spark's Kafka source, with a timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    headers: list[tuple[str, bytes | None]]


class OddTimes:
    """The records with such timestamps that reads of this process have met.

    They are forgotten when a topic was created again or a partition has another leader, as then
    other records may have their offsets. The methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str, int], dict[int, Row]] = {}
        self._generation = ""

    def within(self, options: Options, spans: Iterable[Span]) -> list[Row]:
        """Returns the records of some spans, ascending in each."""
        with self._lock:
            self._look_at_identities()
            if not self._rows:
                return []
            servers = options.kafka["bootstrap.servers"]
            return [
                rows[offset]
                for span in spans
                for rows in [self._rows.get((servers, span.topic, span.partition), {})]
                for offset in sorted(rows)
                if span.first <= offset <= span.last
            ]

    def learn(self, options: Options, error: BaseException, spans: Iterable[Span]) -> bool:
        """Looks for such records where a read has failed because of one.

        Args:
            options: Of the consumer.
            error: What Spark raised.
            spans: What was read.

        Returns:
            Whether there are any that were not known, so that another read may succeed.
        """
        return _OVERFLOW in str(error) and self.look(options, spans)

    def look(self, options: Options, spans: Iterable[Span]) -> bool:
        """Looks for such records; returns whether there are any that were not known."""
        with self._lock:
            self._look_at_identities()
            generation = self._generation
        found = _odd_rows(options, spans)
        with self._lock:
            self._look_at_identities()
            if self._generation != generation:
                return bool(found)
            servers, news = options.kafka["bootstrap.servers"], []
            for row in found:
                rows = self._rows.setdefault((servers, row.topic, row.partition), {})
                if row.offset not in rows:
                    news.append(row)
                rows[row.offset] = row
        if news:
            named = ", ".join(f"{r.topic}-{r.partition}@{r.offset}" for r in news[:_NAMED])
            log.warning(
                "timestamps of %d records are out of Spark's range, and count as the nearest that "
                "it has: %s%s", len(news), named, ", …" if len(news) > _NAMED else "",
            )  # fmt: skip
        return bool(news)

    def _look_at_identities(self) -> None:
        generation = LOG_IDENTITIES.read_group("")
        if generation != self._generation:
            self._rows.clear()
            self._generation = generation


#: The records of this process.
ODD_TIMES = OddTimes()


def retried(options: Options, spans: Sequence[Span], read: Callable[[], T]) -> T:
    """Returns what a read returns; repeats it without records that Spark cannot read.

    Args:
        options: Of the consumer.
        spans: What is read.
        read: Makes the read, from its DataFrame on.
    """
    try:
        return read()
    except Exception as error:
        if not ODD_TIMES.learn(options, error, spans):
            raise
    return read()


def around(spans: Iterable[Span], rows: Iterable[Row]) -> list[Span]:
    """Returns the spans without the offsets of some records."""
    left = list(spans)
    for row in rows:
        parts = []
        for span in left:
            is_in = (span.topic, span.partition) == (row.topic, row.partition)
            if not (is_in and span.first <= row.offset <= span.last):
                parts.append(span)
                continue
            parts += [
                replace(span, first=first, last=last)
                for first, last in ((span.first, row.offset - 1), (row.offset + 1, span.last))
                if first <= last
            ]
        left = parts
    return left


def odd_frame(spark: SparkSession, rows: Iterable[Row], *, headers: bool) -> DataFrame:
    """Returns records as a DataFrame in the columns of Spark's Kafka source."""
    schema = (
        "key binary, value binary, topic string, partition int, `offset` bigint, "
        "millis bigint, timestampType int, headers array<struct<key: string, value: binary>>"
    )
    shown = [
        "key", "value", "topic", "partition", "`offset`", "timestamp_millis(millis) AS timestamp",
        "timestampType", *(["headers"] if headers else []),
    ]  # fmt: skip
    return spark.createDataFrame([tuple(row) for row in rows], schema).selectExpr(*shown)


def _odd_rows(options: Options, spans: Iterable[Span]) -> list[Row]:
    """Reads spans by kafka-python; returns the records with timestamps out of range."""
    from kafka import KafkaConsumer, TopicPartition

    found: list[Row] = []
    consumer = KafkaConsumer(
        **options.client_config(), enable_auto_commit=False, group_id=None,
        auto_offset_reset="earliest", isolation_level=options.kafka["isolation.level"],
    )  # fmt: skip
    with closing(consumer):
        for span in spans:
            at = TopicPartition(span.topic, span.partition)
            consumer.assign([at])
            consumer.seek(at, span.first)
            deadline = time.monotonic() + _PATIENCE
            while (position := consumer.position(at)) <= span.last:
                found += [
                    _row(record)
                    for record in consumer.poll(timeout_ms=_POLL_MS).get(at, ())
                    if record.offset <= span.last and abs(record.timestamp) >= LAST_MS
                ]
                if consumer.position(at) > position:
                    deadline = time.monotonic() + _PATIENCE
                elif time.monotonic() > deadline:
                    servers = options.kafka["bootstrap.servers"]
                    raise BrokerUnreachable(servers, f"{span.topic}-{span.partition} is not read")
    return found


def _row(record: Any) -> Row:
    nearest = max(-LAST_MS, min(record.timestamp, LAST_MS))
    return Row(
        record.key, record.value, record.topic, record.partition, record.offset, nearest,
        record.timestamp_type, list(record.headers),
    )  # fmt: skip

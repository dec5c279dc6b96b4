"""Records with timestamps that Spark cannot hold, and how they are read nevertheless.

Kafka takes any number as the timestamp of a record, for example nanoseconds in place of
milliseconds. Spark's Kafka source converts it to microseconds, and fails with "long overflow" at
the whole read. Such records are read in the driver instead, and Spark reads around them. Where many
records of a read are such, the driver reads all of it. Nothing is done for them before a read has
failed, as they are rare.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from commits import OffsetRanges
from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.headers import message_headers
from coopconsume.kafka.identity import LOG_IDENTITIES
from coopconsume.kafka.records import RecordReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from coopconsume.options import Options
    from coopconsume.runtime.read.spans import Span

    T = TypeVar("T")

log = logging.getLogger(__name__)

#: Timestamps in milliseconds from here on, or down from its negative, are read in the driver.
#: Spark's microseconds overflow a little beyond.
LAST_MS: Final = 9_000_000_000_000_000
_OVERFLOW: Final = "long overflow"
_NAMED: Final = 10
_POLL: Final = 1.0
_PATIENCE: Final = 30.0
#: Bytes of keys, values and headers in the driver's memory, besides what one read needs.
_MOST_BYTES: Final = 64 << 20
#: Pieces of a span that Spark reads, each by a read of its own.
_MOST_PIECES: Final = 20


class SourceRow(NamedTuple):
    """A record in the columns of Spark's Kafka source, with a timestamp in milliseconds.

    At the offsets from ``first`` up to its own there is no other record that can be read.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    headers: list[tuple[str, bytes | None]]
    first: int

    @property
    def size(self) -> int:
        """Bytes of the key, the value and the headers."""
        values = [self.key, self.value, *(value for _, value in self.headers)]
        return sum(len(value) for value in values if value is not None)


class TimestampOverflows:
    """The records that reads of this process have met and that Spark is not to read.

    They are forgotten when a topic was created again or a partition has another leader, as then
    other records may have their offsets; and, beyond 64 MiB, where the last look did not meet them.
    Reads of committed records know their own, without aborted ones.
    The methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str, str, int], dict[int, SourceRow]] = {}
        self._changes = 0

    def within(self, options: Options, spans: Iterable[Span]) -> list[SourceRow]:
        """Returns the records of some spans, ascending in each."""
        with self._lock:
            self._look_at_identities()
            if not self._rows:
                return []
            return [
                rows[offset]
                for span in spans
                for rows in [self._rows.get((*_read_as(options), span.topic, span.partition), {})]
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
        if _OVERFLOW not in str(error):
            return False
        with self._lock:
            self._look_at_identities()
            changes = self._changes
        found = _overflow_rows(options, spans)
        with self._lock:
            self._look_at_identities()
            if self._changes != changes:
                return bool(found)
            news = []
            for row in found:
                at = (*_read_as(options), row.topic, row.partition)
                rows = self._rows.setdefault(at, {})
                if row.offset not in rows and abs(row.timestamp) == LAST_MS:
                    news.append(row)
                rows[row.offset] = row
            self._forget_all_but(found)
        if news:
            named = ", ".join(f"{r.topic}-{r.partition}@{r.offset}" for r in news[:_NAMED])
            log.warning(
                "timestamps of %d records are out of Spark's range, and count as the nearest that "
                "it has: %s%s",
                len(news),
                named,
                ", …" if len(news) > _NAMED else "",
            )
        return bool(news)

    def _forget_all_but(self, found: Iterable[SourceRow]) -> None:
        """Forgets records while there are too many, but none that the next read needs."""
        left = sum(row.size for rows in self._rows.values() for row in rows.values())
        kept = {id(row) for row in found}
        for rows in self._rows.values():
            for row in list(rows.values()):
                if left <= _MOST_BYTES:
                    return
                if id(row) not in kept:
                    left -= rows.pop(row.offset).size

    def _look_at_identities(self) -> None:
        changes = LOG_IDENTITIES.changes
        if changes != self._changes:
            self._rows.clear()
            self._changes = changes


#: The records of this process.
TIMESTAMP_OVERFLOWS = TimestampOverflows()


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
        if not TIMESTAMP_OVERFLOWS.learn(options, error, spans):
            raise
    return read()


def around(spans: Iterable[Span], rows: Iterable[SourceRow]) -> list[Span]:
    """Returns the spans without some records and the offsets before them that have none."""
    left_out: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows:
        left_out.setdefault((row.topic, row.partition), []).append((row.first, row.offset))
    return [
        replace(span, first=first, last=last)
        for span in spans
        for some in [OffsetRanges(left_out.get((span.topic, span.partition), []))]
        for first, last in (OffsetRanges([(span.first, span.last)]) - some).pairs()
    ]


def overflow_frame(spark: SparkSession, rows: Iterable[SourceRow], *, headers: bool) -> DataFrame:
    """Returns records as a DataFrame in the columns of Spark's Kafka source."""
    schema = (
        "key binary, value binary, topic string, partition int, `offset` bigint, "
        "millis bigint, timestampType int, headers array<struct<key: string, value: binary>>"
    )
    shown = [
        "key",
        "value",
        "topic",
        "partition",
        "`offset`",
        "timestamp_millis(millis) AS timestamp",
        "timestampType",
        *(["headers"] if headers else []),
    ]
    return spark.createDataFrame([row[:-1] for row in rows], schema).selectExpr(*shown)


def _read_as(options: Options) -> tuple[str, str]:
    """Returns the cluster, and which of its records there are for a consumer."""
    return options.kafka["bootstrap.servers"], options.kafka["isolation.level"]


def _overflow_rows(options: Options, spans: Iterable[Span]) -> list[SourceRow]:
    """Reads spans in the driver; returns the records with timestamps out of range.

    Where these are so many that Spark would have to read a span in many pieces, all its records are
    returned, with the offsets between them.
    """
    found: list[SourceRow] = []
    with closing(RecordReader(options.kafka)) as reader:
        for span in spans:
            read = partial(_records, reader, options.kafka["bootstrap.servers"], span)
            rows = [_row(record) for record in read() if abs(record.timestamp()[1]) >= LAST_MS]
            if len(around([span], rows)) > _MOST_PIECES:
                records = list(read())
                firsts = [span.first, *(record.offset() + 1 for record in records[:-1])]
                rows = list(map(_row, records, firsts))
            found += rows
    return found


def _records(reader: RecordReader, servers: str, span: Span) -> Iterator[Any]:
    """Yields the records of a span.

    Raises:
        BrokerUnreachable: Nothing came for 30 s.
    """
    at = (span.topic, span.partition)
    reader.assign({at: span.first})
    deadline = time.monotonic() + _PATIENCE
    while (position := reader.positions[at]) <= span.last:
        taken = reader.read(_POLL)
        for record in taken.records.get(at, ()):
            if record.offset() <= span.last:
                yield record
        if taken.lost:  # Retention has deleted some meanwhile.
            reader.seek(at, max(position, reader.bounds(at)[0]))
        if reader.positions[at] > position:
            deadline = time.monotonic() + _PATIENCE
        elif time.monotonic() > deadline:
            raise BrokerUnreachable(servers, f"{span.topic}-{span.partition} is not read")


def _row(record: Any, first: int | None = None) -> SourceRow:
    # Spark counts the types from -1 on, as the Java client does, and librdkafka from 0 on.
    (kind, timestamp), offset = record.timestamp(), record.offset()
    return SourceRow(
        record.key(),
        record.value(),
        topic=record.topic(),
        partition=record.partition(),
        offset=offset,
        timestamp=max(-LAST_MS, min(timestamp, LAST_MS)),
        timestamp_type=kind - 1,
        headers=message_headers(record),
        first=offset if first is None else first,
    )

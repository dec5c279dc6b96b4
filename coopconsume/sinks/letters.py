"""Sinks for dead letters: a Delta table or a Kafka topic with the records that were given up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.errors import InvalidOption
from coopconsume.kafka.creation import create_topic
from coopconsume.kafka.producer import Message, Producer
from coopconsume.record import ordering_key_of
from coopconsume.sinks.base import topic_of
from coopconsume.sinks.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.options import Options
    from coopconsume.sinks.base import DeadLetterSink
    from coopconsume.worker.report import DeadLetter

DEAD_LETTERS = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")), ("attempts", pa.int32()),
        ("reason", pa.string()), ("trace", pa.string()), ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip

#: The headers of a dead letter in a topic, in this order after the record's own headers.
HEADERS = (
    "coopconsume.topic", "coopconsume.topic_id", "coopconsume.partition", "coopconsume.offset",
    "coopconsume.timestamp", "coopconsume.attempts", "coopconsume.reason", "coopconsume.trace",
    "coopconsume.rejected_at", "coopconsume.group", "coopconsume.commit",
)  # fmt: skip


class DeadLetterTable(Table):
    """Dead letters in a Delta table.

    Columns: ``key``, ``value``, ``headers`` and ``timestamp`` of the record; ``attempts``,
    ``reason``, ``trace`` and ``rejected_at``; and the position of the record.

    Args:
        path: The path of the Delta table, which is created with the first dead letter.

    Raises:
        TableUnusable: The table at the path has other columns, or the path is not a table.
    """

    what = "dead letter table"

    def __init__(self, path: str) -> None:
        super().__init__(path, DEAD_LETTERS)

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Writes dead letters.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        now = int(time.time() * 1_000_000)
        rows: list[dict[str, Any]] = [
            {
                "key": letter.key,
                "value": letter.value,
                "headers": [{"key": name, "value": value} for name, value in letter.headers],
                "timestamp": _micros(letter.timestamp),
                "attempts": letter.attempts,
                "reason": letter.reason,
                "trace": letter.trace,
                "rejected_at": now,
                "_topic": letter.topic,
                "_topic_id": topic_ids.get(letter.topic, ""),
                "_partition": letter.partition,
                "_offset": letter.offset,
                "_commit": commit_id,
            }
            for letter in letters
        ]
        self._append(pa.Table.from_pylist(rows, schema=self._full))


def _micros(millis: int) -> int | None:
    """Returns the timestamp of a record for the table; None if the column cannot hold it."""
    micros = 1000 * millis
    return micros if abs(micros) < 1 << 63 else None


class DeadLetterTopic:
    """Dead letters in a Kafka topic, written at least once.

    The letters of a key, or of an ordering key, are in the order of its records, unless a write has
    failed. Key, value and headers are those of the record, followed by `HEADERS`. Times are
    milliseconds since the epoch; numbers are text.

    Args:
        topic: The name of a topic in the consumed cluster. With ``deadLetterPartitions`` it is
            created before the first write if it does not exist.
        options: The options of the consumer.

    Attributes:
        rows_written: The number of letters that were written, repeated ones included.
    """

    def __init__(self, topic: str, options: Options) -> None:
        self.topic = topic
        self.rows_written = 0
        self._group = options.group_id
        self._options = options
        self._may_be_missing = options.dead_letter_partitions > 0
        self._producer = Producer(options, "dead letters")

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Writes dead letters.

        Raises:
            NotAuthorized: This user may not write to the topic, or not create it.
            OutputNotWritten: Kafka did not acknowledge all letters, or did not create the topic.
            OutputRefused: A letter is too large for the topic.
        """
        now = int(time.time() * 1000)
        if self._may_be_missing:
            create_topic(
                self._options, self.topic, self._options.dead_letter_partitions,
                self._options.dead_letter_topic_config or {}, "dead letters",
            )  # fmt: skip
        # It may be deleted, too: then it is created again.
        self._may_be_missing = self._options.dead_letter_partitions > 0
        is_keyed = self._options.ordering_key is not None
        self._producer.write(
            Message(
                self.topic,
                letter.key,
                letter.value,
                (*letter.headers, *_beside(letter, topic_ids, self._group, commit_id, now)),
                ordering_key=ordering_key_of(letter.headers) if is_keyed else None,
            )
            for letter in letters
        )
        self._may_be_missing = False
        self.rows_written += len(letters)

    def close(self) -> None:
        """Closes the connections. Calling it again has no effect."""
        self._producer.close()


def _beside(
    letter: DeadLetter, topic_ids: Mapping[str, str], group: str, commit_id: str, now: int
) -> list[tuple[str, bytes | None]]:
    values = (
        letter.topic, topic_ids.get(letter.topic, ""), letter.partition, letter.offset,
        letter.timestamp, letter.attempts, letter.reason, letter.trace, now, group, commit_id,
    )  # fmt: skip
    return [(name, str(v).encode()) for name, v in zip(HEADERS, values, strict=True)]


def letter_tables(place: str | None) -> list[str]:
    """Returns the paths of the tables of dead letters and of decisions on them; none for a topic.

    Args:
        place: The place of dead letters; None: no dead letters are kept.
    """
    return [] if place is None or topic_of(place) is not None else [place, decisions_table(place)]


def decisions_table(place: str) -> str:
    """Returns the path of the decisions on the dead letters in a table."""
    return f"{place}_decisions"


def open_dead_letters(place: str, options: Options) -> DeadLetterSink:
    """Opens a sink for dead letters.

    Args:
        place: The path of a Delta table, or ``kafka:`` and the name of a topic.
        options: The options of the consumer.

    Raises:
        InvalidOption: The name of the topic is empty.
        TableUnusable: The table at the path has other columns, or the path is not a table.
    """
    topic = topic_of(place)
    if topic is None:
        return DeadLetterTable(place)
    if not topic:
        raise InvalidOption("dead_letter", repr(place), "write it as kafka:TOPIC, or give a path")
    return DeadLetterTopic(topic, options)

"""Fenced logs as Spark DataFrames: the records that count, row by row, by their stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.stamp import FORMAT, NAME, VISIBILITIES, sql
from coopconsume.kafka.security.secrets import keep_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_TUNED = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}


def read_log(
    spark: SparkSession,
    options: Mapping[str, Any],
    topic: str,
    *,
    starting_offsets: str = "earliest",
    ending_offsets: str = "latest",
) -> DataFrame:
    """The records of data that count, of all partitions of a topic.

    The options are those of `FencedWriter`, and the offsets are ``startingOffsets`` and
    ``endingOffsets`` of Spark's Kafka source; by default up to the end of what is decided now. The
    columns are those of `accepted`.

    Raises:
        OptionError: An option makes no sense.
    """
    keep_out_of_logs()
    settings = FencedSettings.parse(options)
    # Under a group id, Spark would serve what it fetched of a deleted topic of the same name.
    kafka = {name: value for name, value in settings.kafka.items() if name != "group.id"}
    frame = (
        spark.read.format("kafka")
        .options(**_TUNED | {f"kafka.{name}": str(value) for name, value in kafka.items()})
        .option("kafka.isolation.level", "read_committed")
        .options(subscribe=topic, startingOffsets=starting_offsets, endingOffsets=ending_offsets)
        .option("includeHeaders", "true")
        .load()
    )
    return accepted(frame)


def accepted(frame: DataFrame, *, visibility: str | None = None) -> DataFrame:
    """Keep the records of a fenced log that count, by the rule that needs nothing but the row.

    It works on streams, too: a record counts if its offset is the one that its stamp expects.
    `LogReader` and `audit` check that numbers and epochs follow each other.

    Args:
        frame: Rows of Spark's Kafka source, with ``includeHeaders`` and committed records alone
            (``kafka.isolation.level=read_committed``).
        visibility: Keep only records of writers with this one; by default of both.

    Returns:
        The columns ``topic``, ``partition``, ``offset``, ``epoch``, ``seq``, ``batch_id``, ``key``,
        ``value``, ``timestamp`` and ``headers`` (the user's).

    Raises:
        InvalidOption: The frame has no headers, or there is no such visibility.
    """
    if "headers" not in frame.columns:
        raise InvalidOption("includeHeaders", "not set", "the stamps are in the headers: set it")
    if visibility not in (None, *VISIBILITIES):
        raise InvalidOption("visibility", repr(visibility), f"give one of {VISIBILITIES}")
    counts = [
        f"get(headers, 0).key = '{NAME}'",
        f"{sql('format')} = {FORMAT}",
        f"{sql('kind')} = 0",
        f"`offset` = {sql('expected')} + {sql('i')}",
    ]
    if visibility is not None:
        counts.append(f"{sql('filter')} = {str(visibility == 'filter').lower()}")
    return (
        frame.where(" AND ".join(counts))
        .selectExpr(
            "topic", "partition", "`offset`", f"{sql('epoch')} AS epoch",
            f"{sql('first_seq')} + {sql('i')} AS seq", f"{sql('batch')} AS batch_id", "key",
            "value", "timestamp", "slice(headers, 2, size(headers) - 1) AS headers",
        )
    )  # fmt: skip

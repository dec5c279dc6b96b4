"""Rows of a micro-batch as records, and which of several partitions each is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.log import Entry
from coopconsume.kafka.partitioner import default_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_COLUMNS: Final = ("value", "key", "headers", "partition")
_ORIGIN: Final = ("_topic", "_partition", "_offset")


def entries_of(batch: DataFrame, partitions: Sequence[int]) -> dict[int, list[Entry]]:
    """The records of a micro-batch for each partition, in the order of its rows.

    Of several partitions a record gets the one that its column ``partition`` names, else one by
    its key, as Kafka's producers choose it (murmur2); without a key, one by its value, so that a
    batch that is written again is dealt again in the same way. The only one gets all.

    Raises:
        InvalidOption: It has no column ``value``.
        AppendRefused: A row names another partition.
    """
    from coopconsume.kafka.producer import ORIGIN_HEADER

    if "value" not in batch.columns:
        raise InvalidOption("batch", f"columns {batch.columns}", "give a column value")
    wanted = [name for name in (*_COLUMNS, *_ORIGIN) if name in batch.columns]
    comes_from = set(_ORIGIN) <= set(wanted)
    found: dict[int, list[Entry]] = {}
    for row in batch.select(*wanted).toArrow().to_pylist():
        headers = [(each["key"], each["value"] or b"") for each in row.get("headers") or ()]
        if comes_from:
            origin = f"{row['_topic']}-{row['_partition']}@{row['_offset']}"
            headers.append((ORIGIN_HEADER, origin.encode()))
        entry = Entry(_bytes(row["value"]), _bytes(row.get("key")), headers)
        partition = partitions[0]
        if len(partitions) > 1:
            partition = _partition_of(entry, row.get("partition"), partitions)
        found.setdefault(partition, []).append(entry)
    return found


def _partition_of(entry: Entry, named: int | None, partitions: Sequence[int]) -> int:
    if named is None:
        chosen = entry.key if entry.key is not None else entry.value or b""
        return partitions[default_partition(chosen, len(partitions))]
    if named not in partitions:
        raise AppendRefused(f"a row is for partition {named}; the sink writes to {partitions}")
    return named


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

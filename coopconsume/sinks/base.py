"""The protocols of sinks, the rows that they write, and their common columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commits import OffsetRanges
from coopconsume.kafka.producer import ORIGIN_HEADER
from coopconsume.values.schema import arrow_schema
from coopconsume.worker.output_rows import ORIGIN_OF_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from coopconsume.options import Options
    from coopconsume.worker.report import DeadLetter

#: The prefix of a topic where a path is possible as well.
TOPIC_PREFIX = "kafka:"
#: A header with the indexes, from 0, of the headers before it whose value was null, where they were
#: written as empty ones.
NULL_HEADERS = "coopconsume.null_headers"


def topic_of(place: Any) -> str | None:
    """Returns the topic of a place that is written as ``kafka:TOPIC``; None for other places."""
    is_topic = isinstance(place, str) and place.startswith(TOPIC_PREFIX)
    return place.removeprefix(TOPIC_PREFIX) if is_topic else None


def required_topics(dead_letter: str | None, output: Any, options: Options) -> list[str]:
    """Returns the topics that must exist before a job starts.

    They are the topic of outputs, and that of dead letters unless ``deadLetterPartitions`` creates
    it.

    Args:
        dead_letter: The place of dead letters.
        output: The place of outputs.
        options: The options of the consumer.
    """
    places = (None if options.dead_letter_partitions else dead_letter, output)
    return [topic for place in places if (topic := topic_of(place)) is not None]


#: The number of a row among the rows of its record, from 0.
ROW = pa.field("_row", pa.int32())

#: The mark of the rows that a merge removes.
GONE = "_gone"

#: The record of a row, and the commit that decides whether the row counts.
ORIGIN = pa.schema(
    [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_commit", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """The rows that the handlers of a commit returned.

    Attributes:
        parts: The rows as slots reported them, with the partitions that ``_part`` refers to.
        done: The offsets of the records that are committed with the rows, by topic and partition;
            for a sink that `OutputSink.hears_all`, those without a row, too.
        topic_ids: Kafka's ids of the topics.
        commit_id: The id of the commit that decides whether the rows count.
    """

    parts: Sequence[tuple[Sequence[tuple[str, int]], bytes]]
    done: Mapping[tuple[str, int], OffsetRanges] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    commit_id: str = ""

    def table(self, schema: pa.Schema, *, with_hash: bool = False) -> pa.Table:
        """Returns the rows with `ROW` and `ORIGIN`; the rows of a record are adjacent, in order.

        Args:
            schema: The schema of the rows without these columns.
            with_hash: Whether to return the key hash of the record, too, as ``_key_hash``.
        """
        tables = [self._with_origin(partitions, data) for partitions, data in self.parts]
        hashes = [pa.field("_key_hash", pa.int64())] if with_hash else []
        full = pa.schema([*schema, *hashes, ROW, *ORIGIN])
        if not tables:
            return full.empty_table()
        return pa.concat_tables(tables).select(full.names).cast(full)

    def _with_origin(self, partitions: Sequence[tuple[str, int]], data: bytes) -> pa.Table:
        table = pa.ipc.open_stream(data).read_all().combine_chunks()
        ids = self.topic_ids
        places = {
            "_topic": pa.array([topic for topic, _ in partitions], pa.string()),
            "_topic_id": pa.array([ids.get(topic, "") for topic, _ in partitions], pa.string()),
            "_partition": pa.array([number for _, number in partitions], pa.int32()),
        }
        part = table.column("_part")
        for name, values in places.items():
            table = table.append_column(name, values.take(part))
        commit = pa.repeat(pa.scalar(self.commit_id, pa.string()), table.num_rows)
        row = _places(part, table.column("_offset"))
        return table.append_column("_commit", commit).append_column(ROW.name, row)


def _places(part: pa.ChunkedArray, offset: pa.ChunkedArray) -> pa.Array:
    """Returns the number of each row among the rows of its record, from 0."""
    parts, offsets = part.to_numpy(), offset.to_numpy()
    at = np.arange(len(parts), dtype=np.int32)
    is_first = np.ones(len(parts), dtype=bool)
    is_first[1:] = (parts[1:] != parts[:-1]) | (offsets[1:] != offsets[:-1])
    return pa.array(at - np.maximum.accumulate(np.where(is_first, at, 0)), pa.int32())


def divided_rows(
    partitions: Sequence[tuple[str, int]],
    rows: bytes,
    left: Mapping[tuple[str, int], OffsetRanges],
) -> tuple[bytes | None, bytes | None]:
    """Splits the rows of a slot into those outside and inside of ``left``; None if empty."""
    table = pa.ipc.open_stream(rows).read_all()
    origins = zip(
        table.column("_part").to_pylist(), table.column("_offset").to_pylist(), strict=True
    )
    waits = pa.array(
        [(tp := partitions[part]) in left and offset in left[tp] for part, offset in origins],
        pa.bool_(),
    )
    return _packed(table.filter(pc.invert(waits))), _packed(table.filter(waits))


def offsets_of_rows(
    partitions: Sequence[tuple[str, int]], rows: bytes
) -> dict[tuple[str, int], OffsetRanges]:
    """Returns the offsets of the records of a slot's rows, by topic and partition."""
    table = pa.ipc.open_stream(rows).read_all()
    parts, offsets = (table.column(name).to_numpy() for name in ("_part", "_offset"))
    return {
        partitions[part]: OffsetRanges.from_offsets(offsets[parts == part])
        for part in np.unique(parts).tolist()
    }


def hashes_of_rows(
    partitions: Sequence[tuple[str, int]], rows: bytes
) -> dict[tuple[str, int], dict[int, int]]:
    """Returns the key hash by offset of the records of a slot's rows, by topic and partition."""
    table = pa.ipc.open_stream(rows).read_all()
    columns = (table.column(name).to_pylist() for name in ("_part", "_offset", "_key_hash"))
    found: dict[tuple[str, int], dict[int, int]] = {}
    for part, offset, key_hash in zip(*columns, strict=True):
        found.setdefault(partitions[part], {})[offset] = key_hash
    return found


def _packed(table: pa.Table) -> bytes | None:
    if not table.num_rows:
        return None
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def as_bytes(value: Any) -> Any:
    """Returns a text as bytes, and other values as they are."""
    return value.encode() if isinstance(value, str) else value


def origin_header(row: Mapping[str, Any]) -> tuple[str, bytes]:
    """Returns the header that names the record of a row with `ORIGIN`."""
    return ORIGIN_HEADER, f"{row['_topic']}-{row['_partition']}@{row['_offset']}".encode()


class OutputSink(Protocol):
    """A sink for the rows that handlers return; it is called before their commit."""

    #: The schema of the rows that handlers return.
    schema: pa.Schema
    #: Whether the sink is also called for commits without rows.
    hears_all: ClassVar[bool]

    def write(self, outputs: Outputs) -> None:
        """Writes rows durably.

        Raises:
            OutputNotWritten: The write failed; the records are processed again.
        """

    def close(self) -> None:
        """Closes the connections. Calling it again has no effect."""


class DeadLetterSink(Protocol):
    """A sink for dead letters; it is called before the commit of their records."""

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Writes dead letters durably.

        Args:
            letters: The records, and why they were given up.
            topic_ids: Kafka's ids of their topics.
            commit_id: The id of the commit that decides whether they count.
        """

    def close(self) -> None:
        """Closes the connections. Calling it again has no effect."""


def output_schema(given: str | StructType | pa.Schema) -> pa.Schema:
    """Returns the schema of output rows as an Arrow schema.

    Raises:
        InvalidOption: It is no schema, or a column has a name of the library, or of another column.
    """
    return arrow_schema(given, [*ORIGIN_OF_ROW.names, ROW.name, *ORIGIN.names, GONE])

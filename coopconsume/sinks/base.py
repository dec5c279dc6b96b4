"""What sinks have in common: what they are asked to write, and the words that name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from coopconsume.worker.report import DeadLetter

#: How a topic is told from a path, where either may be given.
TOPIC_PREFIX = "kafka:"

#: The place of a row among those of its record, from 0.
ROW = pa.field("_row", pa.int32())

#: Where a row comes from, and the commit that it stands or falls with.
ORIGIN = pa.schema(
    [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_commit", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """What a commit's handlers returned.

    Attributes:
        parts: Rows as slots reported them, with the partitions that their ``_part`` counts.
        done: The offsets of the records that are committed with the rows, by topic and partition;
            for a sink that `OutputSink.hears_all`, those without a row, too.
        topic_ids: Kafka's ids of the topics.
        commit_id: The commit that the rows stand or fall with.
    """

    parts: Sequence[tuple[Sequence[tuple[str, int]], bytes]]
    done: Mapping[tuple[str, int], OffsetRanges] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    commit_id: str = ""

    def table(self, schema: pa.Schema) -> pa.Table:
        """The rows, `ROW` and `ORIGIN`; those of a record stand together, in its order.

        Args:
            schema: Of the rows alone.
        """
        tables = [self._told(partitions, data) for partitions, data in self.parts]
        full = pa.schema([*schema, ROW, *ORIGIN])
        if not tables:
            return full.empty_table()
        return pa.concat_tables(tables).select(full.names).cast(full)

    def _told(self, partitions: Sequence[tuple[str, int]], data: bytes) -> pa.Table:
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
    """The place of each row among those of its record, from 0."""
    places, before, place = [], None, 0
    for at in zip(part.to_pylist(), offset.to_pylist(), strict=True):
        place = place + 1 if at == before else 0
        before = at
        places.append(place)
    return pa.array(places, pa.int32())


def divided_rows(
    partitions: Sequence[tuple[str, int]],
    rows: bytes,
    left: Mapping[tuple[str, int], OffsetRanges],
) -> tuple[bytes | None, bytes | None]:
    """The rows of a slot that are not of some offsets, and those that are; None: there are none."""
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
    """The offsets of the records that the rows of a slot come from, by topic and partition."""
    table = pa.ipc.open_stream(rows).read_all()
    parts, offsets = (table.column(name).to_numpy() for name in ("_part", "_offset"))
    return {
        partitions[part]: OffsetRanges.from_offsets(offsets[parts == part])
        for part in np.unique(parts).tolist()
    }


def hashes_of_rows(
    partitions: Sequence[tuple[str, int]], rows: bytes
) -> dict[tuple[str, int], dict[int, int]]:
    """By partition, the records that the rows of a slot come from: offset and key hash."""
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


class OutputSink(Protocol):
    """Where rows go that handlers return; called before the commit that makes them count."""

    #: Of the rows that handlers return.
    schema: pa.Schema
    #: The Kafka topic it needs, if it is one.
    topic: str | None
    #: Whether it must hear of commits without a row, too.
    hears_all: ClassVar[bool]

    def write(self, outputs: Outputs) -> None:
        """Write rows; once it returns they are safe.

        Raises:
            OutputNotWritten: They are not; their records will be done again.
        """

    def close(self) -> None:
        """Let go of connections; harmless when repeated."""


class DeadLetterSink(Protocol):
    """Where records go that are given up; called before the commit that makes them so."""

    #: The Kafka topic it needs, if it is one.
    topic: str | None

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Write dead letters; once it returns they are safe.

        Args:
            letters: The records, and why they were given up.
            topic_ids: Kafka's ids of their topics.
            commit_id: The commit that they stand or fall with.
        """

    def close(self) -> None:
        """Let go of connections; harmless when repeated."""


def arrow_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """An Arrow schema from DDL, a Spark schema or an Arrow schema.

    Raises:
        TypeError: It is none of them.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_string

    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"output schema {schema!r}: give DDL such as 'name string, count int'")
    return to_arrow_schema(parsed)

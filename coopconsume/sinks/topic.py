"""An output topic: the rows that handlers return, written at least once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from coopconsume.errors import InvalidOption
from coopconsume.kafka.producer import Message, Producer
from coopconsume.sinks.base import as_bytes, origin_header, output_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from coopconsume.options import Options
    from coopconsume.sinks.base import Outputs

_COLUMNS = ("key", "value", "partition", "headers")


class OutputTopic:
    """Writes the rows that handlers return to a Kafka topic, at least once.

    The columns are those of Spark's Kafka sink: ``value`` and optionally ``key`` (text or bytes),
    ``partition`` and ``headers``. Each record also has `ORIGIN_HEADER`, so that readers can detect
    duplicates.

    Args:
        topic: The name of a topic in the consumed cluster.
        schema: The schema of the rows: DDL, a Spark or an Arrow schema.
        options: The options of the consumer.

    Attributes:
        rows_written: The number of rows that were written, repeated ones included.

    Raises:
        InvalidOption: The schema has another column, or no ``value``.
    """

    hears_all: ClassVar[bool] = False

    def __init__(self, topic: str, schema: str | StructType | pa.Schema, options: Options) -> None:
        self.topic = topic
        self.schema = output_schema(schema)
        check_columns(self.schema)
        self.rows_written = 0
        self._producer = Producer(options, "outputs")

    def write(self, outputs: Outputs) -> None:
        """Writes records.

        Raises:
            NotAuthorized: This user may not write to the topic.
            OutputNotWritten: Kafka did not acknowledge all records.
        """
        rows = outputs.table(self.schema)
        self._producer.write(messages_of(self.topic, rows))
        self.rows_written += rows.num_rows

    def close(self) -> None:
        """Closes the connections. Calling it again has no effect."""
        self._producer.close()


def check_columns(schema: pa.Schema) -> None:
    """Checks that the columns of the rows are those of a record.

    Raises:
        InvalidOption: The schema has another column, or no ``value``.
    """
    odd = [name for name in schema.names if name not in _COLUMNS]
    if odd or "value" not in schema.names:
        raise InvalidOption(
            "output_schema",
            f"columns {schema.names}",
            "for a topic give value and optionally key, partition and headers",
        )


def messages_of(topic: str, rows: pa.Table) -> Iterator[Message]:
    """Yields rows that handlers returned as records of a topic, with their origin."""
    for row in rows.to_pylist():
        headers = [(h["key"], h["value"]) for h in row.get("headers") or ()]
        yield Message(
            topic, as_bytes(row.get("key")), as_bytes(row["value"]),
            [*headers, origin_header(row)], row.get("partition"),
        )  # fmt: skip

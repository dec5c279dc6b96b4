"""Sinks that are no tables: a Kafka topic, and any function of a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from coopconsume.errors import InvalidOption, OutputNotWritten
from coopconsume.sinks.base import TOPIC_PREFIX, arrow_schema
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.producer import Message, Producer
from coopconsume.sinks.table import OutputTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from coopconsume.options import Options
    from coopconsume.sinks.base import Outputs, OutputSink

#: A header of a record that a handler returned: the record that it comes from.
ORIGIN_HEADER = "coopconsume.origin"
_COLUMNS = ("key", "value", "partition", "headers")


class OutputTopic:
    """The rows that handlers return, as records of a Kafka topic: at least once.

    Columns as Spark's Kafka sink has them: ``value`` and, if wanted, ``key`` (text or bytes),
    ``partition`` and ``headers``. Beside its headers each record has `ORIGIN_HEADER`, by which a
    reader can tell what was written twice.

    Args:
        topic: Its name; in the cluster that is consumed.
        schema: Of the rows, as DDL, a Spark or an Arrow schema.
        options: Of the consumer.

    Raises:
        InvalidOption: A column is none of these, or there is no value.
    """

    hears_all: ClassVar[bool] = False

    def __init__(self, topic: str, schema: str | StructType | pa.Schema, options: Options) -> None:
        self.topic: str | None = topic
        self._name = topic
        self.schema = arrow_schema(schema)
        odd = [name for name in self.schema.names if name not in _COLUMNS]
        if odd or "value" not in self.schema.names:
            raise InvalidOption(
                "output_schema", f"columns {self.schema.names}",
                "for a topic give value and, if wanted, key, partition and headers",
            )  # fmt: skip
        self._producer = Producer(options, "outputs")

    def write(self, outputs: Outputs) -> None:
        """Write records.

        Raises:
            NotAuthorized: This user may not write to the topic.
            OutputNotWritten: Kafka did not acknowledge all of them.
        """
        self._producer.write(self._messages(outputs))

    def _messages(self, outputs: Outputs) -> Iterator[Message]:
        for row in outputs.table(self.schema).to_pylist():
            origin = f"{row['_topic']}-{row['_partition']}@{row['_offset']}"
            headers = [(h["key"], h["value"]) for h in row.get("headers") or ()]
            yield Message(
                self._name, _bytes(row.get("key")), _bytes(row["value"]),
                [*headers, (ORIGIN_HEADER, origin.encode())], row.get("partition"),
            )  # fmt: skip

    def close(self) -> None:
        """Disconnect; harmless when repeated."""
        self._producer.close()


class OutputFunction:
    """Hands the rows of each commit to a function, as ``foreachBatch`` does.

    Args:
        function: Gets a DataFrame of the rows, with `ROW` and `ORIGIN`, and the commit's id: text
            that no other commit has. It runs on the driver, before the commit. After a crash some
            of the records come again, under another id; the columns of `ORIGIN` tell them.
        schema: Of the rows, as DDL, a Spark or an Arrow schema.
        spark: The session.
    """

    topic: str | None = None
    hears_all: ClassVar[bool] = False

    def __init__(
        self,
        function: Callable[[DataFrame, str], object],
        schema: str | StructType | pa.Schema,
        spark: SparkSession,
    ) -> None:
        self._function = function
        self.schema = arrow_schema(schema)
        self._spark = spark

    def write(self, outputs: Outputs) -> None:
        """Call the function.

        Raises:
            OutputNotWritten: It raised something.
        """
        try:
            frame = self._spark.createDataFrame(outputs.table(self.schema))
            self._function(frame, outputs.commit_id)
        except Exception as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            cause = f"{type(error).__name__}: {error}"
            raise OutputNotWritten("outputs", f"the function {name}", cause) from error

    def close(self) -> None:
        """Nothing is open."""


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def open_output(
    place: Any, mode: str, schema: Any, options: Options, spark: SparkSession
) -> OutputSink:
    """A sink, by what a user calls it.

    Args:
        place: Path of a Delta table, ``kafka:`` and the name of a topic, or a function of a
            DataFrame and a commit's id.
        mode: ``append`` or, for a table alone, ``merge``.
        schema: Of the rows, as DDL, a Spark or an Arrow schema.
        options: Of the consumer.
        spark: The session.

    Raises:
        InvalidOption: A topic or a function cannot be merged into, or the place is none of these.
        TableUnusable: There is a table of other columns, or something else at the path.
    """
    if mode not in ("append", "merge"):
        raise InvalidOption("output_mode", repr(mode), "give append or merge")
    is_path = isinstance(place, str) and not place.startswith(TOPIC_PREFIX)
    if mode == "merge" and not is_path:
        raise InvalidOption("output_mode", "merge", "only a Delta table can be merged into")
    if is_path:
        return MergeTable(place, schema) if mode == "merge" else OutputTable(place, schema)
    if callable(place):
        return OutputFunction(place, schema, spark)
    topic = place.removeprefix(TOPIC_PREFIX) if isinstance(place, str) else ""
    if not topic:
        raise InvalidOption(
            "output", repr(place), "give a path, kafka:TOPIC, or a function of (DataFrame, id)"
        )
    return OutputTopic(topic, schema, options)

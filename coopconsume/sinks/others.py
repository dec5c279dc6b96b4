"""`OutputFunction`, and `open_output`, which opens an output sink by its name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from coopconsume.errors import InvalidOption, MissingOption, OutputNotWritten
from coopconsume.sinks.base import output_schema, topic_of
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.table import OutputTable
from coopconsume.sinks.topic import OutputTopic
from coopconsume.sinks.transactional import TransactionalTopic
from coopconsume.worker.handler_answers import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from coopconsume.options import Options
    from coopconsume.sinks.base import Outputs, OutputSink


class OutputFunction:
    """Passes the rows of each commit to a function, as ``foreachBatch`` does.

    Args:
        function: Is called on the driver, before the commit, with a DataFrame of the rows, `ROW`
            and `ORIGIN`, and with the unique id of the commit. After a crash some records are
            passed again with another id; the columns of `ORIGIN` identify them.
        schema: The schema of the rows: DDL, a Spark or an Arrow schema.
        spark: The session.
    """

    hears_all: ClassVar[bool] = False

    def __init__(
        self,
        function: Callable[[DataFrame, str], object],
        schema: str | StructType | pa.Schema,
        spark: SparkSession,
    ) -> None:
        self._function = function
        self.schema = output_schema(schema)
        self._spark = spark
        self._lock = threading.Lock()

    def write(self, outputs: Outputs) -> None:
        """Calls the function.

        Raises:
            OutputNotWritten: The function raised an error.
        """
        try:
            with self._lock:
                frame = self._spark.createDataFrame(outputs.table(self.schema))
                self._function(frame, outputs.commit_id)
        except Exception as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise OutputNotWritten("outputs", f"the function {name}", error_text(error)) from error

    def close(self) -> None:
        """Does nothing; no connection stays open."""


def check_output(
    place: Any, mode: str, options: Options, *, partition_by: str | Sequence[str] = ()
) -> None:
    """Checks that the place and the mode of outputs fit; the arguments are those of `open_output`.

    Raises:
        InvalidOption: The mode is unknown or does not fit the place, or the place is invalid.
        MissingOption: ``purgatory`` is missing for a transactional topic.
    """
    if mode not in ("append", "merge", "transactional"):
        raise InvalidOption("output_mode", repr(mode), "give append, merge or transactional")
    topic = topic_of(place)
    is_path = isinstance(place, str) and topic is None
    if mode == "merge" and not is_path:
        raise InvalidOption("output_mode", "merge", "it needs a Delta table: give a path as output")
    if mode == "transactional" and (is_path or callable(place)):
        raise InvalidOption("output_mode", mode, "it needs a topic: give kafka:TOPIC as output")
    if not (is_path or topic or callable(place)):
        raise InvalidOption(
            "output", repr(place), "give a path, kafka:TOPIC, or a function of (DataFrame, id)"
        )
    if partition_by and not is_path:
        remedy = "it needs a Delta table: give a path as output"
        raise InvalidOption("output_partition_by", repr(partition_by), remedy)
    if mode == "transactional" and options.purgatory is None:
        raise MissingOption("purgatory")


def open_output(
    place: Any,
    mode: str,
    schema: Any,
    options: Options,
    spark: SparkSession,
    *,
    partition_by: str | Sequence[str] = (),
) -> OutputSink:
    """Opens an output sink.

    Args:
        place: The path of a Delta table, ``kafka:`` and the name of a topic, or a function of a
            DataFrame and a commit id.
        mode: ``append``, ``merge`` (tables only) or ``transactional`` (topics only).
        schema: The schema of the rows: DDL, a Spark or an Arrow schema.
        options: The options of the consumer.
        spark: The session.
        partition_by: The partition columns of a table that is created.

    Raises:
        InvalidOption: The mode is unknown or does not fit the place, or the place is invalid.
        MissingOption: ``purgatory`` is missing for a transactional topic.
        TableUnusable: As for `Table`.
    """
    check_output(place, mode, options, partition_by=partition_by)
    if callable(place):
        return OutputFunction(place, schema, spark)
    topic = topic_of(place)
    if topic is None:
        table = MergeTable if mode == "merge" else OutputTable
        return table(place, schema, partition_by=partition_by)
    kind = TransactionalTopic if mode == "transactional" else OutputTopic
    return kind(topic, schema, options)

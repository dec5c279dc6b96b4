"""Outputs as a function of a DataFrame takes them, and sinks by what users call them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from coopconsume.errors import InvalidOption, OutputNotWritten
from coopconsume.sinks.base import TOPIC_PREFIX, arrow_schema
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.table import OutputTable
from coopconsume.sinks.topic import OutputTopic
from coopconsume.sinks.transactional import TransactionalTopic
from coopconsume.worker.answers import error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from coopconsume.options import Options
    from coopconsume.sinks.base import Outputs, OutputSink


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
        self._lock = threading.Lock()

    def write(self, outputs: Outputs) -> None:
        """Call the function.

        Raises:
            OutputNotWritten: It raised something.
        """
        try:
            with self._lock:
                frame = self._spark.createDataFrame(outputs.table(self.schema))
                self._function(frame, outputs.commit_id)
        except Exception as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise OutputNotWritten("outputs", f"the function {name}", error_text(error)) from error

    def close(self) -> None:
        """Nothing is open."""


def open_output(
    place: Any, mode: str, schema: Any, options: Options, spark: SparkSession
) -> OutputSink:
    """A sink, by what a user calls it.

    Args:
        place: Path of a Delta table, ``kafka:`` and the name of a topic, or a function of a
            DataFrame and a commit's id.
        mode: ``append``; for a table alone, ``merge``; for a topic alone, ``transactional``.
        schema: Of the rows, as DDL, a Spark or an Arrow schema.
        options: Of the consumer.
        spark: The session.

    Raises:
        InvalidOption: A topic or a function cannot be merged into, only a topic be written to in
            transactions, or the place is none of these.
        MissingOption: ``purgatory``, for a transactional topic.
        TableUnusable: There is a table of other columns, or something else at the path.
    """
    if mode not in ("append", "merge", "transactional"):
        raise InvalidOption("output_mode", repr(mode), "give append, merge or transactional")
    is_path = isinstance(place, str) and not place.startswith(TOPIC_PREFIX)
    if mode == "merge" and not is_path:
        raise InvalidOption("output_mode", "merge", "only a Delta table can be merged into")
    if mode == "transactional" and (is_path or callable(place)):
        raise InvalidOption("output_mode", mode, "only a topic is written to in transactions")
    if is_path:
        return MergeTable(place, schema) if mode == "merge" else OutputTable(place, schema)
    if callable(place):
        return OutputFunction(place, schema, spark)
    topic = place.removeprefix(TOPIC_PREFIX) if isinstance(place, str) else ""
    if not topic:
        raise InvalidOption(
            "output", repr(place), "give a path, kafka:TOPIC, or a function of (DataFrame, id)"
        )
    kind = TransactionalTopic if mode == "transactional" else OutputTopic
    return kind(topic, schema, options)

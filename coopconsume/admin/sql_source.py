"""The data source ``coopconsume``: the views of `coopconsume.admin.views`, computed at each read.

Example::

    CREATE TEMPORARY VIEW shop USING coopconsume OPTIONS (
        view 'gaps', group 'shop', commitTable '/data/commits',
        `kafka.bootstrap.servers` 'localhost:9092')

Spark finds the source by the package ``pyspark_coopconsume`` where the Python of the driver has it;
elsewhere call `register_source` first.

A Spark task reads Kafka and the commit log for each query, so its executor must reach both. Spark
4.2 plans the reads of a temporary view only once, so what is read is not looked up as they are
planned. A task has no session, so it cannot open a commit table of a catalog: use
`coopconsume.admin.views` for DataFrames and temporary views of such a table.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "coopconsume"

#: What Spark's setting spark.sql.execution.pyspark.udf.hideTraceback.enabled sets in its workers.
_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def register_source(spark: SparkSession) -> None:
    """Registers the data source ``coopconsume`` with a session that does not find it by itself.

    Args:
        spark: The session.
    """
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(CommitsSource)
    except AnalysisException as error:
        # Of the versions of Spark, some refuse the name of a source that they have found.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class CommitsSource(DataSource):
    """The data source. Its options are a consumer's, ``view`` and ``group``; it needs one of both.

    ``view`` is ``partitions``, ``gaps`` or ``chunks``; without it, it is ``partitions``.
    """

    @classmethod
    def name(cls) -> str:
        """The name after ``USING``."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the view."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from coopconsume.admin.views import SCHEMAS

        self._check_view()
        wanted = self.options.get("view", "partitions")
        # A view that does not exist is reported by the reader.
        return from_arrow_schema(
            next((s for v, s in SCHEMAS.items() if v == wanted), SCHEMAS["partitions"])
        )

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Returns the reader."""
        self._check_view()
        return _Reader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Returns a reader whose first call raises an error that says what reads records."""
        return _NoStream()

    def _check_view(self) -> None:
        """Refuses a read by someone who expects records.

        Raises:
            InvalidOption: Neither ``view`` nor ``group`` is given.
        """
        if not {"view", "group"} & set(self.options):
            raise _no_records()


def _no_records() -> Exception:
    return _refusal(
        "format",
        repr(NAME),
        "it reads the commits of groups, by the options view or group, and no records and no "
        "streams: use CooperativeConsumer(options, spark) with poll() or foreach(handler)",
    )


def _refusal(name: str, value: str, expected: str) -> Exception:
    """Returns the error for an option, whose sentence Spark shows without a traceback.

    Spark runs this in a process of its own, which ends with the error, and would show the frames
    of that process before the sentence. So its environment may say that they are left out.
    """
    from coopconsume.errors import InvalidOption

    os.environ[_HIDES_TRACEBACK] = "1"
    return InvalidOption(name, value, expected)


class _NoStream(DataSourceStreamReader):
    """Refuses a stream, by its first call: Spark shows another error if it gets no reader."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise _no_records()

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
        raise _no_records()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise _no_records()


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from commits.places import is_named

        table = next((v for k, v in self._options.items() if k.lower() == "committable"), "")
        if is_named(table):
            raise _refusal(
                "commitTable",
                f"{table!r} is a table in a catalog; only a session can open it, and the data "
                "source has none",
                "use coopconsume.admin.views instead, such as create_views(spark, options)",
            )
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        from coopconsume.admin.views import view_table

        options: dict[str, Any] = dict(self._options)
        view, group = options.pop("view", "partitions"), options.pop("group", None)
        yield from view_table(view, options, group).to_batches()

"""Spark SQL expressions of users over Kafka's columns: the filter's ``where``, the ordering key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.errors import InvalidOption
from coopconsume.filters import RecordFilter, words_of
from coopconsume.record import ORDERING_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coopconsume.options import Options

#: The columns of Spark's Kafka source.
KAFKA_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, `offset` bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
#: The column that `with_ordering_key` adds.
ORDERING_COLUMN: Final = "_ordering_key"
_NO_HEADERS: Final = "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"


def key_column(options: Options) -> str:
    """Returns the column with the keys that records are dealt by."""
    return "key" if options.ordering_key is None else ORDERING_COLUMN


def needs_headers(expression: str | None) -> bool:
    """Whether an expression reads the headers of records."""
    return "headers" in map(str.lower, words_of(expression or ""))


def with_ordering_key(frame: DataFrame, expression: str | None, *, headers: bool) -> DataFrame:
    """Returns records with their ordering keys; without an expression they stay as they are.

    The binary column `ORDERING_COLUMN` is the only place where an ordering key is computed.

    Args:
        frame: The columns of Spark's Kafka source.
        expression: The option ``orderingKey``.
        headers: Whether each record gets its ordering key as the header `ORDERING_KEY`, too. It
            replaces a header of this name.
    """
    if expression is None:
        return frame
    from pyspark.sql import functions as F  # noqa: N812

    # The end of the line ends a comment.
    frame = frame.selectExpr("*", f"CAST(({expression}\n) AS BINARY) AS {ORDERING_COLUMN}")
    if not headers:
        return frame
    others = f"filter(coalesce(headers, {_NO_HEADERS}), one -> one.key != '{ORDERING_KEY}')"
    own = f"array(struct('{ORDERING_KEY}' AS key, {ORDERING_COLUMN} AS value))"
    return frame.withColumn("headers", F.expr(f"concat({others}, {own})"))


def check_filter(spark: SparkSession, record_filter: RecordFilter) -> None:
    """Makes sure that Spark can evaluate a filter's ``where``, and that it is deterministic.

    Raises:
        InvalidOption: It is not a condition over the columns of Spark's Kafka source.
    """
    if record_filter.where is None:
        return
    from pyspark.errors import PySparkException

    records = spark.createDataFrame([], KAFKA_COLUMNS)
    try:
        _ = records.where(record_filter.where).schema
        _check_deterministic(records, RecordFilter(where=record_filter.where).sql())
    except PySparkException as error:
        raise _refused("where", record_filter.where, "condition", records, error) from None


def check_ordering_key(spark: SparkSession, expression: str | None) -> None:
    """Makes sure that Spark can evaluate an ordering key, and that it is deterministic.

    Raises:
        InvalidOption: It is not a string or binary over the columns of Spark's Kafka source.
    """
    if expression is None:
        return
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BinaryType, StringType

    records = spark.createDataFrame([], KAFKA_COLUMNS)
    try:
        (field,) = records.select(F.expr(expression).alias("key")).schema
        # A condition may not aggregate or generate rows.
        _check_deterministic(records, f"({expression}\n) IS NOT NULL")
    except PySparkException as error:
        raise _refused("orderingKey", expression, "expression", records, error) from None
    if not isinstance(field.dataType, StringType | BinaryType):
        raise InvalidOption(
            "orderingKey",
            repr(expression),
            f"give an expression of type string or binary, not {field.dataType.simpleString()}: "
            "CAST(… AS STRING)",
        )


def _check_deterministic(records: DataFrame, condition: str) -> None:
    """Has Spark analyse a condition, and refuse functions that are not deterministic.

    Spark refuses these in a join, as it may evaluate them more than once.
    """
    from pyspark.sql import functions as F  # noqa: N812

    _ = records.where(condition).schema
    others = records.sparkSession.createDataFrame([], "_other int")
    _ = records.join(others, F.expr(condition), "left_semi").schema


def _refused(
    name: str, expression: str, what: str, records: DataFrame, error: Exception
) -> InvalidOption:
    return InvalidOption(
        name,
        repr(expression),
        f"give a deterministic {what} over the columns {', '.join(records.columns)}: "
        f"{str(error).strip().splitlines()[0]}",
    )

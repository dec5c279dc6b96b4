"""Schemas of values: from Spark's types, with names that all readers distinguish."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from coopconsume.errors import InvalidOption, TableUnusable
from coopconsume.options import Options
from coopconsume.sinks import OutputTable, open_output
from coopconsume.state.schema import StateSchema
from coopconsume.values.schema import arrow_schema

OPTIONS = Options.parse(
    {
        "kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "commits",
        "purgatory": "waiting",
    }
)  # fmt: skip
TIMES = spark.StructType(
    [
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("all", spark.ArrayType(spark.TimestampType())),
        spark.StructField("by", spark.MapType(spark.StringType(), spark.TimestampType())),
        spark.StructField("in", spark.StructType([spark.StructField("at", spark.TimestampType())])),
    ]
)
MOMENT = pa.timestamp("us", "UTC")
COLUMNS = [
    ("at", MOMENT), ("local", pa.timestamp("us")), ("all", pa.list_(MOMENT)),
    ("by", pa.map_(pa.string(), MOMENT)), ("in", pa.struct([("at", MOMENT)])),
]  # fmt: skip


def test_times_are_in_utc_at_each_depth():
    """Whatever the version of PySpark, for outputs and for states."""
    assert arrow_schema(TIMES) == pa.schema(COLUMNS)
    assert StateSchema.parse(TIMES).type == pa.struct(COLUMNS)
    assert StateSchema.parse(spark.TimestampType()).type == MOMENT


OUTPUTS = [
    ("out", "append"), ("out", "merge"), ("kafka:topic", "append"),
    ("kafka:topic", "transactional"),
    (print, "append"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "mode"), OUTPUTS)
@pytest.mark.parametrize(
    "name", ["_offset", "_part", "_key_hash", "_row", "_Commit", "_gone", "_TOPIC_ID", "Value"]
)
def test_a_name_that_is_taken_is_refused_before_the_job_starts(place, mode, name, tmp_path):
    """By the library or by another column, whatever its case, for each kind of output."""
    schema = pa.schema([("value", pa.string()), (name, pa.int64())])
    place = str(tmp_path / place) if place == "out" else place
    with pytest.raises(InvalidOption) as refused:
        open_output(place, mode, schema, OPTIONS, None)
    assert refused.value.name == "output_schema"
    assert repr(name) in refused.value.found


def test_fields_of_one_struct_that_differ_in_case_are_refused():
    """Also deep inside, in outputs and in states; those of two structs may have one name."""
    twice = pa.struct([("id", pa.int64()), ("Id", pa.int64())])
    for kind in (pa.list_(twice), pa.map_(pa.string(), twice), pa.struct([("a", twice)])):
        with pytest.raises(InvalidOption, match="'id' and 'Id'"):
            arrow_schema(pa.schema([("v", kind)]))
    with pytest.raises(InvalidOption, match="state_schema"):
        StateSchema.parse(twice)
    inner = pa.struct([("id", pa.int64())])
    arrow_schema(pa.schema([("id", inner), ("other", inner)]))


@pytest.mark.parametrize("given", [7, None, pa.int64(), spark.LongType(), [("a", "long")]])
def test_what_is_no_schema_is_refused(given):
    """With an example."""
    with pytest.raises(InvalidOption, match="give DDL"):
        arrow_schema(given)


def test_an_output_table_knows_at_the_start_what_it_takes(tmp_path):
    """Types that Delta lacks, and a table with another type, are refused; nulls as it says."""
    with pytest.raises(InvalidOption, match="types that a Delta table has"):
        OutputTable(str(tmp_path / "out"), pa.schema([("a", pa.time64("us"))]))
    unsigned = OutputTable(str(tmp_path / "out"), pa.schema([("a", pa.uint8())]))
    assert unsigned.schema.field("a").type == pa.int8(), "rows fit what the table keeps"

    from deltalake import DeltaTable

    strict = pa.field("a", pa.struct([pa.field("b", pa.int64(), nullable=False)]), nullable=False)
    full = OutputTable(str(tmp_path / "out"), pa.schema([strict])).schema
    origin = [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_commit", pa.string()),
    ]  # fmt: skip
    DeltaTable.create(str(tmp_path / "out"), pa.schema([*full, *origin]))
    loose = pa.schema([("a", pa.struct([("b", pa.int64())]))])
    assert OutputTable(str(tmp_path / "out"), loose).schema == pa.schema([strict])
    with pytest.raises(TableUnusable, match="column a has the type"):
        OutputTable(str(tmp_path / "out"), pa.schema([("a", pa.int64())]))

"""What handlers return, in DataFrames: functions, views and what of a table counts."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality

from commits import CommitRefused, CommitStore
from coopconsume import CooperativeConsumer, counted, create_counted_view
from coopconsume.errors import OutputNotWritten, TopicNotFound
from tests.spark.support import PATIENCE, options

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def two_rows(record):
    """Two rows of every even record."""
    if record.offset % 2 == 0:
        return [{"n": record.offset, "twice": i} for i in range(2)]
    return None


def refuse_one(table, group, topic, commit_id):
    """Have a commit count in another topic, and be refused in this one."""
    (cluster,) = CommitStore.open(table).clusters(group)
    store = CommitStore.open(table, cluster=cluster)
    shares = {"m": [("another", 0)]}
    epoch = store.open_epoch(group, shares, previous=store.current_epoch(group))
    offsets = {("another", 0): [(0, 0)], (topic, 0): [(0, 0)]}
    with pytest.raises(CommitRefused):
        store.commit(group, epoch, "m", offsets, commit_id=commit_id)


def test_outputs_as_dataframes(spark, kafka, topic, produce, tmp_path):
    """A function gets each commit's rows once; the view of a table shows those that count."""
    name = topic(1)
    produce(name, [(b"k%d" % (i % 5), b"") for i in range(100)])
    seen: dict[str, list] = {}

    def keep(frame, commit_id):
        assert commit_id not in seen
        seen[commit_id] = [tuple(row) for row in frame.select("_offset", "twice").collect()]
        assert frame.columns == [
            "n", "twice", "_row", "_topic", "_topic_id", "_partition", "_offset", "_commit"
        ]  # fmt: skip

    def refuse(frame, commit_id):
        raise RuntimeError("no room left")

    opts = options(kafka, tmp_path, name)
    schema = "n long, twice int"
    with CooperativeConsumer(opts, spark) as consumer:
        with pytest.raises(TopicNotFound, match="nowhere"):
            consumer.foreach(two_rows, output="kafka:nowhere", output_schema="value string").start()
        job = consumer.foreach(two_rows, output=refuse, output_schema=schema)
        query = job.trigger(availableNow=True).start()
        with pytest.raises(OutputNotWritten, match="no room left"):
            query.awaitTermination(PATIENCE)
        assert consumer.lag().first()["lag"] == 100, "nothing is committed without its outputs"
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(two_rows, output=keep, output_schema=schema)
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    rows = sorted(row for of_commit in seen.values() for row in of_commit)
    assert rows == [(n, i) for n in range(0, 100, 2) for i in range(2)]

    out = str(tmp_path / "out")
    opts |= {"kafka.group.id": f"{name}-view"}
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(two_rows, output=out, output_schema=schema)
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    lost = (
        spark.read.format("delta")
        .load(out)
        .limit(3)
        .selectExpr("* except (_commit)", "explode(array('x', 'y')) as _commit")
    )
    lost.write.format("delta").mode("append").save(out)
    place = (out, opts["commitTable"], opts["kafka.group.id"])
    refuse_one(opts["commitTable"], opts["kafka.group.id"], name, "y")
    view = create_counted_view(spark, "outputs", *place)
    try:
        expected = spark.createDataFrame(rows, schema)
        told = spark.sql("select n, twice from outputs")
        assert_df_equality(told, expected, ignore_row_order=True, ignore_nullable=True)
        assert view.columns == counted(*place).column_names
    finally:
        spark.catalog.dropTempView("outputs")

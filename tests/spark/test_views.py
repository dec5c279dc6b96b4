"""The commit table for SQL: frames, temporary views and the data source."""

from __future__ import annotations

from datetime import UTC

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, StreamingQueryException

from commits import AcquireRequest, AcquisitionId, CommitStore, Pending, Wanted
from coopconsume.admin.sql_source import register_source
from coopconsume.admin.views import create_views, gaps_frame, partitions_frame, view_table
from coopconsume.errors import InvalidOption
from tests.spark.support import options

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def place(kafka, topic, produce, tmp_path):
    """A commit table with one group on one partition of ten records, and its options."""
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

    name = topic(1)
    produce(name, [(b"k", b"") for _ in range(10)])
    opts = options(kafka, tmp_path, name)
    cluster = Cluster(Options.parse(opts))
    store = CommitStore.open(opts["commitTable"], cluster=cluster.cluster_id)
    cluster.close()
    return name, opts, store


def committed(name, store, *pairs, **more):
    """Commit some ranges for the group g."""
    epoch = store.current_epoch("g")
    epoch = epoch or store.open_epoch("g", {"m": [(name, 0)]}, previous=None)
    store.commit("g", epoch, "m", {(name, 0): pairs}, **more)


def test_chunks_are_rows_with_their_members(place):
    """Who holds what of a cooperative epoch, since when, and how often it was renewed."""
    name, opts, store = place
    at = (name, 0)
    epoch = store.open_epoch("g", {"a": [at], "b": [at]}, previous=None, sharing="cooperative")
    store.start("g", epoch, "a", {at: 0})
    store.acquire("g", epoch, "a", AcquireRequest("a-1", {at: Wanted(4, 9)}))
    (chunk,) = store.acquisitions("g")[at]
    renew = (AcquisitionId(*at, chunk.id),)
    request = AcquireRequest("a-2", {at: Wanted(2, 9)}, renew=renew)
    store.commit("g", epoch, "a", {at: [(1, 1)]}, request=request)
    rows = view_table("chunks", opts, "g").to_pylist()
    assert [(row["member"], row["first"], row["last"], row["offsets"], row["renewals"])
            for row in rows] == [("a", 0, 3, 3, 1), ("a", 4, 5, 2, 0)]  # fmt: skip
    assert all(row["since"] is not None and row["held_seconds"] >= 0 for row in rows)
    assert {(row["group"], row["topic"], row["partition"]) for row in rows} == {("g", *at)}


def test_partitions_and_gaps_are_rows_with_times(spark, place):
    """Stable offset, lag, ranges as structs, what holds it; gaps with their age."""
    name, opts, store = place
    failed = Pending(3, key_hash=7, attempts=2, due_ms=4_000_000_000_000, error="no")
    committed(name, store, (0, 2), (5, 6), pending={(name, 0): [failed]})
    committed(name, store, (8, 8))
    found = partitions_frame(spark, opts, "g")
    expected = spark.createDataFrame(
        [("g", name, 0, 3, 0, 10, 4, 3, 2, [(5, 6), (8, 8)], 2, 1, None)],
        "group string, topic string, partition int, stable_offset bigint, log_start bigint, "
        "end_offset bigint, lag bigint, committed_above bigint, range_count bigint, "
        "ranges array<struct<first: bigint, last: bigint>>, gaps bigint, pending bigint, "
        "primary_offset bigint",
    )
    assert_df_equality(found.drop("blocker"), expected, ignore_nullable=True)
    (blocker,) = found.select("blocker.*").collect()
    assert (blocker.offset, blocker.state, blocker.key_hash, blocker.attempts) == (
        3,
        "failed",
        7,
        2,
    )
    assert (blocker.error, blocker.done_behind, blocker.open_behind) == ("no", 3, 2)
    assert blocker.due.year == 2096
    assert (blocker.key, blocker.deleted_by) == ("k", "")

    gaps = gaps_frame(spark, opts)
    expected = spark.createDataFrame(
        [("g", name, 0, 3, 4, 2), ("g", name, 0, 7, 7, 1)],
        "group string, topic string, partition int, first bigint, last bigint, offsets bigint",
    )
    assert_df_equality(gaps.drop("since", "age_seconds"), expected, ignore_nullable=True)
    first, second = [e["written_at"] for e in store.history("g") if e["kind"] == "commit"]
    assert first < second
    since = [row.since.astimezone(UTC) for row in gaps.orderBy("first").collect()]
    assert since == [first, second]
    assert all(row.age_seconds >= 0 for row in gaps.collect())


def test_views_stand_still_and_the_source_looks_again(spark, place):
    """A temporary view shows the past; one that uses the source shows the present."""
    name, opts, store = place
    committed(name, store, (5, 6))
    create_views(spark, opts, prefix="still_")
    register_source(spark)
    given = ", ".join(f"`{key}` '{value}'" for key, value in opts.items() if key != "subscribe")
    try:
        chosen = f"view 'gaps', group 'g', {given}"
        spark.sql(f"CREATE TEMPORARY VIEW live USING coopconsume OPTIONS ({chosen})")
        ask = "SELECT first, last, datediff(current_timestamp(), since) < 2 FROM {}"
        for table in ("still_gaps", "live"):
            assert [tuple(row) for row in spark.sql(ask.format(table)).collect()] == [(0, 4, True)]
        committed(name, store, (0, 1))
        assert spark.table("still_gaps").first()["first"] == 0
        assert spark.table("live").first()["first"] == 2
        live = spark.read.format("coopconsume").options(**opts).option("group", "g").load()
        assert live.first()["stable_offset"] == 2
        assert live.first()["ranges"][0].asDict() == {"first": 5, "last": 6}
    finally:
        for table in ("still_gaps", "still_partitions", "live"):
            spark.catalog.dropTempView(table)


def test_the_name_of_the_source_says_what_reads_records(spark, tmp_path):
    """Nothing is registered: Spark finds it by its package; a query of a view is no stream."""
    fresh = spark.newSession()
    sentence = "use CooperativeConsumer\\(options, spark\\) with poll\\(\\) or foreach\\(handler\\)"
    for read in (fresh.read, fresh.readStream):
        with pytest.raises(AnalysisException, match=sentence) as refused:
            read.format("coopconsume").option("subscribe", "t").load()
        lines = str(refused.value).splitlines()
        assert sentence.replace("\\", "") in lines[0], "Spark's traceback comes before it"
        assert "Traceback" not in str(refused.value)
    stream = fresh.readStream.format("coopconsume").option("view", "gaps").load()
    started = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=sentence) as ended:
        started.awaitTermination(120)
    assert "Traceback" not in str(ended.value)
    assert "age_seconds" in fresh.read.format("CoopConsume").option("view", "gaps").load().columns


def test_an_unknown_view_is_refused(place):
    """The views that there are are named."""
    _, opts, _ = place
    with pytest.raises(InvalidOption, match="give partitions or gaps"):
        view_table("offsets", opts)


def test_a_table_without_groups_gives_no_rows(spark, place):
    """The columns are there all the same."""
    _, opts, _ = place
    assert partitions_frame(spark, opts).count() == 0
    assert "age_seconds" in gaps_frame(spark, opts).columns

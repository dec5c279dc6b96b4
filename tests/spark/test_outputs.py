"""What handlers return, in DataFrames: functions, views and what of a table counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable

from commits import CommitRefused, CommitStore
from coopconsume import CooperativeConsumer, RetryPolicy, committed_rows, create_committed_rows_view
from coopconsume.errors import OutputNotWritten, TopicNotFound
from tests.late_chunk import COUNTING, write_late_chunk
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class WaitsFor:
    """A row of every record; one of them fails until a file is there."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, record):
        """As said."""
        if record.offset == 30 and not Path(self.file).exists():
            raise RuntimeError("not yet")
        return {"value": str(record.offset), "key": record.key}


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


def check_lineage(events, servers, topic, table):
    """Two runs of a group, one that fails, and one of another group that writes a table."""
    found = [json.loads(line) for line in events.read_text().splitlines()]
    runs = {event["run"]["runId"]: [] for event in found}
    for event in found:
        runs[event["run"]["runId"]].append(event)
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [
            (f"kafka://{servers}", topic)
        ]
    failed, done, view = runs.values()
    jobs = [
        (run[0]["job"]["name"], run[0]["eventType"], run[-1]["eventType"]) for run in runs.values()
    ]
    assert jobs == [
        (f"{topic}-group", "START", "FAIL"), (f"{topic}-group", "START", "COMPLETE"),
        (f"{topic}-view", "START", "COMPLETE"),
    ]  # fmt: skip
    assert "no space left" in failed[-1]["run"]["facets"]["errorMessage"]["message"]
    assert not done[-1]["outputs"], "a function has no name"
    (written,), (read,) = view[-1]["outputs"], view[-1]["inputs"]
    assert (written["namespace"], written["name"]) == ("file", table)
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 100
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 100
    fields = written["facets"]["schema"]["fields"]
    assert [(one["name"], one["type"]) for one in fields[:2]] == [("n", "bigint"), ("twice", "int")]


@pytest.mark.slow
def test_outputs_as_dataframes(spark, kafka, topic, produce, tmp_path, monkeypatch):
    """A function gets each commit's rows once; the view of a table shows those that count.

    The lineage of each run has what it has read and written.
    """
    pytest.importorskip("openlineage.client")
    name, events = topic(1), tmp_path / "events"
    (tmp_path / "lineage.yml").write_text(
        f"transport: {{type: file, log_file_path: '{events}', append: true}}"
    )
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "lineage.yml"))
    produce(name, [(b"k%d" % (i % 5), b"") for i in range(100)])
    seen: dict[str, list] = {}

    def keep(frame, commit_id):
        assert commit_id not in seen
        seen[commit_id] = [tuple(row) for row in frame.select("_offset", "twice").collect()]
        assert frame.columns == [
            "n", "twice", "_row", "_topic", "_topic_id", "_partition", "_offset", "_commit"
        ]  # fmt: skip

    def refuse(frame, commit_id):
        raise RuntimeError("no space left")

    opts = options(kafka, tmp_path, name, emitLineage="true")
    schema = "n long, twice int"
    with CooperativeConsumer(opts, spark) as consumer:
        with pytest.raises(TopicNotFound, match="nowhere"):
            consumer.foreach(two_rows, output="kafka:nowhere", output_schema="value string").start()
        job = consumer.foreach(two_rows, output=refuse, output_schema=schema)
        query = job.trigger(availableNow=True).start()
        with pytest.raises(OutputNotWritten, match="no space left"):
            query.awaitTermination(PATIENCE)
        assert consumer.lag().first()["lag"] == 50, "only records without outputs are committed"
        store = consumer._subscription.joined().store
        pending = store.pending(opts["kafka.group.id"])[name, 0]
        assert sorted(pending) == list(range(0, 100, 2))
        assert all("no space left" in record.error for record in pending.values())
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(two_rows, output=keep, output_schema=schema)
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    rows = sorted(row for of_commit in seen.values() for row in of_commit)
    assert rows == [(n, i) for n in range(0, 100, 2) for i in range(2)]

    out = str(tmp_path / "out")
    opts |= {"kafka.group.id": f"{name}-view"}
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(
            two_rows, output=out, output_schema=schema, output_partition_by="twice"
        )
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    check_lineage(events, kafka.bootstrap_servers, name, out)
    assert DeltaTable(out).metadata().partition_columns == ["twice"]
    lost = (
        spark.read.format("delta")
        .load(out)
        .limit(3)
        .selectExpr("* except (_commit)", "explode(array('x', 'y')) as _commit")
    )
    lost.write.format("delta").mode("append").save(out)
    place = (out, opts["commitTable"], opts["kafka.group.id"])
    refuse_one(opts["commitTable"], opts["kafka.group.id"], name, "y")
    view = create_committed_rows_view(spark, "outputs", *place)
    try:
        expected = spark.createDataFrame(rows, schema)
        found = spark.sql("select n, twice from outputs")
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
        assert view.columns == committed_rows(*place).column_names
    finally:
        spark.catalog.dropTempView("outputs")


def test_late_rows_of_a_chunk_are_not_in_the_dataframe(spark, tmp_path):
    """Only those of records that another member has acquired; the rest of the commit counts."""
    rows = committed_rows(*write_late_chunk(tmp_path), spark=spark)
    assert rows.columns == ["text", "_topic", "_partition", "_offset", "_commit"]
    assert sorted((row["_offset"], row["text"]) for row in rows.collect()) == COUNTING


def test_transactions_wait_for_the_stable_offset(spark, kafka, topic, produce, tmp_path):
    """A failing record holds back what comes of those above it; of news nothing is read then.

    `processAllAvailable` waits until all of it is published.
    """
    name, out = topic(1), topic(1)
    produce(name, [(b"k%d" % (i % 7), b"") for i in range(100)])
    go = tmp_path / "go"
    opts = options(
        kafka, tmp_path, name, purgatory=str(tmp_path / "waiting"), maxOutputsWaiting=60
    )  # fmt: skip
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            WaitsFor(str(go)), retry=RetryPolicy(backoff=0.2, jitter=0, max_backoff=0.2),
            output=f"kafka:{out}", output_schema="value string, key binary",
            output_mode="transactional",
        ).start()  # fmt: skip
        until(lambda: committed(kafka, out) == list(range(30)))
        # Of the 69 above it nine have its key.
        waiting = until(
            lambda: (event := query.lastProgress) and event["outputsWaiting"] == 60 and event
        )
        assert waiting["partitions"][0]["isCrowded"]
        produce(name, [(b"k1", b"")] * 20)
        go.touch()
        query.processAllAvailable()
        query.stop()
    # A transaction's end is answered before its markers are written.
    until(lambda: committed(kafka, out) == list(range(120)))


def committed(kafka, topic: str) -> list[int]:
    """What a reader of committed records finds in a topic, in the order of its offsets."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed",
        enable_auto_commit=False, auto_offset_reset="earliest",
    )  # fmt: skip
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    end = consumer.end_offsets([tp])[tp]
    found = []
    while consumer.position(tp) < end:
        found += [int(r.value) for r in consumer.poll(timeout_ms=200).get(tp, [])]
    consumer.close()
    return found

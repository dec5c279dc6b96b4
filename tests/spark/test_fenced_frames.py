"""Fenced logs as DataFrames: the same records as the Python reader has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from coopconsume import FencedWriter
from coopconsume.errors import BatchRefused, InvalidOption, OutputNotWritten
from coopconsume.fenced import Entry, LogReader, accepted, audit, read_log
from coopconsume.fenced.stamp import Stamp, encode
from coopconsume.sinks import FencedKafkaSink, OutputFunction
from tests.unit.sinks.test_sinks import outputs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_a_frame_has_what_the_reader_has(
    kafka: LocalKafka, spark: SparkSession, topic: TopicFactory, visibility: str
) -> None:
    """Not what is foreign, aborted or at another place than it expected."""
    name = topic()
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with FencedWriter(options, name, visibility=visibility) as writer:  # type: ignore[arg-type]
        writer.append([(b"k", b"a"), Entry(b"b", None, [("mine", b"x")])])
        late = encode(Stamp("filter", "data", 1, 2, 1, 0, "late", 0))
        other = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        other.send(name, b"foreign", partition=0).get(60)
        other.send(name, b"short", partition=0, headers=[("x", b"")])
        if visibility == "filter":
            other.send(name, b"late", partition=0, headers=[late]).get(60)
        other.close()
        writer.append([b"c"], expected_seq=2)
    with LogReader(options, name) as reader:
        expected = [
            (r.seq, r.offset, r.epoch, r.batch_id, r.key, r.value, r.headers) for r in reader.read()
        ]
    assert [row[5] for row in expected] == [b"a", b"b", b"c"]
    rows = read_log(spark, options, name).orderBy("offset").collect()
    assert [
        (
            r.seq, r.offset, r.epoch, r.batch_id, r.key and bytes(r.key), bytes(r.value),
            tuple((h.key, bytes(h.value)) for h in r.headers),
        )
        for r in rows
    ] == expected  # fmt: skip


def test_a_stream_writes_each_batch_once_and_a_zombie_none(
    kafka: LocalKafka, spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    """As a function for foreachBatch, begun again from nothing; and as output of ours."""
    name, source = topic(), tmp_path / "source"
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    spark.range(0, 6, 1, 2).write.parquet(str(source))  # two files, each a batch

    def stream(sink: FencedKafkaSink, checkpoint: str) -> None:
        frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        query = (
            frame.parquet(str(source))
            .selectExpr("cast(id as string) as value", "'k' as key", "id as other")
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    def in_log() -> list[tuple[str, bytes | None, bytes | None]]:
        with LogReader(options, name) as reader:
            return [(r.batch_id, r.key, r.value) for r in reader.read()]

    old, new = (FencedKafkaSink(options, name, "job", epoch) for epoch in (1, 2))
    stream(old, "one")
    written = in_log()
    assert [batch_id for batch_id, _, _ in written] == ["job:0"] * 3 + ["job:1"] * 3
    assert sorted((key, value) for _, key, value in written) == [
        (b"k", b"%d" % i) for i in range(6)
    ]
    stream(new, "two")  # as after a crash before the checkpoint was written
    assert in_log() == written
    late = spark.createDataFrame([("late",)], "value string")
    for batch in (1, 2, "of-a-job"):
        with pytest.raises(BatchRefused, match="epoch 1, in force is 2"):
            old(late, batch)

    rows = outputs({4: ["a", "b"], 5: ["c"]}, "run-0")

    def output(sink: FencedKafkaSink) -> OutputFunction:
        return OutputFunction(
            lambda frame, commit: sink(frame.withColumnRenamed("text", "value"), commit),
            "text string",
            spark,
        )

    output(new).write(rows)
    with LogReader(options, name) as reader:
        of_job = [(r.batch_id, r.value, r.headers) for r in reader.read()][6:]
    assert of_job == [
        ("job.run-0", value, (("coopconsume.origin", b"t-3@%d" % offset),))
        for value, offset in ((b"a", 4), (b"b", 4), (b"c", 5))
    ]
    with pytest.raises(OutputNotWritten, match="BatchRefused"):
        output(old).write(rows)
    assert audit(options, name)[1].ok
    old.close()
    new.close()


def test_a_frame_needs_headers(spark: SparkSession) -> None:
    """Without them nothing can be checked."""
    with pytest.raises(InvalidOption, match="includeHeaders"):
        accepted(spark.createDataFrame([(1,)], "offset long"))

"""Fenced logs as DataFrames: the same records as the Python reader has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from coopconsume import FencedWriter
from coopconsume.errors import InvalidOption
from coopconsume.fenced import Entry, LogReader, accepted, read_log
from coopconsume.fenced.headers import Stamp, encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coopconsume.local_kafka import LocalKafka
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
        other.send(name, b"foreign", partition=0).get(20)
        other.send(name, b"short", partition=0, headers=[("x", b"")])
        if visibility == "filter":
            other.send(name, b"late", partition=0, headers=late).get(20)
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


def test_a_frame_needs_headers(spark: SparkSession) -> None:
    """Without them nothing can be told."""
    with pytest.raises(InvalidOption, match="includeHeaders"):
        accepted(spark.createDataFrame([(1,)], "offset long"))

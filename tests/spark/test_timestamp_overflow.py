"""Timestamps that no clock has, and that Spark's Kafka source cannot read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer

from coopconsume import CooperativeConsumer, Options, Reject, RetryPolicy
from coopconsume.cli import main
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import LAST_MS, TIMESTAMP_OVERFLOWS, around
from tests.spark.support import PATIENCE, options, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from coopconsume import LocalKafka, Record
    from tests.conftest import TopicFactory

pytestmark = [pytest.mark.spark, pytest.mark.broker]

#: By offset; a producer may set anything, and milliseconds are easily mistaken.
STAMPS = [
    1_700_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, -5, -(2**62), 253_402_300_800_000,
    -1, 1_700_000_000_001,
]  # fmt: skip
SEEN = [max(-LAST_MS, min(stamp, LAST_MS)) for stamp in STAMPS]


@pytest.fixture
def odd(kafka: LocalKafka, topic: TopicFactory) -> str:
    """A topic with a record of each timestamp, of two keys."""
    name = topic(1, {"message.timestamp.after.max.ms": 2**63 - 1})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for offset, stamp in enumerate(STAMPS):
        key, headers = b"k%d" % (offset % 2), [("h", b"%d" % offset)]
        producer.send(name, b"v", key, headers, 0, stamp).get(PATIENCE)
    producer.close()
    return name


# Where slots get their rows from a shuffle, none has started as the read fails: nobody waits.
@pytest.mark.parametrize(
    ("ordering", "handler_timeout"),
    [("key", "1 hour"), pytest.param("none", "5 seconds", marks=pytest.mark.slow)],
)
def test_timestamps_out_of_range_cost_nothing_but_themselves(
    spark: SparkSession, kafka: LocalKafka, odd: str, tmp_path: Path, ordering: str,
    handler_timeout: str,
) -> None:  # fmt: skip
    """A job handles the records, and their dead letters are listed."""
    calls = tmp_path / "calls"
    calls.mkdir()

    def handler(record: Record) -> None:
        (calls / f"{record.offset} {record.timestamp} {dict(record.headers)['h']!r}").touch()
        if record.offset in (1, 2, 4, 5):
            raise Reject("odd")

    opts = options(kafka, tmp_path, odd, includeHeaders=True, handlerTimeout=handler_timeout)
    letters = str(tmp_path / "letters")
    job: Any = {"retry": RetryPolicy(), "dead_letter": letters, "ordering": ordering}
    if ordering == "none":
        opts["sharing"] = "cooperative"
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(handler, **job).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert sorted(path.name for path in calls.iterdir()) == sorted(
        f"{offset} {stamp} {b'%d' % offset!r}" for offset, stamp in enumerate(SEEN)
    )
    words = [
        opts["kafka.group.id"], "--bootstrap-servers",
        kafka.bootstrap_servers, "-o", f"commitTable={opts['commitTable']}",
        "--dead-letter", letters,
    ]  # fmt: skip
    for call in (["list"], ["show"], ["show", "--json"]):
        result = CliRunner().invoke(main, ["dead-letters", *call, *words])
        assert result.exit_code == 0, result.output
    found = {one["offset"]: one["timestamp_ms"] for one in json.loads(result.stdout)}
    assert found == {offset: SEEN[offset] for offset in (1, 2, 4, 5)}


def test_an_aborted_record_is_read_by_nobody_who_reads_committed_ones(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Also where somebody who reads all has met it in the same process."""
    name = topic(1, {"message.timestamp.after.max.ms": 2**63 - 1})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for stamp, end in ((STAMPS[0], "commit"), (STAMPS[1], "abort"), (STAMPS[0], "commit")):
        producer.begin_transaction()
        producer.send(name, b"v", b"k", [], 0, stamp).get(PATIENCE)
        getattr(producer, f"{end}_transaction")()
    producer.close()
    found = []
    for number, level in enumerate(("read_committed", "read_uncommitted", "read_committed")):
        opts = options(kafka, tmp_path, name, **{"kafka.isolation.level": level})
        opts["kafka.group.id"] += f"-{number}"
        with CooperativeConsumer(opts, spark) as consumer:
            frame = consumer.poll(PATIENCE)
            found.append(sorted(row.offset for row in frame.select("offset").collect()))
    assert found == [[0, 4], [0, 2, 4], [0, 4]]


def test_half_of_a_topic_may_have_timestamps_out_of_range(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """As if one of several producers mistook the unit: no read by Spark for each gap between."""
    name = topic(1, {"message.timestamp.after.max.ms": 2**63 - 1})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for _ in range(50):  # Each ends with a marker, at an offset of its own.
        producer.begin_transaction()
        for stamp in STAMPS[:2] * 2:
            producer.send(name, b"v", b"k", [], 0, stamp)
        producer.commit_transaction()
    producer.close()
    calls = tmp_path / "calls"
    calls.mkdir()

    def handler(record: Record) -> None:
        (calls / f"{record.offset} {record.timestamp}").touch()

    opts = options(kafka, tmp_path, name, handlerTimeout="1 hour")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert sorted(path.name for path in calls.iterdir()) == sorted(
        f"{offset} {SEEN[offset % 5 % 2]}" for offset in range(250) if offset % 5 < 4
    )
    span = Span(name, 0, 0, 249)
    known = TIMESTAMP_OVERFLOWS.within(Options.parse(opts), [span])
    assert len(known) == 200, "read in one piece, those with usual timestamps as well"
    assert len(around([span], known)) <= 1


def test_frames_have_records_with_timestamps_out_of_range(
    spark: SparkSession, kafka: LocalKafka, odd: str, tmp_path: Path
) -> None:
    """Polling hands them out, and takes the answers."""
    letters = str(tmp_path / "letters")
    opts = options(kafka, tmp_path, odd, includeHeaders=True, deadLetter=letters)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = until(lambda: (found := consumer.poll(1.0)).count() and found)
        rows = frame.selectExpr("offset", "unix_millis(timestamp)", "headers[0].value").collect()
        assert sorted(tuple(row) for row in rows) == [
            (offset, stamp, b"%d" % offset) for offset, stamp in enumerate(SEEN)
        ]
        consumer.reject(frame.where("offset IN (1, 4)"), reason="odd")
        consumer.commit(frame)
        store = consumer._subscription.joined().store
        assert store.state(opts["kafka.group.id"])[odd, 0].stable_offset == len(STAMPS)

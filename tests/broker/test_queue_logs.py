"""Queues whose topic, or whose logs, are others than before: created again, cut, or added."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from coopconsume.cli import main
from coopconsume.errors import DataLoss, QueueUnavailable
from coopconsume.options import Options
from coopconsume.queue import QueueConsumer, queue_status
from coopconsume.queue.log_client import _UNWATCHED, KafkaLog
from coopconsume.queue.replica_log import ReaderEvent, RecordsRead, ReplicaLog
from coopconsume.testing.local.broker import LocalKafka
from tests.broker.test_log_ends import cut
from tests.broker.test_log_ends import produce as write
from tests.broker.test_queue import PATIENCE, options_of, polled, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coopconsume.queue.log_client import LogRecord
    from coopconsume.record import Record
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


def created_again(kafka: LocalKafka, name: str) -> None:
    """Delete a topic of one partition and create it again."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics())
    kafka.create_topic(name, 1)


def added(kafka: LocalKafka, name: str, count: int, value: bytes) -> None:
    """Add partitions to a topic, and write a record into the last one."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.create_partitions({name: count})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(name, value, partition=count - 1)
    assert producer.flush(60) == 0


def done(consumer: QueueConsumer, records: list[Record]) -> None:
    """Acknowledge records, and see that it counts."""
    for record in records:
        consumer.acknowledge(record)
    assert consumer.commit().done == len(records)


def audited(kafka: LocalKafka, name: str) -> tuple[int, list[str]]:
    """The exit code of ``coopconsume queue audit``, and what replicas note of the topic."""
    words = ["audit", name, "--group", f"{name}-group", "--json"]
    found = CliRunner().invoke(
        main, ["queue", *words, "--bootstrap-servers", kafka.bootstrap_servers]
    )
    return found.exit_code, [row["log"] for row in json.loads(found.stdout)]


@contextmanager
def half_read(consumer: QueueConsumer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cut the connection to a replica; the second reading of its log stops after its first rows."""
    session = consumer._session
    assert session is not None
    read, put, ours = KafkaLog.read, ReplicaLog._put, session.replicas[0]
    is_cut, is_half, gate = threading.Event(), threading.Event(), threading.Event()

    def cut_once(client: KafkaLog, seconds: float) -> list[LogRecord] | None:
        if client is ours._client and not is_cut.is_set():
            is_cut.set()
            raise ConnectionError
        found = read(client, seconds)
        return None if found is None else [*found]

    def put_half(replica: ReplicaLog, event: ReaderEvent) -> None:
        if replica is ours and isinstance(event, RecordsRead) and not is_half.is_set():
            kinds = [json.loads(value or b"{}")["kind"] for _, _, value in event.records]
            half = kinds.index("acquire")
            put(replica, RecordsRead(event.replica, event.at, event.records[:half]))
            is_half.set()
            gate.wait()
            event = RecordsRead(event.replica, event.at, event.records[half:])
        put(replica, event)

    with monkeypatch.context() as patch:
        patch.setattr("coopconsume.queue.consumer._ANSWER", 1.0)
        patch.setattr(ReplicaLog, "_put", put_half)
        patch.setattr(KafkaLog, "read", cut_once)
        until(is_half.is_set)
        try:
            yield
        finally:
            gate.set()
    until(lambda: (session.run(0.1), session.is_read(0))[1])


def test_a_replica_that_is_read_again_is_not_judged_by_half_of_its_log(
    kafka: LocalKafka,
    topic: TopicFactory,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Records that were done before they were deleted are not lost, and nothing is done twice."""
    name = topic(1)
    produce(name, [(None, b"%d" % n) for n in range(20)])
    options = options_of(kafka, f"{name}-group", failOnDataLoss="false")
    with QueueConsumer(options, name) as consumer:
        done(consumer, polled(consumer, 10))
        with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
            admin.delete_records({TopicPartition(name, 0): 10})
        with half_read(consumer, monkeypatch):
            assert consumer.poll(5, timeout=0.0) == []
            with pytest.raises(QueueUnavailable, match="reading their logs"):
                consumer.stable_offsets()
        assert "were deleted before they were done" not in caplog.text
        found = polled(consumer, 10)
        assert [record.offset for record in found] == [*range(10, 20)]
        done(consumer, found)


def test_a_topic_that_was_created_again_is_handed_out_from_its_start(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """To the next consumer and to one at work; what was done of the former topic counts there."""
    name = topic(1)
    options = options_of(kafka, f"{name}-group")
    produce(name, [(None, b"first %d" % n) for n in range(20)])
    with QueueConsumer(options, name) as consumer:
        done(consumer, polled(consumer, 20))
    assert audited(kafka, name) == (0, ["same"])
    created_again(kafka, name)
    produce(name, [(None, b"second %d" % n) for n in range(30)])
    assert audited(kafka, name) == (1, ["replaced"])
    with QueueConsumer(options, name) as one, QueueConsumer(options, name) as two:
        found = polled(one, 20)
        assert [record.value for record in found] == [b"second %d" % n for n in range(20)]
        done(one, found[:10])
        late = polled(two, 5)
        assert audited(kafka, name) == (0, ["created again"])
        created_again(kafka, name)
        produce(name, [(None, b"third %d" % n) for n in range(25)])
        values: set[bytes | None] = set()
        # The first client may have fetched the former records from offset 20 on.
        for consumer, count in ((two, 20), (one, 5)):
            records = polled(consumer, count)
            values |= {record.value for record in records}
            done(consumer, records)
        assert values == {b"third %d" % n for n in range(25)}
        # What they still have of the former topic does not count, and takes nothing of the new one.
        for record in late:
            two.acknowledge(record)
        for record in found[10:]:
            one.acknowledge(record, "release")
        assert {*two.commit().not_held} == {(0, record.offset) for record in late}
        assert one.commit().done == 0
        until(lambda: one.stable_offsets() == {0: 25})
    status = queue_status(options, name)
    assert (status.is_sound, status.partitions[0].log) == (True, "created again")


@pytest.mark.parametrize("is_away", [False, True])
def test_a_reader_begins_again_if_its_topic_was_created_again(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, is_away: bool
) -> None:
    """Whether it was reading or away meanwhile, and also if the new log is longer."""
    name = topic(1)
    produce(name, [(None, b"first %d" % n) for n in range(3)])
    client = KafkaLog(name, name, Options.parse(options_of(kafka, name), table=False))
    client.prepare(create=False)
    found: list[LogRecord] = []

    def read() -> bool:
        """Whether it goes on with the records of this log."""
        try:
            records = client.read(0.5)
        except (ConnectionError, KafkaError):
            return False
        found.extend(records or ())
        return records is not None

    try:
        client.begin_reading()
        until(lambda: read() and len(found) == 3)
        reader = threading.Thread(target=lambda: until(lambda: not read()))
        if not is_away:
            reader.start()
        created_again(kafka, name)
        produce(name, [(None, b"second %d" % n) for n in range(6)])
        if is_away:
            until(lambda: time.monotonic() - client._watched_at > _UNWATCHED)
            reader.start()
        reader.join(PATIENCE)
        assert not reader.is_alive()
    finally:
        client.end_reading()
    if not is_away:
        found = found[:3]  # it may take a second
    assert [value for _, _, value in found] == [b"first %d" % n for n in range(3)]


def test_partitions_that_are_added_begin_with_their_first_record(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """For a consumer at work and for the next one, also with ``startingOffsets=latest``."""
    name = topic(1)
    options = options_of(kafka, f"{name}-group", startingOffsets="latest")
    produce(name, [(None, b"before")])
    with QueueConsumer(options, name) as consumer:
        assert consumer.poll(1, timeout=0.0) == []
        added(kafka, name, 2, b"added")
        done(consumer, polled(consumer, 1))
    added(kafka, name, 3, b"added later")
    with QueueConsumer(options, name) as consumer:
        (record,) = polled(consumer, 1)
        assert (record.partition, record.offset) == (2, 0)


@pytest.mark.slow
def test_what_is_written_where_a_log_was_cut_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a consumer that was at work, and by the next one; all that is below stays done.

    Half of a replica that is read again does not know of the cut yet.
    """
    with LocalKafka(data_dir=tmp_path / "kafka") as broker:
        broker.create_topic("t", 1)
        write(broker, 20)
        options = options_of(broker, "live", failOnDataLoss="false")
        with QueueConsumer(options, "t") as live:
            for group in ("next", "strict"):
                with QueueConsumer(options_of(broker, group), "t") as consumer:
                    done(consumer, polled(consumer, 20))
            done(live, polled(live, 20))
            broker.kill()
            cut(tmp_path / "kafka", 12)
            broker.start()
            assert write(broker, 12) == [*range(12, 24)]
            expected = [*range(12, 24)]
            found = polled(live, 12)
            assert [record.offset for record in found] == expected
            with half_read(live, monkeypatch):
                assert live.poll(1, timeout=0.0) == []
            done(live, found)
        with QueueConsumer(options | {"kafka.group.id": "next"}, "t") as consumer:
            found = polled(consumer, 12)
            assert [record.offset for record in found] == expected
            done(consumer, found)
            assert consumer.stable_offsets() == {0: 24}
        with pytest.raises(DataLoss, match="offsets 12 to 19 of t-0"):
            QueueConsumer(options_of(broker, "strict"), "t").poll()


def test_a_replica_that_was_created_again_is_named(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    """The audit says it, with one replica and with three; nothing that is noted elsewhere is lost.

    Below the group's offset in Kafka all is done, also if no replica knows it any more.
    """
    name, other = topic(1), topic(1)
    produce(name, [(None, b"%d" % n) for n in range(20)])
    produce(other, [(None, b"%d" % n) for n in range(20)])
    single = options_of(kafka, f"{name}-group", startingOffsets="latest")
    with QueueConsumer(single | {"startingOffsets": "earliest"}, name) as consumer:
        done(consumer, polled(consumer, 10))
    created_again(kafka, f"__queue.{name}-group.{name}")
    with QueueConsumer(single, name) as consumer:
        assert [record.offset for record in polled(consumer, 10)] == [*range(10, 20)]
        assert queue_status(single, name).replicas[0].replaced == 1
    assert caplog.text.count("was deleted and created again; what only it") == 1
    replicas = [f"{other}-{n}" for n in range(3)]
    options = options_of(kafka, f"{other}-group")
    with QueueConsumer(options, other, replicas) as one:
        found = polled(one, 10)
        done(one, found[:5])
        created_again(kafka, replicas[0])
        until(lambda: queue_status(options, other, replicas).replicas[0].replaced == 1)
        until(lambda: one.stable_offsets() == {0: 5})
        done(one, found[5:])
    with QueueConsumer(options, other, replicas) as two:
        assert [record.offset for record in polled(two, 10)] == [*range(10, 20)]
    status = queue_status(options, other, replicas)
    assert ([r.replaced for r in status.replicas], status.is_sound) == ([1, 0, 0], True)

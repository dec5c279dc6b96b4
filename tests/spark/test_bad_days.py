"""Days on which the cluster misbehaves: a broker restart, records deleted, offsets moved."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer, LocalKafka
from coopconsume.errors import DataLoss, ExternalReset, TopicNotFound, TopicReplaced
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.identity import LOG_IDENTITIES
from coopconsume.options import Options
from coopconsume.testing.history import check, read_history
from tests.spark.support import (
    PATIENCE,
    Recorded,
    Sleep,
    done_book,
    options,
    pending_book,
    until,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def test_a_broker_that_is_killed_and_comes_back_loses_nothing(spark, tmp_path):
    """The job waits for its broker, whatever it was doing, and ends with every record done."""
    from kafka import KafkaProducer

    with LocalKafka() as broker:
        broker.create_topic("t", 2)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=20)
        produced: dict = {("t", 0): {}, ("t", 1): {}}
        for i in range(1_200):
            sent = producer.send("t", key=b"k%d" % (i % 60), partition=i % 2)
            produced["t", i % 2][i // 2] = b"k%d" % (i % 60)
        producer.flush()
        assert sent.get(PATIENCE).offset == 599
        producer.close()
        opts = options(
            broker, tmp_path, "t", batchTime=1, handlerTimeout=10, maxOffsetsPerTrigger=300
        )
        group = opts["kafka.group.id"]
        with CooperativeConsumer(opts, spark) as consumer:
            query = consumer.foreach(Recorded(tmp_path / "history", Sleep(0.005))).start()
            until(lambda: query.lastProgress)
            broker.kill()
            time.sleep(2)
            broker.restart()
            query.processAllAvailable()
            query.stop()
            store = consumer._subscription.joined().store
            verdict = check(
                read_history(tmp_path / "history"), produced, done_book(store, group),
                pending_book(store, group), {},
            )  # fmt: skip
            assert not verdict.lost, str(verdict)
            assert not verdict.order_breaks, str(verdict)
            assert not verdict.overlaps, str(verdict)
            assert verdict.done == 1_200
        # Also where the restart cost the membership, and the work was done before it was back.
        cluster = Cluster(Options.parse(opts))
        assert cluster.primary()["t", 0].offset == 600
        cluster.close()


@pytest.mark.parametrize("fail", [True, False])
def test_a_recreated_topic_is_recognised_by_its_id(spark, kafka, topic, produce, tmp_path, fail):
    """The job stops and says so, or goes on with the new topic and skips none of its records."""
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    produce(name, [(b"old", b"") for _ in range(20)])
    opts = options(kafka, tmp_path, name, failOnDataLoss=fail)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history")).start()
        query.processAllAvailable()
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics())
        kafka.create_topic(name, 1)
        admin.close()
        produce(name, [(b"new", b"") for _ in range(5)])
        if fail:
            with pytest.raises((TopicNotFound, TopicReplaced), match=name):
                query.awaitTermination(PATIENCE)
            return
        until(lambda: handled(tmp_path / "history").count(b"new") == 5)
        query.processAllAvailable()
        query.stop()
        # Between two epochs it owns nothing.
        (row,) = until(lambda: consumer.committed().collect())
        assert (row["stable_offset"], row["committed_above"]) == (5, 0)


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_created_again_between_polls_is_polled_from_its_start(
    spark, kafka, topic, produce, tmp_path, fail
):
    """Its log is longer than the old one was, so that no end of a log gives it away."""
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    produce(name, [(b"old", b"") for _ in range(20)])
    opts = options(
        kafka, tmp_path, name, failOnDataLoss=fail, deadLetter=str(tmp_path / "dead")
    )  # fmt: skip
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        consumer.commit(frame.where("offset < 18"))
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics())
        kafka.create_topic(name, 1)
        admin.close()
        produce(name, [(b"new", b"") for _ in range(25)])
        with pytest.raises(TopicReplaced, match=name):
            consumer.reject(frame.where("offset = 18"), reason="no")
        with pytest.raises(TopicReplaced, match=name):
            consumer.commit(frame.where("offset = 18"))
        assert not (tmp_path / "dead").exists()
        if fail:
            with pytest.raises(TopicReplaced, match=name):
                consumer.poll(PATIENCE)
            return
        rows = consumer.poll(PATIENCE).collect()
        assert [(row["offset"], bytes(row["key"])) for row in rows] == [
            (offset, b"new") for offset in range(25)
        ]
        consumer.commit()
        (row,) = until(lambda: consumer.committed().collect())
        assert (row["stable_offset"], row["committed_above"]) == (25, 0)


def test_topics_come_and_go_while_a_job_runs(spark, kafka, topic, produce, tmp_path):
    """Deleted with all done, or before it is there, a topic costs the others nothing.

    What is deleted before it was done is a loss, which ends the job only where it is to.
    """
    from kafka.admin import KafkaAdminClient

    first, stays = topic(1), topic(1)
    later = f"{first}-later"
    opts = options(
        kafka, tmp_path, f"{first},{stays},{later}", onMissingTopic="wait",
        **{"kafka.group.id": first, "kafka.metadata.max.age.ms": 500},
    )  # fmt: skip
    for name in (first, stays):
        produce(name, [(name.encode(), b"") for _ in range(20)])
    history = tmp_path / "history"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def delete(name):
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics())

    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(history)).start()
        query.processAllAvailable()
        delete(first)
        produce(stays, [(b"more", b"") for _ in range(20)])
        until(lambda: handled(history).count(b"more") == 20)
        kafka.create_topic(later, 1)
        produce(later, [(b"later", b"") for _ in range(20)])
        until(lambda: handled(history).count(b"later") == 20)
        query.processAllAvailable()
        query.stop()
        # What waits for its next attempt is not done.
        produce(later, [(b"undone", b"") for _ in range(5)])
        frame = until(lambda: (found := consumer.poll(1.0)).count() and found)
        consumer.retry(frame, delay=3600)
        query = consumer.foreach(Recorded(history)).start()
        delete(later)
        with pytest.raises(DataLoss) as caught:
            query.awaitTermination(PATIENCE)
        assert (caught.value.topic, caught.value.first, caught.value.last) == (later, 20, 24)
    with CooperativeConsumer(opts | {"failOnDataLoss": "false"}, spark) as consumer:
        consumer.subscribe()
        delete(stays)
        until(lambda: consumer.poll(0).count() == 0 and not consumer.assignment())
        kafka.create_topic(stays, 1)
        produce(stays, [(b"new", b"") for _ in range(5)])
        assert until(lambda: consumer.poll(1.0).count()) == 5
    admin.close()
    calls = handled(history)
    assert {name: calls.count(name) for name in set(calls)} == {
        first.encode(): 20, stays.encode(): 20, b"more": 20, b"later": 20,
    }  # fmt: skip


def test_records_fetched_of_a_deleted_topic_are_not_handled(spark, kafka, topic, produce, tmp_path):
    """Spark keeps fetched records by group id, partition and offset, and knows of no topic id."""
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    produce(name, [(b"old", b"") for _ in range(1_000)])
    opts = options(kafka, tmp_path, name, slots=1, maxOffsetsPerTrigger=400)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        consumer.commit(frame)
        # What one batch reads is a part of what its consumer fetched.
        assert frame.count() == 400
        before = LOG_IDENTITIES.read_group(name, {})
    with CooperativeConsumer(opts, spark) as consumer:
        consumer.poll(PATIENCE)
        assert LOG_IDENTITIES.read_group(name, {}) == before, (
            "an unchanged topic keeps its consumers"
        )
    admin.delete_topics([name])
    until(lambda: name not in admin.list_topics())
    kafka.create_topic(name, 1)
    admin.close()
    produce(name, [(b"new", b"") for _ in range(1_000)])
    with CooperativeConsumer(opts, spark) as consumer:
        handler = Recorded(tmp_path / "history")
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert handled(tmp_path / "history") == [b"new"] * 1_000


def test_another_consumer_of_the_session_reads_with_its_own_settings(
    spark, kafka, topic, produce, tmp_path
):
    """Spark's executors take no two settings for one group id and partition, as long as they live.

    Here the first consumer leaves work for one with another client id and another size of fetches,
    as where somebody changes an option in a notebook and starts the job again.
    """
    name = topic(1)
    produce(name, [(b"k%d" % (i % 5), b"") for i in range(100)])
    opts = options(kafka, tmp_path, name, maxOffsetsPerTrigger=50)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        assert frame.count() == 50
        consumer.commit(frame)
    other = opts | {"kafka.client.id": "other", "kafka.max.partition.fetch.bytes": 1 << 20}
    with CooperativeConsumer(other, spark) as consumer:
        handler = Recorded(tmp_path / "history")
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        totals = query.lastProgress["totals"]
    assert len(handled(tmp_path / "history")) == 50
    assert (totals["failedBatches"], totals["lostSlots"]) == (0, 0)


def handled(folder):
    """The keys of all calls."""
    return [call.key for call in read_history(folder)]


def test_deleted_records_stop_the_job_or_are_reported(spark, kafka, topic, produce, tmp_path):
    """Records deleted before they were done are a DataLoss naming them, unless set otherwise."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    produce(name, [(b"k", b"") for _ in range(20)])
    opts = options(kafka, tmp_path, name)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        consumer.commit(frame.where("offset in (0, 1, 5)"))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(name, 0): 8})
    with CooperativeConsumer(opts, spark) as consumer, pytest.raises(DataLoss) as loss:
        consumer.poll(1)
    assert (loss.value.first, loss.value.last) == (2, 7)
    opts["failOnDataLoss"] = "false"
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history")).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        (row,) = consumer.lag().collect()
        assert (row["stable_offset"], row["lag"]) == (20, 0)
    assert sorted(c.offset for c in read_history(tmp_path / "history")) == list(range(8, 20))
    # The same while a batch is in flight, which leaves most of what was deleted to the next one.
    produce(name, [(b"k", b"") for _ in range(20)])
    with CooperativeConsumer(opts | {"batchTime": 0.05}, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "later", Gate(tmp_path))).start()
        until((tmp_path / "started").exists)
        admin.delete_records({TopicPartition(name, 0): 37})
        admin.close()
        state = consumer._subscription.joined().store.state
        until(lambda: state(f"{name}-group")[name, 0].stable_offset == 37)
        (tmp_path / "open").touch()
        query.processAllAvailable()
        query.stop()
    assert sorted(c.offset for c in read_history(tmp_path / "later")) == [20, 37, 38, 39]


class Gate:
    """Says that a handler has started, and waits until a file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, _record):
        """Wait."""
        (self.folder / "started").touch()
        until((self.folder / "open").exists)


def test_an_offset_moved_by_kafkas_tools_is_noticed(spark, kafka, topic, produce, tmp_path):
    """A reset of the primary offset stops the next start, or is followed by option."""
    name = topic(1)
    produce(name, [(b"k", b"") for _ in range(10)])
    opts = options(kafka, tmp_path, name) | {"kafka.group.id": name}
    with CooperativeConsumer(opts, spark) as consumer:
        consumer.commit(consumer.poll(PATIENCE))
    tool = kafka.run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", kafka.bootstrap_servers, "--group", name, "--topic", name,
        "--reset-offsets", "--to-offset", "4", "--execute",
    )  # fmt: skip
    assert tool.returncode == 0, tool.stdout
    with CooperativeConsumer(opts, spark) as consumer, pytest.raises(ExternalReset) as reset:
        consumer.subscribe()
    assert (reset.value.primary, reset.value.stable) == (4, 10)
    with CooperativeConsumer(opts | {"onExternalReset": "honour"}, spark) as consumer:
        assert sorted(r["offset"] for r in consumer.poll(PATIENCE).collect()) == list(range(4, 10))


def test_a_group_that_existed_before_starts_where_it_stood(spark, kafka, topic, produce, tmp_path):
    """Nothing in the commit log: the offset that Kafka holds for the group is the start."""
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

    name = topic(1)
    produce(name, [(b"k", b"") for _ in range(10)])
    plain = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=name, enable_auto_commit=False
    )
    plain.assign([TopicPartition(name, 0)])
    plain.commit({TopicPartition(name, 0): OffsetAndMetadata(6, "", -1)})
    plain.close()
    opts = options(kafka, tmp_path, name) | {"kafka.group.id": name}
    with CooperativeConsumer(opts, spark) as consumer:
        assert sorted(r["offset"] for r in consumer.poll(PATIENCE).collect()) == [6, 7, 8, 9]


def test_compacted_and_aborted_records_hold_nothing_back(spark, kafka, topic, tmp_path):
    """Their offsets, and markers, are proven to be holes: every record left is handled once."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    name = topic(
        1,
        {
            "cleanup.policy": "compact", "segment.ms": 1, "min.cleanable.dirty.ratio": 0.01,
            "max.compaction.lag.ms": 1,
        },
    )  # fmt: skip
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for n in range(6):
        producer.begin_transaction()
        for i in range(5):
            producer.send(name, key=b"k%d" % i, value=b"%d" % n)
        if n % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as plain:
        end = plain.send(name, key=b"last", value=b"").get(PATIENCE).offset + 1  # rolls the segment
    reader = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed"
    )
    tp = TopicPartition(name, 0)
    reader.assign([tp])

    def left():
        reader.seek(tp, 0)
        found: list = []
        while reader.position(tp) < end:
            found += reader.poll(500).get(tp, [])
        return [record.offset for record in found]

    until(lambda: len(left()) < 21)  # 20 were committed, and one was sent plainly
    with CooperativeConsumer(options(kafka, tmp_path, name), spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history")).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        (row,) = consumer.committed().collect()
        assert (row["stable_offset"], row["committed_above"]) == (end, 0)
    calls = [call.offset for call in read_history(tmp_path / "history")]
    assert len(calls) == len(set(calls))
    assert set(left()) <= set(calls)
    reader.close()


def test_a_commit_table_that_goes_away_is_said_and_costs_nothing(
    spark, kafka, topic, produce, tmp_path
):
    """Status names it, for how long and why; what was handled is committed once it is back."""
    name = topic(1)
    opts = options(kafka, tmp_path, name)
    table, away, group = Path(opts["commitTable"]), tmp_path / "away", opts["kafka.group.id"]
    produced = {(name, 0): {n: b"k%d" % (n % 5) for n in range(100)}}

    def send(first, last):
        produce(name, [(produced[name, 0][n], b"") for n in range(first, last)])

    def waiting():
        return query.status.get("waitingFor") or {"reason": ""}

    send(0, 50)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history", Sleep(0.001))).start()
        query.processAllAvailable()
        table.rename(away)
        try:
            send(50, 100)
            until(lambda: waiting()["reason"] == "commitLog")
            said = waiting()["message"]
        finally:
            away.rename(table)
        query.processAllAvailable()
        until(lambda: waiting()["reason"] == "newRecords")
        query.stop()
        store = consumer._subscription.joined().store
        verdict = check(
            read_history(tmp_path / "history"), produced, done_book(store, group),
            pending_book(store, group), {},
        )  # fmt: skip
    assert said.startswith("the commit table has not answered for "), said
    assert "there is no table" in said
    assert not verdict.lost, str(verdict)
    assert not verdict.order_breaks, str(verdict)
    assert not verdict.repeated, str(verdict)
    assert verdict.done == 100

"""`poll` and `commit` by hand, on a real broker, a real Spark and a real Delta table."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from coopconsume import CooperativeConsumer, TopicPartition, committed_rows, key_hash
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.errors import MissingOption, NotPolled, PollWokenUp
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

COLUMNS = "topic string, partition int, offset bigint, key binary, value binary, key_hash bigint"


def in_key_order(frame):
    """Offsets by partition and key, in the order of the frame's rows; each key in one task."""
    found, tasks = {}, {}
    for row in frame.select("*", F.spark_partition_id().alias("task")).collect():
        at = row["partition"], bytes(row["key"])
        found.setdefault(at, []).append(row["offset"])
        tasks.setdefault(at, set()).add(row["task"])
    assert all(len(of_key) == 1 for of_key in tasks.values())
    assert all(offsets == sorted(offsets) for offsets in found.values())
    return sorted((partition, o) for (partition, _), offsets in found.items() for o in offsets)


def test_every_third_record_is_committed_and_the_rest_comes_back(
    spark, kafka, topic, produce, tmp_path
):
    """Frames show the same rows twice, commits leave gaps, and a restart returns just these."""
    name = topic(2)
    places = [TopicPartition(name, 0), TopicPartition(name, 1)]
    sizes = [90, 31]
    rows = []
    for partition, size in enumerate(sizes):
        records = [(b"k%d" % (i % 13), b"v%d" % i) for i in range(size)]
        produce(name, records, partition)
        rows += [(name, partition, o, k, v, key_hash(k)) for o, (k, v) in enumerate(records)]
    opts = options(kafka, tmp_path, name)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        everything = spark.createDataFrame(rows, COLUMNS)
        assert_df_equality(
            frame.select(everything.columns),
            everything,
            ignore_row_order=True,
            ignore_nullable=True,
        )
        assert_df_equality(frame, frame)
        assert frame.columns == [
            "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "key_hash"
        ]  # fmt: skip
        assert in_key_order(frame) == [(p, o) for p in (0, 1) for o in range(sizes[p])]
        empty = consumer.poll(0)
        assert empty.schema == frame.schema
        assert empty.count() == 0
        assert consumer.status["waitingFor"]["reason"] == "newRecords"

        third = frame.where("offset % 3 = 0").withColumn("items", F.lit("one of theirs"))
        answers = consumer.commit(third)
        assert [(answers[p].stable_offset, answers[p].committed) for p in places] == [
            (1, 30), (1, 11)
        ]  # fmt: skip
        assert [answer.status for answer in consumer.commit(third).values()] == ["duplicate"] * 2
        with pytest.raises(NotPolled) as refused:
            consumer.commit({places[0]: [(85, 99)], places[1]: [(1, 1)]})
        assert (refused.value.topic, refused.value.partition) == (name, 0)
        assert (refused.value.first, refused.value.last) == (90, 99)
        with pytest.raises(ValueError, match="needs the column 'offset'"):
            consumer.commit(frame.select("topic", "partition"))

    with CooperativeConsumer(opts, spark) as consumer:
        left = [(p, o) for p in (0, 1) for o in range(sizes[p]) if o % 3]
        rest = consumer.poll(PATIENCE)
        gaps = [(name, p, o, o + 1, 2) for p in (0, 1) for o in range(1, (87, 30)[p], 3)]
        columns = "topic string, partition int, first bigint, last bigint, offsets bigint"
        assert_df_equality(consumer.gaps(), spark.createDataFrame(gaps, columns))
        singles = [[(o, o) for o in range(3, size, 3)] for size in sizes]
        columns = (
            "topic string, partition int, stable_offset bigint, committed_above bigint, "
            "ranges array<struct<first: bigint, last: bigint>>"
        )
        committed = [(name, p, 1, len(singles[p]), singles[p]) for p in (0, 1)]
        assert_df_equality(consumer.committed(), spark.createDataFrame(committed, columns))
        columns = (
            "topic string, partition int, stable_offset bigint, end_offset bigint, "
            "committed_above bigint, lag bigint"
        )
        lag = [(name, 0, 1, 90, 29, 60), (name, 1, 1, 31, 10, 20)]
        assert_df_equality(consumer.lag(), spark.createDataFrame(lag, columns))
        assert in_key_order(rest) == left

        assert consumer.status["waitingFor"] is None
        consumer.pause(places[0])
        consumer.seek(places[0], 80)
        consumer.seek(places[1], 28)
        assert in_key_order(consumer.poll(0)) == [(1, 28), (1, 29)]
        consumer.resume()
        assert in_key_order(consumer.poll(0)) == [(0, o) for o in range(80, 90) if o % 3]
        answers = consumer.commit(rest)
        assert [(answers[p].stable_offset, answers[p].committed) for p in places] == [
            (90, 60), (31, 20)
        ]  # fmt: skip
        consumer.seek(places[0], 0)
        assert consumer.poll(0).count() == 0


def test_topics_change_without_a_new_consumer(spark, kafka, topic, produce, tmp_path):
    """What was polled before is not committed any more; a poll that waits is woken up."""
    first, second = topic(1), topic(1)
    produce(first, [(b"k", b"1"), (b"k", b"2")])
    produce(second, [(b"k", b"3")])
    opts = options(kafka, tmp_path, first)
    del opts["subscribe"]
    with CooperativeConsumer(opts, spark) as consumer, ThreadPoolExecutor(1) as pool:
        consumer.unsubscribe()
        assert consumer.status["message"] == "Not subscribed"
        consumer.subscribe(first)
        frame = consumer.poll(PATIENCE)
        consumer.commit(frame.where("offset = 0"))
        consumer.pause()
        consumer.poll(0)
        assert consumer.status["waitingFor"]["reason"] == "paused"
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]
        consumer.unsubscribe()
        assert consumer.assignment() == {}
        consumer.subscribe(second)
        with pytest.raises(NotPolled):
            consumer.commit(frame)
        polled = consumer.poll(PATIENCE)
        assert [(row["topic"], row["offset"]) for row in polled.collect()] == [(second, 0)]
        consumer.commit(polled)

        waiting = pool.submit(consumer.poll, PATIENCE)
        until(lambda: consumer.status["waitingFor"])
        consumer.wakeup()
        with pytest.raises(PollWokenUp):
            waiting.result(PATIENCE)
        assert consumer.poll(0).count() == 0

        consumer.unsubscribe()
        consumer.subscribe([first, second])
        left = consumer.poll(PATIENCE)
        assert [(row["topic"], row["offset"]) for row in left.collect()] == [(first, 1)]
    assert store.state(group)[first, 0].stable_offset == 1


def test_a_forgotten_frame_expires(spark, kafka, topic, produce, tmp_path):
    """After maxPollInterval the consumer is out of the group; its records come again."""
    name = topic(1)
    produce(name, [(b"k", b"%d" % i) for i in range(5)])
    heard: list[str] = []

    class Listener:
        on_assigned = on_lost = lambda self, ranges: heard.append("other")

        def on_revoked(self, ranges) -> None:
            consumer.commit({TopicPartition(name, 0): [(0, 0)]})
            heard.append("revoked")

    opts = options(kafka, tmp_path, name, maxPollInterval="3 seconds")
    del opts["subscribe"]
    with CooperativeConsumer(opts, spark) as consumer:
        consumer.subscribe(name, Listener())
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]
        frame = consumer.poll(PATIENCE)
        until(lambda: "maxPollInterval" in consumer.status["message"])
        assert heard == ["other", "revoked"]
        assert len(in_key_order(frame)) == 5
        assert store.state(group)[name, 0].stable_offset == 1
        with pytest.raises(NotPolled, match="maxPollInterval"):
            consumer.commit(frame)

        def commit_the_rest() -> bool:
            """On a slow machine the interval may pass once more."""
            again = consumer.poll(PATIENCE)
            try:
                consumer.commit(again)
            except NotPolled:
                return False
            return in_key_order(again) == [(0, o) for o in range(1, 5)]

        until(commit_the_rest)
        assert store.state(group)[name, 0].stable_offset == 5


def test_nothing_beyond_the_end_of_a_log_is_a_hole(spark, kafka, topic, produce, tmp_path):
    """A commit after a seek beyond the end looks for holes up to the end only."""
    name = topic(1)
    produce(name, [(b"k", b"%d" % i) for i in range(5)])
    with CooperativeConsumer(options(kafka, tmp_path, name), spark) as consumer:
        frame = consumer.poll(PATIENCE)
        consumer.seek(TopicPartition(name, 0), 1_000)
        answers = consumer.commit(frame)
        assert answers[name, 0].stable_offset == 5
        produce(name, [(b"k", b"more")])
        assert consumer.poll(0).count() == 0
        assert consumer.commit() == {}
        consumer.seek(TopicPartition(name, 0), 0)
        assert in_key_order(consumer.poll(PATIENCE)) == [(0, 5)]


def test_a_query_that_takes_long_to_start_keeps_its_group(
    spark, kafka, topic, produce, tmp_path, monkeypatch
):
    """A start is a call: maxPollInterval does not count while it is made."""
    name = topic(1)
    produce(name, [(b"k", b"%d" % i) for i in range(5)])
    opts = options(kafka, tmp_path, name, maxPollInterval="2 seconds")
    with CooperativeConsumer(opts, spark) as consumer:
        consumer.subscribe()
        subscription = consumer._subscription
        membership = subscription.joined()
        check = membership.cluster.check_topics

        def check_for_long(*args):
            left = time.monotonic() + 6
            until(lambda: time.monotonic() > left or subscription.membership is not membership)
            check(*args)

        monkeypatch.setattr(membership.cluster, "check_topics", check_for_long)
        store, group = membership.store, opts["kafka.group.id"]
        consumer.foreach(lambda record: None).start()

        def are_done() -> bool:
            return store.state(group)[name, 0].stable_offset == 5

        until(lambda: subscription.membership is not membership or are_done())
        assert subscription.membership is membership


def test_frames_are_given_back_and_given_up(spark, kafka, topic, produce, tmp_path):
    """Retried keys wait and come again in order; rejected records are dead letters, whole."""
    name = topic(1)
    records = [(b"k%d" % (i % 10), b"v%d" % i) for i in range(60)]
    produce(name, records)
    opts = options(kafka, tmp_path, name, maxOffsetsPerTrigger=20)
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        with pytest.raises(MissingOption, match="deadLetter"):
            consumer.reject(frame, reason="no")
    opts |= {"deadLetter": str(tmp_path / "dead")}
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE).select("topic", "partition", "offset", "key")
        assert in_key_order(frame) == [(0, o) for o in range(20)]
        consumer.retry(frame.where("key = 'k3'"), delay=1_000, reason=F.lit("the bank sleeps"))
        consumer.retry(frame.where("key = 'k4'"), delay=0)
        dead = frame.where("offset in (5, 16)").withColumn("why", F.concat(F.lit("no "), "offset"))
        consumer.reject(dead, reason=F.col("why"))
        consumer.reject(frame.where("offset = 7"), reason=ValueError("later"), on_dead="park")
        with pytest.raises(NotPolled):
            consumer.retry(frame.where("offset = 5"))
        rest = frame.where("key not in ('k3', 'k4', 'k7') and offset not in (5, 16)")
        (answer,) = consumer.commit(rest).values()
        assert (answer.stable_offset, answer.committed) == (3, 12)

        again = consumer.poll(PATIENCE)
        assert in_key_order(again) == [(0, 4), (0, 14)], "what is due comes first, alone"
        consumer.commit(again)
        new = consumer.poll(PATIENCE)
        assert in_key_order(new) == [(0, o) for o in range(20, 40) if o % 10 not in (3, 7)]
        place = TopicPartition(name, 0)
        with pytest.raises(NotPolled) as refused:
            consumer.commit({place: [(20, 39)]})
        assert (refused.value.first, refused.value.last) == (23, 23), "its key waits"
        for answer in (consumer.retry, lambda rows: consumer.reject(rows, reason="no")):
            with pytest.raises(NotPolled):
                answer(new.withColumn("offset", F.col("offset") + 1))
        assert consumer.commit({place: 17}) == {}, "all below 17 is answered for"
        (answer,) = consumer.commit(new).values()
        assert (answer.stable_offset, answer.committed) == (3, 16)
        letters = committed_rows(
            *(opts[n] for n in ("deadLetter", "commitTable", "kafka.group.id"))
        )
        columns = "_offset", "value", "reason", "attempts"
        rejected = [tuple(row[name] for name in columns) for row in letters.to_pylist()]
        assert sorted(rejected) == [
            (5, b"v5", "no 5", 1),
            (7, b"v7", "ValueError: later", 1),
            (16, b"v16", "no 16", 1),
        ]

    dead_letters = DeadLetters(opts)
    dead_letters.carry_out("discard", dead_letters.plan(Choice(key=b"k7")))
    with CooperativeConsumer(opts, spark) as consumer:
        held = consumer.poll(PATIENCE)
        assert in_key_order(held) == [(0, 17)], "gaps of the discarded key, and of no other"
        consumer.commit(held)
        found = []
        while len(found) < 20:
            frame = consumer.poll(PATIENCE)
            found += in_key_order(frame)
            consumer.commit(frame)
        assert sorted(found) == [(0, o) for o in [27, 37, *range(40, 60)] if o % 10 != 3]
        assert consumer.poll(0).count() == 0
        assert consumer.status["waitingFor"]["reason"] == "retry"
        pending = consumer._subscription.joined().store.pending(consumer.options.group_id)[name, 0]
        assert {o: (p.attempts, p.error) for o, p in pending.items()} == {
            3: (1, "the bank sleeps"), 13: (1, "the bank sleeps")
        }  # fmt: skip


def test_holes_do_not_hold_up_a_hand_over(spark, kafka, topic, tmp_path, monkeypatch):
    """Markers of transactions and aborted records were never handed out: nobody waits for them."""
    from kafka import KafkaProducer

    monkeypatch.setattr("coopconsume.runtime.read.audit.AUDIT_SPAN", 2)
    name = topic(1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for n in range(6):
        producer.begin_transaction()
        producer.send(name, key=b"k", value=b"")
        producer.flush()
        (producer.abort_transaction if n % 2 else producer.commit_transaction)()
    producer.close()
    opts = options(kafka, tmp_path, name, **{"kafka.isolation.level": "read_committed"})
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        assert in_key_order(frame) == [(0, 0), (0, 4), (0, 8)]
        consumer.commit(frame)
        session = consumer._subscription.joined()._current.worker
        assert session.places[name, 0].polled, "not all holes are proven yet"
        assert session.hand_over(PATIENCE) == []

"""Ordering keys on a real broker, a real Spark and a real Delta table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from assignors import KeyRange, key_hash
from coopconsume import CooperativeConsumer, Reject, RetryPolicy, TopicPartition
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.errors import GroupRefused, InvalidOption, NotPolled
from coopconsume.record import ORDERING_KEY, ordering_key_of
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, Recorded, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

#: The header of the customer; null where a record has none.
CUSTOMER = "try_element_at(filter(headers, h -> h.key = 'customer'), 1).value -- binary"
COUNT = 120


def customer(offset):
    """Who has sent a record; some have no customer."""
    return None if offset % 13 == 0 else b"c%d" % (offset % 4)


@pytest.fixture
def producer(_producer):
    """What fills topics."""
    return _producer


def sent(producer, name):
    """Fill a topic of one partition; each record has a key of its own."""
    for i in range(COUNT):
        who = customer(i)
        headers = [("kind", b"x")] + ([] if who is None else [("customer", who)])
        producer.send(name, key=b"k%d" % i, value=b"v", headers=headers, partition=0)
    producer.flush()


class Work:
    """Fails some records at first and rejects some; counts by customer if it has a state."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self, record, state=None):
        """Handle a record; it has its own key, and its ordering key as a header."""
        who = ordering_key_of(record.headers)
        assert (record.key, who) == (b"k%d" % record.offset, customer(record.offset))
        if record.offset % 17 == 5 and record.attempt == 1:
            raise RuntimeError("at first")
        if record.offset in (1, 9, 30):
            raise Reject("no")
        if state is not None and who is not None:
            state.set((state.get() or 0) + 1)


def check_order(calls):
    """No two calls of a customer overlap, and each waits until those before it are settled."""
    for who in {customer(offset) for offset in range(COUNT)} - {None}:
        own = sorted((c for c in calls if customer(c.offset) == who), key=lambda c: c.start_ns)
        for before, after in pairwise(own):
            assert before.end_ns <= after.start_ns
            assert before.offset <= after.offset
    assert {call.offset for call in calls} == set(range(COUNT))


def test_a_job_keeps_the_order_of_customers_whose_keys_differ(
    spark, kafka, topic, producer, tmp_path
):
    """Its letters of a customer are in one partition; a replayed record is the record again."""
    name, dead = topic(1), topic(5)
    sent(producer, name)
    opts = options(
        kafka, tmp_path, name, orderingKey=CUSTOMER, deadLetter=f"kafka:{dead}",
        maxOffsetsPerTrigger=50, includeHeaders="true",
    )  # fmt: skip
    retry = RetryPolicy(backoff=0.1, max_backoff=0.1)
    with CooperativeConsumer(opts, spark) as consumer:
        handler = Recorded(tmp_path / "history", Work(tmp_path))
        query = consumer.foreach(handler, concurrency=8, retry=retry)
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        check_order(read_history(tmp_path / "history"))
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]
        assert store.state(group)[name, 0].stable_offset == COUNT
        assert store.settings()[f"orderingKey:{group}"] == CUSTOMER
    letters = DeadLetters(opts)
    found = letters.letters()
    assert [one.offset for one in found] == [1, 9, 30]
    for one in found:
        assert one.key == b"k%d" % one.offset
        assert ordering_key_of(one.headers) == customer(one.offset)
    rows = spark.read.format("kafka").options(
        **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": dead}
    ).load().collect()  # fmt: skip
    partitions = {bytes(row.key): row.partition for row in rows}
    assert partitions[b"k1"] == partitions[b"k9"]  # both of c1
    letters.carry_out("replay", letters.plan(Choice(first=1, last=1)))
    (again,) = read_headers(spark, kafka, name, COUNT)
    assert dict(again).keys() == {"kind", "customer", "coopconsume.replay_of"}


def read_headers(spark, kafka, name, offset):
    """The headers of the records of a topic from an offset on."""
    frame = (
        spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name})
        .option("includeHeaders", "true")
        .load()
    )
    rows = frame.where(f"`offset` >= {offset}").collect()
    return [[(h.key, bytes(h.value)) for h in row.headers] for row in rows]


def test_state_is_kept_by_customer(spark, kafka, topic, producer, tmp_path):
    """A customer's records share it, whatever their keys are."""
    name = topic(1)
    sent(producer, name)
    opts = options(kafka, tmp_path, name, orderingKey=CUSTOMER, where="`offset` % 13 != 0")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach_with_state(
            Counts(), state_schema="long", state=str(tmp_path / "state")
        ).trigger(availableNow=True).start()  # fmt: skip
        assert query.awaitTermination(PATIENCE)
        for who in (b"c0", b"c1", b"c2", b"c3"):
            expected = sum(customer(offset) == who for offset in range(COUNT))
            assert query.state(name, who) == expected
        assert query.state(name, b"k1") is None


class Counts:
    """Counts the records of a state."""

    def __call__(self, _record, state):
        """Count one more."""
        state.set((state.get() or 0) + 1)


def test_frames_are_dealt_by_customer(spark, kafka, topic, producer, tmp_path):
    """`key_hash` is that of the ordering key; a record that is retried holds its customer back."""
    name, dead = topic(1), tmp_path / "dead"
    sent(producer, name)
    opts = options(kafka, tmp_path, name, orderingKey=CUSTOMER, deadLetter=str(dead))
    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        assert "_ordering_key" not in frame.columns
        assert "headers" not in frame.columns
        assert frame.schema == consumer.poll(0).schema
        rows = {row.offset: row.key_hash for row in frame.collect()}
        assert rows == {o: key_hash(customer(o)) for o in range(COUNT)}
        consumer.retry(frame.where("`offset` = 1"), delay="1 hour")
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]
        held = store.pending(group)[name, 0][1]
        assert (held.key_hash, held.headers, held.key) == (key_hash(b"c1"), (), "c1")
        consumer.reject(frame.where("`offset` = 2"), reason="no", on_dead="park")
        held = store.pending(group)[name, 0][2]
        assert (held.key_hash, held.headers, held.key) == (key_hash(b"c2"), (), "c2")
        consumer.commit(frame.where("`offset` NOT IN (1, 2)"))
    (letter,) = DeadLetters(opts).letters()
    assert (letter.key, ordering_key_of(letter.headers)) == (b"k2", b"c2")
    with CooperativeConsumer(opts, spark) as consumer:
        producer.send(name, key=b"new", value=b"v", headers=[("customer", b"c1")], partition=0)
        producer.send(name, key=b"k1", value=b"v", headers=[("customer", b"c3")], partition=0)
        producer.flush()
        found = until(lambda: [row.offset for row in consumer.poll(5).collect()])
        assert found == [COUNT + 1]


def test_a_group_agrees_on_one_ordering_key(spark, kafka, topic, producer, tmp_path):
    """Members, claims and later starts with another one are refused, each with the reason."""
    name, unused = topic(2), topic(1)
    sent(producer, name)
    opts = options(kafka, tmp_path, name, orderingKey=CUSTOMER)
    others = {k: v for k, v in opts.items() if k != "orderingKey"}
    with CooperativeConsumer(opts, spark) as consumer:
        consumer.subscribe()
        with (
            CooperativeConsumer(others, spark) as other,
            pytest.raises(GroupRefused, match=r"orderingKey none, the other members .* with try_"),
        ):
            other.poll(PATIENCE)
        claimed = {k: v for k, v in others.items() if k != "subscribe"}
        with (
            CooperativeConsumer(claimed | {"orderingKey": "topic"}, spark) as other,
            pytest.raises(GroupRefused, match="stop all of its members and claims"),
        ):
            other.assign({TopicPartition(unused, 0): [KeyRange()]})
        assert consumer._subscription.joined().store.claims(opts["kafka.group.id"]) == []

        def retried():
            try:
                consumer.retry(consumer.poll(PATIENCE).where("`offset` = 1"), delay="1 hour")
            except NotPolled:  # The others have left since the frame was polled.
                return False
            return True

        until(retried)
    with (
        CooperativeConsumer(others, spark) as other,
        pytest.raises(GroupRefused, match=r"such as \S+-0@1: process them with the orderingKey"),
    ):
        other.poll(PATIENCE)


def test_real_time_refuses_it(spark, kafka, topic, tmp_path):
    """Its slots read Kafka themselves, and only Spark evaluates an expression."""
    opts = options(kafka, tmp_path, topic(1), orderingKey="topic", slots=1)
    with (
        CooperativeConsumer(opts, spark) as consumer,
        pytest.raises(InvalidOption, match="orderingKey = with trigger") as error,
    ):
        consumer.foreach(print).trigger(realTime="5 minutes").start()
    assert "use batches" in str(error.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("nope", "UNRESOLVED_COLUMN"),
        ("key ||", "PARSE_SYNTAX_ERROR"),
        ("key AS k", "PARSE_SYNTAX_ERROR"),
        ("topic) OR (true", "PARSE_SYNTAX_ERROR"),
        ("partition", "give an expression of type string or binary, not int"),
        ("NULL", "not void"),
        ("max(topic)", "give a deterministic expression"),
        ("explode(headers.key)", "give a deterministic expression"),
        ("coopconsume_test_name(topic)", "deterministic"),
    ],
)
def test_an_ordering_key_that_spark_refuses_is_reported_before_anything_starts(
    spark, tmp_path, expression, words
):
    """The error names the option, what was found, and Spark's reason."""
    from pyspark.sql import functions as F

    name = F.udf(lambda topic: topic, "string").asNondeterministic()
    spark.udf.register("coopconsume_test_name", name)
    with pytest.raises(InvalidOption) as error:
        CooperativeConsumer(
            {
                "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
                "commitTable": str(tmp_path / "commits"), "slots": 1, "orderingKey": expression,
            },
            spark,
        )  # fmt: skip
    assert (error.value.name, error.value.found) == ("orderingKey", repr(expression))
    assert words in str(error.value)
    assert not Path(tmp_path / "commits").exists()


def test_a_header_of_that_name_is_replaced(spark, kafka, topic, producer, tmp_path):
    """Records of a topic of dead letters have one; text is encoded as UTF-8."""
    name = topic(1)
    producer.send(name, key=b"k", value="ä".encode(), headers=[(ORDERING_KEY, b"old")])
    producer.flush()
    opts = options(
        kafka, tmp_path, name, orderingKey="CAST(value AS STRING)", includeHeaders="true"
    )
    with CooperativeConsumer(opts, spark) as consumer:
        (row,) = consumer.poll(PATIENCE).collect()
        assert row.key_hash == key_hash("ä".encode())
        assert [(h.key, bytes(h.value)) for h in row.headers] == [(ORDERING_KEY, "ä".encode())]

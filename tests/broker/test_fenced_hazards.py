"""What may happen to a fenced writer on a real broker, at the worst moments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from coopconsume import FencedWriter
from coopconsume.errors import AppendRefused, LogReplaced, OffsetMismatch, ProducerFenced
from coopconsume.fenced import LogReader, audit

if TYPE_CHECKING:
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker
Make = Callable[..., FencedWriter]


def right(kafka: LocalKafka, topic: str) -> list[bytes | None]:
    """The values of a log in which nothing is wrong."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    assert audit(options, topic)[1].ok
    with LogReader(options, topic) as reader:
        return [record.value for record in reader.read()]


def between(writer: FencedWriter, call: str, do: Callable[[], object], after: bool) -> None:
    """Do something once, before or after a call of the writer's producer."""
    channel = writer._session.channel
    original = getattr(channel, call)

    def wrapped(*args: Any) -> Any:
        setattr(channel, call, original)
        if not after:
            do()
        answer = original(*args)
        if after:
            do()
        return answer

    setattr(channel, call, wrapped)


def test_a_foreign_record_before_a_batch(
    kafka: LocalKafka, make: Make, topic: TopicFactory, produce: Produce
) -> None:
    """An append by offset is refused, and one by sequence comes after it (H1)."""
    name = topic()
    writer = make(name).acquire()
    between(writer, "append", lambda: produce(name, [(None, b"foreign")]), after=False)
    at = writer.next_offset
    with pytest.raises(OffsetMismatch) as missed:
        writer.append([b"a"], expected_offset=at)
    assert missed.value.actual == writer.next_offset > at
    produce(name, [(None, b"foreign")])
    between(writer, "append", lambda: produce(name, [(None, b"foreign")]), after=False)
    writer.append([b"b", b"c"], expected_seq=0)
    between(writer, "append", lambda: produce(name, [(None, b"foreign")]), after=True)
    writer.append([b"d"], expected_seq=2)
    produce(name, [(None, b"foreign")])
    assert writer.append([b"e"]).first_seq == 3
    assert right(kafka, name) == [b"b", b"c", b"d", b"e"]
    assert make(name).acquire().next_seq == 4


def test_foreign_records_under_way(kafka: LocalKafka, make: Make, topic: TopicFactory) -> None:
    """While another producer writes, batches stay whole (H2)."""
    name = topic()
    writer = make(name).acquire()
    done, turns = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
            while turns.acquire() and not done.is_set():
                producer.send(name, b"foreign", partition=0).get(60)

    other = threading.Thread(target=write)
    other.start()
    try:
        values = [[b"%d" % (50 * k + i) for i in range(50)] for k in range(4)]
        for rows in values:
            turns.release(10)  # during each append; without an end no append need ever get through
            writer.append(rows, expected_seq=int(rows[0]))
    finally:
        done.set()
        turns.release()
        other.join()
    assert right(kafka, name) == [value for rows in values for value in rows]


@pytest.mark.parametrize("moment", ["append", "commit"])
def test_an_owner_that_slept_through_a_take_over(
    kafka: LocalKafka, make: Make, topic: TopicFactory, moment: str
) -> None:
    """Wherever it slept: what it wrote then does not count, and its successor is not disturbed."""
    name = topic()
    one, two = make(name, owner="one").acquire(), make(name, owner="two")
    one.append([b"a"])
    if moment == "commit" and one._session.is_filtered:
        return  # it has none

    def take() -> None:
        two.acquire()
        two.append([b"b"], expected_seq=1)

    between(one, moment, take, after=False)
    with pytest.raises(ProducerFenced):
        one.append([b"late"], expected_seq=1)
    assert two.append([b"c"], expected_seq=2).first_seq == 2
    assert (two.epoch, right(kafka, name)) == (2, [b"a", b"b", b"c"])


def test_two_claimants_whose_inits_cross(
    kafka: LocalKafka, make: Make, topic: TopicFactory
) -> None:
    """Both get the log, one after the other, with epochs of their own."""
    name = topic()
    one, two = make(name, owner="one"), make(name, owner="two")
    engine = one._engine
    ends = engine.ends

    def crossed(*args: Any) -> Any:
        engine.ends = ends  # type: ignore[method-assign]
        two.acquire()  # one has fenced, and not read yet
        return ends(*args)

    engine.ends = crossed  # type: ignore[method-assign]
    one.acquire()
    assert (two.epoch, one.epoch) == (1, 2)
    with pytest.raises(ProducerFenced):
        two.append([b"late"])
    one.append([b"a"])
    assert right(kafka, name) == [b"a"]


def test_an_acknowledgement_that_is_lost(
    kafka: LocalKafka, make: Make, topic: TopicFactory
) -> None:
    """The batch is found in the log, and not written again; its owner keeps its epoch."""
    name = topic()
    writer = make(name).acquire()
    last = "append" if writer._session.is_filtered else "commit"

    def fail() -> None:
        raise TimeoutError("the answer was lost")

    channel = writer._session.channel
    assert channel is not None
    between(writer, last, fail, after=True)
    wrapped = getattr(channel, last)

    def doubtful(*args: Any) -> Any:
        from coopconsume.fenced.engine import EngineDoubt

        try:
            return wrapped(*args)
        except TimeoutError as error:
            raise EngineDoubt(str(error)) from error

    setattr(channel, last, doubtful)
    assert writer.append([b"a"], expected_seq=0).first_seq == 0
    assert writer.append([b"b"], expected_seq=1).first_seq == 1
    assert (writer.epoch, right(kafka, name)) == (1, [b"a", b"b"])


def test_a_transaction_that_timed_out(kafka: LocalKafka, topic: TopicFactory) -> None:
    """The coordinator aborts it and fences the producer; the owner is still the owner (H9)."""
    name = topic()
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.transaction.timeout.ms": "1000",
    }  # fmt: skip
    with FencedWriter(options, name) as writer:
        engine = writer._engine
        began = writer.next_offset

        def wait() -> None:  # for the abort's marker, which is written by the broker's own clock
            while engine.ends(name, 0).stable <= began:
                threading.Event().wait(0.2)

        between(writer, "append", wait, after=True)
        assert writer.append([b"a"], expected_seq=0).first_seq == 0
        assert writer.epoch == 1
    assert right(kafka, name) == [b"a"]


def test_a_recreated_topic(kafka: LocalKafka, make: Make, topic: TopicFactory) -> None:
    """It is another log: the writer refuses it, though its name is the same (H15)."""
    name = topic()
    writer = make(name).acquire()
    writer.append([b"a"])
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_topics([name])
        for _ in range(1_200):
            if name not in admin.list_topics():
                break
            threading.Event().wait(0.05)
    kafka.create_topic(name)
    with pytest.raises(LogReplaced) as replaced:
        writer.append([b"b"], expected_seq=1)
    assert replaced.value.expected == writer.log.topic_id != replaced.value.found
    assert make(name).acquire().next_seq == 0


def test_what_does_not_fit_is_refused(make: Make, topic: TopicFactory) -> None:
    """By the writer, or by the broker; the log goes on as if nothing had been."""
    name = topic(1, {"max.message.bytes": 20_000})
    writer = make(name).acquire()
    with pytest.raises(AppendRefused, match=r"max\.request\.size"):
        writer.append([b"x" * (1 << 20)])
    with pytest.raises(AppendRefused, match="too large"):
        writer.append([b"x" * 30_000])
    with pytest.raises(AppendRefused, match="too large"):
        writer.append([b"x" * 1_000] * 30)
    assert writer.append([b"a"], expected_seq=0).first_seq == 0


def test_a_compacted_log_is_owned_and_replayed(kafka: LocalKafka, topic: TopicFactory) -> None:
    """The writer's own records have keys; a filtered log must not be compacted."""
    name = topic(1, {"cleanup.policy": "compact"})
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with FencedWriter(options, name) as writer:
        writer.append([(b"k", b"1"), (b"k", b"2")])
        with pytest.raises(AppendRefused, match="does not take"):
            writer.append([b"no key"])
        assert writer.append([(b"k", None)], expected_seq=2).first_seq == 2
    with LogReader(options, name) as reader:
        assert [r.value for r in reader.read()] == [b"1", b"2", None]
    with pytest.raises(AppendRefused, match="compact"):
        FencedWriter(options, name, visibility="filter").acquire()

"""The faults of kafka-python that the writer's engine keeps away: each shown, and not there."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.producer import transaction_manager as kafka_transactions

from coopconsume import FencedWriter, LocalKafka
from coopconsume.errors import AppendOutcomeUnknown, EngineNotUsable
from coopconsume.fenced import Entry, LogId, audit, session
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.kafka_engine import Engine, KafkaChannel
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
ROW = [Entry(b"v")]
STAMPS = [("fw", b"")]
PATIENCE = 300.0


class LogClients:
    """One log, and what makes raw producers and the engine's channels for it."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.settings = FencedSettings.parse(self.options)
        self.engine = Engine(self.settings)
        self.topic = topic
        self.log = LogId(topic, str(self.engine.topic_id(topic)), 0)
        self._servers = kafka.bootstrap_servers
        self._made: list[Callable[[], object]] = [self.engine.close]

    def raw(self, **more: Any) -> KafkaProducer:
        """A producer as kafka-python makes it, with the log's transactional id."""
        producer = KafkaProducer(
            bootstrap_servers=self._servers, transactional_id=self.log.transactional_id(),
            retry_backoff_ms=5, **more,
        )  # fmt: skip
        self._made.append(lambda: producer.close(timeout=1))
        producer.init_transactions()
        return producer

    def send(self, producer: KafkaProducer) -> Any:
        """A record; its future."""
        return producer.send(self.topic, b"v", partition=0)

    def channel(self) -> KafkaChannel:
        """The engine's producer, with that id."""
        channel = KafkaChannel(self.settings, self.log, self.log.transactional_id(), 60)
        self._made.append(channel.drop)
        channel.init(60)
        return channel

    @property
    def part(self) -> LogAppend:
        """A record for the log."""
        return LogAppend(self.log, ROW, STAMPS)

    def committed(self) -> list[int]:
        """The offsets of what was committed."""
        end = self.engine.ends(self.topic, 0).stable
        return [row.offset for rows in self.engine.read(self.topic, 0, 0, end, 60) for row in rows]

    def comes_to(self, offsets: list[int]) -> bool:
        """Whether that is what was committed, soon; a broker that just woke may not answer yet."""

        def is_so() -> bool:
            with suppress(EngineDoubt):
                return self.committed() == offsets
            return False

        return wait_for(is_so)

    def is_decided(self) -> bool:
        """Whether every transaction in the log has its marker."""
        ends = self.engine.ends(self.topic, 0)
        return ends.stable == ends.end

    def close(self) -> None:
        """Close all."""
        for end in self._made:
            with suppress(Exception):
                end()


@pytest.fixture
def clients(kafka: LocalKafka, topic: TopicFactory) -> Iterator[LogClients]:
    """A log on the run's broker."""
    found = LogClients(kafka, topic())
    yield found
    found.close()


def lose_the_sequence(producer: KafkaProducer, topic: str) -> None:
    """Let a producer number its next batch wrongly, as after a batch that was lost."""
    producer._transaction_manager._sequence_numbers[TopicPartition(topic, 0)] += 7


def test_k1_a_commit_that_was_an_abort(clients: LogClients) -> None:
    """The raw client says that it committed, and nothing is there; the engine reports a doubt."""
    raw = clients.raw()
    raw.begin_transaction()
    assert clients.send(raw).get(60).offset == 0
    lose_the_sequence(raw, clients.topic)
    clients.send(raw)
    raw.commit_transaction()
    assert clients.committed() == []

    channel = clients.channel()
    channel.begin()
    channel.append([clients.part], 60)
    lose_the_sequence(channel._producer, clients.topic)
    with pytest.raises(EngineDoubt):
        channel.append([clients.part], 60)
    with pytest.raises(EngineDoubt):
        channel.commit(60)
    assert clients.committed() == []


def test_k1_the_writer_goes_on(clients: LogClients) -> None:
    """A batch that fails so is written by a new producer, once."""
    with FencedWriter(clients.options, clients.topic) as writer:
        writer.append([b"a"])
        lose_the_sequence(writer._session.channel._producer, clients.topic)  # type: ignore[union-attr]
        assert writer.append([b"b"], expected_seq=1).first_seq == 1
        assert (writer.epoch, writer.next_seq) == (1, 2)
    assert audit(clients.options, clients.topic)[1].ok


@pytest.mark.parametrize("version", [4, 3])
def test_k2_k3_a_zombie_and_its_successor(
    clients: LogClients, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raw zombie aborts its successor's transaction, by an old protocol it takes the log back.

    The engine's zombie fails, and its successor commits.
    """
    init = kafka_transactions.InitProducerIdRequest
    monkeypatch.setattr(
        kafka_transactions, "InitProducerIdRequest",
        lambda **fields: init(**fields | {"max_version": version}),
    )  # fmt: skip
    zombie = clients.raw()
    zombie.begin_transaction()
    clients.send(zombie).get(60)
    owner = clients.raw()
    owner.begin_transaction()
    clients.send(owner).get(60)
    with pytest.raises(KafkaError):
        clients.send(zombie).get(60)
    wait_until_idle(zombie)
    assert (zombie._transaction_manager._current_state.name == "READY") == (version == 3)
    with pytest.raises(KafkaError):
        owner.commit_transaction()
    assert clients.committed() == []

    late = clients.channel()
    late.begin()
    late.append([clients.part], 60)
    successor = clients.channel()
    successor.begin()
    ((offset,),) = successor.append([clients.part], 60)
    with pytest.raises(EngineDoubt):
        late.append([clients.part], 60)
    wait_until_idle(late._producer)
    successor.commit(60)
    assert clients.comes_to([offset])


def wait_until_idle(producer: KafkaProducer) -> None:
    """Until a producer has nothing under way with its coordinator."""
    manager = producer._transaction_manager
    assert wait_for(
        lambda: (
            not manager._pending_requests
            and not manager.has_in_flight_transactional_request()
            and not manager.is_bumping_epoch()
        )
    )


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    """Whether something comes true."""
    tick, until = threading.Event(), time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        tick.wait(0.02)
    return True


def test_k7_k9_settings_of_the_producer(clients: LogClients) -> None:
    """Retried requests wait for 5 ms, records for the flush, and the epoch is never bumped."""
    config = clients.channel()._producer.config
    assert config["retry_backoff_ms"] == 5
    assert config["linger_ms"] > 1000
    assert config["acks"] == -1
    assert not clients.channel()._producer._transaction_manager._supports_epoch_bump()


def test_k8_an_offset_of_minus_one(clients: LogClients, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate is acknowledged as success with offset -1: a doubt, not an offset."""

    class Future:
        offset = -1

        def get(self, _timeout: float) -> Future:
            return self

    channel = clients.channel()
    channel.begin()
    monkeypatch.setattr(channel._producer, "send", lambda *_: Future())
    with pytest.raises(EngineDoubt, match="without its offset"):
        channel.append([clients.part], 60)


def test_a_kafka_python_without_the_hook_is_refused(
    clients: LogClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private method that switches the bump off is looked for, not hoped for."""
    monkeypatch.delattr(kafka_transactions.TransactionManager, "_supports_epoch_bump")
    with pytest.raises(EngineNotUsable, match="_supports_epoch_bump"):
        KafkaChannel(clients.settings, clients.log, None, 10)


@pytest.mark.slow
def test_k4_k5_k6_a_broker_that_is_frozen(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a commit, and after it was killed: the truth is found out, or asked later.

    The raw client says that its commit failed, and the record is there.
    """
    # Otherwise an append may look up the topic first, and then it fails before it is sent.
    monkeypatch.setattr(session, "_LOOK_EVERY", math.inf)
    log = tmp_path_factory.mktemp("frozen") / "broker.log"
    # A broker that is frozen beyond its session leaves its cluster, and transactions may hang then.
    config = {"broker.session.timeout.ms": 30_000}
    with LocalKafka(log_file=log, config=config) as kafka:
        kafka.create_topic("t")
        clients = LogClients(kafka, "t")
        raw = clients.raw(request_timeout_ms=1000, max_block_ms=20_000)
        raw.begin_transaction()
        clients.send(raw).get(60)
        kafka.freeze()
        with pytest.raises(KafkaError):
            raw.commit_transaction()
        kafka.thaw()
        assert clients.comes_to([0])

        slow = clients.options | {"kafka.request.timeout.ms": "1000"}
        writer = FencedWriter(slow, "t", timeout=PATIENCE).acquire()
        writer.append([b"a"])
        freeze_at_commit(writer, kafka, monkeypatch, thaw_after=2.5)
        assert writer.append([b"b"], expected_seq=1).first_seq == 1
        assert (writer.epoch, writer.next_seq) == (1, 2)

        hasty = FencedWriter(slow, "t", timeout=2)
        hasty._timeout = PATIENCE
        hasty.acquire()
        with monkeypatch.context() as patches:
            freeze_at_commit(hasty, kafka, patches, left=4.0)
            with pytest.raises(AppendOutcomeUnknown) as unknown:
                hasty.append([b"c"], batch_id="c")
        hasty._timeout = 4
        with pytest.raises(AppendOutcomeUnknown):
            hasty.resolve("c")
        kafka.thaw()
        hasty._timeout = PATIENCE
        found = resolved(hasty, unknown.value.batch_id)
        again = hasty.append([b"c"], batch_id="c")
        assert found is None or found == again
        assert again.first_seq == 2

        # A lone broker that starts again skips the markers of what it had only begun to commit:
        # the transaction of "c" would hang.
        assert wait_for(clients.is_decided)
        kafka.kill()
        hasty._timeout = 20
        with pytest.raises(Exception, match="t-0") as gone:
            hasty.append([b"d"], batch_id="d")
        kafka.start()
        hasty._timeout = PATIENCE
        assert isinstance(gone.value, AppendOutcomeUnknown)
        resolved(hasty, "d")
        assert hasty.append([b"d"], batch_id="d").first_seq == 3
        assert hasty.epoch == 2
        assert audit(clients.options, "t")[1].ok
        hasty.close()
        writer.close()
        clients.close()


def freeze_at_commit(
    writer: FencedWriter,
    kafka: LocalKafka,
    monkeypatch: pytest.MonkeyPatch,
    thaw_after: float | None = None,
    left: float | None = None,
) -> None:
    """Freeze the broker as a writer is about to commit; let it go on after a while, if at all.

    From then on no call has more than ``left`` seconds, if that is given. Up to then it has its own
    timeout, however slow the machine is.

    A writer that opens its session again before, as on a slow machine, has another channel.
    """
    open_channel = writer._session.channel
    assert open_channel is not None
    channel = type(open_channel)
    commit, frozen_once, own = channel.commit, threading.Event(), Deadline.left.fget

    def frozen(self: Any, timeout: float) -> None:
        if not frozen_once.is_set():
            frozen_once.set()
            kafka.freeze()
            if thaw_after is not None:
                threading.Timer(thaw_after, kafka.thaw).start()
            if left is not None:
                timeout = left
                end = time.monotonic() + left
                monkeypatch.setattr(
                    Deadline, "left",
                    property(lambda one: min(own(one), max(0.0, end - time.monotonic()))),
                )  # fmt: skip
        commit(self, timeout)

    monkeypatch.setattr(channel, "commit", frozen)


def resolved(writer: FencedWriter, batch_id: str) -> Any:
    """What came of a batch, once that can be known."""
    for _ in range(20):
        with suppress(AppendOutcomeUnknown):
            return writer.resolve(batch_id)
    raise AssertionError(f"{batch_id} stays unknown")

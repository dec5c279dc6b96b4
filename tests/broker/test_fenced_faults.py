"""What may go wrong between a writer's producer and its brokers, on a real broker."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from kafka.errors import ConcurrentTransactionsError, InvalidTransactionTimeoutError, KafkaError

from coopconsume import FencedWriter, LocalKafka
from coopconsume.errors import AppendOutcomeUnknown, EngineNotUsable
from coopconsume.fenced import Entry, LogId, audit, session
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.kafka_channel import Delivery, KafkaChannel
from coopconsume.fenced.kafka_engine import Engine
from coopconsume.kafka import transactions
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.transactions import fence_producers, group_metadata

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
ROW = [Entry(b"v")]
STAMPS = [("fw", b"")]
PATIENCE = 300.0


class LogClients:
    """One log, and what makes the engine's channels for it."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.settings = FencedSettings.parse(self.options)
        self.engine = Engine(self.settings)
        self.topic = topic
        self.log = LogId(topic, str(self.engine.topic_id(topic)), 0)
        self._made: list[Callable[[], object]] = [self.engine.close]

    def channel(self) -> KafkaChannel:
        """The engine's producer, with that id."""
        channel = self.engine.channel(self.log, self.log.transactional_id(), 60)
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


def test_a_zombie_and_its_successor(clients: LogClients) -> None:
    """The zombie fails, and its successor commits."""
    late = clients.channel()
    late.begin()
    late.append([clients.part], 60)
    successor = clients.channel()
    successor.begin()
    ((offset,),) = successor.append([clients.part], 60)
    with pytest.raises(EngineDoubt):
        late.append([clients.part], 60)
    with pytest.raises(EngineDoubt):
        late.commit(60)
    successor.commit(60)
    assert clients.comes_to([offset])


def test_a_transaction_is_decided_once_its_producer_is_fenced(clients: LogClients) -> None:
    """So librdkafka, which looks for that every 500 ms only, need not wait."""
    late, log = clients.channel(), clients.log
    late.begin()
    late.append([clients.part], 60)
    with clients.engine.asking(clients.topic) as admin:
        fence_producers(admin, log.transactional_id(), 60_000, lambda: 60.0)
        state = admin.describe_transactions([log.transactional_id()])
    assert state[log.transactional_id()].state.value == "Empty"
    with pytest.raises(EngineDoubt):
        late.commit(60)
    assert clients.is_decided()
    assert clients.committed() == []


def test_a_coordinator_that_moved_is_looked_up_again(clients: LogClients) -> None:
    """kafka-python's client asks the one that it knows for ever."""
    name = clients.log.transactional_id()
    with clients.engine.asking(clients.topic) as admin:
        fence_producers(admin, name, 60_000, lambda: 60.0)
        known = admin._manager.cluster._coordinators
        assert known
        known.update(dict.fromkeys(known, 77))  # a broker that is not there
        with suppress(KafkaError):
            fence_producers(admin, name, 60_000, lambda: 60.0)
        fence_producers(admin, name, 60_000, lambda: 60.0)


def test_what_a_coordinator_refuses_is_not_asked_again(clients: LogClients) -> None:
    """A timeout above what brokers allow stays one."""
    name = clients.log.transactional_id()
    with (
        clients.engine.asking(clients.topic) as admin,
        pytest.raises(InvalidTransactionTimeoutError),
    ):
        fence_producers(admin, name, 2**31 - 1, lambda: 60.0)


def test_brokers_that_are_too_old_are_refused(
    clients: LogClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, with transactions and without."""
    monkeypatch.setattr(transactions, "_OLDEST", (99, 0))
    for name in (clients.log.transactional_id(), None):
        with pytest.raises(EngineNotUsable, match="99"):
            clients.engine.channel(clients.log, name, 10)


def test_an_owner_that_is_not_fenced_in_time_is_in_doubt(clients: LogClients) -> None:
    """And its transactional id is not taken."""
    name = clients.log.transactional_id()

    def fence(of: str, timeout_ms: int, deadline: Deadline) -> None:
        assert (of, timeout_ms, deadline.seconds) == (name, 60_000, 10)
        raise ConcurrentTransactionsError

    late = KafkaChannel(clients.settings, clients.log, name, 10, fence)
    with pytest.raises(EngineDoubt, match="ConcurrentTransactions"):
        late.init(10)
    with pytest.raises(EngineDoubt):
        late.begin()


def test_an_offset_of_minus_one(clients: LogClients) -> None:
    """A duplicate is acknowledged as success with offset -1: a doubt, not an offset."""
    channel = clients.channel()
    for offsets, problem in (([-1], "without its offset"), ([], "not acknowledged in time")):
        with pytest.raises(EngineDoubt, match=problem):
            channel._flush(60, [Delivery(1, offsets)])


def test_a_late_member_of_a_group_is_recognised(clients: LogClients, topic: TopicFactory) -> None:
    """Offsets of an earlier generation are refused by the group, and the doubt says so."""
    channel = clients.channel()
    channel.begin()
    place = group_metadata(f"group-{topic()}", 7, "a member that nobody knows")
    offsets = [TopicPartition(clients.topic, 0, 1)]
    with pytest.raises(EngineDoubt) as doubt:
        channel._within(60, "send_offsets_to_transaction", offsets, place)
    assert doubt.value.is_of_earlier_generation


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    """Whether something comes true."""
    tick, until = threading.Event(), time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        tick.wait(0.02)
    return True


@pytest.mark.nightly
@pytest.mark.slow
def test_a_broker_that_is_frozen(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a commit, and after a kill: the truth is found out, or asked later."""
    # Otherwise an append may look up the topic first, and then it fails before it is sent.
    monkeypatch.setattr(session, "_LOOK_EVERY", math.inf)
    log = tmp_path_factory.mktemp("frozen") / "broker.log"
    # A broker that is frozen beyond its session leaves its cluster, and transactions may hang then.
    config = {"broker.session.timeout.ms": 30_000}
    with LocalKafka(log_file=log, config=config) as kafka:
        kafka.create_topic("t")
        clients = LogClients(kafka, "t")
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

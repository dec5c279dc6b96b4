"""Producers that take turns by a registry, on a broker in memory: pauses, and slow registries."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from coopconsume.errors import ProducerBusy, ProducerFenced
from coopconsume.fenced import AccessMode, ExclusiveProducer, FencedWriter
from coopconsume.fenced.ownership import Grant, OwnershipRegistry, Queued
from tests.fenced_checker import Outcomes, problems
from tests.model.fenced_broker import Broker, FakeEngine, Fate
from tests.model.memory_store import Memory, MemoryStore

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1"}
VISIBILITIES = ["read_committed", "filter"]
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING
_PATIENCE = 60.0


class World:
    """A broker, a registry, and something that happens before a request."""

    def __init__(self, visibility: str) -> None:
        self.memory = Memory()
        self.broker = Broker(self._fate, lambda: None)
        self._visibility = visibility
        self._before: tuple[str, Callable[[], None]] | None = None

    def before(self, request: str, do: Callable[[], None]) -> None:
        """Have something happen before the next request of a name: its sender is paused."""
        self._before = request, do

    def _fate(self, name: str) -> Fate:
        if self._before is not None and self._before[0] == name:
            (_, do), self._before = self._before, None
            do()
        return "done"

    def producer(
        self, mode: AccessMode, store: MemoryStore | None = None, **more: object
    ) -> ExclusiveProducer:
        """A producer of the log; it never expires."""
        arguments = {"lease": 0, "timeout": 5, "visibility": self._visibility} | more
        return ExclusiveProducer(
            OPTIONS, "t", mode=mode, store=store or MemoryStore(self.memory),
            engine=FakeEngine(self.broker), **arguments,
        )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("request_", ["metadata", "ends", "read"])
def test_a_shared_producer_that_slept_writes_in_nobodys_turn(
    visibility: str, request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its grant, but not yet the log, while another one takes both."""
    world, outcomes = World(visibility), Outcomes()
    shared, alone = world.producer(AccessMode.SHARED), world.producer(FENCING)
    world.producer(AccessMode.EXCLUSIVE).acquire().close()  # so that the log is not empty
    take_turn = shared._take_turn

    def paused(timeout: float | None) -> object:
        grant = take_turn(timeout)
        world.before(request_, lambda: alone.acquire() and None)
        return grant

    monkeypatch.setattr(shared, "_take_turn", paused)
    with pytest.raises((ProducerFenced, ProducerBusy)):
        shared.acquire().append([b"theirs"], batch_id="late")
    outcomes.refused.add("late")
    done = alone.append([b"mine"], batch_id="mine")
    outcomes.acked["mine"] = (done.first_offset, done.first_seq, done.count)
    assert not problems(world.broker.visible(), outcomes)


def test_a_shared_writer_that_is_paused_in_a_transaction_keeps_nobody_out() -> None:
    """Its open transaction ends when another one takes the log, and it is fenced when it wakes."""
    world, outcomes = World("read_committed"), Outcomes()
    shared, alone = world.producer(AccessMode.SHARED), world.producer(FENCING)
    shared.acquire()
    world.before("commit", lambda: alone.acquire() and None)
    with pytest.raises(ProducerFenced):
        shared.append([b"theirs"], batch_id="late")
    outcomes.refused.add("late")
    done = alone.append([b"mine"], batch_id="mine")
    outcomes.acked["mine"] = (done.first_offset, done.first_seq, done.count)
    assert not problems(world.broker.visible(), outcomes)


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_an_owner_that_wakes_writes_before_the_next_one_opens_the_log_or_never(
    visibility: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry has given the log away: what still arrives is before all of the next owner's."""
    world, outcomes = World(visibility), Outcomes()
    former = world.producer(AccessMode.EXCLUSIVE).acquire()
    following = world.producer(FENCING)
    take_turn = following._take_turn

    def granted(timeout: float | None) -> object:
        grant = take_turn(timeout)
        early = former.append([b"early"], batch_id="early")
        outcomes.acked["early"] = (early.first_offset, early.first_seq, early.count)
        return grant

    monkeypatch.setattr(following, "_take_turn", granted)
    following.acquire()
    begin = following.confirm()
    assert begin > outcomes.acked["early"][0], "the next owner reads it as it begins"
    with pytest.raises(ProducerFenced):
        former.append([b"late"], batch_id="late")
    outcomes.refused.add("late")
    done = following.append([b"mine"], batch_id="mine")
    outcomes.acked["mine"] = (done.first_offset, done.first_seq, done.count)
    assert done.first_offset >= begin
    assert not problems(world.broker.visible(), outcomes)


def test_an_append_does_not_wait_for_a_sign_of_life() -> None:
    """The registry takes long for a heartbeat; meanwhile the owner appends."""
    world = World("read_committed")
    beating, done = threading.Event(), threading.Event()

    def slow() -> None:
        if threading.current_thread().name == "coopconsume-owner":
            beating.set()
            done.wait(_PATIENCE)

    producer = world.producer(
        AccessMode.EXCLUSIVE, MemoryStore(world.memory, slow), lease=0.05, timeout=_PATIENCE
    ).acquire()
    assert beating.wait(_PATIENCE)
    appending = threading.Thread(target=producer.append, args=([b"a"],))
    appending.start()
    appending.join(_PATIENCE / 2)
    waited = appending.is_alive()
    done.set()
    appending.join(_PATIENCE)
    assert not waited
    producer.close()


def test_a_closed_producer_still_has_its_session_and_epoch() -> None:
    """A later process goes on with them."""
    world = World("read_committed")
    with world.producer(AccessMode.EXCLUSIVE) as producer:
        before = producer.session, producer.epoch
    assert before == (producer.session, producer.epoch)
    assert before[1] > 0
    with FencedWriter(OPTIONS, "t", engine=FakeEngine(world.broker)) as writer:  # type: ignore[arg-type]
        before = writer.session, writer.epoch
        writer.release()
        assert (writer.session, writer.epoch) == before
        writer.acquire()
        assert writer.session != before[0]
        assert writer.epoch == before[1] + 1
        before = writer.session, writer.epoch
    assert (writer.session, writer.epoch) == before


def test_a_claim_that_finds_a_dead_owner_removes_it_in_the_same_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the clock of the one that waits; what it writes has one revision."""
    now = [0.0]
    monkeypatch.setattr("coopconsume.fenced.ownership.registry.monotonic", lambda: now[0])
    memory = Memory()
    anna, ben = (OwnershipRegistry(MemoryStore(memory), owner=name) for name in ("anna", "ben"))
    anna._closed.set()  # as if its process had ended: it gives no sign of life
    anna.acquire("g", "log", AccessMode.EXCLUSIVE)
    assert ben.acquire("g", "log", AccessMode.WAIT_FOR_EXCLUSIVE) == Queued(1, 0)
    now[0] = 9.0
    assert ben.poll("g", "log") == Queued(1, 0)
    now[0] = 10.0
    assert ben.poll("g", "log") == Grant("log", 1, 2)
    assert ben.show("g", "log").revision == 3
    ben.close()

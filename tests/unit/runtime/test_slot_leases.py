"""Whose leases are renewed, and when."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.options import Options
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from coopconsume.worker.channel.server import ChannelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 60.0
_MOST_TURNS = 20


class _FakeAssignment:
    """A look at its commit log takes until it is answered."""

    def __init__(self) -> None:
        self.looks, self.answered = threading.Event(), threading.Event()
        self.proof = self

    def check(self, _within: float) -> float:
        """Return when the epoch was in force."""
        self.looks.set()
        assert self.answered.wait(_PATIENCE)
        return 0.0


Renewed = queue.SimpleQueue[tuple[float, set[tuple[int, int]]]]


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> Renewed:
    """The slots of each renewal, and when it was."""
    found: Renewed = queue.SimpleQueue()

    def renew(_: ChannelServer, slots: set[tuple[int, int]], _since: float) -> None:
        found.put((time.monotonic(), set(slots)))

    monkeypatch.setattr(ChannelServer, "renew", renew)
    return found


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch, renewed: Renewed) -> Iterator[SlotLeases]:
    """Leases of slots on this host."""
    address = "coopconsume.runtime.dispatch.slot_leases.driver_address"
    monkeypatch.setattr(address, lambda _: ("127.0.0.1", "127.0.0.1"))
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
            "commitTable": "commits",
        }
    )  # fmt: skip
    spark: Any = None
    made = SlotLeases(spark, options, "run", lambda _: None, lambda *_: None)
    yield made
    made.close()


def test_a_lease_ends_before_the_next_owner_assumes_it(
    leases: SlotLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of a handler that exceeds its time has a moment to end."""
    begins: queue.SimpleQueue[float] = queue.SimpleQueue()
    monkeypatch.setattr(ChannelServer, "renew", lambda _, _slots, since: begins.put(since))
    assignment: Any = _FakeAssignment()
    assignment.answered.set()
    leases.renew(assignment, {(0, 0): 0.0})
    begin = begins.get(timeout=_PATIENCE)
    assert leases.lease is not None
    assert assignment.check(0.0) - leases.lease / 4 < begin < assignment.check(0.0)


def test_a_batch_that_ends_during_a_look_at_the_log_gets_no_lease(
    leases: SlotLeases, renewed: Renewed
) -> None:
    """A task of it that connects later would start records that another batch has by then."""
    assignment: Any = _FakeAssignment()
    try:
        leases.renew(assignment, {(0, 0): 0.0, (1, 0): 0.0})
        assert assignment.looks.wait(_PATIENCE)
        leases.ended(0)
        assignment.answered.set()
        assert renewed.get(timeout=_PATIENCE)[1] == {(1, 0)}
    finally:
        assignment.answered.set()


def test_slots_get_their_first_leases_without_a_turn_of_the_loop(
    leases: SlotLeases, renewed: Renewed
) -> None:
    """The loop may wait for Kafka then. Other slots of the job have theirs."""
    assignment: Any = _FakeAssignment()
    assignment.answered.set()
    begins_at = time.monotonic() + 0.7
    leases.renew(assignment, {(0, 0): 0.0, (1, 0): begins_at})
    turns = [renewed.get(timeout=_PATIENCE)]
    assert turns[0][1] == {(0, 0)}
    while turns[-1][1] == {(0, 0)} and len(turns) < _MOST_TURNS:
        turns.append(renewed.get(timeout=_PATIENCE))
    at, slots = turns[-1]
    assert slots == {(0, 0), (1, 0)}
    assert at >= begins_at


def test_the_driver_withdraws_its_lock_before_a_batch_has_no_channel(
    leases: SlotLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks start handlers without a word to the driver, so nobody knows which run."""
    withdrawn: list[bool] = []

    class _Lock:
        def withdraw(self) -> None:
            withdrawn.append(bool(leases.spec))

    lock: Any = _Lock()
    monkeypatch.setattr(leases, "_driver_lock", lock)
    leases.slot_ended("no channel")
    assert leases.spec is None
    assert withdrawn == [True]

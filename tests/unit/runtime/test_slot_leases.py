"""Whose leases are renewed."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from coopconsume.options import Options
from coopconsume.runtime.slot_leases import SlotLeases
from coopconsume.worker.channel.server import ChannelServer

if TYPE_CHECKING:
    import pytest

_PATIENCE = 60.0


class _FakeAssignment:
    """A look at its commit log takes until it is answered."""

    def __init__(self) -> None:
        self.looks, self.answered = threading.Event(), threading.Event()

    def check(self, _within: float) -> float:
        """Return when the epoch was in force."""
        self.looks.set()
        assert self.answered.wait(_PATIENCE)
        return 0.0


def test_a_batch_that_ends_during_a_look_at_the_log_gets_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task of it that connects later would start records that another batch has by then."""
    renewed: queue.SimpleQueue[set[tuple[int, int]]] = queue.SimpleQueue()
    monkeypatch.setattr(ChannelServer, "renew", lambda _, slots, _since: renewed.put(set(slots)))
    address = "coopconsume.runtime.slot_leases.driver_address"
    monkeypatch.setattr(address, lambda _: ("127.0.0.1", "127.0.0.1"))
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
            "commitTable": "commits",
        }
    )  # fmt: skip
    spark: Any = None
    assignment: Any = _FakeAssignment()
    leases = SlotLeases(spark, options, "run", lambda _: None, lambda *_: None)
    try:
        leases.keep(assignment, {(0, 0), (1, 0)})
        assert assignment.looks.wait(_PATIENCE)
        leases.ended(0)
        assignment.answered.set()
        assert renewed.get(timeout=_PATIENCE) == {(1, 0)}
    finally:
        assignment.answered.set()
        leases.close()

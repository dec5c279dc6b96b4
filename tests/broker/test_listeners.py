"""Rebalance listeners that leave the group, on a real broker."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.errors import AlreadyClosed
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.broker.group_ground import PATIENCE
from tests.broker.member_process import Teller

if TYPE_CHECKING:
    from tests.broker.group_ground import Ground

pytestmark = pytest.mark.broker


class Leaver:
    """Leaves the group in one of its calls, and fails in all of them."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.membership: Membership | None = None
        self.has_left = threading.Event()

    def _call(self, what: str) -> None:
        if what == self.when:
            assert self.membership is not None
            self.membership.leave()
            self.has_left.set()
        raise RuntimeError("listeners may fail")

    def on_assigned(self, _ranges: Any) -> None:
        """Leave, or fail."""
        self._call("on_assigned")

    def on_revoked(self, _ranges: Any) -> None:
        """Leave, or fail."""
        self._call("on_revoked")

    def on_lost(self, _ranges: Any) -> None:
        """Leave, or fail."""
        self._call("on_lost")


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked", "on_lost"])
def test_a_listener_may_leave_the_group_in_any_call(ground: Ground, when: str) -> None:
    """It has left when `leave` returns, its shares are free, and leaving again is harmless."""
    listener = Leaver(when)
    membership = listener.membership = Membership(Options.parse(ground.options), 1, Teller())
    with suppress(AlreadyClosed):  # Where it leaves before anybody has seen what it got.
        membership.subscribe([ground.topic], None, listener)
    if when == "on_revoked":
        membership.rebalance("a test asks for it")
    elif when == "on_lost":
        current = ground.store.current_epoch(ground.group)
        ground.store.open_epoch(ground.group, {}, previous=current)
        membership.fenced("a test asks for it")
    assert listener.has_left.wait(PATIENCE), "it waits for itself"
    membership.leave()
    assert membership.wait_for_holding() is None
    other = ground.start()
    ground.settled(other)
    # Shares that the log had refused before were not handed over: they are in doubt.
    assert when == "on_lost" or other.events[-1]["wait"] == 0


def test_a_consumer_that_is_closed_while_it_joins_does_not_stay(ground: Ground) -> None:
    """`subscribe` ends with an error, and the group has no member that nobody knows."""
    membership = Membership(Options.parse(ground.options), 1, Teller())
    leaving = threading.Thread(target=membership.leave)
    joins = membership.store.current_epoch

    def leave_first(*args: Any) -> Any:
        if leaving.ident is None:
            leaving.start()
        return joins(*args)

    membership.store.current_epoch = leave_first  # type: ignore[method-assign]
    with pytest.raises(AlreadyClosed):
        membership.subscribe([ground.topic], None)
    leaving.join(PATIENCE)
    assert not leaving.is_alive()
    other = ground.start()
    ground.settled(other)
    assert other.events[-1]["wait"] == 0

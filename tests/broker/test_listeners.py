"""Members that leave, or lose a topic, while their group rebalances; on a real broker."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import KafkaAdminClient

from coopconsume.errors import AlreadyClosed, DataLoss, TopicNotFound
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.broker.group_harness import PATIENCE
from tests.broker.member_process import ReportingWorker
from tests.broker.test_coordinator_moves import wait_until

if TYPE_CHECKING:
    from tests.broker.group_harness import GroupHarness
    from tests.conftest import Produce, TopicFactory

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
def test_a_listener_may_leave_the_group_in_any_call(harness: GroupHarness, when: str) -> None:
    """It has left when `leave` returns, its shares are free, and leaving again is harmless."""
    listener = Leaver(when)
    membership = listener.membership = Membership(
        Options.parse(harness.options), 1, ReportingWorker()
    )
    with suppress(AlreadyClosed):  # Where it leaves before anybody has seen what it got.
        membership.subscribe([harness.topic], None, listener)
    if when == "on_revoked":
        membership.rebalance("a test asks for it")
    elif when == "on_lost":
        current = harness.store.current_epoch(harness.group)
        harness.store.open_epoch(harness.group, {}, previous=current)
        membership.fenced("a test asks for it")
    assert listener.has_left.wait(PATIENCE), "it waits for itself"
    membership.leave()
    assert membership.wait_for_assignment() is None
    other = harness.start()
    harness.settled(other)
    # Shares that the log had refused before were not handed over: they are in doubt.
    assert when == "on_lost" or other.events[-1]["wait"] == 0


def test_a_consumer_that_is_closed_while_it_joins_does_not_stay(harness: GroupHarness) -> None:
    """`subscribe` ends with an error, and the group has no member that nobody knows."""
    membership = Membership(Options.parse(harness.options), 1, ReportingWorker())
    leaving = threading.Thread(target=membership.leave)
    joins = membership.store.assignment

    def leave_first(*args: Any) -> Any:
        if leaving.ident is None:
            leaving.start()
        return joins(*args)

    membership.store.assignment = leave_first  # type: ignore[method-assign]
    with pytest.raises(AlreadyClosed):
        membership.subscribe([harness.topic], None)
    leaving.join(PATIENCE)
    assert not leaving.is_alive()
    other = harness.start()
    harness.settled(other)
    assert other.events[-1]["wait"] == 0


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_deleted_before_a_rebalance_is_a_loss(
    harness: GroupHarness, topic: TopicFactory, produce: Produce, fail: str
) -> None:
    """The new epoch does not have it, and nobody has looked at it since."""
    gone = topic(1)
    produce(gone, [(b"k", b"not done")] * 3)
    options = {
        **harness.options, "subscribe": f"{harness.topic},{gone}", "onMissingTopic": "wait",
        "failOnDataLoss": fail, "kafka.metadata.max.age.ms": 300,
    }  # fmt: skip
    membership = Membership(Options.parse(options), 1, ReportingWorker())
    membership.subscribe([harness.topic, gone], None)
    first = membership.assignment
    assert first is not None
    assert (gone, 0) in first.owned
    admin = KafkaAdminClient(bootstrap_servers=harness.kafka.bootstrap_servers)
    admin.delete_topics([gone])
    admin.close()

    def has_moved_on() -> bool:
        """The member itself notices that a topic is gone, and joins again."""
        found = membership.wait_for_assignment(0.05)
        return found not in (None, first)

    if fail == "true":
        with pytest.raises(DataLoss) as caught:
            wait_until(has_moved_on)
        assert (caught.value.topic, caught.value.first, caught.value.last) == (gone, 0, 2)
    else:
        wait_until(has_moved_on)
        assert set(membership.owned) == {(harness.topic, 0)}
    membership.leave()


def test_assigned_topics_must_exist_and_the_deletion_of_one_leaves_the_others(
    harness: GroupHarness, topic: TopicFactory
) -> None:
    """`onMissingTopic=wait` outlives a deletion; what is assigned stays the same."""
    gone = topic(1)
    options = {k: v for k, v in harness.options.items() if k != "subscribe"}
    options["onMissingTopic"] = "wait"
    membership = Membership(Options.parse(options), 1, ReportingWorker())
    parts = {(harness.topic, 0): [], (gone, 0): []}
    with pytest.raises(TopicNotFound):
        membership.assign({**parts, (f"{gone}-later", 0): []}, takeover=False)
    membership.assign(parts, takeover=False)
    held = membership.assignment
    assert held is not None
    admin = KafkaAdminClient(bootstrap_servers=harness.kafka.bootstrap_servers)
    admin.delete_topics([gone])
    admin.close()
    wait_until(lambda: held.logs.check_topics() == [gone])
    membership.rebalance(f"deleted: {gone}")
    assert membership.assignment is held
    assert held.logs.present == [(harness.topic, 0)]
    assert held.owned[gone, 0].is_deleted
    membership.leave()

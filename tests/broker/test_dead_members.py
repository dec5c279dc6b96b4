"""A member that is killed and starts again on its host: nobody waits for the dead one.

The session of Kafka and the life of handlers are far longer than a test has time.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.worker.host_locks import WorkerLock, WorkersFile, this_host
from tests.broker.group_harness import PATIENCE, GroupHarness, Process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not this_host(), reason="the system does not name its boot"),
]
#: Nothing of it passes within a test.
LONG = {"kafka.session.timeout.ms": 1_000_000, "handlerTimeout": 3_000, "leaseGrace": 3_000}
STATIC = {"kafka.group.instance.id": "one"}


@pytest.fixture
def harness(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> Iterator[GroupHarness]:
    """A topic of two partitions with records; at the end its members are gone."""
    made = GroupHarness(kafka, topic(2), tmp_path)
    for partition in (0, 1):
        produce(made.topic, [(b"%d" % i, b"") for i in range(10)], partition)
    yield made
    for process in made.processes:
        process.end()


def workers_of(harness: GroupHarness, host: str) -> WorkersFile:
    """What the tasks of the only member on a host lock."""
    (path,) = (harness.folder / host).glob("*/*.workers")
    return WorkersFile(str(path), this_host(), path.read_text())


def begins_at_once(process: Process) -> dict[str, Any]:
    """Its assignment, for which it waits neither for a session nor for handlers."""
    begin = process.wait_for("begin")
    assert begin["wait"] == 0
    return begin


@pytest.mark.parametrize(
    ("before", "after"), [({}, {}), (STATIC, STATIC), (STATIC, {}), ({}, STATIC)],
    ids=["dynamic", "static", "static-to-dynamic", "dynamic-to-static"],
)  # fmt: skip
def test_the_next_member_on_its_host_waits_for_nothing(
    harness: GroupHarness, before: dict[str, str], after: dict[str, str]
) -> None:
    """It has all that the dead one had, and what it commits counts. So has the one after it."""
    for number, given in enumerate([before, after, after]):
        member = harness.start(host="here", lease=2.0, **LONG, **given)
        assert len(begins_at_once(member)["shares"]) == 2
        assert member.ask(f"commit {number}", "committed", "refused")["event"] == "committed"
        member.kill()
    assert not [one for one in harness.processes if one.count("fail")]


def test_handlers_that_a_dead_driver_has_left_running_are_waited_for(
    harness: GroupHarness,
) -> None:
    """The next member joins once they have ended; the test is the worker here."""
    first = harness.start(host="here", lease=2.0, **LONG)
    begins_at_once(first)
    lock = WorkerLock(workers_of(harness, "here"))
    assert lock.is_held
    first.kill()
    second = harness.start(host="here", lease=2.0, waits=True, **LONG)
    second.wait_for("ready")
    second.say("join")
    row = harness.store.assignment(harness.group)
    # It has looked, and waits: it has its own lock by then, and Kafka has not heard of it.
    until = time.monotonic() + PATIENCE
    while len(list((harness.folder / "here").glob("*/*.driver"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert harness.store.assignment(harness.group) == row
    lock.release()
    begins_at_once(second)


@pytest.mark.parametrize("given", [{}, STATIC], ids=["dynamic", "static"])
def test_a_member_elsewhere_waits_as_ever(harness: GroupHarness, given: dict[str, str]) -> None:
    """It knows nothing of the dead one, nor does one on the same host if that was withdrawn."""
    first = harness.start(host="here", lease=2.0, **LONG, **given)
    begins_at_once(first)
    first.kill()
    harness.forget_members()
    assert harness.start(host="there", lease=2.0, **LONG, **given).wait_for("begin")["wait"] > 0


def test_of_two_members_on_one_host_the_other_goes_on(harness: GroupHarness) -> None:
    """Only what the dead one had is given to the next one, without a wait."""
    first = harness.start(host="here", lease=2.0, **LONG)
    begins_at_once(first)
    other = harness.start(host="here", lease=2.0, **LONG)
    harness.settled(first, other)
    first.kill()
    third = harness.start(host="here", lease=2.0, **LONG)
    harness.settled(other, third)
    row = harness.store.assignment(harness.group)
    assert row is not None
    begun = {begin["epoch"] for begin in other.events if begin["event"] == "begin"}
    # An epoch that was over before a member began with it is waited for, as ever.
    if begun == set(range(min(begun), row.epoch.number + 1)):
        waits = [begin["wait"] for m in (other, third) for begin in m.events if "wait" in begin]
        assert not any(waits)
        assert row.doubts == ()


def test_a_member_that_has_left_leaves_nothing_behind(harness: GroupHarness) -> None:
    """No files either."""
    member = harness.start(host="here", lease=2.0, **LONG)
    begins_at_once(member)
    assert json.loads(
        next((harness.folder / "here").glob("*/*.driver")).read_text().splitlines()[0]
    )["pid"] == member.popen.pid  # fmt: skip
    member.leave()
    assert list((harness.folder / "here").glob("*/*")) == []

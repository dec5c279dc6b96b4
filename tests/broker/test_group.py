"""A group of real processes on a real broker: who holds what, and who is fenced."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from assignors import KeyRange, coverage, wire
from commits import ACCEPT_RANGE_FETCH
from commits.model import share_to_plain
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.broker.group_harness import HANDLER_TIMEOUT, LIFE, MORTAL, PATIENCE, SESSION
from tests.broker.member_process import ReportingWorker
from tests.broker.test_coordinator_moves import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.group_harness import GroupHarness

pytestmark = pytest.mark.broker


def test_members_share_one_partition_and_hand_it_over(harness: GroupHarness) -> None:
    """Each join and leave deals the key hashes again; what was handed over needs no waiting."""
    a = harness.start(slots=2)
    assert harness.settled(a) == 1
    b = harness.start()
    second = harness.settled(a, b)
    c = harness.start()
    third = harness.settled(a, b, c)
    assert (second, third) == (2, 3)
    sizes = {}
    for name, member in (("a", a), ("b", b), ("c", c)):
        begin = member.events[-1]
        assert begin["wait"] == 0
        sizes[name] = sum(last - first + 1 for *_, first, last in begin["shares"]) / 2**63
    assert sizes == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})
    a.say("commit 0")
    b.say("commit 1")
    a.wait_for("committed", offset=0)
    b.wait_for("committed", offset=1)
    before = time.monotonic()
    b.leave()
    assert harness.settled(a, c) == 4
    assert time.monotonic() - before < SESSION, "it was waited for until its session ended"
    assert a.events[-1]["wait"] == c.events[-1]["wait"] == 0
    commits = harness.store.state(harness.group)[harness.topic, 0]
    assert commits.stable_offset == 2


def test_a_member_goes_on_through_rebalances_that_move_nothing_of_it(harness: GroupHarness) -> None:
    """What moves is released first, and dealt by a second rebalance; nobody waits for it."""

    def shares_of(begin: dict[str, Any]) -> list[KeyRange]:
        return [KeyRange(first, last) for *_, first, last in begin["shares"]]

    def is_open(number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while (row := harness.store.assignment(harness.group)) is None or row.epoch.number < number:
            assert time.monotonic() < deadline, f"epoch {number} was never opened"
            time.sleep(0.05)

    a = harness.start(keeps=True)
    assert harness.settled(a) == 1
    b = harness.start(keeps=True)
    gained, given = b.wait_for("extend", epoch=3), a.wait_for("give_up")
    assert (gained["wait"], shares_of(gained)) == (0, shares_of(given))
    assert 0 < sum(one.size for one in shares_of(given)) < KeyRange().size
    # The second rebalance has stopped nothing: what it had under epoch 2 counts under epoch 3.
    a.say("epoch 3")
    a.wait_for("epoch")
    a.say("commit 0")
    a.wait_for("committed", offset=0, epoch=3)
    b.leave()
    back = a.wait_for("extend", epoch=4)
    assert (back["wait"], shares_of(back)) == (0, shares_of(given))
    # It takes whole partitions only, and no partition is left for it.
    c = harness.start(keeps=True, allowKeyShare=False)
    c.wait_for("begin", epoch=5, shares=[])
    c.leave()
    is_open(6)
    a.say("epoch 6")
    a.wait_for("epoch")
    a.say("commit 1")
    a.wait_for("committed", offset=1, epoch=6)
    assert (a.count("hand_over"), a.count("drop"), a.count("begin")) == (0, 0, 1)
    assert harness.store.state(harness.group)[harness.topic, 0].stable_offset == 2


def test_a_join_that_is_answered_between_two_polls_is_not_done_again(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With polls of a millisecond every answer comes too late for the poll that asked."""
    monkeypatch.setattr("coopconsume.group.member._POLL_MS", 1)
    worker = ReportingWorker()
    for expected in (1, 2):
        membership = Membership(Options.parse(harness.options), 1, worker)
        membership.subscribe([harness.topic], None)
        row = harness.store.assignment(harness.group)
        membership.leave()
        assert row is not None
        assert row.epoch.number == expected


def test_a_topic_that_is_not_open_is_not_split(harness: GroupHarness) -> None:
    """Then a member works on the whole partition and the other one waits for its turn."""
    harness.store.set_setting(ACCEPT_RANGE_FETCH, value=None, topic=harness.topic)
    a, b = harness.start(), harness.start()
    harness.settled(a, b)
    shares = a.events[-1]["shares"] + b.events[-1]["shares"]
    assert shares == [[harness.topic, 0, 0, 2**63 - 1]]
    owner, other = (a, b) if a.events[-1]["shares"] else (b, a)
    owner.leave()
    harness.settled(other)
    assert other.events[-1]["shares"] == shares


def test_partitions_that_are_added_are_shared_out(harness: GroupHarness) -> None:
    """The leader sees them at its next look at the topic; they start at their first record."""
    latest = {"kafka.metadata.max.age.ms": 1_000, "startingOffsets": "latest"}
    a = harness.start(**latest)
    first = harness.settled(a)
    b = harness.start(**latest)
    assert harness.settled(a, b) > first
    admin = KafkaAdminClient(bootstrap_servers=harness.kafka.bootstrap_servers)
    for member in (a, b):  # The partition has records before they see it.
        os.kill(member.popen.pid, signal.SIGSTOP)
    admin.create_partitions({harness.topic: 2})
    # The controller answers before the broker knows them.
    wait_until(lambda: len(admin.describe_topics([harness.topic])[0]["partitions"]) == 2)
    admin.close()
    producer = KafkaProducer(bootstrap_servers=harness.kafka.bootstrap_servers)
    for _ in range(7):
        producer.send(harness.topic, b"", partition=1).get(PATIENCE)
    producer.close()
    for member in (a, b):
        os.kill(member.popen.pid, signal.SIGCONT)
    partitions: set[int] = set()
    while partitions != {0, 1}:
        a.wait_for("begin")
        row = harness.store.assignment(harness.group)
        assert row is not None
        partitions = {share.partition for held in row.members.values() for share in held}
    # The other member may begin later.
    wait_until(lambda: (harness.topic, 1) in harness.store.state(harness.group))
    state = harness.store.state(harness.group)
    assert [state[harness.topic, p].stable_offset for p in (0, 1)] == [10, 0]


def test_a_member_that_does_not_share_gets_whole_partitions(harness: GroupHarness) -> None:
    """With one partition and one such member, Kafka's classic assignment results."""
    a = harness.start(allowKeyShare="false")
    harness.settled(a)
    b = harness.start()
    harness.settled(a, b)
    shares = a.events[-1]["shares"] + b.events[-1]["shares"]
    assert [tuple(share[1:]) for share in shares] == [(0, 0, 2**63 - 1)]


@pytest.mark.parametrize(("lease", "grace"), [(None, 8), (2.0, 8), (2.0, HANDLER_TIMEOUT)])
def test_after_a_kill_the_others_wait_for_its_work_to_be_over(
    harness: GroupHarness, lease: float | None, grace: float
) -> None:
    """Kafka notices after the session timeout; what the dead member had is in doubt.

    The others wait for the life of a batch, or where slots have leases for lease + leaseGrace: as
    the dead one has said, also if it is of a version whose slots have their handlerTimeout.
    """
    life = LIFE if lease is None else lease + grace
    a = harness.start(lease=2.0)
    harness.settled(a)
    b = harness.start(lease=lease, leaseGrace=grace, **MORTAL)
    harness.settled(a, b)
    dead = b.events[-1]["shares"]
    b.popen.kill()
    epoch = harness.settled(a)
    assert 0 < a.events[-1]["wait"] <= life
    row = harness.store.assignment(harness.group)
    assert row is not None
    assert row.epoch.number == epoch
    assert [list(share_to_plain(doubt.share)) for doubt in row.doubts] == dead
    assert {doubt.life_ms for doubt in row.doubts} == {int(1000 * life)}


def test_a_member_without_leases_informs_the_group_before_it_works(harness: GroupHarness) -> None:
    """Its work goes on for longer after its death: it starts nothing before the others know."""
    a = harness.start(lease=2.0)
    epoch = harness.settled(a)
    assert a.ask("lease 2", "lease")["may"]
    assert not a.ask("lease 0", "lease")["may"]
    assert harness.settled(a) > epoch
    row = harness.store.assignment(harness.group)
    assert row is not None
    assert row.life_ms == int(1000 * LIFE)
    assert a.ask("lease 0", "lease")["may"]
    assert a.ask("lease 2", "lease")["may"]  # Others wait for longer than they must.


def test_a_member_that_was_frozen_is_fenced_and_may_come_back(harness: GroupHarness) -> None:
    """Beyond its session others have its share; what it commits then is refused."""
    a, b = harness.start(), harness.start(**MORTAL)
    was = harness.settled(a, b)
    os.kill(b.popen.pid, signal.SIGSTOP)
    epoch = harness.settled(a)
    b.say(f"commit 5 {was}")
    os.kill(b.popen.pid, signal.SIGCONT)
    refused = b.wait_for("refused")
    assert refused["error"] == "FencedMember"
    assert refused["offset"] == 5
    assert harness.settled(a, b) > epoch
    b.say("commit 6")
    b.wait_for("committed", offset=6)
    commits = harness.store.state(harness.group)[harness.topic, 0]
    assert commits.ranges.pairs() == [(6, 6)]


def test_a_member_that_the_log_refuses_has_lost_its_shares_and_joins_again(
    harness: GroupHarness,
) -> None:
    """Its session with Kafka goes on; the log alone knows, and its listener is notified once."""
    a = harness.start()
    epoch = harness.settled(a)
    harness.store.open_epoch(harness.group, {}, previous=harness.store.current_epoch(harness.group))
    a.say("commit 5")
    assert a.wait_for("refused")["error"] == "FencedMember"
    assert a.wait_for("on_lost")["partitions"] == 1
    assert harness.settled(a) > epoch + 1
    a.say("commit 6")
    a.wait_for("committed", offset=6)
    a.say("leave")
    a.wait_for("left")
    assert [a.count(what) for what in ("on_assigned", "on_lost", "on_revoked")] == [2, 1, 0]


@pytest.mark.slow
def test_a_group_works_around_claims_until_their_processes_are_gone(harness: GroupHarness) -> None:
    """A part taken over costs the group that part; a second claim is refused while it lives."""
    low, high = KeyRange().split(2)
    a = harness.start()
    harness.settled(a)
    claim = harness.claim((0, low.first, low.last), takeover=True, **MORTAL)
    assert claim.wait_for("begin")["shares"] == [[harness.topic, 0, low.first, low.last]]
    a.say("commit 5")
    assert a.wait_for("refused")["error"] == "FencedMember"
    begin = a.wait_for("begin")
    assert begin["shares"] == [[harness.topic, 0, high.first, high.last]]
    b = harness.start()
    begins = {member: member.wait_for("begin") for member in (a, b)}
    while begins[a]["epoch"] != begins[b]["epoch"]:
        late = min(begins, key=lambda member: begins[member]["epoch"])
        begins[late] = late.wait_for("begin")
    shares = [share for begin in begins.values() for share in begin["shares"]]
    found = coverage([KeyRange(*share[2:]) for share in shares])
    assert (found.holes, found.overlaps) == ((low,), ())
    other = harness.claim((0, low.first, low.last), takeover=False, **MORTAL)
    assert other.wait_for("refused")["error"] == "ClaimConflict"
    claim.popen.kill()
    harness.settled(a, b)
    assert max(member.events[-1]["wait"] for member in (a, b)) > 0


def test_a_leader_that_slept_fences_nobody(harness: GroupHarness) -> None:
    """It wakes with an old decision: its epoch does not count, the live group goes on."""
    sleeper = harness.start(freezes_as_leader=True)
    sleeper.wait_for("freezing")
    harness.forget_members()
    a = harness.start()
    epoch = harness.settled(a)
    a.say("commit 0")
    a.wait_for("committed", epoch=epoch)
    sleeper.wake()
    assert harness.settled(a, sleeper) > epoch
    counted = [
        entry for entry in harness.store.history(harness.group)
        if entry["kind"] == "epoch" and entry["counted"]
    ]  # fmt: skip
    # On a slow machine the live group may have had several; the sleeper's is without its member.
    assert epoch in [entry["epoch"] for entry in counted]
    member = a.events[-1]["member"]
    assert all(member in entry["detail"]["members"] for entry in counted)
    assert a.count("on_lost") == 0


def test_a_static_member_comes_back_without_a_rebalance(harness: GroupHarness) -> None:
    """Its new process takes over in the log; the one it replaces is fenced, by Kafka too."""
    a = harness.start()
    b = harness.start(**{"kafka.group.instance.id": "b"})
    epoch = harness.settled(a, b)
    old, hand_overs = b.events[-1], a.count("hand_over")
    os.kill(b.popen.pid, signal.SIGSTOP)
    again = harness.start(**{"kafka.group.instance.id": "b"})
    new = again.wait_for("begin")
    assert (new["epoch"], new["shares"]) == (epoch, old["shares"])
    assert new["member"] != old["member"]
    assert 0 < new["wait"] <= LIFE
    again.say("commit 1")
    again.wait_for("committed", offset=1)
    b.say("commit 2")
    os.kill(b.popen.pid, signal.SIGCONT)
    refused, failed = b.wait_for_all("refused", "fail")
    assert refused["error"] == "FencedMember"
    assert failed["error"] == "FencedMember"
    assert "kafka.group.instance.id 'b'" in failed["text"]
    assert a.count("hand_over") == hand_overs
    assert harness.store.state(harness.group)[harness.topic, 0].ranges.pairs() == [(1, 1)]


def test_a_static_member_that_left_in_order_need_not_wait(harness: GroupHarness) -> None:
    """It gave back its shares in the log before; Kafka keeps its place for the new process."""
    a = harness.start(**{"kafka.group.instance.id": "a"})
    epoch = harness.settled(a)
    a.leave()
    again = harness.start(**{"kafka.group.instance.id": "a"})
    begin = again.wait_for("begin")
    assert (begin["epoch"], begin["wait"]) == (epoch, 0)
    again.say("commit 0")
    again.wait_for("committed")


def test_members_with_another_store_are_refused(harness: GroupHarness, tmp_path: Path) -> None:
    """The different member is refused and leaves; the others go on."""
    a, b = harness.start(), harness.start()
    harness.settled(a, b)
    odd = harness.start(commitTable=str(tmp_path / "elsewhere"))
    refused = odd.wait_for("refused")
    assert refused["error"] == "GroupRefused"
    assert "commit table" in refused["text"]
    assert "commitTable" in refused["text"]
    odd.popen.wait(PATIENCE)
    harness.settled(a, b)


def test_a_member_of_a_newer_version_is_refused_alone(harness: GroupHarness) -> None:
    """The others go on; where it leads, it takes the older members and answers as they read."""
    newer = wire.VERSION + 1
    a, b = harness.start(), harness.start()
    harness.settled(a, b)
    refused = harness.start(protocol=newer).wait_for("refused")
    assert refused["error"] == "GroupRefused"
    assert "same version of the library" in refused["text"]
    harness.settled(a, b)
    assert a.count("fail") == b.count("fail") == 0
    for old in (a, b):
        old.leave()
    leader = harness.start(protocol=newer)
    harness.settled(leader)
    harness.settled(leader, harness.start())


def test_a_static_follower_whose_topic_is_recreated_gets_the_new_one(harness: GroupHarness) -> None:
    """It joins again under its old id, and Kafka rebalances instead of repeating its answer."""
    a = harness.start()
    harness.settled(a)  # It leads.
    b = harness.start(**{"kafka.group.instance.id": "b"})
    epoch = harness.settled(a, b)
    harness.recreate_topic()
    b.say("topics")
    b.wait_for("topics", replaced=True)
    begin = b.wait_for("begin")
    assert begin["epoch"] > epoch, "Kafka handed it the old assignment"
    b.say("topics")
    b.wait_for("topics", replaced=False)
    assert a.wait_for("begin")["epoch"] == begin["epoch"]


def test_plain_consumers_are_recognised(harness: GroupHarness) -> None:
    """A group that plain consumers are in does not take us, in plain words."""
    plain = KafkaConsumer(
        bootstrap_servers=harness.kafka.bootstrap_servers, group_id=harness.group,
        metadata_max_age_ms=500,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    # It is assigned nothing if it joins before it knows the topic's partitions.
    while not plain.partitions_for_topic(harness.topic) and time.monotonic() < deadline:
        time.sleep(0.1)
    plain.subscribe([harness.topic])
    while not plain.assignment() and time.monotonic() < deadline:
        plain.poll(timeout_ms=100)
    assert plain.assignment()
    ours = harness.start()
    refused = ours.wait_for("refused")
    plain.close()
    assert refused["error"] == "GroupRefused"
    assert "stop them and start ours" in refused["text"]


def test_a_pattern_matches_whole_names_at_the_start_and_later(harness: GroupHarness) -> None:
    """Topics with a longer name stay out, whether they are there first or come later.

    A pattern that matches nothing yet is refused or waits, as ``onMissingTopic`` says.
    """
    name = harness.topic
    harness.kafka.create_topic(f"{name}-0-dlq")
    given = {"subscribe": None, "subscribePattern": f"{name}-0|(?:{name}-[1-9])"}
    refused = harness.start(**given)
    a = harness.start(onMissingTopic="wait", **given, **{"kafka.metadata.max.age.ms": 500})
    assert refused.wait_for("refused")["error"] == "TopicNotFound"
    assert a.wait_for("begin")["shares"] == []
    topics: set[str] = set()
    for number in range(2):
        harness.kafka.create_topic(f"{name}-{number}-dlq-2")
        harness.kafka.create_topic(f"{name}-{number}")
        while f"{name}-{number}" not in topics:
            topics = {share[0] for share in a.wait_for("begin")["shares"]}
            assert topics <= {f"{name}-0", f"{name}-1"}

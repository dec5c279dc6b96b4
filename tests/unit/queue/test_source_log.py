"""Which logs a queue works on: created again, cut, or noted by an earlier version."""

from __future__ import annotations

import random

import pytest

from commits import OffsetRanges
from coopconsume.kafka.cluster import LogEnd
from coopconsume.queue.incarnation import NOT_KNOWN, LogIncarnation
from coopconsume.queue.member import QueueMember
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.rows import Beginning, ReplicaRow, decode, encode
from coopconsume.queue.source_log import (
    SourceLog,
    TopicIds,
    epochs_to_compare,
    log_note,
    source_logs,
)
from coopconsume.queue.timing import MARGIN

HOLD = 10.0
FIRST, SECOND = LogIncarnation("first"), LogIncarnation("second")


def some(*pairs):
    """Offsets of partition 0."""
    return {0: OffsetRanges(pairs)}


class Replicas:
    """Logs that members append to and read at once, through the wire format; `deaf` ones do not."""

    def __init__(self, count):
        self.logs = [[] for _ in range(count)]
        self.members = []
        self.deaf = set()

    def member(self, name):
        member = QueueMember(name, len(self.logs), HOLD, random.Random(1))
        member.read = [0] * len(self.logs)
        self.members.append(member)
        self.run([])
        return member

    def run(self, rows, now=0.0):
        waiting = [*rows]
        while waiting or self._behind():
            if waiting:
                replica, row = waiting.pop(0)
                if replica not in self.deaf:
                    self.logs[replica].append(decode(encode(row), "a log"))
            for member, replica in self._behind():
                position = member.read[replica]
                member.read[replica] += 1
                row = self.logs[replica][position]
                waiting += member.take(replica, position, row, now)

    def _behind(self):
        return [
            (member, replica)
            for member in self.members
            for replica, log in enumerate(self.logs)
            if replica not in self.deaf and member.read[replica] < len(log)
        ]

    def begin(self, member, log, start=0, **more):
        readable = [r for r in range(len(self.logs)) if r not in self.deaf]
        self.run(member.begin({0: SourceLog(log, start, **more)}, readable))

    def acquire(self, member, limit, now=0.0, end=10):
        self.run(member.acquire(limit, {0: end}, now), now)
        while member.is_acquiring:
            now = member.next_due()
            self.run(member.tick(now), now)
        granted = member.granted()
        return granted.offsets if granted else {}

    def settle(self, member, kind, offsets, now=0.0):
        settled, rows = member.settle(kind, offsets, now)
        self.run(rows, now)
        return settled


def folded(*rows):
    """The state after rows."""
    state = ReplicaState()
    for position, row in enumerate(rows):
        state.fold(position, row)
    return state


def begun(log=FIRST, **more):
    """A row that begins partition 0 with the first three offsets done."""
    beginnings = {0: Beginning(**more)} if more else {}
    return ReplicaRow(
        "begin", "a", offsets=some((0, 2)), topic_id=log.topic_id,
        cuts={0: log.cut} if log.cut else {}, beginnings=beginnings,
    )  # fmt: skip


def test_nothing_noted_of_a_former_topic_counts_for_the_new_one():
    """Neither what was done, nor holds and deliveries."""
    replicas = Replicas(1)
    one = replicas.member("one")
    replicas.begin(one, FIRST)
    granted = replicas.acquire(one, 4)
    assert replicas.settle(one, "accept", some((0, 1))).done == some((0, 1))
    replicas.settle(one, "release", some((2, 2)))
    replicas.begin(one, SECOND)
    assert one.replicas.done(0) == (0, OffsetRanges())
    assert one.replicas.deliveries(0, 2) == 0
    assert one.replicas.states[0].past(0) == ("first",)
    assert replicas.acquire(one, 4) == granted


@pytest.mark.parametrize("kind", ["accept", "reject", "tombstone", "renew", "acquire", "release"])
def test_a_row_about_a_former_topic_changes_nothing_of_the_new_one(kind):
    """It was written by a consumer that has not noticed yet."""
    after = begun(SECOND, before=FIRST)
    held = ReplicaRow("acquire", "a", 1, some((5, 6)), HOLD, topic_id="second")
    state = folded(begun(), after, held)
    before = state.snapshot()
    late = ReplicaRow(kind, "a", 1, some((5, 8)), HOLD, delivered=True, topic_id="first")
    answer = state.fold(3, late)
    assert state.snapshot() == before
    assert kind == "release" or answer.nok == some((5, 8))


def test_a_late_look_does_not_bring_a_former_topic_back():
    """A row replaces the log that it names, and no other one."""
    state = folded(begun(), begun(SECOND, before=FIRST), begun(FIRST), begun(FIRST, before=FIRST))
    assert state.log(0) == SECOND
    ids = TopicIds()
    assert not ids.is_current("first", [state], 100.0)
    assert not ids.is_current("first", [state], 159.0)
    assert ids.is_current("second", [state], 160.0)
    assert not ids.is_current("first", [state], 170.0)
    assert ids.is_current("first", [state], 230.0), "no other one was seen for a minute"
    assert not ids.is_current("third", [state], 240.0)
    assert ids.is_current("third", [state], 241.0)
    assert TopicIds().is_current("first", [ReplicaState(), folded(begun(NOT_KNOWN))], 0.0)


def test_a_log_of_an_earlier_version_goes_on():
    """It takes the identity of the first look, and rows of earlier versions count until then."""
    replicas = Replicas(3)
    old = replicas.member("old")
    replicas.begin(old, NOT_KNOWN)
    held = replicas.acquire(old, 2)
    replicas.settle(old, "accept", held)
    kept = replicas.acquire(old, 2)
    new = replicas.member("new")
    replicas.begin(new, FIRST)
    assert new.replicas.done(0) == (2, OffsetRanges())
    assert [state.log(0) for state in new.replicas.states] == 3 * [FIRST]
    assert replicas.acquire(new, 2) == some((4, 5))
    assert replicas.settle(old, "accept", kept).done == kept
    replicas.begin(new, SECOND)
    assert replicas.settle(old, "accept", some((6, 7))).refused == some((6, 7))
    assert new.replicas.done(0) == (0, OffsetRanges())


def test_an_earlier_version_of_a_replica_that_was_away_takes_no_new_topic_for_the_old_one():
    """It learns from the others what is done, as after the loss of its log."""
    replicas = Replicas(3)
    old = replicas.member("old")
    replicas.begin(old, NOT_KNOWN)
    replicas.settle(old, "accept", replicas.acquire(old, 3))
    replicas.deaf = {2}
    new = replicas.member("new")
    replicas.begin(new, FIRST)
    replicas.begin(new, SECOND)
    replicas.settle(new, "accept", replicas.acquire(new, 1))
    replicas.deaf = set()
    replicas.run([])
    replicas.begin(new, SECOND)
    assert new.replicas.states[2].log(0) == SECOND
    assert new.replicas.states[2].done(0).stable_offset == 1


def test_what_is_done_behind_a_snapshot_of_an_earlier_version_stays_done():
    """Its snapshot has no identities; the rows of later versions behind it have theirs."""
    state = ReplicaState()
    state.fold(0, ReplicaRow("begin", "one", offsets={0: OffsetRanges()}, topic_id="first"))
    written = state.snapshot()
    for partition in written["partitions"].values():
        for name in ("log", "epoch", "past"):
            del partition[name]
    later = ReplicaState.restore(written)
    later.fold(1, ReplicaRow("acquire", "one", 1, some((0, 3)), 30.0, topic_id="first"))
    later.fold(2, ReplicaRow("accept", "one", 2, some((0, 1)), topic_id="first"))
    later.fold(3, ReplicaRow("accept", "one", 3, some((2, 2)), topic_id="second"))
    assert later.log(0) == FIRST
    assert later.done(0).stable_offset == 2


def test_a_replica_that_was_away_learns_the_log_from_a_majority():
    """Until then it grants nothing, and another replica is asked first."""
    replicas = Replicas(3)
    one = replicas.member("one")
    replicas.begin(one, FIRST)
    replicas.settle(one, "accept", replicas.acquire(one, 3))
    replicas.deaf = {0}
    replicas.begin(one, SECOND)
    assert replicas.acquire(one, 2) == some((0, 1))
    replicas.settle(one, "accept", some((0, 1)))
    replicas.deaf = set()
    replicas.run([])
    assert one.replicas.states[0].log(0) == FIRST
    assert one.begin({0: SourceLog(SECOND)}, [0, 1]) == []
    replicas.begin(one, SECOND)
    assert one.replicas.states[0].done(0).stable_offset == 2


@pytest.mark.parametrize("count", [1, 3])
def test_what_concerns_a_former_topic_ends_in_its_consumer(count):
    """An acquisition, its result, its holds, and acknowledgements without an answer."""
    replicas = Replicas(count)
    one = replicas.member("one")
    replicas.begin(one, FIRST)
    granted = replicas.acquire(one, 2)
    replicas.deaf = {*range(count)}
    settled = replicas.settle(one, "accept", granted)
    asked = one.acquire(2, {0: 10}, 0.0)
    assert one.follow({0: SourceLog(SECOND)}) == {0}
    assert (settled.is_complete, settled.refused) == (True, granted)
    replicas.deaf = set()
    replicas.run(asked)
    replicas.run(one.tick(HOLD), HOLD)
    assert not one.is_acquiring
    assert not any(result.offsets for result in iter(one.granted, None))
    replicas.run(one.tick(2 * HOLD * (1 + MARGIN)), 2 * HOLD)
    replicas.begin(one, SECOND)
    assert replicas.acquire(one, 2, 3 * HOLD) == some((0, 1))


def test_an_answer_about_a_former_topic_marks_nothing_of_the_new_one():
    """A tombstone is copied for the log that it was written for."""
    replicas = Replicas(3)
    one = replicas.member("one")
    replicas.begin(one, FIRST)
    done = ReplicaRow("tombstone", "x", offsets=some((0, 1)), topic_id="first")
    replicas.deaf = {0, 2}
    replicas.run([(1, done)])
    replicas.deaf = {1, 2}
    replicas.run(one.acquire(2, {0: 10}, 0.0))
    one.follow({0: SourceLog(SECOND)})
    replicas.deaf = set()
    replicas.run([(1, ReplicaRow("acquire", "one", 1, some((0, 1)), HOLD, topic_id="first"))])
    assert not any(row.topic_id == "second" for log in replicas.logs for row in log)


def test_a_cut_log_keeps_what_is_below_the_cut():
    """Done above it, holds and deliveries there are those of records that are gone."""
    cut = LogIncarnation("first", 7)
    rows = (
        begun(),
        ReplicaRow("acquire", "b", 1, some((3, 4)), HOLD, topic_id="first"),
        ReplicaRow("acquire", "a", 1, some((5, 9)), HOLD, topic_id="first"),
        ReplicaRow("accept", "a", 2, some((5, 6), (9, 9)), topic_id="first"),
        ReplicaRow("release", "a", 3, some((7, 8)), delivered=True, topic_id="first"),
    )
    state = folded(*rows)
    assert state.end(0) == 10
    state.fold(9, begun(cut, before=FIRST, keep_below=6, epoch=7))
    assert (state.log(0), state.epoch(0), state.end(0)) == (cut, 7, 6)
    assert state.done(0).stable_offset == 3
    assert state.done(0).ranges == OffsetRanges([(5, 5)])
    assert state.held(0) == OffsetRanges([(3, 4)])
    assert state.deliveries(0) == {}
    assert ReplicaState.restore(state.snapshot()).snapshot() == state.snapshot()
    state.fold(10, begun(LogIncarnation("first", 8), before=cut, keep_below=1))
    assert (state.done(0).stable_offset, state.held(0)) == (1, OffsetRanges())


def test_a_cut_is_found_by_the_end_of_the_noted_leader_epoch():
    """Also if the log is longer again; another leader alone is no cut."""
    seen = begun(epoch=3)
    state = folded(seen, ReplicaRow("accept", "a", 2, some((5, 6)), topic_id="first"))
    ends = {0: LogEnd(90, 3)}
    assert epochs_to_compare([state], "first", ends) == {}
    ends = {0: LogEnd(90, 5)}
    assert epochs_to_compare([state], "first", ends) == {0: 3}
    assert epochs_to_compare([state], "second", ends) == {}
    (same,) = source_logs([state], "first", ends, {0: 7}, {}).values()
    assert same == SourceLog(FIRST, 0, 5)
    (found,) = source_logs([state], "first", ends, {0: 6}, {}).values()
    assert found == SourceLog(LogIncarnation("first", 5), 0, 5, 6)


def test_another_leader_is_noted_once():
    """So that the end of its epoch can be compared later."""
    replicas = Replicas(3)
    one = replicas.member("one")
    replicas.begin(one, FIRST, epoch=1)
    replicas.begin(one, FIRST, epoch=4)
    assert [state.epoch(0) for state in one.replicas.states] == [4, 4, 4]
    assert one.begin({0: SourceLog(FIRST, 0, 4)}, [0, 1, 2]) == []
    assert one.begin({0: SourceLog(FIRST, 0, 3)}, [0, 1, 2]) == []


def test_a_cut_reaches_all_replicas():
    """Each keeps what it has below; the later one of two that were noticed counts."""
    replicas = Replicas(3)
    one = replicas.member("one")
    replicas.begin(one, FIRST, epoch=1)
    replicas.settle(one, "accept", replicas.acquire(one, 8))
    replicas.begin(one, LogIncarnation("first", 2), epoch=2, cut_at=5)
    assert one.replicas.done(0) == (5, OffsetRanges())
    assert replicas.acquire(one, 3) == some((5, 7))
    late = {0: SourceLog(FIRST, 0, 2)}
    two = replicas.member("two")
    assert two.begin(late, [0, 1, 2]) == []


def test_a_replica_that_was_away_during_a_cut_keeps_its_holds():
    """Of offsets below the cut another consumer would have a majority while their holder works."""
    replicas = Replicas(3)
    one, two = replicas.member("one"), replicas.member("two")
    replicas.begin(one, FIRST, epoch=1)
    replicas.settle(one, "accept", replicas.acquire(one, 2))
    replicas.deaf = {1}
    held = replicas.acquire(one, 3)  # by the first and the last replica
    assert held == some((2, 4))
    replicas.deaf = {2}
    replicas.begin(two, LogIncarnation("first", 2), epoch=2, cut_at=4)
    replicas.settle(two, "accept", replicas.acquire(two, 1, now=0.5, end=6))
    replicas.deaf = set()
    replicas.run([], 0.5)
    replicas.begin(two, LogIncarnation("first", 2), epoch=2)  # by now that is its log
    assert two.replicas.states[2].log(0) == LogIncarnation("first", 2)
    assert two.replicas.states[2].held(0) == OffsetRanges([(2, 3)])
    assert replicas.acquire(two, 1, now=1.0, end=4) == {}
    for watcher in (two, one):
        replicas.run(watcher.tick(2 * HOLD), 2 * HOLD)
    assert replicas.acquire(two, 2, now=2 * HOLD + 1, end=5) == some((2, 3))


def test_the_status_shows_what_is_noted_of_a_log():
    """One word a log."""
    found = SourceLog(SECOND)
    cut = LogIncarnation("second", 3)
    assert log_note([ReplicaState()], 0, found) == "new"
    assert log_note([folded(begun(NOT_KNOWN))], 0, found) == "same"
    assert log_note([folded(begun(SECOND))], 0, found) == "same"
    assert log_note([folded(begun(FIRST))], 0, found) == "replaced"
    again = folded(begun(FIRST), begun(SECOND, before=FIRST))
    assert log_note([again, folded(begun(FIRST))], 0, found) == "created again"
    assert log_note([folded(begun(cut))], 0, SourceLog(cut)) == "cut"

"""The time for which holds were watched, summed over consumers that live for less than a hold."""

from __future__ import annotations

import json
import random

import pytest

from commits import OffsetRanges
from coopconsume.queue.member import QueueMember
from coopconsume.queue.replica import NOBODY, ReplicaState
from coopconsume.queue.rows import ReplicaRow, decode, encode

HOLD = 10.0
SOME = {0: OffsetRanges([(0, 2)])}


class Log:
    """The log of the only replica of a queue. It outlives its consumers, whose clocks differ."""

    def __init__(self):
        self.rows = [ReplicaRow("begin", "", offsets={0: OffsetRanges()})]
        self.consumers = 0

    def append(self, *rows):
        """Rows arrive as their bytes."""
        for row in rows:
            again = decode(encode(row), "a log")
            assert again == row
            self.rows.append(row)

    def consumer(self, now):
        """A consumer that has read everything at a time of its own clock."""
        self.consumers += 1
        member = QueueMember(f"c{self.consumers}", 1, HOLD, random.Random(self.consumers))
        member.read = 0
        return self.read(member, now)

    def read(self, member, now):
        """Have a consumer read what is new."""
        for position, row in enumerate(self.rows[member.read :], member.read):
            member.take(0, position, row, now)
        member.read = len(self.rows)
        return member

    def tick(self, member, now):
        """Have a consumer do what is due, and read that."""
        rows = [row for _, row in member.tick(now)]
        self.append(*rows)
        self.read(member, now)
        return rows

    def held(self):
        """What is held by all rows so far."""
        state = ReplicaState()
        for position, row in enumerate(self.rows):
            state.fold(position, row)
        return state.held(0)


@pytest.fixture
def log():
    """A log with a hold of a consumer that died, and a release with a delay."""
    log = Log()
    log.append(ReplicaRow("acquire", "dead", 1, SOME, HOLD))
    log.append(ReplicaRow("acquire", "gone", 1, {0: OffsetRanges([(5, 5)])}, HOLD))
    log.append(ReplicaRow("release", "gone", 2, {0: OffsetRanges([(5, 5)])}, HOLD, delivered=True))
    return log


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_consumers_that_live_for_less_than_a_hold_end_it_together(log, ends):
    """Each one counts on from what the one before has noted; no two clocks are compared."""
    lived = 0.0
    for clock in (1_000.0, 17.0, 300.0, 0.0, 4_000.0):
        member = log.consumer(clock)
        assert log.held() == OffsetRanges([(0, 2), (5, 5)])
        for later in (1.0, 2.0, 3.0, 3.9):
            log.tick(member, clock + later)
        if ends == "closed":
            log.append(*(row for _, row in member.leave(clock + 3.9)))
        lived += 3.9
        if not log.held():
            break
    assert not log.held()
    assert lived >= HOLD
    if ends == "closed":
        assert lived < HOLD + 3.9
    assert {row.kind for row in log.rows[4:]} == {"expire"}


def test_time_that_two_consumers_watched_at_once_counts_once(log):
    """The sum would end the hold of somebody who works on it."""
    members = [log.consumer(clock) for clock in (0.0, 100.0, 200.0)]
    for later in range(1, 10):
        for clock, member in zip((0.0, 100.0, 200.0), members, strict=True):
            log.read(member, clock + later)
            log.tick(member, clock + later)
    for clock, member in zip((0.0, 100.0, 200.0), members, strict=True):
        log.append(*(row for _, row in member.leave(clock + 9.99)))
    assert log.held() == OffsetRanges([(0, 2), (5, 5)])
    last = log.consumer(0.0)
    assert all(hold.watched <= 9.99 for hold in last.replicas.states[0].holds.values())
    assert log.tick(last, 0.02)
    assert not log.held()


def test_late_and_repeated_notes_do_no_harm(log):
    """The largest one counts; one of a hold that was renewed says nothing about the new hold."""
    one = log.consumer(0.0)
    (early,) = [row for _, row in one.leave(3.0)]
    (late,) = [row for _, row in one.leave(7.0)]
    log.append(early, late, early)
    two = log.consumer(0.0)
    assert [hold.watched for hold in two.replicas.states[0].holds.values()] == [7.0, 7.0]
    log.append(ReplicaRow("renew", "dead", 2, SOME, HOLD), late)
    log.read(two, 1.0)
    (renewed,) = [hold for hold in two.replicas.states[0].holds.values() if hold.holder == "dead"]
    assert renewed.watched == 0.0
    log.tick(two, 1.0 + HOLD - 0.01)
    assert log.held() == OffsetRanges([(0, 2)])
    log.tick(two, 1.0 + HOLD)
    assert not log.held()


def test_a_note_never_says_more_than_was_watched(log):
    """Its reader has watched the rest since it saw the hold."""
    one = log.consumer(50.0)
    (row,) = [row for _, row in one.leave(50.0 + 1 / 3)]
    assert set(row.watched.values()) == {0.333}
    log.append(row)
    two = log.consumer(0.0)
    (row,) = [row for _, row in two.leave(2.0)]
    assert set(row.watched.values()) == {2.333}
    assert two.next_due() <= HOLD - 0.333


def test_few_rows_note_what_many_consumers_watch(log):
    """About one consumer notes a hold at a time, ten times in its duration; none its own."""
    members = [log.consumer(0.0) for _ in range(20)]
    before = len(log.rows)
    for tenth in range(99):
        log.append(*(row for member in members for _, row in member.tick(tenth / 10)))
        for member in members:
            log.read(member, tenth / 10)
    notes = log.rows[before:]
    assert all(row.watched and not row.positions for row in notes)
    assert 4 <= len(notes) <= 60, "each of them would write 180"
    alone = Log()
    one = alone.consumer(0.0)
    alone.append(*(row for _, row in one.acquire(3, {0: 9}, 0.0)))
    alone.read(one, 0.0)
    assert not alone.tick(one, 8.0)
    assert not one.leave(8.5)


def test_a_snapshot_keeps_the_time_that_was_watched(log):
    """A consumer that begins with it counts on."""
    one = log.consumer(0.0)
    log.append(*(row for _, row in one.leave(8.0)))
    log.read(one, 8.0)
    written = json.loads(json.dumps(one.replicas.states[0].snapshot()))
    two = QueueMember("two", 1, HOLD, random.Random(2))
    two.restore(0, ReplicaState.restore(written), 100.0)
    assert two.tick(101.9) == []
    ((_, row),) = two.tick(102.0)
    assert sorted(row.positions) == sorted(two.replicas.states[0].holds)


def test_a_version_without_watched_time_reads_the_rows_and_ends_holds_later(log):
    """It decides alike about every offset, and its snapshots only lose the time."""
    one = log.consumer(0.0)
    log.append(*(row for _, row in one.leave(9.0)))
    document = json.loads(encode(log.rows[-1]))
    assert document == {
        "format": 1, "kind": "expire", "holder": "c1", "request": 0,
        "watched": {"1": 9.0, "3": 9.0},
    }  # fmt: skip
    state = log.consumer(0.0).replicas.states[0].snapshot()
    assert [len(hold) for hold in state["holds"]] == [5, 5]
    assert [hold[1] for hold in state["holds"]] == ["dead", NOBODY]
    del state["watched"]
    older = QueueMember("older", 1, HOLD, random.Random(2))
    older.restore(0, ReplicaState.restore(state), 0.0)
    assert not [row for _, row in older.tick(HOLD - 0.1) if row.positions]
    assert [row.positions for _, row in older.tick(HOLD) if row.positions] == [(1, 3)]

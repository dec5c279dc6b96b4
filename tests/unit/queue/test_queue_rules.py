"""A replica's decisions, the protocol of one consumer, and the wire format of rows."""

from __future__ import annotations

import json
import random

import pytest

from commits import OffsetRanges
from coopconsume.backoff import Backoff
from coopconsume.errors import QueueLogFormat
from coopconsume.queue.incarnation import NOT_KNOWN
from coopconsume.queue.member import QueueMember
from coopconsume.queue.replica import NOBODY, ReplicaAnswer, ReplicaState
from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import Beginning, ReplicaRow, decode, encode
from coopconsume.queue.source_log import SourceLog
from coopconsume.queue.timing import MARGIN, QuorumLimit

HOLD = 10.0


def some(*pairs, partition=0):
    """Offsets of one partition."""
    return {partition: OffsetRanges(pairs)}


def found(starts, log=NOT_KNOWN, **more):
    """Logs of the topic with one identity."""
    return {p: SourceLog(log, start, **more) for p, start in starts.items()}


class Replica:
    """A state that takes rows at growing positions."""

    def __init__(self):
        self.state = ReplicaState()
        self.position = 0
        self("begin", "", offsets={0: OffsetRanges()})

    def __call__(self, kind, holder, request=0, offsets=None, **more) -> ReplicaAnswer:
        self.position += 1
        return self.state.fold(
            self.position, ReplicaRow(kind, holder, request, offsets or {}, **more)
        )


@pytest.fixture
def replica():
    """One that has begun partition 0."""
    return Replica()


def test_a_replica_decides_by_the_table_for_each_offset(replica):
    """Done: TOMB. Not held: hold, OK. Own hold: extend, OK. Another's hold: NOK."""
    replica("tombstone", "x", offsets=some((0, 1)))
    assert replica("acquire", "a", 1, some((2, 4))) == ReplicaAnswer(ok=some((2, 4)))
    mine = replica.position
    answer = replica("acquire", "b", 1, some((0, 6)))
    assert answer == ReplicaAnswer(ok=some((5, 6)), nok=some((2, 4)), tomb=some((0, 1)))
    assert replica("acquire", "a", 2, some((3, 5))) == ReplicaAnswer(
        ok=some((3, 4)), nok=some((5, 5))
    )
    holds = replica.state.holds
    assert holds[mine].offsets == some((2, 2))
    assert holds[replica.position].offsets == some((3, 4))
    assert replica.state.held(0) == OffsetRanges([(2, 6)])


def test_an_extended_hold_outlives_the_expiry_of_the_first(replica):
    """`expire` names positions: a hold that was extended has another one."""
    replica("acquire", "a", 1, some((0, 4)))
    first = replica.position
    replica("renew", "a", 2, some((3, 4)))
    replica("expire", "w", positions=(first,))
    assert replica.state.held(0) == OffsetRanges([(3, 4)])
    assert replica.state.deliveries(0) == {1: OffsetRanges([(0, 2)])}


def test_rows_that_come_late_or_twice_do_no_harm(replica):
    """An old acquire leaves a newer hold; an old release does not end it."""
    replica("acquire", "a", 1, some((0, 4)))
    replica("renew", "a", 3, some((0, 4)))
    newest = replica.position
    assert replica("acquire", "a", 1, some((0, 4))).ok == some((0, 4))
    assert list(replica.state.holds) == [newest]
    assert replica.state.holds[newest].offsets == some((0, 4))
    replica("release", "a", 2, some((0, 4)))
    assert replica.state.held(0) == OffsetRanges([(0, 4)])
    assert replica("accept", "a", 4, some((0, 4))).ok == some((0, 4))
    assert replica("accept", "a", 4, some((0, 4))).ok == some((0, 4))
    assert replica("acquire", "a", 1, some((0, 4))).tomb == some((0, 4))
    assert not replica.state.holds


def test_a_late_acknowledgement_counts_for_what_nobody_else_holds(replica):
    """The offsets of the next holder are refused."""
    replica("acquire", "a", 1, some((0, 4)))
    replica("expire", "w", positions=(replica.position,))
    replica("acquire", "b", 1, some((3, 4)))
    answer = replica("accept", "a", 2, some((0, 4)))
    assert answer == ReplicaAnswer(ok=some((0, 2)), nok=some((3, 4)))
    assert replica.state.done(0).stable_offset == 3
    assert replica.state.held(0) == OffsetRanges([(3, 4)])


def test_a_tombstone_leaves_the_offsets_that_another_consumer_holds(replica):
    """Their holder decides; the tombstone is written again when the hold has ended."""
    replica("acquire", "a", 1, some((2, 4)))
    mine = replica.position
    answer = replica("tombstone", "b", offsets=some((0, 6)))
    assert answer == ReplicaAnswer(ok=some((0, 1), (5, 6)), nok=some((2, 4)))
    assert replica("accept", "c", 1, some((2, 4))).nok == some((2, 4))
    assert replica("tombstone", "a", offsets=some((4, 4))).nok == some((4, 4))
    assert replica("tombstone", "a", 1, some((4, 4))).ok == some((4, 4))
    replica("expire", "w", positions=(mine,))
    replica("tombstone", "b", offsets=some((0, 6)))
    assert replica.state.done(0).stable_offset == 7


def test_an_old_acknowledgement_leaves_a_newer_hold_of_its_consumer(replica):
    """It was refused; then the consumer has acquired the offsets again, and its copy comes."""
    replica("acquire", "a", 3, some((0, 4)))
    assert replica("accept", "a", 2, some((0, 4))).nok == some((0, 4))
    assert replica.state.held(0) == OffsetRanges([(0, 4)])
    assert replica("accept", "a", 4, some((0, 4))).ok == some((0, 4))


def test_released_offsets_are_free_after_their_delay(replica):
    """Nobody has them until a watcher says that the delay is over; the delivery counts once."""
    replica("acquire", "a", 1, some((0, 4)))
    replica("release", "a", 2, some((0, 1)), delivered=True)
    replica("release", "a", 3, some((2, 4)), delivered=True, seconds=5.0)
    delayed = replica.position
    assert {at: hold.holder for at, hold in replica.state.holds.items()} == {delayed: NOBODY}
    assert replica("acquire", "b", 1, some((0, 4))) == ReplicaAnswer(
        ok=some((0, 1)), nok=some((2, 4))
    )
    replica("expire", "w", positions=(delayed,))
    assert replica("acquire", "b", 2, some((2, 4))).ok == some((2, 4))
    assert replica.state.deliveries(0) == {1: OffsetRanges([(0, 4)])}


def test_deliveries_are_counted_until_the_offset_is_done(replica):
    """A hold that was withdrawn was no delivery; one that ended without a word was."""
    for request, delivered in ((1, False), (2, True), (3, True)):
        replica("acquire", "a", request, some((0, 3)))
        replica("release", "a", request, some((0, 1)), delivered=delivered)
        replica("release", "a", request, some((2, 3)))
    replica("acquire", "b", 1, some((1, 2)))
    replica("expire", "w", positions=(replica.position,))
    counts = replica.state.deliveries(0)
    assert counts == {
        1: OffsetRanges([(2, 2)]), 2: OffsetRanges([(0, 0)]), 3: OffsetRanges([(1, 1)]),
    }  # fmt: skip
    replica("accept", "b", 2, some((1, 1)))
    assert set(replica.state.deliveries(0)) == {1, 2}


def test_a_partition_grants_nothing_before_it_begins_and_begins_once(replica):
    """So a replica that lost its log does not vote."""
    assert replica("acquire", "a", 1, some((0, 1), partition=7)).nok == some((0, 1), partition=7)
    assert replica("accept", "a", 1, some((0, 1), partition=7)).nok == some((0, 1), partition=7)
    replica("begin", "a", offsets=some((0, 4), partition=7))
    replica("begin", "b", offsets=some((0, 8), partition=7))
    assert replica.state.done(7).stable_offset == 5


def test_a_snapshot_holds_everything(replica):
    """A state that was restored answers as the first one."""
    replica("acquire", "a", 1, some((0, 4)))
    replica("release", "a", 2, some((4, 4)), delivered=True)
    replica("tombstone", "b", offsets=some((6, 6), (0, 0)))
    again = ReplicaState.restore(replica.state.snapshot())
    assert again.snapshot() == replica.state.snapshot()
    row = ReplicaRow("acquire", "b", 1, some((0, 6)))
    assert again.fold(99, row) == replica.state.fold(99, row)


@pytest.mark.parametrize(
    "row",
    [
        ReplicaRow("acquire", "a", 3, some((0, 4), (7, 7)), 30.0),
        ReplicaRow("release", "a", 4, some((1, 1), partition=2), 1.5, delivered=True),
        ReplicaRow("expire", "a", positions=(4, 9)),
        ReplicaRow("begin", "a", offsets={0: OffsetRanges(), 1: OffsetRanges([(0, 2**35)])}),
        ReplicaRow("accept", "a", 5, {0: OffsetRanges.from_offsets(range(0, 4000, 2))}),
        ReplicaRow("snapshot", "a", state={"partitions": {}, "holds": []}),
    ],
)
def test_rows_are_read_as_they_were_written(row):
    """Few ranges as pairs, many as a bitmap."""
    data = encode(row)
    assert decode(data, "a log") == row
    assert len(data) < 6000


@pytest.mark.parametrize(
    "data", [None, b"", b"text", b"[]", b'{"kind":"accept"}', b'{"format":1,"kind":"x"}',
             b'{"format":1,"kind":"accept","holder":"a","request":1,"offsets":{"0":[[5,2]]}}']
)  # fmt: skip
def test_what_others_write_into_a_log_is_passed_over(data):
    """It stops no consumer."""
    assert decode(data, "a log") is None


def test_a_newer_format_is_refused():
    """It may mean something that this version does not know."""
    with pytest.raises(QueueLogFormat, match="a log has format 3, expected format 1 or 2"):
        decode(b'{"format":3,"kind":"accept"}', "a log")


class Logs:
    """Replicas' logs that members append to and read at once; `deaf` ones do neither."""

    def __init__(self, replicas):
        self.logs = [[] for _ in range(replicas)]
        self.deaf = set()
        self.members = []
        for log in self.logs:
            log.append(ReplicaRow("begin", "", offsets={0: OffsetRanges()}))

    def member(self, name, **more):
        member = QueueMember(name, len(self.logs), HOLD, random.Random(1), **more)
        member.read = [0] * len(self.logs)
        self.members.append(member)
        self.run([], 0.0)
        return member

    def run(self, rows, now):
        """Append rows, and what follows from them."""
        waiting = [*rows]
        while waiting:
            replica, row = waiting.pop(0)
            if replica not in self.deaf:
                self.logs[replica].append(row)
                waiting += self.read(now)
        assert not self.read(now)

    def read(self, now):
        rows = []
        for member in self.members:
            for replica, log in enumerate(self.logs):
                while replica not in self.deaf and member.read[replica] < len(log):
                    position = member.read[replica]
                    member.read[replica] += 1
                    rows += member.take(replica, position, log[position], now)
        return rows

    def acquire(self, member, limit, now=0.0, end=10):
        """Acquire, and let the time limits pass that hold it up."""
        self.run(member.acquire(limit, {0: end}, now), now)
        while member.is_acquiring:
            now = member.next_due()
            self.run(member.tick(now), now)
        granted = member.granted()
        return granted.offsets if granted else {}


def test_a_majority_grants_and_a_minority_does_not():
    """What a minority granted is released on all replicas that were asked."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two", local=1)
    assert logs.acquire(one, 3) == some((0, 2))
    assert {row.kind for log in logs.logs for row in log} == {"begin", "acquire"}
    logs.deaf = {2}
    assert logs.acquire(two, 2) == some((3, 4))
    logs.deaf = {1, 2}
    assert logs.acquire(one, 2) == {}
    assert logs.logs[0][-1].kind == "release"
    assert one.replicas.states[0].held(0) == OffsetRanges([(0, 4)])


@pytest.mark.parametrize(("replicas", "asked"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_as_many_are_asked_as_make_a_majority(replicas, asked):
    """The others have no row of an acquisition that a majority grants, and settle it, too."""
    logs = Logs(replicas)
    one, two = logs.member("one"), logs.member("two", local=replicas - 1)
    granted = logs.acquire(one, 3)
    assert granted == some((0, 2))
    assert sum(log[-1].kind == "acquire" for log in logs.logs) == asked
    assert logs.acquire(two, 3) != granted, "a majority has one replica of any other in common"
    settled, rows = one.settle("accept", granted, 0.0)
    logs.run(rows, 0.0)
    assert settled.is_complete
    assert all(two.replicas.states[n].done(0).stable_offset == 3 for n in range(replicas))


def test_the_rest_is_asked_if_a_majority_does_not_answer_in_time():
    """The one that is silent is not asked before the others next time."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {1}
    assert logs.acquire(one, 2) == some((0, 1))
    assert [log[-1].kind for log in logs.logs] == ["acquire", "begin", "acquire"]
    rows = one.acquire(2, {0: 10}, 1.0)
    asked = []
    while rows:
        replica, row = rows.pop(0)
        asked.append(replica)
        logs.logs[replica].append(row)
        rows += logs.read(1.0)
    assert asked == [0, 2]
    assert one.granted().offsets == some((2, 3))


def test_the_rest_is_asked_if_a_majority_does_not_grant():
    """Another consumer may hold offsets on one replica alone."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two", local=1)
    logs.deaf = {0, 2}
    logs.run(two.acquire(2, {0: 10}, 0.0), 0.0)
    logs.deaf = set()
    assert logs.acquire(one, 2) == some((0, 1))


def test_other_offsets_are_asked_for_after_a_failure():
    """The ones without a majority wait; so does everything that this consumer holds."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {1, 2}
    assert logs.acquire(one, 2) == {}
    logs.deaf = set()
    assert logs.acquire(one, 2) == some((2, 3))
    later = one.next_due() + HOLD / 2
    logs.run(one.tick(later), later)
    assert logs.acquire(one, 9, later) == some((0, 1), (4, 9))


def test_the_next_replica_is_asked_first_while_the_local_one_is_silent():
    """Any row of its log ends that."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {0}
    assert logs.acquire(one, 2) == {}
    late = HOLD / 2
    assert logs.acquire(one, 2, late) in (some((0, 1)), some((2, 3)))
    assert one._acquisitions._first() == 1
    logs.deaf = set()
    logs.run([], late)
    logs.run(one.tombstone(some((9, 9))), late)
    assert one._acquisitions._first() == 0


def test_a_consumer_does_not_acquire_what_it_has_when_its_local_replica_changes():
    """Replica 2 did not see the first acquisition."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {2}
    assert logs.acquire(one, 3) == some((0, 2))
    logs.deaf = {0}
    one._acquisitions._silent = {0, 1}
    assert logs.acquire(one, 3) == some((3, 5))


def test_what_a_consumer_had_and_acquires_again_is_its_second_delivery():
    """Replica 2 saw neither the first acquisition nor the end of its hold."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {2}
    assert logs.acquire(one, 3) == some((0, 2))
    logs.deaf = {0}
    one._acquisitions._local, one._acquisitions._silent = 2, {0}
    late = (1 - MARGIN / 2) * HOLD
    assert logs.acquire(one, 3, late) == some((3, 5)), "others may not have them yet"
    assert logs.acquire(one, 3, HOLD) == some((0, 2))
    assert one.replicas.deliveries(0, 1) == 1
    assert one.replicas.deliveries(0, 3) == 0


def test_the_end_of_an_own_hold_is_no_answer_to_an_acknowledgement():
    """Both are rows of the same kind by the same consumer."""
    logs = Logs(3)
    one = logs.member("one")
    logs.acquire(one, 1)
    granted = logs.acquire(one, 1, 5.0)
    logs.deaf = {0, 1, 2}
    settled, rows = one.settle("release", granted, HOLD)
    logs.run(rows, HOLD)
    logs.deaf = set()
    logs.run(one._end_holds(HOLD), HOLD)
    assert one.replicas.deliveries(0, 0) == 1
    assert not settled.is_complete
    logs.run(one.tick(2 * HOLD), 2 * HOLD)
    assert settled.done == granted
    assert one.replicas.deliveries(0, 1) == 1


def test_a_done_offset_on_any_replica_is_not_handed_out():
    """The requester writes the tombstone on its local replica."""
    logs = Logs(3)
    one = logs.member("one", local=1)
    logs.deaf = {1, 2}
    logs.run(one.tombstone(some((0, 1))), 0.0)
    logs.deaf = set()
    assert logs.acquire(one, 3) == some((2, 2))
    assert one.replicas.states[1].done(0).stable_offset == 2


def test_an_answer_after_the_hold_grants_nothing():
    """The hold is counted from before the first request."""
    logs = Logs(1)
    one = logs.member("one")
    rows = one.acquire(3, {0: 10}, 0.0)
    logs.run(rows, HOLD)
    granted = one.granted()
    assert granted is not None
    assert granted.offsets == {}


@pytest.mark.parametrize("deaf", [{1, 2}, {0, 1, 2}])
def test_an_acquisition_ends_with_its_hold(deaf):
    """However slow the replicas are: the call that waits for it gets its result."""
    logs = Logs(3)
    one = logs.member("one")
    one._requests.limit.answered(HOLD)
    rows = one.acquire(3, {0: 10}, 0.0)
    logs.deaf = deaf
    logs.run(rows, 0.8 * HOLD)
    end = HOLD * (1 - MARGIN)
    logs.run(one.tick(end), end)
    assert not one.is_acquiring
    granted = one.granted()
    assert granted is not None
    assert granted.offsets == {}


@pytest.mark.parametrize("kind", ["accept", "reject"])
def test_an_acknowledgement_needs_a_majority(kind):
    """It is repeated until a majority has it, and then no other consumer gets the offsets."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two", local=2)
    granted = logs.acquire(one, 3)
    logs.deaf = {1, 2}
    settled, rows = one.settle(kind, granted, 1.0)
    logs.run(rows, 1.0)
    assert not settled.is_complete
    logs.deaf = {2}
    logs.run(one.tick(9.0), 9.0)
    assert settled.done == granted
    logs.deaf = set()
    logs.run(logs.read(9.0), 9.0)
    assert logs.acquire(two, 9, 9.0, end=3) == {}


def test_a_refused_acknowledgement_is_known():
    """Another consumer holds the offsets on a majority."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two")
    granted = logs.acquire(one, 2)
    late = 2 * HOLD
    logs.run(two.tick(late), late)
    assert logs.acquire(two, 1, late) == some((0, 0))
    settled, rows = one.settle("accept", granted, late)
    logs.run(rows, late)
    assert (settled.done, settled.refused) == (some((1, 1)), some((0, 0)))


@pytest.mark.parametrize("kind", ["accept", "release", "renew"])
def test_a_late_acknowledgement_withdraws_its_offsets_from_an_acquisition(kind):
    """The hold has ended here, so the consumer acquires offsets that it still works on."""
    logs = Logs(3)
    one = logs.member("one")
    granted = logs.acquire(one, 3)
    late = 2 * HOLD
    logs.run(one.tick(late), late)
    rows = one.acquire(3, {0: 10}, late)
    assert rows[0].row.offsets == granted
    settled, more = one.settle(kind, some((0, 1)), late)
    logs.run([*rows, *more], late)
    found = one.granted()
    assert found is not None
    assert found.offsets == some((2, 2))
    assert settled.done == some((0, 1))


def test_a_late_acknowledgement_withdraws_its_offsets_from_a_grant():
    """The caller has not looked at the grant yet."""
    logs = Logs(3)
    one = logs.member("one")
    logs.acquire(one, 3)
    late = 2 * HOLD
    logs.run(one.tick(late), late)
    logs.run(one.acquire(3, {0: 10}, late), late)
    logs.run(one.settle("accept", some((0, 1)), late)[1], late)
    assert one.granted().offsets == some((2, 2))


def test_a_tombstone_on_a_minority_takes_nothing_from_a_majority():
    """The acknowledgement is refused, and comparisons do not make it count for a moment."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two")
    granted = logs.acquire(one, 1)
    late = 2 * HOLD
    logs.run(two.tick(late), late)
    logs.deaf = {2}
    assert logs.acquire(two, 1, late) == granted
    logs.deaf = {0, 1}
    settled, rows = one.settle("accept", granted, late)
    logs.run(rows, late)
    logs.deaf = set()
    for now in (late, late + 0.4 * HOLD, late + 0.8 * HOLD):
        logs.run([*one._repair.compare(), *two._repair.compare()], now)
    assert [state.done(0).stable_offset for state in two.replicas.states] == [0, 0, 1]
    logs.run([AppendRow(0, rows[0].row), AppendRow(1, rows[1].row)], late + HOLD / 2)
    assert (settled.done, settled.refused) == ({}, granted)


def test_a_hold_ends_once_somebody_has_watched_it_for_its_duration():
    """By the watcher's own clock, from when it saw the row; not earlier."""
    logs = Logs(3)
    one = logs.member("one")
    logs.acquire(one, 3)
    two = logs.member("two")
    logs.run(two.tick(HOLD - 0.01), HOLD - 0.01)
    assert two.replicas.states[0].held(0) == OffsetRanges([(0, 2)])
    logs.run(two.tick(HOLD), HOLD)
    assert all(not state.holds for state in two.replicas.states)
    assert two.replicas.deliveries(0, 1) == 1


def test_a_renewed_hold_lasts():
    """Its watchers count from the renewal."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two")
    granted = logs.acquire(one, 3)
    settled, rows = one.settle("renew", granted, 6.0)
    logs.run(rows, 6.0)
    assert settled.done == granted
    assert settled.until == pytest.approx(6.0 + 0.9 * HOLD)
    logs.run(two.tick(HOLD + 1), HOLD + 1)
    assert two.replicas.states[0].held(0) == OffsetRanges([(0, 2)])


def test_a_renewal_that_takes_longer_than_its_hold_is_refused():
    """Answers after the end of the renewed hold grant nothing."""
    logs = Logs(3)
    one = logs.member("one")
    granted = logs.acquire(one, 2)
    logs.deaf = {1, 2}
    settled, rows = one.settle("renew", granted, 6.0)
    logs.run(rows, 6.0)
    logs.run(one.tick(settled.until), settled.until)
    assert (settled.done, settled.refused) == ({}, granted)
    logs.deaf = set()
    logs.run(rows, settled.until)
    assert (settled.done, settled.refused) == ({}, granted)


def test_a_renewed_hold_outlives_the_end_of_the_first_one():
    """The consumer has not read the answers to its late renewal as the first hold is over."""
    logs = Logs(3)
    one, two = logs.member("one"), logs.member("two")
    granted = logs.acquire(one, 2)
    settled, rows = one.settle("renew", granted, 0.99 * HOLD)
    logs.run([*rows, *one.tick(HOLD)], HOLD)
    assert settled.done == granted
    assert logs.acquire(two, 2, HOLD) == some((2, 3))


def test_a_renewed_hold_takes_the_place_of_the_one_before():
    """A consumer that renews often keeps no trace of each time."""
    logs = Logs(3)
    one = logs.member("one")
    granted = logs.acquire(one, 2)
    kept = logs.acquire(one, 1)
    for n in range(100):
        settled, rows = one.settle("renew", granted, n / 100)
        logs.run(rows, n / 100)
        assert settled.done == granted
        logs.run(one.tick(n / 100), n / 100)
    held = [offsets for _, offsets in one._holds._held if offsets]
    assert held == [kept, granted]
    assert len(one._holds._held) == 2


def test_replicas_that_lack_tombstones_get_them():
    """At the second comparison in a row, so that rows on their way are not repeated."""
    logs = Logs(3)
    one = logs.member("one")
    logs.deaf = {2}
    settled, rows = one.settle("accept", logs.acquire(one, 3), 1.0)
    logs.run(rows, 1.0)
    assert settled.is_complete
    logs.deaf = set()
    for now in (2.0, 20.0, 40.0):
        logs.run(one.tick(now), now)
    assert one.replicas.states[2].done(0).stable_offset == 3
    assert one.replicas.done(0) == (3, OffsetRanges())


def test_a_replica_without_its_log_learns_what_is_done_before_it_grants():
    """The first offsets hold for a queue that no replica knows."""
    logs = Logs(3)
    logs.logs[2].clear()
    one = logs.member("one")
    logs.run(one.settle("accept", logs.acquire(one, 3), 1.0)[1], 1.0)
    assert one.replicas.states[2].partitions == []
    assert one.replicas.has_begun([0])
    logs.run(one.begin(found({0: 0, 1: 40}), [0, 1, 2]), 1.0)
    assert one.replicas.states[2].done(0).stable_offset == 3
    assert [state.done(1).stable_offset for state in one.replicas.states] == [40, 40, 40]


def test_a_replica_without_its_log_does_not_learn_from_a_minority():
    """The other replica, which cannot be read, may alone have what this one has lost."""
    logs = Logs(3)
    logs.logs[2].clear()
    one = logs.member("one")
    assert one.begin(found({0: 0}), [0, 2]) == []
    assert [append.replica for append in one.begin(found({0: 0}), [0, 1, 2])] == [2]
    logs.logs[1].clear()
    two = logs.member("two")
    assert two.begin(found({0: 0}), [0, 1]) == []
    assert [append.replica for append in two.begin(found({0: 0}), [0, 1, 2])] == [1, 2]


def test_the_quorum_time_limit_follows_recent_answers():
    """The 99th percentile, from 50 ms to a quarter of the hold."""
    limit = QuorumLimit(hold=8.0)
    assert limit.seconds == 1.0
    for i in range(200):
        limit.answered(0.3 if i % 100 == 0 else 0.1)
    assert limit.seconds == 0.3
    for _ in range(300):
        limit.answered(0.001)
    assert limit.seconds == 0.05
    limit.answered(100.0)
    for _ in range(3):
        limit.answered(100.0)
    assert limit.seconds == 2.0


def test_back_off_doubles_with_jitter_and_starts_again():
    """From half of the wait to all of it."""
    backoff = Backoff(1.0, 8.0, random.Random(3))
    waits = [backoff.failed(0.0) for _ in range(6)]
    for wait, most in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= wait <= most
    backoff.succeeded()
    assert backoff.failed(0.0) <= 1.0


@pytest.mark.parametrize("start", [2**31 + 1, 2**32, 2**32 + 1, 2**36 + 5, 2**62, 2**63 - 10])
def test_a_queue_begins_at_any_offset(start):
    """Rows that earlier versions cannot mean have a format that these refuse; others have not."""
    logs = Logs(3)
    for log in logs.logs:
        log.clear()
    one = logs.member("one")
    logs.run(one.begin(found({0: start}), [0, 1, 2]), 0.0)
    assert {json.loads(encode(log[0]))["format"] for log in logs.logs} == {1 + (start > 2**32)}
    assert [decode(encode(log[0]), "a log") for log in logs.logs] == [log[0] for log in logs.logs]
    assert one.replicas.done(0) == (start, OffsetRanges())
    granted = logs.acquire(one, 3, end=start + 9)
    assert granted == some((start, start + 2))
    settled, rows = one.settle("accept", some((start + 1, start + 1)), 1.0)
    logs.run(rows, 1.0)
    assert settled.is_complete
    again = ReplicaState.restore(json.loads(json.dumps(one.replicas.states[0].snapshot())))
    assert again.snapshot() == one.replicas.states[0].snapshot()
    logs.logs[2].clear()
    two = logs.member("two")
    two.follow(found({0: start}))
    logs.run(two.begin(found({0: start}), [0, 1, 2]), 1.0)
    assert two.replicas.states[2].done(0) == two.replicas.states[0].done(0)
    for now in (1.0, 20.0, 40.0):
        logs.run(two.tick(now), now)
    assert two.replicas.done(0) == (start, OffsetRanges([(start + 1, start + 1)]))


def test_a_replica_that_is_far_behind_catches_up_in_parts():
    """A set of offsets has a limit."""
    logs = Logs(3)
    far = {"offsets": {0: OffsetRanges()}, "beginnings": {0: Beginning(start=2**33 + 7)}}
    logs.logs[0][0] = ReplicaRow("begin", "", **far)
    one = logs.member("one")
    for now in range(0, 150, 15):
        logs.run(one.tick(float(now)), float(now))
    assert [state.done(0).stable_offset for state in one.replicas.states] == [2**33 + 7] * 3

"""Key ranges that come and go while a job works, beside what else may happen to it."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from assignors import KeyRange, Share, key_hash
from commits import CommitLogUnavailable, FencedMember, OffsetRanges, Pending
from coopconsume.errors import StateNotReadable
from coopconsume.group.owned import EpochGrant
from coopconsume.record import Reject, RetryPolicy
from coopconsume.runtime.commit.state_log import StateLog
from coopconsume.runtime.events import PauseRequested
from coopconsume.sinks import TransactionalTopic
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import SlotState
from coopconsume.state.store import FOLDER
from tests.model.job_group import HIGH, KEYS, LIFE_MS, LOW, WHOLE, Group
from tests.model.job_world import _PATIENCE, TP, until


def of(share):
    """The offsets whose keys are in a share."""
    return {o for o in range(20) if share.key_range.contains(key_hash(KEYS[o]))}


@pytest.fixture
def begun(world):
    """Return what makes a member that has a share and slots with a channel."""

    def make(share, *others, **options):
        group = Group(world(channel=True, **{"drainTimeout": "300 seconds"} | options))
        group.opens([share], others)
        group.begins(continues=False)
        return group

    return make


class Letters:
    """Takes dead letters."""

    def __init__(self):
        self.offsets = []

    def append(self, letters, _topic_ids, _commit_id):
        """Notes them."""
        self.offsets += [letter.offset for letter in letters]

    def close(self):
        """Nothing is open."""


def moves_while_it_is_handled(group, job, gate, at, due_ms=0):
    """A record's key goes to another member, which fails with it, while its handler runs."""
    member = group.member
    group.there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._rebalance.leaving is not None)
    job._rebalance.leaving.until = 0.0
    gives_up.join(_PATIENCE)
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    theirs = Pending(at, key_hash(KEYS[at]), 5, due_ms, "theirs")
    member.store.commit("g", group.epoch, "b", {}, pending={TP: [theirs]}, commit_id="theirs")


@pytest.mark.parametrize("error", [RuntimeError, Reject])
def test_what_a_late_handler_fails_with_is_not_committed_over_its_next_owners_word(begun, error):
    """The next owner may have tried the record more often, or given it up."""
    group = begun(WHOLE)
    there, member = group.there, group.member
    at, gate = min(of(HIGH)), there.gate(min(of(HIGH)))

    def handler(record):
        gate(record)
        if record.offset == at:
            raise error("too late")

    letters = Letters()
    job = there.run(member, handler, dead_letters=letters, park=True)
    moves_while_it_is_handled(group, job, gate, at)
    gate.opened.set()
    there.until(lambda: of(LOW) <= there.done(member))
    there.until(lambda: not job._dispatcher.runs.by_number)
    there.until(lambda: job._epoch_state.committer.has_all)
    assert member.store.pending("g")[TP][at].error == "theirs"
    assert at not in there.done(member)
    assert not letters.offsets


def test_what_a_late_handler_fails_with_does_not_count_once_its_key_has_come_back(
    begun, monkeypatch
):
    """Another owner had it meanwhile, and may have tried the record more often."""
    group = begun(WHOLE)
    there, member = group.there, group.member
    at, gate = min(of(HIGH)), there.gate(min(of(HIGH)))

    def handler(record):
        gate(record)
        if record.offset == at:
            raise RuntimeError("too late")

    job = there.run(member, handler, policy=RetryPolicy(backoff=1000.0, max_backoff=1000.0))
    moves_while_it_is_handled(group, job, gate, at, due_ms=2**52)
    with monkeypatch.context() as patched:
        patched.setattr(job._epoch_state.committer, "commit_if_due", lambda **_: None)
        gate.opened.set()
        there.until(lambda: not job._dispatcher.runs.by_number)
        assert member.owner.continue_work()
        group.opens([WHOLE], continues={"a": group.epoch.number})
        group.begins()
    there.until(lambda: of(LOW) <= there.done(member))
    there.until(lambda: job._epoch_state.committer.has_all)
    assert member.store.pending("g")[TP][at].error == "theirs"


class SlowLetters(Letters):
    """Dead letters whose destination takes its time."""

    def __init__(self):
        super().__init__()
        self.is_asked, self.opened = threading.Event(), threading.Event()

    def append(self, letters, _topic_ids, _commit_id):
        """Waits."""
        self.is_asked.set()
        assert self.opened.wait(_PATIENCE)
        super().append(letters, _topic_ids, _commit_id)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_record_is_parked_before_its_key_moves_or_not_at_all(begun, monkeypatch, is_late):
    """Its dead letter may take longer than commits of other records: the next owner decides."""
    group = begun(WHOLE)
    there, member, letters = group.there, group.member, SlowLetters()
    at = min(of(HIGH))

    def handler(record):
        if record.offset == at:
            raise Reject("no")

    job = there.run(member, handler, dead_letters=letters, park=True)
    there.until(letters.is_asked.is_set)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    there.until(
        lambda: job._rebalance.leaving is not None and job._rebalance.leaving.mark is not None
    )
    grow(there, 40)
    there.until(lambda: below(LOW, 40) <= there.done(member))
    there.turns(job, 10)
    assert gives_up.is_alive()
    if is_late:
        monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", 0.0)
        job._rebalance.leaving.until = 0.0
    else:
        letters.opened.set()
    gives_up.join(_PATIENCE)
    monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", 10.0)
    assert (at in member.store.pending("g").get(TP, {})) != is_late
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    theirs = Pending(at, key_hash(KEYS[at]), 5, 0, "theirs")
    member.store.commit("g", group.epoch, "b", {}, pending={TP: [theirs]}, commit_id="theirs")
    letters.opened.set()
    there.until(lambda: job._epoch_state.committer.has_all)
    assert member.store.pending("g")[TP][at].error == "theirs"


def test_a_job_that_is_to_end_looks_at_what_comes_to_it_first(begun, monkeypatch):
    """It was through with all else at that moment."""
    group = begun(WHOLE)
    there, member = group.there, group.member
    job = there.run(member, there.gate(), available_now=True)
    job.pause()
    there.until(lambda: job._completion.is_paused)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(WHOLE,))
    assert member.owner.continue_work()
    group.opens([], [WHOLE], continues={"a": group.epoch.number})
    group.begins()
    extend = job._rebalance.extend

    def goes_on_and_extends(extension, **known):
        job._completion.pause(PauseRequested(is_paused=False), job._epoch_state)
        extend(extension, **known)

    monkeypatch.setattr(job._rebalance, "extend", goes_on_and_extends)
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    assert job.ended.wait(_PATIENCE)
    assert job.error is None
    assert there.done(member) == set(range(20))


def test_gained_key_ranges_start_while_a_slot_is_in_doubt(begun):
    """Another slot has them; what the lost slot may be at work on waits."""
    group = begun(LOW, HIGH)
    there, member = group.there, group.member
    gate = there.gate()
    there.dying = 1
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.slots.barred)
    (lost,) = job._dispatcher.slots.barred
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: of(HIGH) <= there.done(member))
    assert lost in job._dispatcher.slots.barred
    assert not job.partitions[0].cursors[lost].staying or (
        set(job.partitions[0].cursors[lost].ranges) <= {*LOW.key_range.split(2)}
    )


@pytest.mark.parametrize("again", [False, True])
def test_gained_key_ranges_without_doubt_start_beside_others_in_doubt(begun, again):
    """One member has crashed, another one has released what it had; both had the same partition.

    If the crashed one had released single keys before, these wait for their own time.
    """
    group = begun(LOW, HIGH)
    there, member = group.there, group.member
    gate = there.gate()
    job = there.run(member, gate)
    there.until(lambda: of(LOW) <= there.done(member))
    hashes = sorted({key_hash(KEYS[o]) for o in of(HIGH)})
    assert len(hashes) > 1
    lost = Share(*TP, KeyRange(HIGH.key_range.first, hashes[0]))
    waits = [(lost, 1000.0)]
    if again:
        waits += [(Share(*TP, KeyRange(hashes[-1], hashes[-1])), 0.1)]
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins(waits=tuple(waits))
    there.until(lambda: set(range(20)) - of(lost) <= there.done(member))
    assert not {o for o, _ in gate.calls} & of(lost)
    (partition,) = job.partitions
    assert partition.in_doubt(time.monotonic()) > 100
    assert not partition.is_drained


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_a_job_begins_with_key_ranges_without_doubt_beside_others_in_doubt(world, ordering):
    """A member has crashed, and what it had touches the key ranges of all slots."""
    group = Group(world(channel=True))
    there, member = group.there, group.member
    hashes = sorted({key_hash(key) for key in KEYS.values()})
    low, high = max(h for h in hashes if LOW.key_range.contains(h)), max(hashes)
    lost = Share(*TP, KeyRange(low, high - 1))
    assert of(lost) & of(LOW)
    assert of(lost) & of(HIGH)
    key = Share(*TP, KeyRange(high, high))
    group.opens([WHOLE])
    group.begins(continues=False, waits=((lost, 1000.0), (key, 0.1)))
    gate = there.gate()
    job = there.run(member, gate, ordering=ordering)
    there.until(lambda: set(range(20)) - of(lost) <= there.done(member))
    there.turns(job)
    assert there.done(member) == set(range(20)) - of(lost), "what is in doubt counts as holes"
    assert not {o for o, _ in gate.calls} & of(lost)
    (partition,) = job.partitions
    assert partition.in_doubt(time.monotonic()) > 100
    assert not partition.is_drained


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_what_a_job_begins_with_in_doubt_starts_once_its_earlier_owner_has_ended(
    world, ordering, is_whole
):
    """In the order of the partition every record waits for every other one."""
    group = Group(world(channel=True))
    there, member = group.there, group.member
    lost, wait = WHOLE if is_whole else HIGH, 1.0
    group.opens([WHOLE])
    begun = time.monotonic()
    group.begins(continues=False, waits=((lost, wait),))
    gate = there.gate()
    job = there.run(member, gate, ordering=ordering, available_now=True)
    assert job.ended.wait(_PATIENCE)
    assert job.error is None
    assert there.done(member) == set(range(20))
    calls = dict(gate.calls)
    assert sorted(o for o, _ in gate.calls) == list(range(20))
    waits = set(range(20)) if ordering == "partition" else of(lost)
    assert min(calls[o] for o in waits) >= begun + wait


def test_gained_key_ranges_start_after_a_worker_has_ended(begun):
    """What is known of the crash concerns its slot, until its records are done."""
    group = begun(LOW, HIGH, handlerTimeout="0.1 seconds", batchTime="1 second")
    there, member = group.there, group.member
    there.dying = 1
    job = there.run(member, there.gate())
    there.until(lambda: job._meter.totals["lostSlots"])
    there.until(lambda: of(LOW) <= there.done(member))
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: there.done(member) == set(range(20)))


def test_gained_key_ranges_start_although_records_of_a_failed_batch_were_deleted(begun):
    """Nobody handles these any more, so no slot is ever through with them."""
    times = {"handlerTimeout": "0.1 seconds", "batchTime": "0.1 seconds"}
    group = begun(LOW, HIGH, failOnDataLoss=False, **times)
    there, member = group.there, group.member
    start = sorted(of(LOW))[2]
    there.kafka.retention = [start]
    there.run(member, there.gate())
    there.until(lambda: {o for o in of(LOW) if o >= start} <= there.done(member))
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: set(range(start, 20)) <= there.done(member))


def test_what_moves_is_committed_at_once_however_rarely_a_job_commits(begun):
    """Somebody waits for it."""
    group = begun(WHOLE, commitInterval="60 seconds", drainTimeout="10 seconds")
    there, member = group.there, group.member
    gate = there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._epoch_state is not None)
    job._epoch_state.committer._pace.began(math.inf)
    until(lambda: {o for o, _ in gate.calls} == set(range(20)))
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(HIGH,))
    assert of(HIGH) <= there.done(member)


FOUR = tuple(Share("t", partition) for partition in range(4))


class InOrder:
    """A handler that notes what breaks the order of a partition; one record of it may wait."""

    def __init__(self, partition, offset):
        self._waits_at = partition, offset
        self._lock = threading.Lock()
        self.calls, self.breaks, self.at_work = [], [], set()
        self.opened = threading.Event()

    def __call__(self, record):
        at = record.partition, record.offset
        with self._lock:
            before = [o for p, o in self.calls if p == record.partition]
            is_alone = record.partition not in {p for p, _ in self.at_work}
            if not (is_alone and (not before or before[-1] <= record.offset)):
                self.breaks.append(at)
            self.calls.append(at)
            self.at_work.add(at)
        if at == self._waits_at:
            assert self.opened.wait(_PATIENCE)
        with self._lock:
            self.at_work.discard(at)

    def of(self, partition):
        """The offsets of a partition, as they were handled."""
        return [o for p, o in self.calls if p == partition]


def grow(there, end):
    """The log of each partition has records up to an offset."""
    there.kafka.log |= {o: KEYS[o % 5] for o in range(there.kafka.end, end)}
    there.kafka.end = end


@pytest.mark.parametrize("is_late", [False, True])
def test_partitions_that_stay_go_on_while_others_come_and_go(world, is_late):
    """With ordering="partition", too; a handler that outlives `drainTimeout` bars its partition."""
    group = Group(world(channel=True, slow=0.5, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens(FOUR)
    group.begins(continues=False)
    handler = InOrder(2, 3)

    def done(partition):
        state = member.store.state("g").get(("t", partition))
        if state is None:
            return set()
        return {*range(state.stable_offset), *map(int, state.ranges.offsets())}

    job = there.run(member, handler, ordering="partition", concurrency=2)
    there.until(lambda: (2, 3) in handler.at_work)
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens(FOUR)
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": FOUR[2:]})
    gives_up.start()
    there.until(lambda: job._rebalance.leaving is not None or job._rebalance.hand_over is not None)
    grow(there, 60)
    there.until(lambda: done(0) == done(1) == set(range(60)))
    assert gives_up.is_alive()
    assert handler.of(2) == [0, 1, 2, 3]
    if is_late:
        job._rebalance.leaving.until = 0.0
    else:
        handler.opened.set()
    gives_up.join(_PATIENCE)
    assert member.assignment is assignment
    assert assignment.shares == FOUR[:2]
    assert done(2) == set(handler.of(2)) - ({3} if is_late else set())
    assert done(3) == set(handler.of(3))
    assert member.owner.continue_work()
    group.opens(FOUR[:2], FOUR[2:], continues={"a": group.epoch.number})
    assert group.in_doubt(FOUR[2]) == (FOUR[2:3] if is_late else ())
    assert not group.in_doubt(FOUR[3])
    group.begins()
    theirs = OffsetRanges([(4, 9)])
    member.store.commit("g", group.epoch, "b", {("t", 2): theirs}, holes={}, commit_id="theirs")
    handler.opened.set()
    grow(there, 80)
    there.until(lambda: done(0) == done(1) == set(range(80)))
    assert member.owner.continue_work()
    group.opens(FOUR, continues={"a": group.epoch.number})
    begun = time.monotonic()
    group.begins(waits=((FOUR[2], 1.0),) if is_late else ())
    there.until(lambda: all(done(partition) == set(range(80)) for partition in range(4)))
    assert member.assignment is assignment
    assert not handler.breaks
    for partition in (0, 1, 3):
        assert handler.of(partition) == list(range(80))
    again = [3] if is_late else []
    assert handler.of(2) == [0, 1, 2, 3, *again, *range(10, 80)]
    assert time.monotonic() > begun + is_late


@pytest.mark.parametrize("what", ["comes", "goes"])
def test_no_part_of_a_partition_is_worked_on_in_the_order_of_partitions(world, what):
    """Another member works on the other part: the job asks for whole partitions."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    has, half = FOUR[:1] if what == "comes" else FOUR[:2], Share("t", 1, LOW.key_range)
    group.opens(has, FOUR[1:2] if what == "comes" else ())
    group.begins(continues=False)
    handler = InOrder(-1, -1)
    job = there.run(member, handler, ordering="partition")
    there.until(lambda: handler.of(0) == list(range(20)) and not job._dispatcher.runs.by_number)
    group.joins_a_group()
    before = handler.of(1)
    assert member.owner.continue_work()
    if what == "comes":
        group.opens([*has, half], [Share("t", 1, HIGH.key_range)], continues={"a": 1})
        group.begins()
    else:
        group.opens(has)
        group.begins(moving=(Share("t", 1, HIGH.key_range),))
    there.until(lambda: "whole partitions" in (member._group._wanted or ""))
    grow(there, 40)
    there.turns(job)
    assert handler.of(1) == before


class Counting:
    """A handler that counts the records of each key in its state."""

    def __init__(self, *gated):
        self._gated = gated
        self.opened = threading.Event()
        self.at_work, self.seen = set(), []

    def __call__(self, record, state):
        count = state.get() or 0
        state.set(count + 1)
        self.seen.append((record.offset, count))
        if record.offset in self._gated:
            self.at_work.add(record.offset)
            assert self.opened.wait(_PATIENCE)


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A number per key."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "stores"))
    return StateLog(str(tmp_path / "state"), StateSchema(pa.int64()))


def test_state_goes_on_through_a_rebalance_that_moves_none_of_it(begun, state):
    """Each record sees what the one before it has left, written under whichever epoch."""
    group = begun(WHOLE, slow=0.5)
    there, member, handler = group.there, group.member, Counting(13)
    there.run(member, handler, state=state)
    there.until(lambda: handler.at_work)
    assignment, stuck = member.assignment, {o for o in range(100) if o % 5 == 3 and o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - stuck)
    for end in (40, 60):
        assert member.owner.continue_work()
        grow(there, end)
        others = set(range(end)) - stuck
        there.until(lambda others=others: others <= {o for o, _ in handler.seen})
        assert not there.done(member) & set(range(end - 20, end)), "its epoch may be over"
        group.opens([WHOLE])
        group.begins()
        there.until(lambda others=others: there.done(member) == others)
    assert member.assignment is assignment
    handler.opened.set()
    there.until(lambda: there.done(member) == set(range(60)))
    assert sorted(handler.seen) == [(o, o // 5) for o in range(60)]


def test_keys_with_state_go_on_while_others_leave_and_come_back(begun, state):
    """Each record sees what the one before it has left, whichever member had it."""
    group = begun(WHOLE, slow=0.5)
    there, member = group.there, group.member
    leaves, stays = min(of(HIGH)), min(of(LOW))
    counting, gate = Counting(leaves), there.gate(stays)

    def handler(record, state):
        counting(record, state)
        gate(record)

    job = there.run(member, handler, state=state)
    there.until(lambda: counting.at_work and gate.at_work)
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    there.until(lambda: job._rebalance.leaving is not None)
    grow(there, 40)
    stuck = {o for o in range(100) if KEYS[o % 5] == KEYS[stays]}
    there.until(lambda: below(LOW, 40) - stuck <= there.done(member))
    assert moves.is_alive()
    counting.opened.set()
    moves.join(_PATIENCE)
    assert member.assignment is assignment
    assert {o for o, _ in counting.seen} & below(HIGH, 40) <= there.done(member)
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    other = there.member()
    other.owner.assigned(EpochGrant(group.epoch, "b", (HIGH,), {"t": "topic-id"}, (), LIFE_MS))
    theirs = Counting()
    their_job = there.run(other, theirs, state=StateLog(state.path, state.schema))
    there.until(lambda: below(HIGH, 40) <= there.done(member))
    grow(there, 60)
    there.until(lambda: set(range(60)) - stuck == there.done(member))
    their_job.stop()
    there._jobs.remove(their_job)
    other.owner.hand_over()
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    grow(there, 80)
    there.until(lambda: set(range(80)) - stuck == there.done(member))
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(80)))
    assert member.assignment is assignment
    assert theirs.seen
    assert sorted([*counting.seen, *theirs.seen]) == [(o, o // 5) for o in range(80)]


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_key_with_state_moves_to_another_slot_after_its_changes_are_written(
    begun, state, monkeypatch, is_slow
):
    """Its next record would not see what the last one has left, whose handler may be slow."""
    group = begun(LOW, HIGH, slow=0.5)
    there, member, handler = group.there, group.member, Counting(*[20] * is_slow)
    job = there.run(member, handler, state=state)
    there.until(lambda: of(LOW) <= there.done(member))
    (partition,) = job.partitions
    second = KeyRange().split(4)[1]
    key = next(k for n in range(99) if second.contains(key_hash(k := b"key-%d" % n)))
    append, may_write = state._changelog.append, threading.Event()

    def waits(rows):
        assert may_write.wait(_PATIENCE)
        return append(rows)

    monkeypatch.setattr(state._changelog, "append", waits)

    def records(end):
        there.kafka.log |= dict.fromkeys(range(there.kafka.end, end), key)
        there.kafka.end = end

    records(21)
    there.until(lambda: (20, 0) in handler.seen)
    there.until(lambda: not job._dispatcher.runs.busy)
    before = partition.lanes.cursor_of(key_hash(key)).slot
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    records(22)
    there.turns(job, 20)
    handler.opened.set()
    there.turns(job, 20)
    may_write.set()
    there.until(lambda: there.done(member) == set(range(22)))
    there.until(lambda: not partition.is_undealt)
    assert partition.lanes.cursor_of(key_hash(key)).slot != before
    assert [seen for seen in handler.seen if seen[0] >= 20] == [(20, 0), (21, 1)]


def below(share, end):
    """The offsets below an end whose keys are in a share."""
    return {o for o in range(end) if share.key_range.contains(key_hash(KEYS[o % 5]))}


@pytest.mark.parametrize("what", ["a late handler", "a commit without an answer"])
def test_all_is_handed_over_where_changes_of_keys_that_leave_may_count_later(
    begun, state, monkeypatch, what
):
    """Their next owner would look before they count."""
    monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", 0.5)
    group = begun(WHOLE)
    there, member, handler = group.there, group.member, Counting(min(of(HIGH)))
    job = there.run(member, handler, state=state)
    there.until(lambda: handler.at_work)
    there.until(lambda: there.done(member) == of(LOW))
    there.until(lambda: job._epoch_state.committer.has_all_it_can)
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    leaving = until(lambda: job._rebalance.leaving)
    if what == "a late handler":
        leaving.until = 0.0
        there.until(lambda: job._rebalance.hand_over is not None)
        handler.opened.set()
    else:
        commit, unanswered = member.store.commit, threading.Event()

        def unavailable(*_args, **_how):
            if unanswered.is_set():
                return commit(*_args, **_how)
            raise CommitLogUnavailable("commits", "append", "no answer")

        monkeypatch.setattr(member.store, "commit", unavailable)
        handler.opened.set()
        there.until(lambda: job._epoch_state.committer._thread.is_busy)
        leaving.until = 0.0
        there.until(lambda: job._rebalance.hand_over is not None)
        unanswered.set()
    moves.join(_PATIENCE)
    assert member.assignment is not assignment
    assert {o for o, _ in handler.seen} <= there.done(member)
    grow(there, 40)
    there.until(lambda: below(LOW, 40) <= there.done(member))
    assert sorted(handler.seen) == [(o, o // 5) for o in sorted(there.done(member))]


def test_a_slot_that_cannot_read_the_state_leaves_nothing_in_doubt(begun, state, monkeypatch):
    """It has started nothing, so the next owner of its keys does not wait."""
    is_readable = threading.Event()

    def opened(*args):
        if is_readable.is_set():
            return SlotState(*args)
        raise StateNotReadable("state", "no answer")

    monkeypatch.setattr("coopconsume.state.slot_state.SlotState", opened)
    group = begun(WHOLE)
    there, member = group.there, group.member
    job = there.run(member, Counting(), state=state)
    there.until(lambda: job._dispatcher.slots.failing.keys() == {0, 1})
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(HIGH,))
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert group.in_doubt(HIGH) == ()
    is_readable.set()
    there.until(lambda: there.done(member) == of(LOW))


def test_changes_of_records_that_retention_has_passed_are_written_before_their_keys_move(
    begun, state, monkeypatch
):
    """Otherwise they would come to count after the next owner has looked."""
    group = begun(WHOLE, failOnDataLoss=False)
    there, member, handled = group.there, group.member, set()
    append, may_write = state._changelog.append, threading.Event()

    def waits(rows):
        assert may_write.wait(_PATIENCE)
        return append(rows)

    monkeypatch.setattr(state._changelog, "append", waits)

    def handler(record, state):
        if LOW.key_range.contains(key_hash(record.key)):
            raise RuntimeError("later")
        state.set(record.offset)
        handled.add(record.offset)

    job = there.run(member, handler, state=state)
    there.until(lambda: of(HIGH) <= handled and not job._dispatcher.runs.busy)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    mark = until(lambda: job._rebalance.leaving and job._rebalance.leaving.mark)
    there.kafka.retention = [20]
    there.kafka.delete()
    job._epoch_state.log_watch.look_again()
    (partition,) = job.partitions
    there.until(lambda: partition.ledger.stable >= 20)
    grow(there, 40)
    there.until(lambda: job._epoch_state.committer._thread.count >= mark.count)
    there.turns(job, 10)
    assert job._rebalance.leaving is not None
    may_write.set()
    moves.join(_PATIENCE)
    assert job._rebalance.hand_over is None


def test_state_does_not_begin_again_under_an_epoch_that_may_count_more(begun, state, monkeypatch):
    """Its last commit was not answered, and may still come to the log: the next epoch decides."""
    group = begun(WHOLE)
    there, member, handler = group.there, group.member, Counting(min(of(HIGH)))
    job = there.run(member, handler, state=state)
    there.until(lambda: handler.at_work)
    there.until(lambda: job._epoch_state.committer.has_all_it_can)
    group.joins_a_group()
    assert member.owner.continue_work()
    group.opens([WHOLE])

    def unavailable(*_args, **_how):
        raise CommitLogUnavailable("commits", "append", "no answer")

    monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", 0.5)
    commit = member.store.commit
    monkeypatch.setattr(member.store, "commit", unavailable)
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    leaving = until(lambda: job._rebalance.leaving)
    handler.opened.set()
    there.until(lambda: job._epoch_state.committer._thread.is_busy)
    leaving.until = 0.0
    there.until(lambda: job._rebalance.hand_over is not None)
    job._rebalance.hand_over.until = 0.0
    moves.join(_PATIENCE)
    there.until(lambda: "next epoch" in (member._group._wanted or ""))
    monkeypatch.setattr(member.store, "commit", commit)
    there.turns(job)
    assert member.owner.has_shares
    before, done = [*handler.seen], there.done(member)
    member._group = None
    assert not member.owner.continue_work()
    member.owner.hand_over()
    group.opens([WHOLE])
    group.begins(continues=False)
    there.until(lambda: there.done(member) == set(range(20)))
    again = handler.seen[len(before) :]
    assert sorted(again) == [(o, o // 5) for o in range(20) if o not in done]


class Transactional(TransactionalTopic):
    """Rows that are published as the stable offset passes them; here they are counted."""

    topic = "out"
    schema = pa.schema([("text", pa.string())])

    def __init__(self):
        self.rows, self.assignment, self.begun = [], None, 0
        self.extended = 0
        self.published, self.refused = 0, 0
        self.unpublished = {}

    def begin(self, assignment):
        """Publishes under an epoch."""
        self.begun += 1
        self.assignment = assignment
        return self

    def write(self, outputs):
        """Has rows wait."""
        self.rows += outputs.table(self.schema).column("_offset").to_pylist()

    def publish(self, _tp, stable):
        """Publishes them."""
        assignment = self.assignment
        try:
            assignment.store.check("g", assignment.epoch, assignment.member)
        except FencedMember:
            self.refused += 1
            raise
        self.published = stable
        return True

    def extend(self):
        """Key ranges come."""
        self.extended += 1

    def given_up(self, _patience):
        """It publishes everything."""

    def stop(self):
        """Nothing is open."""

    close = stop


def test_outputs_in_transactions_go_on_through_rebalances(begun):
    """They are published once the next epoch is known."""
    group = begun(WHOLE, slow=0.5)
    there, member, sink, gate = group.there, group.member, Transactional(), group.there.gate(13)

    def handler(record):
        gate(record)
        return {"text": "row"}

    job = there.run(member, handler, outputs=sink)
    there.until(lambda: gate.at_work)
    stuck = {o for o in range(100) if o % 5 == 3 and o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - stuck and sink.published == 13)
    assert member.owner.continue_work()
    grow(there, 40)
    others = set(range(40)) - stuck
    there.until(lambda: others <= set(sink.rows))
    group.opens([WHOLE])
    member.assignment.primary._written.clear()
    there.until(lambda: sink.refused)
    there.turns(job)
    group.begins()
    there.until(lambda: there.done(member) == others)
    gate.opened.set()
    there.until(lambda: sink.published == 40)
    assert sink.begun == 1
    assert sorted(sink.rows) == sorted(o for o, _ in gate.calls) == list(range(40))
    # Some of it goes and comes back: the rest goes on.
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(LOW,))
    assert member.owner.continue_work()
    group.opens([HIGH], [LOW], continues={"a": group.epoch.number})
    group.begins()
    grow(there, 60)
    there.until(lambda: below(HIGH, 60) <= there.done(member))
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: sink.published == 60)
    assert (sink.begun, sink.extended, member.assignment) == (1, 1, assignment)
    assert max(Counter(sink.rows).values()) == 1


def test_the_wait_for_an_earlier_owner_goes_on_if_a_member_cannot_begin(world, monkeypatch):
    """It has started nothing, so the next owner waits no longer than it was to wait itself."""
    group = Group(world(channel=True))
    member = group.member
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    group.opens([WHOLE])

    def unreadable(_grant):
        raise OSError("it cannot be read")

    monkeypatch.setattr(member.owner, "_load", unreadable)
    with pytest.raises(OSError, match="cannot be read"):
        group.begins(continues=False, waits=((HIGH, 1.5),))
    group.opens([], [WHOLE])
    (doubt,) = member.store.assignment("g").doubts
    assert doubt.life_ms == 1_500

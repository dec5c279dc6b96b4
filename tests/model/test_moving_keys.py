"""Key ranges that come and go while a job works, beside what else may happen to it."""

from __future__ import annotations

import math
import threading
import time

import pytest

from assignors import KeyRange, Share, key_hash
from commits import Pending
from coopconsume.record import Reject
from coopconsume.runtime.events import PauseRequested
from tests.model.job_world import _PATIENCE, TP, until
from tests.model.test_job_model import HIGH, KEYS, LOW, WHOLE, Group, world

__all__ = ["world"]


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

    topic = None

    def __init__(self):
        self.offsets = []

    def append(self, letters, _topic_ids, _commit_id):
        """Notes them."""
        self.offsets += [letter.offset for letter in letters]

    def close(self):
        """Nothing is open."""


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
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._leaving is not None)
    job._leaving.until = 0.0
    gives_up.join(_PATIENCE)
    assert member.keep()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    theirs = Pending(at, key_hash(KEYS[at]), 5, 0, "theirs")
    member.store.commit("g", group.epoch, "b", {}, pending={TP: [theirs]}, commit_id="theirs")
    gate.opened.set()
    there.until(lambda: of(LOW) <= there.done(member))
    there.until(lambda: not job._dispatcher.running)
    there.until(lambda: job._epoch_state.saver.has_all)
    assert member.store.pending("g")[TP][at].error == "theirs"
    assert at not in there.done(member)
    assert not letters.offsets


def test_a_job_that_is_to_end_looks_at_what_comes_to_it_first(begun, monkeypatch):
    """It was through with all else at that moment."""
    group = begun(WHOLE)
    there, member = group.there, group.member
    job = there.run(member, there.gate(), available_now=True)
    job.pause()
    there.until(lambda: job._is_paused)
    assert member.keep()
    group.opens([WHOLE])
    group.begins(moving=(WHOLE,))
    assert member.keep()
    group.opens([], [WHOLE], continues={"a": group.epoch.number})
    group.begins()
    extend = job._extend

    def goes_on_and_extends(extension):
        job._pause(PauseRequested(is_paused=False))
        extend(extension)

    monkeypatch.setattr(job, "_extend", goes_on_and_extends)
    assert member.keep()
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
    there.until(lambda: job._dispatcher.barred)
    (lost,) = job._dispatcher.barred
    assert member.keep()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: of(HIGH) <= there.done(member))
    assert lost in job._dispatcher.barred
    assert not job.partitions[0].shares[lost].staying or (
        set(job.partitions[0].shares[lost].ranges) <= {*LOW.key_range.split(2)}
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
    assert member.keep()
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
    assert member.keep()
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
    assert member.keep()
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
    job._epoch_state.saver._begun_at = math.inf
    until(lambda: {o for o, _ in gate.calls} == set(range(20)))
    assert member.keep()
    group.opens([WHOLE])
    group.begins(moving=(HIGH,))
    assert of(HIGH) <= there.done(member)

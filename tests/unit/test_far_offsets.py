"""Offsets far above a stable offset, in each part that looks at what lies between.

A log begins far above the committed offset after retention, or a part of it was left empty by
transactions or compaction. A set of all offsets between would be too large.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from assignors import KeyRange
from commits import OffsetRanges, PartitionCommits, Wanted
from commits.acquisitions import Acquisition, Acquisitions, lowest_missing
from commits.offsets import MAX_COUNT, MAX_OFFSET
from coopconsume.admin.offsets.status import PartitionStatus
from coopconsume.demo.commit_snapshot import CommitSnapshot
from coopconsume.errors import DataLoss
from coopconsume.group.assigned_logs import AssignedLogs
from coopconsume.group.owned import Owned
from coopconsume.kafka.cluster import LogEnd
from coopconsume.queue.inspection import _replica
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.rows import ReplicaRow
from coopconsume.runtime.plan import SlotCursor
from coopconsume.runtime.plan.cursor import MOST_APART
from coopconsume.runtime.plan.dealer import _todo_of
from coopconsume.runtime.poll.positions import PollPosition
from coopconsume.runtime.status.progress import describe
from tests.partitions import make_partition

FAR = 1 << 40
DONE = OffsetRanges([(FAR, FAR)])
TP = "t", 0


def near(first, last):
    """What a cursor looks at first: from a stable offset up to where it begins."""
    return OffsetRanges([(first, last)])


def partition(stable=5, committed=DONE):
    """A partition with one far record that is done."""
    found = make_partition(
        0, *TP, stable=stable, committed=committed, slots=[(0, (KeyRange(),))], ordering="key",
        whole=True, max_ranges=1_000_000,
    )  # fmt: skip
    found.ledger.end = FAR + 10
    return found


def logs(stable, start, end, *, fail):
    """The logs of a member; one begins at an offset and ends at another."""
    owned = Owned(*TP, (KeyRange(),), stable, OffsetRanges())
    cluster = SimpleNamespace(log_starts=lambda _: {TP: start})
    followed = []
    store = SimpleNamespace(
        log_start=lambda *found: followed.append(found[-1]),
        state=lambda _: {TP: PartitionCommits(stable)},
    )
    grant = SimpleNamespace(epoch=None, member="m")
    options = SimpleNamespace(fail_on_data_loss=fail, group_id="g")
    found = AssignedLogs(
        options, cluster, store, lambda: grant, {TP: owned}, contextlib.nullcontext()
    )
    found._ends[TP] = LogEnd(end, None)
    return found, followed


def test_gaps_may_hold_any_number_of_offsets():
    """Where a set of them would be too large."""
    some = OffsetRanges([(3, 4), (FAR, FAR), (MAX_OFFSET, MAX_OFFSET)])
    assert [*some.gaps(0, MAX_OFFSET)] == [(0, 2), (5, FAR - 1), (FAR + 1, MAX_OFFSET - 1)]
    assert [*some.gaps(4, 4)] == [*some.gaps(9, 8)] == []
    assert lowest_missing(some, 2, MAX_OFFSET, 3).pairs() == [(2, 2), (5, 6)]
    assert lowest_missing(some, FAR, FAR + 1, MAX_COUNT + 1).pairs() == [(FAR + 1, FAR + 1)]
    assert len(lowest_missing(some, FAR, MAX_OFFSET, MAX_COUNT + 1)) == MAX_COUNT
    assert not lowest_missing(some, 0, 9, 0)


def test_a_request_acquires_what_was_returned_far_below_the_marker():
    """A row of the commit log must never stop its readers."""
    chunks = Acquisitions(FAR)
    for name, wanted in (("one", Wanted(3, FAR)), ("all", Wanted(MAX_COUNT + 1, MAX_OFFSET))):
        request = Acquisition(name, "a", OffsetRanges())
        chunks.acquire(request, wanted, PartitionCommits(5, DONE), ())
    assert chunks.chunks["one"].offsets.pairs() == [(5, 7)]
    assert chunks.chunks["all"].offsets.first == 8


def test_records_that_were_deleted_far_above_the_committed_offset_are_named():
    """They end a job, or it goes on at the start of the log."""
    found, _ = logs(0, FAR, FAR + 10, fail=True)
    with pytest.raises(DataLoss, match=f"offsets 0 to {FAR - 1} of t-0"):
        found.check_starts()
    found, followed = logs(0, FAR, FAR + 10, fail=False)
    assert found.check_starts() == {TP: FAR}
    assert followed == [{TP: FAR}]
    (loss,) = found.losses_of("t", {})
    assert str(loss).startswith(f"offsets 0 to {FAR + 9} of t-0")


def test_a_status_shows_what_is_open_far_below_a_record_that_is_done(monkeypatch):
    """With the number of offsets; the demo as well."""
    commits = PartitionCommits(5, DONE)
    status = PartitionStatus.of(TP, commits, end_offset=FAR + 10)
    assert status.open_ranges == [(5, FAR - 1)]
    assert status.figures()["gaps"] == 1
    assert status.blocker is not None
    assert status.blocker.open_behind == FAR - 6
    store = SimpleNamespace(state=lambda _: {TP: commits}, pending=lambda _: {})
    monkeypatch.setattr(
        "coopconsume.demo.commit_snapshot.CommitStore", SimpleNamespace(open=lambda *_, **__: store)
    )
    assert CommitSnapshot.of("table", "g", "c", [TP]).gaps == {TP: [(5, FAR - 1)]}


def test_the_progress_of_a_job_shows_what_is_open_far_below():
    """As a pair of offsets."""
    shown = describe(partition(), 0.0)
    assert (shown["gapRanges"], shown["firstGaps"]) == (1, [[5, FAR - 1]])


def test_the_progress_of_a_job_lists_no_more_gaps_than_it_shows(monkeypatch):
    """A slot may be ahead of another by some 100,000 keys' records: all gaps took the loop long."""
    found = partition(0, OffsetRanges.from_offsets(np.arange(1, 20, 2)))
    monkeypatch.setattr(OffsetRanges, "gaps", None)
    shown = describe(found, 0.0)
    assert shown["gapRanges"] == 10
    assert shown["firstGaps"] == [[at, at] for at in (0, 2, 4, 6, 8)]


def test_a_job_begins_far_below_a_record_that_is_done():
    """What is done above its position is passed over."""
    found = partition()
    (cursor,) = found.cursors.values()
    begin = 5 + MOST_APART
    assert (cursor.position, cursor.todo) == (begin, near(5, begin - 1))
    work = found.slots.read_by(0)
    assert work is not None
    assert work.ranges == ((begin, FAR - 1), (FAR + 1, MAX_OFFSET))


def test_holes_of_a_large_empty_part_are_found_in_turn():
    """The first ones first."""
    found = partition()
    (cursor,) = found.cursors.values()
    cursor.position, cursor.todo = FAR, OffsetRanges()
    holes = found.supply.holes()
    assert holes == near(5, 4 + MOST_APART)
    found.slots.amend(holes)
    assert found.supply.holes() == near(5 + MOST_APART, 4 + 2 * MOST_APART)


def test_key_ranges_that_come_far_above_the_stable_offset_are_looked_at_from_there():
    """A slot that stood far ahead goes back, and passes over what is done."""
    old = SlotCursor(0, (KeyRange(),), FAR)
    gain = SimpleNamespace(position=FAR)
    assert _todo_of([old], [gain], 5, DONE) == (5 + MOST_APART, near(5, 4 + MOST_APART))


def test_poll_begins_far_below_a_record_that_is_done():
    """As a job does."""
    found = PollPosition.at_start(Owned(*TP, (KeyRange(),), 5, DONE))
    assert found.position == 5 + MOST_APART
    assert found.cursor.todo == near(5, 4 + MOST_APART)


def test_an_audit_counts_what_a_replica_lacks_far_below():
    """By its offsets, which no set holds."""
    states = [ReplicaState(), ReplicaState()]
    states[0].fold(0, ReplicaRow("begin", "a", offsets={0: OffsetRanges([(5, 5)])}))
    done = PartitionCommits(FAR, [(FAR + 2, FAR + 2)])
    session = SimpleNamespace(
        rows=[SimpleNamespace(length=1, passed_over=0)],
        replicas=[SimpleNamespace(place="r")],
        identities={},
        member=SimpleNamespace(
            replicas=SimpleNamespace(
                states=states,
                states_of=lambda _: states,
                done=lambda _: (done.stable_offset, done.ranges),
            )
        ),
        is_read=lambda _: True,
    )
    found = _replica(session, 0, SimpleNamespace(logs={}), {})
    assert found.lacking == FAR

"""What a batch reads: all that is wanted, and little else."""

from __future__ import annotations

import math
import random
import tracemalloc
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan import Limits, covering, plan_batch, reach_of
from coopconsume.runtime.read.hashing import in_ranges_sql
from coopconsume.runtime.read.offset_frames import is_short
from coopconsume.runtime.read.spans import Span
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.partitions import make_partition

LIMITS = Limits(1_000_000, 10**6)


def a_partition(end, gaps, *, slots=1, top=None):
    """A partition with everything done up to ``top`` but for some gaps."""
    committed = OffsetRanges([(0, (end if top is None else top) - 1)]) - gaps
    stable = gaps.first or 0
    partition = make_partition(
        0, "t", 0, stable=stable, committed=committed - OffsetRanges([(0, stable - 1)])
        if stable else committed,
        slots=[(s, (r,)) for s, r in enumerate(KeyRange().split(slots))], ordering="key",
        whole=True,
    )  # fmt: skip
    partition.ledger.end = end
    return partition


@given(
    st.sets(st.integers(0, 400), min_size=1, max_size=80), st.integers(0, 50),
    st.integers(1, 500), st.integers(1, 3), st.sampled_from([1, 3, 20]), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_every_wanted_offset_is_read(gaps, news, window, slots, merge_gap, through):
    """However many reads that takes: an offset left out would count as a hole."""
    partition = a_partition(
        400 + news, OffsetRanges.from_offsets(sorted(gaps)), slots=slots, top=400
    )
    with (
        mock.patch("coopconsume.runtime.plan.reads.MERGE_GAP", merge_gap),
        mock.patch("coopconsume.runtime.plan.reads.READ_THROUGH", through),
        mock.patch("coopconsume.runtime.plan.reads.NEAR", 2),
        mock.patch("coopconsume.runtime.plan.reads.READ_THROUGH_EACH", 0),
        mock.patch("coopconsume.runtime.plan.reads.STRETCH", through),
    ):
        for slot in range(slots):
            plan = plan_batch([partition], [slot], 0.0, Limits(window, 10**6))
            if plan is None:
                continue
            read = OffsetRanges([(r.first, r.last) for r in plan.reads])
            for work in plan.work[slot].values():
                assert not OffsetRanges(work.ranges) - read


def test_gaps_and_new_records_are_all_read():
    """As many far gaps as there are reads in a batch, and a window of new records after them."""
    gaps = OffsetRanges([(n * 20_000, n * 20_000) for n in range(12)])
    partition = a_partition(240_500, gaps, top=240_000)
    plan = plan_batch([partition], [0], 0.0, LIMITS)
    assert plan is not None
    assert len(plan.reads) == 13
    assert (plan.reads[-1].first, plan.reads[-1].last) == (240_000, 240_499)


def fetched(reads, block, record):
    """Bytes that a consumer fetches for some reads, from a log of blocks of so many records."""
    total = 0
    for first, last in reads:
        at, limit = first // block, 1 if is_short(Span("t", 0, first, last)) else 8 << 20
        while at <= last // block:
            # Whole blocks, at least one; what goes beyond the limit is cut off.
            blocks = max(1, limit // (block * record))
            total += max(limit, block * record) if limit > block * record else block * record
            at += blocks
        # The client has asked for what comes next by the time it is through.
        total += max(min(limit, block * record), block * record)
    return total


@pytest.mark.parametrize(("spread", "times"), [("evenly", 2.0), ("at random", 2.02)])
@pytest.mark.parametrize("record", [100, 1_000])
def test_a_thousand_far_gaps_cost_what_their_blocks_hold(spread, times, record):
    """Over ten million offsets: at most twice the bytes of the fetch blocks they lie in.

    At random a few lie in one block, and are read one by one all the same.
    """
    numbers = random.Random(7)
    offsets = (
        range(5_000, 10_000_000, 10_000)
        if spread == "evenly"
        else sorted(numbers.sample(range(10_000_000), 1_000))
    )
    block = 16_384 // record
    partition = a_partition(10_000_000, OffsetRanges.from_offsets(list(offsets)))
    reads, batches = [], 0
    while (plan := plan_batch([partition], [0], 0.0, LIMITS)) is not None:
        batches += 1
        reads += [(r.first, r.last) for r in plan.reads]
        partition.slots.reported(0, PartitionReport(), 0.0)
    blocks = len({offset // block for offset in offsets})
    assert {o for first, last in reads for o in range(first, last + 1)} >= set(offsets)
    assert fetched(reads, block, record) <= times * blocks * block * record
    assert batches <= 90


def test_a_share_with_far_gaps_does_not_hold_back_the_others():
    """Its slot has reads for several batches; the other one gets new records with the first."""
    partition = a_partition(3_000_000, OffsetRanges([(2_000_000, 2_999_999)]), slots=2)
    mine, other = partition.cursors.values()
    mine.todo = OffsetRanges.from_offsets(list(range(0, 1_000_000, 20_000)))
    mine.position = other.position = 2_000_000
    partition.ledger.stable, partition.ledger.done = 0, OffsetRanges([(2, 1_999_999)]) - mine.todo
    other.todo = OffsetRanges()
    plan = plan_batch([partition], [0, 1], 0.0, Limits(50_000, 10**6))
    starts = {slot: OffsetRanges(of[0].ranges) for slot, of in plan.work.items()}
    assert len(starts[0]) == 12
    assert starts[0].last < 1_000_000
    assert starts[1].first == 2_000_000
    assert len(starts[1]) > 40_000


def test_what_would_take_many_reads_on_a_short_stretch_is_read_in_one_go():
    """A batch for each dozen records costs more than to read through what a few batches span."""
    gaps = OffsetRanges.from_offsets(list(range(0, 100_000, 1_000)))
    assert len(covering(gaps, reach_of(gaps, 10_000))) == 100
    assert covering(gaps, reach_of(gaps, 30_000)) == [(0, 99_000)]
    far = OffsetRanges.from_offsets(list(range(0, 10_000_000, 10_000)))
    assert len(covering(far, reach_of(far, 1_000_000))) == 1_000


def test_scattered_ranges_stay_so_until_there_are_many_more():
    """The last of many far gaps are not read through; many new ones between them are."""
    last = OffsetRanges.from_offsets(list(range(0, 20_000, 4_000)))
    assert covering(last, reach_of(last, 28_000)) == [(0, 16_000)]
    assert len(covering(last, reach_of(last, 28_000, scattered=True))) == 5
    many = OffsetRanges.from_offsets(list(range(0, 119_000, 700)))
    assert covering(many, reach_of(many, 28_000, scattered=True)) == [(0, 118_300)]


def test_few_gaps_near_each_other_are_read_in_one_go():
    """A separate read costs more than some thousand records."""
    gaps = OffsetRanges.from_offsets(list(range(0, 20_000, 500)))
    assert covering(gaps, reach_of(gaps)) == [(0, 19_500)]


def test_many_gaps_close_together_are_read_in_one_go():
    """A tenth of a million records is open: hardly a block of the log is without one."""
    numbers = random.Random(7)
    gaps = OffsetRanges.from_offsets(sorted(numbers.sample(range(1_000_000), 100_000)))
    assert covering(gaps, reach_of(gaps)) == [(gaps.first, gaps.last)]


def test_what_waits_behind_a_failing_record_is_not_read_with_each_try():
    """Far behind: the record alone is tried, and once it is done the others come, in order."""
    partition = a_partition(10_000_000, OffsetRanges([(0, 9_999_999)]))
    partition.slots.plan([0], 0.0, Limits(10_000_000, 10**6))
    behind = [(offset, 5) for offset in range(10_000, 10_000_000, 10_000)]
    failure = Failure(0, 5, b"k", 1, 10.0, "no")
    partition.slots.reported(0, PartitionReport(failed=[failure], blocked=behind), 100.0)
    for attempt in (2, 3):
        plan = plan_batch([partition], [0], 100.0 * attempt, LIMITS)
        assert plan is not None
        assert [(r.first, r.last) for r in plan.reads] == [(0, 0)]
        work = plan.work[0][0]
        assert (work.blocked, work.ranges) == ({5: 0}, ((0, 0),))
        again = Failure(0, 5, b"k", attempt, 10.0, "no")
        partition.slots.reported(0, PartitionReport(failed=[again]), 100.0 * attempt)
        assert (partition.supply.pending, partition.supply.held_back) == (1, 1_000)
    assert plan_batch([partition], [0], 500.0, LIMITS) is not None
    partition.slots.reported(0, PartitionReport(), 500.0)
    assert partition.supply.held_back == 0
    plan = plan_batch([partition], [0], 501.0, LIMITS)
    assert plan is not None
    assert plan.reads[0].first == 10_000


def test_what_waits_behind_a_deleted_record_is_not_lost():
    """Retention passes the record that a key waits for: the others of the key come next."""
    partition = a_partition(100, OffsetRanges([(0, 99)]))
    partition.slots.plan([0], 0.0, LIMITS)
    report = PartitionReport(failed=[Failure(3, 5, b"k", 1, 1e9, "no")], blocked=[(4, 5), (70, 5)])
    partition.slots.reported(0, report, 0.0)
    partition.log_start(50)
    partition.slots.amend(partition.supply.holes())
    assert 70 not in partition.ledger.done
    plan = plan_batch([partition], [0], 1.0, LIMITS)
    assert plan is not None
    assert plan.wanted[0] == OffsetRanges([(70, 70)])


@pytest.mark.parametrize("length", [1, 5, 100_000_000])
@pytest.mark.parametrize("distance", [10, 10_000, 400_000_000])
def test_the_filter_of_a_read_is_as_large_as_its_ranges_are_many(
    length: int, distance: int
) -> None:
    """Neither its text nor the memory to write it depends on how long or distant the ranges are."""
    count = 100
    ranges = OffsetRanges([(n * (length + distance), n * (length + distance) + length - 1)
                           for n in range(count)])  # fmt: skip
    tracemalloc.start()
    text = in_ranges_sql(ranges)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text) < 200 * count
    assert peak < 10_000_000


def test_what_is_in_flight_below_a_new_log_start_is_not_planned_again():
    """Retention passes a running batch: what it did is committed, what it leaves is gone."""
    for is_lost in (False, True):
        partition = a_partition(100, OffsetRanges([(0, 99)]))
        plan = plan_batch([partition], [0], 0.0, LIMITS)
        assert plan is not None
        assert plan.reads[0].first == 0
        partition.log_start(50)
        if is_lost:
            partition.slots.unknown(0)
        else:
            failed = [Failure(20, 5, b"k", 1, math.inf, "no"), Failure(70, 6, b"l", 1, 0.0, "no")]
            done = pack_offsets(pa.array([10, 60], pa.int64()))
            blocked = [(21, 5), (61, 5)]
            partition.slots.reported(0, PartitionReport(done, 80, failed, blocked), 0.0)
            assert partition.ledger.to_commit == OffsetRanges([(10, 10), (60, 60)])
            assert partition.ledger.ranges == 1
            assert not partition.supply.parked
        plan = plan_batch([partition], [0], 1.0, LIMITS)
        assert plan is not None
        left = [(61, 61), (70, 70), (80, 99)]
        assert plan.wanted[0] == OffsetRanges([(50, 99)] if is_lost else left)


def test_a_log_start_that_another_member_found_counts_for_all():
    """It moves the stable offset in the commit log, and nothing below that is left to do."""
    partition = a_partition(100, OffsetRanges([(0, 39)]))
    partition.commit_answered(OffsetRanges(), 30, OffsetRanges())
    plan = plan_batch([partition], [0], 0.0, LIMITS)
    assert plan is not None
    assert plan.wanted[0] == OffsetRanges([(30, 39)])

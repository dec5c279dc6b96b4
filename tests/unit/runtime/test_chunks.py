"""What members of a cooperative epoch ask for, and which slot gets how much of it."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import AcquisitionId, OffsetRanges, Pending
from commits.model import PARKED_MS
from commits.offsets import MAX_OFFSET
from coopconsume.group.chunks import GroupChunks, PartitionChunks
from coopconsume.group.owned import Failed
from coopconsume.runtime.dispatch.batch import _wanted
from coopconsume.runtime.plan import Limits, Partition, Waiting, plan_batch
from coopconsume.runtime.plan.acquiring import Acquirer
from coopconsume.runtime.plan.ahead import AheadSizes
from coopconsume.runtime.plan.chunk_sizes import FIRST, SECONDS, ChunkSizes
from coopconsume.runtime.plan.slices import deal_ahead, deal_stock
from coopconsume.runtime.read.offset_frames import WantedRows, _spans_by_task
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.realtime.mode import STALLED, RealTimeMode
from coopconsume.worker.channel.messages import decode_chunks, encode_chunks
from coopconsume.worker.report import (
    Failure,
    PartitionReport,
    PartitionWork,
    SlotReport,
    SlotStats,
    pack_offsets,
)
from tests.partitions import make_partition

TP = ("t", 0)


def ranges(*pairs: tuple[int, int]) -> OffsetRanges:
    """A set of offsets."""
    return OffsetRanges(pairs)


def partition(end: int, *, slots: int = 2, number: int = 0, most: int = 1_000_000) -> Partition:
    """A partition of a cooperative epoch with nothing acquired."""
    made = make_partition(
        number, "t", number, stable=0, committed=OffsetRanges(),
        slots=[(slot, (KeyRange(),)) for slot in range(slots)], ordering="none", whole=False,
        max_ranges=most, leads=False,
    )  # fmt: skip
    made.ledger.end = end
    return made


def seen(acquirer: Acquirer, *, expire: tuple[AcquisitionId, ...] = (), **fields: object) -> None:
    """The acquirer has looked at the log."""
    chunks = PartitionChunks(**({"stable": 0} | fields))  # type: ignore[arg-type]
    acquirer.looked(GroupChunks({TP: chunks}, expire, ("a",), int(time.time() * 1000)))


def test_sizes_follow_the_speed_of_each_slot() -> None:
    """They grow by steps, shrink at once, and respect the limits on offsets and on bytes."""
    sizes = ChunkSizes(2, concurrency=3, batch_time=100.0, most=None)
    assert sizes.total() == 2 * 3 * FIRST
    for _ in range(3):
        sizes.reported(SlotReport(0, 0, stats=SlotStats(busy=1.0)), 5_000)
    sizes.reported(SlotReport(0, 1, stats=SlotStats(busy=10.0)), 100)
    assert sizes.of(0) == 5_000 * SECONDS
    assert sizes.of(1) == 10 * SECONDS
    sizes.reported(SlotReport(0, 0), 0)
    assert sizes.of(0) == 5_000 * SECONDS, "it has handled nothing"
    sizes.reported(SlotReport(0, 0, stats=SlotStats(busy=1.0, rows=1, value_bytes=64 << 20)), 5_000)
    assert sizes.of(0) == 2, "two slots with two such records each are 256 MB"
    short = ChunkSizes(2, concurrency=3, batch_time=100.0, most=10)
    short.reported(SlotReport(0, 0, stats=SlotStats(busy=0.001)), 5_000)
    assert short.total() == 10


def test_an_only_member_begins_with_what_a_batch_may_span() -> None:
    """Nobody else waits for these offsets; a slot that has shown its speed keeps its size."""
    sizes = ChunkSizes(2, concurrency=3, batch_time=100.0, most=None)
    sizes.reported(SlotReport(0, 1, stats=SlotStats(busy=10.0)), 100)
    assert (sizes.of(0, 1_000_000), sizes.of(1, 1_000_000)) == (500_000, 10 * SECONDS)
    assert sizes.total(1_000_000) == 500_000 + 10 * SECONDS
    assert sizes.of(0, 10) == 3 * FIRST, "a small window does not make a slice smaller"
    limited = ChunkSizes(2, concurrency=3, batch_time=100.0, most=1_000)
    assert limited.total(1_000_000) == 1_000
    sizes.reported(SlotReport(0, 0, stats=SlotStats(busy=2.0)), 500_000)
    assert sizes.of(0) == 1_000_000, "it grows from what was handled"


def test_a_tail_goes_with_the_slices_before_it() -> None:
    """It would take a batch of its own; a limit on the offsets of a batch holds nevertheless."""
    sizes = ChunkSizes(2, concurrency=1, batch_time=100.0, most=None)
    sizes.reported(SlotReport(0, 0, stats=SlotStats(busy=1.0)), 100)
    sizes.reported(SlotReport(0, 1, stats=SlotStats(busy=1.0)), 200)
    assert sizes.of_batch([0, 1], 1_200) == {0: 400, 1: 800}
    assert sizes.of_batch([0, 1], 1_500) == {0: 500, 1: 1_000}
    assert sizes.of_batch([0, 1], 1_501) == {0: 400, 1: 800}
    assert sizes.of_batch([1], 900) == {1: 900}
    limited = ChunkSizes(2, concurrency=100, batch_time=100.0, most=200)
    assert limited.of_batch([0, 1], 210) == {0: 100, 1: 100}


def test_a_request_takes_a_tail_along() -> None:
    """What nobody has acquired and the demand almost covers is not left for a batch of its own."""
    one = partition(1_000)
    acquirer = Acquirer({TP: one}, 10)
    seen(acquirer)
    for demand, count in ((799, 799), (800, 1_000), (2_000, 1_000)):
        request = acquirer.request(demand)
        assert request is not None
        assert request.wanted[TP].count == count


def test_free_slots_get_slices_by_their_sizes() -> None:
    """Of little each gets its part; a slot with offsets left gets the rest of its size."""
    one = partition(1_000)
    one.chunks.acquire(ranges((0, 299)))
    deal_stock([one], [0, 1], {0: 100, 1: 10}, 0.0)
    assert one.cursors[0].todo == ranges((0, 99))
    assert one.cursors[1].todo == ranges((100, 109))
    deal_stock([one], [0, 1], {0: 100, 1: 30}, 0.0)
    assert one.cursors[1].todo == ranges((100, 129))
    assert one.chunks.undealt == ranges((130, 299))
    few = partition(1_000)
    few.chunks.acquire(ranges((0, 10)))
    deal_stock([few], [0, 1], {0: 300, 1: 100}, 0.0)
    assert [len(share.todo) for share in few.cursors.values()] == [9, 2]


def test_a_slot_that_must_not_start_anything_else_gets_no_slice() -> None:
    """Another owner's handlers may be at work, or its workers end."""
    one = partition(100)
    one.chunks.acquire(ranges((0, 99)))
    one.mark_in_doubt(KeyRange(), 50.0)
    deal_stock([one], [0, 1], {0: 10, 1: 10}, 49.0)
    assert not any(share.todo for share in one.cursors.values())
    one.cursors[0].only = ranges((3, 3))
    deal_stock([one], [0, 1], {0: 10, 1: 10}, 51.0)
    assert [len(share.todo) for share in one.cursors.values()] == [0, 10]


def test_what_is_acquired_again_while_it_is_worked_on_is_not_started_again() -> None:
    """Its outcome counts."""
    one = partition(100, slots=1)
    one.chunks.acquire(ranges((0, 9)))
    deal_stock([one], [0], {0: 5}, 0.0)
    assert plan_batch([one], [0], 0.0, Limits(100, 100)) is not None
    one.chunks.looked(OffsetRanges(), ranges((5, 9)), (), [], 0)
    one.chunks.acquire(ranges((0, 4)))
    assert one.chunks.undealt == ranges((5, 9))
    one.chunks.looked(OffsetRanges(), ranges((5, 9)), (), [], 0)
    one.slots.reported(0, PartitionReport(resume=0), 0.0)
    deal_stock([one], [0], {0: 100}, 0.0)
    plan = plan_batch([one], [0], 0.0, Limits(100, 100))
    assert plan is not None
    assert plan.wanted[0] == ranges((5, 9)), "the others have gone to other members"


def test_what_another_member_has_acquired_is_not_done() -> None:
    """Should it come back to this member, it is handled."""
    one = partition(10, slots=1)
    one.chunks.acquire(ranges((0, 9)))
    deal_stock([one], [0], {0: 10}, 0.0)
    assert plan_batch([one], [0], 0.0, Limits(100, 100)) is not None
    done = pack_offsets(pa.array(range(10), pa.int64()))
    one.slots.reported(0, PartitionReport(done), 0.0)
    assert one.ledger.first_open() == 10
    one.commit_answered(ranges((0, 9)), 5, OffsetRanges())
    one.ledger.not_held(ranges((5, 6)))
    assert one.ledger.first_open() == 5
    one.chunks.acquire(ranges((5, 6)))
    assert one.chunks.undealt == ranges((5, 6))


def test_a_failure_that_is_not_in_the_commit_log_is_not_tried_again() -> None:
    """Though the offset was acquired again meanwhile: the attempt must count first."""
    one = partition(10, slots=1)
    one.chunks.acquire(ranges((0, 0)))
    deal_stock([one], [0], {0: 10}, 0.0)
    assert plan_batch([one], [0], 0.0, Limits(100, 100)) is not None
    one.slots.reported(0, PartitionReport(failed=[Failure(0, 5, None, 1, 0.0, "no")]), 0.0)
    one.chunks.acquire(ranges((0, 0)))
    assert not one.chunks.undealt
    one.chunks.failures_noted(ranges((0, 0)))
    one.chunks.acquire(ranges((0, 0)), [Failed(0, 5, 1, 2.0, "no")])
    assert not one.chunks.undealt
    assert one.lanes.next_due() == 2.0
    assert not one.supply.holes()


def test_a_request_asks_for_what_is_missing_and_no_offset_twice() -> None:
    """The commit log says what others have."""
    one = partition(1_000)
    acquirer = Acquirer({TP: one}, 100)
    assert acquirer.request(50) is None, "the log was not read yet"
    seen(acquirer, stable=10, committed=ranges((20, 29)), held=ranges((30, 989)))
    request = acquirer.request(50)
    assert request is not None
    wanted = request.wanted[TP]
    assert (wanted.count, wanted.last) == (20, 999)
    acquirer.began(request)
    assert acquirer.request(50) is None
    one.ledger.end = 1_100
    again = acquirer.request(50)
    assert again is not None
    assert again.wanted[TP].count == 50
    one.chunks.acquire(ranges((30, 59)))
    assert acquirer.request(50) is None, "it has more than half of what it is to have"


def test_a_request_names_failed_records_once_they_are_due() -> None:
    """Those that wait, or are parked, are not named; nor what is its own already."""
    one = partition(10)
    acquirer = Acquirer({TP: one}, 100)
    later = int(time.time() * 1000) + 600_000
    pending = {
        1: Pending(1), 2: Pending(2, due_ms=later, delay_ms=600_000),
        3: Pending(3, due_ms=PARKED_MS), 4: Pending(4, attempts=2), 5: Pending(5),
    }  # fmt: skip
    one.chunks.failing = ranges((5, 5))
    ours = ranges((4, 5))
    seen(acquirer, committed=ranges((6, 9)), pending=pending, ours=ours, held=ours)
    request = acquirer.request(100)
    assert request is not None
    assert request.wanted[TP].due == ranges((1, 1))
    assert one.lanes.failed.attempts == {4: 2}
    assert [waiting.offset for waiting in one.supply.parked] == [3]
    acquirer.began(request)
    assert acquirer.request(100) is None


def test_parked_records_do_not_keep_a_job_from_its_end() -> None:
    """Other records do, and so does what was done and is not committed."""
    one = partition(6)
    acquirer = Acquirer({TP: one}, 100)
    pending = {offset: Pending(offset, due_ms=PARKED_MS) for offset in (0, 3)}
    seen(acquirer, committed=ranges((1, 1), (4, 5)), pending=pending)
    assert not one.is_drained
    assert not one.has_processed(6)
    assert one.has_processed(2)
    seen(acquirer, committed=ranges((1, 2), (4, 5)), pending=pending)
    assert one.is_drained
    assert one.has_processed(6)


@pytest.mark.parametrize("limit", ["pending", "ranges"])
def test_a_full_partition_gives_what_was_returned_and_nothing_new(limit: str) -> None:
    """As with key ranges: the gaps come first."""
    one = partition(1_000, most=10)
    acquirer = Acquirer({TP: one}, 3 if limit == "pending" else 100)
    one.ledger.log_ranges = 9 if limit == "ranges" else 0
    pending = {n: Pending(n, due_ms=PARKED_MS) for n in range(3)} if limit == "pending" else {}
    seen(acquirer, pending=pending)
    request = acquirer.request(50)
    assert request is not None
    assert request.wanted[TP].last == -1


def test_overdue_chunks_are_expired_once() -> None:
    """Also by a member that needs no offsets."""
    acquirer = Acquirer({TP: partition(0)}, 100)
    gone = AcquisitionId(*TP, "x/request")
    seen(acquirer, expire=(gone,))
    request = acquirer.request(0)
    assert request is not None
    assert request.expire == (gone,)
    acquirer.began(request)
    assert acquirer.request(0) is None


def test_slots_with_a_span_each_read_for_themselves() -> None:
    """Otherwise their slices are read together, and dealt by offset."""
    slices = ((ranges((0, 9)), 1), (ranges((10, 30)), 0))
    wanted = [WantedRows("t", 0, ranges((0, 30)), slices=slices)]
    own = _spans_by_task([Span("t", 0, 0, 30)], wanted, [0, 1])
    assert own == [Span("t", 0, 10, 30), Span("t", 0, 0, 9)]
    mixed = ((ranges((0, 9), (20, 30)), 1), (ranges((10, 19)), 0))
    assert _spans_by_task(
        [Span("t", 0, 0, 30)], [WantedRows("t", 0, ranges((0, 30)), slices=mixed)], [0, 1]
    ) is None  # fmt: skip
    assert _spans_by_task(
        [Span("t", 0, 0, 9), Span("t", 0, 20, 30), Span("t", 0, 10, 19)],
        [WantedRows("t", 0, ranges((0, 30)), slices=mixed)], [0, 1],
    ) is None  # fmt: skip


def test_a_batch_reads_the_slices_of_its_slots() -> None:
    """Each offset goes to one slot."""
    one = partition(100)
    one.chunks.acquire(ranges((0, 99)))
    deal_stock([one], [0, 1], {0: 10, 1: 10}, 0.0)
    plan = plan_batch([one], [0, 1], 0.0, Limits(100, 100))
    assert plan is not None
    assert _wanted(one, plan, plan.slots) == WantedRows(
        "t", 0, ranges((0, 19)), slices=((ranges((0, 9)), 0), (ranges((10, 19)), 1))
    )
    assert plan.fraction == 1.0


# -- slots that read by themselves


def live(end: int, acquired: OffsetRanges) -> Partition:
    """A partition whose slots read by themselves, and what its member has acquired."""
    one = partition(end)
    for slot in one.cursors:
        assert one.slots.read_by(slot) == PartitionWork(((0, MAX_OFFSET),))
    one.chunks.acquire(acquired)
    return one


def packed(*offsets: int) -> bytes:
    """Offsets as reports have them."""
    return pack_offsets(pa.array(offsets, pa.int64()))


def test_a_slot_that_reads_by_itself_gets_chunks_while_it_works() -> None:
    """Each offset once; it has read none of them until it says so."""
    one = live(8, ranges((0, 19)))
    deal_stock([one], [0, 1], {0: 4, 1: 4}, 0.0)
    first = one.slots.hand_out(0, 0.0)
    assert first is not None
    assert first.ranges == ((0, 3),)
    assert one.slots.hand_out(0, 0.0) is None
    share = one.cursors[0]
    assert (share.reading, share.unread) == (0, ranges((0, 3)))
    report = PartitionReport(packed(0), read=packed(0, 1), position=3, holes=[(2, 2), (4, 7)])
    one.slots.progressed(0, report, 0.0)
    assert share.dispatched == ranges((1, 1), (3, 3))
    assert (share.unread, share.reading) == (ranges((3, 3)), 1)
    assert one.ledger.holes_to_commit == ranges((2, 2)), "the others are another slot's"
    deal_stock([one], [0, 1], {0: 4, 1: 4}, 0.0)
    assert one.slots.hand_out(0, 0.0) is None, "no more is there"
    one.ledger.end = 12
    deal_stock([one], [0, 1], {0: 4, 1: 4}, 0.0)
    more = one.slots.hand_out(0, 0.0)
    assert more is not None
    assert more.ranges == ((8, 9),)


def test_what_a_slot_has_not_named_is_left_and_no_hole() -> None:
    """It may not have got its last chunks: its channel was lost, or its time was over."""
    one = live(8, ranges((0, 9)))
    deal_stock([one], [0], {0: 8}, 0.0)
    assert one.slots.hand_out(0, 0.0) is not None
    one.slots.progressed(0, PartitionReport(packed(0), read=packed(0, 1), position=2), 0.0)
    one.slots.reported(0, PartitionReport(packed(1)), 0.0)
    assert one.cursors[0].todo == ranges((2, 7))
    assert not one.supply.holes()
    assert one.cursors[0].dispatched is None


def test_a_batch_reads_no_further_than_the_log_goes() -> None:
    """What was acquired ahead waits for its records; then any slot gets it."""
    one = live(2, ranges((0, 9)))
    deal_stock([one], [0, 1], {0: 4, 1: 4}, 0.0)
    deal_ahead([one], [0, 1], AheadSizes(2, 3), 0.0)
    for slot in (0, 1):
        assert one.slots.hand_out(slot, 0.0) is not None
        one.slots.reported(slot, PartitionReport(), 0.0)
    assert one.cursors[0].todo | one.cursors[1].todo == ranges((0, 5))
    deal_stock([one], [0, 1], {0: 4, 1: 4}, 0.0)
    plan = plan_batch([one], [0, 1], 0.0, Limits(100, 100))
    assert plan is not None
    assert plan.wanted[0] == ranges((0, 1))
    assert one.chunks.undealt == ranges((2, 9))
    one.ledger.end = 7
    deal_stock([one], [0, 1], {0: 0, 1: 0}, 0.0)
    assert not one.cursors[0].todo & ranges((2, 9))
    one.slots.reported(1, PartitionReport(), 0.0)
    other = partition(100, number=1)
    other.chunks.acquire(ranges((0, 49)))
    other.mark_in_doubt(KeyRange(), 50.0)
    deal_stock([one, other], [1], {1: 100}, 0.0)
    assert one.cursors[1].todo == ranges((2, 6))


def test_slots_wait_for_new_records_in_turn() -> None:
    """Each has a slice beyond the end of the log; one that is behind gets no further one."""
    sizes = AheadSizes(2, 3)
    one = live(0, ranges((0, 11)))
    deal_ahead([one], [0, 1], sizes, 0.0)
    assert [share.todo for share in one.cursors.values()] == [ranges((0, 2)), ranges((3, 5))]
    assert one.chunks.undealt == ranges((6, 11))
    for slot in (0, 1):
        assert one.slots.hand_out(slot, 0.0) is not None
    one.slots.progressed(0, PartitionReport(read=packed(0, 1, 2), position=3), 0.0)
    one.slots.progressed(1, PartitionReport(packed(3, 4, 5), read=packed(3, 4, 5), position=6), 0.0)
    deal_ahead([one], [0, 1], sizes, 0.0)
    assert one.slots.hand_out(0, 0.0) is None
    more = one.slots.hand_out(1, 0.0)
    assert more is not None
    assert more.ranges == ((6, 8),)


def test_a_job_acquires_ahead_what_comes_in_a_second() -> None:
    """As far as it handles that; at least two offsets for each handler."""
    sizes = AheadSizes(2, 3)
    assert (sizes.of(0, 0.0), sizes.slice_of(0, 0.0)) == (12, 3)
    sizes.handed_out(0, 300, 0.0)
    sizes.handed_out(0, 500, 0.5)
    assert (sizes.of(0, 0.9), sizes.slice_of(0, 0.9), sizes.of(1, 0.9)) == (800, 200, 12)
    assert sizes.of(0, 1.1) == 800, "those of the last full second"
    assert sizes.of(0, 2.2) == 12
    sizes.handed_out(0, 300, 2.2)
    assert sizes.of(0, 9.0) == 12


def test_sizes_follow_the_speed_of_slots_that_read_by_themselves() -> None:
    """They begin small, and a slot that is stuck gets no more."""
    sizes = ChunkSizes(2, concurrency=3, batch_time=100.0, most=None)
    assert sizes.of_live(0, 0.0, is_at_work=False) == 6
    sizes.progressed(0, 6, 0.1, is_busy=False)
    assert sizes.of_live(0, 0.1, is_at_work=False) == 12, "it was ready with all that it had"
    sizes.progressed(0, 1, 0.2, is_busy=False)
    assert sizes.of_live(0, 0.2, is_at_work=False) == 12
    sizes.progressed(0, 10, 1.0, is_busy=True)
    sizes.progressed(0, 50, 1.5, is_busy=True)
    sizes.progressed(0, 50, 2.0, is_busy=True)
    assert sizes.of_live(0, 2.0, is_at_work=True) == 100 * SECONDS
    sizes.progressed(0, 10, 3.0, is_busy=True)
    assert sizes.of_live(0, 3.0, is_at_work=True) == 10 * SECONDS
    assert sizes.of_live(0, 4.0, is_at_work=True) == 10 * SECONDS
    assert sizes.of_live(0, 4.1, is_at_work=True) == 0
    assert sizes.of_live(0, 4.1, is_at_work=False) == 10 * SECONDS
    assert sizes.of_live(1, 4.1, is_at_work=True) == 6


def test_a_request_asks_ahead_of_the_log() -> None:
    """In turn with other members, before slots have nothing to wait for; what got nothing waits."""
    one = live(100, OffsetRanges())
    acquirer, ahead = Acquirer({TP: one}, 100), {TP: 40}
    seen(acquirer, stable=100, held=ranges((100, 129)))
    assert acquirer.request(50) is None
    request = acquirer.request(50, ahead)
    assert request is not None
    assert (request.wanted[TP].count, request.wanted[TP].last) == (40, 169)
    assert acquirer.is_urgent
    acquirer.began(request)
    acquirer.answered(request, {})
    assert acquirer.request(50, ahead) is None, "the next look at the log may do"
    seen(acquirer, stable=100, held=ranges((100, 129)))
    acquirer.answered(request, {TP: ranges((130, 169))})
    one.chunks.acquire(ranges((130, 169)))
    assert acquirer.request(50, ahead) is None
    one.chunks.settle(ranges((130, 151)), ranges())
    request = acquirer.request(50, ahead)
    assert request is not None
    assert (request.wanted[TP].count, request.wanted[TP].last) == (22, 209)
    assert not acquirer.is_urgent, "it travels with the next commit"


def test_offsets_beyond_the_log_do_not_hide_those_that_nobody_has() -> None:
    """However many of them members hold."""
    one = partition(100)
    acquirer = Acquirer({TP: one}, 100)
    seen(acquirer, stable=90, held=ranges((100, 500)))
    one.chunks.acquire(ranges((100, 300)))
    request = acquirer.request(50)
    assert request is not None
    assert (request.wanted[TP].count, request.wanted[TP].last) == (10, 99)


def test_a_failed_record_that_is_due_goes_to_a_slot_with_its_attempts() -> None:
    """Also with the headers that handlers have added."""
    one = live(10, OffsetRanges())
    added = (("h", b"1"),)
    one.chunks.acquire(ranges((4, 4)), [Failed(4, 5, 2, 7.0, "no", added)])
    slots = [slot for slot, share in one.cursors.items() if share.waiting]
    assert one.slots.hand_out(slots[0], 6.0) is None
    work = one.slots.hand_out(slots[0], 7.0)
    assert work == PartitionWork(((4, 4),), {4: 2}, added={4: added})
    assert decode_chunks(encode_chunks({3: work})) == {3: work}


MODE = RealTimeMode(max_pending=100, small_lag=50)


def why_not(partitions: list[Partition]) -> str:
    """Why the first slot that may not begin must not."""
    return next(filter(None, (MODE.why_not(partitions, slot, 0.0) for slot in (0, 1))), "")


def why_end(partitions: list[Partition], seen: dict[tuple[int, int], float], now: float) -> str:
    """Why the first slot that must end must do so."""
    found = MODE.why_end(partitions, (0, 1), seen, now)
    return found[min(found)].why if found else ""


def test_a_run_of_a_cooperative_job_begins_with_what_is_left() -> None:
    """Not with records that a handler may still be at work on, or with much that nobody has."""
    one = partition(50)
    one.chunks.acquire(ranges((0, 9)), [Failed(4, 5, 2, 0.0, "no")])
    one.cursors[0].todo = ranges((5, 6))
    assert why_not([one]) == ""
    one.ledger.end = 51
    assert "records left" in why_not([one])
    one.commit_answered(OffsetRanges(), 10, OffsetRanges())
    assert why_not([one]) == ""
    one.cursors[1].waiting.add(~20, Waiting(20, 5, 0, 9.0, "", is_running=True))
    assert "tried again" in why_not([one])


def test_a_run_ends_if_chunks_are_lost_or_not_read() -> None:
    """What has gone to other members must not be started."""
    one, at = live(5, ranges((0, 9))), dict[tuple[int, int], float]()
    deal_stock([one], [0], {0: 100}, 0.0)
    assert one.slots.hand_out(0, 0.0) is not None
    assert why_end([one], at, 0.0) == ""
    assert why_end([one], at, STALLED + 1) == "slot 0 does not read t-0"
    one.slots.progressed(0, PartitionReport(read=packed(0, 1), position=2), 0.0)
    assert why_end([one], at, STALLED + 1) == ""
    one.chunks.looked(OffsetRanges(), ranges((0, 9)), (), [], 0)
    assert why_end([one], at, 0.0) == ""
    one.chunks.looked(OffsetRanges(), ranges((0, 3), (5, 9)), (), [], 0)
    assert "gone to other members" in why_end([one], at, 0.0)

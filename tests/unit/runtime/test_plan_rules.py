"""Rules of the planner that a random run may miss, each by one small case."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from assignors import KeyRange, coverage
from commits import OffsetRanges
from coopconsume.group.owned import Failed
from coopconsume.runtime.commit.parcels import Parcel
from coopconsume.runtime.plan import Limits, deal, plan_batch
from coopconsume.runtime.plan.gain import Gain
from coopconsume.worker.report import DeadLetter, Failure, PartitionReport, pack_offsets
from tests.partitions import make_partition

LIMITS = Limits(100, 100)


def partition(*, end=10, stable=0, committed=(), whole=True, slots=1):
    """A partition whose log ends at an offset, dealt to some slots."""
    shares = [(slot, (piece,)) for slot, piece in enumerate(KeyRange().split(slots))]
    made = make_partition(
        0, "t", 0, stable=stable, committed=OffsetRanges(committed), slots=shares,
        ordering="key", whole=whole,
    )  # fmt: skip
    made.ledger.end = end
    return made


def dealt(partition):
    """The key ranges of each slot."""
    return [(slot, share.ranges) for slot, share in partition.cursors.items()]


def failed(offset, key_hash, delay=5.0):
    """A record that is to be tried again."""
    return Failure(offset, key_hash, b"k", 1, delay, "not yet")


def packed(*offsets):
    """Offsets as a report carries them."""
    return pack_offsets(pa.array(offsets, pa.int64()))


def test_every_key_with_a_waiting_record_is_blocked_in_the_next_batch():
    """The first one, too: a later record of its key would start before it."""
    p = partition()
    p.slots.plan([0], 0.0, LIMITS)
    waiting = [failed(2, 70), failed(4, 80), failed(6, 90)]
    p.slots.reported(0, PartitionReport(packed(0, 1, 3, 5, 7, 8, 9), None, waiting), 0.0)
    p.ledger.end = 20
    plan = plan_batch([p], [0], 1.0, LIMITS)
    assert plan is not None
    work = plan.work[0][0]
    assert work.ranges == ((10, 19),)
    assert work.blocked == {70: 2, 80: 4, 90: 6}


def test_what_a_slot_reported_while_it_worked_is_not_done_again():
    """Its worker ends: what is left is planned again, behind the record that failed."""
    p = partition()
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.progressed(0, PartitionReport(packed(0, 2, 3), None, [failed(1, 70)]), 0.0)
    assert p.ledger.to_commit.pairs() == [(0, 0), (2, 3)]
    assert not p.slots.plan([0], 0.0, LIMITS)  # It still works.
    p.slots.progressed(0, PartitionReport(packed(5)), 0.0)
    ended = PartitionReport(b"", 0, [failed(5, 80), failed(6, 90)])
    counted = p.slots.reported(0, ended, 0.0)
    assert [failure.offset for failure in counted.failed] == [6]
    assert p.lanes.failed.attempts == {1: 1, 6: 1}
    plan = plan_batch([p], [0], 1.0, LIMITS)
    assert plan is not None
    work = plan.work[0][0]
    assert work.ranges == ((4, 4), (7, 9))
    assert work.blocked == {70: 1, 90: 6}


def test_a_failed_record_waits_until_it_is_due_and_its_key_with_it():
    """Before, neither it nor what is behind it is planned; then both are, the lower one first."""
    p = partition(end=4)
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.reported(0, PartitionReport(packed(0, 2), None, [failed(1, 70, 5.0)], [(3, 70)]), 10.0)
    assert not p.slots.plan([0], 14.9, LIMITS)
    assert p.lanes.next_due() == 15.0
    assert p.slots.plan([0], 15.0, LIMITS)[0].pairs() == [(1, 1), (3, 3)]
    assert p.slots.work(0).attempts == {1: 1}
    assert not p.slots.work(0).blocked


def test_nothing_beyond_the_end_of_the_log_is_planned():
    """Records that are not there yet would count as holes."""
    p = partition(end=7)
    assert p.slots.plan([0], 0.0, LIMITS)[0].pairs() == [(0, 6)]
    p.slots.reported(0, PartitionReport(packed(0, 1, 2, 3, 4, 5, 6)), 0.0)
    assert not p.supply.holes()
    assert p.supply.position == 7


def test_part_of_a_partition_proves_no_hole():
    """What came to no slot of ours may be another member's."""
    p = partition(whole=False)
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.reported(0, PartitionReport(packed(0, 1, 9)), 0.0)
    assert not p.supply.holes()
    assert p.supply.unclaimed(0, 9).pairs() == [(2, 8)]


def test_a_slot_whose_outcome_is_unknown_has_all_of_its_part_to_do_again():
    """Nothing of it counts as done, and nothing of it as a hole."""
    p = partition(slots=2)
    p.slots.plan([0, 1], 0.0, LIMITS)
    p.slots.reported(0, PartitionReport(packed(0, 1)), 0.0)
    p.slots.unknown(1)
    assert p.ledger.to_commit.pairs() == [(0, 1)]
    assert not p.supply.holes()
    assert p.slots.plan([1], 0.0, LIMITS)[1].pairs() == [(2, 9)]


def test_a_slot_waits_for_an_earlier_owner_alone():
    """Of two slots only the one in doubt is held back, and only until its time has come."""
    p = partition(slots=2)
    p.cursors[1].barred_until = 5.0
    assert set(p.slots.plan([0, 1], 4.9, LIMITS)) == {0}
    assert p.lanes.next_due() == 5.0
    assert set(p.slots.plan([1], 5.0, LIMITS)) == {1}


def test_a_key_waits_for_an_earlier_owner_alone():
    """Its records wait in their order until the doubt ends; all other keys of its slot go on."""
    p = partition(end=6)
    p.mark_in_doubt(KeyRange(70, 70), 3.0)
    p.mark_in_doubt(KeyRange(70, 70), 5.0)
    assert p.in_doubt(1.0) == 4.0
    plan = plan_batch([p], [0], 1.0, LIMITS)
    assert plan is not None
    assert plan.work[0][0].blocked == {70: -1}
    p.slots.reported(0, PartitionReport(packed(0, 2, 4, 5), blocked=[(1, 70), (3, 70)]), 1.0)
    assert not p.slots.plan([0], 4.0, LIMITS)
    assert not p.supply.holes()
    assert p.lanes.may_run((), 4.0) == []
    assert p.slots.plan([0], 5.0, LIMITS)[0].pairs() == [(1, 1), (3, 3)]
    assert p.slots.work(0).blocked == {}


def test_a_failed_record_of_a_key_in_doubt_is_tried_once_the_doubt_ends():
    """Also if nothing else of the partition is left to do."""
    p = partition(end=3, committed=[(0, 1)])
    p.mark_in_doubt(KeyRange(70, 70), 5.0)
    p.restore([Failed(2, 70, 1, 0.0, "not yet")])
    assert plan_batch([p], [0], 4.0, LIMITS) is None
    plan = plan_batch([p], [0], 5.0, LIMITS)
    assert plan is not None
    assert plan.wanted == {0: OffsetRanges([(2, 2)])}


def test_what_is_in_doubt_of_a_slot_that_gave_records_back_is_what_it_kept():
    """Also once it is lost, until no handler of it can run; of any other slot it is all it has."""
    p = partition(slots=2)
    p.slots.plan([0, 1], 0.0, LIMITS)
    p.slots.given_back(0, PartitionReport(packed(0)), [(1, 70), (4, 80)], 1.0)
    halves = KeyRange().split(2)
    kept = [KeyRange(70, 70), KeyRange(80, 80)]
    assert p.lanes.may_run({1}, 1.0) == [*kept, halves[1]]
    assert p.lanes.may_run({0}, 1.0) == [halves[0]]
    p.slots.kept_progressed(OffsetRanges([(1, 1), (4, 4)]), PartitionReport(packed(1)), 2.0)
    p.slots.kept_ended(OffsetRanges([(4, 4)]), 7.0)
    assert p.lanes.may_run((), 6.0) == [KeyRange(80, 80)]
    assert p.lanes.may_run_until() == 7.0
    assert p.lanes.may_run((), 7.0) == []


def test_of_two_pending_records_of_a_key_the_lower_one_goes_first():
    """In whatever order the commit log has them."""
    for pending in ([3, 8], [8, 3]):
        p = partition()
        p.restore([Failed(offset, 70, 1, 5.0 + offset, "not yet") for offset in pending])
        assert [w.offset for w in p.cursors[0].waiting.lowest.values()] == [3]


def test_what_a_share_has_not_read_is_no_hole():
    """Nor is it claimed by anybody else: the share has still to look at it."""
    p = partition(whole=False, slots=2)
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.reported(0, PartitionReport(packed(0, 1)), 0.0)
    assert not p.supply.unclaimed(0, 9)
    p.slots.plan([1], 0.0, LIMITS)
    p.slots.reported(1, PartitionReport(packed(2)), 0.0)
    assert p.supply.unclaimed(0, 9).pairs() == [(3, 9)]


def test_gaps_come_before_anything_new():
    """After a start all undone offsets below the highest done one are read first.

    They may be too far apart to be read in one batch, and leave capacity in it.
    """
    gaps = [10_000 * number for number in range(1, 21)]
    done = [(gap + 1, gap + 9_999) for gap in gaps]
    p = partition(stable=10_000, end=300_000, committed=done)
    seen = []
    while len(seen) < len(gaps):
        offsets = p.slots.plan([0], 0.0, Limits(100_000, 100))[0].offsets().tolist()
        seen += offsets
        p.slots.reported(0, PartitionReport(packed(*offsets)), 0.0)
    assert seen[: len(gaps)] == gaps


def test_pending_records_are_those_of_the_commit_log_and_the_limit_counts_what_waits_behind():
    """Status lines, metrics and `coopconsume offsets` show one number."""
    p = partition()
    p.slots.plan([0], 0.0, LIMITS)
    waiting = [failed(0, 7), failed(1, 8, math.inf)]
    p.slots.reported(
        0, PartitionReport(packed(2, *range(5, 10)), None, waiting, [(3, 7), (4, 8)]), 0.0
    )
    assert (p.supply.pending, len(p.supply.parked), p.supply.held_back) == (2, 1, 4)
    p.ledger.end = 20
    assert not p.slots.plan([0], 0.0, Limits(100, 4))
    assert p.slots.plan([0], 0.0, Limits(100, 5))


def test_a_record_that_is_tried_again_is_pending_until_it_is_done():
    """Else its number would come and go with each attempt."""
    p = partition()
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.progressed(0, PartitionReport(retrying=[failed(1, 8)]), 0.0)
    assert p.supply.pending == 1
    p.slots.reported(0, PartitionReport(packed(*range(1, 10)), None, [failed(0, 7)]), 0.0)
    assert p.supply.pending == 1
    assert p.slots.plan([0], 10.0, LIMITS) == {0: OffsetRanges([(0, 0)])}
    assert (p.blocker(10.0)["state"], p.supply.pending) == ("in flight", 1)
    p.slots.progressed(0, PartitionReport(retrying=[failed(0, 7)]), 10.0)
    assert p.supply.pending == 1
    p.slots.reported(0, PartitionReport(packed(0)), 11.0)
    assert p.supply.pending == 0


def test_what_waits_of_keys_that_are_given_up_is_forgotten():
    """Only a handler that still runs is remembered, until it ends; other keys go on waiting."""
    p = partition()
    low, high = KeyRange().split(2)
    p.slots.plan([0], 0.0, LIMITS)
    waiting = [failed(2, 70), failed(4, high.first), failed(5, high.last, math.inf)]
    report = PartitionReport(packed(0, 1, 3), None, waiting)
    p.slots.given_back(0, report, [(6, high.first + 1)], 0.0)
    assert (p.supply.pending, len(p.supply.parked)) == (3, 1)
    p.leave([high])
    assert p.dealer.leaves(0.0)
    p.slots.kept_ended(OffsetRanges([(6, 6)]), 0.0)
    assert not p.dealer.leaves(0.0)
    p.has_left(0.0)
    assert (p.supply.pending, p.supply.parked) == (1, [])
    p.deal_again(2, 0.0)
    assert [share.ranges for share in p.cursors.values()] == [(half,) for half in low.split(2)]
    assert [len(share.waiting) for share in p.cursors.values()] == [1, 0]
    assert p.lanes.next_due() == 5.0


def test_nothing_is_dealt_again_that_a_slot_may_still_start():
    """Another slot would have it at the same time."""
    p = partition(slots=2)
    low, high = KeyRange().split(2)
    p.slots.plan([0], 0.0, LIMITS)
    p.leave([high])
    p.has_left(0.0)
    p.deal_again(2, 0.2)
    assert dealt(p) == [(0, (low,)), (1, ())]
    assert (p.dealer.slot_to_ask(0.2), p.dealer.slot_to_ask(1.0)) == (None, 0)
    p.slots.reported(0, PartitionReport(packed(*range(10))), 1.0)
    p.deal_again(2, 1.0)
    assert dealt(p) == deal((low,), 2, 0, "key")
    assert not p.is_undealt


def gained(*, pending=(), in_doubt=()):
    """A partition that has gained its second half, and may start that at 5.0."""
    _, high = KeyRange().split(2)
    p = partition()
    p.leave([high])
    p.has_left(0.0)
    p.extend(Gain((high,), 0, OffsetRanges(), pending, in_doubt, until=5.0))
    return p


def test_what_is_dealt_before_an_earlier_owner_has_ended_is_barred_until_then():
    """Its batch may end before it has begun, and the records are planned again."""
    p = gained()
    assert p.starts_at(4.0) == 4.0, "its first half"
    p.deal_again(1, 4.9)
    assert dealt(p) == [(0, (KeyRange().split(2)[0],))]
    p.deal_again(1, 5.0)
    assert dealt(p) == [(0, (KeyRange(),))]
    assert (p.in_doubt(4.0), p.starts_at(4.0), p.starts_at(6.0)) == (1.0, 5.0, 6.0)
    assert p.slots.plan([0], 5.0, LIMITS) == {0: OffsetRanges([(0, 9)])}
    p.slots.unknown(0)
    assert plan_batch([p], [0], 4.9, LIMITS) is None
    assert p.slots.plan([0], 5.0, LIMITS) == {0: OffsetRanges([(0, 9)])}


def test_key_ranges_that_no_slot_has_stay_barred_in_their_next_slot():
    """They were dealt before their earlier owner has ended, as a slot was not free."""
    quarters = KeyRange().split(4)
    p = partition()
    p.leave(quarters[1:])
    p.has_left(0.0)
    p.extend(Gain(tuple(quarters[2:]), 0, OffsetRanges(), until=5.0))
    p.leave(quarters[:1])
    p.deal_again(2, 5.0)
    assert dict(dealt(p)).keys() == {0, 1, -1}
    p.has_left(4.1)
    p.deal_again(2, 5.0)
    assert dict(dealt(p)).keys() == {0, 1}
    assert plan_batch([p], [0, 1], 4.2, LIMITS) is None
    assert plan_batch([p], [0, 1], 5.0, LIMITS)


@pytest.mark.parametrize(
    "waits",
    [
        {"pending": [Failed(3, KeyRange().last, 1, 4.5, "not yet")]},
        {"in_doubt": [(KeyRange(KeyRange().last), 5.0)]},
    ],
)
def test_a_record_that_waits_no_longer_than_its_key_range_is_in_the_first_batch(waits):
    """It is planned for the end of the wait, whenever that is done."""
    p = gained(**waits)
    p.deal_again(1, 5.0)
    work = plan_batch([p], [0], 5.0, LIMITS).work[0][0]
    assert (work.ranges, work.blocked) == (((0, 9),), {})


def test_a_bar_that_is_over_does_not_keep_the_loop_awake():
    """Its slot may be at work on another partition, so that nothing of it is planned."""
    p = gained()
    p.ledger.end = 0
    p.deal_again(1, 5.0)
    p.update_quiet(4.9)
    assert (p.ledger.is_quiet, p.lanes.next_due()) == (False, 5.0)
    p.update_quiet(5.0)
    assert (p.ledger.is_quiet, p.lanes.next_due()) == (True, None)


def take_turns(p, slots, now=0.0):
    """Has slots give back whenever they are asked to, each with a batch of its own.

    Returns:
        The slots that were asked.
    """
    asked = []
    for _ in range(9):
        now += 1.0
        p.deal_again(slots, now)
        for slot in range(slots):
            if p.cursors[slot].dispatched is None:
                p.slots.plan([slot], now, LIMITS)
        slot = p.dealer.slot_to_ask(now)
        if slot is not None:
            asked.append(slot)
            p.slots.given_back(slot, PartitionReport(), [], now)
    return asked


@pytest.mark.parametrize("pieces", [2, 3])
def test_slots_that_come_free_one_after_another_are_dealt_evenly(pieces):
    """Each is asked at most once, however their batches overlap, and only if one has nothing.

    One that has more than the others gives its part once it comes free.
    """
    p = partition(slots=2)
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.plan([1], 0.0, LIMITS)
    *_, moved = KeyRange().split(pieces)
    p.leave([moved])
    p.dealer.withheld(1, {})
    p.has_left(0.0)
    asked = take_turns(p, 2)
    if pieces == 2:
        assert asked == [0, 1]
    else:
        assert asked == []
        p.slots.given_back(0, PartitionReport(), [], 9.5)
        assert take_turns(p, 2, 9.5) == [1]
    sizes = [share.size for share in p.cursors.values()]
    assert max(sizes) - min(sizes) <= 1
    p.extend(Gain((moved,), 0, OffsetRanges()))
    assert len(take_turns(p, 2, 20.0)) == (2 if pieces == 2 else 1)
    assert not p.is_undealt
    assert coverage(one for share in p.cursors.values() for one in share.ranges).holes == ()


def test_records_that_wait_go_with_their_keys_to_the_next_slot_that_comes_free():
    """Until then they have no slot; what is to leave meanwhile does not come to any."""
    p = partition(slots=2)
    _, second, third, fourth = KeyRange().split(4)
    p.slots.plan([0], 0.0, LIMITS)
    p.slots.plan([1], 0.0, LIMITS)
    p.leave([third, fourth])
    p.dealer.withheld(1, {})
    p.has_left(0.0)
    report = PartitionReport(packed(0), None, [failed(2, second.first), failed(3, second.last)])
    p.slots.reported(0, report, 1.0)
    p.deal_again(2, 1.0)
    assert dealt(p)[-1] == (-1, (second,))
    assert (p.supply.pending, p.supply.holes(), p.is_drained) == (2, OffsetRanges(), False)
    p.ledger.end = 20
    assert p.slots.plan([0], 1.0, LIMITS)
    upper = KeyRange(second.last, second.last)
    p.leave([upper])
    p.dealer.withheld(0, {})
    p.slots.reported(1, PartitionReport(), 1.0)
    p.extend(Gain((third,), 0, OffsetRanges()))
    p.deal_again(2, 1.0)
    assert dealt(p)[1:] == [(-1, (second,)), (1, (third,))], "it is dealt while part of it leaves"
    p.has_left(1.0)
    p.deal_again(2, 1.0)
    assert -1 not in p.cursors
    assert [waiting.offset for waiting in p.cursors[1].waiting.records()] == [2]
    assert p.supply.pending == 1


def test_nothing_is_dealt_again_while_key_ranges_leave():
    """The slots would not know which of theirs do: a member would work on what others have."""
    p = partition(slots=2)
    low, high = KeyRange().split(2)
    first, second = high.split(2)
    p.leave([first])
    p.has_left(0.0)
    p.leave([low])
    p.deal_again(2, 1.0)
    assert not p.ledger.is_whole
    p.has_left(2.0)
    p.deal_again(2, 3.0)
    assert dealt(p) == deal((second,), 2, 0, "key")


def test_what_comes_waits_until_no_earlier_owner_can_be_at_work():
    """The rest goes on; what is taken away again before that never begins."""
    first, second, third, fourth = KeyRange().split(4)
    p = partition(whole=False)
    p.cursors[0].ranges = (first,)
    p.extend(Gain((second,), 0, OffsetRanges([(4, 4)]), until=5.0))
    p.extend(Gain((third, fourth), 0, OffsetRanges(), [Failed(9, third.first, 2, 7.0, "no")]))
    assert (p.in_doubt(1.0), p.is_undealt, p.is_drained) == (4.0, True, False)
    assert p.slots.plan([0], 1.0, LIMITS)[0].pairs() == [(0, 3), (5, 9)]
    p.deal_again(2, 1.0)
    assert dealt(p) == [(0, (first,)), (1, (KeyRange(third.first, fourth.last),))]
    lower, upper = second.split(2)
    p.leave([upper, fourth])
    p.has_left(1.0)
    p.deal_again(2, 1.0)
    assert dealt(p) == [(0, (first,)), (1, (third,))]
    assert (p.lanes.next_due(), p.is_undealt, p.supply.holes()) == (7.0, True, OffsetRanges())
    p.slots.reported(0, PartitionReport(packed(0, 1, 2)), 1.0)
    p.deal_again(2, 4.0)
    assert dealt(p) == [(0, (first,)), (1, (third,))]
    p.deal_again(2, 5.0)
    assert dealt(p) == deal((KeyRange(first.first, lower.last), third), 2, 0, "key")
    assert not p.is_undealt


def test_a_partition_is_not_drained_before_gained_ranges_have_started():
    """A job that handles what is there would end without it."""
    p = partition(end=0)
    assert p.is_drained
    p.extend(Gain((KeyRange(),), 0, OffsetRanges(), until=5.0))
    p.update_quiet(0.0)
    assert not p.is_drained
    assert not p.ledger.is_quiet


def test_a_slot_without_key_ranges_holds_back_no_hole():
    """It does not look again at what it was to look at as it had some."""
    _, high = KeyRange().split(2)
    p = partition(slots=2)
    p.slots.plan([1], 0.0, LIMITS)
    p.slots.unknown(1)
    p.leave([high])
    p.has_left(0.0)
    assert p.slots.plan([0], 0.0, LIMITS)[0].pairs() == [(0, 9)]
    p.slots.reported(0, PartitionReport(packed(5)), 0.0)
    p.extend(Gain((high,), 0, OffsetRanges([(7, 7)])))
    p.deal_again(2, 1.0, {1})
    assert dealt(p) == [(1, ()), (0, KeyRange().split(1))]
    assert p.slots.plan([0, 1], 1.0, LIMITS)[0].pairs() == [(0, 4), (6, 6), (8, 9)]
    p.slots.reported(0, PartitionReport(packed(6)), 1.0)
    assert p.supply.holes().pairs() == [(0, 4), (8, 9)]


def test_what_is_left_once_others_have_gone_is_a_hole():
    """With the last key range that others had the partition is whole."""
    low, high = KeyRange().split(2)
    p = partition(whole=False)
    p.cursors[0].ranges = (low,)
    p.extend(Gain((high,), 2, OffsetRanges([(5, 9)])))
    p.deal_again(1, 1.0)
    assert p.slots.plan([0], 1.0, LIMITS)[0].pairs() == [(2, 4)]
    p.slots.reported(0, PartitionReport(packed(3)), 1.0)
    assert p.supply.holes().pairs() == [(2, 2), (4, 4)]


def test_a_partition_with_leaving_ranges_is_not_whole():
    """Others will do some of what is left: it is no hole."""
    low, high = KeyRange().split(2)
    p = partition(whole=False, slots=2)
    p.cursors[0].ranges, p.cursors[1].ranges = (low,), ()
    p.slots.plan([0], 1.0, LIMITS)
    p.extend(Gain((high,), 0, OffsetRanges()))
    first, _ = low.split(2)
    p.leave([first])
    p.deal_again(2, 1.0)
    assert dealt(p) == [(0, (low,)), (1, (high,))]
    assert not p.ledger.is_whole


def test_records_of_keys_that_have_left_are_not_planned_again():
    """Their slot names them as it ends; the other keys of its batch are."""
    p = partition(end=4)
    low, high = KeyRange().split(2)
    p.slots.plan([0], 0.0, LIMITS)
    p.leave([high])
    p.dealer.withheld(0, {0: low.first, 1: high.first})
    assert p.dealer.leaves(0.0)
    assert p.lanes.may_run((), 0.0) == [KeyRange(high.first, high.first)]
    p.dealer.withheld(0, {})
    assert not p.dealer.leaves(0.0)
    p.has_left(0.0)
    p.slots.reported(0, PartitionReport(packed(0), blocked=[(2, high.last), (3, low.last)]), 1.0)
    assert p.slots.plan([0], 1.0, LIMITS)[0].pairs() == [(3, 3)]


def test_records_of_returned_keys_are_planned_for_any_slot():
    """The slot that had them before says that it did not start them: they are no holes."""
    p = partition(slots=2)
    first, second, third, fourth = KeyRange().split(4)
    p.slots.plan([0, 1], 0.0, LIMITS)
    p.slots.reported(1, PartitionReport(packed(0, 1, 4, 5, 6, 7, 8, 9)), 0.0)
    p.leave([first, fourth])
    p.dealer.withheld(0, {})
    p.has_left(0.0)
    p.extend(Gain((first,), 0, OffsetRanges()))
    p.deal_again(2, 1.0)
    assert dealt(p) == [(0, (second,)), (1, (first, third))]
    p.slots.reported(0, PartitionReport(packed(2), blocked=[(3, first.first)]), 1.0)
    assert not p.supply.holes()
    planned = p.slots.plan([1], 1.0, LIMITS)
    assert {slot: part.pairs() for slot, part in planned.items()} == {1: [(3, 3)]}


def test_parked_records_settle_nothing_above_the_known_end():
    """As after a restart: all that is known is done, and the log goes on further than that."""
    p = partition(end=6, committed=[(0, 2), (4, 5)])
    p.restore([Failed(3, 70, 1, math.inf, "parked")])
    p.slots.plan([0], 0.0, LIMITS)
    assert p.is_drained
    assert p.has_processed(6)
    assert not p.has_processed(7)
    p.ledger.end = 7
    assert not p.has_processed(7)


def test_headers_that_were_added_to_a_record_go_with_its_next_attempt():
    """Also after a restart, a hand-over, a lost worker, and when a parked record is replayed."""
    added = (("step", b"bank"), ("none", None))
    p = partition(end=4, committed=[(0, 1)])
    p.restore([Failed(2, 70, 3, math.inf, "parked", added), Failed(3, 80, 1, 1.0, "no", added)])
    assert [one.headers for one in p.supply.parked] == [added]
    p.replay(2, 0.5)
    plan = plan_batch([p], [0], 2.0, LIMITS)
    assert plan is not None
    work = plan.work[0][0]
    assert (work.attempts, work.added) == ({3: 1}, {2: added, 3: added})
    more = (*added, ("more", b"1"))
    again = Failure(3, 80, b"k", 2, 0.0, "no", headers=more)
    p.slots.progressed(0, PartitionReport(packed(), None, [again]), 2.0)
    p.slots.charge(2, "it died")
    p.slots.unknown(0)
    plan = plan_batch([p], [0], 3.0, LIMITS)
    assert plan is not None
    work = plan.work[0][0]
    assert (work.attempts, work.added) == ({3: 2}, {2: added, 3: more})
    assert work.ended == {2: "it died"}
    p.slots.reported(0, PartitionReport(packed(2, 3)), 3.0)
    assert p.lanes.failed.last(2) is None
    assert p.lanes.failed.last(3) is None


def test_headers_that_a_real_time_slot_has_added_outlive_the_slot():
    """Its reports name them although it tries the record again by itself."""
    p = partition(end=1)
    p.slots.plan([0], 0.0, LIMITS)
    again = Failure(0, 70, b"k", 1, 0.0, "no", headers=(("step", b"bank"),))
    p.slots.has_read(0, PartitionReport(retrying=[again]), 0.0)
    p.slots.unknown(0)
    plan = plan_batch([p], [0], 1.0, LIMITS)
    assert plan is not None
    assert plan.work[0][0].added == {0: (("step", b"bank"),)}


def test_a_dead_letter_that_cannot_be_written_keeps_the_headers_of_its_record():
    """Its next owner makes the last attempt again, with the same headers."""
    added = (("step", b"bank"),)
    letter = DeadLetter("t", 0, 4, b"k", b"v", 0, added, 3, "no", "", added)
    ((record,),) = Parcel(letters=[letter]).records().values()
    assert (record.attempts, record.headers) == (3, added)

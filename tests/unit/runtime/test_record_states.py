"""No record is in two states: what `Partition.check`, which the models call, refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan import Waiting
from coopconsume.runtime.plan.ledger import OffsetLedger
from tests.partitions import make_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.runtime.plan import Partition

SLOTS = [(0, KeyRange().split(2)[:1]), (1, KeyRange().split(2)[1:])]
SOME = OffsetRanges([(5, 5)])


def waits(offset: int, *behind: int) -> Waiting:
    """A failed record of the key with hash 7, with records behind it."""
    return Waiting(offset, 7, 1, 0.0, "no", behind=list(behind))


def _in_two_cursors(partition: Partition) -> None:
    for cursor in partition.cursors.values():
        cursor.waiting.lowest[7] = waits(5)


def _out_of_order(partition: Partition) -> None:
    first = waits(6)
    first.next = waits(5)
    partition.cursors[0].waiting.lowest[7] = first


def _behind_a_higher_one(partition: Partition) -> None:
    partition.cursors[0].waiting.lowest[7] = waits(5, 4)


def _in_a_foreign_lane(partition: Partition) -> None:
    partition.cursors[0].waiting.lowest[8] = waits(5)


def _below_the_stable_offset(partition: Partition) -> None:
    partition.ledger.done = OffsetRanges([(2, 2)])


def _committed_too_early(partition: Partition) -> None:
    partition.ledger.to_commit = partition.ledger.undelivered = SOME


def _a_record_and_a_hole(partition: Partition) -> None:
    ledger = partition.ledger
    ledger.done = ledger.to_commit = ledger.holes_to_commit = SOME


def _an_open_hole(partition: Partition) -> None:
    partition.ledger.holes_to_commit = SOME


def _filtered_and_open(partition: Partition) -> None:
    partition.ledger.filtered_to_commit = SOME


def _a_chunk_without_chunks(partition: Partition) -> None:
    partition.cursors[0].unread = SOME


@pytest.mark.parametrize(
    "break_it",
    [
        _in_two_cursors, _out_of_order, _behind_a_higher_one, _in_a_foreign_lane,
        _below_the_stable_offset, _committed_too_early, _a_record_and_a_hole, _an_open_hole,
        _filtered_and_open, _a_chunk_without_chunks,
    ],
)  # fmt: skip
def test_a_record_in_two_states_is_refused(break_it: Callable[[Partition], None]) -> None:
    """By an assertion of the check, which takes the partition before."""
    partition = make_partition(slots=SLOTS, stable=3, end=10)
    partition.check()
    break_it(partition)
    with pytest.raises(AssertionError):
        partition.check()


def _undealt_without_being_acquired(partition: Partition) -> None:
    partition.chunks.undealt = SOME


def _failed_and_acquired(partition: Partition) -> None:
    partition.chunks.acquired = partition.chunks.failing = SOME


def _dealt_twice(partition: Partition) -> None:
    partition.chunks.acquired = SOME
    for cursor in partition.cursors.values():
        cursor.todo = SOME


@pytest.mark.parametrize(
    "break_it", [_undealt_without_being_acquired, _failed_and_acquired, _dealt_twice]
)
def test_an_acquired_record_in_two_states_is_refused(
    break_it: Callable[[Partition], None],
) -> None:
    """Likewise where members share chunks."""
    slots = [(slot, (KeyRange(),)) for slot in range(2)]
    partition = make_partition(slots=slots, end=10, ordering="none", whole=False, leads=False)
    partition.check()
    break_it(partition)
    with pytest.raises(AssertionError):
        partition.check()


def test_what_a_filter_dropped_may_wait_for_an_output() -> None:
    """An output that hears of all records hears of these, too, before they are committed."""
    partition = make_partition(slots=SLOTS)
    partition.ledger.settle(SOME, SOME)
    partition.ledger.defer(SOME)
    partition.check()
    partition.commit_answered(SOME, 0, OffsetRanges())
    partition.check()
    assert not partition.ledger.filtered_to_commit


#: What may be said of offsets that lie above the stable offset, or no longer do.
_OFFSETS = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(OffsetRanges.from_offsets)
_LATE = ("add_holes", "add_committed", "delivered", "replace_committed")


@given(st.lists(st.tuples(st.sampled_from((*_LATE, "discard", "advance")), _OFFSETS), max_size=8))
def test_what_is_said_late_is_not_done_below_the_stable_offset(
    events: list[tuple[str, OffsetRanges]],
) -> None:
    """An epoch, a slot or a decision may speak of offsets that a commit has passed meanwhile."""
    ledger = OffsetLedger(0, OffsetRanges(), is_whole=False)
    for name, offsets in events:
        assert offsets.first is not None
        given = offsets.first if name in ("discard", "advance") else offsets
        getattr(ledger, name)(given)
        ledger.check()


@given(_OFFSETS, st.lists(st.integers(0, 12), min_size=2, max_size=2))
def test_what_is_deferred_late_does_not_wait_below_the_stable_offset(
    offsets: OffsetRanges, stable: list[int]
) -> None:
    """Its commit is no longer waited for: the log has passed it."""
    ledger = OffsetLedger(0, OffsetRanges(), is_whole=False)
    ledger.advance(stable[0])
    ledger.settle(offsets, filtered=offsets)
    ledger.defer(offsets)
    ledger.check()
    ledger.advance(stable[1])
    ledger.check()


def test_what_a_commit_has_passed_is_not_remembered_as_filtered() -> None:
    """Else it would be kept as long as the partition is ours."""
    ledger = OffsetLedger(0, OffsetRanges(), is_whole=False)
    ledger.settle(SOME, SOME)
    ledger.defer(SOME)
    ledger.advance(9)
    assert not ledger.filtered_to_commit

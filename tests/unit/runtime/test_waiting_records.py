"""What waits in a cursor: records that have failed, by lane, and those behind them."""

from __future__ import annotations

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan import Waiting
from coopconsume.runtime.plan.waiting_records import WaitingRecords


def waits(offset: int, *behind: int, key: int = 7, is_running: bool = False) -> Waiting:
    """A failed record that is due at 5.0, with records behind it."""
    return Waiting(offset, key, 1, 5.0, "no", behind=list(behind), is_running=is_running)


def test_of_keys_that_leave_only_what_handlers_work_on_waits_and_nothing_behind_it() -> None:
    """What is behind it belongs to the next owner."""
    records = WaitingRecords()
    for one in (waits(1, 2), waits(3, 4, is_running=True), waits(5, 6, key=9)):
        records.add(one.key_hash, one)
    records.leave([KeyRange(7, 7)])
    assert records.offsets() == OffsetRanges.from_offsets([3, 5, 6])
    assert [one.offset for one in records.may_run(0.0)] == [3]


def test_a_lane_is_released_record_by_record() -> None:
    """With the record that is due come those behind it, and not those of later failures."""
    records = WaitingRecords()
    later = waits(4, 6)
    later.due = 9.0
    for one in (later, waits(1, 2, 3)):
        records.add(one.key_hash, one)
    assert not records.release_due(4.0, 0, OffsetRanges())
    assert records.release_due(5.0, 0, OffsetRanges()) == OffsetRanges([(1, 3)])
    assert (len(records), records.next_due(0.0), records.due_by(8.0)) == (1, 9.0, 0)
    assert records.release_below(5) == OffsetRanges([(6, 6)])
    assert (len(records), records.next_due(0.0), records.next_due(3.0)) == (0, None, 3.0)

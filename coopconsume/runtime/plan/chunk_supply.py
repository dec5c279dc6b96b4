"""The offsets of a partition that a member of a cooperative epoch has acquired. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from assignors import MAX_KEY_HASH
from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.waiting_record import Waiting
from coopconsume.worker.report import unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from coopconsume.group.owned import Failed
    from coopconsume.runtime.plan.cursor import SlotCursor
    from coopconsume.runtime.plan.lanes import Lanes
    from coopconsume.runtime.plan.ledger import OffsetLedger
    from coopconsume.worker.report import Failure, PartitionReport

#: What is smaller than this part of what is taken is a tail.
_TAIL: Final = 4


class ChunkSupply:
    """The acquired offsets of a partition that have no outcome yet. Slots get slices of them.

    Args:
        ledger: What is done.
        lanes: What waits.
        leads: As in `Owned`.

    Attributes:
        acquired: The offsets that this member holds and that have no outcome.
        undealt: Those of them that no slot has.
        failing: Offsets that have failed; they are held until the failure is in the commit log.
        pending: How many records of the partition are pending, of all members.
        has_lost: Whether slots that read by themselves have chunks that this member does not hold.
    """

    shares_chunks: ClassVar[bool] = True

    def __init__(self, ledger: OffsetLedger, lanes: Lanes, *, leads: bool = False) -> None:
        self.acquired = self.undealt = self.failing = OffsetRanges()
        self.pending = 0
        self.has_lost = False
        self._parked: Sequence[Failed] = ()
        self._leads = leads
        self._ledger = ledger
        self._lanes = lanes

    # -- what is acquired

    def acquire(self, offsets: OffsetRanges, failed: Iterable[Failed] = ()) -> None:
        """Takes offsets that this member has acquired.

        What it works on, or has an outcome of, is not started again: it may have acquired an
        offset once more that it did not hold for a while.

        Args:
            offsets: The offsets.
            failed: The last failures of those of them that have failed before. Each waits until it
                is due.
        """
        ledger, lanes = self._ledger, self._lanes
        ledger.wake()
        claimed = ledger.done | ledger.undelivered | self.failing | lanes.claimed()
        new = offsets.clip(ledger.stable, MAX_OFFSET) - self.acquired - claimed
        slots = sorted(lanes.cursors)
        again = [one for one in failed if one.offset in new]
        for one in again:
            waiting = lanes.failed.add(Waiting(**vars(one)))
            cursor = lanes.cursors[slots[one.offset % len(slots)]]
            lanes.decided.hasten([waiting])
            cursor.waiting.add(lanes.lane(one.key_hash, one.offset), waiting)
        self.acquired |= new
        self.undealt |= new - OffsetRanges.from_offsets([one.offset for one in again])

    def looked(
        self,
        committed: OffsetRanges,
        acquired: OffsetRanges,
        failed: Iterable[Failed],
        parked: Sequence[Failed],
        pending: int,
    ) -> None:
        """Takes what the commit log says of the partition.

        Args:
            committed: What is committed above the stable offset.
            acquired: What this member has acquired.
            failed: The last failures of these.
            parked: All records that wait for a decision.
            pending: How many records have failed and wait.
        """
        self._ledger.replace_committed(committed)
        self._parked, self.pending = parked, pending
        new = acquired - self.acquired - self.failing
        self.acquired &= acquired
        self.undealt &= acquired
        self.failing &= acquired
        self.acquire(new, failed)
        lost = OffsetRanges()
        for cursor in self._lanes.cursors.values():
            if cursor.dispatched is None:
                cursor.todo &= self.acquired
            elif cursor.is_real_time:
                lost |= cursor.dispatched - self.acquired
        self.has_lost = bool(lost.clip(self._ledger.stable, MAX_OFFSET) - self._ledger.done)

    def below(self, end: int) -> OffsetRanges:
        """Returns the offsets that no slot has, up to the end of the log."""
        return self.undealt.clip(0, end - 1)

    def take(self, count: int, end: int = MAX_OFFSET) -> OffsetRanges:
        """Returns the next offsets for a slot, at most so many, all of them below an end."""
        taken = self.below(end).head(count)
        self.undealt -= taken
        return taken

    def give_back(self, offsets: OffsetRanges) -> None:
        """Takes back offsets from a slot that has not started them."""
        self.undealt |= offsets & self.acquired

    def hand_out(self, cursor: SlotCursor, now: float) -> OffsetRanges:
        """Has a slot that reads by itself handle what it was dealt; returns what is new to it."""
        assert cursor.dispatched is not None
        ledger = self._ledger
        cursor.release_due(now, ledger.stable, ledger.done)
        new = cursor.todo - cursor.dispatched
        if not new:
            return new
        new = (new - ledger.done - cursor.waiting.offsets()) & self.acquired
        cursor.todo = cursor.dispatched | new
        if new:
            ledger.wake()
            cursor.dispatched |= new
            cursor.unread |= new
        return new

    def failures_noted(self, offsets: OffsetRanges) -> None:
        """Takes failures that are in the commit log now: any member may acquire the records."""
        self.failing -= offsets

    # -- see `Supply`

    @property
    def position(self) -> int:
        """The end of the log: what others have acquired is not known."""
        return self._ledger.end

    @property
    def left(self) -> int:
        """See `Supply`."""
        stable, end = self._ledger.stable, self._ledger.end
        done = self._ledger.done.clip(stable, end - 1) if end > stable else OffsetRanges()
        return max(0, end - stable - len(done) - self.pending)

    def left_of(self, cursor: SlotCursor) -> int:  # noqa: ARG002
        """See `Supply`."""
        return self.left

    @property
    def owns_first(self) -> bool:
        """See `Supply`."""
        return self._leads

    @property
    def held_back(self) -> int:
        """See `Supply`."""
        return self.pending

    @property
    def parked(self) -> Sequence[Failed]:
        """See `Supply`."""
        return [waiting for waiting in self._parked if waiting.offset not in self._ledger.done]

    @property
    def is_quiet(self) -> bool:
        """See `Supply`."""
        return not (self.acquired or self.failing)

    def is_drained(self, *, is_full: bool) -> bool:  # noqa: ARG002
        """See `Supply`."""
        return self.first_free() >= self._ledger.end

    def has_processed(self, end: int) -> bool:
        """See `Supply`."""
        return self.first_free() >= end

    def first_free(self) -> int:
        """See `Supply`."""
        if not self.parked:
            return self._ledger.first_open()
        parked = OffsetRanges.from_offsets([waiting.offset for waiting in self._parked])
        return self._ledger.first_open(self._lanes.stuck() | parked)

    def holes(self) -> OffsetRanges:
        """Returns acquired offsets that no slot has, and that have no outcome."""
        ledger = self._ledger
        known = ledger.done | ledger.undelivered | self._lanes.claimed()
        return self.acquired - self.undealt - known

    def may_be_hole(self, offset: int) -> bool:  # noqa: ARG002
        """See `Supply`: who acquires an offset finds out."""
        return False

    def startable(self, offsets: OffsetRanges) -> OffsetRanges:
        """See `Supply`: the rest has gone to other members."""
        return offsets & self.acquired

    def next_of(self, cursor: SlotCursor) -> int | None:
        """See `Supply`."""
        return cursor.unread.first

    def readable(self, position: int) -> tuple[tuple[int, int], ...]:  # noqa: ARG002
        """See `Supply`: the slot starts what it is handed out."""
        return ((0, MAX_OFFSET),)

    def has_read(self, cursor: SlotCursor, report: PartitionReport) -> OffsetRanges:
        """See `Supply`."""
        if report.position is None:
            return OffsetRanges()
        read = OffsetRanges.from_offsets(unpack_offsets(report.read).to_numpy())
        holes = OffsetRanges(report.holes).clip(self._ledger.stable, MAX_OFFSET)
        holes = (holes - self._ledger.done) & (cursor.dispatched or OffsetRanges())
        cursor.passed(read, holes)
        return holes

    def not_started(self, cursor: SlotCursor, left: OffsetRanges) -> OffsetRanges:
        """Returns all that is dispatched to a slot that reads by itself.

        It may not even have got it; holes it has named.
        """
        return cursor.dispatched or OffsetRanges() if cursor.is_real_time else left

    def hashes(self, slots: Collection[int]) -> int:  # noqa: ARG002
        """See `Supply`: all that is read is for these slots."""
        return MAX_KEY_HASH + 1

    def settle(self, done: OffsetRanges, failed: OffsetRanges) -> None:
        """See `Supply`. Once a failure is in the commit log, any member tries the record again."""
        self.acquired = self.acquired - done - failed
        self.undealt -= done
        self.failing = (self.failing | failed) - done
        if failed:
            self._lanes.failed.remove_all(failed)

    def fail(self, failure: Failure, now: float) -> None:
        """See `Supply`: the member that acquires the record tries it again."""

    def forget_below(self, stable: int) -> None:
        """See `Supply`."""
        self.acquired = self.acquired.clip(stable, MAX_OFFSET)
        self.undealt = self.undealt.clip(stable, MAX_OFFSET)
        self.failing = self.failing.clip(stable, MAX_OFFSET)

    def check(self) -> None:
        """See `Supply`."""
        assert not self.undealt - self.acquired, "to be dealt, and not acquired"
        assert not self.acquired & self.failing, "failed, and without an outcome"
        dealt = self.undealt
        for cursor in self._lanes.cursors.values():
            own = cursor.todo & self.acquired
            assert not own & dealt, f"slot {cursor.slot} has what another one has"
            dealt |= own


def with_tail(count: int, most: int) -> int:
    """Returns how many of some offsets to take: all of them, if only a tail would be left.

    A tail would take a batch of its own, which costs as much as many records.

    Args:
        count: How many are wanted.
        most: How many there are.
    """
    return most if most <= count + count // _TAIL else count

"""What a member has of a partition: key ranges (here), or chunks of offsets. Pure.

Slots start only what the supply of their partition has for them. The two supplies answer the same
questions, so nothing else has to know how the members of a group share a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.cursor import MOST_APART
from coopconsume.worker.report import unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from coopconsume.group.owned import Failed
    from coopconsume.runtime.plan.cursor import SlotCursor
    from coopconsume.runtime.plan.dealer import Dealer
    from coopconsume.runtime.plan.lanes import Lanes
    from coopconsume.runtime.plan.ledger import OffsetLedger
    from coopconsume.worker.report import Failure, PartitionReport


class Supply(Protocol):
    """What a member has of a partition, for its slots."""

    #: Whether the members of the group share the partition by chunks of offsets.
    shares_chunks: ClassVar[bool]

    @property
    def position(self) -> int:
        """Everything below was looked at, or is in some cursor's ``todo``."""

    @property
    def left(self) -> int:
        """How many offsets up to the end were not looked at, as far as it is known."""

    def left_of(self, cursor: SlotCursor) -> int:
        """Returns how many of these offsets the slot of a cursor has not looked at."""

    @property
    def owns_first(self) -> bool:
        """Whether this member has hash 0, or leads: it speaks for the whole partition."""

    @property
    def pending(self) -> int:
        """The number of failed records that are not done.

        Parked records are among them, those whose rows or letters cannot be written for now, and
        those that a real-time slot tries again by itself, which the commit log does not have. Where
        chunks are shared they are nobody's own: those of all members count.
        """

    @property
    def held_back(self) -> int:
        """The number of failed records that wait, and of records behind one of their key."""

    @property
    def parked(self) -> Sequence[Failed]:
        """Records that were given up, and hold their keys back until somebody decides."""

    @property
    def is_quiet(self) -> bool:
        """Whether it has nothing more for the slots, nor expects anything."""

    @property
    def has_lost(self) -> bool:
        """Whether slots that read by themselves have what this member does not hold any more."""

    def is_drained(self, *, is_full: bool) -> bool:
        """Whether nothing up to the end is left to do, wait for, hear of or prove a hole.

        Args:
            is_full: Whether nothing may be read, as too much waits for a decision.
        """

    def has_processed(self, end: int) -> bool:
        """Whether all below an offset waits for nothing but decisions on parked records."""

    def first_free(self) -> int:
        """Returns the first open offset that does not wait for a parked record."""

    def holes(self) -> OffsetRanges:
        """Returns offsets that are proven to have no record: they will never be delivered."""

    def may_be_hole(self, offset: int) -> bool:
        """Whether only a read of the log shows if there is a record at an open offset."""

    def startable(self, offsets: OffsetRanges) -> OffsetRanges:
        """Returns those of some offsets that slots may still start."""

    def next_of(self, cursor: SlotCursor) -> int | None:
        """Returns the next offset that a slot reads by itself; None: it has none to read."""

    def readable(self, position: int) -> tuple[tuple[int, int], ...]:
        """Returns what a slot may start that reads by itself, as ranges.

        Args:
            position: The first offset that it reads.
        """

    def has_read(self, cursor: SlotCursor, report: PartitionReport) -> OffsetRanges:
        """Takes how far a slot has read by itself; returns the holes that it has found."""

    def hand_out(self, cursor: SlotCursor, now: float) -> OffsetRanges:
        """Has a slot that reads by itself handle what it was dealt; returns what is new to it."""

    def not_started(self, cursor: SlotCursor, left: OffsetRanges) -> OffsetRanges:
        """Returns what must be looked at again of what is dispatched, at the end of a slot.

        Args:
            cursor: Of the slot.
            left: What it has not reached, as its report says.
        """

    def hashes(self, slots: Collection[int]) -> int:
        """Returns for how many key hashes some slots start records of what is read."""

    def settle(self, done: OffsetRanges, failed: OffsetRanges) -> None:
        """Takes the outcomes of records: those that are done, and those that have failed."""

    def fail(self, failure: Failure, now: float) -> None:
        """Takes the failure of a record: who tries it again."""

    def failures_noted(self, offsets: OffsetRanges) -> None:
        """Takes failures that are in the commit log now."""

    def forget_below(self, stable: int) -> None:
        """Forgets all below the stable offset."""

    def check(self) -> None:
        """Checks that slots have nothing that this member does not have.

        Raises:
            AssertionError: One has.
        """


class KeyRangeSupply:
    """The records of some key ranges of a partition. Each slot has part of them, and reads on.

    Args:
        ledger: What is done.
        lanes: What waits.
        dealer: The key ranges that come and go.
    """

    shares_chunks: ClassVar[bool] = False
    #: A key range that goes is given back before somebody else has it.
    has_lost = False

    def __init__(self, ledger: OffsetLedger, lanes: Lanes, dealer: Dealer) -> None:
        self._ledger = ledger
        self._lanes = lanes
        self._dealer = dealer

    @property
    def _cursors(self) -> Collection[SlotCursor]:
        return self._lanes.cursors.values()

    @property
    def position(self) -> int:
        """See `Supply`."""
        return min((s.position for s in self._cursors if s.ranges), default=self._ledger.end)

    @property
    def left(self) -> int:
        """See `Supply`."""
        return self._ledger.end - self.position

    def left_of(self, cursor: SlotCursor) -> int:
        """See `Supply`."""
        return self._ledger.end - cursor.position if cursor.ranges else 0

    @property
    def owns_first(self) -> bool:
        """See `Supply`."""
        ranges = [one for gain in self._dealer.gains for one in gain.ranges]
        ranges += [one for cursor in self._cursors for one in cursor.ranges]
        return any(one.contains(0) for one in ranges)

    @property
    def pending(self) -> int:
        """See `Supply`."""
        found = self._lanes.failed_offsets()
        found.update(
            one.offset
            for one in self._lanes.failed.all
            if any(cursor.handles(one.offset) for cursor in self._cursors)
        )
        return len(found) + self._ledger.stalled

    @property
    def held_back(self) -> int:
        """See `Supply`."""
        behind = sum(len(waiting.behind) for waiting in self._lanes.waiting())
        return len(self._lanes.failed_offsets()) + self._ledger.stalled + behind

    @property
    def parked(self) -> Sequence[Failed]:
        """See `Supply`."""
        return self._lanes.parked

    @property
    def is_quiet(self) -> bool:
        """See `Supply`."""
        return not self._dealer.gains

    def is_drained(self, *, is_full: bool) -> bool:
        """See `Supply`."""
        end = self._ledger.end
        if self._ledger.is_whole and not is_full and self.first_free() < end:
            return False
        return all(cursor.is_drained(end, is_full=is_full) for cursor in self._cursors)

    def has_processed(self, end: int) -> bool:
        """See `Supply`."""
        # What came since is not asked for.
        if self._ledger.is_whole and self.first_free() < end:
            return False
        return all(cursor.has_processed(end) for cursor in self._cursors)

    def first_free(self) -> int:
        """See `Supply`."""
        return self._ledger.first_open(self._lanes.stuck() if self.parked else None)

    def holes(self) -> OffsetRanges:
        """Returns the offsets that all cursors have passed and nobody got.

        Proven only where this member has the whole partition: every read covers its window to the
        end, below the last stable offset that was asked for before, so what came to no slot was
        not there. Found only as far as they hold the stable offset back or lie above it.
        """
        first, position = self.first_free(), self.position
        if not self._ledger.is_whole or first >= position:
            return OffsetRanges()
        if any(first in cursor.claimed() for cursor in self._cursors):
            return OffsetRanges()
        return self.unclaimed(first, position - 1)

    def may_be_hole(self, offset: int) -> bool:
        """See `Supply`: it belongs to another member, or is a hole, if no slot looks at it."""
        return bool(self.unclaimed(offset, offset))

    def unclaimed(self, first: int, last: int) -> OffsetRanges:
        """Offsets of a range that are neither done nor claimed by any cursor; of many the first."""
        taken = self._ledger.done
        for cursor in self._cursors:
            taken = taken | cursor.claimed()
            if cursor.ranges and cursor.position <= last:
                last = cursor.position - 1
        return taken.complement(first, min(last, first + MOST_APART - 1))

    def startable(self, offsets: OffsetRanges) -> OffsetRanges:
        """See `Supply`."""
        return offsets

    def next_of(self, cursor: SlotCursor) -> int | None:
        """See `Supply`."""
        return cursor.position

    def readable(self, position: int) -> tuple[tuple[int, int], ...]:
        """See `Supply`."""
        done = self._ledger.done
        last = done.last
        if last is None or last < position:
            return ((position, MAX_OFFSET),)
        return (*done.gaps(position, last), (last + 1, MAX_OFFSET))

    def has_read(self, cursor: SlotCursor, report: PartitionReport) -> OffsetRanges:
        """See `Supply`. A slot whose worker has ended says only which records it had begun."""
        ledger, offsets = self._ledger, unpack_offsets(report.read)
        if report.position is None:
            if report.read and cursor.is_real_time:
                last = int(offsets[-1].as_py())
                ledger.end = max(ledger.end, last + 1)
                cursor.had_begun(last)
            return OffsetRanges()
        holes = OffsetRanges(report.holes).clip(ledger.stable, MAX_OFFSET) - ledger.done
        read = OffsetRanges.from_offsets(offsets.to_numpy()).clip(ledger.stable, MAX_OFFSET)
        cursor.has_read(read, report.position)
        return holes

    def hand_out(self, cursor: SlotCursor, now: float) -> OffsetRanges:  # noqa: ARG002
        """See `Supply`: its slots read on without being handed anything."""
        return OffsetRanges()

    def not_started(self, cursor: SlotCursor, left: OffsetRanges) -> OffsetRanges:  # noqa: ARG002
        """See `Supply`."""
        return left

    def hashes(self, slots: Collection[int]) -> int:
        """See `Supply`."""
        return sum(self._lanes.cursors[slot].size for slot in slots)

    def settle(self, done: OffsetRanges, failed: OffsetRanges) -> None:
        """See `Supply`: a key range has no account of single records."""

    def fail(self, failure: Failure, now: float) -> None:
        """Has the record wait: this member tries it again, and its lane waits for it."""
        self._lanes.fail(failure, now)

    def failures_noted(self, offsets: OffsetRanges) -> None:
        """See `Supply`."""

    def forget_below(self, stable: int) -> None:
        """See `Supply`."""

    def check(self) -> None:
        """See `Supply`."""
        for cursor in self._cursors:
            outside = [one for one in cursor.leaving.ranges if not cursor.has(one.first)]
            assert not outside, f"slot {cursor.slot} gives back what it does not have"
            assert not cursor.unread, f"slot {cursor.slot} has chunks"

"""Decides which slots of a job read by themselves, and which get batches.

Batches catch up with the log. Once little is left for a slot, it begins to read by itself. Work
that it cannot do, such as gaps and retries, ends that, and batches catch up again. Each slot is
looked at by itself: the others do not wait for it. Pure: callers pass the time.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from coopconsume.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coopconsume.runtime.plan import Partition, SlotCursor

log = logging.getLogger(__name__)

#: Offsets that a partition may have left when a run begins.
SMALL_LAG: Final = 20_000
#: Committed ranges above the position of a cursor with which a run may begin.
_MOST_RANGES: Final = 10_000
#: Seconds in which all slots of a run must have connected.
START_TIME: Final = 30.0
#: Seconds after which a slot that does not read although there are records ends the run.
STALLED: Final = 10.0
#: No run begins if a retry is due within this time, in seconds.
_SOON: Final = 1.0
#: Pause after a failed run, in seconds; each further failure doubles it, up to a limit.
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
#: Seconds of a run after which its failures are counted from 0 again.
_WORKED: Final = 10.0


class Ending(NamedTuple):
    """Why slots that read by themselves must end.

    Attributes:
        why: The reason, for people.
        is_failure: Whether they should wait until they begin again, as they may fail again.
    """

    why: str
    is_failure: bool = False


@dataclass
class RealTimeMode:
    """Decides for each slot when it begins to read by itself, and when it ends.

    Args:
        max_pending: Pending and held-back records of a partition that end a run.
        small_lag: Offsets of a partition that a slot may have left when it begins.

    Attributes:
        why: Why the last slot has ended; for people.
    """

    max_pending: int
    small_lag: int = SMALL_LAG
    why: str = ""
    _backoffs: dict[int, Backoff] = field(default_factory=dict)
    _failed_at: dict[int, float] = field(default_factory=dict)

    def why_not(self, partitions: Iterable[Partition], slot: int, now: float) -> str:
        """Returns why a slot must not begin now; empty: it may."""
        if slot in self._backoffs and now < self._backoffs[slot].not_before:
            return self.why or "a real-time run has failed"
        for partition in partitions:
            name = f"{partition.topic}-{partition.partition}"
            cursor = partition.cursors.get(slot)
            if cursor is not None and partition.supply.left_of(cursor) > self.small_lag:
                return f"{name} has more than {self.small_lag:,} records left"
            if cursor is not None and (full := self._full(partition)):
                return f"{name} {full}"
            why = _unready(partition, cursor, now)
            if why:
                return f"{name} {why}"
        return ""

    def why_end(
        self,
        partitions: Iterable[Partition],
        slots: Collection[int],
        read_at: dict[tuple[int, int], float],
        now: float,
    ) -> dict[int, Ending]:
        """Returns why slots that read by themselves must end; those without a reason continue.

        Args:
            partitions: Those with something left to do, and those that no slot reads.
            slots: The slots.
            read_at: When the slot (second) was last seen to read the partition (first).
            now: The time.
        """
        found: dict[int, Ending] = {}
        for partition in partitions:
            name = f"{partition.topic}-{partition.partition}"
            changed, full = _has_changed(partition, now), self._full(partition)
            for slot in slots:
                cursor = partition.cursors.get(slot)
                if changed:
                    found.setdefault(slot, Ending(f"{name} {changed}"))
                elif cursor is None or not cursor.staying:
                    continue
                elif full:
                    found.setdefault(slot, Ending(f"{name} {full}"))
                elif why := _why_end_of(partition, cursor, now):
                    found.setdefault(slot, Ending(f"{name} {why}"))
                elif not self._reads(partition, cursor, read_at, now):
                    stalled = f"slot {slot} does not read {name}"
                    found.setdefault(slot, Ending(stalled, is_failure=True))
        return found

    @staticmethod
    def _reads(
        partition: Partition, cursor: SlotCursor, read_at: dict[tuple[int, int], float], now: float
    ) -> bool:
        """Whether a slot reads on at its cursor, or was seen to do so not long ago."""
        first = partition.supply.next_of(cursor)
        if cursor.reading or first is None or first >= partition.ledger.end:
            read_at.pop((partition.index, cursor.slot), None)
            return True
        return now - read_at.setdefault((partition.index, cursor.slot), now) <= STALLED

    def _full(self, partition: Partition) -> str:
        """Returns why nothing new of a partition may be read; empty: it may."""
        if partition.ledger.has_outputs_enough:
            return "is at its limit of outputs, maxOutputsWaiting"
        if partition.ledger.is_at_limit:
            return "is at its limit of ranges, maxNumRanges"
        return (
            "has too many records that wait"
            if partition.supply.held_back >= self.max_pending
            else ""
        )

    def failed(self, slot: int, started: float, now: float) -> None:
        """Notes that a slot has failed: it begins later, as it may fail again.

        Args:
            slot: The slot.
            started: When it began. It fails once at most.
            now: The time.
        """
        backoff = self._backoffs.setdefault(slot, Backoff(_PAUSE, _LONGEST_PAUSE))
        if self._failed_at.get(slot, -math.inf) > started:
            return
        self._failed_at[slot] = now
        if now - started > _WORKED:
            backoff.succeeded()
        backoff.failed(now)


def _unready(partition: Partition, cursor: SlotCursor | None, now: float) -> str:
    """Returns why a slot cannot begin to read by itself now; empty: it can.

    Args:
        partition: A partition of the job.
        cursor: The cursor of the slot in it, if it has one.
        now: The time.
    """
    if cursor is not None:
        why = _unready_cursor(cursor, now, gets_chunks=partition.supply.shares_chunks)
        if why:
            return why
        if _has_many_ranges(partition, cursor):
            return "has too many ranges"
    if partition.in_doubt(now) > 0:
        return "waits for an earlier owner"
    return "has key ranges that no slot has" if partition.is_undealt else ""


def _has_many_ranges(partition: Partition, cursor: SlotCursor) -> bool:
    """Whether too many ranges are done above the position of a cursor: its slot gets all of them.

    While a slot was lost, the others went on.
    """
    done, last = partition.ledger.done, partition.ledger.done.last
    if last is None or last < cursor.position or done.range_count <= _MOST_RANGES:
        return False
    return done.clip(cursor.position, last).range_count > _MOST_RANGES


def _unready_cursor(cursor: SlotCursor, now: float, *, gets_chunks: bool) -> str:
    """Returns why the slot of a cursor cannot read by itself now; empty: it can."""
    if cursor.dispatched is not None or cursor.only is not None:
        return "is in a batch"
    if any(w.is_trying or w.is_running for w in cursor.waiting.records()):
        return "has records that are to be tried again"
    if gets_chunks:
        return ""  # Slots get what is left, and what is due.
    if cursor.todo:
        return "has gaps"
    if any(_is_due(cursor, now + _SOON)):
        return "has records that are to be tried again"
    return ""


def _why_end_of(partition: Partition, cursor: SlotCursor, now: float) -> str:
    """Returns why a slot that reads by itself must end for a partition; empty: it continues."""
    if not cursor.is_real_time:
        return "" if cursor.is_barred(now) else "has key ranges that no slot reads"
    if partition.supply.shares_chunks:
        return ""
    if any(_is_due(cursor, now)):
        return "has a record that is to be tried again"
    return "has records that were left" if len(cursor.todo) > len(cursor.dispatched or ()) else ""


def _is_due(cursor: SlotCursor, now: float) -> Collection[bool]:
    """Returns for the first failed record of each lane that stays whether it is due."""
    lowest, leaving = cursor.waiting.lowest.values(), cursor.leaving
    return [w.due <= now for w in lowest if not leaving.has(w.key_hash)]


def _has_changed(partition: Partition, now: float) -> str:
    """Returns what has come or gone that slots do not know of; empty: nothing."""
    if partition.supply.has_lost:
        return "has chunks that have gone to other members"
    if any(gain.until <= now for gain in partition.dealer.gains):
        return "has key ranges that no slot has"
    return ""

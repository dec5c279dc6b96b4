"""Decides when a job runs in real time, and when in batches. Pure: callers pass the time.

Batches catch up with the log. Once little is left, a real-time run begins. Work that its slots
cannot do, such as retries and gaps, ends the run; then batches catch up again.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coopconsume.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coopconsume.runtime.plan import Partition, SlotCursor

log = logging.getLogger(__name__)

#: Offsets that a partition may have left when a run begins.
SMALL_LAG: Final = 20_000
#: Committed ranges above the position of a cursor with which a run may begin.
_MOST_RANGES: Final = 1_000
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


@dataclass
class RealTimeMode:
    """Decides when runs begin and end.

    Args:
        duration: Seconds of a run.
        max_pending: Pending and held-back records of a partition that end a run.
        small_lag: Offsets that a partition may have left when a run begins.

    Attributes:
        why: Why the last run has ended; for people.
    """

    duration: float
    max_pending: int
    small_lag: int = SMALL_LAG
    why: str = ""
    _backoff: Backoff = field(default_factory=lambda: Backoff(_PAUSE, _LONGEST_PAUSE))

    def why_not(self, partitions: Iterable[Partition], now: float) -> str:
        """Returns why a run must not begin now; empty: it may."""
        if now < self._backoff.not_before:
            return self.why or "a real-time run has failed"
        for partition in partitions:
            name = f"{partition.topic}-{partition.partition}"
            if partition.left > self.small_lag:
                return f"{name} has more than {self.small_lag:,} records left"
            if self._is_full(partition):
                return f"too many records of {name} wait"
            why = _unready(partition, now)
            if why:
                return f"{name} {why}"
        return ""

    def why_end(
        self, partitions: Iterable[Partition], read_at: dict[tuple[int, int], float], now: float
    ) -> str:
        """Returns why a run must end; empty: it continues.

        Args:
            partitions: Those with something left to do, and those that no slot reads.
            read_at: When the slot (second) was last seen to read the partition (first).
            now: The time.
        """
        for partition in partitions:
            name = f"{partition.topic}-{partition.partition}"
            if self._is_full(partition):
                return f"too many records of {name} wait"
            why = _has_changed(partition, now)
            if why:
                return f"{name} {why}"
            for cursor in partition.cursors.values():
                if not (cursor.is_real_time and cursor.staying):
                    continue
                if partition.stock is None and any(_is_due(cursor, now)):
                    return f"a record of {name} is to be tried again"
                if partition.stock is None and len(cursor.todo) > len(cursor.dispatched or ()):
                    return f"{name} has records that were left"
                if not self._reads(partition, cursor, read_at, now):
                    return f"slot {cursor.slot} does not read {name}"
        return ""

    @staticmethod
    def _reads(
        partition: Partition, cursor: SlotCursor, read_at: dict[tuple[int, int], float], now: float
    ) -> bool:
        """Whether a slot reads on at its cursor, or was seen to do so not long ago."""
        first = cursor.position if partition.stock is None else cursor.unread.first
        if cursor.reading or first is None or first >= partition.end:
            read_at.pop((partition.index, cursor.slot), None)
            return True
        return now - read_at.setdefault((partition.index, cursor.slot), now) <= STALLED

    def _is_full(self, partition: Partition) -> bool:
        return partition.is_at_limit or partition.held_back >= self.max_pending

    def next_due(self, partitions: Iterable[Partition]) -> float | None:
        """Returns when the next failed record is due; None: no record is."""
        dues = [
            waiting.due
            for partition in partitions
            for cursor in partition.cursors.values()
            for waiting in cursor.waiting.values()
            if math.isfinite(waiting.due)
        ]
        return min(dues, default=None)

    def ended(self, why: str, started: float, now: float, *, failed: bool) -> None:
        """Notes the end of a run.

        Args:
            why: The reason, for people; empty: its time was over.
            started: When it began.
            now: The time.
            failed: Whether the next one should wait, as it may fail again.
        """
        self.why = why
        if now - started > _WORKED:
            self._backoff.succeeded()
        if failed:
            self._backoff.failed(now)


def _unready(partition: Partition, now: float) -> str:
    """Returns why slots cannot read a partition by themselves now; empty: they can."""
    for cursor in partition.cursors.values():
        why = _unready_cursor(cursor, now, gets_chunks=partition.stock is not None)
        if why:
            return why
        last = partition.done.last or 0
        if partition.done.range_count > _MOST_RANGES and last > cursor.position:
            return "has too many ranges"
    if partition.in_doubt(now) > 0:
        return "waits for an earlier owner"
    return "has key ranges that no slot has" if partition.is_undealt else ""


def _unready_cursor(cursor: SlotCursor, now: float, *, gets_chunks: bool) -> str:
    """Returns why the slot of a cursor cannot read by itself now; empty: it can."""
    if cursor.dispatched is not None or cursor.only is not None:
        return "is in a batch"
    if any(w.is_trying or w.is_running for w in cursor.failed()):
        return "has records that are to be tried again"
    if gets_chunks:
        return ""  # Slots get what is left, and what is due.
    if cursor.todo:
        return "has gaps"
    if any(_is_due(cursor, now + _SOON)):
        return "has records that are to be tried again"
    return ""


def _is_due(cursor: SlotCursor, now: float) -> Collection[bool]:
    """Returns for the first failed record of each lane that stays whether it is due."""
    return [w.due <= now for w in cursor.waiting.values() if not cursor.leaves(w.key_hash)]


def _has_changed(partition: Partition, now: float) -> str:
    """Returns what has come or gone that slots do not know of; empty: nothing."""
    if partition.has_lost_chunks:
        return "has chunks that have gone to other members"
    return "has key ranges that no slot has" if _has_gained(partition, now) else ""


def _has_gained(partition: Partition, now: float) -> bool:
    """Whether key ranges have come that batches may begin with now."""
    if any(gain.until <= now for gain in partition.dealer.gains):
        return True
    cursors = [cursor for cursor in partition.cursors.values() if cursor.ranges]
    return bool(cursors) and not any(
        cursor.is_real_time or cursor.is_barred(now) for cursor in cursors
    )

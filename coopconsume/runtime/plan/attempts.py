"""When failed records are tried again, by a batch or by the slot that has read them. Pure.

A real-time slot tries its records again by itself. Until such a record is due, it is pending as one
that waits for a batch is, although it is dispatched; then its handler runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.runtime.plan.partition import Partition


def attempts_in(partition: Partition, slot: int, now: float) -> list[float]:
    """Returns when records are due that wait in a slot, which has read them.

    Args:
        partition: Of the records.
        slot: The slot.
        now: The time, on the monotonic clock.
    """
    dispatched = partition.cursors[slot].dispatched
    if not dispatched:
        return []
    failed = partition.lanes.failed.all
    return [one.due for one in failed if one.offset in dispatched and one.is_between_attempts(now)]


def next_attempt(partition: Partition, now: float) -> float | None:
    """Returns when the next failed record is tried again; None: none waits for an attempt.

    Args:
        partition: Of the records.
        now: The time, on the monotonic clock.
    """
    dues = [due for slot in partition.cursors for due in attempts_in(partition, slot, now)]
    for cursor in partition.cursors.values():
        if not cursor.is_at_work or cursor.is_real_time:
            due = cursor.waiting.next_due(cursor.barred_until)
            dues += [] if due is None else [due]
    return min(dues, default=None)

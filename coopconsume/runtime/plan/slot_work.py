"""What the slots of a job are given of a partition, and what they report of it. Pure."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.cursor import scope_of
from coopconsume.runtime.plan.reads import MERGE_GAP, reach_of
from coopconsume.runtime.plan.waiting_record import Waiting
from coopconsume.worker.report import PartitionWork, unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coopconsume.runtime.plan.cursor import SlotCursor
    from coopconsume.runtime.plan.lanes import Lanes
    from coopconsume.runtime.plan.ledger import OffsetLedger
    from coopconsume.runtime.plan.range_limit import Limits
    from coopconsume.runtime.plan.supply import Supply
    from coopconsume.worker.report import PartitionReport

_NOTHING = OffsetRanges()


class SlotWork:
    """The work of the slots in a partition: it is planned, dispatched, reported or given back.

    Args:
        ledger: What is done.
        lanes: What waits, and the cursors of the slots.
        supply: What the slots may start.

    Attributes:
        planned_at: When the partition was last planned for a batch, on the monotonic clock.
        reach: How far apart wanted ranges may lie to be read as one.
        is_full: Whether nothing could be planned the last time as too much waits.
    """

    def __init__(self, ledger: OffsetLedger, lanes: Lanes, supply: Supply) -> None:
        self.planned_at = -math.inf
        self.reach = reach_of(OffsetRanges())
        self.is_full = False
        self._ledger = ledger
        self._lanes = lanes
        self._supply = supply

    # -- what slots are given

    def backlog(self, slots: Iterable[int], now: float) -> int:
        """Offsets that free slots could be given now; 0 if none."""
        most, end = 0, self._ledger.end
        for cursor in self._free(slots, now):  # Each turn asks all partitions.
            most = max(most, cursor.backlog(end, now))
        return most

    def _free(self, slots: Iterable[int], now: float) -> list[SlotCursor]:
        """Returns the cursors of some slots that may be planned."""
        cursors = self._lanes.cursors
        return [
            cursor
            for slot in slots
            if (cursor := cursors.get(slot)) is not None
            and cursor.dispatched is None
            and cursor.staying
            and not cursor.is_barred(now)
        ]

    def plan(self, slots: Iterable[int], now: float, limits: Limits) -> dict[int, OffsetRanges]:
        """Offsets wanted by each free slot that has work; marks them as dispatched."""
        ledger = self._ledger
        ledger.wake()
        self.planned_at = now
        cursors = self._free(slots, now)
        todo = OffsetRanges()
        for cursor in cursors:
            cursor.release_due(now, ledger.stable, ledger.done)
            if cursor.todo:
                found = cursor.todo - ledger.done - cursor.waiting.offsets()
                cursor.todo = self._supply.startable(found)
                todo |= cursor.todo
        self.reach = reach_of(todo, limits.window, scattered=self.reach < MERGE_GAP)
        front = max((cursor.position for cursor in cursors), default=0)
        is_limited = self._supply.held_back >= limits.max_pending or ledger.is_at_limit
        goal = functools.partial(self._goal, is_limited=is_limited)
        scope = scope_of(todo, front, limits.window, self.reach, goal)
        started = {cursor.slot: cursor.start(scope, ledger.done) for cursor in cursors}
        planned = {slot: wanted for slot, wanted in started.items() if wanted}
        self.is_full = is_limited and not planned
        return planned

    def _goal(self, most: int, *, is_limited: bool) -> int:
        """Returns up to where new offsets may be read."""
        ledger = self._ledger
        if not is_limited:
            return min(ledger.end, most)
        # What lies below a committed offset is a gap: a cursor that stands lower goes on. It may
        # have the record at the stable offset, and nobody else can bring the ranges down.
        done = -1 if ledger.done.last is None else ledger.done.last
        cursors = self._lanes.cursors.values()
        positions = [cursor.position for cursor in cursors if cursor.ranges]
        return min(ledger.end, most, max(done + 1, ledger.log_last + 1, *positions))

    def work(self, slot: int) -> PartitionWork:
        """Returns what is dispatched to a slot, as its task gets it."""
        cursor = self._lanes.cursors[slot]
        assert cursor.dispatched is not None
        return self._work_of(cursor, cursor.dispatched)

    def _work_of(self, cursor: SlotCursor, offsets: OffsetRanges) -> PartitionWork:
        failed, blocked = self._lanes.failed, self._lanes.blocked(cursor)
        attempts, added = failed.attempts_of(offsets), failed.headers_of(offsets)
        ended, given_up = failed.ended_of(offsets), self._lanes.decided.given_up(offsets, failed)
        return PartitionWork(
            tuple(offsets.pairs()),
            attempts,
            blocked=blocked,
            added=added,
            ended=ended,
            given_up=given_up,
        )

    def read_by(self, slot: int) -> PartitionWork | None:
        """Has a slot read the partition by itself; returns what it may start.

        Returns:
            None if it has no cursor of the partition.
        """
        cursor = self._lanes.cursors.get(slot)
        if cursor is None or not cursor.staying:
            return None
        self._ledger.wake()
        ranges = self._supply.readable(cursor.read_from())
        return PartitionWork(ranges, {}, self._lanes.blocked(cursor))

    def hand_out(self, slot: int, now: float) -> PartitionWork | None:
        """Has a slot that reads by itself handle what it was dealt since; returns the news.

        Args:
            slot: The slot.
            now: The time, on the monotonic clock.
        """
        cursor = self._lanes.cursors[slot]
        new = self._supply.hand_out(cursor, now)
        return self._work_of(cursor, new) if new else None

    # -- what slots report

    def has_read(self, slot: int, report: PartitionReport, now: float) -> None:
        """Takes how far a slot has read, before what its report says of the records."""
        cursor = self._lanes.cursors[slot]
        if cursor.dispatched is None:
            return
        if report.position is not None:
            self._ledger.wake()
            self._ledger.end = max(self._ledger.end, report.position)
        holes = self._supply.has_read(cursor, report)
        if holes and cursor.has(0):
            self.amend(holes)
        for failure in report.retrying:
            if failure.offset in cursor.dispatched:
                self._lanes.failed.add(Waiting.after(failure, now))

    def amend(self, holes: OffsetRanges) -> None:
        """Counts proven holes as done."""
        self._ledger.add_holes(holes)
        self._supply.settle(holes, _NOTHING)
        self._lanes.settled(holes)

    def progressed(self, slot: int, report: PartitionReport, now: float) -> PartitionReport:
        """Takes what a slot reports while it works: these records are not dispatched any more.

        What the slot reports later, or what becomes of it, concerns the rest of its records alone.

        Args:
            slot: The slot.
            report: Its ``done`` and ``failed``; of a lane no record without all that come before.
            now: The time, on the monotonic clock.

        Returns:
            What of the report counts.
        """
        self.has_read(slot, report, now)
        cursor = self._lanes.cursors[slot]
        if cursor.dispatched is None:
            return report
        report = self._take(cursor, report, cursor.dispatched, now)
        self._lanes.put_behind(cursor, report.blocked)
        return report

    def reported(self, slot: int, report: PartitionReport, now: float) -> PartitionReport:
        """Takes what a slot reported of its part of a batch; returns what of it counts."""
        self.has_read(slot, report, now)
        cursor = self._lanes.cursors[slot]
        wanted = cursor.dispatched
        if wanted is None:
            return report
        resumed = _NOTHING if report.resume is None else wanted.clip(report.resume, MAX_OFFSET)
        left = self._supply.not_started(cursor, resumed)
        cursor.looked_at(left)
        report = self._take(cursor, report, left, now)
        cursor.clear_dispatched()
        self._lanes.put_behind(cursor, report.blocked)
        # The stable offset may have passed what was dispatched: retention deletes records.
        cursor.forget_below(self._ledger.stable)
        return report

    def _take(
        self, cursor: SlotCursor, report: PartitionReport, left: OffsetRanges, now: float
    ) -> PartitionReport:
        """Takes the records of a report that are done, have failed or wait; returns what counts.

        Args:
            cursor: Whose they are.
            report: The report.
            left: What may still be started.
            now: The time, on the monotonic clock.
        """
        wanted = cursor.dispatched or _NOTHING
        report = _without_moved(cursor, report)
        blocked = OffsetRanges.from_offsets([offset for offset, _ in report.blocked])
        done = _done_of(report)
        failed = OffsetRanges.from_offsets(f.offset for f in report.failed if f.offset in wanted)
        cursor.release_tried(done, left | failed)
        cursor.dispatched = (cursor.dispatched or _NOTHING) - done - failed - blocked
        cursor.unread &= cursor.dispatched
        return self._settle(wanted, report, done, now, blocked)

    def _settle(
        self,
        wanted: OffsetRanges,
        report: PartitionReport,
        done: OffsetRanges,
        now: float,
        blocked: OffsetRanges = _NOTHING,
    ) -> PartitionReport:
        if not self._ledger.is_ours:
            return report  # It was given back while a handler of it was still at work.
        # A worker may die after it reported a record and before it noted that nothing is at work.
        counted = [failure for failure in report.failed if failure.offset in wanted]
        if len(counted) < len(report.failed):
            report = replace(report, failed=counted)
        failed = OffsetRanges.from_offsets([failure.offset for failure in report.failed])
        self._supply.settle(done, failed)
        for failure in report.failed:
            self._supply.fail(failure, now)
        self._lanes.settled(done | failed | blocked)
        self._ledger.settle(done, _filtered_of(report) if report.filtered else None)
        self._lanes.failed.remove_all(done)
        return report

    def given_back(
        self, slot: int, report: PartitionReport, kept: Iterable[tuple[int, int]], now: float
    ) -> PartitionReport:
        """Takes the report of a slot that starts nothing more of its batch.

        Its records may be planned at once, but for those that it keeps. Of the lane of a kept
        record nothing starts until `kept_ended`.

        Args:
            slot: The slot.
            report: As in `progressed`.
            kept: (offset, key hash) of the records that handlers may work on.
            now: The time, on the monotonic clock.

        Returns:
            What of the report counts.
        """
        report = self.progressed(slot, report, now)
        cursor, attempts = self._lanes.cursors[slot], self._lanes.failed.attempts
        cursor.give_back(
            (
                self._lanes.lane(key_hash, offset),
                Waiting(offset, key_hash, attempts.get(offset, 0), math.inf, "", is_running=True),
            )
            for offset, key_hash in kept
        )
        cursor.forget_below(self._ledger.stable)
        return report

    def kept_progressed(
        self, kept: OffsetRanges, report: PartitionReport, now: float
    ) -> PartitionReport:
        """Takes what a slot that gave its records back reports of those that it kept.

        Returns:
            What of the report counts.
        """
        done = _done_of(report)
        report = self._settle(kept, report, done, now)
        self._lanes.kept_ended(done, -math.inf)
        return report

    def kept_ended(self, kept: OffsetRanges, due: float) -> None:
        """Takes the end of the handlers of kept records: after an instant, none works on them.

        Args:
            kept: The records.
            due: From when on those that are not done may be started, on the monotonic clock.
        """
        self._ledger.wake()
        self._lanes.kept_ended(kept, due)
        self._lanes.forget_below(self._ledger.stable)

    def unknown(self, slot: int) -> None:
        """Plans all of a slot's part again, as its outcome is unknown."""
        self._ledger.wake()
        cursor = self._lanes.cursors[slot]
        cursor.give_up()
        cursor.forget_below(self._ledger.stable)

    def charge(self, offset: int, how: str) -> None:
        """Notes that the last call of a record has ended its worker, for `PartitionWork.ended`."""
        self._ledger.wake()
        self._lanes.failed.ended[offset] = how

    def open_of(self, slot: int, offsets: OffsetRanges) -> OffsetRanges:
        """Returns those of some offsets that a slot may still have to handle."""
        cursor = self._lanes.cursors.get(slot)
        if cursor is None or not cursor.ranges:
            return OffsetRanges()
        return offsets.clip(self._ledger.stable, MAX_OFFSET) - self._ledger.done


def _without_moved(cursor: SlotCursor, report: PartitionReport) -> PartitionReport:
    """Returns a report without records that wait behind others, of keys that leave or have left.

    These are forgotten. Such a key may have come back since, for another slot: its records belong
    to that slot.
    """
    blocked = [
        (o, key) for o, key in report.blocked if cursor.has(key) and not cursor.leaving.has(key)
    ]
    if len(blocked) == len(report.blocked):
        return report
    gone = {o for o, _ in report.blocked} - {o for o, _ in blocked}
    cursor.forget(OffsetRanges.from_offsets(gone))
    return replace(report, blocked=blocked)


def _done_of(report: PartitionReport) -> OffsetRanges:
    """Returns what is settled, the records that do not pass the filter included."""
    done = OffsetRanges.from_offsets(report.done_offsets.to_numpy())
    return done | _filtered_of(report) if report.filtered else done


def _filtered_of(report: PartitionReport) -> OffsetRanges:
    return OffsetRanges.from_offsets(unpack_offsets(report.filtered).to_numpy())

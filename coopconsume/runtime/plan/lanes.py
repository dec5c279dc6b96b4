"""The lanes of a partition: failed records, and the records that wait behind them. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan.decided_records import DecidedRecords
from coopconsume.runtime.plan.failed_records import FailedRecords
from coopconsume.runtime.plan.waiting_record import EARLIER_OWNER, Waiting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from coopconsume.group.owned import Failed
    from coopconsume.runtime.plan.cursor import SlotCursor
    from coopconsume.worker.report import Failure, Ordering

#: Running records of a slot that are named one by one as in doubt; with more, all of its keys are.
_MOST_NAMED = 100


class Lanes:
    """The records of a partition that wait, each in the cursor of its key.

    A *lane* has the records that are handled strictly in order: those of a key, or of the
    partition. Where order does not matter, each record is a lane of its own.

    Args:
        ordering: What is handled strictly one after another.
        cursors: The cursors of the partition, by slot. Dealing key ranges replaces them in place.

    Attributes:
        failed: The records that have failed and are not done, dispatched or not.
        decided: What operators have decided on those of them that are not parked.
    """

    def __init__(self, ordering: Ordering, cursors: dict[int, SlotCursor]) -> None:
        self.ordering = ordering
        self.cursors = cursors
        self.failed = FailedRecords()
        self.decided = DecidedRecords()
        self._may_have_parked = False

    def lane(self, key_hash: int, offset: int) -> int:
        """Returns the lane of a record: what it must wait for."""
        return {"key": key_hash, "partition": 0, "none": offset}[self.ordering]

    def cursor_of(self, key_hash: int) -> SlotCursor | None:
        """Returns the cursor of a key; None: it is not ours any more."""
        return next((cursor for cursor in self.cursors.values() if cursor.has(key_hash)), None)

    # -- what waits

    def waiting(self) -> Iterator[Waiting]:
        """Yields all records that wait in the cursors, those that handlers keep among them."""
        for cursor in self.cursors.values():
            yield from cursor.waiting.records()

    def failed_offsets(self) -> set[int]:
        """Returns the failed records that wait for an attempt or a decision."""
        return {w.offset for w in self.waiting() if not (w.is_undelivered or w.is_running)}

    @property
    def parked(self) -> list[Waiting]:
        """Records that were given up, and hold their keys back until somebody decides."""
        if not self._may_have_parked:
            return []  # Waiting records may be many, and this is asked for often.
        found = [waiting for waiting in self.waiting() if waiting.is_parked]
        self._may_have_parked = bool(found)
        return found

    def stuck(self) -> OffsetRanges:
        """Returns the offsets that wait for a decision, parked records included."""
        offsets = [offset for cursor in self.cursors.values() for offset in cursor.waiting.stuck()]
        return OffsetRanges.from_offsets(offsets)

    def claimed(self) -> OffsetRanges:
        """Returns the offsets that some slot is to look at, is at work on or lets wait."""
        found = OffsetRanges()
        for cursor in self.cursors.values():
            found |= cursor.claimed()
        return found

    def next_due(self) -> float | None:
        """Returns when the next waiting record is due; None without any."""
        dues = (
            cursor.waiting.next_due(cursor.barred_until)
            for cursor in self.cursors.values()
            if cursor.dispatched is None
        )
        return min((due for due in dues if due is not None), default=None)

    def barred_until(self) -> float:
        """Returns until when an earlier owner may be at work on some key that a slot has."""
        untils = [cursor.barred_until for cursor in self.cursors.values()]
        for cursor in self.cursors.values():
            untils += [w.due for w in cursor.waiting.lowest.values() if w.offset == EARLIER_OWNER]
        return max(untils, default=-math.inf)

    def may_run(self, slots: Collection[int], now: float) -> list[KeyRange]:
        """Returns the key ranges that a handler may be at work on.

        Args:
            slots: Slots that may work on all their records; others work on those they kept.
            now: The time, on the monotonic clock.
        """
        found: list[KeyRange] = []
        for slot, cursor in self.cursors.items():
            kept = cursor.waiting.may_run(now)
            is_whole = self.ordering == "partition" and (kept or cursor.leaving.at_work)
            if slot in slots or is_whole or len(kept) > _MOST_NAMED:
                found += cursor.ranges
            else:
                hashes = {w.key_hash for w in kept} | set(cursor.leaving.at_work.values())
                found += [KeyRange(h, h) for h in sorted(hashes)]
        return found

    def may_run_until(self) -> float:
        """Returns when the last handler ends that a lost slot had kept, on the monotonic clock."""
        return max((waiting.may_run_until for waiting in self.waiting()), default=-math.inf)

    def blocked(self, cursor: SlotCursor) -> dict[int, int]:
        """Returns the lowest waiting record of each lane: no higher one of the lane may start."""
        if self.ordering == "none":
            return {}
        return {lane: waiting.offset for lane, waiting in cursor.waiting.lowest.items()}

    def check(self) -> None:
        """Checks that each record that waits is in one lane, which it is behind in order.

        Raises:
            AssertionError: One is in two lanes, or before a lower one of its lane.
        """
        seen: set[int] = set()
        for cursor in self.cursors.values():
            for lane in cursor.waiting.lowest:
                offsets = [
                    w.offset for w in cursor.waiting.records(lane) if w.offset != EARLIER_OWNER
                ]
                assert offsets == sorted(set(offsets)), f"the lane {lane} is out of order"
                assert not seen.intersection(offsets), f"a record of the lane {lane} waits twice"
                seen.update(offsets)
                for waiting in cursor.waiting.records(lane):
                    assert lane == self.lane(waiting.key_hash, waiting.offset), "of another lane"
                    assert all(o > waiting.offset for o in waiting.behind), "behind a higher one"

    # -- what happens

    def wait(self, record: Waiting) -> None:
        """Has a record wait in its lane, if its key is still ours."""
        cursor = self.cursor_of(record.key_hash)
        if cursor is not None:
            cursor.waiting.add(self.lane(record.key_hash, record.offset), record)

    def fail(self, failure: Failure, now: float) -> None:
        """Has a failed record wait for its next attempt, if its key is still ours."""
        if self.cursor_of(failure.key_hash) is None:
            return
        self._may_have_parked |= failure.delay == math.inf
        self.wait(self.failed.add(Waiting.after(failure, now)))

    def restore(self, failed: Failed) -> None:
        """Has a pending record of the commit log wait as it did in an earlier run.

        It may lie above everything that is done. All undone offsets below it are read before
        anything new, as some may be of its key.
        """
        offset = failed.offset
        self.failed.attempts[offset] = failed.attempts
        self._may_have_parked |= failed.is_parked
        cursor = self.cursor_of(failed.key_hash)
        if cursor is None:
            return
        self.wait(self.failed.add(Waiting(**vars(failed))))
        if cursor.position <= offset:
            cursor.todo |= OffsetRanges([(cursor.position, offset)])
            cursor.position = offset + 1

    def hold_back(self, record: Waiting) -> None:
        """Holds back the lane of a record whose letter or rows cannot be written now."""
        self._may_have_parked |= record.is_parked
        self.wait(self.failed.add(record))

    def release(self, offsets: OffsetRanges) -> None:
        """Releases the lanes of deferred records whose dead letters or rows are written."""
        for waiting in self.waiting():
            if waiting.offset in offsets:
                waiting.due, waiting.is_undelivered = -math.inf, False
                self.failed.remove(waiting.offset)

    def bar(self, key_range: KeyRange, until: float) -> None:
        """Starts nothing of some keys until an instant: an earlier owner may be at work on them.

        Of a single key all other keys are independent. A wider range bars the cursors that have
        part of it. Of one key the intervals come in the order of their ends.
        """
        is_key = self.ordering == "key" and key_range.size == 1
        for cursor in self.cursors.values():
            if not any(key_range.overlaps(one) for one in cursor.ranges):
                continue
            if is_key:
                key_hash = key_range.first
                barred = Waiting(EARLIER_OWNER, key_hash, 0, until, "", is_running=True)
                cursor.waiting.add(self.lane(key_hash, EARLIER_OWNER), barred)
            else:
                cursor.bar(until)

    def end_bars(self, now: float) -> None:
        """Removes the bars of whole cursors that have ended."""
        for cursor in self.cursors.values():
            if not cursor.is_barred(now):
                cursor.barred_until = 0.0

    def put_behind(self, cursor: SlotCursor, blocked: Iterable[tuple[int, int]]) -> None:
        """Has records wait behind the failed one of their lane.

        Args:
            cursor: Whose they are.
            blocked: (offset, key hash) of records that their slot has not started.
        """
        flowing: list[int] = []
        for offset, key_hash in blocked:
            self.failed.ended.pop(offset, None)  # Only the first of a lane is charged.
            ahead = cursor.waiting.lowest.get(self.lane(key_hash, offset))
            (ahead.behind if ahead else flowing).append(offset)
        cursor.todo |= OffsetRanges.from_offsets(flowing)

    def kept_ended(self, kept: OffsetRanges, due: float) -> None:
        """Takes the end of the handlers of kept records: after an instant, none works on them."""
        for cursor in self.cursors.values():
            cursor.waiting.handlers_ended(kept, due)

    def settled(self, offsets: OffsetRanges) -> None:
        """Takes records that a slot has named: no other slot looks for them.

        Of a gap found at the start nobody knew whose key it was; now it is known.
        """
        for cursor in self.cursors.values():
            if cursor.todo:
                cursor.todo -= offsets

    def forget_below(self, stable: int) -> None:
        """Forgets all below the stable offset: it is done, or deleted."""
        for cursor in self.cursors.values():
            cursor.forget_below(stable)

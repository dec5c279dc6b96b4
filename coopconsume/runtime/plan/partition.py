"""What a job knows of one partition: what is done, what its slots have left, what holds it up."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from assignors import KeyRange, coverage
from assignors.ranges import intersection
from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.blocker import blocker_at
from coopconsume.runtime.plan.cursor import MOST_APART, SlotCursor, position_above, scope_of
from coopconsume.runtime.plan.dealer import Dealer
from coopconsume.runtime.plan.failed_records import FailedRecords
from coopconsume.runtime.plan.range_limit import read_limit
from coopconsume.runtime.plan.reads import MERGE_GAP, reach_of
from coopconsume.runtime.plan.waiting_record import EARLIER_OWNER, Waiting
from coopconsume.worker.report import PartitionWork, unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from coopconsume.group.owned import Failed
    from coopconsume.runtime.plan.gain import Gain
    from coopconsume.runtime.plan.range_limit import Limits
    from coopconsume.runtime.plan.stock import Stock
    from coopconsume.worker.report import Failure, Ordering, PartitionReport

_NOTHING = OffsetRanges()
#: Running records of a slot that are named one by one as in doubt; with more, all of its keys are.
_MOST_NAMED = 100


class Partition:
    """Everything the loop knows of one partition.

    Args:
        index: Its index among the partitions of the epoch. A batch has some of them, and names them
            by *part*: see `BatchPlan.indexes`.
        topic, partition: Which.
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        slots: (slot, its key ranges), one a slot.
        ordering: What is handled strictly one after another.
        whole: Whether the slots together have the whole key range.
        max_ranges: With 80 % of so many ranges above the stable offset nothing new is read.
        max_outputs_waiting: Records that may be done above the stable offset, as their outputs wait
            until it passes them; None: outputs do not wait.
        stock: What is acquired of it, if all members share it by chunks: then its slots have slices
            of that, and none has key ranges of its own. None: it is shared by key range.
    """

    def __init__(
        self,
        index: int,
        topic: str,
        partition: int,
        *,
        stable: int,
        committed: OffsetRanges,
        slots: Iterable[tuple[int, tuple[KeyRange, ...]]],
        ordering: Ordering,
        whole: bool,
        max_ranges: int = 1_000_000,
        max_outputs_waiting: int | None = None,
        stock: Stock | None = None,
    ) -> None:
        self.index = index
        self.stock = stock
        self.topic = topic
        self.partition = partition
        self.stable = stable
        self.done = committed
        self.to_commit = OffsetRanges()
        self.holes_to_commit = OffsetRanges()
        #: Those of ``to_commit`` that did not pass the filter.
        self.filtered_to_commit = OffsetRanges()
        #: Handled records that are committed once their dead letters or rows are written.
        self.undelivered = OffsetRanges()
        #: Whether what they gave cannot be written for now: they count as pending.
        self.is_stalled = False
        #: When it was last planned for a batch, on the monotonic clock.
        self.planned_at = -math.inf
        self._end = stable
        #: Nothing is left to do, commit or wait for. Whatever changes that sets it to false.
        self.is_quiet = False
        self.ordering = ordering
        self.whole = whole
        self.max_ranges = max_ranges
        self.max_outputs_waiting = max_outputs_waiting
        #: From which offset on outputs cannot be published for now, and why; None: they can.
        self.unpublished: tuple[int, str] | None = None
        #: Ranges in the commit log, those of other members among them.
        self.log_ranges = committed.range_count
        #: The highest offset in the commit log, of any member; -1: none above the stable
        #: offset.
        self.log_last = -1 if committed.last is None else committed.last
        #: Whether slots that read by themselves have chunks that this member does not hold.
        self.has_lost_chunks = False
        self.failed = FailedRecords()
        self._may_have_parked = False
        self._first_open_since = (-1, 0.0)
        self.reach = reach_of(OffsetRanges())
        #: Whether any key range of it is still ours.
        self.is_ours = True
        #: Whether nothing could be planned the last time as too much waits.
        self._is_full = False
        position, gaps = position_above(stable, committed.last, committed)
        if stock is not None:
            # Slots read nothing but their slices.
            position, gaps = MAX_OFFSET, OffsetRanges()
        self.cursors = {slot: SlotCursor(slot, ranges, position, gaps) for slot, ranges in slots}
        #: Deals key ranges that come or go.
        self.dealer = Dealer(index, ordering, self.cursors, self.lane)

    # -- what is known

    @property
    def end(self) -> int:
        """The end of the partition's log, as far as it was seen."""
        return self._end

    @end.setter
    def end(self, end: int) -> None:
        if end != self._end:
            self._end, self.is_quiet = end, False

    def update_quiet(self, now: float) -> None:
        """Notes whether nothing is left to do, so that turns of the loop pass over it."""
        for cursor in self.cursors.values():
            if not cursor.is_barred(now):
                cursor.barred_until = 0.0
        if self.stock is not None and (self.stock.acquired or self.stock.failing):
            self.is_quiet = False
            return
        self.is_quiet = not self.is_ours or (
            not (self.to_commit or self.holes_to_commit or self.undelivered)
            and all(cursor.is_quiet(self.end) for cursor in self.cursors.values())
            and self.first_open() >= max(self.end, self.position)
            and not self.dealer.gains
        )

    @property
    def position(self) -> int:
        """Everything below was looked at, or is in some cursor's ``todo``."""
        if self.stock is not None:
            return self.end  # What others have acquired is not known.
        return min((s.position for s in self.cursors.values() if s.ranges), default=self.end)

    @property
    def left(self) -> int:
        """How many offsets up to the end were not looked at, as far as it is known."""
        if self.stock is None:
            return self.end - self.position
        done = self.done.clip(self.stable, self.end - 1) if self.end > self.stable else _NOTHING
        return max(0, self.end - self.stable - len(done) - self.stock.pending)

    def left_of(self, cursor: SlotCursor) -> int:
        """Returns how many of these offsets the slot of a cursor has not looked at."""
        if self.stock is not None:
            return self.left
        return self.end - cursor.position if cursor.ranges else 0

    @property
    def owns_first(self) -> bool:
        """Whether this member has hash 0, or leads: it speaks for the whole partition."""
        if self.stock is not None:
            return self.stock.leads
        ranges = [one for gain in self.dealer.gains for one in gain.ranges]
        ranges += [one for cursor in self.cursors.values() for one in cursor.ranges]
        return any(one.contains(0) for one in ranges)

    @property
    def pending(self) -> int:
        """The number of our failed records that are not done.

        Parked records are among them, those whose rows or letters cannot be written for now, and
        those that a real-time slot tries again by itself, which the commit log does not have. In a
        cooperative epoch they are nobody's own: those of all members count.
        """
        if self.stock is not None:
            return self.stock.pending
        found = self._waiting()
        found.update(
            one.offset
            for one in self.failed.all
            if any(cursor.handles(one.offset) for cursor in self.cursors.values())
        )
        return len(found) + self._stalled

    @property
    def held_back(self) -> int:
        """The number of failed records that wait, and of records behind one of their key."""
        if self.stock is not None:
            return self.stock.pending
        behind = (len(w.behind) for cursor in self.cursors.values() for w in cursor.failed())
        return len(self._waiting()) + self._stalled + sum(behind)

    def _waiting(self) -> set[int]:
        """Returns our failed records that wait for an attempt or a decision."""
        return {
            waiting.offset
            for cursor in self.cursors.values()
            for waiting in cursor.failed()
            if not (waiting.is_undelivered or waiting.is_running)
        }

    @property
    def _stalled(self) -> int:
        return len(self.undelivered) if self.is_stalled else 0

    @property
    def parked(self) -> Sequence[Failed]:
        """Records that were given up, and hold their keys back until somebody decides."""
        if self.stock is not None:
            return [waiting for waiting in self.stock.parked if waiting.offset not in self.done]
        if not self._may_have_parked:
            return []  # Waiting records may be many, and this is asked for often.
        found = [w for cursor in self.cursors.values() for w in cursor.failed() if w.is_parked]
        self._may_have_parked = bool(found)
        return found

    @property
    def committed(self) -> OffsetRanges:
        """What the commit log has above its stable offset, as far as it is ours."""
        return self.done - self.to_commit - self.holes_to_commit - self.undelivered

    @property
    def ranges(self) -> int:
        """Ranges above the stable offset, as they count for the limit.

        Where others have parts of the partition, their records lie between ours: only the log
        knows how many ranges there are.
        """
        return self.done.range_count if self.whole else self.log_ranges

    @property
    def outputs_waiting(self) -> int:
        """Records whose outputs wait to be published; 0 if outputs do not wait.

        They wait behind a record that is not done, or as their topic does not take them for now:
        then offsets below the stable offset are counted.
        """
        if self.max_outputs_waiting is None:
            return 0
        behind = self.stable - self.unpublished[0] if self.unpublished else 0
        return len(self.done) - (self.first_open() - self.stable) + max(0, behind)

    @property
    def has_outputs_enough(self) -> bool:
        """Whether so many outputs wait that nothing new may be read."""
        most = self.max_outputs_waiting
        return most is not None and self.outputs_waiting >= most

    @property
    def is_at_limit(self) -> bool:
        """Whether there are so many ranges, or outputs wait, that nothing new may be read."""
        return self.ranges >= read_limit(self.max_ranges) or self.has_outputs_enough

    @property
    def is_drained(self) -> bool:
        """Whether nothing up to the end is left to do, wait for, hear of or prove a hole.

        What is parked, and what waits behind it, is nothing that a job could do.
        """
        is_full = self._is_full and bool(self.parked)
        if self.dealer.gains:
            return False
        if self.stock is not None:
            return self._first_free() >= self.end
        if self.whole and not is_full and self._first_free() < self.end:
            return False
        return all(cursor.is_drained(self.end, is_full=is_full) for cursor in self.cursors.values())

    def has_processed(self, end: int) -> bool:
        """Whether all below an offset is done and committed, or held back by parked records."""
        if self.stable >= end:
            return True
        uncommitted = self.to_commit | (self.undelivered & self.done)
        if self.dealer.gains or not self.parked or uncommitted.clip(0, end - 1):
            return False
        # The end that is known may be older than the one that is asked for.
        if self.end >= end and self.is_drained:
            return True
        if self.stock is not None and self._first_free() >= end:
            return True
        # What came since is not asked for.
        if (self.whole or self.stock is not None) and self._first_free() < end:
            return False
        return all(cursor.has_processed(end) for cursor in self.cursors.values())

    def stable_age(self, now: float) -> float:
        """Returns for how many seconds the first open offset has been the same, as far as known."""
        first = self.first_open()
        if self._first_open_since[0] != first:
            self._first_open_since = first, now
        return now - self._first_open_since[1]

    def blocker(self, now: float) -> dict[str, Any] | None:
        """Returns the record at the stable offset, see `blocker_at`; None if nothing is left."""
        first = self.first_open()
        if first >= self.end and first >= self.position:
            return None
        return blocker_at(first, self.cursors.values(), self.failed.last(first), now)

    @property
    def real_time_from(self) -> int | None:
        """From which offset on a real-time slot reports holes; None: none does."""
        found = (cursor.holes_from for cursor in self.cursors.values())
        return next((offset for offset in found if offset is not None), None)

    def first_open(self) -> int:
        """Returns the stable offset as it will be once all that is done is committed."""
        end = self.done.range_end(self.stable)
        return self.stable if end is None else end + 1

    def _first_free(self) -> int:
        """Returns the first open offset that does not wait for a parked record."""
        if not self.parked:
            return self.first_open()
        stuck = [offset for cursor in self.cursors.values() for offset in cursor.stuck()]
        if self.stock is not None:
            stuck += [waiting.offset for waiting in self.stock.parked]
        end = (self.done | OffsetRanges.from_offsets(stuck)).range_end(self.stable)
        return self.stable if end is None else end + 1

    def in_doubt(self, now: float) -> float:
        """Returns for how many seconds an earlier owner may still be at work on part of it."""
        untils = [cursor.barred_until for cursor in self.cursors.values()]
        untils += [gain.until for gain in self.dealer.gains]
        for cursor in self.cursors.values():
            untils += [w.due for w in cursor.waiting.values() if w.offset == EARLIER_OWNER]
        return max((until - now for until in untils), default=0.0)

    def starts_at(self, now: float) -> float:
        """Returns when the first of its key ranges may start; infinity: it has none.

        Single keys that an earlier owner may be at work on do not count: the others may start.
        """
        ends = [cursor.barred_until for cursor in self.cursors.values() if cursor.ranges]
        return max(now, min([*ends, *(gain.until for gain in self.dealer.gains)], default=math.inf))

    def mark_in_doubt(self, key_range: KeyRange, until: float) -> None:
        """Starts nothing of some keys until an instant: an earlier owner may be at work on them.

        Of a single key all other keys are independent. A wider range bars the cursors that have
        part of it. Of one key the intervals come in the order of their ends.
        """
        self.is_quiet = False
        is_key = self.ordering == "key" and key_range.size == 1
        for cursor in self.cursors.values():
            if not any(key_range.overlaps(one) for one in cursor.ranges):
                continue
            if is_key:
                key_hash = key_range.first
                barred = Waiting(EARLIER_OWNER, key_hash, 0, until, "", is_running=True)
                cursor.wait(self.lane(key_hash, EARLIER_OWNER), barred)
            else:
                cursor.bar(until)

    def may_run(self, slots: Collection[int], now: float) -> list[KeyRange]:
        """Returns the key ranges that a handler may be at work on.

        Args:
            slots: Slots that may work on all their records; others work on those they kept.
            now: The time, on the monotonic clock.
        """
        found: list[KeyRange] = []
        for slot, cursor in self.cursors.items():
            kept = cursor.may_run(now)
            is_whole = self.ordering == "partition" and (kept or cursor.leaving_at_work)
            if slot in slots or is_whole or len(kept) > _MOST_NAMED:
                found += cursor.ranges
            else:
                hashes = {w.key_hash for w in kept} | set(cursor.leaving_at_work.values())
                found += [KeyRange(h, h) for h in sorted(hashes)]
        return found

    def may_run_until(self) -> float:
        """Returns when the last handler ends that a lost slot had kept, on the monotonic clock."""
        waiting = [w for cursor in self.cursors.values() for w in cursor.failed()]
        return max((w.may_run_until for w in waiting), default=-math.inf)

    def next_due(self) -> float | None:
        """Returns when the next waiting record is due; None without any."""
        dues = (cursor.next_due() for cursor in self.cursors.values() if cursor.dispatched is None)
        return min((due for due in dues if due is not None), default=None)

    def lane(self, key_hash: int, offset: int) -> int:
        """Returns the lane of a record: what it must wait for."""
        return {"key": key_hash, "partition": 0, "none": offset}[self.ordering]

    # -- chunks of a cooperative epoch

    def acquire(self, offsets: OffsetRanges, failed: Iterable[Failed] = ()) -> None:
        """Takes offsets that this member has acquired.

        What it works on, or has an outcome of, is not started again: it may have acquired an
        offset once more that it did not hold for a while.

        Args:
            offsets: The offsets.
            failed: The last failures of those of them that have failed before. Each waits until it
                is due.
        """
        assert self.stock is not None
        self.is_quiet = False
        claimed = self.done | self.undelivered | self.stock.failing
        for cursor in self.cursors.values():
            claimed |= cursor.claimed()
        new = offsets.clip(self.stable, MAX_OFFSET) - self.stock.acquired - claimed
        slots = sorted(self.cursors)
        again = [one for one in failed if one.offset in new]
        for one in again:
            waiting = self.failed.add(Waiting(**vars(one)))
            cursor = self.cursors[slots[one.offset % len(slots)]]
            cursor.wait(self.lane(one.key_hash, one.offset), waiting)
        retried = OffsetRanges.from_offsets([one.offset for one in again])
        self.stock.acquired |= retried
        self.stock.add(new - retried)

    def looked(
        self,
        committed: OffsetRanges,
        acquired: OffsetRanges,
        failed: Iterable[Failed],
        parked: list[Failed],
        pending: int,
    ) -> None:
        """Takes what the commit log says of a partition of a cooperative epoch.

        Args:
            committed: What is committed above the stable offset.
            acquired: What this member has acquired.
            failed: The last failures of these.
            parked: All records that wait for a decision.
            pending: How many records have failed and wait.
        """
        assert self.stock is not None
        self.is_quiet = False
        ours = self.to_commit | self.holes_to_commit | self.undelivered
        self.done = ((self.done & ours) | committed).clip(self.stable, MAX_OFFSET)
        self.stock.parked, self.stock.pending = parked, pending
        self.acquire(self.stock.keep(acquired), failed)
        lost = _NOTHING
        for cursor in self.cursors.values():
            if cursor.dispatched is None:
                cursor.todo &= self.stock.acquired
            elif cursor.is_real_time:
                lost |= cursor.dispatched - self.stock.acquired
        self.has_lost_chunks = bool(lost.clip(self.stable, MAX_OFFSET) - self.done)

    def not_held(self, offsets: OffsetRanges) -> None:
        """Takes offsets of a commit that did not count: another member has acquired them."""
        self.is_quiet = False
        self.done -= offsets.clip(self.stable, MAX_OFFSET)

    # -- what happened

    def restore(self, pending: Iterable[Failed]) -> None:
        """Takes over the pending records of an earlier run from the log.

        A pending record may lie above everything that is done. All undone offsets below it are
        read before anything new, as some may be of its key.
        """
        self.is_quiet = False
        for failed in pending:
            offset = failed.offset
            if offset < self.stable or offset in self.done:
                continue
            self.failed.attempts[offset] = failed.attempts
            self._may_have_parked |= failed.is_parked
            cursor = self.dealer.cursor_of(failed.key_hash)
            if cursor is None:
                continue
            waiting = self.failed.add(Waiting(**vars(failed)))
            cursor.wait(self.lane(failed.key_hash, offset), waiting)
            if cursor.position <= offset:
                cursor.todo |= OffsetRanges([(cursor.position, offset)])
                cursor.position = offset + 1

    def leave(self, ranges: Sequence[KeyRange]) -> None:
        """Starts nothing more of some key ranges, which are about to be given back."""
        self.is_quiet = self.whole = False
        gains = [gain.without(ranges) for gain in self.dealer.gains]
        self.dealer.gains = [gain for gain in gains if gain.ranges]
        for cursor in self.cursors.values():
            cursor.leave(ranges)

    def has_left(self, now: float) -> None:
        """Forgets the key ranges that are given back; with the last one, what is not committed."""
        self.is_quiet = False
        for cursor in self.cursors.values():
            cursor.has_left()
        self.is_ours = bool(self.dealer.gains) or any(
            cursor.ranges for cursor in self.cursors.values()
        )
        if self.is_ours:
            self.dealer.undealt_since = now  # Until slots have a fair part of what is left.
        else:
            self.to_commit = self.holes_to_commit = self.filtered_to_commit = OffsetRanges()

    def extend(self, gain: Gain) -> None:
        """Adds gained key ranges; `deal_again` deals them once no earlier owner is at work."""
        self.is_quiet = False
        self.done |= gain.committed
        self._advance(gain.stable)
        self.dealer.gains.append(gain)

    @property
    def is_undealt(self) -> bool:
        """Whether key ranges of it wait to be dealt to all slots."""
        return self.is_ours and (self.dealer.undealt_since is not None or bool(self.dealer.gains))

    def deal_again(self, slots: int, now: float, closed: Collection[int] = ()) -> None:
        """Deals gained and old key ranges again, see `Dealer.deal_again`.

        They may be dealt before their earlier owner has ended. Their cursors are barred until then.
        """
        gains = self.dealer.deal_again(slots, now, closed, self.stable, self.done)
        if gains is None:
            return
        self.whole = not coverage(one for s in self.cursors.values() for one in s.staying).holes
        self.is_quiet = False
        for gain in gains:
            for cursor in self.cursors.values():
                if intersection(cursor.ranges, gain.ranges):
                    cursor.bar(gain.until)
            self.restore(failed for failed in gain.pending if gain.has(failed.key_hash))
            for key_range, until in gain.in_doubt:
                self.mark_in_doubt(key_range, until)

    def open_of(self, slot: int, offsets: OffsetRanges) -> OffsetRanges:
        """Returns those of some offsets that a slot may still have to handle."""
        cursor = self.cursors.get(slot)
        if cursor is None or not cursor.ranges:
            return OffsetRanges()
        return offsets.clip(self.stable, MAX_OFFSET) - self.done

    def has(self, key_hash: int) -> bool:
        """Returns whether a key is still ours; if not, a late failure of it is ignored."""
        return self.dealer.cursor_of(key_hash) is not None

    def progressed(self, slot: int, report: PartitionReport, now: float) -> None:
        """Takes what a slot reports while it works: these records are not dispatched any more.

        What the slot reports later, or what becomes of it, concerns the rest of its records alone.

        Args:
            slot: The slot.
            report: Its ``done`` and ``failed``; of a lane no record without all that come before.
            now: The time, on the monotonic clock.
        """
        self.has_read(slot, report, now)
        cursor = self.cursors[slot]
        if cursor.dispatched is not None:
            blocked = self._blocked_by(cursor, report)
            self._settle_dispatched(
                cursor, cursor.dispatched, report, cursor.dispatched, now, blocked
            )
            self._put_behind(cursor, report)

    def read_by(self, slot: int) -> PartitionWork | None:
        """Has a slot read the partition by itself; returns what it may start.

        Returns:
            None if it has no cursor of the partition.
        """
        cursor = self.cursors.get(slot)
        if cursor is None or not cursor.staying:
            return None
        self.is_quiet = False
        position = cursor.read_from()
        if self.stock is not None:
            return PartitionWork(((0, MAX_OFFSET),))
        last = self.done.last
        ranges = [(position, MAX_OFFSET)]
        if last is not None and last >= position:
            ranges = [*self.done.gaps(position, last), (last + 1, MAX_OFFSET)]
        return PartitionWork(tuple(ranges), {}, self._blocked(cursor))

    def hand_out(self, slot: int, now: float) -> PartitionWork | None:
        """Has a slot that reads by itself handle the chunks that it was dealt; returns the news.

        Args:
            slot: The slot.
            now: The time, on the monotonic clock.
        """
        cursor = self.cursors[slot]
        assert self.stock is not None
        assert cursor.dispatched is not None
        cursor.release_due(now, self.stable, self.done)
        new = cursor.todo - cursor.dispatched
        if not new:
            return None
        new = (new - self.done - cursor.waiting_offsets()) & self.stock.acquired
        cursor.todo = cursor.dispatched | new
        if not new:
            return None
        self.is_quiet = False
        cursor.dispatched |= new
        cursor.unread |= new
        return self._work_of(cursor, new)

    def has_read(self, slot: int, report: PartitionReport, now: float) -> None:
        """Takes how far a slot has read, before what its report says of the records."""
        cursor = self.cursors[slot]
        if cursor.dispatched is None:
            return
        if report.position is not None:
            self._extend(cursor, report, report.position)
        elif report.read and cursor.is_real_time and self.stock is None:
            last = int(unpack_offsets(report.read)[-1].as_py())
            self.end = max(self.end, last + 1)
            cursor.had_begun(last)
        for failure in report.retrying:
            if failure.offset in cursor.dispatched:
                self.failed.add(Waiting.after(failure, now))

    def _extend(self, cursor: SlotCursor, report: PartitionReport, position: int) -> None:
        self.is_quiet = False
        read = OffsetRanges.from_offsets(unpack_offsets(report.read).to_numpy())
        holes = OffsetRanges(report.holes).clip(self.stable, MAX_OFFSET) - self.done
        if self.stock is None:
            cursor.has_read(read.clip(self.stable, MAX_OFFSET), position)
        else:
            holes &= cursor.dispatched or _NOTHING
            cursor.passed(read, holes)
        self.end = max(self.end, position)
        if holes and cursor.has(0):
            self.amend(holes)

    def given_back(
        self, slot: int, report: PartitionReport, kept: Iterable[tuple[int, int]], now: float
    ) -> None:
        """Takes the report of a slot that starts nothing more of its batch.

        Its records may be planned at once, but for those that it keeps. Of the lane of a kept
        record nothing starts until `kept_ended`.

        Args:
            slot: The slot.
            report: As in `progressed`.
            kept: (offset, key hash) of the records that handlers may work on.
            now: The time, on the monotonic clock.
        """
        self.progressed(slot, report, now)
        cursor, attempts = self.cursors[slot], self.failed.attempts
        cursor.give_back(
            (
                self.lane(key_hash, offset),
                Waiting(offset, key_hash, attempts.get(offset, 0), math.inf, "", is_running=True),
            )
            for offset, key_hash in kept
        )
        cursor.forget_below(self.stable)

    def kept_progressed(self, kept: OffsetRanges, report: PartitionReport, now: float) -> None:
        """Takes what a slot that has given its records back reports of those that it kept."""
        done = _done_of(report)
        self._settle(kept, report, done, now)
        for cursor in self.cursors.values():
            cursor.kept_ended(done, -math.inf)

    def kept_ended(self, kept: OffsetRanges, due: float) -> None:
        """Takes the end of the handlers of kept records: after an instant, none works on them.

        Args:
            kept: The records.
            due: From when on those that are not done may be started, on the monotonic clock.
        """
        self.is_quiet = False
        for cursor in self.cursors.values():
            cursor.kept_ended(kept, due)
            cursor.forget_below(self.stable)

    def reported(self, slot: int, report: PartitionReport, now: float) -> None:
        """Takes what a slot reported of its part of a batch."""
        self.has_read(slot, report, now)
        cursor = self.cursors[slot]
        wanted = cursor.dispatched
        if wanted is None:
            return
        left = (
            wanted.clip(report.resume, MAX_OFFSET) if report.resume is not None else OffsetRanges()
        )
        if self.stock is not None and cursor.is_real_time:
            left = wanted  # It may not even have got them; holes it has named.
        cursor.looked_at(left)
        blocked = self._blocked_by(cursor, report)
        self._settle_dispatched(cursor, wanted, report, left, now, blocked)
        cursor.clear_dispatched()
        self._put_behind(cursor, report)
        # The stable offset may have passed what was dispatched: retention deletes records.
        cursor.forget_below(self.stable)

    @staticmethod
    def _blocked_by(cursor: SlotCursor, report: PartitionReport) -> OffsetRanges:
        """Returns records that a slot has not started, as a lower record of their key is not done.

        Those of keys that leave or have left are forgotten. Such a key may have come back since,
        for another slot: its records belong to that slot.
        """
        blocked = report.blocked
        report.blocked = [
            (o, key) for o, key in blocked if cursor.has(key) and not cursor.leaves(key)
        ]
        if len(report.blocked) < len(blocked):
            gone = {o for o, _ in blocked} - {o for o, _ in report.blocked}
            cursor.forget(OffsetRanges.from_offsets(gone))
        return OffsetRanges.from_offsets([offset for offset, _ in report.blocked])

    def _put_behind(self, cursor: SlotCursor, report: PartitionReport) -> None:
        """Has records wait behind the failed one of their lane."""
        flowing: list[int] = []
        for offset, key_hash in report.blocked:
            self.failed.ended.pop(offset, None)  # Only the first of a lane is charged.
            ahead = cursor.waiting.get(self.lane(key_hash, offset))
            (ahead.behind if ahead else flowing).append(offset)
        cursor.todo |= OffsetRanges.from_offsets(flowing)

    def _settle_dispatched(
        self,
        cursor: SlotCursor,
        wanted: OffsetRanges,
        report: PartitionReport,
        left: OffsetRanges,
        now: float,
        blocked: OffsetRanges,
    ) -> None:
        """Takes the records of a report that are done, have failed or wait.

        Args:
            cursor: Whose they are.
            wanted: What is dispatched.
            report: The report.
            left: What may still be started.
            now: The time, on the monotonic clock.
            blocked: What waits behind failed records.
        """
        done = _done_of(report)
        failed = OffsetRanges.from_offsets(f.offset for f in report.failed if f.offset in wanted)
        cursor.release_tried(done, left | failed)
        cursor.dispatched = wanted - done - failed - blocked
        cursor.unread &= cursor.dispatched
        self._settle(wanted, report, done, now, blocked)

    def _settle(
        self,
        wanted: OffsetRanges,
        report: PartitionReport,
        done: OffsetRanges,
        now: float,
        blocked: OffsetRanges = _NOTHING,
    ) -> None:
        """Takes the records of a report that are done, have failed or wait."""
        if not self.is_ours:
            return  # It was given back while a handler of it was still at work.
        self.is_quiet = False
        # A worker may die after it reported a record and before it noted that nothing is at work.
        report.failed = [failure for failure in report.failed if failure.offset in wanted]
        failed = OffsetRanges.from_offsets([failure.offset for failure in report.failed])
        settled = done | failed | blocked
        if self.stock is not None:
            # Once the failure is in the commit log, any member tries the record again.
            self.stock.settle(done, failed)
            self.failed.remove_all(failed)
        for failure in () if self.stock is not None else report.failed:
            self._add_failed(failure, now)
        for each in self.cursors.values():
            # Of a gap found at the start nobody knew whose key it was; now it is known.
            if each.todo:
                each.todo -= settled
        self.to_commit |= done
        if report.filtered:
            self.filtered_to_commit |= _filtered_of(report)
        self.done |= done.clip(self.stable, MAX_OFFSET)
        self.failed.remove_all(done)

    def _add_failed(self, failure: Failure, now: float) -> None:
        """Has a failed record wait for its next attempt, if its key is still ours."""
        cursor = self.dealer.cursor_of(failure.key_hash)
        if cursor is None:
            return
        self._may_have_parked |= failure.delay == math.inf
        failed = self.failed.add(Waiting.after(failure, now))
        cursor.wait(self.lane(failure.key_hash, failure.offset), failed)

    def replay(self, offset: int, now: float) -> None:
        """Has a parked record tried again, from its first attempt on; harmless if not parked."""
        self.is_quiet = False
        for waiting in self.parked:
            if waiting.offset == offset:
                waiting.due, waiting.attempts = now, 0
                self.failed.restart(offset)

    def discard(self, offset: int, now: float) -> None:
        """Counts a parked record as done, so its key continues; harmless if it is not parked."""
        self.is_quiet = False
        for waiting in self.parked:
            if waiting.offset == offset:
                waiting.due = now  # What is behind it goes on with the slot's next batch.
                self.done |= OffsetRanges([(offset, offset)])
                self.failed.remove(offset)

    def defer(self, offsets: OffsetRanges) -> None:
        """Defers offsets: they are committed once their dead letters or rows are written."""
        self.is_quiet = False
        self.undelivered |= offsets
        self.to_commit -= offsets

    def hold_back(self, records: Iterable[Waiting]) -> None:
        """Holds back the lanes of deferred records whose letters or rows cannot be written now."""
        self.is_quiet = False
        for record in records:
            if record.offset not in self.undelivered:
                continue
            self._may_have_parked |= record.is_parked
            self.failed.add(record)
            self.done -= OffsetRanges([(record.offset, record.offset)])
            cursor = self.dealer.cursor_of(record.key_hash)
            if cursor is not None:
                cursor.wait(self.lane(record.key_hash, record.offset), record)

    def _delivered(self, offsets: OffsetRanges) -> None:
        """Releases the lanes of deferred records whose dead letters or rows are written."""
        self.undelivered -= offsets
        self.done |= offsets.clip(self.stable, MAX_OFFSET)
        for cursor in self.cursors.values():
            for waiting in cursor.failed():
                if waiting.offset in offsets:
                    waiting.due, waiting.is_undelivered = -math.inf, False
                    self.failed.remove(waiting.offset)

    def unknown(self, slot: int) -> None:
        """Plans all of a slot's part again, as its outcome is unknown."""
        self.is_quiet = False
        self.cursors[slot].give_up()
        self.cursors[slot].forget_below(self.stable)

    def commit_answered(self, offsets: OffsetRanges, stable: int, holes: OffsetRanges) -> None:
        """Takes the answer of the commit log: what is committed, and its stable offset."""
        self.is_quiet = False
        if self.undelivered:
            self._delivered(offsets & self.undelivered)
        self.to_commit -= offsets
        self.filtered_to_commit -= offsets
        self.holes_to_commit -= holes
        self._advance(stable)

    def holes(self) -> OffsetRanges:
        """Offsets that all cursors have passed and nobody got: they will never be delivered.

        Proven only where this member has the whole partition: every read covers its window to the
        end, below the last stable offset that was asked for before, so what came to no slot was
        not there. Found only as far as they hold the stable offset back or lie above it.
        """
        if self.stock is not None:
            found = self.stock.acquired - self.stock.undealt - self.done - self.undelivered
            for cursor in self.cursors.values():
                found -= cursor.claimed()
            return found
        first, position = self._first_free(), self.position
        if not self.whole or first >= position:
            return OffsetRanges()
        if any(first in cursor.claimed() for cursor in self.cursors.values()):
            return OffsetRanges()
        return self.unclaimed(first, position - 1)

    def unclaimed(self, first: int, last: int) -> OffsetRanges:
        """Offsets of a range that are neither done nor claimed by any cursor; of many the first."""
        taken = self.done
        for cursor in self.cursors.values():
            taken = taken | cursor.claimed()
            if cursor.ranges and cursor.position <= last:
                last = cursor.position - 1
        return taken.complement(first, min(last, first + MOST_APART - 1))

    def amend(self, holes: OffsetRanges) -> None:
        """Counts proven holes as done."""
        self.is_quiet = False
        self.done |= holes
        self.holes_to_commit |= holes
        if self.stock is not None:
            self.stock.settle(holes)
        for cursor in self.cursors.values():
            cursor.todo -= holes

    def log_start(self, offset: int) -> None:
        """Takes the start of the log: what lay below it and was not done is lost."""
        self.is_quiet = False
        self._advance(offset)

    def charge(self, offset: int, how: str) -> None:
        """Notes that the last call of a record has ended its worker, for `PartitionWork.ended`."""
        self.is_quiet = False
        self.failed.ended[offset] = how

    def _advance(self, stable: int) -> None:
        if stable > self.stable:
            self.stable = stable
            self.done = self.done.clip(stable, MAX_OFFSET)
            self.undelivered = self.undelivered.clip(stable, MAX_OFFSET)
            if self.stock is not None:
                self.stock.forget_below(stable)
            for cursor in self.cursors.values():
                cursor.forget_below(stable)

    # -- what to do next

    def backlog(self, slots: Iterable[int], now: float) -> int:
        """Offsets that free slots could be given now; 0 if none."""
        most = 0
        for slot in slots:
            cursor = self.cursors.get(slot)
            if cursor is None or cursor.dispatched is not None or cursor.is_barred(now):
                continue
            if not cursor.staying:
                continue
            most = max(most, cursor.backlog(self.end, now))
        return most

    def plan(self, slots: Iterable[int], now: float, limits: Limits) -> dict[int, OffsetRanges]:
        """Offsets wanted by each free slot that has work; marks them as dispatched."""
        self.is_quiet, self.planned_at = False, now
        mine = [self.cursors[slot] for slot in slots if slot in self.cursors]
        mine = [cursor for cursor in mine if cursor.staying]
        cursors = [
            cursor for cursor in mine if cursor.dispatched is None and not cursor.is_barred(now)
        ]
        todo = OffsetRanges()
        for cursor in cursors:
            cursor.release_due(now, self.stable, self.done)
            if cursor.todo:
                cursor.todo = cursor.todo - self.done - cursor.waiting_offsets()
                if self.stock is not None:
                    cursor.todo &= self.stock.acquired  # The rest has gone to other members.
                todo |= cursor.todo
        self.reach = reach_of(todo, limits.window, scattered=self.reach < MERGE_GAP)
        front = max((cursor.position for cursor in cursors), default=0)
        is_limited = self.held_back >= limits.max_pending or self.is_at_limit
        goal = functools.partial(self._goal, is_limited=is_limited)
        scope = scope_of(todo, front, limits.window, self.reach, goal)
        started = {cursor.slot: cursor.start(scope, self.done) for cursor in cursors}
        planned = {slot: wanted for slot, wanted in started.items() if wanted}
        self._is_full = is_limited and not planned
        return planned

    def _goal(self, most: int, *, is_limited: bool) -> int:
        """Returns up to where new offsets may be read."""
        if not is_limited:
            return min(self.end, most)
        # What lies below a committed offset is a gap: a cursor that stands lower goes on. It may
        # have the record at the stable offset, and nobody else can bring the ranges down.
        done = -1 if self.done.last is None else self.done.last
        positions = [cursor.position for cursor in self.cursors.values() if cursor.ranges]
        top = max(done + 1, self.log_last + 1, *positions)
        return min(self.end, most, top)

    def work(self, slot: int) -> PartitionWork:
        """Returns what is dispatched to a slot, as its task gets it."""
        cursor = self.cursors[slot]
        assert cursor.dispatched is not None
        return self._work_of(cursor, cursor.dispatched)

    def _work_of(self, cursor: SlotCursor, offsets: OffsetRanges) -> PartitionWork:
        attempts, added = self.failed.attempts_of(offsets), self.failed.headers_of(offsets)
        ended = self.failed.ended_of(offsets)
        return PartitionWork(tuple(offsets.pairs()), attempts, self._blocked(cursor), added, ended)

    def _blocked(self, cursor: SlotCursor) -> dict[int, int]:
        """Returns the lowest waiting record of each lane: no higher one of the lane may start."""
        blocked = {lane: waiting.offset for lane, waiting in cursor.waiting.items()}
        return {} if self.ordering == "none" else blocked


def _done_of(report: PartitionReport) -> OffsetRanges:
    """Returns what is settled, the records that do not pass the filter included."""
    done = OffsetRanges.from_offsets(report.done_offsets.to_numpy())
    return done | _filtered_of(report) if report.filtered else done


def _filtered_of(report: PartitionReport) -> OffsetRanges:
    return OffsetRanges.from_offsets(unpack_offsets(report.filtered).to_numpy())

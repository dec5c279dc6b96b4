"""A partition of a job: its ledger, its lanes, its supply, and the work of the slots in it. Pure.

A record that this member may handle is in one of these states:

| State | Where it is kept | Entered by | Left by |
| --- | --- | --- | --- |
| not looked at | from ``SlotCursor.position`` on; of chunks ``undealt`` | the log grows | a plan |
| to look at again | ``SlotCursor.todo`` | a gap, `SlotWork.unknown`, a retry | a plan |
| dispatched | ``SlotCursor.dispatched`` | `SlotWork.plan`, what a real-time slot reads | a report |
| waiting | ``SlotCursor.waiting`` | `Lanes.fail`, `Lanes.restore` | `SlotCursor.release_due` |
| behind | ``Waiting.behind`` | `Lanes.put_behind` | the lowest of its lane is done |
| parked | ``waiting``, due at infinity | a failure that is given up | a decision |
| kept | ``waiting``, ``is_running`` | `SlotWork.given_back` | `SlotWork.kept_ended` |
| undelivered | ``OffsetLedger.undelivered`` | `OffsetLedger.defer` | its letter or rows are there |
| to commit | ``OffsetLedger.to_commit`` | `OffsetLedger.settle` | `Partition.commit_answered` |
| committed | `OffsetLedger.committed`, or below ``stable`` | the commit log | |

An offset without a record is a hole: from ``holes_to_commit`` it is committed like a record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from assignors import coverage
from assignors.ranges import intersection
from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.blocker import blocker_at
from coopconsume.runtime.plan.chunk_supply import ChunkSupply
from coopconsume.runtime.plan.cursor import SlotCursor, position_above
from coopconsume.runtime.plan.dealer import Dealer
from coopconsume.runtime.plan.lanes import Lanes
from coopconsume.runtime.plan.slot_work import SlotWork
from coopconsume.runtime.plan.supply import KeyRangeSupply

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from assignors import KeyRange
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.plan.gain import Gain
    from coopconsume.runtime.plan.ledger import OffsetLedger
    from coopconsume.runtime.plan.supply import Supply
    from coopconsume.runtime.plan.waiting_record import Waiting
    from coopconsume.worker.report import Ordering


class Partition:
    """Everything the loop knows of one partition.

    Args:
        index: Its index among the partitions of the epoch. A batch has some of them, and names them
            by *part*: see `BatchPlan.indexes`.
        topic, partition: Its topic, and its number in it.
        ledger: What is done of it.
        slots: (slot, its key ranges), one a slot. Where chunks are shared a slot has all keys.
        ordering: What is handled strictly one after another.
        leads: Where all members share it by chunks: whether this member speaks for it, as in
            `Owned`. None: it is shared by key range.

    Attributes:
        lanes: Its records that wait.
        supply: What slots may start of it.
        slots: What slots are given and report.
        dealer: Deals key ranges that come or go.
    """

    def __init__(
        self,
        index: int,
        topic: str,
        partition: int,
        ledger: OffsetLedger,
        *,
        slots: Iterable[tuple[int, tuple[KeyRange, ...]]],
        ordering: Ordering,
        leads: bool | None = None,
    ) -> None:
        self.index = index
        self.topic = topic
        self.partition = partition
        self.ledger = ledger
        position, gaps = position_above(ledger.stable, ledger.done.last, ledger.done)
        if leads is not None:
            # Slots read nothing but their slices.
            position, gaps = MAX_OFFSET, OffsetRanges()
        self.cursors = {slot: SlotCursor(slot, ranges, position, gaps) for slot, ranges in slots}
        self.lanes = Lanes(ordering, self.cursors)
        self.dealer = Dealer(index, self.lanes)
        self.supply: Supply = (
            KeyRangeSupply(ledger, self.lanes, self.dealer) if leads is None
            else ChunkSupply(ledger, self.lanes, leads=leads)
        )  # fmt: skip
        self.slots = SlotWork(ledger, self.lanes, self.supply)

    @property
    def chunks(self) -> ChunkSupply:
        """The supply of a partition that all members share by chunks."""
        assert isinstance(self.supply, ChunkSupply)
        return self.supply

    # -- what is known

    @property
    def is_ours(self) -> bool:
        """Whether any key range of it is still ours."""
        return self.ledger.is_ours

    def update_quiet(self, now: float) -> None:
        """Notes whether nothing is left to do, so that turns of the loop pass over it."""
        self.lanes.end_bars(now)
        ledger, end = self.ledger, self.ledger.end
        is_idle = not ledger.is_ours or (
            not ledger.has_uncommitted
            and all(cursor.is_quiet(end) for cursor in self.cursors.values())
            and ledger.first_open() >= max(end, self.supply.position)
        )
        ledger.is_quiet = is_idle and self.supply.is_quiet

    @property
    def is_drained(self) -> bool:
        """Whether nothing up to the end is left to do, wait for, hear of or prove a hole.

        What is parked, and what waits behind it, is nothing that a job could do.
        """
        is_full = self.slots.is_full and bool(self.supply.parked)
        return not self.dealer.gains and self.supply.is_drained(is_full=is_full)

    def has_processed(self, end: int) -> bool:
        """Whether all below an offset is done and committed, or held back by parked records."""
        ledger = self.ledger
        if ledger.stable >= end:
            return True
        uncommitted = ledger.to_commit | (ledger.undelivered & ledger.done)
        if self.dealer.gains or not self.supply.parked or uncommitted.clip(0, end - 1):
            return False
        # The end that is known may be older than the one that is asked for.
        return (ledger.end >= end and self.is_drained) or self.supply.has_processed(end)

    def blocker(self, now: float) -> dict[str, Any] | None:
        """Returns the record at the stable offset, see `blocker_at`; None if nothing is left."""
        first = self.ledger.first_open()
        if first >= self.ledger.end and first >= self.supply.position:
            return None
        return blocker_at(first, self.cursors.values(), self.lanes.failed.last(first), now)

    @property
    def real_time_from(self) -> int | None:
        """From which offset on a real-time slot reports holes; None: none does."""
        found = (cursor.holes_from for cursor in self.cursors.values())
        return next((offset for offset in found if offset is not None), None)

    def in_doubt(self, now: float) -> float:
        """Returns for how many seconds an earlier owner may still be at work on part of it.

        0: none is. Key ranges count that have come and have no slot yet.
        """
        untils = [self.lanes.barred_until(), *(gain.until for gain in self.dealer.gains)]
        return max(max(untils) - now, 0.0)

    def starts_at(self, now: float) -> float:
        """Returns when the first of its key ranges may start; infinity: it has none.

        Single keys that an earlier owner may be at work on do not count: the others may start.
        """
        ends = [cursor.barred_until for cursor in self.cursors.values() if cursor.ranges]
        return max(now, min([*ends, *(gain.until for gain in self.dealer.gains)], default=math.inf))

    def has(self, key_hash: int) -> bool:
        """Returns whether a key is still ours; if not, a late failure of it is ignored."""
        return self.lanes.cursor_of(key_hash) is not None

    def check(self) -> None:
        """Checks that no record is in two states that exclude each other. Models call it.

        Raises:
            AssertionError: One is.
        """
        self.ledger.check()
        self.lanes.check()
        self.supply.check()

    # -- key ranges that come and go

    def mark_in_doubt(self, key_range: KeyRange, until: float) -> None:
        """Starts nothing of some keys until an instant, see `Lanes.bar`."""
        self.ledger.wake()
        self.lanes.bar(key_range, until)

    def restore(self, pending: Iterable[Failed]) -> None:
        """Takes over the pending records of an earlier run from the log, see `Lanes.restore`."""
        self.ledger.wake()
        for failed in pending:
            if failed.offset >= self.ledger.stable and failed.offset not in self.ledger.done:
                self.lanes.restore(failed)

    def leave(self, ranges: Sequence[KeyRange]) -> None:
        """Starts nothing more of some key ranges, which are about to be given back."""
        self.ledger.wake()
        self.ledger.is_whole = False
        gains = [gain.without(ranges) for gain in self.dealer.gains]
        self.dealer.gains = [gain for gain in gains if gain.ranges]
        for cursor in self.cursors.values():
            cursor.leave(ranges)

    def has_left(self, now: float) -> None:
        """Forgets the key ranges that are given back; with the last one, what is not committed."""
        self.ledger.wake()
        for cursor in self.cursors.values():
            cursor.has_left()
        if self.dealer.gains or any(cursor.ranges for cursor in self.cursors.values()):
            self.dealer.undealt_since = now  # Until slots have a fair part of what is left.
        else:
            self.ledger.close()

    def extend(self, gain: Gain) -> None:
        """Adds gained key ranges; `deal_again` deals them once no earlier owner is at work."""
        self.ledger.add_committed(gain.committed)
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
        ledger = self.ledger
        gains = self.dealer.deal_again(slots, now, closed, ledger.stable, ledger.done)
        if gains is None:
            return
        staying = (one for cursor in self.cursors.values() for one in cursor.staying)
        ledger.is_whole = not coverage(staying).holes
        ledger.wake()
        for gain in gains:
            for cursor in self.cursors.values():
                if intersection(cursor.ranges, gain.ranges):
                    cursor.bar(gain.until)
            self.restore(failed for failed in gain.pending if gain.has(failed.key_hash))
            for key_range, until in gain.in_doubt:
                self.mark_in_doubt(key_range, until)

    # -- what becomes of records that are handled

    def replay(self, offset: int, now: float) -> None:
        """Has a parked record tried again, from its first attempt on; harmless if not parked."""
        self.ledger.wake()
        for waiting in self.supply.parked:
            if waiting.offset == offset:
                waiting.due, waiting.attempts, waiting.since = now, 0, now
                self.lanes.failed.restart(offset)

    def discard(self, offset: int, now: float) -> None:
        """Counts a parked record as done, so its key continues; harmless if it is not parked."""
        self.ledger.wake()
        for waiting in self.supply.parked:
            if waiting.offset == offset:
                waiting.due = now  # What is behind it goes on with the slot's next batch.
                self.ledger.discard(offset)
                self.lanes.failed.remove(offset)

    def decide(self, decisions: Iterable[Decision], now: float) -> None:
        """Takes the open decisions on failed records, and makes waiting ones of these due."""
        self.ledger.wake()
        self.lanes.decided.take(decisions)
        self.lanes.decided.hasten(self.lanes.waiting(), now)

    def hold_back(self, records: Iterable[Waiting]) -> None:
        """Holds back the lanes of deferred records whose letters or rows cannot be written now."""
        self.ledger.wake()
        for record in records:
            if record.offset in self.ledger.undelivered:
                self.lanes.hold_back(record)
                self.ledger.hold_back(record.offset)

    def commit_answered(self, offsets: OffsetRanges, stable: int, holes: OffsetRanges) -> None:
        """Takes the answer of the commit log: what is committed, and its stable offset."""
        undelivered = self.ledger.undelivered
        if undelivered:
            self.ledger.delivered(offsets & undelivered)
            self.lanes.release(offsets & undelivered)
        self.ledger.commit_answered(offsets, holes)
        self._advance(stable)

    def log_start(self, offset: int) -> None:
        """Takes the start of the log: what lay below it and was not done is lost."""
        self._advance(offset)

    def _advance(self, stable: int) -> None:
        if self.ledger.advance(stable):
            self.supply.forget_below(stable)
            self.lanes.forget_below(stable)

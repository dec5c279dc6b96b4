"""What to read next, and what became of it: the pure core of a job's loop.

A member works on *shares*: of each partition, every slot has one piece of the key range. A share
knows its ``position`` (offsets below it were looked at), its ``todo`` (offsets below the position
that must be looked at again: gaps found at the start, what a time box left over, retries that are
due) and its ``waiting`` records (failed, not due yet, with those of their key behind them).

The order rule is kept by three facts. A share's rows are planned in ascending offsets, all of
``todo`` before anything new. A key with a waiting record is named in the batch as blocked. A slot
is in one batch at a time.

No clock, no socket, no Spark: times come in as seconds since the epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.crowding import crowded_at
from coopconsume.report import PartitionWork, unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assignors import KeyRange
    from coopconsume.report import Failure, Ordering, PartitionReport

#: Offsets between two wanted ranges that are cheaper to read through than to open a second read.
MERGE_GAP = 5_000
#: Bytes of a key that people are shown.
SHOWN_KEY_BYTES = 100
#: The same where ranges are strewn: less than a separate read fetches, two of a producer's batches.
NEAR = 30
#: Offsets between ranges in all, and for each range, up to which they are not strewn.
READ_THROUGH = 20_000
READ_THROUGH_EACH = 300
#: Separate reads of one partition in one batch.
MAX_READS = 12


@dataclass
class Waiting:
    """A failed record that is not due yet, and what waits behind it.

    Attributes:
        offset, key_hash: Which record.
        attempts: Failures so far.
        due: Seconds since the epoch at which it is tried again; infinity: it is parked until
            somebody decides about it.
        error: What the handler said.
        key: Its key for people, where this process has seen it.
        behind: Offsets of the same lane that must wait for it.
        is_trying: Whether it is due and to be tried again, alone, while they wait on.
    """

    offset: int
    key_hash: int
    attempts: int
    due: float
    error: str
    key: bytes | None = None
    behind: list[int] = field(default_factory=list)
    is_trying: bool = False

    @property
    def is_far(self) -> bool:
        """Whether what waits behind it is not read in passing."""
        behind = self.behind
        # A lower one behind it was done by a worker that ended: it goes first again.
        return bool(behind) and min(behind) > self.offset and max(behind) - self.offset > MERGE_GAP

    @property
    def held(self) -> list[int]:
        """The offsets that are not to be started now."""
        return self.behind if self.is_trying else [self.offset, *self.behind]

    @property
    def is_parked(self) -> bool:
        """Whether it waits until somebody decides about it."""
        return self.due == math.inf


@dataclass
class Share:
    """One slot's piece of one partition."""

    slot: int
    ranges: tuple[KeyRange, ...]
    position: int
    todo: OffsetRanges = field(default_factory=OffsetRanges)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    #: What the batch now running may start; None between batches.
    flying: OffsetRanges | None = None
    next_position: int = 0
    #: Until then, in seconds since the epoch, an earlier owner may still be at work on it.
    barred_until: float = 0.0
    #: The only offsets that may be planned while its slot is under suspicion; None: any.
    only: OffsetRanges | None = None

    def is_barred(self, now: float) -> bool:
        """Whether an earlier owner may still be at work on it."""
        if self.barred_until > now:
            return True
        self.barred_until = 0.0
        return False

    def held(self) -> OffsetRanges:
        """Offsets that wait: failed ones and those behind them."""
        return OffsetRanges.from_offsets([o for w in self.waiting.values() for o in w.held])

    def settle_tries(self, done: OffsetRanges, left: OffsetRanges) -> None:
        """Where a record that was tried again is done, or is not there any more, its lane flows."""
        wanted = self.flying or OffsetRanges()
        for lane, waiting in list(self.waiting.items()):
            tried = waiting.is_trying and waiting.offset in wanted
            if tried and (waiting.offset in done or waiting.offset not in left):
                del self.waiting[lane]
                self.todo |= OffsetRanges.from_offsets(waiting.behind)


@dataclass(frozen=True)
class Read:
    """Offsets ``first`` to ``last``, both included, of the partition with this index."""

    part: int
    first: int
    last: int


@dataclass(frozen=True)
class BatchPlan:
    """One batch: what is read, and what each slot may start of it."""

    reads: tuple[Read, ...]
    work: Mapping[int, Mapping[int, PartitionWork]]
    wanted: Mapping[int, OffsetRanges]

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that have work, ascending."""
        return tuple(sorted(self.work))

    @property
    def span(self) -> int:
        """Offsets that are read."""
        return sum(read.last - read.first + 1 for read in self.reads)


@dataclass(frozen=True)
class Limits:
    """Bounds of a plan: offsets in a batch, pending records and ranges of a partition.

    A partition's own limit on ranges counts beside them.
    """

    window: int
    max_pending: int
    max_ranges: int = MAX_OFFSET


class Partition:
    """Everything the loop knows of one partition.

    Args:
        part: Index of the partition in this run.
        topic, partition: Which.
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        shares: (slot, its key ranges), one a slot.
        ordering: What is handled strictly one after another.
        whole: Whether the shares together are the whole key range.
        max_ranges: Ranges above the stable offset that the commit log takes.
    """

    def __init__(
        self,
        part: int,
        topic: str,
        partition: int,
        *,
        stable: int,
        committed: OffsetRanges,
        shares: Iterable[tuple[int, tuple[KeyRange, ...]]],
        ordering: Ordering,
        whole: bool,
        max_ranges: int = 1_000_000,
    ) -> None:
        self.part = part
        self.topic = topic
        self.partition = partition
        self.stable = stable
        self.done = committed
        self.unsaved = OffsetRanges()
        self.unsaved_holes = OffsetRanges()
        self.end = stable
        self.ordering = ordering
        self.whole = whole
        self.max_ranges = max_ranges
        #: Ranges in the commit log, those of other members among them.
        self.log_ranges = committed.range_count
        self.attempts: dict[int, int] = {}
        self._may_have_parked = False
        #: The last failure of each record that has failed and is not done, in flight or not.
        self._failed: dict[int, Waiting] = {}
        self._stands = (-1, 0.0)
        self.reach = MERGE_GAP
        #: Whether nothing could be planned the last time as too much waits.
        self._is_full = False
        top = committed.last
        position = stable if top is None else top + 1
        gaps = committed.complement(stable, position - 1) if committed else OffsetRanges()
        self.shares = {slot: Share(slot, ranges, position, gaps) for slot, ranges in shares}

    # -- what is known

    @property
    def position(self) -> int:
        """Everything below was looked at, or is in some share's ``todo``."""
        return min(share.position for share in self.shares.values())

    @property
    def pending(self) -> int:
        """Records that are ours and wait."""
        return sum(1 + len(w.behind) for s in self.shares.values() for w in s.waiting.values())

    @property
    def parked(self) -> list[Waiting]:
        """Records that were given up, and hold their keys back until somebody decides."""
        if not self._may_have_parked:
            return []  # Waiting records may be many, and this is asked for often.
        found = [w for s in self.shares.values() for w in s.waiting.values() if w.is_parked]
        self._may_have_parked = bool(found)
        return found

    @property
    def committed(self) -> OffsetRanges:
        """What the commit log has above its stable offset, as far as it is ours."""
        return self.done - self.unsaved - self.unsaved_holes

    @property
    def ranges(self) -> int:
        """Ranges above the stable offset, as they count for the limit.

        Where others have parts of the partition, their records lie between ours: only the log
        knows how many ranges there are.
        """
        return self.done.range_count if self.whole else self.log_ranges

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many ranges that nothing new may be read."""
        return self.ranges >= crowded_at(self.max_ranges)

    @property
    def is_drained(self) -> bool:
        """Whether nothing up to the end is left to do, wait for, hear of or prove a hole.

        What is parked, and what waits behind it, is nothing that a job could do.
        """
        is_full = self._is_full and bool(self.parked)
        if self.whole and not is_full and self._first_free() < self.end:
            return False
        return all(
            (share.position >= self.end or (is_full and not share.barred_until))
            and not share.todo
            and all(waiting.is_parked for waiting in share.waiting.values())
            and share.flying is None
            for share in self.shares.values()
        )

    def is_settled(self, end: int) -> bool:
        """Whether all below an offset is done and committed, or held back by parked records."""
        if self.stable >= end:
            return True
        if not self.parked or self.unsaved.clip(0, end - 1):
            return False
        if self.is_drained:
            return True
        # What came since is not asked for.
        if self.whole and self._first_free() < end:
            return False
        return all(
            share.position >= end
            and not share.todo.clip(0, end - 1)
            and not (share.flying or OffsetRanges()).clip(0, end - 1)
            and all(w.is_parked for w in share.waiting.values() if w.offset < end)
            for share in self.shares.values()
        )

    def blocker(self) -> Waiting | None:
        """The waiting record that holds the stable offset, if one does."""
        first = self.first_open()
        for share in self.shares.values():
            for waiting in share.waiting.values():
                if waiting.offset == first or first in waiting.behind:
                    return waiting
        return None

    def stand(self, now: float) -> float:
        """For how many seconds the first open offset has been the same, as far as was looked."""
        first = self.first_open()
        if self._stands[0] != first:
            self._stands = first, now
        return now - self._stands[1]

    def holder(self) -> dict[str, Any] | None:
        """What holds the stable offset, for people and progress; None if nothing is left to do.

        ``state`` is ``failed``, ``parked``, ``in flight`` (in ``slot``), ``to do``, or
        ``elsewhere`` where the offset is not ours.
        """
        first = self.first_open()
        if first >= self.end and first >= self.position:
            return None
        failed = self._failed.get(first)
        slot = next(
            (s.slot for s in self.shares.values() if s.flying is not None and first in s.flying),
            None,
        )
        state = "elsewhere"
        if slot is not None:
            state = "in flight"
        elif (blocker := self.blocker()) is not None:
            state = "parked" if blocker.is_parked else "failed"
        elif any(first in s.todo or first >= s.position for s in self.shares.values()):
            state = "to do"
        return {
            "offset": first,
            "state": state,
            "slot": slot,
            "key": None if failed is None or failed.key is None else shown_key(failed.key),
            "keyHash": failed.key_hash if failed else None,
            "attempts": failed.attempts if failed else 0,
            "error": failed.error if failed else "",
            "behind": len(failed.behind) if failed else 0,
        }

    def first_open(self) -> int:
        """The stable offset as it will be once all that is done is committed."""
        end = self.done.range_end(self.stable)
        return self.stable if end is None else end + 1

    def _first_free(self) -> int:
        """The first open offset that no parked record holds back."""
        parked = self.parked
        if not parked:
            return self.first_open()
        held = [offset for w in parked for offset in (w.offset, *w.behind)]
        end = (self.done | OffsetRanges.from_offsets(held)).range_end(self.stable)
        return self.stable if end is None else end + 1

    def next_due(self) -> float | None:
        """When the next waiting record is due; None without any."""
        idle = [share for share in self.shares.values() if share.flying is None]
        dues = [
            max(w.due, s.barred_until)
            for s in idle for w in s.waiting.values() if not w.is_trying
        ]  # fmt: skip
        dues += [share.barred_until for share in idle if share.barred_until]
        return min(dues, default=None)

    def lane(self, key_hash: int, offset: int) -> int:
        """What a record of this key hash and offset must wait for."""
        return {"key": key_hash, "partition": 0, "none": offset}[self.ordering]

    # -- what happened

    def restore(self, pending: Iterable[tuple[int, int, int, float, str]]) -> None:
        """Take over (offset, key hash, attempts, due, error) of an earlier run from the log."""
        for offset, key_hash, attempts, due, error in pending:
            if offset < self.stable or offset in self.done:
                continue
            self.attempts[offset] = attempts
            self._may_have_parked |= due == math.inf
            for share in self.shares.values():
                if not any(key_range.contains(key_hash) for key_range in share.ranges):
                    continue
                lane = self.lane(key_hash, offset)
                # Of two failed records of a lane the lower goes first; the other is found again.
                earlier = share.waiting.get(lane)
                failed = self._failed[offset] = Waiting(offset, key_hash, attempts, due, error)
                if earlier is None or offset < earlier.offset:
                    share.waiting[lane] = failed
                break

    def take_along(self, offsets: OffsetRanges) -> None:
        """These are done, and were not committed yet."""
        offsets = offsets.clip(self.stable, MAX_OFFSET) - self.done
        self.done |= offsets
        self.unsaved |= offsets
        for share in self.shares.values():
            share.todo -= offsets

    def reported(self, slot: int, report: PartitionReport, now: float) -> None:
        """Take in what a slot reported of its part of a batch."""
        share = self.shares[slot]
        wanted = share.flying
        if wanted is None:
            return
        done = OffsetRanges.from_offsets(unpack_offsets(report.done).to_numpy())
        named = [f.offset for f in report.failed] + [offset for offset, _ in report.blocked]
        settled = done | OffsetRanges.from_offsets(named)
        left = (
            wanted.clip(report.resume, MAX_OFFSET) if report.resume is not None else OffsetRanges()
        )
        share.todo = ((share.todo - wanted) | left) - settled
        share.position = max(share.position, share.next_position)
        failed: dict[int, Failure] = {}
        others: list[tuple[int, int]] = []
        for failure in sorted(report.failed, key=lambda one: one.offset):
            lane = self.lane(failure.key_hash, failure.offset)
            if failed.setdefault(lane, failure) is not failure:
                # Of several of a lane the lowest goes first; none of them may be forgotten.
                others.append((failure.offset, failure.key_hash))
        named_failed = OffsetRanges.from_offsets([f.offset for f in report.failed])
        share.settle_tries(done, left | named_failed)
        share.flying = None
        for lane, failure in failed.items():
            self.attempts[failure.offset] = failure.attempts
            self._may_have_parked |= failure.delay == math.inf
            earlier = share.waiting.get(lane)
            waiting = self._failed[failure.offset] = Waiting(
                failure.offset,
                failure.key_hash,
                failure.attempts,
                now + failure.delay,
                failure.error,
                failure.key,
                earlier.behind if earlier else [],
            )
            share.waiting[lane] = waiting
        flowing: list[int] = []
        for offset, key_hash in [*others, *report.blocked]:
            ahead = share.waiting.get(self.lane(key_hash, offset))
            (ahead.behind if ahead else flowing).append(offset)
        share.todo |= OffsetRanges.from_offsets(flowing)
        for other in self.shares.values():
            # Of a gap found at the start nobody knew whose key it was; now it is known.
            if other is not share and other.todo:
                other.todo -= settled
        self.done |= done
        self.unsaved |= done
        if self.attempts:
            self.attempts = {o: n for o, n in self.attempts.items() if o not in done}
            self._failed = {o: w for o, w in self._failed.items() if o in self.attempts}

    def replay(self, offset: int, now: float) -> None:
        """A parked record is to be tried again from its first attempt on; harmless if it is not."""
        for waiting in self.parked:
            if waiting.offset == offset:
                waiting.due, waiting.attempts = now, 0
                self.attempts.pop(offset, None)

    def discard(self, offset: int, now: float) -> None:
        """A parked record counts as done in the log: its key flows on; harmless if it is not."""
        for waiting in self.parked:
            if waiting.offset == offset:
                waiting.due = now  # What is behind it goes on with the slot's next batch.
                self.done |= OffsetRanges([(offset, offset)])
                self.attempts.pop(offset, None)
                self._failed.pop(offset, None)

    def unknown(self, slot: int) -> None:
        """Nobody knows what a slot did of its part: all of it is to be done again."""
        share = self.shares[slot]
        if share.flying is not None:
            share.todo |= share.flying
            share.position = max(share.position, share.next_position)
            share.flying = None

    def saved(self, offsets: OffsetRanges, stable: int, holes: OffsetRanges) -> None:
        """The commit log has taken these, and its stable offset is now ``stable``."""
        self.unsaved -= offsets
        self.unsaved_holes -= holes
        self._advance(stable)

    def holes(self) -> OffsetRanges:
        """Offsets that all shares have passed and nobody got: they will never be delivered.

        Proven only where this member has the whole partition: every read covers its window to the
        end, below the last stable offset that was asked for before, so what came to no slot was
        not there. Found only as far as they hold the stable offset back or lie above it.
        """
        first, position = self._first_free(), self.position
        if not self.whole or first >= position:
            return OffsetRanges()
        if any(first in share.todo or first in share.held() for share in self.shares.values()):
            return OffsetRanges()
        return self.unclaimed(first, position - 1)

    def unclaimed(self, first: int, last: int) -> OffsetRanges:
        """Offsets of a range that are neither done nor in any share's hands."""
        taken = self.done
        for share in self.shares.values():
            taken = taken | share.todo | share.held()
            if share.position <= last:
                last = share.position - 1
        return taken.complement(first, last) if first <= last else OffsetRanges()

    def amend(self, holes: OffsetRanges) -> None:
        """These offsets are proven holes: they count as done."""
        self.done |= holes
        self.unsaved_holes |= holes
        for share in self.shares.values():
            share.todo -= holes

    def log_start(self, offset: int) -> None:
        """The log now begins at ``offset``: forget what lay below."""
        self._advance(offset)
        self.unsaved = self.unsaved.clip(offset, MAX_OFFSET)
        self.unsaved_holes = self.unsaved_holes.clip(offset, MAX_OFFSET)
        for share in self.shares.values():
            share.todo = share.todo.clip(offset, MAX_OFFSET)
            share.position = max(share.position, offset)
            for lane, waiting in list(share.waiting.items()):
                if waiting.offset < offset:
                    del share.waiting[lane]
                    behind = [o for o in waiting.behind if o >= offset]
                    share.todo |= OffsetRanges.from_offsets(behind)

    def charge(self, offset: int) -> None:
        """An attempt of this record ended without a word, with its worker."""
        self.attempts[offset] = self.attempts.get(offset, 0) + 1

    def _advance(self, stable: int) -> None:
        if stable > self.stable:
            self.stable = stable
            self.done = self.done.clip(stable, MAX_OFFSET)
            for share in self.shares.values():
                share.position = max(share.position, stable)

    # -- what to do next

    def backlog(self, slots: Iterable[int], now: float) -> int:
        """Offsets that free slots could be given now; 0 if none."""
        most = 0
        for slot in slots:
            share = self.shares.get(slot)
            if share is None or share.flying is not None or share.is_barred(now):
                continue
            due = sum(len(w.held) for w in share.waiting.values() if w.due <= now)
            most = max(most, len(share.todo) + due + max(0, self.end - share.position))
        return most

    def plan(self, slots: Iterable[int], now: float, limits: Limits) -> dict[int, OffsetRanges]:
        """Offsets wanted by each free slot that has work; marks them as flying."""
        mine = [self.shares[slot] for slot in slots if slot in self.shares]
        shares = [share for share in mine if share.flying is None and not share.is_barred(now)]
        todo = OffsetRanges()
        for share in shares:
            self._release_due(share, now)
            if share.todo:
                share.todo = share.todo - self.done - share.held()
                todo |= share.todo
        # Strewn gaps stay so until all of them are read, few as they become on the way.
        self.reach = min(self.reach, reach_of(todo)) if todo else MERGE_GAP
        reads, rest = cluster(todo, limits.window, self.reach)
        cut = reads[-1][1] if rest and reads else None
        room = limits.window - sum(last - first + 1 for first, last in reads)
        crowded = (
            self.pending >= limits.max_pending
            or self.ranges >= limits.max_ranges
            or self.is_crowded
        )
        fresh = cut is None and room > 0
        front = max((share.position for share in shares), default=0)
        goal = min(self.end, front + room)
        if crowded:
            # Below what is done there are gaps, no news: a share that stands lower goes on.
            done = -1 if self.done.last is None else self.done.last
            goal = min(goal, max(done + 1, *(share.position for share in self.shares.values())))
        planned: dict[int, OffsetRanges] = {}
        for share in shares:
            wanted = share.todo if cut is None else share.todo.clip(0, cut)
            share.next_position = share.position
            if share.only is not None:
                last = share.only.last
                wanted = OffsetRanges() if last is None else wanted.clip(0, last)
            elif fresh and share.position < goal:
                # A share that fell behind goes on from where it stands, at most to the others.
                stop = min(share.position + room, goal)
                stop = goal if stop >= front else stop
                share.next_position = stop
                wanted |= OffsetRanges([(share.position, stop - 1)])
            if share.waiting:
                wanted -= share.held()
            wanted -= self.done
            if wanted:
                share.flying = wanted
                planned[share.slot] = wanted
            else:
                # Nothing of it needs a read: all done, or waiting.
                share.position = max(share.position, share.next_position)
        self._is_full = crowded and not planned
        return planned

    def work(self, slot: int) -> PartitionWork:
        """The flying offsets of a slot as its task gets them."""
        share = self.shares[slot]
        assert share.flying is not None
        attempts = {o: n for o, n in self.attempts.items() if o in share.flying}
        blocked = frozenset() if self.ordering == "none" else frozenset(share.waiting)
        tries = frozenset(
            w.offset for w in share.waiting.values() if w.is_trying and w.offset in share.flying
        )
        return PartitionWork(tuple(share.flying.pairs()), attempts, blocked, tries)

    def _release_due(self, share: Share, now: float) -> None:
        for lane, waiting in list(share.waiting.items()):
            if waiting.due > now:
                continue
            if waiting.offset < self.stable or waiting.offset in self.done:
                # Discarded, or settled by somebody else: its key flows on.
                del share.waiting[lane]
                share.todo |= OffsetRanges.from_offsets(waiting.behind)
            elif waiting.is_trying:
                continue
            elif waiting.is_far:
                # What waits behind it is not read again and again while it keeps failing.
                waiting.is_trying = True
                share.todo |= OffsetRanges.from_offsets([waiting.offset])
            else:
                del share.waiting[lane]
                share.todo |= OffsetRanges.from_offsets([waiting.offset, *waiting.behind])


def shown_key(key: bytes) -> str:
    """A key for people."""
    return key[:SHOWN_KEY_BYTES].decode("utf-8", "backslashreplace")


def reach_of(offsets: OffsetRanges) -> int:
    """How far apart wanted ranges may lie to be read as one.

    Where they are few and near each other, reading through costs less than another read. Where
    they are strewn over a long stretch, it would fetch most of the log for a few records.
    """
    firsts, lasts = offsets.bounds()
    between = firsts[1:] - lasts[:-1] - 1
    through = int(between[between < MERGE_GAP].sum())
    dense = through <= max(READ_THROUGH, READ_THROUGH_EACH * len(firsts))
    return MERGE_GAP if dense else min(MERGE_GAP, NEAR)


def covering(offsets: OffsetRanges, reach: int) -> list[tuple[int, int]]:
    """Ascending reads that cover all wanted offsets."""
    reads: list[tuple[int, int]] = []
    for first, last in offsets:
        if reads and first - reads[-1][1] <= reach:
            reads[-1] = (reads[-1][0], last)
        else:
            reads.append((first, last))
    return reads


def cluster(offsets: OffsetRanges, span: int, reach: int) -> tuple[list[tuple[int, int]], bool]:
    """Ascending reads of the first of some wanted offsets, and whether others are left for later.

    Ranges that lie near each other are read as one; at most `MAX_READS` reads and ``span``
    offsets, but always at least one offset if any is wanted.
    """
    reads: list[tuple[int, int]] = []
    used = 0
    for first, last in offsets:
        near = bool(reads) and first - reads[-1][1] <= reach
        between = first - reads[-1][1] - 1 if near else 0
        room = span - used - between
        if reads and (room <= 0 or (not near and len(reads) == MAX_READS)):
            return reads, True
        stop = min(last, first + max(1, room) - 1)
        if near:
            reads[-1] = (reads[-1][0], stop)
        else:
            reads.append((first, stop))
        used += between + stop - first + 1
        if stop < last:
            return reads, True
    return reads, False


def plan_batch(
    partitions: Sequence[Partition], slots: Sequence[int], now: float, limits: Limits
) -> BatchPlan | None:
    """The next batch for these free slots; None if there is nothing to do for them.

    The window is dealt over the partitions by what they have left.
    """
    backlogs = {p.part: p.backlog(slots, now) for p in partitions}
    total = sum(backlogs.values())
    if not total:
        return None
    work: dict[int, dict[int, PartitionWork]] = {}
    wanted: dict[int, OffsetRanges] = {}
    reads: list[Read] = []
    for partition in partitions:
        part = partition.part
        if not backlogs[part]:
            continue
        window = max(1, limits.window * backlogs[part] // total)
        planned = partition.plan(slots, now, Limits(window, limits.max_pending, limits.max_ranges))
        union = OffsetRanges()
        for slot, offsets in planned.items():
            work.setdefault(slot, {})[part] = partition.work(slot)
            union |= offsets
        if union:
            wanted[part] = union
            # Every wanted offset is read: one that were not would be taken for a hole.
            spans = covering(union, partition.reach)
            reads += [Read(part, first, last) for first, last in spans]
    return BatchPlan(tuple(reads), work, wanted) if work else None


def deal(
    ranges: tuple[KeyRange, ...], slots: int, part: int, ordering: Ordering
) -> list[tuple[int, tuple[KeyRange, ...]]]:
    """The key ranges of a partition that each slot gets."""
    if ordering == "partition":
        return [(part % slots, ranges)]
    dealt: dict[int, list[KeyRange]] = {}
    for key_range in ranges:
        # A range may be narrower than there are slots.
        for slot, piece in enumerate(key_range.split(min(slots, key_range.size))):
            dealt.setdefault(slot, []).append(piece)
    return [(slot, tuple(pieces)) for slot, pieces in dealt.items()]

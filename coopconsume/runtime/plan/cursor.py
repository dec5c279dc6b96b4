"""The cursor of a slot in a partition: what is wanted, dispatched, or waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors.ranges import difference, intersection
from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.reads import cluster
from coopconsume.runtime.plan.waiting_records import WaitingRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assignors import KeyRange
    from coopconsume.runtime.plan.waiting_record import Waiting
    from coopconsume.worker.report import Ordering

#: The most offsets from a stable offset to where a cursor begins. A set of so many takes 20 ms.
MOST_APART = 1 << 32


@dataclass(frozen=True)
class Scope:
    """How far the cursors of a partition may go in one batch.

    Attributes:
        cut: The last offset that is read of what must be looked at again; None: all of it is. A
            cursor that has more of it gets nothing new.
        front: Where the foremost cursor stands.
        goal: Up to where new offsets may be read, itself not included.
        capacity: How many new offsets there may be.
    """

    cut: int | None
    front: int
    goal: int
    capacity: int

    def cuts(self, todo: OffsetRanges) -> bool:
        """Whether some of what must be looked at again is left for later: before any news."""
        last = todo.last
        return self.cut is not None and last is not None and last > self.cut


def position_above(stable: int, top: int | None, done: OffsetRanges) -> tuple[int, OffsetRanges]:
    """Returns where a cursor begins, and the offsets below it to look at first.

    It begins above all that is done, so that these come first in any order of reads. What is done
    farther from the stable offset is passed over on the way: a set of all that lies between, such
    as a part of the log that a transaction or compaction left empty, would be too large.

    Args:
        stable: The stable offset.
        top: The highest offset that is done, or that another cursor has read; None: none.
        done: The offsets that are done.
    """
    position = stable if top is None else min(top + 1, stable + MOST_APART)
    return position, done.complement(stable, position - 1)


def scope_of(
    todo: OffsetRanges, front: int, window: int, reach: int, goal: Callable[[int], int]
) -> Scope:
    """Returns how far the cursors of a partition may go: offsets to look at again come first.

    Args:
        todo: The offsets to look at again, of all cursors.
        front: Where the foremost cursor stands.
        window: Offsets that the reads may span.
        reach: How far apart wanted ranges may lie to be read as one.
        goal: Returns up to where new offsets may be read, given the most that the window allows.
    """
    reads, is_cut = cluster(todo, window, reach)
    left = window - sum(last - first + 1 for first, last in reads)
    return Scope(reads[-1][1] if is_cut else None, front, goal(front + left), left)


@dataclass
class LeavingRanges:
    """Key ranges of a cursor that are about to be given back: nothing of them is planned any more.

    Attributes:
        ranges: The key ranges.
        may_start: Whether what is dispatched was planned before these were known, and its slot may
            start records of them.
        at_work: Key hashes of their records, by offset, that handlers of what is dispatched work
            on.
    """

    ranges: tuple[KeyRange, ...] = ()
    may_start: bool = False
    at_work: Mapping[int, int] = field(default_factory=dict)

    def has(self, key_hash: int) -> bool:
        """Whether a key is about to be given back."""
        return any(one.contains(key_hash) for one in self.ranges)

    def withheld(self, at_work: Mapping[int, int]) -> None:
        """Notes that the slot starts nothing more of them.

        Args:
            at_work: Key hashes by offset of the records that its handlers work on.
        """
        self.may_start = False
        self.at_work = {o: key_hash for o, key_hash in at_work.items() if self.has(key_hash)}


@dataclass
class SlotCursor:
    """What a slot has left of a partition: its key ranges, its position, what comes again."""

    slot: int
    ranges: tuple[KeyRange, ...]
    position: int
    todo: OffsetRanges = field(default_factory=OffsetRanges)
    #: Failed records that wait for their next attempt, and those behind them.
    waiting: WaitingRecords = field(default_factory=WaitingRecords)
    #: What the batch now running may start and has not reported; None between batches. In a
    #: real-time run: what its slot has read and not reported. A record that is reported stays in
    #: flight until its commit is acknowledged, and is not dispatched any more.
    dispatched: OffsetRanges | None = None
    #: Those dispatched that its slot has got as chunks and has not read yet.
    unread: OffsetRanges = field(default_factory=OffsetRanges)
    #: Whether its slot reads on by itself, from the position on.
    is_real_time: bool = False
    #: From which offset on its slot reports holes, reading by itself; None: it reports none.
    holes_from: int | None = None
    next_position: int = 0
    #: Until then, on the monotonic clock, an earlier owner may still be at work on it.
    barred_until: float = 0.0
    #: The only offsets that may be planned while its slot is under suspicion; None: any.
    only: OffsetRanges | None = None
    #: Key ranges of it that are about to be given back.
    leaving: LeavingRanges = field(default_factory=LeavingRanges)

    @property
    def staying(self) -> tuple[KeyRange, ...]:
        """The key ranges whose records may be planned."""
        leaving = self.leaving.ranges
        return difference(self.ranges, leaving) if leaving else self.ranges

    @property
    def reading(self) -> int:
        """How many dispatched offsets its slot has read."""
        return 0 if self.dispatched is None else len(self.dispatched) - len(self.unread)

    @property
    def is_at_work(self) -> bool:
        """Whether something is dispatched: a batch, or records that its real-time slot has got."""
        return bool(self.dispatched) if self.is_real_time else self.dispatched is not None

    @property
    def size(self) -> int:
        """How many key hashes may be planned."""
        return sum(key_range.size for key_range in self.staying)

    def leave(self, ranges: Sequence[KeyRange]) -> None:
        """Plans nothing more of some key ranges, as they are about to be given back."""
        leaving = intersection(self.ranges, ranges)
        may_start = bool(leaving) and self.dispatched is not None
        self.leaving = LeavingRanges(leaving, may_start=may_start)

    def has_left(self) -> None:
        """Forgets the key ranges that are given back, and what waits of them."""
        self.waiting.leave(self.leaving.ranges)
        self.ranges, self.leaving = self.staying, LeavingRanges()
        if not self.has(0):
            self.holes_from = None

    def forget(self, offsets: OffsetRanges) -> None:
        """Forgets records of key ranges that are given back, which its slot has not started."""
        self.todo -= offsets
        if self.dispatched is not None:
            self.dispatched -= offsets

    def clear_dispatched(self) -> None:
        """Notes that nothing of it is dispatched any more."""
        self.dispatched, self.is_real_time, self.holes_from = None, False, None
        self.unread = OffsetRanges()
        self.leaving.withheld({})

    def is_free(self, now: float) -> bool:
        """Whether it may be dealt again: nothing of it may be started by anybody."""
        return self.dispatched is None and self.takes_chunks(now)

    def takes_chunks(self, now: float) -> bool:
        """Whether its slot may get more chunks: it is free, or reads by itself."""
        may_get = not (self.only is not None or self.leaving.ranges or self.is_barred(now))
        return may_get and (self.dispatched is None or self.is_real_time)

    def has(self, key_hash: int) -> bool:
        """Whether a key is among its own."""
        return any(one.contains(key_hash) for one in self.ranges)

    def bar(self, until: float) -> None:
        """Starts nothing of it until an instant: an earlier owner may still be at work on it."""
        self.barred_until = max(self.barred_until, until)

    def is_barred(self, now: float) -> bool:
        """Whether an earlier owner may still be at work on it."""
        return self.barred_until > now

    def handles(self, offset: int) -> bool:
        """Whether an offset is dispatched, or a handler may still work on it."""
        if self.dispatched is not None and offset in self.dispatched:
            return True
        return any(
            waiting.is_running and waiting.offset == offset for waiting in self.waiting.records()
        )

    def claimed(self) -> OffsetRanges:
        """Offsets that may be those of its records: to be looked at again, or waiting.

        Once all of its key ranges are given back it looks at nothing any more.
        """
        waiting = self.waiting.offsets()
        return self.todo | waiting if self.ranges else waiting

    def is_drained(self, end: int, *, is_full: bool) -> bool:
        """Whether nothing below an offset is left that a job could do, or nothing may be read."""
        return not self.ranges or (
            (self.position >= end or (is_full and not self.barred_until))
            and not self.todo
            and all(waiting.is_parked for waiting in self.waiting.lowest.values())
            and not self.is_at_work
        )

    def is_quiet(self, end: int) -> bool:
        """Whether nothing is left to do below an offset, to hear of or to wait for."""
        if not self.ranges:
            return True
        is_idle = not self.is_at_work and not self.barred_until and self.only is None
        return is_idle and self.position >= end and not self.todo and not self.waiting

    def has_processed(self, end: int) -> bool:
        """Whether all below an offset was looked at, and waits for nothing but a decision."""
        return not self.ranges or (
            self.position >= end
            and not self.todo.clip(0, end - 1)
            and not (self.dispatched or OffsetRanges()).clip(0, end - 1)
            and all(w.is_parked for w in self.waiting.lowest.values() if w.offset < end)
        )

    def release_tried(self, done: OffsetRanges, left: OffsetRanges) -> None:
        """Releases lanes whose retried record is done, or is not in the log any more."""
        released = self.waiting.release_tried(self.dispatched or OffsetRanges(), done, left)
        if released:
            self.todo |= released

    def backlog(self, end: int, now: float) -> int:
        """Offsets that could be planned now, up to the partition's end."""
        return len(self.todo) + self.waiting.due_by(now) + max(0, end - self.position)

    def start(self, scope: Scope, done: OffsetRanges) -> OffsetRanges:
        """Returns what a batch may start of it; from now on it is dispatched. It may be empty."""
        wanted = self.todo if scope.cut is None else self.todo.clip(0, scope.cut)
        self.next_position = self.position
        if self.only is not None:
            last = self.only.last
            wanted = OffsetRanges() if last is None else wanted.clip(0, last)
        elif scope.capacity > 0 and self.position < scope.goal and not scope.cuts(self.todo):
            # A cursor that fell behind goes on from where it stands, at most to the others.
            stop = min(self.position + scope.capacity, scope.goal)
            stop = scope.goal if stop >= scope.front else stop
            self.next_position = stop
            wanted |= OffsetRanges([(self.position, stop - 1)])
        if self.waiting:
            wanted -= self.waiting.offsets()
        wanted -= done
        if wanted:
            self.dispatched = wanted
        else:
            # Nothing of it needs a read: all done, or waiting.
            self.position = max(self.position, self.next_position)
        return wanted

    def read_from(self) -> int:
        """Its slot reads by itself from now on; returns the first offset that it reads."""
        self.dispatched, self.is_real_time, self.next_position = OffsetRanges(), True, self.position
        return self.position

    def has_read(self, offsets: OffsetRanges, position: int) -> None:
        """Its slot has read on, and begins to work on some records."""
        if self.dispatched is not None:
            self.dispatched |= offsets
            self.todo |= offsets
            self.position = self.next_position = max(self.position, position)

    def had_begun(self, last: int) -> None:
        """Its slot, whose worker has ended, had begun records up to an offset, which it has read.

        All between the position and that offset may be its own.
        """
        if last >= self.position:
            self.has_read(OffsetRanges([(self.position, last)]), last + 1)

    def passed(self, read: OffsetRanges, holes: OffsetRanges) -> None:
        """Its slot has read some offsets of its chunks, and has found that others are holes."""
        if self.dispatched is not None:
            self.dispatched -= holes
            self.unread = self.unread - read - holes

    def looked_at(self, left: OffsetRanges) -> None:
        """Notes that all dispatched was looked at; ``left`` of it must be looked at again."""
        if self.dispatched is not None:
            self.todo = (self.todo - self.dispatched) | left
            self.position = max(self.position, self.next_position)

    def release_due(self, now: float, stable: int, done: OffsetRanges) -> None:
        """Releases failed records that are due, or are done by now."""
        released = self.waiting.release_due(now, stable, done)
        if released:
            self.todo |= released

    def give_up(self) -> None:
        """Plans all that is dispatched again, as its outcome is unknown."""
        if self.dispatched is not None:
            self.todo |= self.dispatched
            self.position = max(self.position, self.next_position)
        self.clear_dispatched()

    def give_back(self, kept: Iterable[tuple[int, Waiting]]) -> None:
        """Gives back all that is dispatched but some records, by lane, which handlers work on."""
        self.give_up()
        for lane, waiting in kept:
            self.waiting.add(lane, waiting)

    def forget_below(self, stable: int) -> None:
        """Forgets all below the stable offset: it is done, or deleted."""
        self.todo = self.todo.clip(stable, MAX_OFFSET)
        self.position = max(self.position, stable)
        released = self.waiting.release_below(stable)
        if released:
            self.todo |= released


def deal(
    ranges: tuple[KeyRange, ...], slots: int, index: int, ordering: Ordering
) -> list[tuple[int, tuple[KeyRange, ...]]]:
    """Returns the key ranges of a partition that each slot gets."""
    if ordering == "partition":
        return [(index % slots, ranges)]
    dealt: dict[int, list[KeyRange]] = {}
    for key_range in ranges:
        # A range may be narrower than there are slots.
        for slot, piece in enumerate(key_range.split(min(slots, key_range.size))):
            dealt.setdefault(slot, []).append(piece)
    return [(slot, tuple(pieces)) for slot, pieces in dealt.items()]

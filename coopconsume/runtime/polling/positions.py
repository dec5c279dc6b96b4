"""Where polling stands in each partition, and which rows it hands out next: a pure core.

No clock, no socket, no Spark: times come in, on the monotonic clock.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan import cluster, reach_of
from coopconsume.runtime.polling.retry_buffer import RetryBuffer
from coopconsume.runtime.reading.hashing import in_ranges_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.group.owned import Owned, TopicPartition

#: Offsets that one poll spans at most, over all partitions, unless maxOffsetsPerTrigger says less.
POLL_WINDOW = 500_000
#: Keys that may wait in a partition; with more of them nothing new is handed out.
MOST_KEYS = 10_000


@dataclass(frozen=True)
class Chosen:
    """Which rows of a partition a frame has, by the hash that each row is dealt by.

    Attributes:
        without: Hashes of keys that are left out.
        only: The keys that a frame is limited to, each with its offsets; None: all keys.
    """

    without: frozenset[int] = frozenset()
    only: Mapping[int, OffsetRanges] | None = None

    def sql(self, key_hash: str) -> str:
        """Returns the condition for a row.

        Args:
            key_hash: SQL of the hash that the row is dealt by.
        """
        if self.only is None:
            listed = ", ".join(f"{key}L" for key in sorted(self.without))
            return f"{key_hash} NOT IN ({listed})"
        of_keys = [(key, in_ranges_sql(ranges)) for key, ranges in sorted(self.only.items())]
        return " OR ".join(f"({key_hash} = {key}L AND {at_its_own})" for key, at_its_own in of_keys)


@dataclass
class PollPosition:
    """Where polling stands in one partition.

    Attributes:
        position: Offsets below it were handed out, are done, or are in ``todo``.
        todo: Offsets below the position to hand out first: gaps found at the start.
        polled: Records that were handed out and not answered for. Where every row of a window is
            handed out, it may also hold offsets at which there is no record.
        unread: Those of ``polled`` of which it is not known whether there is a record.
        paused: Whether to hand out nothing for now.
        held: What comes again later, with its keys.
    """

    position: int
    todo: OffsetRanges
    polled: OffsetRanges = field(default_factory=OffsetRanges)
    unread: OffsetRanges = field(default_factory=OffsetRanges)
    paused: bool = False
    held: RetryBuffer = field(default_factory=RetryBuffer)
    _before: tuple[int, OffsetRanges, RetryBuffer] | None = field(default=None, repr=False)

    @classmethod
    def at_start(cls, owned: Owned) -> PollPosition:
        """The place of a partition of which nothing was handed out yet."""
        top = owned.committed.last
        open_ = [record for record in owned.pending if record[0] not in owned.committed]
        held = RetryBuffer(record for record in open_ if record[0] >= owned.stable)
        if top is None:
            return cls(owned.stable, OffsetRanges(), held=held)
        return cls(top + 1, owned.committed.complement(owned.stable, top), held=held)

    def backlog(self, end: int) -> int:
        """Offsets that are left to hand out, up to the end of the log."""
        return len(self.todo) + max(0, end - self.position)

    @property
    def frontier(self) -> int:
        """The first offset that was neither handed out nor passed over, and may be undone."""
        first = self.todo.first
        return self.position if first is None else min(first, self.position)

    @property
    def is_full(self) -> bool:
        """Whether so many keys wait that nothing new is handed out.

        They are named in the frame's filter, which cannot hold any number of them. What lies below
        a record that waits is not new.
        """
        return len(self.held.keys) >= MOST_KEYS and not self.held.has_from(self.frontier)

    def take(self, owned: Owned, end: int, room: int) -> OffsetRanges:
        """Takes the next offsets, reads of at most ``room`` offsets and at least one.

        Their rows are handed out by `hand_out`, or all of them are put back by `put_back`.
        """
        self._before = self.position, self.todo, self.held.copy()
        self.position = max(self.position, owned.stable)
        todo = self.todo.clip(owned.stable, MAX_OFFSET) - owned.committed
        reads, rest = cluster(todo, room, reach_of(todo))
        taken = todo.clip(0, reads[-1][1]) if rest else todo
        self.todo = todo - taken
        room -= sum(last - first + 1 for first, last in reads)
        if not rest and room > 0 and self.position < end:
            stop = min(end, self.position + room)
            taken |= OffsetRanges([(self.position, stop - 1)]) - owned.committed
            self.position = stop
        self.held.pass_over(taken)
        return taken

    def take_again(self, owned: Owned, now: float) -> dict[int, OffsetRanges]:
        """Takes the keys that are due again: the offsets to look for them at, by key hash."""
        if not self.held:
            return {}
        self._before = self.position, self.todo, self.held.copy()
        self.held.forget_below(owned.stable)
        again = {}
        for key_hash, offsets in self.held.release(now, self.frontier).items():
            left = offsets.clip(owned.stable, MAX_OFFSET) - owned.committed
            if left:
                again[key_hash] = left
        return again

    def put_back(self) -> None:
        """Undoes the last `take` or `take_again`: nobody got a frame of it."""
        if self._before is not None:
            self.position, self.todo, self.held = self._before
            self._before = None

    def hand_out(self, offsets: OffsetRanges, *, are_read: bool) -> None:
        """Notes what a frame contains.

        Args:
            offsets: Of the frame's rows.
            are_read: Whether the rows were read; if not, there may be none at some offsets.
        """
        self._before = None
        self.polled |= offsets
        self.unread = self.unread - offsets if are_read else self.unread | offsets

    def strange(self, owned: Owned, offsets: OffsetRanges) -> OffsetRanges:
        """Those of some offsets that were neither handed out nor are committed."""
        return offsets.clip(owned.stable, MAX_OFFSET) - (self.polled | owned.committed)

    def answer(self, offsets: OffsetRanges) -> None:
        """Notes that these offsets were answered for, or that there is no record."""
        self.polled -= offsets
        self.unread -= offsets

    def settle(self, offsets: OffsetRanges) -> None:
        """Notes that these offsets are committed."""
        self.answer(offsets)
        self.todo -= offsets
        self.held.settle(offsets, 0.0)

    def seek(self, offset: int) -> None:
        """Goes on from an offset; what was handed out may still be committed."""
        self.position = offset
        self.todo = OffsetRanges()


def next_window(
    places: Mapping[TopicPartition, PollPosition],
    owned: Mapping[TopicPartition, Owned],
    ends: Mapping[TopicPartition, int],
    window: int,
) -> dict[TopicPartition, OffsetRanges]:
    """The offsets to hand out next, dealt over the partitions by what they have left.

    Args:
        places: Where polling stands; they move on.
        owned: The partitions.
        ends: Their ends; a partition without one is left out.
        window: Offsets to span at most.

    Returns:
        Offsets by partition; none is empty.
    """
    active = {tp: place for tp, place in places.items() if tp in ends and not place.paused}
    backlogs = {tp: place.backlog(ends[tp]) for tp, place in active.items()}
    total = sum(backlogs.values())
    found = {}
    for tp, place in active.items():
        if backlogs[tp]:
            room = max(1, window * backlogs[tp] // total)
            taken = place.take(owned[tp], ends[tp], room)
            if taken:
                found[tp] = taken
    return found


def next_rows(
    places: Mapping[TopicPartition, PollPosition],
    owned: Mapping[TopicPartition, Owned],
    ends: Mapping[TopicPartition, int],
    window: int,
    now: float,
) -> tuple[dict[TopicPartition, OffsetRanges], dict[TopicPartition, Chosen]]:
    """The rows to hand out next: keys that are due again, else the next window without others.

    Args:
        places: Where polling stands; they move on.
        owned: The partitions.
        ends: Their ends; a partition without one is left out.
        window: Offsets to span at most.
        now: The time, on the monotonic clock.

    Returns:
        Offsets by partition, none of them empty; and which of their rows, where not all.
    """
    again = {
        tp: keys
        for tp, place in places.items()
        if tp in ends and not place.paused and (keys := place.take_again(owned[tp], now))
    }
    if again:
        unions = {tp: functools.reduce(operator.or_, keys.values()) for tp, keys in again.items()}
        return unions, {tp: Chosen(only=keys) for tp, keys in again.items()}
    free = {tp: end for tp, end in ends.items() if tp not in places or not places[tp].is_full}
    found = next_window(places, owned, free, window)
    waiting = {tp: places[tp].held.keys for tp in found if places[tp].held.keys}
    return found, {tp: Chosen(without=keys) for tp, keys in waiting.items()}

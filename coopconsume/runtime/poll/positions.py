"""Where polling stands in each partition, and which rows it hands out next: a pure core.

No clock, no socket, no Spark: times come in, on the monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan import SlotCursor, deal_window, reach_of, scope_of
from coopconsume.runtime.plan.cursor import position_above
from coopconsume.runtime.plan.range_limit import read_limit
from coopconsume.runtime.poll.retry_buffer import RetryBuffer
from coopconsume.runtime.read.hashing import in_ranges_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition
    from coopconsume.group.owned import Owned

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
        cursor: What is left to hand out, as for the only slot of a job. Dispatched is what the
            next frame contains, until `hand_out` or `put_back`.
        polled: Records that were handed out and not answered for. Where every row of a window is
            handed out, it may also hold offsets at which there is no record.
        filtered: Records that the filter has dropped and that are not committed yet.
        unread: Those of ``polled`` that may have no record.
        paused: Whether to hand out nothing for now.
        retries: Records that are retried later, with their keys.
    """

    cursor: SlotCursor
    polled: OffsetRanges = field(default_factory=OffsetRanges)
    unread: OffsetRanges = field(default_factory=OffsetRanges)
    filtered: OffsetRanges = field(default_factory=OffsetRanges)
    paused: bool = False
    retries: RetryBuffer = field(default_factory=RetryBuffer)
    _again: Mapping[int, OffsetRanges] = field(default_factory=dict, repr=False)

    @classmethod
    def at_start(cls, owned: Owned) -> PollPosition:
        """Returns the position in a partition before anything is handed out."""
        top = owned.committed.last
        open_ = [record for record in owned.pending if record.offset not in owned.committed]
        retries = RetryBuffer(record for record in open_ if record.offset >= owned.stable)
        position, gaps = position_above(owned.stable, top, owned.committed)
        return cls(SlotCursor(0, owned.ranges, position, gaps), retries=retries)

    @property
    def position(self) -> int:
        """Offsets below it were handed out, are done, or are gaps to hand out first."""
        return self.cursor.position

    @property
    def frontier(self) -> int:
        """The first offset that was neither handed out nor passed over, and may be undone."""
        first = self.cursor.todo.first
        return self.position if first is None else min(first, self.position)

    @property
    def is_full(self) -> bool:
        """Whether so many keys wait that nothing new is handed out.

        They are named in the frame's filter, which cannot hold any number of them. What lies below
        a record that waits is not new.
        """
        return len(self.retries.keys) >= MOST_KEYS and not self.retries.has_from(self.frontier)

    def is_at_limit(self, owned: Owned) -> bool:
        """Whether there are so many ranges that nothing new is handed out; see `is_full`."""
        has_many = owned.range_count >= read_limit(owned.max_ranges)
        return has_many and not self.retries.has_from(self.frontier)

    def take(self, owned: Owned, end: int, window: int) -> OffsetRanges:
        """Returns the next offsets, gaps first; reads of ``window`` offsets and at least one.

        At the limit of ranges only gaps: what lies below an offset that is committed or was passed.
        Their rows are handed out by `hand_out`, or all of them are put back by `put_back`.
        """
        self.put_back()
        cursor = self.cursor
        cursor.forget_below(owned.stable)
        cursor.todo -= owned.committed
        reach = reach_of(cursor.todo)
        if self.is_at_limit(owned):
            done = -1 if owned.committed.last is None else owned.committed.last
            end = min(end, max(done + 1, owned.last_committed + 1, cursor.position))
        scope = scope_of(cursor.todo, cursor.position, window, reach, lambda most: min(end, most))
        return cursor.start(scope, owned.committed)

    def take_again(self, owned: Owned, now: float) -> Mapping[int, OffsetRanges]:
        """Returns the keys that are due again: the offsets to look for them at, by key hash."""
        self.put_back()
        if not self.retries:
            return {}
        self.retries.forget_below(owned.stable)
        due = {
            key_hash: offsets.clip(owned.stable, MAX_OFFSET) - owned.committed
            for key_hash, offsets in self.retries.due(now, self.frontier).items()
        }
        self.retries.release(key_hash for key_hash, offsets in due.items() if not offsets)
        self._again = {key_hash: offsets for key_hash, offsets in due.items() if offsets}
        return self._again

    def put_back(self) -> None:
        """Undoes the last `take` or `take_again`: nobody got a frame of it."""
        self.cursor.dispatched, self._again = None, {}

    def hand_out(
        self, offsets: OffsetRanges, *, are_read: bool, filtered: OffsetRanges | None = None
    ) -> None:
        """Notes what a frame contains of what was taken last.

        Args:
            offsets: Of the frame's rows.
            are_read: Whether the rows were read; if not, there may be none at some offsets.
            filtered: Of records that are not in the frame, as the filter drops them.
        """
        self.retries.release(self._again)
        if self.cursor.dispatched is not None:
            self.retries.pass_over(self.cursor.dispatched)
            self.cursor.looked_at(OffsetRanges())
        self.put_back()
        self.polled |= offsets
        self.filtered |= filtered or OffsetRanges()
        self.unread = self.unread - offsets if are_read else self.unread | offsets

    def strange(self, owned: Owned, offsets: OffsetRanges) -> OffsetRanges:
        """Returns those of some offsets that were not handed out, filtered or committed."""
        known = self.polled | self.filtered | owned.committed
        return offsets.clip(owned.stable, MAX_OFFSET) - known

    def answer(self, offsets: OffsetRanges) -> None:
        """Notes that these offsets were answered for, or that there is no record."""
        self.polled -= offsets
        self.unread -= offsets

    def committed(self, offsets: OffsetRanges) -> None:
        """Notes that these offsets are committed."""
        self.answer(offsets)
        self.filtered -= offsets
        self.cursor.todo -= offsets
        self.retries.mark_done(offsets, 0.0)

    def seek(self, offset: int) -> None:
        """Goes on from an offset; what was handed out may still be committed."""
        self.cursor.position = offset
        self.cursor.todo = OffsetRanges()


def next_rows(
    places: Mapping[TopicPartition, PollPosition],
    owned: Mapping[TopicPartition, Owned],
    ends: Mapping[TopicPartition, int],
    window: int,
    now: float,
) -> tuple[dict[TopicPartition, OffsetRanges], dict[TopicPartition, Chosen]]:
    """Returns the rows to hand out next: keys that are due again, else the next window.

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
        unions = {tp: OffsetRanges.union(keys.values()) for tp, keys in again.items()}
        return unions, {tp: Chosen(only=keys) for tp, keys in again.items()}
    free = {
        tp: place for tp, place in places.items()
        if tp in ends and not place.paused and not place.is_full
    }  # fmt: skip
    backlogs = {tp: place.cursor.backlog(ends[tp], now) for tp, place in free.items()}
    windows = deal_window(backlogs, window)
    taken = {tp: places[tp].take(owned[tp], ends[tp], own) for tp, own in windows.items()}
    found = {tp: offsets for tp, offsets in taken.items() if offsets}
    waiting = {tp: places[tp].retries.keys for tp in found if places[tp].retries.keys}
    return found, {tp: Chosen(without=keys) for tp, keys in waiting.items()}

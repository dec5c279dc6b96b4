"""Deals the key ranges of a partition to slots again, when some come or go. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors import KeyRange, merge
from assignors.ranges import difference, intersection
from commits import OffsetRanges
from coopconsume.runtime.plan.cursor import SlotCursor, deal, position_above

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from coopconsume.runtime.plan.gain import Gain
    from coopconsume.runtime.plan.lanes import Lanes

#: Seconds for which key ranges wait for a slot that comes back, before one is asked to.
_DEAL_WITHIN = 0.5
#: The slot of key ranges that wait for one.
_NO_SLOT = -1


class Dealer:
    """The key ranges of a partition that come and go, and how they are dealt to slots.

    Args:
        index: Index of the partition.
        lanes: What waits of the partition, and its cursors; they are replaced in place.

    Attributes:
        gains: Key ranges that have come and are not dealt to slots yet.
        undealt_since: Since when, on the monotonic clock, key ranges wait to be dealt; None: they
            are dealt.
    """

    def __init__(self, index: int, lanes: Lanes) -> None:
        self.gains: list[Gain] = []
        self.undealt_since: float | None = None
        self.cursors = lanes.cursors
        self._index = index
        self._lanes = lanes

    def leaves(self, now: float) -> bool:
        """Whether records of the key ranges to be given back may be started, or are at work."""
        return any(
            cursor.leaving.may_start
            or cursor.leaving.at_work
            or any(cursor.leaving.has(one.key_hash) for one in cursor.waiting.may_run(now))
            for cursor in self.cursors.values()
            if cursor.leaving.ranges
        )

    def kept_leaving(self) -> list[int]:
        """Returns the offsets of such records that handlers of slots work on that gave back."""
        return [
            waiting.offset
            for cursor in self.cursors.values()
            for waiting in cursor.waiting.records()
            if waiting.is_running and cursor.leaving.has(waiting.key_hash)
        ]

    def withheld(self, slot: int, at_work: Mapping[int, int]) -> None:
        """Notes that a slot starts nothing more of the key ranges to be given back.

        Args:
            slot: The slot.
            at_work: Key hashes of their records, by offset, that its handlers work on.
        """
        cursor = self.cursors.get(slot)
        if cursor is not None and cursor.leaving.ranges and cursor.dispatched is not None:
            cursor.leaving.withheld(at_work)

    def deal_again(
        self, slots: int, now: float, closed: Collection[int], stable: int, done: OffsetRanges
    ) -> list[Gain] | None:
        """Deals gained and old key ranges again to slots that may start nothing now.

        Slots at work keep their key ranges until they have reported. What a free slot has more than
        its part waits for the next slot that comes free, so that slots need not be free at the same
        time. Records that handlers still work on wait in their new slots until the handlers have
        ended.

        Args:
            slots: How many slots there are.
            now: The time, on the monotonic clock.
            closed: Slots that keep what they have. While there are any, the others get what has
                come, and are made even later.
            stable: The stable offset of the partition.
            done: What is done of it.

        Returns:
            The gains that were dealt; None: nothing was dealt.
        """
        gains = [gain for gain in self.gains if gain.until <= now]
        is_urgent = bool(gains) or self._has_unassigned
        if closed and not is_urgent:
            return None
        if is_urgent and self.undealt_since is None:
            self.undealt_since = now
        before = self._sizes(slots)
        if not (is_urgent or _is_uneven(before)):
            self.undealt_since = None
            return None
        open_slots = [s for s in range(slots) if s not in closed]
        free = [s for s in open_slots if s not in self.cursors or self.cursors[s].is_free(now)]
        if not free:
            return None
        unassigned = self.cursors.get(_NO_SLOT)
        is_leaving = unassigned is not None and bool(unassigned.leaving.ranges)
        sources = free if is_leaving else [*free, _NO_SLOT]
        cursors = [self.cursors[s] for s in sources if s in self.cursors]
        found = [cursor.ranges for cursor in cursors] + [gain.ranges for gain in gains]
        ranges = merge(one for some in found for one in some)
        busy = [before[s] for s in open_slots if s not in free and not is_leaving]
        ranges, later = _cut(ranges, _part_of(len(free), sum(r.size for r in ranges), busy))
        if not (is_urgent or later or _is_uneven([before[slot] for slot in free])):
            return None
        ordering = self._lanes.ordering
        dealt = [(free[n], some) for n, some in deal(ranges, len(free), self._index, ordering)]
        todo = _todo_of(cursors, gains, stable, done)
        self._deal([*dealt, *([(_NO_SLOT, later)] if later else [])], cursors, *todo)
        self.gains = [gain for gain in self.gains if gain not in gains]
        is_final = len(free) == slots or not _is_uneven(self._sizes(slots))
        if not later:
            self.undealt_since = None if is_final else now
        return gains

    @property
    def _has_unassigned(self) -> bool:
        """Whether key ranges that a slot had wait for another one."""
        cursor = self.cursors.get(_NO_SLOT)
        return cursor is not None and bool(cursor.ranges) and not cursor.leaving.ranges

    def _sizes(self, slots: int) -> list[int]:
        """Returns how many key hashes each slot has."""
        return [self.cursors[s].size if s in self.cursors else 0 for s in range(slots)]

    def slot_to_ask(self, now: float, closed: Collection[int] = ()) -> int | None:
        """Returns the slot that is to give back, as key ranges have waited long to be dealt.

        A slot that gives back is idle until its next batch begins. So this is the one with least if
        key ranges wait for a slot, and the one with most if another slot has none. Slots that just
        have more than others are dealt again once they come free by themselves.

        Args:
            now: The time, on the monotonic clock.
            closed: As for `deal_again`.
        """
        if self.undealt_since is None or now - self.undealt_since < _DEAL_WITHIN:
            return None
        is_urgent = self._has_unassigned or any(gain.until <= now for gain in self.gains)
        if closed and not is_urgent:
            return None
        if not is_urgent and all(cursor.size for cursor in self.cursors.values()):
            return None
        busy = [
            s for s in self.cursors.values() if s.dispatched is not None and s.slot not in closed
        ]
        pick = min if is_urgent else max
        return pick(busy, key=lambda cursor: cursor.size).slot if busy else None

    def _deal(
        self,
        dealt: Iterable[tuple[int, tuple[KeyRange, ...]]],
        old: Sequence[SlotCursor],
        position: int,
        todo: OffsetRanges,
    ) -> None:
        """Gives slots key ranges; what waits in the old cursors goes with its key."""
        for cursor in old:
            del self.cursors[cursor.slot]
        for slot, some in dealt:
            made = self.cursors[slot] = SlotCursor(slot, some, position, todo)
            made.bar(max((s.barred_until for s in old if intersection(s.ranges, some)), default=0))
        for one in [one for cursor in old for one in cursor.waiting.records()]:
            one.next = None
            self._lanes.wait(one)


def _todo_of(
    old: Sequence[SlotCursor], gains: Sequence[Gain], stable: int, done: OffsetRanges
) -> tuple[int, OffsetRanges]:
    """Returns the position of new cursors, and what they must look at again below it."""
    cursors = [cursor for cursor in old if cursor.ranges]
    position = max([s.position for s in cursors] + [gain.position for gain in gains])
    todo = OffsetRanges([(s.position, position - 1) for s in cursors if s.position < position])
    for cursor in cursors:
        todo |= cursor.todo
    if gains and position > stable:
        # Of what is not done nobody knows whose key it is.
        return position_above(stable, position - 1, done)
    return position, todo


def _is_uneven(sizes: Sequence[int]) -> bool:
    """Whether one slot has less than half of the key hashes of another."""
    return sum(sizes) >= len(sizes) and 2 * min(sizes) < max(sizes)


def _part_of(free: int, size: int, busy: Sequence[int]) -> int:
    """Returns how many of the key hashes that can be dealt free slots get.

    Args:
        free: How many slots are free.
        size: How many key hashes can be dealt to them.
        busy: How many key hashes each other slot has.
    """
    if not busy or not _is_uneven([*busy, size // free]):
        return size
    return min(size, free * ((size + sum(busy)) // (free + len(busy))))


def _cut(
    ranges: Sequence[KeyRange], size: int
) -> tuple[tuple[KeyRange, ...], tuple[KeyRange, ...]]:
    """Cuts off the first ``size`` key hashes; returns these, and the others."""
    first: list[KeyRange] = []
    left = size
    for one in ranges:
        if left > 0:
            first.append(KeyRange(one.first, one.first + min(left, one.size) - 1))
            left -= first[-1].size
    return tuple(first), difference(ranges, first)

"""What a slot asks the fetch server of its host for, and what it reads itself. Pure.

Slots ask by offset. So whatever becomes of a server, or of an answer, the slot goes on at the first
offset that it does not have: from another server, or from the brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.worker.realtime.fetch_messages import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.worker.realtime.fetch_messages import Evicted, Portion
    from coopconsume.worker.realtime.spec import Ranges


class FetchState:
    """Decides for each partition of a slot where its next records come from.

    Args:
        starts: The first offset to read, by index of the partition.
        ranges: The slot's key ranges, by the same.

    Attributes:
        own: The partitions that the slot reads itself, and the next offset of each.
        hits: Answers that had the offset that was asked for, and something at it.
        misses: Answers that did not have it.
    """

    def __init__(self, starts: Mapping[int, int], ranges: Mapping[int, Ranges]) -> None:
        self._next = dict(starts)
        self._ranges = ranges
        #: Of the partitions that the slot reads itself: the offset from which the server is asked.
        self._ask_from: dict[int, int] = {}
        self.hits = 0
        self.misses = 0

    @property
    def own(self) -> dict[int, int]:  # noqa: D102 - see above
        return {part: self._next[part] for part in self._ask_from}

    def asks(self) -> tuple[Ask, ...]:
        """Returns what to ask a server for; another partition is the first one each time."""
        found = tuple(
            Ask(part, offset, self._ranges[part], part in self._ask_from)
            for part, offset in self._next.items()
            if offset >= self._ask_from.get(part, 0)
        )
        if self._next:
            first = next(iter(self._next))
            self._next[first] = self._next.pop(first)
        return found

    def answered(self, portion: Portion) -> bool:
        """Takes in a portion; returns whether it has news."""
        self._ask_from.pop(portion.part, None)
        if portion.next <= self._next[portion.part]:
            return False  # The slot has read that far meanwhile.
        self._next[portion.part] = portion.next
        self.hits += 1
        return True

    def missed(self, evicted: Evicted) -> None:
        """The slot reads a partition itself until it gets to where the server is."""
        self._ask_from[evicted.part] = evicted.start
        self.misses += 1

    def lost(self) -> None:
        """There is no server: the slot reads all partitions itself, and asks the next server."""
        self._ask_from = dict.fromkeys(self._next, 0)

    def has_read(self, part: int, following: int) -> None:
        """The slot has read a partition up to an offset."""
        self._next[part] = max(self._next[part], following)

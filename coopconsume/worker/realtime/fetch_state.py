"""Decides which partitions a slot asks the fetch server of its host for, and which it reads. Pure.

A slot asks for offsets. If the server or an answer is lost, the slot continues at the first offset
that it does not have: from another server, or from the brokers.
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
        hits: Portions with news, of the server's memory.
        misses: Answers that the server does not have the offset.
    """

    def __init__(self, starts: Mapping[int, int], ranges: Mapping[int, Ranges]) -> None:
        self._next = dict(starts)
        self._ranges = ranges
        #: Of partitions that the slot reads itself: from which offset on it asks the server again.
        self._ask_from: dict[int, int] = {}
        self.hits = 0
        self.misses = 0

    @property
    def own(self) -> dict[int, int]:  # noqa: D102 - see above
        return {part: self._next[part] for part in self._ask_from}

    def asks(self) -> tuple[Ask, ...]:
        """Returns what to ask a server for; each call begins with another partition."""
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
        """Notes a portion; returns whether the slot has not read all of it meanwhile."""
        self._ask_from.pop(portion.part, None)
        if portion.next <= self._next[portion.part]:
            return False
        self._next[portion.part] = portion.next
        self.hits += 1
        return True

    def missed(self, evicted: Evicted) -> None:
        """Has the slot read a partition itself until it reaches the offsets that the server has."""
        self._ask_from[evicted.part] = evicted.start
        self.misses += 1

    def lost(self) -> None:
        """Has the slot read all partitions itself, as there is no server; it asks the next one."""
        self._ask_from = dict.fromkeys(self._next, 0)

    def has_read(self, part: int, following: int) -> None:
        """Notes that the slot has read a partition up to an offset."""
        self._next[part] = max(self._next[part], following)

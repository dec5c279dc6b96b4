"""Decides which partitions a slot asks the fetch server of its host for, and which it reads. Pure.

A slot asks for offsets. If the server or an answer is lost, the slot continues at the first offset
that it does not have: from another server, or from the brokers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.worker.realtime.fetch_messages import Ask
from coopconsume.worker.realtime.log_reach import LogReach, Start
from coopconsume.worker.realtime.wanted import LAST, WantedOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits import OffsetAndEpoch
    from coopconsume.worker.realtime.fetch_messages import Evicted, Portion
    from coopconsume.worker.realtime.spec import Ranges


class FetchState:
    """Decides for each partition of a slot where its next records come from.

    Args:
        starts: The first offset to read, by index of the partition; `NOTHING`: the slot reads the
            chunks that it gets.
        ranges: The slot's key ranges, by the same.
        ends: Offsets up to which the logs are known to reach, for slots that get chunks.
        reached: How far the logs are known to reach in which leader epoch.

    Attributes:
        hits: Portions with news, of the server's memory.
        misses: Answers that the server does not have the offset.
    """

    def __init__(
        self,
        starts: Mapping[int, int],
        ranges: Mapping[int, Ranges],
        ends: Mapping[int, int] | None = None,
        reached: Mapping[int, OffsetAndEpoch] | None = None,
    ) -> None:
        self._wanted = {part: WantedOffsets(start) for part, start in starts.items()}
        self._ranges = ranges
        self._ends = dict(ends or {})
        self._reach = LogReach(reached or {})
        #: Of partitions that the slot reads itself: from which offset on it asks the server again.
        self._ask_from: dict[int, int] = {}
        self.hits = 0
        self.misses = 0

    @property
    def own(self) -> dict[int, int]:
        """The partitions that the slot reads itself now, and the next offset of each."""
        wanted = ((part, self._wanted[part]) for part in self._ask_from)
        return {part: offsets.first for part, offsets in wanted if offsets}

    def last_of(self, part: int) -> int:
        """Returns the last offset of a partition that the slot is to read."""
        return self._wanted[part].last

    def start_of(self, part: int) -> Start:
        """Returns from where on to read a partition: its next offset, but not beyond its end."""
        first = self._wanted[part].first
        return self._reach.start(part, min(first, self._ends.get(part, first)))

    def want(self, part: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Adds offsets to read."""
        self._wanted[part].add(pairs)

    def asks(self) -> tuple[Ask, ...]:
        """Returns what to ask a server for; each call begins with another partition."""
        found = tuple(
            self._ask(part, wanted)
            for part, wanted in self._wanted.items()
            if wanted and wanted.first >= self._ask_from.get(part, 0)
        )
        if self._wanted:
            first = next(iter(self._wanted))
            self._wanted[first] = self._wanted.pop(first)
        return found

    def _ask(self, part: int, wanted: WantedOffsets) -> Ask:
        is_joining, end = part in self._ask_from, self._ends.get(part, LAST)
        ask = Ask(part, wanted.first, self._ranges[part], is_joining, wanted.until, end)
        return replace(ask, leader_epoch=self._reach.start(part, ask.begin).leader_epoch)

    def answered(self, portion: Portion) -> bool:
        """Notes a portion; returns whether the slot has not read all of it meanwhile."""
        part = portion.part
        self._ask_from.pop(part, None)
        self._reaches(part, portion.next, portion.reached)
        if not self._wanted[part].take(portion.first, portion.next):
            return False
        self.hits += 1
        return True

    def missed(self, evicted: Evicted) -> None:
        """Has the slot read a partition itself until it reaches the offsets that the server has."""
        self._ask_from[evicted.part] = evicted.start
        self.misses += 1

    def lost(self) -> None:
        """Has the slot read all partitions itself, as there is no server; it asks the next one."""
        self._ask_from = dict.fromkeys(self._wanted, 0)

    def has_read(self, part: int, following: int, reached: OffsetAndEpoch | None = None) -> None:
        """Notes that the slot has read a partition up to an offset.

        Args:
            part: Index of the partition.
            following: The offset.
            reached: How far its log reached in which leader epoch, by a record of it.
        """
        self._reaches(part, following, reached)
        self._wanted[part].take(0, following)

    def _reaches(self, part: int, end: int, reached: OffsetAndEpoch | None) -> None:
        self._reach.saw(part, reached)
        if part in self._ends:
            self._ends[part] = max(self._ends[part], end)

"""The keys of a group that failed records block (pure).

A key is blocked by the lowest of its failed records in a partition.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commits import Pending
    from coopconsume.admin.overview.data import PartitionOverview

#: Keys that are shown, at most; there may be hundreds of thousands.
_MOST: Final = 200


@dataclass(frozen=True)
class BlockedKeys:
    """The keys of a group that failed records block.

    Attributes:
        count: How many there are.
        first: The records that block the most urgent ones, with their partitions: first parked
            records, then by attempts.
    """

    count: int
    first: tuple[tuple[PartitionOverview, Pending], ...]

    @classmethod
    def of(cls, partitions: Iterable[PartitionOverview]) -> BlockedKeys:
        """Returns those of some partitions."""
        found = [*_blocking(partitions)]
        return cls(len(found), tuple(heapq.nsmallest(_MOST, found, key=_urgency)))


def _blocking(
    partitions: Iterable[PartitionOverview],
) -> Iterator[tuple[PartitionOverview, Pending]]:
    """Yields the lowest failed record of each key; one without a hash blocks itself."""
    for one in partitions:
        lowest: dict[int, Pending] = {}
        for record in one.pending.values():
            if record.key_hash is None:
                yield one, record
            elif record.offset <= lowest.setdefault(record.key_hash, record).offset:
                lowest[record.key_hash] = record
        yield from ((one, record) for record in lowest.values())


def _urgency(both: tuple[PartitionOverview, Pending]) -> tuple[Any, ...]:
    one, record = both
    return (not record.is_parked, -record.attempts, one.topic, one.partition, record.offset)

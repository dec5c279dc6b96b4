"""Key ranges that come to a partition while a job works on others of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assignors.ranges import difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assignors import KeyRange
    from commits import OffsetRanges
    from coopconsume.group.owned import Failed


@dataclass(frozen=True)
class Gain:
    """Key ranges that come to a partition, and what the commit log knew of it then.

    Attributes:
        ranges: The key ranges.
        stable: The stable offset.
        committed: What is done above it.
        pending: The records that have failed.
        doubts: Keys that an earlier owner may be at work on, each until an instant of the monotonic
            clock. All other keys do not wait for them.
        until: Until when, on the monotonic clock, an earlier owner may be at work on any key.
    """

    ranges: tuple[KeyRange, ...]
    stable: int
    committed: OffsetRanges
    pending: Sequence[Failed] = ()
    doubts: Sequence[tuple[KeyRange, float]] = ()
    until: float = 0.0

    @property
    def position(self) -> int:
        """Above all that is committed."""
        last = self.committed.last
        return self.stable if last is None else max(self.stable, last + 1)

    def has(self, key_hash: int) -> bool:
        """Whether a key is among them."""
        return any(one.contains(key_hash) for one in self.ranges)

    def without(self, ranges: Iterable[KeyRange]) -> Gain:
        """The rest of it, once some key ranges are given up."""
        return replace(self, ranges=difference(self.ranges, tuple(ranges)))

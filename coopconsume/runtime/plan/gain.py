"""Key ranges that a member gains while its job works."""

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
    """Gained key ranges of a partition, and the state of the partition in the commit log then.

    Attributes:
        ranges: The key ranges.
        stable: The stable offset.
        committed: What is committed above it.
        pending: The records that have failed.
        in_doubt: Keys on which an earlier owner may be at work, each until an instant of the
            monotonic clock. Only these keys wait.
        until: Until when, on the monotonic clock, an earlier owner may be at work on any key; all
            of the key ranges wait.
    """

    ranges: tuple[KeyRange, ...]
    stable: int
    committed: OffsetRanges
    pending: Sequence[Failed] = ()
    in_doubt: Sequence[tuple[KeyRange, float]] = ()
    until: float = 0.0

    @property
    def position(self) -> int:
        """The first offset above all that is committed."""
        last = self.committed.last
        return self.stable if last is None else max(self.stable, last + 1)

    def has(self, key_hash: int) -> bool:
        """Whether a key is among them."""
        return any(one.contains(key_hash) for one in self.ranges)

    def without(self, ranges: Iterable[KeyRange]) -> Gain:
        """Returns it without some key ranges."""
        return replace(self, ranges=difference(self.ranges, tuple(ranges)))

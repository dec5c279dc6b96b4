"""The committed offsets of one partition by KIP-X's rules. Pure: no input or output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from commits.errors import IndividualCommitTooOld, MaxIndividualCommitsReached
from commits.offsets import MAX_OFFSET, OffsetRanges, exact_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.grants import ShareOwner
    from commits.model import TopicPartition
    from commits.offsets import Pairs


DEFAULT_MAX_RANGES = 1_000_000
"""The default limit of separate ranges above the stable offset of a partition."""

_NOTHING = OffsetRanges()  # never changed, so that all results can share it

CommitStatus: TypeAlias = Literal["committed", "duplicate", "too_old", "not_held", "refused"]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit in one partition.

    Attributes:
        stable_offset: The first offset that is not committed, after this commit.
        committed: The number of newly committed offsets.
        duplicates: The number of offsets that were committed before.
        range_count: The number of separate ranges above the stable offset.
        status: `committed`; `duplicate` if nothing was new; `too_old` if all of it was below the
            stable offset; `not_held` if other members have acquired all of it that is not
            committed; `refused` if it does not count.
        reason: Why it was refused; otherwise empty.
        not_held: Offsets of the commit that do not count, because another member of a cooperative
            epoch has acquired or committed them since.
    """

    stable_offset: int
    committed: int
    duplicates: int
    range_count: int
    status: CommitStatus = "committed"
    reason: str = ""
    not_held: OffsetRanges = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the log to an event.

    Attributes:
        counted: Whether the event counts.
        reason: Why it does not count; otherwise empty.
        results: The result of each partition of the event.
        holder: The holder of the share that conflicts with a claim or an epoch.
    """

    counted: bool
    reason: str = ""
    results: Mapping[TopicPartition, CommitResult] = field(default_factory=dict)
    holder: ShareOwner | None = None


class PartitionCommits:
    """The committed offsets of one partition.

    All offsets below the stable offset are committed, and separate ranges above it may be. A
    commit at the stable offset moves it to the end of the adjacent range. An error changes nothing.

    Args:
        stable_offset: The first offset that is not committed.
        ranges: Committed pairs `(first, last)`. Pairs below the stable offset and adjacent to it
            are merged.
        max_ranges: How many separate ranges a commit may leave; None for no limit.

    Raises:
        ValueError: If an offset or the limit is negative, or a pair is not a range.
    """

    __slots__ = ("_max_ranges", "_ranges", "_stable_offset")
    _max_ranges: int | None
    _ranges: OffsetRanges
    _stable_offset: int

    def __init__(
        self,
        stable_offset: int = 0,
        ranges: Pairs | OffsetRanges = (),
        max_ranges: int | None = DEFAULT_MAX_RANGES,
    ) -> None:
        if max_ranges is not None and exact_integer("max_ranges", max_ranges) < 0:
            raise ValueError(f"max_ranges must be from 0, or None, not {max_ranges}")
        self._max_ranges = max_ranges
        self._set(_offset("stable_offset", stable_offset), OffsetRanges.of(ranges))

    @property
    def stable_offset(self) -> int:
        """The first offset that is not committed."""
        return self._stable_offset

    @property
    def ranges(self) -> OffsetRanges:
        """The committed offsets above the stable offset."""
        return self._ranges

    @property
    def max_ranges(self) -> int | None:
        """How many separate ranges a commit may leave; None for no limit."""
        return self._max_ranges

    def commit(self, pairs: Pairs | OffsetRanges) -> CommitResult:
        """Commit offsets.

        Offsets that are committed already are duplicates. An empty commit changes nothing.

        Args:
            pairs: Pairs `(first, last)`, both included, or a set of offsets.

        Raises:
            IndividualCommitTooOld: If all offsets are below the stable offset.
            MaxIndividualCommitsReached: If it would raise the number of separate ranges above
                `max_ranges`.
            ValueError: If a pair is not a range.
        """
        offered = OffsetRanges.of(pairs)
        if offered.last is None:
            return self._result(0, 0)
        if offered.last < self._stable_offset:
            raise IndividualCommitTooOld(self._stable_offset, offered.last)
        if not self._ranges and self._is_at_head(offered):
            count = offered.last + 1 - self._stable_offset
            self._stable_offset = offered.last + 1
            return CommitResult(self._stable_offset, count, len(offered) - count, 0)
        fresh = offered.clip(self._stable_offset, MAX_OFFSET) - self._ranges
        duplicates = len(offered) - len(fresh)
        if not fresh:
            return self._result(0, duplicates)
        stable_offset, ranges = _absorb(self._stable_offset, self._ranges | fresh)
        limit, count = self._max_ranges, ranges.range_count
        if limit is not None and count > limit and count > self._ranges.range_count:
            raise MaxIndividualCommitsReached(count, limit)
        self._stable_offset, self._ranges = stable_offset, ranges
        return self._result(len(fresh), duplicates)

    def _is_at_head(self, offered: OffsetRanges) -> bool:
        """Return whether a non-empty set is one range that starts at the stable offset or below."""
        first, last = offered.first, offered.last
        assert first is not None
        assert last is not None
        return first <= self._stable_offset and len(offered) == last - first + 1

    def amend(self, pairs: Pairs | OffsetRanges) -> CommitResult:
        """Mark offsets that are proven never to be delivered as committed.

        Unlike a commit it is never too old, and no limit applies.

        Args:
            pairs: Pairs `(first, last)`, both included, or a set of offsets.

        Raises:
            ValueError: If a pair is not a range.
        """
        offered = OffsetRanges.of(pairs)
        fresh = offered.clip(self._stable_offset, MAX_OFFSET) - self._ranges
        self._set(self._stable_offset, self._ranges | fresh)
        return self._result(len(fresh), len(offered) - len(fresh))

    def log_start(self, offset: int) -> None:
        """Raise a lower stable offset to the new start of the partition's log.

        The lost offsets are those that `uncommitted` returned below it before.

        Raises:
            ValueError: If the offset is negative.
        """
        start = _offset("log_start", offset)
        if start > self._stable_offset:
            self._set(start, self._ranges)

    def truncate(self, end: int) -> None:
        """Discard commits from `end` on, because the partition's log now ends before it.

        Raises:
            ValueError: If the offset is negative.
        """
        end = _offset("end", end)
        self._set(min(self._stable_offset, end), self._ranges.clip(0, end - 1))

    def reset(self, offset: int) -> None:
        """Set the stable offset and discard all commits above it, on behalf of an operator.

        Raises:
            ValueError: If the offset is negative.
        """
        self._set(_offset("offset", offset), OffsetRanges())

    def uncommitted(self, first: int, last: int) -> OffsetRanges:
        """Return the offsets from `first` to `last`, both included, that are not committed.

        Raises:
            ValueError: If the window is wider than 2**36 offsets.
        """
        return self._ranges.complement(max(first, self._stable_offset), last)

    def copy(self, *, max_ranges: int | None) -> PartitionCommits:
        """Return an independent copy with another limit."""
        new = PartitionCommits.__new__(PartitionCommits)  # the values are valid already
        new._stable_offset, new._ranges, new._max_ranges = (  # noqa: SLF001
            self._stable_offset,
            self._ranges,
            max_ranges,
        )
        return new

    def _set(self, stable_offset: int, ranges: OffsetRanges) -> None:
        ranges = ranges.clip(stable_offset, MAX_OFFSET)
        self._stable_offset, self._ranges = _absorb(stable_offset, ranges)

    def _result(self, committed: int, duplicates: int) -> CommitResult:
        return CommitResult(
            self._stable_offset,
            committed,
            duplicates,
            self._ranges.range_count,
            "duplicate" if duplicates and not committed else "committed",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionCommits):
            return NotImplemented
        return self._stable_offset == other._stable_offset and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PartitionCommits({self._stable_offset}, {self._ranges!r})"


def _absorb(stable_offset: int, ranges: OffsetRanges) -> tuple[int, OffsetRanges]:
    end = ranges.range_end(stable_offset)
    if end is None:
        return stable_offset, ranges
    return end + 1, ranges.clip(end + 1, MAX_OFFSET)


def _offset(name: str, offset: int) -> int:
    exact = exact_integer(name, offset)
    if not 0 <= exact <= MAX_OFFSET + 1:
        raise ValueError(f"{name} must be from 0 to 2**63, not {exact}")
    return exact

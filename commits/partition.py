"""What of one partition is committed: KIP-X's rules, without any input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from commits.errors import IndividualCommitTooOld, MaxIndividualCommitsReached
from commits.offsets import MAX_OFFSET, OffsetRanges, exact_integer

if TYPE_CHECKING:
    from commits.offsets import Pairs

__all__ = ["DEFAULT_MAX_RANGES", "CommitResult", "CommitStatus", "PartitionCommits"]

DEFAULT_MAX_RANGES = 1_000_000
"""How many separate ranges above the stable offset a partition may have, unless told otherwise."""

CommitStatus: TypeAlias = Literal["committed", "duplicate", "too_old", "refused"]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The answer to a commit in one partition.

    Attributes:
        stable_offset: The first offset not committed, after this commit.
        committed: How many offsets are newly committed.
        duplicates: How many were committed before.
        range_count: How many separate ranges lie above the stable offset.
        status: `committed`; `duplicate` if nothing was new; `too_old` if it lay wholly below the
            stable offset; `refused` if it does not count.
        reason: Why it was refused; else empty.
    """

    stable_offset: int
    committed: int
    duplicates: int
    range_count: int
    status: CommitStatus = "committed"
    reason: str = ""


class PartitionCommits:
    """The committed offsets of one partition.

    Everything below the stable offset is committed; at and above it single ranges may be. Filling
    the head moves the stable offset over all that follows. An error leaves everything as it was.

    Args:
        stable_offset: The first offset that is not committed.
        ranges: Pairs `(first, last)` that are committed at or above it; what lies below is taken
            in, as are ranges that touch it.
        max_ranges: How many separate ranges a commit may leave; None for no limit.

    Raises:
        ValueError: If an offset or the limit is negative, or a pair is no range.
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
        self._settle(_offset("stable_offset", stable_offset), OffsetRanges.of(ranges))

    @property
    def stable_offset(self) -> int:
        """The first offset that is not committed; everything below is."""
        return self._stable_offset

    @property
    def ranges(self) -> OffsetRanges:
        """The offsets that are committed above the stable offset."""
        return self._ranges

    @property
    def max_ranges(self) -> int | None:
        """How many separate ranges a commit may leave; None for no limit."""
        return self._max_ranges

    def commit(self, pairs: Pairs | OffsetRanges) -> CommitResult:
        """Commits offsets.

        Offsets that are committed already count as duplicates and change nothing. A commit of
        nothing changes nothing.

        Args:
            pairs: Pairs `(first, last)`, both included, or a set of offsets.

        Raises:
            IndividualCommitTooOld: If all of it lies below the stable offset.
            MaxIndividualCommitsReached: If it would raise the number of separate ranges, and that
                above `max_ranges`.
            ValueError: If a pair is no range.
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
        """Whether a set that is not empty is one range from the stable offset, or from below it."""
        first, last = offered.first, offered.last
        assert first is not None
        assert last is not None
        return first <= self._stable_offset and len(offered) == last - first + 1

    def amend(self, pairs: Pairs | OffsetRanges) -> CommitResult:
        """Takes offsets that are proven never to be delivered as committed.

        Unlike a commit it is never too old, and no limit applies.

        Args:
            pairs: Pairs `(first, last)`, both included, or a set of offsets.

        Raises:
            ValueError: If a pair is no range.
        """
        offered = OffsetRanges.of(pairs)
        fresh = offered.clip(self._stable_offset, MAX_OFFSET) - self._ranges
        self._settle(self._stable_offset, self._ranges | fresh)
        return self._result(len(fresh), len(offered) - len(fresh))

    def log_start(self, offset: int) -> None:
        """The partition's log now begins at `offset`: a lower stable offset follows.

        What is lost by it is what `uncommitted` tells below it before.

        Raises:
            ValueError: If the offset is negative.
        """
        start = _offset("log_start", offset)
        if start > self._stable_offset:
            self._settle(start, self._ranges)

    def truncate(self, end: int) -> None:
        """The partition's log now ends before `end`: what was committed from there on is forgotten.

        Raises:
            ValueError: If the offset is negative.
        """
        end = _offset("end", end)
        self._settle(min(self._stable_offset, end), self._ranges.clip(0, end - 1))

    def reset(self, offset: int) -> None:
        """Sets the stable offset and forgets everything above it: an operator's word.

        Raises:
            ValueError: If the offset is negative.
        """
        self._settle(_offset("offset", offset), OffsetRanges())

    def uncommitted(self, first: int, last: int) -> OffsetRanges:
        """The offsets from `first` to `last`, both included, that are not committed.

        Raises:
            ValueError: If the window is wider than 2**36 offsets.
        """
        return self._ranges.complement(max(first, self._stable_offset), last)

    def copy(self, *, max_ranges: int | None) -> PartitionCommits:
        """A copy that changes by itself, with a limit of its own."""
        new = PartitionCommits.__new__(PartitionCommits)  # what is checked already is not again
        new._stable_offset, new._ranges, new._max_ranges = (  # noqa: SLF001
            self._stable_offset, self._ranges, max_ranges,
        )  # fmt: skip
        return new

    def _settle(self, stable_offset: int, ranges: OffsetRanges) -> None:
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

"""What moving a group's offsets would come to: standings in, moves out; nothing is asked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges, PartitionCommits

if TYPE_CHECKING:
    from commits import Pending
    from coopconsume.admin.offsets.status import PartitionStatus


@dataclass(frozen=True)
class Kept:
    """What of a partition is done and pending, as a document keeps it.

    Attributes:
        topic, partition: Which.
        topic_id: The id of the topic; empty if it is not known.
        stable_offset: The first offset that is not done.
        done: What is done above it.
        pending: Records that failed and are to be tried again.
    """

    topic: str
    partition: int
    topic_id: str
    stable_offset: int
    done: OffsetRanges
    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class Move:
    """A partition before and after.

    Attributes:
        before: How the group stands in it.
        stable_offset: The first offset that is not done after it.
        done: What is done above it.
        pending: What is known of records that are to be tried again.
        again: Offsets in the log that are done and would be done again.
        skipped: Offsets in the log that are not done and would never be.
        note: What was not as asked, in words; else empty.
    """

    before: PartitionStatus
    stable_offset: int
    done: OffsetRanges = field(default_factory=OffsetRanges)
    pending: tuple[Pending, ...] = ()
    again: OffsetRanges = field(default_factory=OffsetRanges)
    skipped: OffsetRanges = field(default_factory=OffsetRanges)
    note: str = ""

    @property
    def changes_log(self) -> bool:
        """Whether the commit log would say something else."""
        before = self.before
        return (
            self.stable_offset != before.stable_offset
            or self.done != before.done
            or {p.offset: p for p in self.pending} != dict(before.pending)
        )


def to_offset(standing: PartitionStatus, offset: int) -> Move:
    """The stable offset set to an offset inside of the log, nothing done or pending above it."""
    first, end = _bounds(standing)
    inside = min(max(offset, first), end)
    note = "" if inside == offset else f"{offset} is not in the log, which goes {first} to {end}"
    return _moved(standing, PartitionCommits(inside, max_ranges=None), (), note)


def marked(standing: PartitionStatus, undone: OffsetRanges, done: OffsetRanges) -> Move:
    """Some offsets made undone again, others done; what failed and stays undone stays known.

    Raises:
        ValueError: An offset is to be both, or the log does not know the partition.
    """
    both = undone & done
    if both:
        raise ValueError(f"offset {both.first} is to be done and undone: give it once")
    first, end = _bounds(standing)
    if standing.stable_offset is None:
        raise ValueError(f"the commit log does not know {standing.name}: set it to an offset first")
    wanted = undone | done
    undone, done = undone.clip(first, end - 1), done.clip(first, end - 1)
    outside = wanted - undone - done
    note = f"{_counted(outside)} not in the log, which goes {first} to {end}" if outside else ""
    stable = standing.stable_offset
    lowest = stable if undone.first is None else min(stable, undone.first)
    below = OffsetRanges([(lowest, stable - 1)]) if lowest < stable else OffsetRanges()
    ranges = ((below | standing.done) - undone) | done
    after = PartitionCommits(lowest, ranges, max_ranges=None)
    pending = tuple(p for offset, p in standing.pending.items() if offset not in undone)
    return _moved(standing, after, pending, note)


def replaced(standing: PartitionStatus, kept: Kept) -> Move:
    """What a document keeps, whatever the group has done."""
    after = PartitionCommits(kept.stable_offset, kept.done, max_ranges=None)
    return _moved(standing, after, kept.pending, "")


def unmoved(standing: PartitionStatus) -> Move:
    """The commit log as it is: only Kafka's offset follows it.

    Raises:
        ValueError: The log does not know the partition.
    """
    if standing.stable_offset is None:
        raise ValueError(f"the commit log does not know {standing.name}: nothing to go by")
    return Move(standing, standing.stable_offset, standing.done, tuple(standing.pending.values()))


def _bounds(standing: PartitionStatus) -> tuple[int, int]:
    if standing.log_start is None or standing.end_offset is None:
        raise ValueError(f"partition {standing.name} does not exist")
    return standing.log_start, standing.end_offset


def _moved(
    standing: PartitionStatus, after: PartitionCommits, pending: tuple[Pending, ...], note: str
) -> Move:
    again = skipped = OffsetRanges()
    first, end = standing.log_start, standing.end_offset
    if first is not None and end is not None:
        # Where the log knows nothing, nothing is done.
        stable = first if standing.stable_offset is None else standing.stable_offset
        low = max(first, min(stable, after.stable_offset))
        was = _within(stable, standing.done, low, end - 1)
        will_be = _within(after.stable_offset, after.ranges, low, end - 1)
        again, skipped = was - will_be, will_be - was
    still = tuple(
        p for p in pending if p.offset >= after.stable_offset and p.offset not in after.ranges
    )
    return Move(standing, after.stable_offset, after.ranges, still, again, skipped, note)


def _within(stable: int, done: OffsetRanges, first: int, last: int) -> OffsetRanges:
    """What is done from ``first`` to ``last``."""
    top = min(stable - 1, last)
    below = OffsetRanges([(first, top)]) if first <= top else OffsetRanges()
    return below | done.clip(first, last)


def _counted(offsets: OffsetRanges) -> str:
    return f"{len(offsets):,} offset{'' if len(offsets) == 1 else 's'} (from {offsets.first})"

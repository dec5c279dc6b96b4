"""Plans moves of a group's offsets: partition statuses in, moves out (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges, PartitionCommits

if TYPE_CHECKING:
    from commits import Pending
    from coopconsume.admin.offsets.status import PartitionStatus


@dataclass(frozen=True)
class Kept:
    """The committed and pending offsets of a partition in an exported document.

    Attributes:
        topic, partition: The partition.
        topic_id: The id of the topic; empty if it is not known.
        stable_offset: The first uncommitted offset.
        done: The committed offsets above it.
        pending: Failed records that await a retry.
    """

    topic: str
    partition: int
    topic_id: str
    stable_offset: int
    done: OffsetRanges
    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class Move:
    """A change of a partition's offsets.

    Attributes:
        before: The status before the move.
        stable_offset: The first uncommitted offset after the move.
        done: The committed offsets above it after the move.
        pending: The failed records after the move that await a retry.
        again: The committed offsets in the log that are processed again.
        skipped: The uncommitted offsets in the log that are never processed.
        note: How the move differs from the request; else empty.
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
        """Whether the move changes the commit log."""
        before = self.before
        return (
            self.stable_offset != before.stable_offset
            or self.done != before.done
            or {p.offset: p for p in self.pending} != dict(before.pending)
        )


def to_offset(status: PartitionStatus, offset: int) -> Move:
    """Plans a stable offset within the log; no offset above it stays committed or pending."""
    first, end = _bounds(status)
    inside = min(max(offset, first), end)
    note = "" if inside == offset else _outside(f"{offset}", first, end)
    return _moved(status, PartitionCommits(inside, max_ranges=None), (), note)


def marked(status: PartitionStatus, undone: OffsetRanges, done: OffsetRanges) -> Move:
    """Plans to mark offsets as uncommitted or committed; other failed records stay pending.

    Raises:
        ValueError: An offset is in both sets, or the commit log has no entry for the partition.
    """
    both = undone & done
    if both:
        raise ValueError(f"offset {both.first} is in --done and --undone: give it once")
    first, end = _bounds(status)
    if status.stable_offset is None:
        raise ValueError(
            f"the commit log has no entry for {status.name}: set it to an offset first"
        )
    wanted = undone | done
    undone, done = undone.clip(first, end - 1), done.clip(first, end - 1)
    outside = wanted - undone - done
    note = f"{_counted(outside)} not in the log, which goes {first} to {end}" if outside else ""
    stable = status.stable_offset
    lowest = stable if undone.first is None else min(stable, undone.first)
    below = OffsetRanges([(lowest, stable - 1)]) if lowest < stable else OffsetRanges()
    ranges = ((below | status.done) - undone) | done
    after = PartitionCommits(lowest, ranges, max_ranges=None)
    pending = tuple(p for offset, p in status.pending.items() if offset not in undone)
    return _moved(status, after, pending, note)


def replaced(status: PartitionStatus, kept: Kept) -> Move:
    """Plans to replace the committed state by that of a document."""
    after = PartitionCommits(kept.stable_offset, kept.done, max_ranges=None)
    return _moved(status, after, kept.pending, _beyond(status, kept))


def _beyond(status: PartitionStatus, kept: Kept) -> str:
    """Returns a note if offsets do not fit the log; it may be that of another topic."""
    first, end = status.log_start, status.end_offset
    if first is None or end is None:
        return ""
    if not first <= kept.stable_offset <= end:
        return _outside(f"{kept.stable_offset}", first, end)
    top = max([kept.done.last or 0, *(p.offset for p in kept.pending)])
    return _outside(f"{top}", first, end) if top >= max(end, 1) else ""


def _outside(what: str, first: int, end: int) -> str:
    return f"{what} is not in the log, which goes {first} to {end}"


def unmoved(status: PartitionStatus) -> Move:
    """Plans to set only Kafka's offset, to the stable offset of the commit log.

    Raises:
        ValueError: The commit log has no entry for the partition.
    """
    if status.stable_offset is None:
        raise ValueError(f"the commit log has no entry for {status.name}: leave it out")
    return Move(status, status.stable_offset, status.done, tuple(status.pending.values()))


def _bounds(status: PartitionStatus) -> tuple[int, int]:
    if status.log_start is None or status.end_offset is None:
        raise ValueError(f"partition {status.name} does not exist")
    return status.log_start, status.end_offset


def _moved(
    status: PartitionStatus, after: PartitionCommits, pending: tuple[Pending, ...], note: str
) -> Move:
    again = skipped = OffsetRanges()
    first, end = status.log_start, status.end_offset
    if first is not None and end is not None:
        # Without an entry in the commit log, nothing is committed.
        stable = first if status.stable_offset is None else status.stable_offset
        low = max(first, min(stable, after.stable_offset))
        was = _within(stable, status.done, low, end - 1)
        will_be = _within(after.stable_offset, after.ranges, low, end - 1)
        again, skipped = was - will_be, will_be - was
    still = tuple(
        p for p in pending if p.offset >= after.stable_offset and p.offset not in after.ranges
    )
    return Move(
        status,
        after.stable_offset,
        done=after.ranges,
        pending=still,
        again=again,
        skipped=skipped,
        note=note,
    )


def _within(stable: int, done: OffsetRanges, first: int, last: int) -> OffsetRanges:
    """Returns the committed offsets from ``first`` to ``last``."""
    top = min(stable - 1, last)
    below = OffsetRanges([(first, top)]) if first <= top else OffsetRanges()
    return below | done.clip(first, last)


def _counted(offsets: OffsetRanges) -> str:
    return f"{len(offsets):,} offset{'' if len(offsets) == 1 else 's'} (from {offsets.first})"

"""Which offsets are read together: a few reads that cover all that is wanted, and little else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits import OffsetRanges

#: Offsets between two wanted ranges that are cheaper to read through than to open a second read.
MERGE_GAP = 5_000
#: The same where ranges are scattered: less than a separate read fetches (two producer batches).
NEAR = 30
#: Offsets between ranges in all, and for each range, up to which they are not scattered.
READ_THROUGH = 20_000
READ_THROUGH_EACH = 300
#: Separate reads of one partition in one batch.
MAX_READS = 12
#: Offsets that are rather read through than by another batch, for each batch that it saves, and at
#: most.
READ_FOR_A_BATCH = 20_000
STRETCH = 250_000


@dataclass(frozen=True)
class Read:
    """Offsets ``first`` to ``last``, both included, of the partition with this index."""

    part: int
    first: int
    last: int


def is_far_apart(first: int, last: int) -> bool:
    """Whether what lies between two offsets is not read in passing."""
    return last - first > MERGE_GAP


def reach_of(offsets: OffsetRanges, window: int = 0, *, scattered: bool = False) -> int:
    """How far apart wanted ranges may lie to be read as one.

    Where ranges are near each other, or reading through all of them takes fewer batches, one read
    costs less than several. Where they are scattered over a long stretch, it would fetch most of
    the log for a few records.

    Args:
        offsets: What is wanted.
        window: Offsets that a batch may span; 0: it is all read at once.
        scattered: Whether they were scattered before. They stay so when only a few are left.
    """
    firsts, lasts = offsets.bounds()
    between = firsts[1:] - lasts[:-1] - 1
    through = int(between[between < MERGE_GAP].sum())
    dense = through <= max(0 if scattered else READ_THROUGH, READ_THROUGH_EACH * len(firsts))
    if window and not dense:
        stretch = int(lasts[-1] - firsts[0])
        apart = 1 + int((between > NEAR).sum())
        saved = math.ceil(apart / MAX_READS) - math.ceil(stretch / window)
        dense = stretch < min(STRETCH, READ_FOR_A_BATCH * saved)
    return MERGE_GAP if dense else min(MERGE_GAP, NEAR)


def covering(offsets: OffsetRanges, reach: int) -> list[tuple[int, int]]:
    """Ascending reads that cover all wanted offsets."""
    reads: list[tuple[int, int]] = []
    for first, last in offsets:
        if reads and first - reads[-1][1] <= reach:
            reads[-1] = (reads[-1][0], last)
        else:
            reads.append((first, last))
    return reads


def cluster(offsets: OffsetRanges, span: int, reach: int) -> tuple[list[tuple[int, int]], bool]:
    """Ascending reads of the first of some wanted offsets, and whether others are left for later.

    Ranges that lie near each other are read as one; at most `MAX_READS` reads and ``span``
    offsets, but always at least one offset if any is wanted.
    """
    reads: list[tuple[int, int]] = []
    used = 0
    for first, last in offsets:
        near = bool(reads) and first - reads[-1][1] <= reach
        between = first - reads[-1][1] - 1 if near else 0
        capacity = span - used - between
        if reads and (capacity <= 0 or (not near and len(reads) == MAX_READS)):
            return reads, True
        stop = min(last, first + max(1, capacity) - 1)
        if near:
            reads[-1] = (reads[-1][0], stop)
        else:
            reads.append((first, stop))
        used += between + stop - first + 1
        if stop < last:
            return reads, True
    return reads, False

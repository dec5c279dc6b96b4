"""Chooses reads that cover the wanted offsets: few reads, with little between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits import OffsetRanges

#: Gap between two wanted ranges up to which one read is cheaper than two, in offsets.
MERGE_GAP = 5_000
#: The same for scattered ranges: less than a separate read fetches (two producer batches).
NEAR = 30
#: Offsets between all ranges, and per range, up to which ranges are not scattered.
READ_THROUGH = 20_000
READ_THROUGH_EACH = 300
#: Reads of one partition in one batch, at most.
MAX_READS = 12
#: Unwanted offsets that a read may pass to save a batch, for each batch saved, and at most.
READ_FOR_A_BATCH = 20_000
STRETCH = 250_000


@dataclass(frozen=True)
class Read:
    """Offsets ``first`` to ``last``, both included, of the partition with this index."""

    index: int
    first: int
    last: int


def is_far_apart(first: int, last: int) -> bool:
    """Whether two offsets are too far apart for one read."""
    return last - first > MERGE_GAP


def reach_of(offsets: OffsetRanges, window: int = 0, *, scattered: bool = False) -> int:
    """Returns how far apart wanted ranges may lie to be read as one.

    If ranges are near each other, or if one read through all of them saves batches, one read costs
    less than several. If they are scattered, one read would fetch most of the log for a few
    records.

    Args:
        offsets: The wanted offsets.
        window: Offsets that a batch may span; 0: no limit.
        scattered: Whether they were scattered before; they stay so when only a few are left.
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
    """Returns ascending reads that cover all wanted offsets."""
    reads: list[tuple[int, int]] = []
    for first, last in offsets:
        if reads and first - reads[-1][1] <= reach:
            reads[-1] = (reads[-1][0], last)
        else:
            reads.append((first, last))
    return reads


def cluster(offsets: OffsetRanges, span: int, reach: int) -> tuple[list[tuple[int, int]], bool]:
    """Returns ascending reads of the first wanted offsets, and whether others are left for later.

    Ranges near each other are read as one. There are at most `MAX_READS` reads of ``span`` offsets
    together, and at least one offset if any is wanted.
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

"""Selects the offsets that can be committed within a limit of separate ranges. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commits.offsets import MAX_OFFSET, OffsetRanges

if TYPE_CHECKING:
    from commits.partition_commits import PartitionCommits


def affordable(commits: PartitionCommits, offered: OffsetRanges, limit: int) -> OffsetRanges:
    """Return the offsets that can be committed within a limit of separate ranges.

    They are all offsets that fill gaps or extend a range, and the lowest separate ranges that the
    limit allows.

    Args:
        commits: The committed offsets.
        offered: The offsets that are done.
        limit: The largest number of separate ranges.
    """
    ranges = commits.ranges
    fresh = offered.clip(commits.stable_offset, MAX_OFFSET) - ranges
    firsts, lasts = fresh.bounds()
    known_firsts, known_lasts = ranges.bounds()
    left = np.isin(firsts - 1, known_lasts) | (firsts == commits.stable_offset)
    right = np.isin(lasts + 1, known_firsts)
    raises = 1 - left.astype(np.int64) - right.astype(np.int64)
    fits = raises <= 0
    allowed = max(0, limit - ranges.range_count - int(raises[fits].sum()))
    fits[np.flatnonzero(~fits)[:allowed]] = True
    return offered - OffsetRanges.from_bounds(firsts[~fits], lasts[~fits])

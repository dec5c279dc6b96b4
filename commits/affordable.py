"""What may be committed without exceeding a limit on separate ranges. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commits.offsets import MAX_OFFSET, OffsetRanges

if TYPE_CHECKING:
    from commits.partition import PartitionCommits


def affordable(commits: PartitionCommits, offered: OffsetRanges, limit: int) -> OffsetRanges:
    """The part of some offsets that can be committed without more ranges than a limit.

    All that fills gaps or grows a range is in it; of what would stand alone the lowest, as much as
    there is room for.

    Args:
        commits: What is committed.
        offered: What is done.
        limit: How many ranges there may be.
    """
    ranges = commits.ranges
    fresh = offered.clip(commits.stable_offset, MAX_OFFSET) - ranges
    firsts, lasts = fresh.bounds()
    known_firsts, known_lasts = ranges.bounds()
    left = np.isin(firsts - 1, known_lasts) | (firsts == commits.stable_offset)
    right = np.isin(lasts + 1, known_firsts)
    raises = 1 - left.astype(np.int64) - right.astype(np.int64)
    fits = raises <= 0
    room = max(0, limit - ranges.range_count - int(raises[fits].sum()))
    fits[np.flatnonzero(~fits)[:room]] = True
    return offered - OffsetRanges.from_bounds(firsts[~fits], lasts[~fits])

"""Chooses the partitions of a batch, in turn. Pure.

To read a partition costs about as much as to read tens of thousands of its records. So of wide
topics a batch reads some partitions only: each record waits for fewer reads until handlers get it,
and where much is left, each read is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.runtime.plan.partition import Partition

#: Partitions of a batch, as far as so many have records: at least, and at most.
FEWEST: Final = 32
MOST: Final = 128
#: Offsets of a partition that make a long read.
LONG: Final = 32_768


def in_turn(
    partitions: Sequence[Partition], backlogs: Mapping[int, int], window: int, handlers: int
) -> list[Partition]:
    """Returns the partitions of the next batch: those with records that have waited for longest.

    Args:
        partitions: The partitions.
        backlogs: Offsets that each has left, by index.
        window: Offsets of the batch; there are no more partitions than that.
        handlers: Handlers side by side. Each partition may have only one key, so there are several
            partitions for each of them.
    """
    fewest = max(FEWEST, 4 * handlers)
    most = min(window, max(MOST, fewest))
    waiting = [one for one in partitions if backlogs[one.index]]
    chosen: list[Partition] = []
    size = 0
    for one in sorted(waiting, key=lambda one: one.slots.planned_at):
        if len(chosen) >= most or (len(chosen) >= fewest and size >= window):
            break
        chosen.append(one)
        size += min(backlogs[one.index], LONG)
    return sorted(chosen, key=lambda one: one.index)

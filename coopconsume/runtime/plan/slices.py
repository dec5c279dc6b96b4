"""Slices of acquired offsets for the slots of a cooperative job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.runtime.plan.partition import Partition


def deal_stock(
    partitions: Sequence[Partition], slots: Sequence[int], sizes: Mapping[int, int], now: float
) -> None:
    """Gives free slots slices of the acquired offsets.

    A slot that has offsets left gets what is missing to its size. If there are too few offsets for
    all slots, each gets a part in proportion to its size. A slot gets offsets of as few partitions
    as possible, of those with most offsets first.

    Args:
        partitions: The partitions.
        slots: The free slots.
        sizes: How many offsets each slot is to have at once.
        now: The time, on the monotonic clock.
    """
    stocks = [p for p in partitions if p.stock is not None and p.stock.undealt]
    total = sum(len(p.stock.undealt) for p in stocks if p.stock is not None)
    spaces = {slot: max(0, sizes[slot] - _left(partitions, slot)) for slot in slots}
    wanted = sum(spaces.values())
    for slot, space in spaces.items():
        count = space if wanted <= total else -(-total * space // max(1, wanted))
        for partition in sorted(stocks, key=_undealt, reverse=True):
            if count <= 0:
                break
            share = partition.shares[slot]
            if share.is_free(now) and partition.stock is not None:
                taken = partition.stock.take(count)
                share.todo |= taken
                count -= len(taken)


def _left(partitions: Sequence[Partition], slot: int) -> int:
    return sum(len(p.shares[slot].todo) for p in partitions if slot in p.shares)


def _undealt(partition: Partition) -> int:
    return 0 if partition.stock is None else len(partition.stock.undealt)

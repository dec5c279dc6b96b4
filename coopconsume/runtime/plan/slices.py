"""Slices of acquired offsets for the slots of a job with chunks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits.offsets import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.runtime.plan.ahead import AheadSizes
    from coopconsume.runtime.plan.partition import Partition


def deal_stock(
    partitions: Sequence[Partition], slots: Sequence[int], sizes: Mapping[int, int], now: float
) -> None:
    """Gives free slots slices of the acquired offsets, up to the ends of the logs.

    A slot that has offsets left gets what is missing to its size. If there are too few offsets for
    all slots, each gets a part in proportion to its size. A slot gets offsets of as few partitions
    as possible, of those with most offsets first.

    Args:
        partitions: The partitions.
        slots: The free slots, and those that read by themselves.
        sizes: How many offsets each slot is to have at once.
        now: The time, on the monotonic clock.
    """
    _take_back(partitions, slots, now)
    stocks = [p for p in partitions if _undealt(p)]
    total = undealt_of(stocks)
    spaces = {slot: max(0, sizes[slot] - left_of(partitions, slot)) for slot in slots}
    wanted = sum(spaces.values())
    for slot, space in spaces.items():
        count = space if wanted <= total else -(-total * space // max(1, wanted))
        for partition in sorted(stocks, key=_undealt, reverse=True):
            if count <= 0:
                break
            cursor = partition.cursors[slot]
            if cursor.takes_chunks(now):
                taken = partition.chunks.take(count, partition.ledger.end)
                cursor.todo |= taken
                count -= len(taken)


def deal_ahead(
    partitions: Sequence[Partition], slots: Sequence[int], sizes: AheadSizes, now: float
) -> None:
    """Gives slots that read by themselves slices beyond the ends of the logs.

    So a new record has a slot that waits for it. A slot that is behind gets no further one.

    Args:
        partitions: The partitions.
        slots: The slots.
        sizes: How large the slices are.
        now: The time, on the monotonic clock.
    """
    stocks = [p for p in partitions if p.chunks.undealt]
    if not stocks:
        return
    at_work = {
        slot: sum(p.cursors[slot].reading for p in partitions if slot in p.cursors)
        for slot in slots
    }
    most = max(sizes.slice_of(partition.index, now) for partition in stocks)
    for partition in stocks:
        size = sizes.slice_of(partition.index, now)
        if _undealt(partition):
            continue  # All slots have their size of what is there.
        for slot in sorted(slots, key=at_work.__getitem__):
            cursor = partition.cursors[slot]
            has = len(cursor.todo) - cursor.reading
            if at_work[slot] < most and 2 * has < size and cursor.takes_chunks(now):
                cursor.todo |= partition.chunks.take(size - has)


def undealt_of(partitions: Sequence[Partition]) -> int:
    """Returns how many acquired offsets no slot has, up to the ends of the logs."""
    return sum(map(_undealt, partitions))


def left_of(partitions: Sequence[Partition], slot: int) -> int:
    """Returns how many offsets a slot has left, up to the ends of the logs."""
    cursors = ((p.cursors[slot].todo, p.ledger.end) for p in partitions if slot in p.cursors)
    return sum(len(todo.clip(0, end - 1)) for todo, end in cursors)


def _take_back(partitions: Sequence[Partition], slots: Sequence[int], now: float) -> None:
    """Takes back what free slots have beyond the ends: a batch must not read there."""
    for partition in partitions:
        end = partition.ledger.end
        for slot in slots:
            cursor = partition.cursors[slot]
            last = cursor.todo.last
            if last is not None and last >= end and cursor.is_free(now):
                beyond = cursor.todo.clip(end, MAX_OFFSET)
                cursor.todo -= beyond
                partition.chunks.give_back(beyond)


def _undealt(partition: Partition) -> int:
    return len(partition.chunks.below(partition.ledger.end))

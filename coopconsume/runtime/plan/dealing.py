"""How many key hashes each slot gets when key ranges are dealt again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors import KeyRange
from assignors.ranges import difference

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_uneven(sizes: Sequence[int]) -> bool:
    """Whether one slot has less than half of the key hashes of another."""
    return sum(sizes) >= len(sizes) and 2 * min(sizes) < max(sizes)


def part_of(free: int, size: int, busy: Sequence[int]) -> int:
    """Returns how many of the key hashes that can be dealt free slots get.

    Args:
        free: How many slots are free.
        size: How many key hashes can be dealt to them.
        busy: How many key hashes each other slot has.
    """
    if not busy or not is_uneven([*busy, size // free]):
        return size
    return min(size, free * ((size + sum(busy)) // (free + len(busy))))


def cut(ranges: Sequence[KeyRange], size: int) -> tuple[tuple[KeyRange, ...], tuple[KeyRange, ...]]:
    """Cuts off the first ``size`` key hashes; returns these, and the others."""
    first: list[KeyRange] = []
    left = size
    for one in ranges:
        if left > 0:
            first.append(KeyRange(one.first, one.first + min(left, one.size) - 1))
            left -= first[-1].size
    return tuple(first), difference(ranges, first)

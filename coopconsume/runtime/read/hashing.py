"""Key hashes, key ranges and slots as Spark SQL.

The functions return SQL as text. To build columns, each part would be a round trip to the JVM,
hundreds per batch. Of the names of columns, only ``offset`` is reserved in strict SQL.

``xxhash64`` of Spark SQL equals `assignors.key_hash` of Python. ``repartition`` sends a row to the
task that the Murmur3 hash of an expression names. So each slot has a number whose hash is its task.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from assignors import MAX_KEY_HASH
from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The last value of a piece of all values, and its task number; None: no task wants it.
Piece: TypeAlias = "tuple[int, int | None]"

_U32 = 0xFFFFFFFF
#: Up to this number, ranges are compared one by one; more are looked up in bit sets.
_COMPARED = 32
#: Longer ranges are compared, and ranges that are farther apart have bit sets of their own; in
#: offsets.
_STRETCH = 8_192


def key_hash_sql(key: str = "key") -> str:
    """Returns the SQL of `assignors.key_hash` of a binary column; null if it is null.

    Args:
        key: The column with the keys that records are dealt by.
    """
    return f"CASE WHEN {key} IS NOT NULL THEN xxhash64({key}) & {MAX_KEY_HASH}L END"


def deal_hash_sql(key: str = "key") -> str:
    """Returns the SQL of the hash that a record is dealt by: of its key; without a key, its offset.

    Args:
        key: As for `key_hash_sql`.
    """
    hashed = f"CASE WHEN {key} IS NOT NULL THEN xxhash64({key}) ELSE xxhash64(`offset`) END"
    return f"({hashed} & {MAX_KEY_HASH}L)"


def task_of(number: int, tasks: int) -> int:
    """Returns the task of ``repartition(tasks, lit(number))``: Spark's Murmur3 with seed 42."""
    k = (number & _U32) * 0xCC9E2D51 & _U32
    k = ((k << 15) | (k >> 17)) & _U32
    h = 42 ^ (k * 0x1B873593 & _U32)
    h = ((h << 13) | (h >> 19)) & _U32
    h = (h * 5 + 0xE6546B64) & _U32
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _U32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _U32
    h ^= h >> 16
    signed = h - (1 << 32) if h >> 31 else h
    return signed % tasks


@lru_cache(maxsize=64)
def task_numbers(tasks: int) -> tuple[int, ...]:
    """Returns for each task the lowest number that ``repartition(tasks, …)`` sends to it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(task_of(number, tasks), number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def pieces_of(ranges: Iterable[tuple[int, int, int | None]]) -> list[Piece]:
    """Returns values from 0 to the largest bigint as pieces, ascending.

    Args:
        ranges: (first, last, task number), disjoint and contiguous.

    Returns:
        The last value and the task number of each piece.
    """
    pieces: list[Piece] = []
    at = 0
    for first, last, number in sorted(ranges):
        if first > at:
            pieces.append((first - 1, None))
        pieces.append((last, number))
        at = last + 1
    if at <= MAX_KEY_HASH:
        pieces.append((MAX_KEY_HASH, None))
    return pieces


def search_sql(value: str, pieces: Sequence[Piece]) -> str:
    """Returns the SQL of the task number of the piece that has a value; null: it has none.

    Args:
        value: SQL of the value, a bigint from 0 on.
        pieces: See `pieces_of`.
    """

    def search(low: int, high: int) -> str:
        if low == high:
            number = pieces[low][1]
            return "CAST(NULL AS INT)" if number is None else str(number)
        middle = (low + high) // 2
        below, above = search(low, middle), search(middle + 1, high)
        return f"CASE WHEN {value} <= {pieces[middle][0]}L THEN {below} ELSE {above} END"

    return search(0, len(pieces) - 1)


def slice_sql(slices: Sequence[tuple[OffsetRanges, int]]) -> str:
    """Returns the SQL of the value of the set that has ``offset``; null outside all sets.

    Args:
        slices: Disjoint sets of offsets, each with its value.
    """
    cases = [f"WHEN {in_ranges_sql(offsets)} THEN {value}" for offsets, value in slices]
    return f"CASE {' '.join(cases)} END"


def in_ranges_sql(ranges: OffsetRanges) -> str:
    """Returns the SQL of whether ``offset`` is in a set.

    The text grows with the number of ranges, not with their lengths or distances: ranges near each
    other share a bit set, and a binary search finds the bit set.
    """
    if ranges.range_count <= _COMPARED:
        return _compared_sql(ranges.pairs())
    firsts, lasts = ranges.bounds()
    is_wide = lasts - firsts >= _STRETCH
    starts = np.flatnonzero((firsts[1:] - lasts[:-1] > _STRETCH) | is_wide[1:] | is_wide[:-1]) + 1
    bounds = [0, *starts.tolist(), len(firsts)]
    stretches = [
        OffsetRanges.from_bounds(firsts[start:end], lasts[start:end])
        for start, end in itertools.pairwise(bounds)
    ]

    def search(low: int, high: int) -> str:
        if low == high:
            stretch = stretches[low]
            few = stretch.range_count <= _COMPARED
            return _compared_sql(stretch.pairs()) if few else _bit_set_sql(stretch)
        middle = (low + high) // 2
        below, above = search(low, middle), search(middle + 1, high)
        return f"CASE WHEN `offset` <= {stretches[middle].last}L THEN {below} ELSE {above} END"

    return search(0, len(stretches) - 1)


def _compared_sql(pairs: Sequence[tuple[int, int]]) -> str:
    each = [f"`offset` BETWEEN {first}L AND {last}L" for first, last in pairs]
    return f"({' OR '.join(each) or 'false'})"


def _bit_set_sql(ranges: OffsetRanges) -> str:
    """Returns a literal bit set of 64-bit words, which Spark folds once."""
    base, last = ranges.first, ranges.last
    assert base is not None
    offsets = ranges.offsets() - base
    bits = np.zeros((int(offsets[-1]) // 64 + 1) * 64, np.uint8)
    bits[offsets] = 1
    words = np.packbits(bits, bitorder="little").view("<i8")
    array = f"CAST(split('{','.join(map(str, words.tolist()))}', ',') AS ARRAY<BIGINT>)"
    at = f"(`offset` - {base}L)"
    word = f"try_element_at({array}, CAST(shiftright({at}, 6) + 1 AS INT))"
    bit = f"getbit({word}, CAST({at} & 63 AS INT))"
    return f"(`offset` BETWEEN {base}L AND {last}L AND {bit} = 1)"

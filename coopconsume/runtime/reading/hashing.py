"""Key hashes, key ranges and slots as Spark SQL.

Texts, and no columns: each call that makes a part of a column is a round trip to the JVM, and a
batch's columns were hundreds of them. Of the columns' names, ``offset`` alone is a word that strict
SQL keeps for itself.

``xxhash64`` of Spark SQL equals `assignors.key_hash` of Python. Which Spark task a row goes to is
``repartition``'s own Murmur3 of the expression it is given: so each slot gets a number whose hash
falls on the task that is to be its own.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from assignors import MAX_KEY_HASH
from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors import KeyRange

_U32 = 0xFFFFFFFF
#: Ranges up to this number are compared one by one; more are looked up in a bit set.
_COMPARED = 32
#: Offsets that a bit set spans in passing. Longer ranges are compared, and what lies farther apart
#: has bit sets of its own.
_STRETCH = 8_192


def key_hash_sql(key: str = "key") -> str:
    """`assignors.key_hash` of a binary column; null where it is null.

    Args:
        key: The column with the keys that records are dealt by.
    """
    return f"CASE WHEN {key} IS NOT NULL THEN xxhash64({key}) & {MAX_KEY_HASH}L END"


def deal_hash_sql(key: str = "key") -> str:
    """The place of a record in the hash space: its key's hash or, without a key, its offset's.

    Args:
        key: As for `key_hash_sql`.
    """
    hashed = f"CASE WHEN {key} IS NOT NULL THEN xxhash64({key}) ELSE xxhash64(`offset`) END"
    return f"({hashed} & {MAX_KEY_HASH}L)"


def task_of(number: int, tasks: int) -> int:
    """Task that ``repartition(tasks, lit(number))`` sends a row to: Spark's Murmur3, seed 42."""
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
    """For each task, the least number that ``repartition(tasks, …)`` sends to it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(task_of(number, tasks), number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def slot_sql(deal_hash: str, ranges: Sequence[tuple[KeyRange, int | None]]) -> str:
    """The value that goes with the range a hash lies in; null where none does.

    Args:
        deal_hash: The hashes.
        ranges: Disjoint key ranges, each with its value.
    """
    pieces: list[tuple[int, int | None]] = []
    at = 0
    for key_range, value in sorted(ranges, key=lambda piece: piece[0]):
        if key_range.first > at:
            pieces.append((key_range.first - 1, None))
        pieces.append((key_range.last, value))
        at = key_range.last + 1
    if at <= MAX_KEY_HASH:
        pieces.append((MAX_KEY_HASH, None))

    def search(low: int, high: int) -> str:
        if low == high:
            value = pieces[low][1]
            return "CAST(NULL AS INT)" if value is None else str(value)
        middle = (low + high) // 2
        below, above = search(low, middle), search(middle + 1, high)
        return f"CASE WHEN {deal_hash} <= {pieces[middle][0]}L THEN {below} ELSE {above} END"

    return search(0, len(pieces) - 1)


def slice_sql(slices: Sequence[tuple[OffsetRanges, int]]) -> str:
    """The value that goes with the set the column ``offset`` is in; null where it is in none.

    Args:
        slices: Disjoint sets of offsets, each with its value.
    """
    if not slices:
        return "CAST(NULL AS INT)"
    cases = [f"WHEN {in_ranges_sql(offsets)} THEN {value}" for offsets, value in slices]
    return f"CASE {' '.join(cases)} END"


def in_ranges_sql(ranges: OffsetRanges) -> str:
    """Whether the column ``offset`` is in the set.

    The size of the text grows with the number of ranges, not with their length or distance: each
    stretch of near ranges has a bit set of its own, and a search over the stretches finds it.
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
    """A literal bit set of 64-bit words, which Spark folds once."""
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

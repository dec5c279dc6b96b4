"""Key hashes, key ranges and slots as Spark SQL expressions; and Kafka's own hash of keys.

``xxhash64`` of Spark SQL equals `assignors.key_hash` of Python. Which Spark task a row goes to is
``repartition``'s own Murmur3 of the expression it is given: so each slot gets a number whose hash
falls on the task that is to be its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from assignors import MAX_KEY_HASH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from assignors import KeyRange
    from commits import OffsetRanges

_U32, _POSITIVE = 0xFFFFFFFF, 0x7FFFFFFF
#: Ranges up to this number are compared one by one; more are looked up in a bit set.
_COMPARED = 32


def default_partition(key: bytes, partitions: int) -> int:
    """The partition that Kafka's producers choose for a key by default: by its murmur2."""
    from kafka.partitioner.default import murmur2

    return int(murmur2(key) & _POSITIVE) % partitions


def key_hash_column(key: Column) -> Column:
    """`assignors.key_hash` of a binary column; null for a null key."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(key.isNotNull(), F.xxhash64(key).bitwiseAND(F.lit(MAX_KEY_HASH)))


def deal_hash_column(key: Column, offset: Column) -> Column:
    """The place of a record in the hash space: its key's hash or, without a key, its offset's."""
    from pyspark.sql import functions as F  # noqa: N812

    hashed = F.when(key.isNotNull(), F.xxhash64(key)).otherwise(F.xxhash64(offset.cast("bigint")))
    return hashed.bitwiseAND(F.lit(MAX_KEY_HASH))


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


def slot_column(deal_hash: Column, ranges: Sequence[tuple[KeyRange, int | None]]) -> Column:
    """The value that goes with the range a hash lies in; null where none does.

    Args:
        deal_hash: The hashes.
        ranges: Disjoint key ranges, each with its value.
    """
    from pyspark.sql import functions as F  # noqa: N812

    nothing = F.lit(None).cast("int")
    pieces: list[tuple[int, int | None]] = []
    at = 0
    for key_range, value in sorted(ranges, key=lambda piece: piece[0]):
        if key_range.first > at:
            pieces.append((key_range.first - 1, None))
        pieces.append((key_range.last, value))
        at = key_range.last + 1
    if at <= MAX_KEY_HASH:
        pieces.append((MAX_KEY_HASH, None))

    def search(low: int, high: int) -> Column:
        if low == high:
            value = pieces[low][1]
            return nothing if value is None else F.lit(value)
        middle = (low + high) // 2
        return F.when(deal_hash <= F.lit(pieces[middle][0]), search(low, middle)).otherwise(
            search(middle + 1, high)
        )

    return search(0, len(pieces) - 1)


def in_ranges(offset: Column, ranges: OffsetRanges) -> Column:
    """Whether an offset is in the set."""
    from pyspark.sql import functions as F  # noqa: N812

    pairs = ranges.pairs()
    if len(pairs) <= _COMPARED:
        found = F.lit(False)
        for first, last in pairs:
            found = found | offset.between(F.lit(first), F.lit(last))
        return found
    # Too many to compare: a literal bit set of 64-bit words, folded once by Spark.
    base, last = pairs[0][0], pairs[-1][1]
    offsets = ranges.offsets() - base
    bits = np.zeros((int(offsets[-1]) // 64 + 1) * 64, np.uint8)
    bits[offsets] = 1
    words = np.packbits(bits, bitorder="little").view("<i8")
    array = F.split(F.lit(",".join(map(str, words.tolist()))), ",").cast("array<bigint>")
    at = offset - F.lit(base)
    word = F.try_element_at(array, (F.shiftright(at, 6) + 1).cast("int"))
    inside = offset.between(F.lit(base), F.lit(last))
    return inside & (F.getbit(word, at.bitwiseAND(F.lit(63)).cast("int")) == F.lit(1))

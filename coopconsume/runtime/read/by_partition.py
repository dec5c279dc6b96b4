"""Values that depend on a row's partition, as Spark SQL whose size does not depend on their number.

A branch for each partition would have Spark generate, compile and keep code that grows with them,
in each task again once a method is too large. Here the values are literal arrays: generated code
refers to them, and is the same for any number of partitions, for any offsets, and in each batch.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from commits.offsets import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from commits import OffsetRanges
    from coopconsume.runtime.read.hashing import Piece

#: Pieces of a partition up to which they are compared one by one.
MOST_PIECES: Final = 64
#: Offsets of a page, and the two kinds of pages that need no bits.
_PAGE: Final = 4_096
_NONE: Final = -1
_ALL: Final = -2
#: Bits of the integer that rows are sorted by.
_STEP_BITS, _PART_BITS, _PASSED_BITS = 20, 11, 31
#: Offsets of a partition that a slot handles before those of the next one: to change the partition
#: costs it about as much as to enter a record.
RUN: Final = 32


def array_sql(values: Iterable[float], of: str) -> str:
    """Returns a literal array of numbers, which Spark folds once.

    Args:
        values: The numbers.
        of: Their type in SQL.
    """
    return f"CAST(split('{','.join(map(str, values))}', ',') AS ARRAY<{of}>)"


def part_sql(places: Sequence[tuple[str, int]]) -> str:
    """Returns the SQL of the index of a row's partition.

    Args:
        places: (topic, partition) by index. Rows have no others.
    """
    if len(places) == 1:
        return "0"
    topics = tuple(sorted({topic for topic, _ in places}))
    sizes = dict.fromkeys(topics, 0)
    for topic, number in places:
        sizes[topic] = max(sizes[topic], number + 1)
    starts = dict(
        zip(topics, itertools.accumulate((sizes[one] for one in topics), initial=0), strict=False)
    )
    parts = [-1] * sum(sizes.values())
    for index, (topic, number) in enumerate(places):
        parts[starts[topic] + number] = index
    at = "partition"
    if len(topics) > 1:
        moves, cells = _perfect_hash(topics)
        found = [0 if topic is None else starts[topic] for topic in cells]
        move = f"get({array_sql(moves, 'INT')}, CAST({_BUCKET.format(len(moves))} AS INT))"
        cell = f"CAST(pmod({_HIGH} + {move}, {len(cells)}) AS INT)"
        at = f"get({array_sql(found, 'INT')}, {cell}) + partition"
    return f"get({array_sql(parts, 'INT')}, {at})"


_HIGH: Final = "shiftrightunsigned(xxhash64(topic), 32)"
_BUCKET: Final = "pmod(xxhash64(topic) & 4294967295L, {})"


@lru_cache(maxsize=16)
def _perfect_hash(topics: tuple[str, ...]) -> tuple[list[int], list[str | None]]:
    """Returns a hash table of topics without collisions: moves by bucket, and topics by cell.

    The lower half of a topic's hash names its bucket. Its upper half and the move of the bucket
    are, modulo the number of cells, its cell.
    """
    import xxhash

    from assignors.ranges import HASH_SEED

    hashes = {topic: xxhash.xxh64_intdigest(topic.encode(), seed=HASH_SEED) for topic in topics}
    buckets: list[list[str]] = [[] for _ in range((len(topics) + 1) // 2)]
    for topic, hashed in hashes.items():
        buckets[(hashed & 0xFFFFFFFF) % len(buckets)].append(topic)
    for size in itertools.count(2 * len(topics)):
        cells: list[str | None] = [None] * size
        moves = [0] * len(buckets)
        for bucket in sorted(range(len(buckets)), key=lambda one: -len(buckets[one])):
            at = [(hashes[topic] >> 32) % size for topic in buckets[bucket]]
            fits = (
                move
                for move in range(size if len(set(at)) == len(at) else 0)
                if all(cells[(one + move) % size] is None for one in at)
            )
            move = next(fits, None)
            if move is None:
                break
            moves[bucket] = move
            for topic, one in zip(buckets[bucket], at, strict=True):
                cells[(one + move) % size] = topic
        else:
            return moves, cells
    raise AssertionError


def by_part_sql(part: str, values: Sequence[str]) -> str:
    """Returns the SQL of a value that has some SQL for each part; parts with the same share it.

    Args:
        part: SQL of a row's part.
        values: The SQL by part.
    """
    distinct = {value: kind for kind, value in enumerate(dict.fromkeys(values))}
    *firsts, last = distinct
    if not firsts:
        return last
    kinds = f"get({array_sql([distinct[value] for value in values], 'INT')}, {part})"
    cases = [f"WHEN {kind} THEN {value}" for kind, value in enumerate(firsts)]
    return f"CASE {kinds} {' '.join(cases)} ELSE {last} END"


def number_sql(part: str, values: Sequence[float], of: str = "BIGINT") -> str:
    """Returns the SQL of a number by part.

    Args:
        part: SQL of a row's part.
        values: The numbers by part.
        of: Their type in SQL.
    """
    return f"get({array_sql(values, of)}, {part})"


def order_sql(part: str, wanted: Sequence[OffsetRanges]) -> list[str]:
    """Returns SQL to sort by: how far ``offset`` is through what is wanted of its partition.

    In this order partitions are worked on side by side, each by ascending offsets, some at a time.
    Spark sorts one integer by its bits, without comparisons.

    Args:
        part: SQL of a row's part.
        wanted: By part, the wanted offsets.
    """
    firsts = [offsets.first or 0 for offsets in wanted]
    sizes = [(of.last or 0) - first + 1 for of, first in zip(wanted, firsts, strict=True)]
    passed = f"(`offset` - {number_sql(part, firsts)})"
    steps = min(max(1, max(sizes) // RUN), 1 << _STEP_BITS)
    step = (
        f"CAST({passed} / {number_sql(part, [size / steps for size in sizes], 'DOUBLE')} AS BIGINT)"
    )
    if len(wanted) > 1 << _PART_BITS or max(sizes) > 1 << _PASSED_BITS:
        return [step, part, "`offset`"]
    before = f"shiftleft(CAST({part} AS BIGINT), {_PASSED_BITS})"
    return [f"shiftleft({step}, {_PART_BITS + _PASSED_BITS}) + {before} + {passed}"]


def piece_sql(part: str, value: str, lasts: Sequence[Sequence[int]]) -> str:
    """Returns the SQL of the piece of a row's partition that has a value, numbered over all parts.

    Args:
        part: SQL of a row's part.
        value: SQL of the value, a bigint.
        lasts: By part, the last value of each piece, ascending; the last piece has all above, too.
    """
    firsts = itertools.accumulate((len(of) for of in lasts), initial=0)
    base = number_sql(part, list(firsts)[:-1], "INT")
    earlier = [
        number_sql(part, [of[n] if n + 1 < len(of) else MAX_OFFSET for of in lasts])
        for n in range(max(map(len, lasts)) - 1)
    ]
    return " + ".join([base, *(f"CAST({value} > {last} AS INT)" for last in earlier)])


def task_sql(part: str, value: str, pieces: Sequence[Sequence[Piece]]) -> str:
    """Returns the SQL of the task number of the piece that has a value; null: it has none.

    Args:
        part: SQL of a row's part.
        value: SQL of the value, a bigint.
        pieces: By part, the pieces of all values.
    """
    piece = piece_sql(part, value, [[last for last, _ in of] for of in pieces])
    numbers = sorted({number for of in pieces for _, number in of if number is not None})
    # An index that is out of bounds gives null.
    at = {None: -1} | {number: index for index, number in enumerate(numbers)}
    found = array_sql([at[number] for of in pieces for _, number in of], "INT")
    return f"get({array_sql(numbers, 'INT')}, get({found}, {piece}))"


def wanted_sql(
    part: str, spans: Sequence[Sequence[tuple[int, int]]], wanted: Sequence[OffsetRanges]
) -> str:
    """Returns the SQL of whether ``offset`` is wanted of its partition.

    The offsets of all spans are laid one after another in pages. A page is wanted as a whole, not
    at all, or has a bit for each offset.

    Args:
        part: SQL of a row's part.
        spans: By part, (first, last) of the offsets that rows may have, ascending and disjoint.
        wanted: By part, the wanted offsets.
    """
    moves: list[int] = []
    pages: list[int] = []
    words = [np.zeros(_PAGE // 64, "<i8")]
    for of, offsets in zip(spans, wanted, strict=True):
        for first, last in of:
            moves.append(len(pages) * _PAGE - first)
            for page in _bits(offsets.clip(first, last), first, last):
                if page.all() or not page.any():
                    pages.append(_ALL if page[0] else _NONE)
                else:
                    pages.append(len(words))
                    words.append(np.packbits(page, bitorder="little").view("<i8"))
    piece = piece_sql(part, "`offset`", [[last for _, last in of] for of in spans])
    at = f"(`offset` + {number_sql(piece, moves)})"
    page = number_sql(f"CAST(shiftright({at}, {_PAGE.bit_length() - 1}) AS INT)", pages, "INT")
    word = f"{page} * {_PAGE // 64} + CAST(shiftright({at}, 6) & {_PAGE // 64 - 1} AS INT)"
    bit = f"getbit({number_sql(word, np.concatenate(words).tolist())}, CAST({at} & 63 AS INT))"
    return f"CASE {page} WHEN {_ALL} THEN true WHEN {_NONE} THEN false ELSE {bit} = 1 END"


def _bits(offsets: OffsetRanges, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Returns pages of whether each offset from the first on is in a set.

    Offsets beyond the last one have no rows; they are as the last one is.
    """
    count = -(-(last - first + 1) // _PAGE)
    steps = np.zeros(count * _PAGE + 1, np.int8)
    firsts, lasts = offsets.bounds()
    steps[firsts - first] += 1
    steps[np.where(lasts == last, len(steps) - 1, lasts - first + 1)] -= 1
    bits: npt.NDArray[np.bool_] = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    return bits.reshape(count, _PAGE)

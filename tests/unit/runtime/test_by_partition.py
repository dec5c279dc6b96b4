"""The SQL of a read does not grow with the number of partitions, nor change with their offsets.

Only the contents of literal arrays may: generated code refers to them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.read.by_partition import (
    by_part_sql,
    order_sql,
    part_sql,
    task_sql,
    wanted_sql,
)
from coopconsume.runtime.read.hashing import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = (10, 0), (1_000, 10**12)


def _wanted(count: int, first: int) -> list[OffsetRanges]:
    return [OffsetRanges([(first + n, first + n + 9), (first + 99 + n,) * 2]) for n in range(count)]


def _part_of_one_topic(count: int, _first: int) -> str:
    return part_sql([("t", n) for n in range(count)])


def _part_of_many_topics(count: int, _first: int) -> str:
    sizes = part_sql([(f"t{n // 2}", n % 2) for n in range(count)])
    return re.sub(r", \d+\)", ", size)", sizes)  # of the hash table


def _texts_that_partitions_share(count: int, _first: int) -> str:
    return by_part_sql("part", ["1", "2"] * (count // 2))


def _order(count: int, first: int) -> str:
    return order_sql("part", _wanted(count, first))[0]


def _tasks_by_key_range(count: int, _first: int) -> str:
    pieces = []
    for n in range(count):
        halves = KeyRange(0, 10**17 + n).split(2)
        pieces.append(
            pieces_of([(half.first, half.last, slot) for slot, half in enumerate(halves)])
        )
    return task_sql("part", "key_hash", pieces)


def _tasks_by_slices(count: int, first: int) -> str:
    pieces = [
        pieces_of([(first + n, first + n + 4, 0), (first + n + 5, first + n + 9, 1)])
        for n in range(1, count + 1)
    ]
    return task_sql("part", "`offset`", pieces)


def _gaps(count: int, first: int) -> str:
    spans = [[(first + n, first + n + 99)] for n in range(count)]
    return wanted_sql("part", spans, _wanted(count, first))


@pytest.mark.parametrize(
    "sql",
    [
        _part_of_one_topic, _part_of_many_topics, _texts_that_partitions_share, _order,
        _tasks_by_key_range, _tasks_by_slices, _gaps,
    ],
)  # fmt: skip
def test_all_but_the_contents_of_arrays_is_the_same(sql: Callable[[int, int], str]) -> None:
    """For few partitions and for many, for low offsets and for high ones."""
    few, many = (re.sub(r"split\('[^']*', ','\)", "array", sql(*of)) for of in (FEW, MANY))
    assert few == many
    assert "array" in few

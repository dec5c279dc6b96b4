"""The Spark expressions equal the Python ones."""

from __future__ import annotations

import random

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from assignors import KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges
from coopconsume.runtime.read.hashing import (
    deal_hash_sql,
    in_ranges_sql,
    key_hash_sql,
    slot_sql,
    task_numbers,
)

pytestmark = pytest.mark.spark


def test_key_hashes_are_the_same_in_spark_and_in_python(spark, strict_words):
    """Random keys of 0 to 1,000 bytes, and none."""
    dice = random.Random(7)
    keys = [None, b"", *(dice.randbytes(dice.randrange(1_001)) for _ in range(2_000))]
    rows = [(None if k is None else bytearray(k), i * 7919) for i, k in enumerate(keys)]
    frame = spark.createDataFrame(rows, "key binary, `offset` bigint")
    found = frame.select(
        "offset",
        F.expr(key_hash_sql()).alias("key_hash"),
        F.expr(deal_hash_sql()).alias("deal"),
    )
    expected = spark.createDataFrame(
        [
            (o, key_hash(k), offset_hash(o) if k is None else key_hash(k))
            for (_, o), k in zip(rows, keys, strict=True)
        ],
        "`offset` bigint, key_hash bigint, deal bigint",
    )
    assert_df_equality(found, expected, ignore_nullable=True, ignore_row_order=True)


@pytest.fixture
def strict_words(spark):
    """SQL as strict about its words as it can be."""
    setting = "spark.sql.ansi.enforceReservedKeywords"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


def test_every_slot_gets_its_own_spark_task(spark):
    """The numbers chosen for tasks are sent to just these tasks by Spark's repartition."""
    for tasks in (1, 2, 3, 8, 16, 61):
        numbers = task_numbers(tasks)
        frame = spark.createDataFrame([(n,) for n in numbers], "n int")
        dealt = frame.repartition(tasks, F.col("n")).select("n", F.spark_partition_id())
        assert dict(dealt.collect()) == dict(zip(numbers, range(tasks), strict=True))


def test_a_hash_finds_its_range(spark):
    """The search over key ranges agrees with KeyRange.contains, holes give null."""
    pieces = KeyRange().split(7)
    ranges = [(piece, i) for i, piece in enumerate(pieces) if i != 3]
    edges = [e for p in pieces for e in (p.first, p.last)] + [random.Random(1).getrandbits(63)]
    frame = spark.createDataFrame([(e,) for e in edges], "h bigint")
    found = {
        r.h: r.slot for r in frame.selectExpr("h", f"{slot_sql('h', ranges)} AS slot").collect()
    }
    for edge in edges:
        (at,) = [i for i, piece in enumerate(pieces) if piece.contains(edge)]
        assert found[edge] == (None if at == 3 else at)


FAR = [
    *((n * 10**9, n * 10**9 + 4) for n in range(30)),
    *((10**12 + 3 * n, 10**12 + 3 * n) for n in range(100)),
    (10**12 + 10**5, 10**12 + 10**9),  # longer than a bit set may be
    *((10**12 + 10**9 + 3 * n, 10**12 + 10**9 + 3 * n) for n in range(1, 50)),
    (2**63 - 9, 2**63 - 1),
]


@pytest.mark.parametrize("pairs", [[], [(5, 5)], [(3, 9), (20, 40)], None, FAR])
def test_membership_of_offsets(spark, strict_words, pairs):
    """Few ranges are compared, many looked up in bit sets near each other; all are exact."""
    if pairs is FAR:
        wanted = OffsetRanges(pairs)
        ends = [end for pair in pairs for end in pair]
        around = sorted({o for end in ends for o in range(max(0, end - 2), min(end + 3, 2**63))})
    elif pairs is None:
        dice = random.Random(3)
        wanted = OffsetRanges.from_offsets([2**60 + dice.randrange(3_000) for _ in range(900)])
        assert wanted.range_count > 100
        around = range(2**60 - 70, 2**60 + 3_100)
    else:
        wanted, around = OffsetRanges(pairs), range(60)
    frame = spark.createDataFrame([(o,) for o in around], "`offset` bigint")
    found = [r.offset for r in frame.where(in_ranges_sql(wanted)).collect()]
    assert sorted(found) == [o for o in around if o in wanted]

"""The Spark expressions equal the Python ones."""

from __future__ import annotations

import itertools
import random

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from assignors import MAX_KEY_HASH, KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges
from coopconsume.runtime.read.by_partition import (
    RUN,
    by_part_sql,
    number_sql,
    order_sql,
    part_sql,
    task_sql,
    wanted_sql,
)
from coopconsume.runtime.read.hashing import (
    deal_hash_sql,
    in_ranges_sql,
    key_hash_sql,
    pieces_of,
    search_sql,
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
    ranges = [(piece.first, piece.last, i) for i, piece in enumerate(pieces) if i != 3]
    edges = [e for p in pieces for e in (p.first, p.last)] + [random.Random(1).getrandbits(63)]
    frame = spark.createDataFrame([(e,) for e in edges], "h bigint")
    searched = search_sql("h", pieces_of(ranges))
    found = {r.h: r.slot for r in frame.selectExpr("h", f"{searched} AS slot").collect()}
    for edge in edges:
        (at,) = [i for i, piece in enumerate(pieces) if piece.contains(edge)]
        assert found[edge] == (None if at == 3 else at)


@pytest.mark.parametrize("topics", [1, 2, 40])
def test_values_by_partition(spark, strict_words, topics):
    """Each row gets the values of its own partition: texts, numbers, tasks, wanted offsets."""
    dice = random.Random(topics)
    places = [(f"topic-{t}", p) for t in range(topics) for p in range(120 // topics)]
    places = dice.sample(places, len(places) - topics)
    texts = [dice.choice(["'a'", "'b'", "'c'"]) for _ in places]
    numbers = [dice.getrandbits(62) for _ in places]
    cuts = [sorted({dice.getrandbits(63) for _ in range(dice.randrange(5))}) for _ in places]
    ranges = [
        [(a, b - 1, dice.choice([0, 7, 300])) for a, b in itertools.pairwise(of)] for of in cuts
    ]
    spans, wanted = zip(*(_spans_and_wanted(dice) for _ in places), strict=True)
    rows = []
    for part, place in enumerate(places):
        ends = [o for first, last in spans[part] for o in (first, last)]
        inside = [dice.randint(*dice.choice(spans[part])) for _ in range(20)]
        inside += [o + d for o in wanted[part].bounds()[0].tolist() for d in (-1, 0)]
        inside = [o for o in inside if any(a <= o <= b for a, b in spans[part])]
        hashes = [0, MAX_KEY_HASH, *(cut + d for cut in cuts[part] for d in (-1, 0))]
        rows += [(*place, o, dice.choice(hashes)) for o in ends + inside]
    frame = spark.createDataFrame(rows, "topic string, partition int, `offset` bigint, h bigint")
    part = part_sql(places)
    found = frame.selectExpr(
        "*",
        f"{part} AS part",
        f"{by_part_sql(part, texts)} AS text",
        f"{number_sql(part, numbers)} AS number",
        f"{task_sql(part, 'h', list(map(pieces_of, ranges)))} AS task",
        f"{wanted_sql(part, spans, wanted)} AS wanted",
    ).collect()
    assert len(found) == len(rows)
    for row in found:
        at = places.index((row.topic, row.partition))
        assert row.part == at
        assert f"'{row.text}'" == texts[at]
        assert row.number == numbers[at]
        assert row.task == next((n for a, b, n in ranges[at] if a <= row.h <= b), None)
        assert row.wanted == (row.offset in wanted[at])


def _spans_and_wanted(dice):
    """Spans, some longer than a page, and offsets in them that are wanted."""
    start = dice.randrange(2**40)
    spans = [(start, start + dice.randrange(10_000))]
    for _ in range(dice.randrange(3)):
        first = spans[-1][1] + 1 + dice.randrange(10**9)
        spans.append((first, first + dice.randrange(10_000)))
    some = [
        (first, last) if dice.random() < 0.3 else
        tuple(sorted(dice.randint(first, last) for _ in range(2)))
        for first, last in spans
    ]  # fmt: skip
    singles = [dice.randint(*span) for span in spans for _ in range(dice.randrange(50))]
    return spans, OffsetRanges(some[: dice.randrange(4)]) | OffsetRanges.from_offsets(singles)


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


@pytest.mark.parametrize("far", [0, 2**62 - 2**40])
def test_partitions_are_sorted_side_by_side(spark, strict_words, far):
    """Each by ascending offsets, as far through it as the others; also where one has a wide gap."""
    dice = random.Random(3)
    wanted = [
        OffsetRanges([(0, 99)]),
        OffsetRanges([(far + 7, far + 9), (far + 1_000, far + 10_000)]),
        OffsetRanges([(5, 5), (2**33, 2**33)]) if far else OffsetRanges([(5, 5)]),
    ]
    rows = [(part, o) for part, offsets in enumerate(wanted) for o in offsets.offsets().tolist()]
    dice.shuffle(rows)
    by = order_sql("part", wanted)
    assert len(by) == (3 if far else 1)
    frame = spark.createDataFrame(rows, "part int, `offset` bigint").coalesce(1)
    found = [tuple(row) for row in frame.sortWithinPartitions(*map(F.expr, by)).collect()]
    sizes = [offsets.last - offsets.first + 1 for offsets in wanted]

    def progress(row):
        part, offset = row
        return (offset - wanted[part].first) / sizes[part]

    assert sorted(found) == sorted(rows)
    for part in range(3):
        offsets = [offset for of, offset in found if of == part]
        assert offsets == sorted(offsets)
    step = max(2**-20, RUN / (max(sizes) - RUN))
    assert all(
        progress(before) <= progress(after) + step for before, after in itertools.pairwise(found)
    )


def test_some_offsets_of_a_partition_come_one_after_another(spark, strict_words):
    """A slot changes the partition once for so many, not with each record."""
    wanted = [OffsetRanges([(0, 999)]), OffsetRanges([(5_000, 5_999)])]
    rows = [(part, o) for part, offsets in enumerate(wanted) for o in offsets.offsets().tolist()]
    frame = spark.createDataFrame(rows, "part int, `offset` bigint").coalesce(1)
    by = map(F.expr, order_sql("part", wanted))
    parts = [row.part for row in frame.sortWithinPartitions(*by).collect()]
    runs = [len(list(run)) for _, run in itertools.groupby(parts)]
    assert len(runs) == 2 * (1_000 // RUN)
    assert max(runs) <= RUN + 2

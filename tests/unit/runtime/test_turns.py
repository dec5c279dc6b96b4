"""Which partitions of a wide topic a batch reads."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan import BatchPlan, Limits, Partition, plan_batch
from coopconsume.runtime.plan.turns import FEWEST, LONG, MOST
from coopconsume.worker.report import PartitionReport, pack_offsets
from tests.partitions import make_partition


def _partitions(count: int, records: int, slots: int = 1) -> list[Partition]:
    ranges = KeyRange().split(slots)
    partitions = [
        make_partition(
            n, "t", n, stable=0, committed=OffsetRanges(), ordering="key", whole=True,
            slots=[(slot, (piece,)) for slot, piece in enumerate(ranges)],
        )
        for n in range(count)
    ]  # fmt: skip
    for partition in partitions:
        partition.ledger.end = records
    return partitions


def _run(partitions: list[Partition], limits: Limits) -> list[BatchPlan]:
    """Plans batch after batch, does all records of each, until nothing is left."""
    plans = []
    for now in itertools.count():
        plan = plan_batch(partitions, [0], float(now), limits)
        if plan is None:
            return plans
        plans.append(plan)
        for index, wanted in plan.wanted.items():
            done = pack_offsets(pa.array(wanted.offsets()))
            partitions[index].slots.reported(0, PartitionReport(done), float(now))
    raise AssertionError


@pytest.mark.parametrize(("count", "records"), [(1, 500), (31, 50), (300, 50), (1_000, 20)])
def test_a_batch_of_a_wide_topic_reads_some_partitions_in_turn(count: int, records: int) -> None:
    """Each partition is read once before any is read twice, and each record is read once."""
    partitions = _partitions(count, records)
    plans = _run(partitions, Limits(1_000_000, 1_000))
    assert [len(plan.wanted) for plan in plans[:-1]] == [MOST] * (len(plans) - 1)
    assert len(plans) == -(-count // MOST)
    read = Counter(index for plan in plans for index in plan.wanted)
    assert read == dict.fromkeys(range(count), 1)
    assert all(one.ledger.first_open() == records for one in partitions)


def test_turns_are_fair_where_new_records_come_all_the_time() -> None:
    """A partition waits for one round of the others, whatever these have got meanwhile."""
    partitions = _partitions(300, 10)
    last_turn = dict.fromkeys(range(300), 0)
    for now in range(30):
        plan = plan_batch(partitions, [0], float(now), Limits(1_000, 1_000))
        assert plan is not None
        assert now - min(last_turn.values()) <= 300 // FEWEST + 1
        for index, wanted in plan.wanted.items():
            last_turn[index] = now
            partitions[index].slots.reported(
                0, PartitionReport(pack_offsets(pa.array(wanted.offsets()))), 0.0
            )
            partitions[index].ledger.end += 10


def test_where_much_is_left_each_read_is_long() -> None:
    """A batch has as many partitions as it has long reads."""
    plan = plan_batch(_partitions(1_000, 10**7), [0], 0.0, Limits(2_000_000, 1_000))
    assert plan is not None
    assert all(len(wanted) >= LONG // 2 for wanted in plan.wanted.values())


def test_a_batch_has_partitions_for_all_handlers() -> None:
    """Each partition may have only one key: with many handlers, a batch has many partitions."""
    plan = plan_batch(_partitions(1_000, 10**6), [0], 0.0, Limits(10_000, 1_000, handlers=200))
    assert plan is not None
    assert len(plan.wanted) == 800


def test_a_batch_has_no_more_offsets_than_its_window() -> None:
    """Also where there are more partitions than it may have offsets."""
    plans = _run(_partitions(40, 2), Limits(5, 1_000))
    assert all(plan.span <= 5 for plan in plans)
    assert sum(plan.span for plan in plans) == 80


def test_a_batch_goes_on_to_partitions_that_have_work() -> None:
    """A slot that looks for a record that ends its worker starts nothing of many partitions."""
    partitions = _partitions(2 * MOST + 1, 10)
    for partition in partitions[: 2 * MOST]:
        partition.cursors[0].only = OffsetRanges()
    plan = plan_batch(partitions, [0], 0.0, Limits(1_000_000, 1_000))
    assert plan is not None
    assert list(plan.wanted) == [2 * MOST]

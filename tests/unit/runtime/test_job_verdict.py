"""The verdict of a job, from its partitions and what it waits for."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.group.owned import Failed
from coopconsume.kafka.retention import ExpiringOffsets, RetentionForecast
from coopconsume.monitoring.verdict import Pace, Verdict
from coopconsume.runtime.plan import Partition
from coopconsume.runtime.status.progress import describe
from coopconsume.runtime.status.retention_watch import open_offsets
from coopconsume.runtime.status.verdict import job_verdict
from coopconsume.runtime.status.waiting import WaitingFor
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.partitions import make_partition

NOW = 1_000.0


def partition(end: int = 10, number: int = 0, **more: Any) -> Partition:
    """Returns a partition of a job, from offset 0 to an end."""
    slots = [(0, (KeyRange(),))]
    found = make_partition(
        0, "orders", number, stable=0, committed=OffsetRanges(), slots=slots, whole=True,
        **{"ordering": "key"} | more,
    )  # fmt: skip
    found.ledger.end = end
    return found


def failed(delay: float, behind: int = 0, attempts: int = 4) -> Partition:
    """Returns a partition whose first record has failed, with some records behind it."""
    found = partition()
    share = found.cursors[0]
    share.dispatched, share.next_position = OffsetRanges([(0, 9)]), 10
    failure = Failure(0, 7, b"customer-7", attempts, delay, "ValueError: no luck")
    done = pack_offsets(pa.array(range(1 + behind, 10), pa.int64()))
    blocked = [(offset, 7) for offset in range(1, 1 + behind)]
    found.slots.reported(0, PartitionReport(done, None, [failure], blocked), NOW)
    found.commit_answered(found.ledger.to_commit, 0, OffsetRanges())
    return found


def in_doubt() -> Partition:
    """Returns a partition in which a former owner may still work."""
    found = partition()
    found.mark_in_doubt(KeyRange(), NOW + 9)
    return found


def stocked() -> Partition:
    """Returns a partition that members share by chunks, with a parked record."""
    found = partition(leads=True, ordering="none")
    found.chunks.pending = 1
    found.chunks._parked = [Failed(3, 7, 4, math.inf, "no luck", key="k")]
    return found


def verdict(*partitions: Partition, waiting: WaitingFor | None = None, **more: Any) -> Verdict:
    """Returns the verdict of a job on some partitions."""
    described = [describe(one, NOW) for one in partitions]
    return job_verdict("shop", partitions, described, waiting, **more)


@pytest.mark.parametrize(
    ("partitions", "reason", "sentence"),
    [
        ((), "done", "All done"),
        ((partition(0),), "done", "All done"),
        ((partition(), partition(5)), "working", "Working: 15 records not done"),
        (
            (partition(), failed(8.0, 2)), "failed",
            "Held by customer-7: ValueError: no luck (attempt 4, next in 8 s)",
        ),
        # No call of it has counted, as while a service is down.
        (
            (partition(), failed(8.0, 2, 0)), "failed",
            "Held by customer-7: ValueError: no luck (postponed, next in 8 s)",
        ),
        (
            (failed(math.inf, 2), failed(math.inf)), "decision",
            "2 keys wait for your decision: 2 records behind them",
        ),
        ((stocked(),), "decision", "1 record waits for your decision"),
    ],
)  # fmt: skip
def test_its_partitions_decide(
    partitions: tuple[Partition, ...], reason: str, sentence: str
) -> None:
    """A job knows its failed records, and how many wait behind them."""
    found = verdict(*partitions)
    assert (found.reason, found.sentence) == (reason, sentence)


def test_a_lost_member_is_named_with_its_partitions() -> None:
    """Until its handlers can no longer run."""
    found = verdict(in_doubt(), partition(0, 1))
    assert (found.reason, found.level) == ("lostMember", "waiting")
    assert found.sentence.endswith("for 9 s: it may still process key ranges of orders-0")


@pytest.mark.parametrize(
    ("reason", "verdict_reason"),
    [
        ("group", "rebalancing"), ("handOver", "rebalancing"), ("paused", "stalled"),
        ("circuitBreaker", "stalled"), ("commitLog", "stalled"), ("kafka", "stalled"),
        ("handlers", "working"), ("stop", "working"), ("newRecords", "working"),
        ("decision", "working"), ("otherMembers", "working"),
    ],
)  # fmt: skip
def test_what_it_waits_for_counts_unless_it_belongs_to_its_work(
    reason: Any, verdict_reason: str
) -> None:
    """A handler that runs is work; a pause is not."""
    found = verdict(partition(), waiting=WaitingFor(reason, "paused by pause()"))
    assert found.reason == verdict_reason
    assert (found.sentence == "Paused by pause()") == (verdict_reason == "stalled")


def test_what_retention_deletes_before_it_is_done_comes_first() -> None:
    """Unless the job is faster; the rules are those of a group."""
    near = ExpiringOffsets(3, 60.0)
    found = verdict(partition(), failed(8.0), expiring=near)
    assert (found.reason, found.severity) == ("retention", 4)
    assert verdict(partition(), expiring=near, pace=Pace(5.0, 0.0, 30.0)).reason == "working"


def test_a_forecast_counts_what_is_not_done_now() -> None:
    """Of the partitions that the job still has, and less time is left than when it was made."""
    began, done = partition(), failed(8.0)
    done.index, done.partition = 1, 1
    places = [("orders", number) for number in (0, 1, 2)]
    forecast = RetentionForecast(
        {900.0: {places[0]: 4, places[2]: 9}, 300.0: {places[1]: 6}}
    )  # fmt: skip
    assert forecast.expiring(open_offsets([began, done]), 60.0) == ExpiringOffsets(4 + 1, 840.0)
    assert forecast.expiring(open_offsets([done]), 400.0) == ExpiringOffsets(1, 0.0)
    assert forecast.expiring(open_offsets([partition(0)])) is None

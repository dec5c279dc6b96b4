"""The verdict of a job, from its partitions and what it waits for."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.group.owned import Failed
from coopconsume.kafka.retention import ExpiringOffsets, RetentionForecast
from coopconsume.monitoring.verdict import Pace, RecordPlace, Verdict
from coopconsume.runtime.plan import Limits, Partition
from coopconsume.runtime.status.progress import describe
from coopconsume.runtime.status.retention_watch import open_offsets
from coopconsume.runtime.status.verdict import job_verdict
from coopconsume.runtime.status.waiting import OldestCall, WaitingFor
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.partitions import make_partition
from tests.times import with_and_without_date

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


def numbered(one: Partition, number: int) -> Partition:
    """Returns a partition with another number."""
    one.partition = number
    return one


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


def verdict(
    *partitions: Partition, waiting: WaitingFor | None = None, now: float = NOW, **more: Any
) -> Verdict:
    """Returns the verdict of a job on some partitions."""
    described = [describe(one, now) for one in partitions]
    return job_verdict("shop", partitions, described, waiting, now=now, **more)


def _try_again(found: Partition, attempts: int, delay: float, now: float) -> None:
    """Has the first record of a partition fail again."""
    assert found.slots.plan([0], now, Limits(100, 100))[0].pairs()[0] == (0, 0)
    failure = Failure(0, 7, b"customer-7", attempts, delay, "ValueError: no luck")
    found.slots.reported(0, PartitionReport(None, None, [failure], []), now)


def _age(found: Verdict) -> int:
    """Returns for how many seconds it holds."""
    assert found.since is not None
    return round((datetime.now(UTC) - found.since).total_seconds())


@pytest.mark.parametrize(
    ("partitions", "reason", "sentence"),
    [
        ((), "done", "All done"),
        ((partition(0),), "done", "All done"),
        ((partition(), partition(5)), "working", "Working: 15 records not done"),
        (
            (partition(), failed(8.0, 2)), "failed",
            "Held by customer-7 (orders-0@0){since}: ValueError: no luck (attempt 4, next in 8 s)",
        ),
        # Nothing is known to wait behind it.
        (
            (partition(), failed(8.0)), "failed",
            ("Failed, with nothing behind it so far: customer-7 (orders-0@0){since}: ValueError: "
            "no luck (attempt 4, next in 8 s)"),
        ),
        # No call of it has counted, as while a service is down.
        (
            (partition(), failed(8.0, 2, 0)), "failed",
            "Held by customer-7 (orders-0@0){since}: ValueError: no luck (postponed, next in 8 s)",
        ),
        (
            (failed(math.inf, 2), failed(math.inf)), "decision",
            ("2 keys wait for your decision{since}: 2 records behind them, 2 of these behind "
            "customer-7 (orders-0@0)"),
        ),
        # The one that holds most is named, not the first one.
        (
            (failed(math.inf, 1), numbered(failed(math.inf, 3), 1)), "decision",
            ("2 keys wait for your decision{since}: 4 records behind them, 3 of these behind "
            "customer-7 (orders-1@0)"),
        ),
        # Of a record that was read alone, as after a restart, it is not known what is behind it.
        (
            (partition(), failed(math.inf)), "decision",
            "1 key waits for your decision{since}: customer-7 (orders-0@0)",
        ),
        (
            (failed(math.inf),), "decision",
            "1 key waits for your decision{since}: customer-7 (orders-0@0), nothing behind it",
        ),
        ((stocked(),), "decision", "1 record waits for your decision: k (orders-0@3)"),
    ],
)  # fmt: skip
def test_its_partitions_decide(
    partitions: tuple[Partition, ...], reason: str, sentence: str
) -> None:
    """A job knows its failed records, and how many wait behind them."""
    found = verdict(*partitions)
    times = [] if found.since is None else with_and_without_date(found.since)
    assert found.reason == reason
    assert found.sentence in {sentence.format(since=f" since {at}") for at in times} | {sentence}
    assert (found.since is not None) == ("{since}" in sentence)


def test_since_when_a_record_fails_outlasts_its_attempts_and_its_job() -> None:
    """It is when it failed first; of one that the commit log has, it is what that has."""
    found = failed(0.0)
    _try_again(found, 5, 9.0, NOW + 30)
    known = verdict(found, now=NOW + 40)
    assert "attempt 5" in known.sentence
    assert _age(known) == 40
    for since, expected in ((NOW - 60, 60), (None, None)):
        later = partition()
        later.restore([Failed(0, 7, 5, NOW + 90, "no luck", since=since)])
        shown = verdict(later)
        assert (None if shown.since is None else _age(shown)) == expected


def test_since_when_a_key_waits_is_when_its_record_was_parked() -> None:
    """Not when it failed first; a record that is tried again by a decision fails since then."""
    found = failed(0.0)
    _try_again(found, 5, math.inf, NOW + 30)
    parked = verdict(found, failed(math.inf), now=NOW + 40)
    assert (parked.reason, _age(parked)) == ("decision", 40)
    assert _age(verdict(found, now=NOW + 40)) == 10
    assert verdict(found, stocked(), now=NOW + 40).since is None, "that of one is not known"
    found.replay(0, NOW + 50)
    _try_again(found, 1, 9.0, NOW + 60)
    assert _age(verdict(found, now=NOW + 70)) == 20


@pytest.mark.parametrize(
    ("reason", "seconds", "expected"),
    [("handlers", 26.0, "stalled"), ("handlers", 24.0, "working"), ("newRecords", 26.0, "working")],
)
def test_a_call_that_runs_for_long_is_named_if_nothing_else_is_done(
    reason: Any, seconds: float, expected: str
) -> None:
    """Handlers take a second or two; the job waits for one where it commits nothing."""
    call, waiting = OldestCall("orders", 0, 3, seconds), WaitingFor(reason, "waiting for handlers")
    found = verdict(partition(), waiting=waiting, call=call)
    assert found.reason == expected
    if found.reason == "stalled":
        assert found.sentence.startswith("The handler of orders-0@3 runs since ")
        assert (_age(found), found.records) == (26, (RecordPlace("orders", 0, 3),))
    assert verdict(partition(), waiting=waiting).reason == "working", "no call is known"


def test_a_lost_member_is_named_with_its_partitions() -> None:
    """Until its handlers can no longer run."""
    found = verdict(in_doubt(), partition(0, 1))
    assert (found.reason, found.level) == ("lostMember", "waiting")
    assert " (9 s): it did not hand over its key ranges of orders-0, and its" in found.sentence


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
    assert ("doctor" in found.command) == (reason in ("kafka", "commitLog"))


def test_what_retention_deletes_before_it_is_done_comes_first() -> None:
    """Unless the job is faster; the rules are those of a group."""
    near = ExpiringOffsets(3, 60.0, (("orders", 0),))
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
    assert forecast.expiring(open_offsets([began, done]), 60.0) == ExpiringOffsets(
        4 + 1, 840.0, (places[0], places[1])
    )
    assert forecast.expiring(open_offsets([done]), 400.0) == ExpiringOffsets(1, 0.0, (places[1],))
    assert forecast.expiring(open_offsets([partition(0)])) is None

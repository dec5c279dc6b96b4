"""What a job says that it waits for."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.runtime.plan import Partition
from coopconsume.runtime.waiting import BatchFacts, Facts, waiting_for
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets


def partition(end=10, *, max_ranges=1_000, delay=None, doubt=0.0) -> Partition:
    """Offsets up to an end; with a delay, offset 0 has failed and the rest is done."""
    found = Partition(
        0, "orders", 0, stable=0, committed=OffsetRanges(), shares=[(0, (KeyRange(),))],
        ordering="key", whole=True, max_ranges=max_ranges,
    )  # fmt: skip
    found.end = end
    if delay is not None:
        share = found.shares[0]
        share.flying, share.next_position = OffsetRanges([(0, end - 1)]), end
        failed = Failure(0, 7, b"k", 2, delay, "no luck")
        done = pack_offsets(pa.array(range(1, end), pa.int64()))
        found.reported(0, PartitionReport(done, None, [failed]), 0.0)
    if doubt:
        found.doubt(KeyRange(), doubt)
    return found


BATCH = BatchFacts(3, 9.0, 4, 4, 6.0)
#: By the reason that each must have: the facts, and what the sentence says.
CASES = {
    "group": (Facts(joining="waiting for group shop"), "waiting for group shop"),
    "handOver": (Facts(hand_over=5.0, batches=[BATCH]), "(5 s), by drainTimeout"),
    "stop": (Facts(is_stopping=True, batches=[BATCH]), "the last commit"),
    "paused": (Facts(is_paused=True, batches=[BATCH]), "running handlers go on"),
    "handlers": (Facts(batches=[BATCH]), "nothing reported for 6 s, batch 3 runs for 9 s"),
    "slots": (
        Facts(batches=[BatchFacts(3, 9.0, 4, 0, 9.0, 0)]),
        "none of 4 slots of batch 3 has started for 9 s. Spark runs no task of it",
    ),
    "circuitBreaker": (Facts(breaker=30.0, breaker_reason="503"), "(30 s): 503"),
    "commitLog": (Facts(commit_log="no answer"), "the commit table: no answer"),
    "lostMember": (Facts(partitions=[partition(doubt=70.0)]), "(70 s): it did not hand over"),
    "lostSlots": (Facts(barred={1: 8.0}), "1 lost slot until"),
    "trigger": (Facts(partitions=[partition()], next_trigger=4.0), "interval until"),
    "limit": (Facts(partitions=[partition(max_ranges=1, delay=5.0)]), "maxNumRanges is 1"),
    "retry": (Facts(partitions=[partition(delay=5.0)]), "(5 s), 1 pending"),
    "decision": (Facts(partitions=[partition(delay=math.inf)]), "coopconsume dead-letters"),
    "newRecords": (Facts(partitions=[partition(0)]), "new records"),
    "nextBatch": (Facts(partitions=[partition()]), "next batch"),
}


@pytest.mark.parametrize("reason", CASES)
def test_each_wait_has_a_reason_and_a_sentence(reason):
    """The sentence says until when, if that is known."""
    facts, said = CASES[reason]
    found = waiting_for(facts, 0.0)
    assert found.reason == reason
    assert said in found.message
    assert found.describe() == {"reason": reason, "message": found.message}


def test_slots_that_have_started_are_not_missing():
    """With some slots at work, the others are counted; without a channel nothing is known."""
    some = BatchFacts(3, 9.0, 4, 1, 6.0)
    assert waiting_for(Facts(batches=[some]), 0.0).message.endswith("3 slots not started")
    unknown = BatchFacts(3, 9.0, 4, None, 9.0)
    assert waiting_for(Facts(batches=[unknown]), 0.0).reason == "handlers"
    reading = BatchFacts(3, 9.0, 4, 0, 9.0, 2)
    assert "Spark runs 2 tasks that read from Kafka" in (
        waiting_for(Facts(batches=[reading]), 0.0).message
    )

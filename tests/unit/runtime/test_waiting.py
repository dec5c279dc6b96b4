"""What a job says that it waits for."""

from __future__ import annotations

import math
import threading
import types
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.errors import InvalidOption
from coopconsume.group.owned import Failed
from coopconsume.query import CooperativeQuery
from coopconsume.runtime.dispatch.run import Run
from coopconsume.runtime.plan import Limits, Partition
from coopconsume.runtime.poll.positions import PollPosition
from coopconsume.runtime.poll.retry_buffer import RetryBuffer
from coopconsume.runtime.poll.session import PollSession
from coopconsume.runtime.realtime.run_job import plan_run
from coopconsume.runtime.status.batches import batch_facts, longest_silence
from coopconsume.runtime.status.waiting import (
    BatchFacts,
    JobFacts,
    OldestCall,
    PollFacts,
    poll_waits_for,
    waiting_for,
)
from coopconsume.subscription import QueryRun
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.partitions import make_partition

#: Nothing asks Spark once a slot has started.
NO_SPARK: Any = None


def partition(end=10, *, max_ranges=1_000, delay=None, doubt=0.0) -> Partition:
    """Offsets up to an end; with a delay, offset 0 has failed and the rest is done."""
    found = make_partition(
        0, "orders", 0, stable=0, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
        ordering="key", whole=True, max_ranges=max_ranges,
    )  # fmt: skip
    found.ledger.end = end
    if delay is not None:
        share = found.cursors[0]
        share.dispatched, share.next_position = OffsetRanges([(0, end - 1)]), end
        failed = Failure(0, 7, b"k", 2, delay, "no luck")
        done = pack_offsets(pa.array(range(1, end), pa.int64()))
        found.slots.reported(0, PartitionReport(done, None, [failed]), 0.0)
    if doubt:
        found.mark_in_doubt(KeyRange(), doubt)
    return found


BATCH = BatchFacts(3, 9.0, 4, 4, 6.0)
#: By the reason that each must have: the facts, and what the sentence says.
CASES = {
    "group": (JobFacts(joining="waiting for group shop"), "waiting for group shop"),
    "handOver": (JobFacts(hand_over=5.0, batches=[BATCH]), "(5 s), by drainTimeout"),
    "stop": (JobFacts(is_stopping=True, batches=[BATCH]), "the last commit"),
    "paused": (JobFacts(is_paused=True, batches=[BATCH]), "running handlers go on"),
    "handlers": (JobFacts(batches=[BATCH]), "nothing reported for 6 s, batch 3 runs for 9 s"),
    "slots": (
        JobFacts(batches=[BatchFacts(3, 9.0, 4, 0, 9.0, 0)]),
        "none of 4 slots of batch 3 has started for 9 s. Spark runs no task of it",
    ),
    "kafka": (
        JobFacts(kafka="no broker answers", batches=[BatchFacts(3, 9.0, 4, 0, 9.0, 0)]),
        "waiting for Kafka: no broker answers",
    ),
    "circuitBreaker": (JobFacts(breaker=30.0, breaker_reason="503"), "(30 s): 503"),
    "commitLog": (
        JobFacts(unanswered="for 12 s: connection refused", batches=[BATCH], kafka="no broker"),
        "the commit table has not answered for 12 s: connection refused",
    ),
    "lostMember": (JobFacts(partitions=[partition(doubt=70.0)]), "next time, lower leaseGrace"),
    "lostSlots": (JobFacts(barred={1: 8.0}), "1 lost slot until"),
    "failedSlots": (
        JobFacts(failing={0: (2.0, "no answer"), 1: (1.0, "no")}),
        "2 failed slots again until",
    ),
    "trigger": (JobFacts(partitions=[partition()], next_trigger=4.0), "interval until"),
    "limit": (JobFacts(partitions=[partition(max_ranges=1, delay=5.0)]), "maxNumRanges is 1"),
    "retry": (JobFacts(partitions=[partition(delay=5.0)]), "(5 s), 1 pending"),
    "decision": (JobFacts(partitions=[partition(delay=math.inf)]), "coopconsume dead-letters"),
    "newRecords": (JobFacts(partitions=[partition(0)]), "new records"),
    "nextBatch": (JobFacts(partitions=[partition()]), "next batch"),
}


@pytest.mark.parametrize("reason", CASES)
def test_each_wait_has_a_reason_and_a_sentence(reason):
    """The sentence says until when, if that is known."""
    facts, said = CASES[reason]
    found = waiting_for(facts, 0.0)
    assert found.reason == reason
    assert said in found.message
    assert found.describe() == {"reason": reason, "message": found.message}


def test_a_parked_record_at_the_limit_says_that_nothing_more_is_read():
    """The sentence has the option and the record; where nothing is left to read, only that."""
    one = partition(max_ranges=1, delay=math.inf)
    assert waiting_for(JobFacts(partitions=[one]), 0.0).reason == "decision"
    one.ledger.end = 20
    one.slots.plan([0], 0.0, Limits(1000, 1000))
    found = waiting_for(JobFacts(partitions=[one]), 0.0)
    assert found.reason == "limit"
    assert "maxNumRanges is 1: nothing new is read until gaps are done" in found.message
    assert "offset 0, which is parked until an operator replays or discards it" in found.message
    one.discard(0, 1.0)
    one.commit_answered(one.ledger.to_commit, 10, OffsetRanges())
    assert one.slots.plan([0], 1.0, Limits(1000, 1000)) == {0: OffsetRanges([(10, 19)])}


def test_a_batch_that_has_just_begun_is_no_trouble_with_spark():
    """A job that only retries has nothing committed for long, and a new batch every few seconds."""
    batches = [BatchFacts(3, 0.4, 1, 0, 0.4, 0)]
    assert (
        waiting_for(JobFacts(batches=batches), 0.0).message == "waiting for Spark: batch 3 begins"
    )


@pytest.mark.parametrize(
    ("batch", "reason", "said"),
    [
        (BatchFacts(0, 4.0, 2, 0, 4.0, 0), "slots", "starting: Spark starts 2 slots; the first "),
        (BatchFacts(0, 1.0, 1, 0, 1.0, 0), "slots", "starting: Spark starts 1 slot; the first "),
        (BatchFacts(0, 9.0, 2, 1, 9.0), "handlers", "starting: 1 of 2 slots works on its first "),
        (BatchFacts(0, 9.0, 2, None, 9.0), "handlers", "starting: 2 of 2 slots work on their "),
    ],
)
def test_the_first_lines_of_a_job_say_what_starts(batch, reason, said):
    """Workers start and code is generated: for half a minute that is no trouble."""
    found = waiting_for(JobFacts(batches=[batch], is_starting=True), 0.0)
    assert found.reason == reason
    assert found.message.startswith(said)
    assert found.message.endswith(f"batch was given to Spark {batch.age:.0f} s ago")
    later = waiting_for(JobFacts(batches=[replace(batch, age=31.0)], is_starting=True), 0.0)
    assert later.message.startswith("waiting for ")
    known = JobFacts(batches=[batch], is_starting=False)
    assert waiting_for(known, 0.0).message.startswith("waiting for ")
    called = replace(batch, started=1, oldest_call=OldestCall("orders", 0, 7, 8.0))
    named = waiting_for(JobFacts(batches=[called], is_starting=True), 0.0)
    assert "that of orders-0@7 runs for 8 s" in named.message


def test_the_handler_call_that_takes_long_is_named():
    """Of several batches the oldest one."""
    calls = [OldestCall("orders", 1, 58, 42.0), OldestCall("orders", 0, 7, 8.0), None]
    batches = [BatchFacts(n, 50.0, 1, 1, 6.0, oldest_call=call) for n, call in enumerate(calls)]
    said = waiting_for(JobFacts(batches=batches), 0.0).message
    assert "that of orders-1@58 runs for 42 s, nothing reported for 6 s" in said


def test_slots_that_have_started_are_not_missing():
    """With some slots at work, the others are counted; without a channel nothing is known."""
    some = BatchFacts(3, 9.0, 4, 1, 6.0)
    assert waiting_for(JobFacts(batches=[some]), 0.0).message.endswith("3 slots not started")
    unknown = BatchFacts(3, 9.0, 4, None, 9.0)
    assert waiting_for(JobFacts(batches=[unknown]), 0.0).reason == "handlers"
    reading = BatchFacts(3, 9.0, 4, 0, 9.0, 2)
    assert "Spark runs 2 tasks that read from Kafka" in (
        waiting_for(JobFacts(batches=[reading]), 0.0).message
    )


#: By the reason that each must have: the facts of `poll`, and what the sentence says.
OF_POLL = {
    "handOver": (PollFacts("g", hand_over=True, partitions=1), "call commit, retry, reject or"),
    "group": (PollFacts("g", joining="waiting for group shop"), "waiting for group shop"),
    "commitLog": (
        PollFacts("g", partitions=1, unanswered="for 12 s: no route"),
        "answered for 12 s: no route",
    ),
    "lostMember": (PollFacts("g", partitions=2, in_doubt={"t-0": 0.0, "t-1": 9.0}), "of t-1, and"),
    "paused": (PollFacts("g", partitions=2, paused=1, next_due=5.0), "1 of 2 partitions paused"),
    "limit": (PollFacts("g", partitions=1, at_limit=["t-0"], next_due=5.0), "of maxNumRanges"),
    "retry": (PollFacts("g", partitions=1, next_due=5.0, pending=3, parked=1), "(5 s), 3 pending"),
    "decision": (PollFacts("g", partitions=1, pending=1, parked=1), "coopconsume dead-letters"),
    "newRecords": (PollFacts("g", partitions=1), "waiting for new records"),
}


def test_a_poll_with_too_many_waiting_keys_says_so():
    """That is another limit than that of ranges."""
    found = poll_waits_for(PollFacts("g", partitions=1, full=["t-0"], next_due=5.0))
    assert (found.reason, "many keys of t-0 wait" in found.message) == ("limit", True)


@pytest.mark.parametrize("reason", OF_POLL)
def test_each_wait_of_a_poll_has_a_reason_and_a_sentence(reason):
    """As jobs have; the first thing that holds a poll back counts."""
    facts, said = OF_POLL[reason]
    found = poll_waits_for(facts)
    assert found.reason == reason
    assert said in found.message


def test_a_member_without_key_ranges_says_so():
    """Others of the group have them all."""
    found = poll_waits_for(PollFacts("shop"))
    assert (found.reason, "other members of group shop" in found.message) == ("group", True)


def test_a_poll_waits_for_the_key_that_comes_again_first():
    """A key comes again when the last of its records is due; a parked one never does by itself."""
    retries = RetryBuffer(
        [Failed(0, 7, 1, 50.0, ""), Failed(1, 7, 1, 90.0, ""), Failed(2, 8, 1, 70.0, "")]
    )
    assert retries.next_due() == 70.0
    retries.hold_back(2, 8, math.inf, "parked")
    assert retries.next_due() == 90.0
    retries.hold_back(1, 7, math.inf, "parked")
    assert retries.next_due() is None


def test_what_polling_knows_is_counted():
    """Paused partitions, waiting and parked records; open answers while the group rebalances."""

    class FakeAssignment:
        shares = ()
        owned = {}  # noqa: RUF012
        store = SimpleNamespace(unanswered="")

    session, assignment = PollSession(), FakeAssignment()
    session.begin(assignment)
    retries = RetryBuffer([Failed(0, 7, 1, 50.0, ""), Failed(1, 8, 1, math.inf, "")])
    polled = OffsetRanges([(4, 4)])
    place = PollPosition(None, polled=polled, paused=True, retries=retries)
    session.places = {("t", 0): place}
    assert session.facts(assignment, {}, "", "g", 40.0) == PollFacts(
        "g", partitions=1, paused=1, next_due=10.0, pending=2, parked=1
    )
    session.hand_over(0.0)
    assert session.facts(assignment, {}, "", "g", 40.0).hand_over
    with session.polling():
        assert not session.facts(assignment, {}, "", "g", 40.0).hand_over
    place.polled = OffsetRanges()
    assert not session.facts(assignment, {}, "", "g", 40.0).hand_over
    session.forget()
    assert session.facts(None, {}, "joining", "g", 40.0) == PollFacts("g", "joining")
    session.begin(assignment)
    assert session.facts(assignment, {}, "joining", "g", 40.0) == PollFacts("g")


def test_a_query_does_not_wait_for_itself():
    """Its listeners are called in its own thread; to them it says so."""
    ended = threading.Event()
    ended.set()
    job = types.SimpleNamespace(
        is_in_its_thread=True, ended=ended, error=None, wait_for_available=lambda: None
    )
    query = CooperativeQuery(QueryRun(job, None), {}, None, None)
    for wait in (query.awaitTermination, query.processAllAvailable):
        with pytest.raises(InvalidOption, match="called by a listener of the query"):
            wait()
    job.is_in_its_thread = False
    assert query.awaitTermination(1) is True
    query.processAllAvailable()


def run_of(*partitions: Partition, at: float = 0.0) -> Run:
    """A real-time run of one slot."""
    epoch_state: Any = types.SimpleNamespace(partitions=partitions)
    plan = plan_run(partitions, [0])
    assert plan is not None
    kind: Any = types.SimpleNamespace(is_real_time=True)
    return Run(1, kind, plan, epoch_state, at, at, "tag")


def test_a_commit_waits_for_slots_of_batches_and_not_of_real_time() -> None:
    """Slots of a real-time run report just before a commit, as their driver says."""
    run = run_of(partition())
    run.tasks[0].seq = 1
    assert not run.reports_more
    kind: Any = run.kind
    kind.is_real_time = False
    assert run.reports_more


def reasons(run: Run, now: float) -> tuple[str, float]:
    """What a job with a real-time run waits for, and how long its slot is silent."""
    leases: Any = types.SimpleNamespace(has_met=lambda _at: True)
    found = batch_facts([run], leases, NO_SPARK, "billing", now)
    facts = JobFacts(partitions=run.partitions, batches=found)
    return waiting_for(facts, now).reason, longest_silence([run], now)


def read_by_slot(*retrying: Failure, done: tuple[int, ...] = ()) -> PartitionReport:
    """A slot has read offsets 0 to 4; some have failed, some are done."""
    return PartitionReport(
        pack_offsets(pa.array(done, pa.int64())),
        read=pack_offsets(pa.array(range(5), pa.int64())), position=5, retrying=list(retrying),
    )  # fmt: skip


def test_an_idle_real_time_run_waits_for_new_records():
    """Its slots have nothing to do, although they keep the partition."""
    found = partition(5)
    run = run_of(found)
    assert (found.is_drained, reasons(run, 60.0)[0]) == (False, "nextBatch")
    found.slots.progressed(0, read_by_slot(done=(0, 1, 2, 3, 4)), 1.0)
    assert (found.is_drained, reasons(run, 60.0)) == (True, ("newRecords", 0.0))
    found.ledger.end = 6
    assert not found.is_drained


def test_a_record_that_its_slot_tries_again_waits_as_in_batches():
    """Until it is due, also with records behind it; then its handler runs, and may be late."""
    found = partition(5)
    run = run_of(found)
    failed = Failure(0, 7, b"k", 2, 9.0, "no luck")
    found.slots.progressed(0, read_by_slot(failed, done=(1, 2)), 1.0)
    blocker = found.blocker(4.0)
    assert blocker is not None
    assert (blocker["state"], blocker["slot"], blocker["dueInSeconds"]) == ("failed", 0, 6.0)
    assert found.supply.pending == 1
    assert reasons(run, 4.0) == ("retry", 0.0)
    assert not found.is_drained
    assert reasons(run, 14.0) == ("handlers", 14.0)
    blocker = found.blocker(14.0)
    assert blocker is not None
    assert (blocker["state"], blocker["dueInSeconds"], found.supply.pending) == (
        "in flight",
        None,
        1,
    )
    found.slots.progressed(0, PartitionReport(pack_offsets(pa.array([0], pa.int64()))), 15.0)
    assert found.supply.pending == 0


def test_a_slot_with_a_retry_and_a_long_call_waits_for_the_call():
    """Another record of the slot is what holds it up."""
    found = partition(5)
    run = run_of(found)
    found.slots.progressed(0, read_by_slot(Failure(0, 7, b"k", 2, 9.0, "no luck")), 1.0)
    run.tasks[0].call = 0, 3, 2.0
    assert reasons(run, 4.0)[0] == "handlers"


def test_a_record_that_waits_for_a_batch_beside_a_real_time_run_has_its_time():
    """As those of a frame handler do: it is not the run that they wait for."""
    found = partition(5)
    run = run_of(found)
    failed = [Failure(0, 7, b"k", 2, 9.0, "no luck")]
    report = replace(read_by_slot(done=(1, 2, 3, 4)), failed=failed)
    found.slots.progressed(0, report, 1.0)
    assert reasons(run, 4.0) == ("retry", 0.0)

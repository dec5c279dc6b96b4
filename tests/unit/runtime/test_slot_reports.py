"""Of a report, the committer takes what the partitions count, and slots move on by it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from commits import OffsetRanges
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.runtime.dispatch.daemon_pool import DaemonPool
from coopconsume.runtime.dispatch.dispatcher import _comes_back
from coopconsume.runtime.dispatch.slot_requests import SlotRequests
from coopconsume.worker.channel.wire import Frame
from coopconsume.worker.handler_lines import HandlerLine, SlotLines
from coopconsume.worker.report import (
    Failure,
    PartitionReport,
    SlotEnd,
    SlotReport,
    SlotStats,
    pack_offsets,
)
from tests.bench.idle import idle_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.loop import Job


@contextmanager
def in_batch(slots: int, end: int) -> Iterator[tuple[Job, Run]]:
    """A job of some slots, and a batch of offsets from 10 on that Spark does not run."""
    job = idle_job(1, slots)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    epoch_state.log_watch._ends_at = epoch_state.log_watch._starts_at = time.monotonic() + 1e6
    epoch_state.partitions[0].ledger.end = end
    with (
        mock.patch.object(EpochProof, "is_confirmed", new=True),
        mock.patch.object(DaemonPool, "submit"),
    ):
        job._dispatcher.launch(epoch_state, stopping=False)
        (run,) = job._dispatcher.runs.by_number.values()
        yield job, run
        job._dispatcher.runs.check()
        epoch_state.end()
    job._dispatcher.close()


@pytest.fixture
def batch() -> Iterator[tuple[Job, Run]]:
    """A job of two slots, and a batch of offsets 10 to 19."""
    with in_batch(2, 20) as found:
        yield found


def report(
    slot: int, *, done: tuple[int, ...] = (), failed: tuple[int, ...] = (), seq: int = 0,
    end: SlotEnd | None = None,
) -> SlotReport:  # fmt: skip
    """What a slot reports of the partition."""
    failures = [Failure(offset, 7, b"k", 1, 9.0, "no luck") for offset in failed]
    outcome = PartitionReport(pack_offsets(pa.array(done, pa.int64())), failed=failures)
    return SlotReport(
        0, slot, seq=seq, partitions={0: outcome}, stats=SlotStats(handled=len(done)),
        end=end or SlotEnd(),
    )  # fmt: skip


def pending(job: Job) -> list[int]:
    """The failed records that the next commit would have."""
    return [one.offset for one in job._epoch_state.committer._next._pending.get(("t", 0), [])]


def test_a_failure_that_is_reported_twice_is_committed_once(batch: tuple[Job, Run]) -> None:
    """A worker may die after it reported a record and before it noted that none is at work."""
    job, run = batch
    assert run.tasks.keys() == {0, 1}
    job._dispatcher.reports.progressed(report(0, done=(10,), failed=(11,), seq=1))
    assert pending(job) == [11]
    job._dispatcher.reports.reported(report(0, done=(13,), failed=(11, 12)))
    assert pending(job) == [11, 12]
    assert job.partitions[0].ledger.to_commit == OffsetRanges([(10, 10), (13, 13)])


def test_what_is_reported_again_with_records_that_are_given_back_is_committed_once(
    batch: tuple[Job, Run],
) -> None:
    """Nor do later reports of the slot repeat it: they concern the records that it keeps."""
    job, _ = batch
    reports = job._dispatcher.reports
    reports.progressed(report(0, failed=(11,), seq=1))
    given = replace(report(0, failed=(11, 12), seq=2), kept=[(0, 13, 8)])
    reports.progressed(given)
    assert pending(job) == [11, 12]
    reports.progressed(report(0, failed=(12,), seq=3))
    reports.reported(report(0, failed=(12, 13)))
    assert pending(job) == [11, 12, 13]


def test_lines_of_handlers_are_no_progress(batch: tuple[Job, Run]) -> None:
    """A slot whose handler only logs is still asked for relief; each line is shown once."""
    job, run = batch
    reports, shown = job._dispatcher.reports, mock.Mock()
    lines = SlotLines((HandlerLine("still at it"),), 3)
    with mock.patch.object(job._meter, "_lines", shown):
        alone = SlotReport(0, 0, seq=1, lines=lines)
        reports.progressed(alone)
        reports.progressed(alone)
        assert (run.tasks[0].seq, run.tasks[0].heard_at) == (1, None)
        reports.progressed(report(0, done=(10,), seq=2))
        assert run.tasks[0].heard_at is not None
        last = replace(report(0, done=(11,)), lines=SlotLines((), 4))
        reports.reported(last.with_end(unacknowledged=[alone]))
    assert [call.args for call in shown.take.call_args_list] == [(lines,), (SlotLines((), 4),)]


def test_a_slot_is_busy_until_it_ends_or_gives_its_records_back(batch: tuple[Job, Run]) -> None:
    """With its final report it is free; one that keeps a record has a task beside its next one."""
    job, run = batch
    dispatcher = job._dispatcher
    assert dispatcher.runs.busy == {0, 1}
    given = replace(report(0, done=(10,), seq=1), kept=[(0, 11, 7)])
    dispatcher.reports.progressed(given)
    dispatcher.reports.progressed(given)
    assert (run.tasks[0].is_keeping, run.tasks[0].is_stopped, run.handled) == (True, True, 1)
    assert (dispatcher.runs.busy, dispatcher.runs.task_count) == ({1}, 2)
    dispatcher.reports.reported(report(1))
    assert (dispatcher.runs.busy, dispatcher.runs.task_count, dispatcher.runs.keeping) == (
        set(),
        1,
        1,
    )
    dispatcher.reports.reported(report(0, done=(11,)))
    assert (dispatcher.runs.task_count, dispatcher.runs.keeping) == (0, 0)
    assert not dispatcher.slots.barred


def test_a_slot_that_reports_its_loss_gets_no_batch_until_it_cannot_be_at_work(
    batch: tuple[Job, Run],
) -> None:
    """One whose error leaves nothing in doubt gets none for a moment."""
    job, _ = batch
    slots = job._dispatcher.slots
    job._dispatcher.reports.reported(report(0, end=SlotEnd(unknown=True)))
    job._dispatcher.reports.reported(report(1, end=SlotEnd(state_error="it is away")))
    lost, failing = slots.barred, slots.failing
    assert (lost.keys(), failing.keys(), failing[1][1]) == ({0}, {1}, "it is away")
    assert slots.free(()) == []
    slots.end_pauses(failing[1][0])
    assert slots.free(()) == [1]
    slots.end_pauses(lost[0])
    assert slots.free(()) == [0, 1]
    assert slots.free({1}) == [0]


def test_slots_that_come_back_one_by_one_are_waited_for_for_a_moment(
    batch: tuple[Job, Run],
) -> None:
    """Most of them go into one next batch; a slot that takes far longer holds up none."""
    job, run = batch
    assert not _comes_back(run, run.started + 9.0), "none has come back"
    job._dispatcher.reports.reported(report(1))
    assert run.first_report is not None
    assert _comes_back(run, run.first_report + 0.05)
    assert not _comes_back(run, run.first_report + 2.0)
    job._dispatcher.reports.reported(report(0))
    assert not _comes_back(run, run.first_report + 0.05), "all have"


def test_slots_whose_time_is_over_are_waited_for_however_long_ago_others_came_back(
    batch: tuple[Job, Run],
) -> None:
    """Their times are over one after the other: alone, each would read what is next by itself."""
    job, run = batch
    job._dispatcher.reports.reported(report(1))
    run.first_report = time.monotonic() - 9.0
    assert not _comes_back(run, time.monotonic())
    run.tasks[1].has_ended = False
    job._dispatcher.reports.reported(report(1, end=SlotEnd(timed_out=True)))
    assert run.first_timeout is not None
    assert _comes_back(run, run.first_timeout + 0.05)
    assert not _comes_back(run, run.first_timeout + 2.0)


def test_a_free_slot_waits_for_young_batches_not_for_those_at_work() -> None:
    """Batches of few slots may take as long as their handlers, and hold up no other slot."""
    with in_batch(4, 10**6) as (job, first):
        dispatcher, epoch_state = job._dispatcher, job._epoch_state
        assert epoch_state is not None

        def launched(slot: int | None = None) -> list[tuple[int, ...]]:
            if slot is not None:
                dispatcher.reports.reported(report(slot))
            first.first_report = time.monotonic() - 9.0
            dispatcher.launch(epoch_state, stopping=False)
            return [run.plan.slots for run in dispatcher.runs.by_number.values() if run != first]

        assert [launched(slot) for slot in (0, 1, 2)] == [[(0,)], [(0,), (1,)], [(0,), (1,)]]
        with mock.patch.object(dispatcher.leases, "has_met", lambda at: at[1] == 1):
            assert launched() == [(0,), (1,)], "it has just begun"
            young = dispatcher.runs.by_number[2].tasks[1]
            assert young.met_at is not None
            young.met_at -= 2.0
            assert launched() == [(0,), (1,), (2,)]


def test_of_a_run_that_is_drained_a_slot_without_a_lease_never_begins(
    batch: tuple[Job, Run],
) -> None:
    """The others handle what they have read; one that has ended is not asked."""
    job, run = batch
    sent: list[tuple[object, Frame]] = []
    leases: Any = SimpleNamespace(
        has_met=lambda at: at == (0, 0), stop=set, send=lambda at, kind: sent.append((at, kind))
    )
    requests = SlotRequests(leases, job._dispatcher.slots.crashes)
    requests.drain(run)
    assert sent == [((0, 0), Frame.DRAIN)]
    assert [task.is_withdrawn for task in run.tasks.values()] == [False, True]
    assert not any(task.is_stopped for task in run.tasks.values())
    assert job._dispatcher.runs.at_work(run.epoch_state) == {0}
    job._dispatcher.reports.reported(report(0))
    requests.drain(run)
    assert (len(sent), run.is_withdrawn) == (1, True)

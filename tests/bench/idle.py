"""A job's loop with nothing to do, without Spark and Kafka: what a turn costs by itself."""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from assignors import KeyRange
from commits import Epoch, OffsetRanges
from coopconsume import Options, RetryPolicy
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.group.owned import Owned
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.kafka.cluster import LogEnd
from coopconsume.runtime.epoch_state import EpochState
from coopconsume.runtime.job_spec import JobSpec
from coopconsume.runtime.loop import Job
from coopconsume.runtime.status.progress import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SLOTS = 2


def idle_job(partitions: int, slots: int = _SLOTS) -> Job:
    """A job that owns partitions with everything done and committed."""
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "localhost:1",
            "kafka.group.id": "g",
            "subscribe": "t",
            "commitTable": "unused",
        }
    )
    job_spec = JobSpec(
        handler=print, concurrency=1, ordering="key", policy=RetryPolicy(), dead_letters=None,
        park=False, outputs=None, interval=0.0, available_now=False,
    )  # fmt: skip
    meter = Meter({"id": "q", "runId": "r", "name": None, "groupId": "g", "clientId": "c"}, slots)
    assignment: Any = EpochAssignment.__new__(EpochAssignment)
    ends = {("t", number): 10 for number in range(partitions)}
    assignment.options = options
    assignment.owned = {tp: Owned(*tp, (KeyRange(),), 10, OffsetRanges()) for tp in ends}
    assignment.cluster = SimpleNamespace(
        log_ends=lambda tps: {tp: LogEnd(ends[tp], 0) for tp in tps}
    )
    assignment.logs = SimpleNamespace(
        is_cut=lambda *_: False,
        check_topics=lambda *_: [],
        check_starts=lambda *_: {},
        present=ends,
    )
    assignment.store = SimpleNamespace(unanswered=None)
    assignment.primary = SimpleNamespace(
        publish_by=lambda _: None, has_unpublished=False, publishes=False, is_publishing=False,
        troubled={}, given_up=lambda _: None,
        write_quietly=lambda **_: None, stop_publishing=lambda: None,
    )  # fmt: skip
    assignment._grant = SimpleNamespace(epoch=Epoch(1, "n"))
    assignment.topic_ids, assignment.is_between_epochs = {"t": "id"}, False
    assignment.in_doubt, assignment.stop_repeating = SharesInDoubt(), lambda: None
    assignment.proof = EpochProof(assignment.store, "g", lambda: assignment._grant, lambda _: 0.0)
    assignment.proof._seen = math.inf
    assignment.begin_with_state = lambda _: None
    membership: Any = SimpleNamespace(
        options=options, may_work_for=lambda *_: True, driver_lock=None
    )
    with mock.patch("coopconsume.runtime.dispatch.spark_jobs.open_mailbox"):
        job = Job(mock.sentinel.spark, membership, job_spec, slots, meter)
    job._current.state = EpochState(job._context, assignment, {})
    return job


@contextmanager
def idle_turn(partitions: int) -> Iterator[Callable[[], None]]:
    """A turn of the loop without its wait; the first one, in which all is looked at, is over."""
    job = idle_job(partitions)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    assignment: Any = epoch_state.assignment
    assignment.refresh = dict

    def turn() -> None:
        assert not job._finished()
        with mock.patch.object(job._events, "take", return_value=()):
            job._turn()

    turn()
    try:
        yield turn
    finally:
        epoch_state.end()
        job._dispatcher.close()

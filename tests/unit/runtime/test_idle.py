"""A turn of a job's loop costs by what changed: partitions with nothing to do are passed over."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

from commits import OffsetRanges
from coopconsume.runtime.status.progress import describe
from tests.bench.idle import idle_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.runtime.loop import Job

PARTITIONS = 300
#: All turns are taken at this instant: what is done every few seconds is not due again.
NOW = time.monotonic()


def visits(job: Job) -> Counter[Any]:
    """How often a turn, without its wait, calls a method of each partition or share."""
    found: Counter[Any] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/coopconsume/runtime/plan/" in frame.f_code.co_filename:
            own = frame.f_locals.get("self")
            found[getattr(own, "partition", None)] += 1

    without_wait = mock.patch.object(job._events, "take", return_value=())
    with without_wait, mock.patch("time.monotonic", return_value=NOW):
        sys.setprofile(note)
        try:
            job._finished()
            job._turn()
        finally:
            sys.setprofile(None)
    return found


def settled(partitions: int) -> Job:
    """A job with nothing to do after its first turn; ends are not looked at by itself."""
    job = idle_job(partitions)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    visits(job)
    epoch_state.log_watch._ends_at = epoch_state.log_watch._starts_at = NOW + 1e6
    return job


def test_a_turn_visits_no_partition_without_work() -> None:
    """Nothing is asked of any partition; the same few calls are made for 3 as for 300."""
    few, many = settled(3), settled(PARTITIONS)
    found = visits(many)
    assert set(found) <= {None}
    assert found.total() == visits(few).total()


def test_a_turn_visits_a_partition_that_changed() -> None:
    """A new end wakes its partition alone, and what is done and committed lets it rest again."""
    job = settled(PARTITIONS)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    changed = epoch_state.partitions[7]
    wakes: list[Callable[[], object]] = [
        lambda: setattr(changed.ledger, "end", 11),
        lambda: changed.slots.amend(OffsetRanges([(10, 10)])),
        lambda: changed.commit_answered(OffsetRanges(), 11, OffsetRanges([(10, 10)])),
    ]
    epoch_state.committer._thread.is_busy = True  # no commit is written here
    with mock.patch.object(job._dispatcher, "launch"):
        for wake in wakes:
            wake()
            assert {7} <= set(visits(job)) <= {7, None}
    changed.cursors[0].position = changed.cursors[1].position = 11
    epoch_state.update_quiet()
    assert set(visits(job)) <= {None}


def test_progress_describes_a_partition_without_work_once() -> None:
    """Its description is taken from the last event; a change is described again."""
    job = settled(20)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    with mock.patch("coopconsume.runtime.status.progress.describe", wraps=describe) as described:
        for count in (20, 0, 1):
            described.reset_mock()
            if count == 1:
                epoch_state.partitions[3].ledger.end = 12
            job._meter._make_event(epoch_state.partitions)
            assert described.call_count == count
    ends = [partition["endOffset"] for partition in job._meter.recent[-1]["partitions"]]
    assert ends == [12 if number == 3 else 10 for number in range(20)]

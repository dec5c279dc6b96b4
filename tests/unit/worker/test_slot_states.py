"""No record of a slot is in two states or in none: what `SlotReporter.check` refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from coopconsume.record import RetryPolicy
from coopconsume.worker.input_rows import InputRow
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.report import Failure, SlotEnd, SlotReport
from coopconsume.worker.reporter import SlotReporter
from tests.unit.worker.slot_harness import Scheduled, done, prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.worker.report_draft import PartitionDraft

ROWS = [(0, offset, b"k%d" % offset) for offset in range(8)]
PLACES = [row[:2] for row in ROWS]


class Slot:
    """A slot with a record in each state.

    0 is done and reported, 1 done, 2 failed, 3 filtered, 4 at work, 5 to try again, 6 queued. 7 was
    not read.
    """

    def __init__(self) -> None:
        policy = RetryPolicy(backoff=5.0, max_backoff=5.0, jitter=0)
        runner, _ = prepared(None, ROWS, concurrency=2, policy=policy)
        self.outcome = runner._outcome(3)
        self.scheduler = KeyScheduler(self.outcome, 0.0)
        self.scheduler.deadline = 100.0
        self.reporter = SlotReporter(self.outcome, Scheduled(self.scheduler))
        self._handle(0, None)
        report = self.reporter.take_report(1)
        assert report is not None
        self.reports = [report]
        self._handle(1, None)
        self._handle(2, RuntimeError("no"), fails_for_long=True)
        self.draft.filtered.append(pa.array([3], pa.int64()))
        for offset in (4, 5, 6):
            self._admit(offset)
        assert self.scheduler.take(0.0)
        self.scheduler.settle(*self._taken(), RuntimeError("not yet"), 0.0, 0.0)

    def _admit(self, offset: int) -> None:
        self.scheduler.admit(InputRow(0, offset, offset, b"k", b"v", 0, ()))

    def _taken(self):
        found = self.scheduler.take(0.0)
        assert found is not None
        return found

    def _handle(self, offset: int, answer: object, *, fails_for_long: bool = False) -> None:
        self._admit(offset)
        lane, row, record = self._taken()
        if fails_for_long:
            self.scheduler.deadline = 1.0
        self.scheduler.settle(lane, row, record, answer, 0.0, 0.0)
        self.scheduler.deadline = 100.0

    @property
    def draft(self) -> PartitionDraft:
        """What is in no report."""
        return self.outcome.draft.partitions[0]

    def check(self) -> None:
        """Checks all records."""
        self.reporter.check(PLACES, self.reports)


def _queued_and_done(slot: Slot) -> None:
    slot.outcome.draft.add_done(0, [6], [0])


def _at_work_and_done(slot: Slot) -> None:
    slot.outcome.draft.add_done(0, [4], [0])


def _done_twice(slot: Slot) -> None:
    slot.outcome.draft.add_done(0, [1], [0])


def _failed_and_to_try_again(slot: Slot) -> None:
    slot.draft.failed.append(Failure(5, 5, b"k", 1, 5.0, "not yet"))


def _behind_and_queued(slot: Slot) -> None:
    slot.draft.blocked.append((6, 6))


def _done_and_filtered(slot: Slot) -> None:
    slot.draft.filtered.append(pa.array([1], pa.int64()))


def _reported_twice(slot: Slot) -> None:
    slot.reports.append(replace(slot.reports[0], seq=2))


def _reported_and_done(slot: Slot) -> None:
    slot.outcome.draft.add_done(0, [0], [0])


def _failure_is_lost(slot: Slot) -> None:
    slot.draft.failed.clear()


def _report_is_lost(slot: Slot) -> None:
    slot.reports.clear()


def _filtered_is_lost(slot: Slot) -> None:
    slot.draft.filtered.clear()


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (_queued_and_done, "queued and done"),
        (_at_work_and_done, "at work and done"),
        (_done_twice, "done and done"),
        (_failed_and_to_try_again, "queued and failed"),
        (_behind_and_queued, "queued and behind"),
        (_done_and_filtered, "done and filtered"),
        (_reported_twice, "reported and reported"),
        (_reported_and_done, "done and reported"),
        (_failure_is_lost, r"\(0, 2\) is in no state"),
        (_report_is_lost, r"\(0, 0\) is in no state"),
        (_filtered_is_lost, r"\(0, 3\) is in no state"),
    ],
)
def test_a_record_in_two_states_or_in_none_is_refused(
    break_it: Callable[[Slot], None], why: str
) -> None:
    """By an assertion that names both; the slot as it was is accepted."""
    slot = Slot()
    slot.check()
    break_it(slot)
    with pytest.raises(AssertionError, match=why):
        slot.check()


def test_what_is_left_over_is_in_no_other_state() -> None:
    """It is not read, as far as the driver knows."""
    slot = Slot()
    slot.draft.filtered.clear()
    slot.outcome.leave(0, 3)
    slot.check()


def test_a_report_does_not_change_after_it_is_made() -> None:
    """Whatever the slot does next."""
    slot = Slot()
    assert done(slot.reports[0]) == [0]
    taken = slot.reporter.take_report(2)
    assert taken is not None
    failed = list(taken.partitions[0].failed)
    final = slot.outcome.close(SlotEnd())
    slot.outcome.postpone(InputRow(0, 6, 6, b"k", b"v", 0, ()), failed[0])
    slot.outcome.draft.dead.append(None)  # type: ignore[arg-type]
    assert (done(taken), taken.partitions[0].failed, taken.dead) == ([1], failed, [])
    assert (final.partitions[0].failed, final.dead) == ([], [])
    for report in (taken, final):
        for part in (report, report.end, report.stats, report.partitions[0]):
            with pytest.raises(AttributeError):
                part.done = part.slot = part.error = part.rows = 1  # type: ignore[union-attr]
    assert isinstance(final.with_end(clock=1.0), SlotReport)
    assert final.end.clock == 0.0

"""Reports what a slot has done while it works, and gives records back. Task-side code.

A record of a batch is in one of these states in its slot:

| State | Where it is kept | Entered by | Left by |
| --- | --- | --- | --- |
| not read | Spark's rows, or the log in real time | a plan | `TaskOutcome.wanted` |
| queued | `Runner.queued` | `TaskOutcome.wanted` | a free handler, or the end of the time box |
| at work | `Runner.at_work` | a handler is called | its answer |
| to try again | ``KeyScheduler._retries``, and queued | `TaskOutcome.retry` | its due time |
| done | ``PartitionDraft.done`` | `TaskOutcome.settle` | a report |
| filtered | ``PartitionDraft.filtered`` | `TaskOutcome.drop_filtered` | a report |
| failed | ``PartitionDraft.failed`` | `TaskOutcome.postpone` | a report |
| behind | ``PartitionDraft.blocked`` | `ReportDraft.block` | a report |
| left over | at or above ``PartitionDraft.resume`` | `TaskOutcome.leave` | the final report |
| reported | a `SlotReport` | `SlotReporter.take_report`, `TaskOutcome.close` | |

What is left over is in no other state. A dead letter is done, or failed if it is parked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.worker.report import unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from coopconsume.worker.blocked_lanes import Ranges
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.report import SlotReport
    from coopconsume.worker.runner import Runner

#: Running records with which a slot still gives back the others; with more it keeps all.
MOST_KEPT = 10_000


class SlotReporter:
    """Makes the progressive reports of a slot, and has it give records back.

    It is called in the channel's thread, `check` in any.

    Args:
        outcome: The outcome of the slot.
        runner: Runs its handlers.
    """

    def __init__(self, outcome: TaskOutcome, runner: Runner) -> None:
        self._outcome = outcome
        self._runner = runner
        #: Whether the driver wants the records that were not started.
        self._is_relief_wanted = False
        #: The running rows of withheld key ranges, as in the last report.
        self._named_leaving: list[tuple[int, int, int]] | None = None
        #: When `oldest_call` saw each handler call first.
        self._seen: dict[tuple[int, int], float] = {}
        #: Calls that had ended as `is_moving` was asked last.
        self._ended = -1

    def take_report(
        self, seq: int, *, positions: bool = True, otherwise: Callable[[], None] | None = None
    ) -> SlotReport | None:
        """Takes what is done and failed since the last call, as a progressive report.

        Args:
            seq: Its number.
            positions: Whether new positions, or lines of handlers, alone are worth a report.
            otherwise: If there is nothing to report, it is called as soon as a record is settled.

        Returns:
            None if there is nothing to report.
        """
        draft = self._outcome.draft
        with self._outcome.lock:
            self._runner.flush()
            kept, leaving = self._kept(), self._leaving()
            is_news = kept is not None or leaving is not None
            is_news = is_news or draft.has_news(positions=positions)
            self._outcome.on_settled = None if is_news else otherwise
            if not is_news:
                return None
            taken = draft.take(seq, kept, leaving)
        return taken.report()

    def oldest_call(self, now: float) -> tuple[int, int, float] | None:
        """Returns partition, offset and seconds of the handler call that has run for longest.

        Seconds count from the first look at which the call ran.

        Args:
            now: The time of this look.
        """
        with self._outcome.lock:
            self._runner.flush()
            calls = self._runner.calls()
        self._seen = {at: self._seen.get(at, now) for at in calls}
        if not self._seen:
            return None
        oldest = min(self._seen, key=self._seen.__getitem__)
        return *oldest, now - self._seen[oldest]

    def is_moving(self) -> bool:
        """Whether a call has ended since this was asked last, or nothing waits for a handler."""
        with self._outcome.lock:
            self._runner.flush()
            before, self._ended = self._ended, self._outcome.draft.ended
            return self._ended != before or not self._runner.is_held_up

    def withhold(self, number: int, ranges: Mapping[int, Ranges]) -> None:
        """Starts no more records of some key ranges; running ones end and are reported.

        Args:
            number: The driver's, for `SlotReport.leaving`.
            ranges: (first, last) key hashes, by partition; those of earlier calls stay withheld.
        """
        with self._outcome.lock:
            if self._outcome.lanes.withhold(number, ranges):
                self._named_leaving = None
                self._runner.leave_withheld(time.monotonic())

    def want_relief(self) -> None:
        """Gives back the records that were not started, with the next progressive report."""
        self._is_relief_wanted = True

    def _leaving(self) -> tuple[int, list[tuple[int, int, int]]] | None:
        """Returns the running rows of withheld key ranges if they changed; needs the lock."""
        lanes = self._outcome.lanes
        if not lanes.withheld_by:
            return None
        found = [row for row in self._runner.at_work() if lanes.is_withheld(row[0], row[2])]
        if found == self._named_leaving:
            return None
        self._named_leaving = found
        return lanes.withheld_by, found

    def _kept(self) -> list[tuple[int, int, int]] | None:
        """Gives back the records that were not started, if that is wanted and a handler runs.

        Returns:
            The rows that handlers run on; None: nothing is given back.
        """
        runner = self._runner
        is_wanted, self._is_relief_wanted = self._is_relief_wanted, False
        if (
            not is_wanted
            or self._outcome.has_given_back
            or not 0 < len(runner.at_work()) <= MOST_KEPT
        ):
            return None
        self._outcome.has_given_back = True
        runner.give_back()
        runner.flush()
        return runner.at_work()

    def check(self, rows: Collection[tuple[int, int]], reports: Iterable[SlotReport]) -> None:
        """Checks that each record of a batch is in one state. Models call it.

        Args:
            rows: (part, offset) of all records that the slot gets.
            reports: Its progressive reports so far.

        Raises:
            AssertionError: A record is in two states, or in none although a later one of its
                partition was read.
        """
        with self._outcome.lock:
            self._runner.flush()
            states = list(self._states(reports))
            resume = {p: one.resume for p, one in self._outcome.draft.partitions.items()}
        found: dict[tuple[int, int], str] = {}
        for state, part, offset in states:
            at = part, offset
            assert at not in found, f"{at} is {found[at]} and {state}"
            found[at] = state
        read = dict(sorted(found))
        for part, offset in rows:
            is_left = (first := resume[part]) is not None and offset >= first
            is_known = (part, offset) in found or is_left
            assert is_known or offset > read.get(part, -1), f"{(part, offset)} is in no state"

    def _states(self, reports: Iterable[SlotReport]) -> Iterator[tuple[str, int, int]]:
        """Yields state, part and offset of each record that was read and is not left over."""
        for part, offset, _ in self._runner.at_work():
            yield "at work", part, offset
        for part, offset in self._runner.queued():
            yield "queued", part, offset
        for part, draft in self._outcome.draft.partitions.items():
            for state, offset in draft.offsets():
                yield state, part, offset
        for report in reports:
            for part, one in report.partitions.items():
                offsets = [*one.done_offsets.to_pylist(), *unpack_offsets(one.filtered).to_pylist()]
                offsets += [failure.offset for failure in one.failed]
                for offset in (*offsets, *(offset for offset, _ in one.blocked)):
                    yield "reported", part, offset

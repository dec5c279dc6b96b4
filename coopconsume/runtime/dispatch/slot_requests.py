"""What a job asks of its running slots: to stop, or to give back records or key ranges."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.worker.channel.wire import Frame, encode_withhold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_task import SlotTask
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.settle.crashes import Crashes

#: Seconds between two requests to a slot for what it may still start.
_ASK_EVERY = 0.5


class SlotRequests:
    """Sends requests to slots, and notes which slots were asked to stop.

    Args:
        leases: Passes messages to slots.
        crashes: The crashes of workers.
    """

    def __init__(self, leases: SlotLeases, crashes: Crashes) -> None:
        self._leases = leases
        self._crashes = crashes

    def stop(self, run: Run) -> None:
        """Stops the slots of a run that have a channel."""
        if run.connections:
            run.ending = run.ending or "stopped"
            self.stop_slots(run, run.unfinished)

    def leave(self, run: Run, partitions: Sequence[Partition], *, is_late: bool = False) -> None:
        """Asks the slots of a run to start no more records of the key ranges that are given up.

        They continue with the others. A slot that has not begun never begins, and one that has not
        answered in time starts nothing more: its lease may outlast the share. So does one whose
        handlers are late: the next owners wait until the handlers of a stopped slot have ended.

        Args:
            run: The run.
            partitions: Those with key ranges that are given up.
            is_late: Whether the time for answers is over.
        """
        for task in run.active:
            cursors = [p.cursors[task.slot] for p in partitions if task.slot in p.cursors]
            if task.is_stopped or not any(cursor.leaving.may_start for cursor in cursors):
                continue
            if not is_late and self._leases.has_met(run.at(task)):
                self._withhold(run, task, partitions)
                continue
            task.is_stopped = True
            self._halt(run, [task])
            if task.is_withdrawn:
                for cursor in cursors:
                    cursor.leaving.may_start = False
        if is_late and run.channel is not None:
            late = [task for task in run.unfinished if _is_late(task, partitions)]
            self.stop_slots(run, late)

    def ask_back(self, run: Run, task: SlotTask) -> None:
        """Asks a slot for what it may still start, once in a while."""
        if self.may_relieve(run, task.slot) and _is_time_to_ask(task):
            self._leases.send(run.at(task), Frame.RELIEVE)

    def may_relieve(self, run: Run, slot: int) -> bool:
        """Whether a slot may give records back: not while it is to show which one is at fault."""
        return not run.trial and not self._crashes.concern(slot)

    def stop_slots(self, run: Run, tasks: Iterable[SlotTask]) -> None:
        """Stops some slots: they give back what they have not started, if they may."""
        tasks = list(tasks)
        for task in tasks:
            task.is_stopped = True
            if self.may_relieve(run, task.slot):
                self._leases.send(run.at(task), Frame.RELIEVE)
        self._halt(run, tasks)

    def drain(self, run: Run) -> None:
        """Has slots read no more records, and handle those that they have read."""
        for task in run.unfinished:
            if self._leases.has_met(run.at(task)):
                self._leases.send(run.at(task), Frame.DRAIN)
            else:
                self._halt(run, [task])

    def _halt(self, run: Run, tasks: Iterable[SlotTask]) -> None:
        """Has slots start nothing more; those that cannot have started anything never do."""
        for _, slot in self._leases.stop({run.at(task) for task in tasks}):
            run.tasks[slot].is_withdrawn = True

    def _withhold(self, run: Run, task: SlotTask, partitions: Sequence[Partition]) -> None:
        """Sends a slot the given-up key ranges, repeatedly: it may have no records yet."""
        if not _is_time_to_ask(task):
            return
        ranges = {
            part: partition.cursors[task.slot].leaving.ranges
            for part, partition in enumerate(run.partitions)
            if partition in partitions and task.slot in partition.cursors
        }
        withheld = encode_withhold(run.epoch_state.leavings, ranges)
        self._leases.send(run.at(task), Frame.WITHHOLD, withheld)


def _is_time_to_ask(task: SlotTask) -> bool:
    now = time.monotonic()
    is_due = now - task.asked_at > _ASK_EVERY
    if is_due:
        task.asked_at = now
    return is_due


def _is_late(task: SlotTask, partitions: Iterable[Partition]) -> bool:
    """Whether handlers of a slot work on key ranges that are about to be given back."""
    for partition in partitions:
        if task.kept is None:
            if task.slot in partition.cursors and partition.cursors[task.slot].leaving.at_work:
                return True
        elif partition.index in task.kept:
            kept = task.kept[partition.index]
            if any(offset in kept for offset in partition.dealer.kept_leaving()):
                return True
    return False

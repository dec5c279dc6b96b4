"""What a job asks of its running slots: to stop, or to give back records or key ranges."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from coopconsume.worker.channel.wire import Frame, encode_withhold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from coopconsume.runtime.dispatch.batch import Running
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
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

    def stop(self, running: Running) -> None:
        """Stops the slots of a batch that have a channel."""
        if running.connections:
            running.ending = running.ending or "stopped"
            self.stop_slots(running, running.waiting)

    def leave(
        self, running: Running, partitions: Sequence[Partition], *, is_late: bool = False
    ) -> None:
        """Asks the slots of a batch to start no more records of the key ranges that are given up.

        They continue with the others. A slot that has not begun never begins, and one that has not
        answered in time starts nothing more: its lease may outlast the share. So does one whose
        handlers are late: the next owners wait until the handlers of a stopped slot have ended.

        Args:
            running: The batch.
            partitions: Those with key ranges that are given up.
            is_late: Whether the time for answers is over.
        """
        for slot in sorted(running.active - running.stopped):
            cursors = [p.cursors[slot] for p in partitions if slot in p.cursors]
            if not any(cursor.may_start_leaving for cursor in cursors):
                continue
            at = (running.number, slot)
            if not is_late and self._leases.has_met(at):
                self._withhold(running, slot, partitions)
                continue
            running.stopped.add(slot)
            self._halt(running, {at})
            if slot in running.withdrawn:
                for cursor in cursors:
                    cursor.may_start_leaving = False
        if is_late and running.channel is not None:
            late = [slot for slot in running.waiting if _is_late(running, slot, partitions)]
            self.stop_slots(running, late)

    def ask_back(self, running: Running, slot: int) -> None:
        """Asks a slot for what it may still start, once in a while."""
        if self.may_relieve(running, slot) and _is_time_to_ask(running, slot):
            self._leases.send((running.number, slot), Frame.RELIEVE)

    def may_relieve(self, running: Running, slot: int) -> bool:
        """Whether a slot may give records back: not while it is to show which one is at fault."""
        return not running.trial and not self._crashes.concern(slot)

    def stop_slots(self, running: Running, slots: Collection[int]) -> None:
        """Stops some slots: they give back what they have not started, if they may."""
        connections = {(running.number, slot) for slot in slots}
        running.stopped.update(slots)
        for at in connections:
            if self.may_relieve(running, at[1]):
                self._leases.send(at, Frame.RELIEVE)
        self._halt(running, connections)

    def _halt(self, running: Running, slots: Collection[tuple[int, int]]) -> None:
        running.withdrawn |= {slot for _, slot in self._leases.stop(slots)}

    def _withhold(self, running: Running, slot: int, partitions: Sequence[Partition]) -> None:
        """Sends a slot the given-up key ranges, repeatedly: it may have no records yet."""
        if not _is_time_to_ask(running, slot):
            return
        ranges = {
            part: partition.cursors[slot].leaving
            for part, partition in enumerate(running.partitions)
            if partition in partitions and slot in partition.cursors
        }
        withheld = encode_withhold(running.epoch_state.leavings, ranges)
        self._leases.send((running.number, slot), Frame.WITHHOLD, withheld)


def _is_time_to_ask(running: Running, slot: int) -> bool:
    now = time.monotonic()
    is_due = now - running.asked_at.get(slot, -math.inf) > _ASK_EVERY
    if is_due:
        running.asked_at[slot] = now
    return is_due


def _is_late(running: Running, slot: int, partitions: Iterable[Partition]) -> bool:
    """Whether handlers of a slot work on key ranges that are about to be given back."""
    for partition in partitions:
        if slot not in running.kept:
            if slot in partition.cursors and partition.cursors[slot].leaving_at_work:
                return True
        elif partition.index in running.kept[slot]:
            kept = running.kept[slot][partition.index]
            if any(offset in kept for offset in partition.dealer.kept_leaving()):
                return True
    return False

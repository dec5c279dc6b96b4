"""Relief: a slot gives back the records that wait behind a slow handler.

So a slow handler blocks its own key only, and not all keys of its slot. A slot that is asked for
relief starts no more records of its batch and reports the records that its handlers work on. These
are *kept*: they block their keys until the slot has ended. All other records are planned again for
the same slot, in another Spark task, while the slow handler still runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from commits import OffsetRanges
from coopconsume.worker.report import PartitionReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coopconsume.runtime.dispatch.batch import Running
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds without progress after which a slot is asked for relief: while a core is idle, and while
#: all cores are busy.
SLOW: Final = 2.0
SLOW_WHILE_BUSY: Final = 10.0


def slow_slots(
    batches: Iterable[Running], now: float, *, has_idle: bool
) -> Iterator[tuple[Running, int]]:
    """Yields the slots without progress for some time, with their batches.

    Args:
        batches: Of the epoch.
        now: The time, on the monotonic clock.
        has_idle: Whether a core is idle.
    """
    patience = SLOW if has_idle else SLOW_WHILE_BUSY
    for running in batches:
        if running.channel is None or running.trial or running.interrupt_at is not None:
            continue
        if running.is_real_time:
            continue  # Its slots give back records by themselves: they know whether any wait.
        # The time in which Spark reads and sorts does not count.
        for slot in sorted((running.active & running.met_at.keys()) - running.stopped):
            if now - running.heard_at.get(slot, running.met_at[slot]) > patience:
                yield running, slot


def give_back(running: Running, report: SlotReport, now: float) -> None:
    """Takes the report of a slot that gives its records back."""
    slot, plan = report.slot, running.plan
    kept: dict[int, list[tuple[int, int]]] = {}
    for part, offset, key_hash in report.kept or ():
        kept.setdefault(plan.indexes[part], []).append((offset, key_hash))
    for index in plan.work[slot]:
        outcome = report.partitions.get(plan.parts[index], PartitionReport())
        running.epoch_state.partitions[index].slots.given_back(
            slot, outcome, kept.get(index, ()), now
        )
    running.kept[slot] = {
        index: OffsetRanges.from_offsets([offset for offset, _ in records])
        for index, records in kept.items()
    }
    running.first_report = running.first_report or now
    running.stopped.add(slot)
    log.info(
        "slot %d still works on %s and starts none of its other records",
        slot,
        ", ".join(_named(running, kept)),
    )


def kept_progressed(running: Running, report: SlotReport, now: float) -> None:
    """Takes the report of a slot on the records that it kept."""
    partitions = running.partitions
    for part, outcome in report.partitions.items():
        kept = running.kept[report.slot].get(partitions[part].index)
        if kept is not None:
            partitions[part].slots.kept_progressed(kept, outcome, now)


def end_kept(running: Running, slot: int, due: float) -> None:
    """Plans the kept records of a slot again that are not done, from an instant on."""
    for index, kept in running.kept[slot].items():
        running.epoch_state.partitions[index].slots.kept_ended(kept, due)


def _named(running: Running, kept: dict[int, list[tuple[int, int]]]) -> Iterator[str]:
    for index, records in kept.items():
        partition = running.epoch_state.partitions[index]
        for offset, _ in records[:3]:
            yield f"{partition.topic}-{partition.partition}@{offset}"

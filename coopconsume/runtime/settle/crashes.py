"""Slots whose workers have crashed: what they may start next, which record is charged. Pure."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.runtime.settle.poison_bisect import PoisonBisect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.runtime.plan import Partition

    ByIndex = Mapping[int, OffsetRanges]

log = logging.getLogger(__name__)


class Crashes:
    """The workers that have crashed in this epoch, by slot, and the suspected records.

    Args:
        max_attempts: After which a record is given up; None: never.
    """

    def __init__(self, max_attempts: int | None) -> None:
        self._max_attempts = max_attempts
        self._bisects: dict[int, PoisonBisect] = {}

    def forget(self) -> None:
        """Forgets all crashes, as the partitions change."""
        self._bisects.clear()

    def concern(self, slot: int) -> bool:
        """Whether records of a slot are suspected, as its worker has crashed."""
        return slot in self._bisects and self._bisects[slot].has_any

    def drop_settled(self, partitions: Sequence[Partition]) -> None:
        """Drops suspects that are done, deleted or given up by now.

        No slot handles them again, so nothing else would clear them.
        """
        for slot, suspects in self._bisects.items():
            suspects.narrow(partial(_open_of, partitions, slot))

    def confine(self, partitions: Sequence[Partition], slots: Iterable[int]) -> dict[int, ByIndex]:
        """Limits slots whose workers keep crashing to part of their work.

        Returns:
            What such slots may start, by partition.
        """
        allowed: dict[int, ByIndex] = {}
        if not self._bisects:
            return allowed
        for slot in slots:
            some = self._bisects[slot].allowed if slot in self._bisects else None
            if some is not None:
                allowed[slot] = some
            for index, partition in enumerate(partitions):
                if slot in partition.cursors:
                    only = None if some is None else some.get(index, OffsetRanges())
                    partition.cursors[slot].only = only
        return allowed

    def passed(self, partitions: Sequence[Partition], slot: int, given: ByIndex) -> None:
        """Drops the suspects that a slot has handled; those that are left to do stay suspected."""
        cursors = {index: partitions[index].cursors[slot] for index in given}
        self._bisects[slot].passed({index: o - cursors[index].todo for index, o in given.items()})

    def crashed(
        self,
        partitions: Sequence[Partition],
        slot: int,
        given: ByIndex,
        at_work: ByIndex | None,
        *,
        charged: bool,
    ) -> None:
        """Takes the crash of a worker of a slot.

        Args:
            partitions: Of the epoch.
            slot: The slot.
            given: What it might have started, by partition.
            at_work: The records at work in it, if they are known.
            charged: Whether the record that killed it was found and charged.
        """
        suspects = self._bisects.setdefault(slot, PoisonBisect())
        suspects.crashed(given, at_work, charged=charged)
        culprit = suspects.culprit
        if culprit is not None:
            index, offset = culprit
            partition = partitions[index]
            partition.charge(offset)
            log.warning(
                "%s-%d@%d crashed its worker repeatedly: attempt %d",
                partition.topic, partition.partition, offset, partition.failed.attempts[offset],
            )  # fmt: skip
            if self._max_attempts is None:
                suspects.passed({index: OffsetRanges([(offset, offset)])})


def _open_of(
    partitions: Sequence[Partition], slot: int, index: int, offsets: OffsetRanges
) -> OffsetRanges:
    return partitions[index].open_of(slot, offsets)

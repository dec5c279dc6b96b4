"""Slots whose workers have crashed: what they may start next, which record is charged. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from commits import OffsetRanges
from coopconsume.runtime.settle.poison_bisect import PoisonBisect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.runtime.plan import Partition
    from coopconsume.worker.report import SlotEnd

    ByIndex = Mapping[int, OffsetRanges]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AtWork:
    """The records at work in a worker that has ended, by the index of their partition.

    Attributes:
        culprits: Those that certainly ended it.
        suspects: Those that may have ended it, if that is not certain.
        how: How it ended, for people.
    """

    culprits: ByIndex
    suspects: ByIndex
    how: str

    @classmethod
    def of(cls, end: SlotEnd, indexes: Sequence[int]) -> Self:
        """Returns what the end of a slot says.

        Args:
            end: Of a slot whose worker has ended.
            indexes: The index of each partition, by part.
        """
        what = "did not end in time" if end.overdue else "died with it"
        return cls(
            _by_index(end.culprits, indexes),
            _by_index(end.suspects, indexes),
            f"its worker was ended: the handler {what}",
        )


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
        self, partitions: Sequence[Partition], slot: int, given: ByIndex, at_work: AtWork | None
    ) -> None:
        """Takes the crash of a worker of a slot.

        Args:
            partitions: Of the epoch.
            slot: The slot.
            given: What it might have started and no report has named, by partition.
            at_work: The records at work in it, if they are known.
        """
        suspects = self._bisects.setdefault(slot, PoisonBisect())
        if at_work is None:
            suspects.crashed(given, None, charged=False)
        else:
            # A worker may die after it reported a record and before it noted that none is at work.
            culprits = _left_of(at_work.culprits, given)
            for index, offsets in culprits.items():
                for offset in offsets.offsets():
                    partitions[index].slots.charge(int(offset), at_work.how)
            suspects.crashed(given, _left_of(at_work.suspects, given), charged=bool(culprits))
        if suspects.culprit is not None:
            self._charge_found(partitions, suspects, *suspects.culprit)

    def _charge_found(
        self, partitions: Sequence[Partition], suspects: PoisonBisect, index: int, offset: int
    ) -> None:
        """Charges the record that is left of those that were suspected."""
        partition = partitions[index]
        partition.slots.charge(offset, "its worker crashed each time that it was handled")
        attempt = partition.lanes.failed.attempts.get(offset, 0) + 1
        log.warning(
            "%s-%d@%d crashed its worker repeatedly: attempt %d",
            partition.topic, partition.partition, offset, attempt,
        )  # fmt: skip
        if self._max_attempts is None:
            suspects.passed({index: OffsetRanges([(offset, offset)])})


def _left_of(offsets: ByIndex, given: ByIndex) -> ByIndex:
    """Returns those of some offsets that were left to do."""
    left = {index: some & given.get(index, OffsetRanges()) for index, some in offsets.items()}
    return {index: some for index, some in left.items() if some}


def _open_of(
    partitions: Sequence[Partition], slot: int, index: int, offsets: OffsetRanges
) -> OffsetRanges:
    return partitions[index].slots.open_of(slot, offsets)


def _by_index(at_work: Sequence[tuple[int, int]], indexes: Sequence[int]) -> ByIndex:
    """Returns records at work, which are named by part, by the index of their partition."""
    found: dict[int, list[int]] = {}
    for part, offset in at_work:
        found.setdefault(indexes[part], []).append(offset)
    return {index: OffsetRanges.from_offsets(offsets) for index, offsets in found.items()}

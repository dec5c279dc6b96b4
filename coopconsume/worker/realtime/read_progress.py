"""Collects what a real-time slot has read since its last report. Task-side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from coopconsume.worker.input_rows import OFFSET
from coopconsume.worker.report import PartitionReport, pack_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from commits import OffsetAndEpoch
    from coopconsume.worker.realtime.reader import Taken


class ReadProgress:
    """What a real-time slot has read since its last report.

    Attributes:
        offsets: Of the records that it has begun to work on, by partition.
        positions: The next offset to read, by partition, where it has changed.
    """

    def __init__(self, parts: Iterable[int]) -> None:
        self.offsets: dict[int, list[pa.Array]] = {part: [] for part in parts}
        self.positions: dict[int, int] = {}
        self._reached: dict[int, OffsetAndEpoch] = {}
        self._holes: dict[int, list[tuple[int, int]]] = {}

    def advance(self, rows: pa.RecordBatch, taken: Taken) -> None:
        """Notes new positions, and the rows that the slot begins to work on and holes below them.

        Args:
            rows: The rows.
            taken: The read that they come from.
        """
        self.positions |= taken.positions
        self._reached |= taken.reached
        for part, found in taken.holes.items():
            self._holes.setdefault(part, []).extend(found)
        for part in self.offsets if rows.num_rows else ():
            offsets = rows.column(OFFSET)
            if len(self.offsets) > 1:
                offsets = offsets.filter(pc.equal(rows.column(0), part))
            self.offsets[part].append(offsets)

    def take(self) -> dict[int, PartitionReport]:
        """Returns what was read since the last call, by partition."""
        found = {
            part: PartitionReport(
                read=pack_chunks(offsets),
                position=self.positions.get(part),
                holes=self._holes.get(part, []),
                reached=self._reached.get(part),
            )
            for part, offsets in self.offsets.items()
            if offsets or part in self.positions
        }
        self.offsets = {part: [] for part in self.offsets}
        self.positions, self._holes, self._reached = {}, {}, {}
        return found

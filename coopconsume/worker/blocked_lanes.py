"""Which rows of a slot may not start: those of blocked lanes and of withheld keys. Task-side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from coopconsume.worker.input_rows import HASH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.report import Ordering, PartitionWork

    #: (first, last) key hashes.
    Ranges = Sequence[tuple[int, int]]

#: A lane without rows.
_NO_LANE = -(1 << 63)


class BlockedLanes:
    """The lanes (see `coopconsume.worker.key_queues`) and key ranges that may start nothing.

    Args:
        work: What the slot may start, by part.
        ordering: What is handled strictly one after another.

    Attributes:
        blocked: By part and lane, the lowest offset that is not done: no higher one may start. It
            is empty for a part as long as all of its rows may start.
        withheld_by: The driver's number for the withheld key ranges; 0: none are.
    """

    def __init__(self, work: Mapping[int, PartitionWork], ordering: Ordering) -> None:
        self.blocked: dict[int, dict[int, int]] = {p: dict(w.blocked) for p, w in work.items()}
        self.withheld_by = 0
        self._ordering = ordering
        #: Key ranges whose records do not start, by part.
        self._withheld: Mapping[int, Ranges] = {}

    def lane(self, row: InputRow) -> int:
        """Returns the lane of a row, unique in its partition."""
        ordering = self._ordering
        return row.key_hash if ordering == "key" else 0 if ordering == "partition" else ~row.offset

    def is_blocked(self, row: InputRow) -> bool:
        """Whether a lower record of its lane is not done, or its key is withheld."""
        return self.is_behind(row) or self.is_withheld(row.part, row.key_hash)

    def is_behind(self, row: InputRow) -> bool:
        """Whether a lower record of its lane is not done."""
        return row.offset > self.blocked[row.part].get(self.lane(row), row.offset)

    def is_withheld(self, part: int, key_hash: int) -> bool:
        """Whether no record of a key may start any more."""
        return bool(self._withheld) and any(
            first <= key_hash <= last for first, last in self._withheld.get(part, ())
        )

    def without_withheld(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of an Arrow batch whose keys may start; called with the lock held."""
        if not self._withheld:
            return batch
        keys = zip(batch.column(0).to_pylist(), batch.column(HASH).to_pylist(), strict=True)
        keep = [not self.is_withheld(part, key_hash) for part, key_hash in keys]
        return batch if all(keep) else batch.filter(pa.array(keep))

    def block(self, row: InputRow) -> None:
        """Lets no later record of the lane of a failed one start."""
        if self._ordering != "none":
            blocked, lane = self.blocked[row.part], self.lane(row)
            blocked[lane] = min(row.offset, blocked.get(lane, row.offset))

    def withhold(self, number: int, ranges: Mapping[int, Ranges]) -> bool:
        """Lets no more records of some key ranges start; called with the lock held.

        Args:
            number: The driver's, for `SlotReport.leaving`.
            ranges: By part; those of earlier calls stay withheld.

        Returns:
            False: this number has come before.
        """
        if number == self.withheld_by:
            return False
        held = self._withheld
        self._withheld = {
            part: tuple({*held.get(part, ()), *ranges.get(part, ())}) for part in self.blocked
        }
        self.withheld_by = number
        for blocked in self.blocked.values():
            # Runners check rows one by one only if something is blocked.
            blocked[_NO_LANE] = -1
        return True

"""The produced records of a run as sorted columns, and sets of them as masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from coopconsume.testing.history.calls import History

    Offsets = Iterable[tuple[int, int]] | NDArray[np.integer]


@dataclass(frozen=True)
class RecordSets:
    """The done, pending and dead-lettered records, as masks over the rows of `Records`."""

    done: NDArray[np.bool_]
    pending: NDArray[np.bool_]
    dead: NDArray[np.bool_]


class Records:
    """The produced records, one row each, sorted by topic, partition and offset.

    Args:
        produced: Key by offset, by (topic, partition).
    """

    def __init__(self, produced: Mapping[tuple[str, int], Mapping[int, bytes | None]]) -> None:
        codes: dict[bytes | None, int] = {None: 0}
        self._partitions = sorted(produced)
        self._bounds = {}
        offsets = [np.empty(0, np.int64)]
        keys = [np.empty(0, np.int64)]
        first = 0
        for partition in self._partitions:
            of_partition = produced[partition]
            offset = np.fromiter(of_partition.keys(), np.int64, len(of_partition))
            key = np.fromiter(
                (codes.setdefault(key, len(codes)) for key in of_partition.values()),
                np.int64,
                len(of_partition),
            )
            order = np.argsort(offset, kind="stable")
            offsets.append(offset[order])
            keys.append(key[order])
            self._bounds[partition] = (first, first + len(order))
            first += len(order)
        self._codes = codes
        self._keys = [*codes]
        self._offset = np.concatenate(offsets)
        self._key = np.concatenate(keys)

    def __len__(self) -> int:
        return len(self._offset)

    def describe(self, row: int) -> tuple[tuple[str, int], int, bytes | None]:
        """Returns (topic, partition), offset and key of a row."""
        partition = next(p for p, (first, end) in self._bounds.items() if first <= row < end)
        return partition, int(self._offset[row]), self._keys[self._key[row]]

    def scope(self, ordering: str) -> NDArray[np.int64]:
        """Returns a number for each row, the same for all rows of one ordering scope."""
        alone = np.arange(len(self), dtype=np.int64)
        if ordering == "none":
            return alone
        place = np.zeros(len(self), np.int64)
        for number, (first, end) in enumerate(self._bounds.values()):
            place[first:end] = number
        if ordering == "partition":
            return place
        return np.where(self._key > 0, -1 - (place * len(self._keys) + self._key), alone)

    def mask(self, offsets_by_partition: Mapping[tuple[str, int], Offsets]) -> NDArray[np.bool_]:
        """Returns the mask of the rows with the given offsets."""
        steps = np.zeros(len(self) + 1, np.int64)
        for partition, offsets in offsets_by_partition.items():
            first, end = self._bounds.get(partition, (0, 0))
            pairs = _pairs(offsets)
            own = self._offset[first:end]
            np.add.at(steps, first + np.searchsorted(own, pairs[:, 0]), 1)
            np.add.at(steps, first + np.searchsorted(own, pairs[:, 1], "right"), -1)
        mask: NDArray[np.bool_] = np.cumsum(steps[:-1]) > 0
        return mask

    def not_produced(
        self, offsets_by_partition: Mapping[tuple[str, int], Offsets]
    ) -> list[tuple[tuple[str, int], int]]:
        """Returns the first offset of each given range that was not produced."""
        found = []
        for partition, offsets in sorted(offsets_by_partition.items()):
            first, end = self._bounds.get(partition, (0, 0))
            own = self._offset[first:end]
            for low, high in _pairs(offsets):
                there = own[np.searchsorted(own, low) : np.searchsorted(own, high, "right")]
                if len(there) != high - low + 1:
                    expected = np.arange(low, low + len(there))
                    missing = int(low + np.append(there == expected, False).argmin())
                    found.append((partition, missing))
        return found

    def rows(self, history: History) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the row of each call, or -1, and whether the keys of row and call differ."""
        row = np.full(len(history), -1, np.int64)
        for number, partition in enumerate(history.partitions):
            first, end = self._bounds.get(partition, (0, 0))
            here = np.flatnonzero(history.partition == number)
            own = self._offset[first:end]
            place = np.searchsorted(own, history.offset[here])
            known = np.append(own, -1)[place] == history.offset[here]
            row[here[known]] = first + place[known]
        codes = np.array([self._codes.get(key, -1) for key in history.keys], np.int64)
        known = row >= 0
        other = np.zeros(len(history), np.bool_)
        other[known] = codes[history.key[known]] != self._key[row[known]]
        return row, other


def _pairs(offsets: Offsets) -> NDArray[np.int64]:
    if isinstance(offsets, np.ndarray):
        return np.repeat(offsets.astype(np.int64).reshape(-1, 1), 2, axis=1)
    return np.array([*offsets], np.int64).reshape(-1, 2)

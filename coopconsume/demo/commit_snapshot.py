"""The committed state of a group at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commits import CommitStore, PartitionCommits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Partition = tuple[str, int]
    Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class CommitSnapshot:
    """The committed state of a group at one moment.

    Attributes:
        stable: The stable offset by partition.
        committed: All committed offsets by partition, as pairs (first, last).
        top: The highest committed offset by partition; at least the stable offset minus 1.
        gaps: The uncommitted offsets below the highest committed one, by partition, as pairs.
        pending: The offsets that failed or are blocked, by partition.
    """

    stable: dict[Partition, int]
    committed: dict[Partition, Pairs]
    top: dict[Partition, int]
    gaps: dict[Partition, Pairs]
    pending: dict[Partition, list[int]]

    @classmethod
    def of(
        cls, table: str, group: str, cluster_id: str, partitions: Sequence[Partition]
    ) -> CommitSnapshot:
        """Reads the state from the commit table."""
        store = CommitStore.open(table, cluster=cluster_id)
        state, waiting = store.state(group), store.pending(group)
        snapshot = cls({}, {}, {}, {}, {})
        for tp in partitions:
            commits = state.get(tp, PartitionCommits())
            stable, top = commits.stable_offset, commits.ranges.last
            snapshot.stable[tp] = stable
            snapshot.committed[tp] = [*([(0, stable - 1)] if stable else []), *commits.ranges]
            snapshot.top[tp] = stable - 1 if top is None else top
            snapshot.gaps[tp] = [] if top is None else [*commits.ranges.gaps(stable, top)]
            snapshot.pending[tp] = sorted(waiting.get(tp, {}))
        return snapshot

    @property
    def done(self) -> int:
        """The number of committed offsets."""
        return _count(self.committed)

    @property
    def undone_below(self) -> int:
        """The number of uncommitted offsets below a committed one."""
        return _count(self.gaps)

    @property
    def gap_ranges(self) -> int:
        """The number of gaps."""
        return sum(map(len, self.gaps.values()))


def _count(pairs: Mapping[Partition, Pairs]) -> int:
    return sum(last - first + 1 for of in pairs.values() for first, last in of)

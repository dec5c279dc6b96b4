"""Checks a run of the demo by its call history, its commit log, its tables and Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commits import CommitStore
from coopconsume.sinks import committed_rows
from coopconsume.testing.history import Kill, check, read_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from coopconsume.demo.job import Query
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.testing.history import History, Verdict

    Partition = tuple[str, int]
    Planned = Mapping[Partition, Mapping[int, bytes | None]]
    Pairs = list[tuple[int, int]]

MAX_ATTEMPTS = 3


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
    def of(cls, query: Query, cluster_id: str, partitions: Sequence[Partition]) -> CommitSnapshot:
        """Reads the state from the commit table."""
        store = CommitStore.open(query.commits, cluster=cluster_id)
        state, waiting = store.state(query.group), store.pending(query.group)
        snapshot = cls({}, {}, {}, {}, {})
        for tp in partitions:
            commits = state[tp]
            stable, top = commits.stable_offset, commits.ranges.last
            snapshot.stable[tp] = stable
            snapshot.committed[tp] = [*([(0, stable - 1)] if stable else []), *commits.ranges]
            snapshot.top[tp] = stable - 1 if top is None else top
            open_ranges = commits.ranges.complement(stable, top) if top is not None else ()
            snapshot.gaps[tp] = list(open_ranges)
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


@dataclass(frozen=True)
class RunReport:
    """The result of a run, record by record.

    Attributes:
        verdict: The verdict of the history checker.
        snapshot: The committed state at the end.
        rows: The number of records with an output row that counts.
        with_previous: The number of output rows that name the previous flight.
        ends: The log end by partition.
        primary: The group's offset in ``__consumer_offsets`` by partition.
        gaps_after_restart: How many gap offsets were processed after the restart, and the seconds
            from the first call to the last of them; without keys that a failed record blocks.
    """

    verdict: Verdict
    snapshot: CommitSnapshot
    rows: int
    with_previous: int
    ends: dict[Partition, int]
    primary: dict[Partition, int]
    gaps_after_restart: tuple[int, float] = (0, 0.0)

    @property
    def lost(self) -> int:
        """The number of records that are in no result, or in one without a matching call."""
        v = self.verdict
        return max(v.produced - v.done - v.pending - v.dead_lettered, v.lost.count)

    @property
    def problems(self) -> list[str]:
        """The failed checks, in words; empty if all checks pass."""
        v = self.verdict
        found = [f"{name.replace('_', ' ')}: {fault.count}" for name, fault in v.faults.items()]
        for what, left, right in (
            ("records lost", self.lost, 0),
            ("records pending after the end", v.pending, 0),
            ("records with an output row against done", self.rows, v.done),
            ("stable offsets against log ends", self.snapshot.stable, self.ends),
            ("__consumer_offsets against stable offsets", self.primary, self.snapshot.stable),
            ("log ends against what was sent", sum(self.ends.values()), v.produced),
        ):
            if left != right:
                found.append(f"{what}: {left} instead of {right}")
        return found


def build_report(
    query: Query,
    planned: Planned,
    cluster: Cluster,
    at_kill: tuple[int, CommitSnapshot] | None = None,
) -> RunReport:
    """Builds the report of a query that has ended.

    Args:
        query: The query.
        planned: The records sent to the topic.
        cluster: The cluster of the topic.
        at_kill: When the job was killed (monotonic nanoseconds), and the committed state then.
    """
    history = read_history(query.history)
    snapshot = CommitSnapshot.of(query, cluster.cluster_id, list(planned))
    dead: dict[Partition, NDArray[np.int64]] = {}
    if Path(query.dead).exists():
        dead = _offsets(committed_rows(query.dead, query.commits, query.group), list(planned))
    rows = committed_rows(query.rows, query.commits, query.group)
    handled = _offsets(rows, list(planned))
    verdict = check(
        history,
        planned,
        snapshot.committed,
        {tp: np.array(offsets, np.int64) for tp, offsets in snapshot.pending.items()},
        dead,
        kills=[Kill(at_kill[0], at_kill[1].committed)] if at_kill else [],
        max_attempts=MAX_ATTEMPTS,
    )
    return RunReport(
        verdict=verdict,
        snapshot=snapshot,
        rows=sum(len(np.unique(offsets)) for offsets in handled.values()),
        with_previous=len(rows) - rows["previous"].null_count,
        ends=cluster.ends(planned),
        primary={tp: held.offset for tp, held in cluster.primary().items()},
        gaps_after_restart=_gaps_after_restart(history, planned, *at_kill) if at_kill else (0, 0.0),
    )


def _gaps_after_restart(
    history: History, planned: Planned, at_ns: int, snapshot: CommitSnapshot
) -> tuple[int, float]:
    gaps, last = 0, at_ns
    later = history.start > at_ns
    for number, tp in enumerate(history.partitions):
        failed = snapshot.pending[tp]
        waiting = {planned[tp][offset] for offset in failed} - {None}
        free = [
            offset
            for low, high in snapshot.gaps[tp]
            for offset in range(low, high + 1)
            if offset not in failed and planned[tp][offset] not in waiting
        ]
        calls = np.flatnonzero(later & (history.partition == number))
        # Calls are sorted by start time: the first one of each offset counts.
        offsets, firsts = np.unique(history.offset[calls], return_index=True)
        called = history.start[calls[firsts[np.isin(offsets, free)]]]
        gaps += len(called)
        last = max(last, int(called.max(initial=at_ns)))
    began = int(history.start[later].min(initial=last))
    return gaps, (last - began) / 1e9


def _offsets(rows: pa.Table, partitions: Sequence[Partition]) -> dict[Partition, NDArray[np.int64]]:
    at, offsets = rows["_partition"].to_numpy(), rows["_offset"].to_numpy()
    return {(topic, number): offsets[at == number] for topic, number in partitions}


def _count(pairs: Mapping[Partition, Pairs]) -> int:
    return sum(last - first + 1 for of in pairs.values() for first, last in of)

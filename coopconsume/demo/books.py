"""The books of a run, made up from what it left behind: calls, commit log, tables and Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commits import CommitStore
from coopconsume.sinks import counted
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
class Standing:
    """What the commit log says of a group at one moment.

    Attributes:
        stable: Stable offset by partition.
        committed: All committed offsets by partition, as pairs (first, last).
        top: Highest committed offset by partition; one below the stable offset at least.
        gaps: Undone offsets below the highest committed one, by partition, as pairs.
        pending: Offsets that were read and failed or wait, by partition.
    """

    stable: dict[Partition, int]
    committed: dict[Partition, Pairs]
    top: dict[Partition, int]
    gaps: dict[Partition, Pairs]
    pending: dict[Partition, list[int]]

    @classmethod
    def of(cls, query: Query, cluster_id: str, partitions: Sequence[Partition]) -> Standing:
        """Read it from the commit table."""
        store = CommitStore.open(query.commits, cluster=cluster_id)
        state, waiting = store.state(query.group), store.pending(query.group)
        standing = cls({}, {}, {}, {}, {})
        for tp in partitions:
            commits = state[tp]
            stable, top = commits.stable_offset, commits.ranges.last
            standing.stable[tp] = stable
            standing.committed[tp] = [*([(0, stable - 1)] if stable else []), *commits.ranges]
            standing.top[tp] = stable - 1 if top is None else top
            open_ranges = commits.ranges.complement(stable, top) if top is not None else ()
            standing.gaps[tp] = list(open_ranges)
            standing.pending[tp] = sorted(waiting.get(tp, {}))
        return standing

    @property
    def done(self) -> int:
        """Committed offsets in all."""
        return _count(self.committed)

    @property
    def undone_below(self) -> int:
        """Offsets that are not done although a higher one of their partition is."""
        return _count(self.gaps)

    @property
    def gap_ranges(self) -> int:
        """Ranges they form."""
        return sum(map(len, self.gaps.values()))


@dataclass(frozen=True)
class Books:
    """What became of every record.

    Attributes:
        verdict: The checker's.
        standing: What the commit log says at the end.
        rows: Records with an output row that counts.
        with_previous: Output rows that know the flight before.
        ends: Log end by partition.
        primary: What ``__consumer_offsets`` says, by partition.
        gaps_again: For the restart: how many gaps were called again, and in how many seconds of
            its first call; without those of keys with a failed record, whose turn had not come.
    """

    verdict: Verdict
    standing: Standing
    rows: int
    with_previous: int
    ends: dict[Partition, int]
    primary: dict[Partition, int]
    gaps_again: tuple[int, float] = (0, 0.0)

    @property
    def lost(self) -> int:
        """Records in none of the books, or in one without a call that bears it out."""
        v = self.verdict
        return max(v.produced - v.done - v.pending - v.dead_lettered, v.lost.count)

    @property
    def complaints(self) -> list[str]:
        """What does not balance, in words; empty if all does."""
        v = self.verdict
        found = [f"{name.replace('_', ' ')}: {fault.count}" for name, fault in v.faults.items()]
        for what, left, right in (
            ("records lost", self.lost, 0),
            ("records pending after the end", v.pending, 0),
            ("records with an output row against done", self.rows, v.done),
            ("stable offsets against log ends", self.standing.stable, self.ends),
            ("__consumer_offsets against stable offsets", self.primary, self.standing.stable),
            ("log ends against what was sent", sum(self.ends.values()), v.produced),
        ):
            if left != right:
                found.append(f"{what}: {left} instead of {right}")
        return found


def make_up(
    query: Query, planned: Planned, cluster: Cluster, at_kill: tuple[int, Standing] | None = None
) -> Books:
    """Make up the books of a query that has ended.

    Args:
        query: The query.
        planned: What was sent to the topic.
        cluster: Where the topic is.
        at_kill: When the job was killed (monotonic nanoseconds), and what was committed then.
    """
    history = read_history(query.history)
    standing = Standing.of(query, cluster.cluster_id, list(planned))
    dead: dict[Partition, NDArray[np.int64]] = {}
    if Path(query.dead).exists():
        dead = _offsets(counted(query.dead, query.commits, query.group), list(planned))
    rows = counted(query.rows, query.commits, query.group)
    handled = _offsets(rows, list(planned))
    verdict = check(
        history,
        planned,
        standing.committed,
        {tp: np.array(offsets, np.int64) for tp, offsets in standing.pending.items()},
        dead,
        kills=[Kill(at_kill[0], at_kill[1].committed)] if at_kill else [],
        max_attempts=MAX_ATTEMPTS,
    )
    return Books(
        verdict=verdict,
        standing=standing,
        rows=sum(len(np.unique(offsets)) for offsets in handled.values()),
        with_previous=len(rows) - rows["previous"].null_count,
        ends=cluster.ends(planned),
        primary={tp: held.offset for tp, held in cluster.primary().items()},
        gaps_again=_gaps_again(history, planned, *at_kill) if at_kill else (0, 0.0),
    )


def _gaps_again(
    history: History, planned: Planned, at_ns: int, standing: Standing
) -> tuple[int, float]:
    gaps, last = 0, at_ns
    later = history.start > at_ns
    for number, tp in enumerate(history.partitions):
        failed = standing.pending[tp]
        waiting = {planned[tp][offset] for offset in failed} - {None}
        free = [
            offset
            for low, high in standing.gaps[tp]
            for offset in range(low, high + 1)
            if offset not in failed and planned[tp][offset] not in waiting
        ]
        calls = np.flatnonzero(later & (history.partition == number))
        # Calls are in the order of their starts: the first of each offset counts.
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

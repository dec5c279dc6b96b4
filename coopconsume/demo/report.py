"""Checks a run of the demo by its call history, its commit log, its tables and Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coopconsume.demo.commit_snapshot import CommitSnapshot
from coopconsume.demo.job import MAX_ATTEMPTS
from coopconsume.demo.lost_slots import excuses
from coopconsume.sinks import committed_rows
from coopconsume.testing import Kill, check, read_history
from coopconsume.testing.history.calls import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from coopconsume.demo.job import Query
    from coopconsume.demo.lost_slots import LostSlot
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.testing.history import History, Verdict

    Partition = tuple[str, int]
    Planned = Mapping[Partition, Mapping[int, bytes | None]]


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
        next_call: Seconds from the kill to the next handler call.
        gaps_after_restart: How many gap offsets were processed after the restart, and the seconds
            from the first call to the last of them; without keys that a failed record blocks.
        lost_slots: The lost slots, and for each one the number of records that its worker had
            handled and that were handled again.
    """

    verdict: Verdict
    snapshot: CommitSnapshot
    rows: int
    with_previous: int
    ends: dict[Partition, int]
    primary: dict[Partition, int]
    next_call: float = 0.0
    gaps_after_restart: tuple[int, float] = (0, 0.0)
    lost_slots: tuple[tuple[LostSlot, int], ...] = ()

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
    lost_slots: Sequence[LostSlot] = (),
) -> RunReport:
    """Builds the report of a query that has ended.

    Args:
        query: The query.
        planned: The records sent to the topic.
        cluster: The cluster of the topic.
        at_kill: When the job was killed (monotonic nanoseconds), and the committed state then.
        lost_slots: The slots that were lost besides.
    """
    history = read_history(query.path("history"))
    table = query.path("commits")
    snapshot = CommitSnapshot.of(table, query.group, cluster.cluster_id, list(planned))
    dead: dict[Partition, NDArray[np.int64]] = {}
    if Path(query.path("dead")).exists():
        dead = _offsets(committed_rows(query.path("dead"), table, query.group), list(planned))
    rows = committed_rows(query.path("rows"), table, query.group)
    handled = _offsets(rows, list(planned))
    kills, seen = excuses(lost_slots)
    verdict = check(
        history,
        planned,
        snapshot.committed,
        {tp: np.array(offsets, np.int64) for tp, offsets in snapshot.pending.items()},
        dead,
        kills=[*kills, *([Kill(at_kill[0], at_kill[1].committed)] if at_kill else [])],
        seen=seen,
        max_attempts=MAX_ATTEMPTS,
    )
    return RunReport(
        verdict=verdict,
        snapshot=snapshot,
        rows=sum(len(np.unique(offsets)) for offsets in handled.values()),
        with_previous=len(rows) - rows["previous"].null_count,
        ends=cluster.ends(planned),
        primary={tp: held.offset for tp, held in cluster.primary().items()},
        next_call=seconds_to_next_call(history, at_kill[0]) if at_kill else 0.0,
        gaps_after_restart=_gaps_after_restart(history, planned, *at_kill) if at_kill else (0, 0.0),
        lost_slots=tuple((one, repeated_after(history, one)) for one in lost_slots),
    )


def repeated_after(history: History, lost: LostSlot) -> int:
    """Returns how many records the worker of a lost slot had handled that were handled again."""
    pids = np.array([int(process.partition("-")[0]) for process in history.processes], np.int64)
    records = history.partition * (1 << 40) + history.offset
    handled = (pids[history.process] == lost.pid) & (history.outcome == OUTCOMES.index("done"))
    again = records[history.start > lost.at_ns]
    return len(np.intersect1d(records[handled & (history.end <= lost.until_ns)], again))


def seconds_to_next_call(history: History, at_ns: int) -> float:
    """Returns the seconds from a time to the next handler call; 0 without one."""
    later = history.start[history.start > at_ns]
    return (int(later.min()) - at_ns) / 1e9 if len(later) else 0.0


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

"""The replicas of a queue, as one consumer has read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges, PartitionCommits
from commits.offsets import MAX_OFFSET
from coopconsume.queue.incarnation import NOT_KNOWN
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.rows import MOST_LISTED, Beginning, at_least
from coopconsume.queue.source_log import keep_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.queue.incarnation import LogIncarnation
    from coopconsume.queue.replica import ReplicaAnswer
    from coopconsume.queue.rows import Offsets
    from coopconsume.queue.source_log import SourceLog


class ReplicaSet:
    """The states of all replicas, and the logs whose records this consumer hands out.

    Rows of the replicas' logs and snapshots move the states, `follow` moves the logs. A replica
    counts for a partition only while it has the log that this consumer works on.

    Args:
        count: The number of replicas.

    Attributes:
        states: The state of each replica, as far as its log was read.
        majority: The number of replicas that decide.
    """

    def __init__(self, count: int) -> None:
        self.states = [ReplicaState() for _ in range(count)]
        self.majority = count // 2 + 1
        self._logs: dict[int, LogIncarnation] = {}

    def follow(self, found: Mapping[int, SourceLog]) -> set[int]:
        """Work on the logs that were found.

        Returns:
            The partitions whose log is another one than before.
        """
        changed = {p for p, source in found.items() if self._logs.get(p, source.log) != source.log}
        self._logs |= {p: source.log for p, source in found.items()}
        return changed

    def log(self, partition: int) -> LogIncarnation:
        """Return the log of a partition that this consumer works on."""
        return self._logs.get(partition, NOT_KNOWN)

    def has(self, state: ReplicaState, partition: int) -> bool:
        """Return whether a replica has the log of a partition that this consumer works on."""
        return state.log(partition) == self.log(partition)

    def lacks_logs(self, replica: int) -> bool:
        """Return whether a replica does not have all logs that this consumer works on."""
        state = self.states[replica]
        return any(state.log(partition) != log for partition, log in self._logs.items())

    def states_of(self, partition: int) -> list[ReplicaState]:
        """Return the replicas that have the log of a partition that this consumer works on."""
        return [state for state in self.states if self.has(state, partition)]

    def has_begun(self, partitions: Iterable[int]) -> bool:
        """Return whether a majority of the replicas has these partitions."""
        wanted = set(partitions)
        begun = [state for state in self.states if all(self.has(state, p) for p in wanted)]
        return len(begun) >= self.majority

    def by_majority(self, answers: Iterable[ReplicaAnswer]) -> Offsets:
        """Return the offsets that a majority of the replicas has granted or counted."""
        return at_least(self.majority, [answer.ok for answer in answers])

    def done(self, partition: int) -> tuple[int, OffsetRanges]:
        """Return the stable offset of a partition over all replicas, and the done ones above it."""
        states = self.states_of(partition)
        if not states:
            return 0, OffsetRanges()
        done = _all_done(states, partition)
        return done.stable_offset, done.ranges

    def done_from(self, partition: int, start: int) -> OffsetRanges:
        """Return what is done on at least one replica, from an offset on; a part if it is much."""
        whole = OffsetRanges()
        for state in self.states_of(partition):
            done = state.done(partition)
            if done.stable_offset > start:
                whole |= OffsetRanges([(start, min(done.stable_offset, start + MOST_LISTED) - 1)])
            whole |= done.ranges
        return whole.clip(start, whole.last or 0)

    def deliveries(self, partition: int, offset: int) -> int:
        """Return how often a record was handed out before without being done, as far as known.

        A delivery counts on each replica that saw its end. The highest count is returned.
        """
        counts = (
            n
            for state in self.states_of(partition)
            for n, found in state.deliveries(partition).items()
            if offset in found
        )
        return max(counts, default=0)

    def beginning(
        self, replica: int, partition: int, source: SourceLog, readable: set[int]
    ) -> tuple[OffsetRanges, Beginning] | None:
        """Return what is done as a partition begins on a replica, and how; None if it has begun.

        None also if too few of the replicas that have the log are readable to know what is done.

        Args:
            replica: The replica.
            partition: The partition.
            source: Its log.
            readable: The replicas whose logs were read up to their ends.
        """
        state = self.states[replica]
        log = state.log(partition)
        if log == source.log:
            is_news = source.epoch > state.epoch(partition)
            return (OffsetRanges(), Beginning(source.epoch)) if is_news else None
        if log is not None:
            end = keep_below(self.states, log, partition, source, MAX_OFFSET)
            if end:
                return OffsetRanges(), Beginning(source.epoch, log, end)
            if log.topic_id == source.log.topic_id and log.cut > source.log.cut:
                return None  # seen in the log of this replica after the last look
        known = [s for s in self.states if s.log(partition) == source.log]
        read = [r for r in readable if self.states[r].log(partition) == source.log]
        if known and len(read) < self.majority and len(readable) < len(self.states):
            return None
        done = _all_done(known, partition) if known else PartitionCommits(source.start)
        if done.stable_offset > MOST_LISTED:
            return done.ranges, Beginning(source.epoch, log, start=done.stable_offset)
        below = OffsetRanges([(0, done.stable_offset - 1)] if done.stable_offset else [])
        return below | done.ranges, Beginning(source.epoch, log)


def _all_done(states: Iterable[ReplicaState], partition: int) -> PartitionCommits:
    """Return what is done on at least one replica."""
    done = [state.done(partition) for state in states]
    stable = max(one.stable_offset for one in done)
    return PartitionCommits(stable, OffsetRanges.union(one.ranges for one in done), max_ranges=None)

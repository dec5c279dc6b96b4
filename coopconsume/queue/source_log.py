"""What consumers of a queue know of the logs of its topic: which ones they are, where they begin.

A topic that was deleted and created again has the same name, and a log that an unclean election
has cut has other records at the same offsets. Replicas therefore note the identity of each log, and
the leader epoch in which it was last seen. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from coopconsume.queue.incarnation import NOT_KNOWN, LogIncarnation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.kafka.cluster import LogEnd
    from coopconsume.queue.replica import ReplicaState

#: Seconds for which no other id must have been seen before a topic takes the place of the noted
#: one, and before a former one does. A broker that is behind, or has lost its cluster, describes a
#: former topic.
NEW_AFTER, _RETURNS_AFTER = 1.0, 60.0


#: What is noted of a log, see `QueuePartition`; what is of most interest is last.
LogNote: TypeAlias = Literal["same", "new", "cut", "created again", "replaced"]


@dataclass(frozen=True, slots=True)
class SourceLog:
    """The log of a partition, as a consumer has found it.

    Attributes:
        log: Its identity.
        start: The first offset that counts if no replica has the log.
        epoch: The leader epoch; -1: not known.
        cut_at: The offset from which on it is another log than the noted one; None: it is the same.
    """

    log: LogIncarnation
    start: int = 0
    epoch: int = -1
    cut_at: int | None = None


def is_known(states: Iterable[ReplicaState]) -> bool:
    """Return whether a replica has the queue: a partition that none has was added later."""
    return any(state.partitions for state in states)


def noted(states: Iterable[ReplicaState], partition: int, topic_id: str) -> LogIncarnation:
    """Return the identity of a log after its last cut that is noted on a replica."""
    logs = [state.log(partition) for state in states]
    cuts = [log.cut for log in logs if log is not None and log.topic_id == topic_id]
    return LogIncarnation(topic_id, max(cuts, default=0))


def epochs_to_compare(
    states: Sequence[ReplicaState], topic_id: str, ends: Mapping[int, LogEnd]
) -> dict[int, int]:
    """Return the noted leader epochs of the partitions that have another leader since then."""
    changed: dict[int, int] = {}
    for partition, end in ends.items():
        log = noted(states, partition, topic_id)
        seen = max((s.epoch(partition) for s in states if s.log(partition) == log), default=-1)
        if end.leader_epoch is not None and 0 <= seen < end.leader_epoch:
            changed[partition] = seen
    return changed


def source_logs(
    states: Sequence[ReplicaState],
    topic_id: str,
    ends: Mapping[int, LogEnd],
    kept: Mapping[int, int],
    starts: Mapping[int, int],
) -> dict[int, SourceLog]:
    """Return the logs that were found.

    Args:
        states: The replicas.
        topic_id: The id of the topic.
        ends: The ends of the partitions.
        kept: Where the noted leader epochs of `epochs_to_compare` end, as far as that is known.
        starts: The first offsets that count for logs that no replica has.
    """
    found: dict[int, SourceLog] = {}
    for partition, end in ends.items():
        log, cut_at = noted(states, partition, topic_id), kept.get(partition)
        epoch = -1 if end.leader_epoch is None else end.leader_epoch
        known = max((s.end(partition) for s in states if s.log(partition) == log), default=0)
        if cut_at is not None and cut_at < known:
            log = LogIncarnation(topic_id, epoch)
        else:
            cut_at = None
        found[partition] = SourceLog(log, starts.get(partition, 0), epoch, cut_at)
    return found


def keep_below(
    states: Iterable[ReplicaState], log: LogIncarnation, partition: int, found: SourceLog, most: int
) -> int:
    """Return the offset up to which a noted log is the one that was found; 0 if it is another.

    Args:
        states: The replicas.
        log: The noted log.
        partition: The partition.
        found: The log that was found.
        most: The offset above all others.
    """
    if log == NOT_KNOWN:
        # A log of an earlier version takes the identity of the first look.
        logs = {state.log(partition) for state in states} - {None, NOT_KNOWN, found.log}
        was_another = any(state.past(partition) for state in states)
        return 0 if logs or was_another or found.log.cut else most
    if log.topic_id == found.log.topic_id and found.cut_at is not None:
        return found.cut_at
    return 0


def log_note(states: Iterable[ReplicaState], partition: int, found: SourceLog) -> LogNote:
    """Return what replicas note of the log that was found."""
    logs = [(state, log) for state in states if (log := state.log(partition)) is not None]
    if not logs:
        return "new"
    having = [state for state, log in logs if log == found.log]
    if not having:
        # Before the first look of this version, no identity is noted.
        return "same" if all(log == NOT_KNOWN for _, log in logs) else "replaced"
    if any(state.past(partition) for state in having):
        return "created again"
    return "cut" if found.log.cut else "same"


class TopicIds:
    """Distinguishes a topic that was created again from an old answer of a slow broker."""

    def __init__(self) -> None:
        self._seen = ""
        self._since = 0.0

    def is_current(self, topic_id: str, states: Iterable[ReplicaState], now: float) -> bool:
        """Return whether an id that was just seen is that of the topic, and not of a former one."""
        if topic_id != self._seen:
            self._seen, self._since = topic_id, now
        partitions = [(state, p) for state in states for p in state.partitions]
        logs = {log for state, p in partitions if (log := state.log(p)) is not None}
        ids = {log.topic_id for log in logs} - {NOT_KNOWN.topic_id}
        wait = 0.0 if topic_id in ids or not ids else NEW_AFTER
        if any(topic_id in state.past(p) for state, p in partitions):
            wait = _RETURNS_AFTER
        return now - self._since >= wait

"""The status of a queue for operators: what is done, held and free, and whether replicas agree."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from coopconsume.kafka.cluster import Cluster
from coopconsume.queue.replica import NOBODY
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.queue.settings import QueueReplica


_OPENING = 30.0


@dataclass(frozen=True)
class QueuePartition:
    """The status of a partition of a queue; all but the first two are numbers of records.

    Attributes:
        partition: The partition.
        stable_offset: The first offset that is not done on any replica.
        done_above: Done at or above the stable offset.
        held: Held by consumers on at least one replica.
        delayed: Released with a delay that is not over.
        free: Neither done nor held nor delayed.
    """

    partition: int
    stable_offset: int
    done_above: int
    held: int
    delayed: int
    free: int


@dataclass(frozen=True)
class HoldStatus:
    """A hold on one replica.

    Attributes:
        replica: The log of the replica.
        position: The position of the row in that log.
        holder: The id of the consumer; empty for released records with a delay.
        partition: The partition.
        offsets: Pairs of first and last offset.
        seconds: The duration.
    """

    replica: str
    position: int
    holder: str
    partition: int
    offsets: tuple[tuple[int, int], ...]
    seconds: float


@dataclass(frozen=True)
class ReplicaStatus:
    """The status of a replica.

    Attributes:
        replica: Its log.
        is_readable: Whether the log was read up to its end.
        rows: The number of rows since the start of the log or its last snapshot.
        passed_over: The number of records in the log that are no rows.
        lacking: The number of records that are done on another replica and not here.
    """

    replica: str
    is_readable: bool
    rows: int
    passed_over: int
    lacking: int


@dataclass(frozen=True)
class QueueStatus:
    """The status of a queue.

    Attributes:
        name: The group and the topic.
        partitions: The partitions.
        holds: The holds on all replicas.
        replicas: The replicas.
    """

    name: str
    partitions: tuple[QueuePartition, ...]
    holds: tuple[HoldStatus, ...]
    replicas: tuple[ReplicaStatus, ...]

    @property
    def is_sound(self) -> bool:
        """Whether all replicas are readable, agree on what is done, and contain only rows."""
        return all(r.is_readable and not r.lacking and not r.passed_over for r in self.replicas)


def queue_status(
    options: Mapping[str, Any],
    topic: str,
    replicas: Sequence[str | QueueReplica] | None = None,
) -> QueueStatus:
    """Return the status of a queue; nothing is created.

    Args:
        options: As for `QueueConsumer`.
        topic: The topic with the records.
        replicas: As for `QueueConsumer`.

    Raises:
        OptionError: The options are not valid.
        QueueLogFormat: Its log cannot be read.
        QueueNotFound: The queue does not exist.
        QueueUnavailable: No majority of the replicas can be read.
        TopicNotFound: The topic does not exist.
    """
    settings = QueueSettings.parse(options, topic, replicas, hold=3600.0)
    with closing(Cluster(settings.options)) as cluster:
        (found,) = cluster.topics([topic])
        ends = cluster.ends([(topic, p) for p in range(found.partitions)])
    session = QueueSession(settings, create=False)
    try:
        session.open(_OPENING)
        partitions = tuple(_partition(session, p, ends[topic, p]) for p in range(found.partitions))
        replicas_found = tuple(_replica(session, n) for n in range(len(session.replicas)))
        return QueueStatus(settings.name, partitions, tuple(_holds(session)), replicas_found)
    finally:
        session.close()


def _partition(session: QueueSession, partition: int, end: int) -> QueuePartition:
    stable, above = session.member.done(partition)
    held, delayed = OffsetRanges(), OffsetRanges()
    for state in session.member.states:
        for hold in state.holds.values():
            offsets = hold.offsets.get(partition, OffsetRanges()) - above
            if hold.holder == NOBODY:
                delayed |= offsets
            else:
                held |= offsets
    delayed -= held
    left = max(0, end - stable) - len(above) - len(held) - len(delayed)
    return QueuePartition(partition, stable, len(above), len(held), len(delayed), max(0, left))


def _holds(session: QueueSession) -> list[HoldStatus]:
    return [
        HoldStatus(
            session.replicas[n].place, hold.position, hold.holder, partition,
            tuple(offsets.pairs()), hold.seconds,
        )
        for n, state in enumerate(session.member.states)
        for hold in state.holds.values()
        for partition, offsets in hold.offsets.items()
    ]  # fmt: skip


def _replica(session: QueueSession, number: int) -> ReplicaStatus:
    rows, state = session.rows[number], session.member.states[number]
    lacking = 0
    for partition in {p for each in session.member.states for p in each.partitions}:
        done = state.done(partition)
        stable, above = session.member.done(partition)
        behind = stable > done.stable_offset
        missing = OffsetRanges([(done.stable_offset, stable - 1)] if behind else [])
        lacking += len((missing | above) - done.ranges)
    return ReplicaStatus(
        session.replicas[number].place, session.is_read(number), rows.length, rows.passed_over,
        lacking,
    )  # fmt: skip

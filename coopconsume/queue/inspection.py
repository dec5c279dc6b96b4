"""The status of a queue for operators: what is done, held and free, and whether replicas agree."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from commits import OffsetRanges, PartitionCommits
from coopconsume.kafka.cluster import Cluster
from coopconsume.queue.incarnation import NOT_KNOWN
from coopconsume.queue.replica import NOBODY
from coopconsume.queue.replica_notes import times_replaced
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueSettings
from coopconsume.queue.source_log import LogNote, SourceLog, log_note
from coopconsume.queue.source_look import SourceTopic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.queue.replica import ReplicaState
    from coopconsume.queue.settings import QueueReplica
    from coopconsume.queue.source_look import SourceLook


_OPENING = 30.0


@dataclass(frozen=True)
class QueuePartition:
    """The status of a partition of a queue.

    `done_above` to `free` are numbers of records.

    Attributes:
        partition: The partition.
        stable_offset: The first offset that is not done on any replica.
        done_above: Done at or above the stable offset.
        held: Held by consumers on at least one replica.
        delayed: Released with a delay that is not over.
        free: Neither done nor held nor delayed.
        log: What replicas note of its log: ``same``; ``new``: no replica has it yet; ``created
            again`` or ``cut``: the topic was created again, or the log was cut by an unclean
            election, and consumers hand out the new records; ``replaced``: this has happened, and
            no consumer has noticed it yet.
    """

    partition: int
    stable_offset: int
    done_above: int
    held: int
    delayed: int
    free: int
    log: LogNote = "same"


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
        log: What it notes of the logs of the topic; see `QueuePartition`.
        problem: Why it is not readable; empty if it is.
        replaced: How often its log was deleted and created again.
        is_news: Whether no consumer has noticed the last time yet.
    """

    replica: str
    is_readable: bool
    rows: int
    passed_over: int
    lacking: int
    log: LogNote = "same"
    problem: str = ""
    replaced: int = 0
    is_news: bool = False


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
        """Whether all replicas are readable, agree, have only rows, and note the present logs."""
        is_noted = all(partition.log != "replaced" for partition in self.partitions)
        return is_noted and all(
            r.is_readable and not (r.lacking or r.passed_over or r.is_news) for r in self.replicas
        )


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
        QueueLogFormat: The logs of so many replicas cannot be read that no majority is left.
        QueueNotFound: The queue does not exist.
        QueueUnavailable: No majority of the replicas can be read.
        TopicNotFound: The topic does not exist.
    """
    settings = QueueSettings.parse(options, topic, replicas, hold=3600.0)
    session = QueueSession(settings, create=False)
    try:
        with closing(Cluster(settings.options)) as cluster:
            cluster.topics([topic])  # checks permissions
            session.open(_OPENING)
            source = SourceTopic(cluster, topic)
            look = source.look(source.described(), session.member.replicas.states, {})
            former = source.noted_replicas()
        session.member.follow(_noted_logs(session.member.replicas.states, look.logs))
        partitions = tuple(_partition(session, p, look) for p in look.ends)
        replicas_found = tuple(
            _replica(session, n, look, former) for n in range(len(session.replicas))
        )
        return QueueStatus(settings.name, partitions, tuple(_holds(session)), replicas_found)
    finally:
        session.close()


def _noted_logs(
    states: Sequence[ReplicaState], found: Mapping[int, SourceLog]
) -> dict[int, SourceLog]:
    """Return the logs to show; a queue of an earlier version has logs without an identity."""
    return {
        p: SourceLog(NOT_KNOWN)
        if {state.log(p) for state in states} - {None} == {NOT_KNOWN}
        else source
        for p, source in found.items()
    }


def _partition(session: QueueSession, partition: int, look: SourceLook) -> QueuePartition:
    source, end = look.logs[partition], look.ends[partition]
    replicas = session.member.replicas
    note = log_note(replicas.states, partition, source)
    if not replicas.states_of(partition):
        stable = source.start
        return QueuePartition(
            partition, stable, done_above=0, held=0, delayed=0, free=max(0, end - stable), log=note
        )
    stable, above = replicas.done(partition)
    held, delayed = OffsetRanges(), OffsetRanges()
    for state in replicas.states_of(partition):
        for hold in state.holds.values():
            offsets = hold.offsets.get(partition, OffsetRanges()) - above
            if hold.holder == NOBODY:
                delayed |= offsets
            else:
                held |= offsets
    delayed -= held
    left = max(0, end - stable) - len(above) - len(held) - len(delayed)
    return QueuePartition(
        partition,
        stable,
        done_above=len(above),
        held=len(held),
        delayed=len(delayed),
        free=max(0, left),
        log=note,
    )


def _holds(session: QueueSession) -> list[HoldStatus]:
    return [
        HoldStatus(
            session.replicas[n].place,
            hold.position,
            holder=hold.holder,
            partition=partition,
            offsets=tuple(offsets.pairs()),
            seconds=hold.seconds,
        )
        for n, state in enumerate(session.member.replicas.states)
        for hold in state.holds.values()
        for partition, offsets in hold.offsets.items()
    ]


def _problem(session: QueueSession, number: int) -> str:
    if session.is_read(number):
        return ""
    return str(session.problem(number) or "no answer in time")


def _replica(
    session: QueueSession, number: int, look: SourceLook, former: Mapping[int, str]
) -> ReplicaStatus:
    rows, state = session.rows[number], session.member.replicas.states[number]
    notes = [log_note([state], partition, source) for partition, source in look.logs.items()]
    lacking = 0
    for partition in {p for each in session.member.replicas.states for p in each.partitions}:
        if state not in session.member.replicas.states_of(partition):
            done = PartitionCommits(max_ranges=None)
        else:
            done = state.done(partition)
        stable, above = session.member.replicas.done(partition)
        missing = done.ranges.gaps(done.stable_offset, stable - 1)
        lacking += sum(last - first + 1 for first, last in missing) + len(above - done.ranges)
    return ReplicaStatus(
        session.replicas[number].place,
        session.is_read(number),
        rows.length,
        rows.passed_over,
        lacking,
        max(notes, key=get_args(LogNote).index, default="new"),
        _problem(session, number),
        *times_replaced(session.member.replicas.states, session.identities, former, number),
    )

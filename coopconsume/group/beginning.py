"""Where a member begins in each partition, from the commit log, Kafka's offsets and the options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from commits.model import TopicPartition
    from coopconsume.kafka.primary import Primary


@dataclass(frozen=True)
class LogFacts:
    """What the commit log says of a group; read before Kafka's offsets.

    Attributes:
        stable: The stable offset of each partition that the log knows.
        known_primary: Offsets in Kafka that others wrote, that the log has taken into account, and
            that no member has replaced yet, as far as the log knows.
        initial_partitions: How many partitions each topic had when the group first dealt it.
    """

    stable: Mapping[TopicPartition, int]
    known_primary: Mapping[TopicPartition, int]
    initial_partitions: Mapping[str, int]


@dataclass
class Beginning:
    """What a member writes to the commit log before it begins.

    Attributes:
        from_primary: Partitions that start at the group's offset in Kafka.
        from_options: Partitions that start where ``startingOffsets`` says.
        from_earliest: Partitions that were added to a topic that the group knows.
        noted: Offsets in Kafka for the log to note, as others wrote them; None: they are ours.
        moved: Offsets in Kafka that others moved.
    """

    from_primary: dict[TopicPartition, int] = field(default_factory=dict)
    from_options: list[TopicPartition] = field(default_factory=list)
    from_earliest: list[TopicPartition] = field(default_factory=list)
    noted: dict[TopicPartition, int | None] = field(default_factory=dict)
    moved: dict[TopicPartition, int] = field(default_factory=dict)


def beginning(
    owned: Collection[TopicPartition],
    dealt: Collection[TopicPartition],
    log: LogFacts,
    primary: Mapping[TopicPartition, Primary],
    topic_ids: Mapping[str, str],
) -> Beginning:
    """Decides where partitions begin.

    The group's offset in Kafka is a mirror of the log, but a late one: what others wrote stays
    there until a member has replaced it. So the log notes such an offset before the first commit
    on top of it. Only another offset than the noted one is a change from outside.

    Args:
        owned: Partitions that the member owns key ranges of.
        dealt: All partitions of the epoch in the topics of the member. The first member to begin
            starts them all, so that ``latest`` means the same moment for all.
        log: What the commit log says.
        primary: The group's offsets in Kafka.
        topic_ids: Kafka's ids of the topics.
    """
    found = Beginning()
    for tp in sorted({*owned, *dealt}):
        held = primary.get(tp)
        if held is not None and held.ours and held.topic_id != topic_ids[tp[0]]:
            held = None  # It was written for a topic that was deleted and created again.
        if tp not in log.stable:
            if held is not None:
                found.from_primary[tp] = held.offset
            elif tp[1] >= log.initial_partitions.get(tp[0], tp[1] + 1):
                found.from_earliest.append(tp)
            else:
                found.from_options.append(tp)
        if held is not None and tp in owned:
            _compare(tp, held, log, found)
    return found


def _compare(tp: TopicPartition, held: Primary, log: LogFacts, found: Beginning) -> None:
    known = log.known_primary.get(tp)
    if held.ours:
        if known is not None:
            found.noted[tp] = None
    elif held.offset == log.stable.get(tp, held.offset):
        if known != held.offset:
            found.noted[tp] = held.offset
    elif held.offset != known:
        found.moved[tp] = held.offset

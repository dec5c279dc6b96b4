"""Reads the statuses of a group's partitions from Kafka and the commit log."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from coopconsume.admin.offsets.status import PartitionStatus, times_of
from coopconsume.errors import GroupNotFound, InvalidOption
from coopconsume.group.agreement import ORDERING_KEY
from coopconsume.kafka.identity import is_other_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from commits import CommitStore, PartitionCommits
    from commits.model import TopicPartition
    from coopconsume.kafka.blocker_records import BlockerRecord
    from coopconsume.kafka.cluster import Cluster, Topic
    from coopconsume.kafka.primary import Primary
    from coopconsume.options import Options

#: Returns what the log has at the offsets of blockers, as far as it is read.
BlockerReader: TypeAlias = (
    "Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, BlockerRecord]]"
)

_SHOWN_GROUPS = 5


@dataclass(frozen=True)
class GroupOffsets:
    """The offsets of a group in the commit log and in Kafka.

    Attributes:
        group: The group id.
        committed: The committed state of each partition in the commit log.
        primary: The offsets in ``__consumer_offsets``.
    """

    group: str
    committed: Mapping[TopicPartition, PartitionCommits]
    primary: Mapping[TopicPartition, Primary]

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have an offset in one of them."""
        return {*self.committed, *self.primary}


@dataclass(frozen=True)
class KafkaLogs:
    """The topics and the logs of partitions, as Kafka has them.

    Attributes:
        topics: The topics that exist, by name.
        starts: The first offset of each log.
        ends: The end of each log.
    """

    topics: Mapping[str, Topic]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @classmethod
    def read(cls, cluster: Cluster, partitions: Collection[TopicPartition]) -> Self:
        """Reads those of some partitions, by three calls for any number of them."""
        found = cluster.topics({topic for topic, _ in partitions}, missing_ok=True)
        logs = cls({topic.name: topic for topic in found}, {}, {})
        there = logs.existing(partitions)
        return replace(logs, starts=cluster.log_starts(there), ends=cluster.ends(there))

    def existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions that exist."""
        topics = self.topics
        return [tp for tp in partitions if tp[0] in topics and tp[1] < topics[tp[0]].partitions]


def read_statuses(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    choose: Callable[[Collection[TopicPartition]], Iterable[TopicPartition]],
    history: Iterable[Mapping[str, Any]] = (),
    records: BlockerReader | None = None,
) -> list[PartitionStatus]:
    """Returns the status of a consumer's group in some partitions, ascending.

    What the commit log or Kafka's offsets have of a topic that was deleted and created again does
    not count: the group's next member begins at the start of the new one.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        choose: Returns the partitions, from those that the commit log or Kafka has offsets for.
        history: The result of `commits.CommitStore.history`; empty for no ages.
        records: Reads the records of blockers; None: they are not read.
    """
    group = options.group_id
    offsets = GroupOffsets(group, store.state(group), cluster.primaries([group])[group])
    wanted = sorted(choose(offsets.partitions))
    found = statuses_in(KafkaLogs.read(cluster, wanted), wanted, offsets, store, history)
    if records is not None:
        blockers = {tp: one.blocker_offset for tp, one in found.items()}
        read = records({tp: at for tp, at in blockers.items() if at is not None})
        found |= {tp: replace(found[tp], record=record) for tp, record in read.items()}
    return list(found.values())


def statuses_in(
    logs: KafkaLogs,
    partitions: Collection[TopicPartition],
    offsets: GroupOffsets,
    store: CommitStore,
    history: Iterable[Mapping[str, Any]] = (),
) -> dict[TopicPartition, PartitionStatus]:
    """Returns the status of a group in partitions whose logs were read, in their order.

    Args:
        logs: The logs of the partitions, and maybe of others.
        partitions: The partitions.
        offsets: The offsets of the group.
        store: The commit store.
        history: The result of `commits.CommitStore.history`; empty for no ages.
    """
    group = offsets.group
    state, primary = dict(offsets.committed), dict(offsets.primary)
    pending, ids, times = store.pending(group), store.topic_ids(group), times_of(history)
    has_ordering_keys = bool(ORDERING_KEY.noted(store.settings(), group))
    there, topics = logs.existing(partitions), logs.topics
    former = {tp for tp in there if is_other_topic(ids.get(tp, ""), topics[tp[0]].id)}
    for known in (state, ids, pending, primary, times):
        for tp in former & known.keys():
            del known[tp]
    return {
        tp: PartitionStatus.of(
            tp, state.get(tp), topic_id=ids.get(tp, ""), pending=pending.get(tp),
            log_start=logs.starts.get(tp), end_offset=logs.ends.get(tp), primary=primary.get(tp),
            times=times.get(tp), has_ordering_keys=has_ordering_keys,
        )
        for tp in partitions
    }  # fmt: skip


def chosen_partitions(
    cluster: Cluster, topics: Mapping[str, Iterable[int]], known: Iterable[TopicPartition]
) -> set[TopicPartition]:
    """Returns the partitions that a user has chosen.

    Args:
        cluster: The connection to the cluster.
        topics: Partitions by topic; an empty list means all partitions of the topic.
        known: Partitions that can be chosen even if the cluster does not have them any more.

    Raises:
        InvalidOption: A topic does not have such a partition.
    """
    counts = {t.name: t.partitions for t in cluster.topics(topics, missing_ok=True)}
    known = set(known)
    chosen: set[TopicPartition] = set()
    for topic, partitions in topics.items():
        every = {*range(counts.get(topic, 0)), *(p for t, p in known if t == topic)}
        wanted = set(partitions) or every
        if not wanted or not wanted <= every:
            missing = f"partition {min(wanted - every)}" if wanted - every else "partitions"
            raise InvalidOption("topic", topic, f"it has no {missing}; see 'topics describe'")
        chosen |= {(topic, p) for p in wanted}
    return chosen


def check_exist(cluster: Cluster, wanted: Collection[TopicPartition]) -> None:
    """Checks that a cluster has all partitions of a file that is imported.

    Raises:
        InvalidOption: It has not; the remedy names those that it has.
    """
    if not wanted:
        return
    names = {topic for topic, _ in wanted}
    counts = {t.name: t.partitions for t in cluster.topics(names, missing_ok=True)}
    missing = sorted(tp for tp in wanted if tp[1] >= counts.get(tp[0], 0))
    if not missing:
        return
    others: dict[str, list[int]] = {}
    for topic, partition in sorted({*wanted} - {*missing}):
        others.setdefault(topic, []).append(partition)
    lacks = {topic for topic, _ in missing}
    given = [
        f"--topic {topic}:{','.join(map(str, numbers))}" if topic in lacks else f"--topic {topic}"
        for topic, numbers in others.items()
    ]
    more = len(missing) - _SHOWN_GROUPS
    named = ", ".join(f"{topic}-{number}" for topic, number in missing[:_SHOWN_GROUPS])
    raise InvalidOption(
        "topic", named + (f" and {more:,} more" if more > 0 else ""),
        f"not in this cluster; give {' '.join(given)} for the others" if given
        else "not in this cluster, and nothing else was chosen: check --bootstrap-servers",
    )  # fmt: skip


def unknown_group(options: Options, store: CommitStore) -> GroupNotFound:
    """Returns the error of a group that neither Kafka nor the commit log knows."""
    servers = options.kafka["bootstrap.servers"]
    return GroupNotFound(options.group_id, store.target, servers, _hint(options.group_id, store))


def _hint(group: str, store: CommitStore) -> str:
    """Returns a hint why a group is unknown."""
    known = store.groups()
    closest = difflib.get_close_matches(group, known, n=1)
    if closest:
        return f"did you mean {closest[0]!r}?"
    elsewhere = store.clusters(group)
    if elsewhere:
        return f"the table knows it of the Kafka cluster {elsewhere[0]}: check the servers"
    if not known:
        return "the table knows no group of this cluster; check the table and the servers"
    more = ", …" if len(known) > _SHOWN_GROUPS else ""
    return f"the table knows {', '.join(known[:_SHOWN_GROUPS])}{more}"

"""Reads the statuses of a group's partitions from Kafka and the commit log."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from coopconsume.admin.offsets.status import PartitionStatus, times_of
from coopconsume.errors import GroupNotFound, InvalidOption
from coopconsume.group.agreement import ORDERING_KEY
from coopconsume.kafka.identity import is_other_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.kafka.blocker_records import BlockerRecord
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

#: Returns what the log has at the offsets of blockers, as far as it is read.
BlockerReader: TypeAlias = (
    "Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, BlockerRecord]]"
)

_SHOWN_GROUPS = 5


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
    state, primary = store.state(group), cluster.primary()
    wanted = sorted(choose({*state, *primary}))
    pending, ids, times = store.pending(group), store.topic_ids(group), times_of(history)
    has_ordering_keys = bool(ORDERING_KEY.noted(store.settings(), group))
    topics = {t.name: t for t in cluster.topics({tp[0] for tp in wanted}, missing_ok=True)}
    there = [tp for tp in wanted if tp[0] in topics and tp[1] < topics[tp[0]].partitions]
    starts, ends = cluster.log_starts(there), cluster.ends(there)
    former = {tp for tp in there if is_other_topic(ids.get(tp, ""), topics[tp[0]].id)}
    for known in (state, ids, pending, primary, times):
        for tp in former & known.keys():
            del known[tp]
    found = {
        tp: PartitionStatus.of(
            tp, state.get(tp), topic_id=ids.get(tp, ""), pending=pending.get(tp),
            log_start=starts.get(tp), end_offset=ends.get(tp), primary=primary.get(tp),
            times=times.get(tp), has_ordering_keys=has_ordering_keys,
        )
        for tp in wanted
    }  # fmt: skip
    if records is not None:
        blockers = {tp: one.blocker_offset for tp, one in found.items()}
        read = records({tp: at for tp, at in blockers.items() if at is not None})
        found |= {tp: replace(found[tp], record=record) for tp, record in read.items()}
    return list(found.values())


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

"""Loads what a grant gives: where its partitions begin, and their state in the commit log."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from assignors.shares import by_partition
from commits import CommitRefused
from coopconsume.errors import ExternalReset
from coopconsume.group.agreement import check, terms_of
from coopconsume.group.beginning import LogFacts, beginning
from coopconsume.group.owned import Failed, Owned
from coopconsume.state.note import note_start_elsewhere

if TYPE_CHECKING:
    from collections.abc import Collection

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.group.owned import EpochGrant
    from coopconsume.group.primary import PrimaryOffsets
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

log = logging.getLogger(__name__)


def load(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    grant: EpochGrant,
    primary: PrimaryOffsets,
) -> dict[TopicPartition, Owned]:
    """Returns the state in the log of each partition that a grant gives a part of.

    Args:
        options: Of the consumer.
        cluster: The Kafka cluster.
        store: The commit store.
        grant: Who we are and what is ours.
        primary: The group's offsets in Kafka; it gets what was found there.

    Raises:
        ExternalReset: Somebody moved the group's offsets in Kafka, and ``onExternalReset`` is fail.
        GroupRefused: The group has other terms.
        commits.FencedMember: The epoch has passed.
    """
    group, loaded = options.group_id, {}
    ranges = by_partition(grant.shares)
    check(store, group, terms_of(options, store, cluster))
    _begin(options, cluster, store, grant, primary)
    state = store.state(group)
    pending = store.pending(group)
    now, now_ms = time.monotonic(), int(time.time() * 1000)
    for tp, key_ranges in ranges.items():
        commits = state[tp]
        owned = loaded[tp] = Owned(
            *tp, key_ranges, commits.stable_offset, commits.ranges,
            [Failed.of(one, now, now_ms) for one in pending.get(tp, {}).values()],
            max_ranges=commits.max_ranges or 0, uses_chunks=options.uses_chunks,
        )  # fmt: skip
        owned.look(commits.ranges)
    return loaded


def _begin(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    grant: EpochGrant,
    primary: PrimaryOffsets,
) -> None:
    """Writes into the log where the partitions begin, and which offsets were found in Kafka."""
    group, epoch, member = options.group_id, grant.epoch, grant.member
    owned = by_partition(grant.shares).keys()
    dealt = _dealt(store, group, grant, {topic for topic, _ in owned})
    stable = {tp: commits.stable_offset for tp, commits in store.state(group).items()}
    facts = LogFacts(stable, store.known_primary(group), store.initial_partitions(group))
    # After the log: a mirror is written after its commits.
    in_kafka = cluster.primary({*owned, *dealt} - stable.keys())
    primary.found({tp: p.outputs for tp, p in in_kafka.items() if p.outputs and tp in owned})
    found = beginning(owned, dealt, facts, in_kafka, grant.topic_ids)
    starts = found.from_primary | cluster.starting(found.from_options)
    starts |= cluster.log_starts(found.from_earliest)
    if found.from_primary:
        note_start_elsewhere(store, group)
    if starts:
        store.start(group, epoch, member, starts)
    if found.noted:
        store.note_primary(group, epoch, member, found.noted)
    for tp, offset in found.moved.items():
        if options.on_external_reset == "fail":
            raise ExternalReset(*tp, offset, stable[tp])
        log.warning("%s-%d: following Kafka's offset %d", *tp, offset)
        try:
            store.note_primary(group, epoch, member, {tp: offset}, follow=True)
        except CommitRefused as error:
            raise ExternalReset(*tp, offset, stable[tp]) from error
    primary.to_replace(tp for tp in store.known_primary(group) if tp in owned)


def _dealt(
    store: CommitStore, group: str, grant: EpochGrant, topics: Collection[str]
) -> set[TopicPartition]:
    """Returns the partitions of topics that the epoch of a grant deals, to whichever member."""
    row = store.assignment(group, grant.epoch)
    return {
        (share.topic, share.partition)
        for shares in (row.members.values() if row else ())
        for share in shares
        if share.topic in topics
    }

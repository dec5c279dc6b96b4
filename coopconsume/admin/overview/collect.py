"""Reads overviews of groups from Kafka and the commit log."""

from __future__ import annotations

import difflib
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commits import CommitStore
from coopconsume.admin.offsets.status import PartitionStatus
from coopconsume.admin.overview.build import GroupFacts, GroupLocation, build, status_of
from coopconsume.admin.overview.data import GroupSummary
from coopconsume.errors import GroupNotFound
from coopconsume.group.ordering_keys import agreed_ordering_key
from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.admin.overview.data import GroupOverview
    from coopconsume.kafka.blocker_records import BlockerRecord

_SHOWN_GROUPS = 5


def list_groups(
    options: Mapping[str, Any], *, spark: SparkSession | None = None
) -> list[GroupSummary]:
    """Returns a summary of each group in a commit table.

    Args:
        options: As for `CooperativeConsumer`; no group is needed.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        commits.CommitTableNotFound: There is no commit table.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    parsed = Options.parse(options, group=False)
    with closing(Cluster(parsed)) as cluster:
        store = CommitStore.open(
            parsed.commit_table, spark=spark, cluster=cluster.cluster_id, create=False
        )
        states = {group: store.state(group) for group in store.groups()}
        ends = _ends(cluster, {tp for state in states.values() for tp in state})
        described = cluster.describe_groups(states)
        return [
            GroupSummary(
                group,
                described[group].state,
                len(described[group].members),
                epoch.number if (epoch := store.current_epoch(group)) else None,
                len(store.claims(group)),
                len(state),
                sum(
                    PartitionStatus.of(tp, commits, end_offset=ends.get(tp)).lag or 0
                    for tp, commits in state.items()
                ),
            )
            for group, state in states.items()
        ]


def describe_group(
    options: Mapping[str, Any], group: str, *, spark: SparkSession | None = None
) -> GroupOverview:
    """Returns the members, shares, epochs, claims and partitions of a group.

    Args:
        options: As for `CooperativeConsumer`; no group is needed.
        group: The group id.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        GroupNotFound: Neither Kafka nor the commit table knows the group.
        commits.CommitTableNotFound: There is no commit table.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    parsed = Options.parse({**options, "kafka.group.id": group})
    with closing(Cluster(parsed)) as cluster:
        store = CommitStore.open(
            parsed.commit_table, spark=spark, cluster=cluster.cluster_id, create=False
        )
        return overview_of(parsed, cluster, store)


def overview_of(
    options: Options, cluster: Cluster, store: CommitStore, *, history: bool = True
) -> GroupOverview:
    """Returns the overview of a consumer's group over open connections.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        history: Whether to read the events, and with them the whole commit log.

    Raises:
        GroupNotFound: Neither Kafka nor the log knows the group.
        BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    rows = store.history(options.group_id) if history else ()
    facts = facts_of(options, cluster, store, rows, lambda offsets: read_blockers(options, offsets))
    return build(place_of(options, cluster, store), facts)


def place_of(options: Options, cluster: Cluster, store: CommitStore) -> GroupLocation:
    """Returns the location of a consumer's group."""
    servers = options.kafka["bootstrap.servers"]
    return GroupLocation(options.group_id, cluster.cluster_id, servers, store.target, store.id)


def facts_of(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    history: Sequence[Mapping[str, Any]],
    records: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, BlockerRecord]],
) -> GroupFacts:
    """Returns the state of a consumer's group in Kafka and in the commit log.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        history: The result of `commits.CommitStore.history`; may be empty.
        records: Returns what the log has at the offsets of blockers.

    Raises:
        GroupNotFound: Neither Kafka nor the log knows the group.
        BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    group = options.group_id
    facts = GroupFacts(
        cluster.describe_groups([group])[group],
        store.assignment(group),
        store.claims(group),
        history,
        store.state(group),
        store.pending(group),
        known_primary=store.known_primary(group),
        primary=cluster.primary(),
        acquisitions=store.acquisitions(group),
        has_ordering_keys=agreed_ordering_key(store, group) is not None,
    )
    if not facts.is_known:
        servers = options.kafka["bootstrap.servers"]
        raise GroupNotFound(group, store.target, servers, hint_for(group, store))
    there = cluster.existing(facts.partitions)
    facts = replace(facts, starts=cluster.log_starts(there), ends=cluster.ends(there))
    blockers = {tp: status_of(tp, facts).blocker_offset for tp in there}
    offsets = {tp: offset for tp, offset in blockers.items() if offset is not None}
    return replace(facts, records=records(offsets))


def _ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the log ends of the partitions that exist."""
    return cluster.ends(cluster.existing(partitions))


def hint_for(group: str, store: CommitStore) -> str:
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

"""Reads overviews of groups from Kafka and the commit log."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.admin.offsets.reading import read_statuses, unknown_group
from coopconsume.admin.offsets.status import PartitionStatus
from coopconsume.admin.overview.build import GroupFacts, build
from coopconsume.admin.overview.data import GroupSummary
from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.kafka.connection import Connection
from coopconsume.kafka.coordinator import DEAD
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from commits import CommitStore
    from coopconsume.admin.offsets.reading import BlockerReader
    from coopconsume.admin.overview.data import GroupOverview
    from coopconsume.kafka.cluster import Cluster


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
    with Connection(Options.parse(options, group=False), spark=spark) as at:
        cluster, store = at.cluster, at.store
        states = {group: store.state(group) for group in store.groups()}
        ends = cluster.ends(cluster.existing({tp for state in states.values() for tp in state}))
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
    with Connection(parsed, spark=spark) as at:
        return overview_of(parsed, at.cluster, at.store)


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
    return read_overview(options, cluster, store, rows, partial(read_blockers, options))


def read_overview(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    history: Sequence[Mapping[str, Any]],
    records: BlockerReader,
) -> GroupOverview:
    """Returns the overview of a consumer's group.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        history: The result of `commits.CommitStore.history`; may be empty.
        records: Reads the records of blockers.

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
        known_primary=store.known_primary(group),
        acquisitions=store.acquisitions(group),
        group=group,
        cluster=cluster.cluster_id,
        servers=cluster.servers,
        table=store.target,
        store=store.id,
    )
    statuses = read_statuses(
        options, cluster, store, lambda known: {*known, *facts.owned}, history, records
    )
    facts = replace(facts, statuses=statuses)
    if facts.kafka.state == DEAD and not facts.is_in_log:
        raise unknown_group(options, store)
    return build(facts)

"""Reads overviews of groups from Kafka and the commit log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from coopconsume.admin.offsets.reading import (
    GroupOffsets,
    KafkaLogs,
    chosen_partitions,
    read_statuses,
    statuses_in,
    unknown_group,
)
from coopconsume.admin.overview.build import GroupFacts, build
from coopconsume.admin.overview.data import GroupSummary
from coopconsume.admin.overview.verdict import group_verdicts
from coopconsume.admin.records.actions import group_decisions
from coopconsume.command_place import command_place
from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.kafka.connection import Connection
from coopconsume.kafka.coordinator import DEAD
from coopconsume.kafka.parked_keys import ParkedKeys, count_behind
from coopconsume.kafka.retention import OpenOffsets, find_all_expiring, find_expiring
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.reading import BlockerReader
    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview.data import GroupOverview
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.kafka.coordinator import KafkaGroup
    from coopconsume.kafka.parked_keys import BehindParked
    from coopconsume.kafka.retention import ExpiringOffsets

#: Returns the records behind parked ones, of partitions in which they are counted.
BehindCounter: TypeAlias = (
    "Callable[[Mapping[TopicPartition, ParkedKeys]], Mapping[TopicPartition, BehindParked]]"
)
#: Returns the offsets that retention deletes next, if there are any.
ExpiringFinder: TypeAlias = (
    "Callable[[Mapping[TopicPartition, OpenOffsets]], ExpiringOffsets | None]"
)


@dataclass(frozen=True)
class LogReaders:
    """The functions that look into Kafka's logs for an overview.

    Attributes:
        blockers: Reads the records of blockers.
        behind: Counts the records behind parked ones.
        expiring: Finds what retention deletes next.
    """

    blockers: BlockerReader
    behind: BehindCounter
    expiring: ExpiringFinder

    @classmethod
    def of(cls, options: Options, cluster: Cluster) -> Self:
        """Returns those that look into the logs each time."""
        return cls(
            partial(read_blockers, options), partial(count_behind, options),
            partial(find_expiring, cluster),
        )  # fmt: skip


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
    with Connection(Options.parse(options, group=False), spark=spark) as at, at.store.one_look():
        return [_summary(build(facts)) for facts in _facts_of_all(at.options, at.cluster, at.store)]


def _facts_of_all(options: Options, cluster: Cluster, store: CommitStore) -> list[GroupFacts]:
    """Returns the state of each group in a commit table.

    Kafka gets as many requests for all of them as for one, however many there are.
    """
    histories = store.histories(store.groups())
    in_kafka, primaries = cluster.describe_groups(histories), cluster.primaries(histories)
    offsets = {
        group: GroupOffsets(group, store.state(group), primaries[group]) for group in histories
    }
    in_log = [
        _facts_in_log(cluster, store, group, in_kafka[group], history)
        for group, history in histories.items()
    ]
    wanted = {one.group: offsets[one.group].partitions | one.owned for one in in_log}
    logs = KafkaLogs.read(cluster, {*chain(*wanted.values())})
    found = []
    for one in in_log:
        statuses = statuses_in(
            logs, sorted(wanted[one.group]), offsets[one.group], store, one.history
        )
        found.append(replace(one, statuses=[*statuses.values()]))
    expiring = find_all_expiring(
        cluster, {facts.group: _open_offsets(facts.statuses) for facts in found}
    )
    place = command_place(options, store.target)
    return [replace(facts, expiring=expiring[facts.group], place=place) for facts in found]


def _summary(group: GroupOverview) -> GroupSummary:
    return GroupSummary(
        group.group,
        group.state,
        group.listed,
        group.epoch,
        len(group.claims),
        len(group.partitions),
        group.lag,
        group_verdicts(group, datetime.now(UTC))[0],
    )


def describe_group(
    options: Mapping[str, Any],
    group: str,
    topics: Mapping[str, Iterable[int]] | None = None,
    *,
    spark: SparkSession | None = None,
) -> GroupOverview:
    """Returns the members, shares, epochs, claims and partitions of a group.

    Args:
        options: As for `CooperativeConsumer`; no group is needed.
        group: The group id.
        topics: Partitions by topic, an empty collection for all of a topic; by default all that
            the group has offsets for or owns.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        GroupNotFound: Neither Kafka nor the commit table knows the group.
        InvalidOption: A topic does not have such a partition.
        commits.CommitTableNotFound: There is no commit table.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    parsed = Options.parse({**options, "kafka.group.id": group})
    with Connection(parsed, spark=spark) as at:
        return overview_of(parsed, at.cluster, at.store, topics=topics)


def overview_of(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    *,
    topics: Mapping[str, Iterable[int]] | None = None,
    history: bool = True,
) -> GroupOverview:
    """Returns the overview of a consumer's group over open connections.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        topics: Partitions by topic, as for `describe_group`.
        history: Whether to read the events, and with them the whole commit log.

    Raises:
        GroupNotFound: Neither Kafka nor the log knows the group.
        BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    rows = store.history(options.group_id) if history else ()
    return read_overview(
        options, cluster, store, rows, LogReaders.of(options, cluster), topics=topics
    )


def read_overview(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    history: Sequence[Mapping[str, Any]],
    readers: LogReaders,
    *,
    topics: Mapping[str, Iterable[int]] | None = None,
) -> GroupOverview:
    """Returns the overview of a consumer's group.

    Args:
        options: The options of the consumer.
        cluster: The connection to its cluster.
        store: The commit store.
        history: The result of `commits.CommitStore.history`; may be empty.
        readers: Read records.
        topics: Partitions by topic, as for `describe_group`.

    Raises:
        GroupNotFound: Neither Kafka nor the log knows the group.
        BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    facts = _read_facts(options, cluster, store, history, readers, topics=topics)
    if facts.kafka.state == DEAD and not facts.is_in_log:
        raise unknown_group(options, store)
    return build(facts)


def _read_facts(
    options: Options,
    cluster: Cluster,
    store: CommitStore,
    history: Sequence[Mapping[str, Any]],
    readers: LogReaders,
    *,
    topics: Mapping[str, Iterable[int]] | None = None,
) -> GroupFacts:
    """Returns the state of a consumer's group; arguments are those of `read_overview`."""
    group = options.group_id
    in_kafka = cluster.describe_groups([group])[group]
    facts = _facts_in_log(cluster, store, group, in_kafka, history)

    def choose(known: Collection[TopicPartition]) -> Collection[TopicPartition]:
        all_known = {*known, *facts.owned}
        return all_known if topics is None else chosen_partitions(cluster, topics, all_known)

    statuses = read_statuses(options, cluster, store, choose, history, readers.blockers)
    facts = replace(
        facts,
        statuses=statuses,
        expiring=readers.expiring(_open_offsets(statuses)),
        place=command_place(options, store.target),
    )
    if not (facts.row and facts.row.sharing):
        facts = replace(facts, behind=readers.behind(_parked_keys(statuses)))
    return facts


def _facts_in_log(
    cluster: Cluster,
    store: CommitStore,
    group: str,
    in_kafka: KafkaGroup,
    history: Sequence[Mapping[str, Any]],
) -> GroupFacts:
    """Returns the state of a group in the commit log, with its coordinator's description."""
    return GroupFacts(
        in_kafka,
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
        decisions=group_decisions(store, group),
    )


def _open_offsets(statuses: Iterable[PartitionStatus]) -> dict[TopicPartition, OpenOffsets]:
    """Returns what is not done of partitions that have any of it in Kafka's log."""
    found = {}
    for one in statuses:
        if one.stable_offset is None or one.log_start is None or one.end_offset is None:
            continue
        first = max(one.stable_offset, one.log_start)
        if one.lag and first < one.end_offset:
            found[one.topic, one.partition] = OpenOffsets(first, one.end_offset, one.done)
    return found


def _parked_keys(statuses: Iterable[PartitionStatus]) -> dict[TopicPartition, ParkedKeys]:
    """Returns the keys that parked records hold back, where Kafka's key is the key."""
    found = {}
    for one in statuses:
        parked = [] if one.has_ordering_keys else one.parked
        if not parked or one.log_start is None or one.end_offset is None:
            continue
        first: dict[int, int] = {}
        for offset in parked:
            key_hash = one.pending[offset].key_hash
            if key_hash is not None:
                first.setdefault(key_hash, offset)
        found[one.topic, one.partition] = ParkedKeys(first, one.done, one.log_start, one.end_offset)
    return found

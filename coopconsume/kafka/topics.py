"""KIP-X's topic setting for sharing. The commit store keeps it: brokers refuse unknown settings."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commits import ACCEPT_RANGE_FETCH, CommitStore
from coopconsume.kafka.cluster import Cluster, Topic
from coopconsume.kafka.connection import Connection
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TopicOverview(Topic):
    """A topic and its setting for sharing.

    Attributes:
        name: Its name.
        id: Its id in Kafka.
        partitions: The number of its partitions.
        is_shareable: Whether members of a group may share its partitions by key range.
    """

    is_shareable: bool


def set_shareable(
    options: Mapping[str, Any],
    topics: Iterable[str],
    *,
    shareable: bool = True,
    spark: SparkSession | None = None,
) -> None:
    """Allow or forbid that members of a group share topics by key range.

    The setting applies to all groups that use the commit table, from their next rebalance on. The
    slots of one member always share partitions.

    Args:
        options: As for `CooperativeConsumer`; the group and what to read are ignored.
        topics: Names of topics.
        shareable: Whether to allow sharing.
        spark: The session, for a commit table in a catalog.

    Raises:
        TopicNotFound: A topic does not exist; nothing was changed.
        OptionError, BrokerUnreachable, commits.CommitStoreError: As for a consumer.
    """
    parsed = Options.parse(options, group=False)
    with closing(Cluster(parsed)) as cluster:
        names = [topic.name for topic in _existing(cluster, topics)]
        store = CommitStore.open(parsed.commit_table, spark=spark, cluster=cluster.cluster_id)
        for name in names:
            store.set_setting(ACCEPT_RANGE_FETCH, value=True if shareable else None, topic=name)


def describe_topics(
    options: Mapping[str, Any],
    topics: Iterable[str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> list[TopicOverview]:
    """Return the number of partitions of topics and whether they are open to sharing.

    Args:
        options: As for `set_shareable`.
        topics: Names of topics; by default all but Kafka's internal ones.
        spark: The session, for a commit table in a catalog.

    Raises:
        TopicNotFound: A topic does not exist.
        commits.CommitTableNotFound: The commit table does not exist.
        OptionError, BrokerUnreachable, commits.CommitStoreError: As for a consumer.
    """
    with Connection(Options.parse(options, group=False), spark=spark) as at:
        found = _existing(at.cluster, topics)
        is_open = at.store.open_to_sharing(topic.name for topic in found)
    return [TopicOverview(t.name, t.id, t.partitions, t.name in is_open) for t in found]


def _existing(cluster: Cluster, topics: Iterable[str] | None) -> list[Topic]:
    """Return the topics without a check of a member's permissions."""
    if topics is None:
        return cluster.topics(cluster.topic_names(), missing_ok=True)
    names = list(dict.fromkeys(topics))
    found = cluster.topics(names, missing_ok=True)
    missing = sorted(set(names) - {topic.name for topic in found})
    if missing:
        raise cluster.not_found(missing[0])
    return found

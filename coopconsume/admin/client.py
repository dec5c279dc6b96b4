"""`Admin`: the entry point for operators from Python; the command line uses it as well."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from commits import StableOffset, check_table, repair_table
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.offsets.admin import OffsetAdmin
from coopconsume.admin.overview.collect import describe_group, list_groups
from coopconsume.admin.overview.reader import GroupReader
from coopconsume.admin.records.actions import RecordAdmin
from coopconsume.errors import GroupActive, InvalidOption, MissingOption
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.topics import describe_topics, set_shareable
from coopconsume.options import Options

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

    from commits import TableCheck, TableRepair
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview.data import GroupOverview, GroupSummary
    from coopconsume.kafka.topics import TopicOverview


class Admin:
    """Inspects and changes the groups of a Kafka cluster and a commit table without joining them.

    Each call connects and disconnects by itself; `offsets` and `reader` stay connected until they
    are closed. All calls raise `BrokerUnreachable`, `NotAuthorized` and the errors of `commits` as
    a consumer does.

    Args:
        options: As for `CooperativeConsumer`. ``kafka.bootstrap.servers`` and ``commitTable`` are
            needed; options that say what to read, and in which group, are ignored.
        spark: The session, for a commit table in a catalog.
    """

    def __init__(self, options: Mapping[str, Any], *, spark: SparkSession | None = None) -> None:
        self._options = dict(options)
        self._spark = spark

    def groups(self) -> list[GroupSummary]:
        """Returns a summary of each group that the commit table knows.

        Raises:
            commits.CommitTableNotFound: There is no commit table.
        """
        return list_groups(self._options, spark=self._spark)

    def describe(
        self, group: str, topics: Mapping[str, Iterable[int]] | None = None
    ) -> GroupOverview:
        """Returns members, shares, epochs, claims and partitions of a group.

        Args:
            group: Its id.
            topics: Partitions by topic, an empty collection for all of a topic; by default all that
                the group has offsets for or owns.

        Raises:
            GroupNotFound: Neither Kafka nor the commit table knows it.
            InvalidOption: A topic does not have such a partition.
        """
        return describe_group(self._options, group, topics, spark=self._spark)

    def reader(self, group: str) -> GroupReader:
        """Returns a reader of the status of a group, which stays connected until it is closed.

        Args:
            group: Its id.
        """
        return GroupReader(self._options, group, spark=self._spark)

    def lag(
        self, group: str, topics: Mapping[str, Iterable[int]] | None = None
    ) -> list[PartitionStatus]:
        """Returns the status of each partition: lag, gaps, pending records, blocker.

        Args:
            group: Its id.
            topics: Partitions by topic, an empty collection for all of a topic; by default all that
                the group has committed or owns.

        Raises:
            GroupNotFound: Neither Kafka nor the commit table knows it.
            InvalidOption: A topic does not have such a partition.
        """
        with self.offsets(group) as admin:
            return admin.statuses(topics, keys=True)

    def offsets(
        self, group: str, *, create: bool = False, needs: Collection[TopicPartition] = ()
    ) -> OffsetAdmin:
        """Returns the offsets of a group, to plan and execute resets, exports and imports.

        Args:
            group: Its id.
            create: Whether to create the commit table if it does not exist, as for an import.
            needs: Partitions that the cluster has to have; else nothing is created.
        """
        return OffsetAdmin(self._options, group, create=create, needs=needs, spark=self._spark)

    def dead_letters(self, group: str) -> DeadLetters:
        """Returns the dead letters of a group, to list, replay or discard them.

        Args:
            group: Its id.

        Raises:
            MissingOption: The option ``deadLetter`` is missing.
        """
        return DeadLetters({**self._options, "kafka.group.id": group}, spark=self._spark)

    def records(self, group: str) -> RecordAdmin:
        """Returns the failed records of a group, to list, retry, park or skip them.

        Args:
            group: Its id.
        """
        return RecordAdmin({**self._options, "kafka.group.id": group}, spark=self._spark)

    def topics(self, names: Iterable[str] | None = None) -> list[TopicOverview]:
        """Returns partition count, id and `accept.range.fetch` of topics.

        Args:
            names: The topics; by default all but Kafka's internal ones.

        Raises:
            TopicNotFound: One does not exist.
        """
        return describe_topics(self._options, names, spark=self._spark)

    def set_shareable(self, topics: Iterable[str], *, shareable: bool = True) -> None:
        """Sets KIP-X's switch ``accept.range.fetch`` of topics in the commit table.

        Args:
            topics: The topics.
            shareable: Whether members of a group may share their partitions by key range, from
                the next rebalance of each group.

        Raises:
            TopicNotFound: One does not exist; nothing was changed.
        """
        set_shareable(self._options, topics, shareable=shareable, spark=self._spark)

    def check(self) -> TableCheck:
        """Returns whether the commit table can be read, and if not, what can be recovered.

        Raises:
            MissingOption: The option ``commitTable`` is missing.
        """
        return check_table(self._commit_table(), spark=self._spark)

    def repair(
        self,
        source: int | str = "snapshot",
        *,
        groups: Iterable[str] = (),
        into: str | os.PathLike[str] | None = None,
        dry_run: bool = True,
    ) -> TableRepair:
        """Replaces the state of the commit table by a readable earlier one.

        Records whose commits are not in that state are processed again.

        Args:
            source: A version of the table, ``snapshot`` for its newest readable one, or ``kafka``
                for the stable offsets of the groups in Kafka.
            groups: For ``kafka``; by default all groups of this cluster that the table still knows.
            into: A new table to write to, which leaves the old one unchanged.
            dry_run: Whether to return the result without writing it.

        Raises:
            InvalidOption: No group is known, or the source is unknown.
            GroupActive: A group has members.
            commits.RepairRefused: The state cannot be read, the table cannot be written, or
                something was appended within the last minute.
        """
        if isinstance(source, str) and source not in {"snapshot", "kafka"}:
            raise InvalidOption("source", source, "give a version, 'snapshot' or 'kafka'")
        target, offsets = self._commit_table(), None
        found = check_table(target, spark=self._spark)
        with closing(Cluster(Options.parse(self._options, group=False))) as cluster:
            known = [group for of, group in found.groups if of == cluster.cluster_id]
            names = list(dict.fromkeys(groups)) or known
            if source == "kafka" and not names:
                raise InvalidOption("groups", "()", "the table knows no group: name them (--group)")
            for name, group in cluster.describe_groups(dict.fromkeys([*names, *known])).items():
                if group.members:
                    who = ", ".join(member.id for member in group.members)
                    raise GroupActive(name, f"members {who}", "stop them first")
            if source == "kafka":
                offsets = {(cluster.cluster_id, name): self._stable_offsets(name) for name in names}
        return repair_table(
            target,
            version=source if isinstance(source, int) else None,
            offsets=offsets,
            into=into,
            dry_run=dry_run,
            spark=self._spark,
        )

    def _commit_table(self) -> str:
        given = {name.lower(): value for name, value in self._options.items()}
        if "committable" not in given:
            raise MissingOption("commitTable")
        return str(given["committable"])

    def _stable_offsets(self, group: str) -> dict[tuple[str, int], StableOffset]:
        options = Options.parse({**self._options, "kafka.group.id": group})
        with closing(Cluster(options)) as cluster:
            primary = cluster.primary()
            names = sorted({topic for topic, _ in primary})
            ids = {topic.name: topic.id for topic in cluster.topics(names, missing_ok=True)}
        return {
            at: StableOffset(one.offset, ids[at[0]])
            for at, one in primary.items()
            if at[0] in ids and not is_other_topic(one.topic_id, ids[at[0]])
        }

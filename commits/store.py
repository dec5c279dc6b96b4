"""The commit store: what of each partition is committed, and what is pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from commits.committing import Committing
from commits.history import history_entry
from commits.partition import DEFAULT_MAX_RANGES, PartitionCommits
from commits.path_engine import MIN_RETENTION_HOURS
from commits.settings import (
    DEFAULT_RANGES_TO_COMMIT,
    DEFAULT_SNAPSHOT_BYTES,
    DEFAULT_SNAPSHOT_COMMITS,
)
from commits.table import open_table

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from commits.ids import CommitIds
    from commits.model import Pending, TopicPartition

__all__ = ["CommitStore"]


class CommitStore(Committing):
    """The individual commits of many groups, in one Delta table.

    Whatever changes the state is a row, and the state is a fold of the rows in the order of the
    table's versions: the same for every store that has the table open, in any process. A call that
    writes appends its row, reads the log up to it, and answers from the state at that place; so no
    answer rests on what this process thought before.

    Stores are opened with `open`. One may be used by several threads. Nothing is kept open between
    calls.
    """

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str],
        *,
        spark: Any = None,
        storage_options: Mapping[str, str] | None = None,
        cluster: str = "",
        max_ranges: int = DEFAULT_MAX_RANGES,
        segment_versions: int = 1000,
        snapshot_commits: int = DEFAULT_SNAPSHOT_COMMITS,
        snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
        max_ranges_to_commit: int = DEFAULT_RANGES_TO_COMMIT,
        create: bool = True,
    ) -> Self:
        """Opens a commit table and creates it if there is none; several may do so at once.

        Args:
            target: The path or URI of the Delta table, which `deltalake` then writes; or its name
                in a catalog, of up to three parts, which Spark then writes.
            spark: The Spark session, for a name.
            storage_options: For an object store; as `deltalake.DeltaTable` takes them.
            cluster: The id of the Kafka cluster: groups of other clusters are other groups.
            max_ranges: How many separate ranges above its stable offset a partition may have,
                unless the setting `maxNumRanges` says otherwise.
            segment_versions: How many versions share a segment, where the table is created.
            snapshot_commits: After how many appends, by whomever, a commit also writes a snapshot,
                unless the setting `snapshotCommits` says otherwise; 0 for never.
            snapshot_bytes: After how many bytes of rows (uncompressed) it does, unless the setting
                `snapshotBytes` says otherwise; 0 for never.
            max_ranges_to_commit: How many ranges of a partition a row of a commit takes (KIP-X's
                `max.num.ranges.to.commit`). A commit of more has several rows of that partition,
                in the same append and under the same id: all of them count, or none.
            create: Whether it may be created; a mere look at a group should not.

        Raises:
            CommitTableNotFound: If there is none, and it may not be created.
            UnsupportedTarget: If it is a name and there is no session, or if writers could
                overwrite each other's commits there; it names the remedy.
            CommitTableFormat: If it is no commit table, or of another format.
            CorruptCommitLog: If it cannot be read.
            CommitLogUnavailable: If the place cannot be reached or written.
            ValueError: If a number is negative, or `segment_versions` or `max_ranges_to_commit`
                is 0.
        """
        if max_ranges_to_commit < 1:
            raise ValueError(f"max_ranges_to_commit must be from 1, not {max_ranges_to_commit}")
        for name, number in (("snapshot_commits", snapshot_commits),
                             ("snapshot_bytes", snapshot_bytes)):  # fmt: skip
            if number < 0:
                raise ValueError(f"{name} must be from 0, not {number}")
        engine = open_table(target, storage_options, segment_versions, spark=spark, create=create)
        return cls(
            engine,
            cluster=cluster,
            max_ranges=max_ranges,
            snapshot_commits=snapshot_commits,
            snapshot_bytes=snapshot_bytes,
            max_ranges_to_commit=max_ranges_to_commit,
        )

    @property
    def id(self) -> str:
        """The nonce of the table: tells it from all others, and from itself before a repair."""
        with self._lock:
            return self._log.state.store or self._engine.properties["coopconsume.store"]

    @property
    def target(self) -> str:
        """The path or URI of the table."""
        return self._engine.target

    # -- what is committed

    def state(self, group: str) -> dict[TopicPartition, PartitionCommits]:
        """What of each partition is committed, as the log says now; a copy."""
        with self._lock:
            partitions = self._refreshed(group).partitions
            return {
                at: state.commits.copy(max_ranges=self._limit(at[0]))
                for at, state in partitions.items()
            }

    def pending(self, group: str) -> dict[TopicPartition, dict[int, Pending]]:
        """The records of each partition that were read and are not done, by offset; a copy."""
        with self._lock:
            partitions = self._refreshed(group).partitions
            return {at: dict(state.pending) for at, state in partitions.items() if state.pending}

    def groups(self) -> list[str]:
        """The groups of this Kafka cluster that the log knows."""
        with self._lock:
            known = self._log.refresh().groups
            return sorted(name for cluster, name in known if cluster == self._cluster)

    def clusters(self, group: str) -> list[str]:
        """The ids of the Kafka clusters of which the log knows a group of this name."""
        with self._lock:
            return sorted(cluster for cluster, name in self._log.refresh().groups if name == group)

    def counted_commits(self, group: str) -> CommitIds:
        """The ids of the commits that counted: what else carries such an id counts, too.

        But for the partitions that `refused_parts` names.
        """
        with self._lock:
            return self._refreshed(group).counted.copy()

    def refused_parts(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """Where commits that counted did not, by their id: as a rule nowhere, so it is empty.

        A commit of several partitions counts in one and is refused in another where the topic of
        the latter was made anew meanwhile.
        """
        with self._lock:
            refused = self._refreshed(group).refused
            return {commit_id: frozenset(places) for commit_id, places in refused.items()}

    def topic_ids(self, group: str) -> dict[TopicPartition, str]:
        """The id of the topic that each partition's commits are about; empty if not known."""
        with self._lock:
            return {at: state.topic_id for at, state in self._refreshed(group).partitions.items()}

    def known_primary(self, group: str) -> dict[TopicPartition, int]:
        """Offsets in Kafka that others wrote, that the log knows, and that may still be there."""
        with self._lock:
            return {
                at: state.primary.offset
                for at, state in self._refreshed(group).partitions.items()
                if state.primary is not None and not state.primary.replaced
            }

    def initial_partitions(self, group: str) -> dict[str, int]:
        """How many partitions each topic had when the group first dealt it."""
        with self._lock:
            return dict(self._refreshed(group).initial_partitions)

    # -- the table

    def compact(self) -> int | None:
        """Writes a snapshot of all groups, and takes out of the table what it replaces.

        Commits do so by themselves now and then (see `open`). Others may write meanwhile. A
        snapshot holds the state of all groups at one version; whoever opens the table reads the
        newest one and what was appended after it. Rows leave the table by segments, and only those
        that all open handles are past. Files stay until `vacuum`.

        Returns:
            The version of the table with the snapshot; None if nothing happened since the last.

        Raises:
            CommitStoreBusy: If others kept writing to what was to be replaced; nothing was changed.
            CorruptCommitLog: If the log cannot be read.
        """
        with self._lock:
            return self._log.compact()

    def vacuum(self, *, retention_hours: int | None = None) -> int:
        """Removes files that only old versions need, and those of appends that failed.

        Automatic snapshots do so once in 20 segments. Open stores, and appends that are under way,
        are not harmed as long as they are younger than the retention.

        Args:
            retention_hours: How old files must be that are removed, from 1; by default what the
                table's property `delta.deletedFileRetentionDuration` says.

        Returns:
            How many files were removed.

        Raises:
            CommitLogUnavailable: If it failed half-way; nothing that counts is lost by that.
            ValueError: If the retention is below an hour.
        """
        if retention_hours is not None and retention_hours < MIN_RETENTION_HOURS:
            raise ValueError(
                f"retention_hours must be from {MIN_RETENTION_HOURS}, not {retention_hours}: "
                "younger files may be part of a commit that is under way"
            )
        with self._lock:
            self._log.refresh()
            # What others took out of the table must not be needed any more.
            self._log.compact_if_disturbed()
            return self._engine.vacuum(retention_hours)

    def history(self, group: str) -> list[dict[str, Any]]:
        """What happened in a group, for people: one entry an event, in the order of the log.

        An entry has `version`, `written_at`, `kind`, `id`, `epoch`, `nonce`, `member`, `counted`,
        `reason` (why it did not count), `detail`, and `partitions`: for each its topic, partition,
        first and last offset, how many, status, reason and stable offset after it. It goes back as
        far as the table's files do, at least to the last snapshot.

        Raises:
            CorruptCommitLog: If the log cannot be read.
        """
        with self._lock:
            return [
                history_entry(version, event, answer)
                for version, event, answer in self._log.history()
                if (event.cluster, event.group) == (self._cluster, group)
            ]

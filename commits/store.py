"""The commit store: committed offsets and pending records of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from commits.committing import Committing
from commits.history import history_entry
from commits.partition_commits import DEFAULT_MAX_RANGES, PartitionCommits
from commits.path_engine import MIN_RETENTION_HOURS
from commits.settings import (
    DEFAULT_RANGES_TO_COMMIT,
    DEFAULT_SNAPSHOT_BYTES,
    DEFAULT_SNAPSHOT_COMMITS,
)
from commits.table import open_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from commits.ids import CommitIds
    from commits.model import Pending, TopicPartition
    from commits.offset_and_epoch import OffsetAndEpoch


class CommitStore(Committing):
    """The individual commits of many groups, in one Delta table.

    Every change of the state is a row. The state is a fold of the rows in the order of the table's
    versions, which is the same for every open store in any process. A call that writes appends its
    row, reads the log up to it, and answers from the state at that position. No answer depends on
    earlier local state.

    Open a store by `open`. Stores are thread-safe. They keep nothing open between calls.
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
        """Open a commit table and create it if it does not exist. Concurrent calls are safe.

        Args:
            target: The path or URI of the Delta table, written by `deltalake`; or its name in a
                catalog, of up to three parts, written by Spark.
            spark: The Spark session, for a name.
            storage_options: Options of an object store, as for `deltalake.DeltaTable`.
            cluster: The id of the Kafka cluster. Groups of different clusters are separate.
            max_ranges: The limit of separate ranges above the stable offset of a partition, for
                commits with `limited=True`; the setting `maxNumRanges` overrides it.
            segment_versions: How many versions a segment has, if the table is created.
            snapshot_commits: After how many appends of all writers a commit also writes a
                snapshot; the setting `snapshotCommits` overrides it; 0 for never.
            snapshot_bytes: After how many bytes of uncompressed rows a commit also writes a
                snapshot; the setting `snapshotBytes` overrides it; 0 for never.
            max_ranges_to_commit: How many ranges of a partition a row of a commit may have (KIP-X's
                `max.num.ranges.to.commit`). A larger commit has several rows of that partition in
                the same append and with the same id; either all of them count or none.
            create: Whether to create the table. Calls that only read should pass False.

        Raises:
            CommitTableNotFound: If the table does not exist and `create` is False.
            UnsupportedTarget: If it is a name and no session is given, or if writers could
                overwrite each other's commits there; the message has a remedy.
            CommitTableFormat: If it is not a commit table, or has another format.
            CorruptCommitLog: If it cannot be read.
            CommitLogUnavailable: If the storage cannot be reached or written.
            ValueError: If a number is negative, or `segment_versions` or `max_ranges_to_commit`
                is 0.
        """
        for name, number, least in (
            ("max_ranges_to_commit", max_ranges_to_commit, 1),
            ("snapshot_commits", snapshot_commits, 0),
            ("snapshot_bytes", snapshot_bytes, 0),
        ):
            if number < least:
                raise ValueError(f"{name} must be from {least}, not {number}")
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
        """The nonce of the table. It is unique and changes with a repair."""
        with self._lock:
            return self._log.store or self._engine.properties["coopconsume.store"]

    @property
    def target(self) -> str:
        """The path or URI of the table."""
        return self._engine.target

    def one_look(self) -> AbstractContextManager[None]:
        """Within this context, calls of this thread that read the log look at the table once.

        Later ones answer by what the first one found, and by what this store has appended or read
        since; after an append of this thread the next one looks again.
        """
        return self._log.one_look()

    @property
    def unanswered(self) -> str:
        """For how long the table has not answered, and why, such as `for 12 s: …`; else empty.

        It reads nothing, and waits for no other call.
        """
        return self._log.silence.words()

    @property
    def location(self) -> str:
        """The path or URI of the table's folder, also if the table is in a catalog."""
        return self._engine.location

    # -- state of groups

    def state(self, group: str) -> dict[TopicPartition, PartitionCommits]:
        """Return a copy of the committed offsets of each partition. Reads the log."""
        with self._lock:
            partitions = self._refreshed(group).partitions
            return {
                at: state.commits.copy(max_ranges=self._limit(at[0]))
                for at, state in partitions.items()
            }

    def reached(self, group: str) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return how far commits say that partitions' logs had reached. Reads the log."""
        with self._lock:
            partitions = self._refreshed(group).partitions
            return {at: state.reached for at, state in partitions.items() if state.reached}

    def pending(self, group: str) -> dict[TopicPartition, dict[int, Pending]]:
        """Return a copy of the pending records of each partition, by offset. Reads the log."""
        with self._lock:
            partitions = self._refreshed(group).partitions
            return {at: dict(state.pending) for at, state in partitions.items() if state.pending}

    def groups(self) -> list[str]:
        """Return the groups of this Kafka cluster."""
        known = self._all_groups()
        return sorted(name for cluster, name in known if cluster == self._cluster)

    def clusters(self, group: str) -> list[str]:
        """Return the ids of the Kafka clusters that have a group of this name in the log."""
        return sorted(cluster for cluster, name in self._all_groups() if name == group)

    def _all_groups(self) -> list[tuple[str, str]]:
        with self._lock:
            self._log.refresh()
        self._in_portions(self._log.fold_some)
        with self._lock:
            return list(self._log.state.groups)

    def counted_commits(self, group: str) -> CommitIds:
        """Return the ids of the commits that counted. Outputs with such an id count as well.

        The partitions of `refused_parts` are an exception.
        """
        with self._lock:
            return self._refreshed(group).counted.copy()

    def has_counted(self, group: str, commit_id: str) -> bool:
        """Return whether a commit counted, as far as the log was read."""
        with self._lock:
            return commit_id in self._log.group(self._cluster, group).counted

    def commits_at(self, group: str, at: int | datetime | str) -> tuple[int, CommitIds] | None:
        """Return the ids of the commits that had counted at a place of the log.

        Args:
            group: The group.
            at: A version of the table, the id of a commit (it is included), or a time by the
                writers' clocks: the place before the first event with a later time.

        Returns:
            The version of the place and the ids; None if the log does not have the place, or no
            longer. Like `history`, it reaches back at least to the last snapshot.

        Raises:
            CorruptCommitLog: If the log cannot be read.
        """
        with self._lock:
            state = self._log.state_at(at)
            if state is None:
                return None
            return state.version, state.group(self._cluster, group).counted

    def version(self) -> int:
        """Return the newest version of the table. Reads the log."""
        with self._lock:
            return self._log.refresh()

    def refused_parts(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """Return the refused partitions of commits that counted, by commit id; usually empty.

        A commit of several partitions counts in one and is refused in another if the topic of the
        other partition was created again in the meantime.
        """
        with self._lock:
            state = self._refreshed(group)
            return {
                commit_id: frozenset(parts)
                for commit_id, parts in state.refused.items()
                if commit_id in state.counted
            }

    def topic_ids(self, group: str) -> dict[TopicPartition, str]:
        """Return the topic id of each partition's commits; empty if it is not known."""
        with self._lock:
            return {at: state.topic_id for at, state in self._refreshed(group).partitions.items()}

    def known_primary(self, group: str) -> dict[TopicPartition, int]:
        """Return the recorded offsets of other tools in Kafka that may still be there."""
        with self._lock:
            return {
                at: state.primary.offset
                for at, state in self._refreshed(group).partitions.items()
                if state.primary is not None and not state.primary.replaced
            }

    def initial_partitions(self, group: str) -> dict[str, int]:
        """Return how many partitions each topic had when the group first assigned it."""
        with self._lock:
            return dict(self._refreshed(group).initial_partitions)

    # -- the table

    def compact(self) -> int | None:
        """Write a snapshot of all groups and remove the rows that it replaces.

        Commits do this automatically (see `open`). Other writers can continue. A snapshot contains
        the state of all groups at one version; a new store reads the newest snapshot and later
        appends. Rows are removed by segments, after all open handles are past them. Their files
        remain until `vacuum`.

        Returns:
            The version with the snapshot; None if nothing changed since the last one.

        Raises:
            CommitStoreBusy: If every attempt met concurrent writes; nothing was changed.
            CorruptCommitLog: If the log cannot be read.
        """
        with self._lock:
            version = self._log.compact()
        self._log.remove_old()
        return version

    def vacuum(self, *, retention_hours: int | None = None) -> int:
        """Remove files that only old versions need, and files of failed appends.

        Automatic snapshots do this once in 20 segments. Open stores and running appends are safe
        as long as they are younger than the retention.

        Args:
            retention_hours: The minimum age of removed files in hours, from 1; by default 1, of a
                table in a catalog its property `delta.deletedFileRetentionDuration`.

        Returns:
            The number of removed files.

        Raises:
            CommitLogUnavailable: If it failed in part; no needed file is lost.
            ValueError: If the retention is below an hour.
        """
        if retention_hours is not None and retention_hours < MIN_RETENTION_HOURS:
            raise ValueError(
                f"retention_hours must be from {MIN_RETENTION_HOURS}, not {retention_hours}: "
                "younger files may belong to a running commit"
            )
        with self._lock:
            self._log.refresh()
            # Rows that other tools removed must be in a snapshot before their files go.
            self._log.compact_if_disturbed()
        self._log.remove_old()
        return self._engine.vacuum(retention_hours)

    def history(self, group: str) -> list[dict[str, Any]]:
        """Return the history of a group: one entry for each event, in log order.

        An entry has `version`, `written_at`, `kind`, `id`, `epoch`, `nonce`, `member`, `counted`,
        `reason` (why it did not count), `detail`, `doubts` (the shares in doubt after an epoch, a
        takeover or a claim), and `partitions`: for each its topic, partition, first and last
        offset, count, how many of these a filter dropped (`filtered`), status, reason and the
        stable offset after it. The history starts at the oldest kept file of the
        table, at the latest at the last snapshot.

        Raises:
            CorruptCommitLog: If the log cannot be read.
        """
        return self.histories([group])[group]

    def histories(self, groups: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the history of each of some groups; it reads the log once.

        Entries and errors are those of `history`.
        """
        found: dict[str, list[dict[str, Any]]] = {group: [] for group in groups}
        with self._lock:
            for version, event, answer, doubts in self._log.history():
                if event.cluster == self._cluster and event.group in found:
                    entry = history_entry(version, event, answer, doubts)
                    found[event.group].append(entry)
        return found

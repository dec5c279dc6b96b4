"""The commit store: what of each partition is committed, and what is pending."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self
from zlib import crc32

from commits.errors import (
    FencedMember,
    IndividualCommitNotAllowed,
    IndividualCommitTooOld,
    MaxIndividualCommitsReached,
)
from commits.group import Answer
from commits.history import history_entry
from commits.ownership import Ownership, in_force
from commits.partition import DEFAULT_MAX_RANGES, CommitResult, PartitionCommits
from commits.path_engine import MIN_RETENTION_HOURS
from commits.requests import (
    checked_place,
    exact_offset,
    parts_of,
    raise_once,
    unwritten,
    with_topic_ids,
)
from commits.rows import Event, Part, divided
from commits.table import open_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from commits.engine import LogEngine
    from commits.group import GroupState
    from commits.ids import CommitIds
    from commits.model import Epoch, Pending, TopicPartition
    from commits.offsets import OffsetRanges, Pairs

    Results = dict[TopicPartition, CommitResult]

__all__ = [
    "ACCEPT_INDIVIDUAL_COMMIT",
    "ACCEPT_RANGE_FETCH",
    "MAX_NUM_RANGES",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_COMMITS",
    "CommitStore",
]

ACCEPT_INDIVIDUAL_COMMIT = "accept.individual.commit"
"""The setting that switches the commits of a store on or off (KIP-X); true unless set."""

ACCEPT_RANGE_FETCH = "accept.range.fetch"
"""The setting that opens a topic to be shared by key range (KIP-X); false unless set."""

MAX_NUM_RANGES = "maxNumRanges"
"""The setting, of the store or of a topic, that overrides the limit a store was opened with."""


SNAPSHOT_COMMITS = "snapshotCommits"
"""The setting, of the whole store, that overrides after how many commits a snapshot is written."""

SNAPSHOT_BYTES = "snapshotBytes"
"""The setting, of the whole store, that overrides after how many bytes a snapshot is written."""

DEFAULT_SNAPSHOT_COMMITS = 500
DEFAULT_SNAPSHOT_BYTES = 64 << 20
DEFAULT_RANGES_TO_COMMIT = 10_000


class CommitStore(Ownership):
    """The individual commits of many groups, in one Delta table.

    Whatever changes the state is a row, and the state is a fold of the rows in the order of the
    table's versions: the same for every store that has the table open, in any process. A call that
    writes appends its row, reads the log up to it, and answers from the state at that place; so no
    answer rests on what this process thought before.

    Stores are opened with `open`. One may be used by several threads. Nothing is kept open between
    calls.
    """

    def __init__(
        self,
        engine: LogEngine,
        *,
        cluster: str,
        max_ranges: int,
        snapshot_commits: int = DEFAULT_SNAPSHOT_COMMITS,
        snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
        max_ranges_to_commit: int = DEFAULT_RANGES_TO_COMMIT,
    ) -> None:
        super().__init__(engine, cluster)
        self._max_ranges = max_ranges
        self._snapshot_commits = snapshot_commits
        self._snapshot_bytes = snapshot_bytes
        self._max_ranges_to_commit = max_ranges_to_commit

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

    def commit(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        offsets: Mapping[TopicPartition, Pairs | OffsetRanges],
        *,
        pending: Mapping[TopicPartition, Iterable[Pending]] | None = None,
        holes: Mapping[TopicPartition, Pairs | OffsetRanges] | None = None,
        commit_id: str | None = None,
        topic_ids: Mapping[str, str] | None = None,
        too_old: Literal["raise", "report"] = "raise",
        limited: bool = True,
    ) -> Results:
        """Commits offsets of several partitions, all in one append.

        Args:
            group: The group.
            epoch: The epoch or claim under which the work was planned.
            member: Who did it.
            offsets: What is done: pairs `(first, last)`, both included, or sets of offsets.
            pending: Records that were read and are not done. They replace what was known of the
                same offset; a commit of the offset ends them.
            holes: Offsets that are proven never to be delivered: as if committed, never an error.
            commit_id: Tells the commit from every other one of the group. A commit that is
                repeated with its id, because its answer was lost, counts once and gets its first
                answer. Ids that end in `-<number>` take the least room.
            topic_ids: The ids of the topics the records were read from, where they differ from
                those of the epoch: such partitions are refused.
            too_old: Whether partitions of which all lies below the stable offset raise, or are
                only told by their status.
            limited: Whether the limit on ranges is looked at. False is for who has looked, and has
                written elsewhere since what stands or falls with this commit.

        Returns:
            The answer of each partition.

        Raises:
            FencedMember: If the epoch or the member is not in force: nothing counted.
            CommitRefused: If partitions were refused: another topic id, or no share of it.
            MaxIndividualCommitsReached: If partitions would have too many ranges.
            IndividualCommitTooOld: If partitions lie wholly below the stable offset.
            IndividualCommitNotAllowed: If commits are switched off in this store.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its id.
            ValueError: If an offset makes no sense; nothing was written.

        The first four are raised once, after all, in this order of preference, and carry the
        answers of all partitions in `results`: what other partitions committed stands.
        """
        if commit_id is not None and not commit_id:
            raise ValueError("a commit id must not be empty")
        parts = parts_of(offsets, pending or {}, holes or {})
        with self._lock:
            return self._commit(
                Event(
                    "commit", commit_id or self._new_id(), self._cluster, group, epoch,
                    member=member, parts=parts,
                ),
                topic_ids,
                report_too_old=too_old == "report", limited=limited,
            )  # fmt: skip

    # -- the ends of the logs, and an operator's word

    def start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Says where partitions begin that the log does not know yet; of several the first counts.

        Args:
            group: The group.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions.
            offsets: The first offset to be done.

        Returns:
            The answer of each partition: `duplicate` where the log knew it already.

        Raises:
            FencedMember, CommitRefused: As for `commit`.
            ValueError: If an offset makes no sense; nothing was written.
        """
        return self._move("start", group, epoch, member, offsets)

    def log_start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Says that partitions' logs now begin at an offset: lower stable offsets follow.

        Arguments, answers and errors are those of `start`.
        """
        return self._move("log_start", group, epoch, member, offsets)

    def truncate(
        self, group: str, epoch: Epoch, member: str, ends: Mapping[TopicPartition, int]
    ) -> Results:
        """Says that partitions' logs now end before an offset: what lay beyond is forgotten.

        Arguments, answers and errors are those of `start`.
        """
        return self._move("truncation", group, epoch, member, ends)

    def reset(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        epoch: Epoch | None = None,
        member: str = "",
        done: Mapping[TopicPartition, Pairs | OffsetRanges] | None = None,
        pending: Mapping[TopicPartition, Iterable[Pending]] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Results:
        """Sets stable offsets and forgets everything above them but what is given.

        Without an epoch it is an operator's word: it ends the epoch in force and all claims of the
        group, so that nobody who is still at work commits on top of it. An owner that was told to
        move gives its epoch, and goes on under it.

        Args:
            group: The group.
            offsets: The new stable offsets.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions, or who the operator is, for the history.
            done: What is done above the new stable offset; a range that touches it moves it.
            pending: Records that failed and are to be tried again, with what is known of them.
            topic_ids: The ids of the topics, where the log does not know the partitions yet.

        Answers and errors are those of `start`.
        """
        parts = parts_of(done or {}, pending or {}, {})
        known = {part.topic_partition: part for part in parts}
        if not known.keys() <= offsets.keys():
            raise ValueError(f"{min(known.keys() - offsets.keys())} has no stable offset")
        return self._move("reset", group, epoch, member, offsets, known, topic_ids)

    def topic_ids(self, group: str) -> dict[TopicPartition, str]:
        """The id of the topic that each partition's commits are about; empty if not known."""
        with self._lock:
            return {at: state.topic_id for at, state in self._refreshed(group).partitions.items()}

    # -- switches and limits

    def set_setting(self, name: str, value: Any, *, topic: str = "") -> None:
        """Sets a switch or limit of the store, or of one topic; None takes it away.

        Args:
            name: Its name.
            value: Anything JSON can hold.
            topic: The topic; empty for the whole store.

        Raises:
            TypeError: If JSON cannot hold the value; nothing was written.
            ValueError: If it is none that a setting of this store may have.
        """
        _check_setting(name, value)
        detail = {"name": name, "topic": topic, "value": value}
        with self._lock:
            self._append(Event("setting", self._new_id(), self._cluster, detail=detail))

    def settings(self, topic: str = "") -> dict[str, Any]:
        """The switches and limits of the store, with those of a topic over them."""
        with self._lock:
            self._log.refresh()
            return self._settings(topic)

    def open_to_sharing(self, topics: Iterable[str]) -> set[str]:
        """Those of some topics whose partitions members may share (KIP-X)."""
        with self._lock:
            self._log.refresh()
            return {
                topic for topic in topics if self._settings(topic).get(ACCEPT_RANGE_FETCH, False)
            }

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

    # -- how

    def _commit(
        self,
        event: Event,
        topic_ids: Mapping[str, str] | None,
        *,
        report_too_old: bool,
        limited: bool = True,
    ) -> Results:
        state = self._state_for(event)
        if self._refuses(state, event, limited=limited):
            # Not by what was so a while ago: others may have made room.
            state = self._refreshed(event.group)
        event = with_topic_ids(event, state, topic_ids)
        over: dict[TopicPartition, MaxIndividualCommitsReached] = {}
        if state.knows(event.id):
            answer = state.fold(event)
        else:
            fence = state.fenced(event.epoch, event.member)
            if fence:
                answer = Answer(counted=False, reason=fence)
            elif not self._settings("").get(ACCEPT_INDIVIDUAL_COMMIT, True):
                raise IndividualCommitNotAllowed(event.group)
            else:
                over = self._over_limit(state, event.parts) if limited else {}
                written = tuple(
                    piece
                    for part in event.parts
                    if not part.is_empty and part.topic_partition not in over
                    for piece in divided(part, self._max_ranges_to_commit)
                )
                answer = Answer(counted=True)
                if written:
                    answer = self._append(replace(event, parts=written))
                    self._snapshot_if_due()
        state = self._log.state.group(self._cluster, event.group)
        results = {
            at: answer.results.get(at) or unwritten(state, part, answer.reason, over.get(at))
            for at, part in ((part.topic_partition, part) for part in event.parts)
        }
        if not answer.counted:
            raise FencedMember(
                event.group, event.member, event.epoch, in_force(state), answer.reason, results
            )
        raise_once(event, results, list(over.values()), report_too_old=report_too_old)
        return results

    def _refuses(self, state: GroupState, event: Event, *, limited: bool) -> bool:
        if state.knows(event.id) or state.fenced(event.epoch, event.member):
            return False
        return (
            not self._settings("").get(ACCEPT_INDIVIDUAL_COMMIT, True)
            or (limited and bool(self._over_limit(state, event.parts)))
            or all(part.is_empty for part in event.parts)
        )

    def _move(
        self,
        kind: str,
        group: str,
        epoch: Epoch | None,
        member: str,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, Part] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Results:
        parts = tuple(
            replace((known or {}).get(at) or Part(*checked_place(at)),
                    first=exact_offset(at, offset))
            for at, offset in offsets.items()
        )  # fmt: skip
        if not parts:
            return {}
        with self._lock:
            event = Event(kind, self._new_id(), self._cluster, group, epoch, member=member,
                          parts=parts)  # fmt: skip
            answer = self._append(with_topic_ids(event, self._state_for(event), topic_ids))
            now = in_force(self._log.state.group(self._cluster, group))
        results = dict(answer.results)
        if not answer.counted:
            raise FencedMember(group, member, epoch, now, answer.reason, results)
        raise_once(event, results, [], report_too_old=True)
        return results

    def _state_for(self, event: Event) -> GroupState:
        """The group's state, brought up to date where it does not know the event's epoch."""
        state = self._log.state.group(self._cluster, event.group)
        return self._refreshed(event.group) if state.fenced(event.epoch, event.member) else state

    def _settings(self, topic: str) -> dict[str, Any]:
        settings = self._log.state.settings
        both = [
            {name: value for (cluster, name, of), value in settings.items()
             if cluster == self._cluster and of == wanted}
            for wanted in ("", topic)
        ]  # fmt: skip
        return both[0] | both[1]

    def _snapshot_if_due(self) -> None:
        settings = self._settings("")
        commits = int(settings.get(SNAPSHOT_COMMITS, self._snapshot_commits))
        size = int(settings.get(SNAPSHOT_BYTES, self._snapshot_bytes))
        # Not all writers at once: the first snapshot that lands serves everybody.
        late = crc32(self._writer.encode()) % (commits // 16 + 1)
        self._log.compact_if_due(commits + late if commits else 0, size)

    def _limit(self, topic: str) -> int:
        limit: int = self._settings(topic).get(MAX_NUM_RANGES, self._max_ranges)
        return limit

    def _over_limit(
        self, state: GroupState, parts: Iterable[Part]
    ) -> dict[TopicPartition, MaxIndividualCommitsReached]:
        over = {}
        for part in parts:
            known = state.partitions.get(part.topic_partition)
            commits = known.commits if known else PartitionCommits(max_ranges=None)
            limit = self._limit(part.topic)
            if commits.ranges.range_count + part.offsets.range_count <= limit:
                continue
            trial = commits.copy(max_ranges=limit)
            try:
                trial.amend(part.holes)
                trial.commit(part.offsets)
            except MaxIndividualCommitsReached as error:
                over[part.topic_partition] = error
            except IndividualCommitTooOld:
                continue
        return over


def _check_setting(name: str, value: Any) -> None:
    if value is None:
        return
    if name in {MAX_NUM_RANGES, SNAPSHOT_COMMITS, SNAPSHOT_BYTES}:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    elif name in {ACCEPT_INDIVIDUAL_COMMIT, ACCEPT_RANGE_FETCH} and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")

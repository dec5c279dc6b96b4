"""The state of a job on the driver: writes its changes, and knows which of them count.

The changes of a record are written before its commit. Until a commit is in the log, slots take its
changes from the changelog for each batch; afterwards their local stores keep them.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from commits.errors import FencedMember
from commits.ids import CommitIds
from commits.secrets import hidden
from coopconsume.errors import OutputNotWritten, StateAhead, StateNotReadable
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin
from coopconsume.state.slot_state import StateSpec
from coopconsume.state.store import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import Epoch
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.sinks.base import Outputs
    from coopconsume.state.rows import Range
    from coopconsume.state.schema import StateSchema

log = logging.getLogger(__name__)

#: Changes of a partition that are kept by default.
HISTORY: Final = 200_000
#: Files of a partition from which on it gets a snapshot.
SNAPSHOT_FILES: Final = 1_000
#: Fewer changes, or bytes of them, are not worth a snapshot.
_LEAST_ROWS: Final = 1_000
_LEAST_BYTES: Final = 32 * 1024
_LOOK_EVERY: Final = 10.0


class StateLog:
    """Writes the changes of a job's state, and says up to where slots may keep them.

    Its methods may be called from any thread.

    Args:
        path: The folder or URI of the state.
        schema: The schema of the values.
        lifetime: Seconds after which a value is gone that a handler sets; None: it stays.
        history: The number of changes of a partition that are kept at least, so that its state can
            be set back; 0: as few as possible.

    Raises:
        TableUnusable: There is a state of another schema at the path, or something else.
    """

    def __init__(
        self,
        path: str,
        schema: StateSchema,
        lifetime: float | None = None,
        history: int = HISTORY,
    ) -> None:
        self.schema = schema
        self.path = path
        self._lifetime = lifetime
        self._history = history
        self._changelog = Changelog(path, schema)
        self._lock = threading.Lock()
        self._assignment: EpochAssignment | None = None
        self._version = -1
        #: Commits whose changes count, those of this epoch included that are not in the log yet.
        self._counted = CommitIds()
        #: Of each commit that is written and not in the log, a version before it.
        self._open: dict[str, int] = {}
        #: The same of changes that are being written.
        self._appending: dict[str, int] = {}
        self._topic_ids: Mapping[str, str] = {}
        self._has_ordering_keys = False
        #: Of the last snapshot of a partition by this process: the version that it was made of,
        #: the stable offset before that, and the rows and files that there were.
        self._snapshots: dict[Origin, tuple[int, int, int, int]] = {}
        self._over = threading.Event()

    @property
    def changelog(self) -> Changelog:
        """Where the changes are written."""
        return self._changelog

    def begin(self, assignment: EpochAssignment) -> None:
        """Finds out which changes count; for each epoch, before its first batch.

        All rows of the key ranges that are owned are decided by then: those of earlier owners by
        the epoch, our own as nothing of the epoch before is committed any more. What they write
        later does not count.

        Raises:
            GroupRefused: The group has another state, or none.
            ResetNotFinished: A reset of the group's offsets and state was interrupted.
            StateAhead: The group's offsets were set back, the state was not.
            StateNotReadable: The changelog cannot be read.
            TableUnusable: The state belongs to another group.
            commits.CommitLogUnavailable: The commit log cannot be read.
        """
        with self._lock:
            self._assignment = None
        assignment.begin_with_state(self._changelog)
        self._forget_snapshots(assignment)
        version, counted = self._look(assignment)
        with self._lock:
            self._version, self._counted, self._open = version, counted, {}
            self._topic_ids = dict(assignment.topic_ids)
            self._has_ordering_keys = assignment.options.ordering_key is not None
            self._assignment = assignment
        self._over.set()
        self._over = threading.Event()
        threading.Thread(
            target=self._keep, args=(assignment, self._over), name="coopconsume-state", daemon=True
        ).start()

    def extend(self, gained: EpochAssignment) -> None:
        """Finds out which changes of gained key ranges count; before their first batch.

        Earlier owners have released them, so nothing of theirs is committed any more.

        Args:
            gained: The key ranges that come to those of the epoch.

        Raises:
            StateAhead, StateNotReadable, commits.CommitLogUnavailable: As `begin` does.
        """
        version, counted = self._look(gained)
        with self._lock:
            for one in counted:
                self._counted.add(one)
            self._version = max(self._version, version)
            self._topic_ids = {**self._topic_ids, **gained.topic_ids}
            for tp, owned in gained.owned.items():
                if owned.owns_first:
                    # Others may have made snapshots since.
                    self._snapshots.pop(self._origin(gained, tp), None)

    def _look(self, assignment: EpochAssignment) -> tuple[int, CommitIds]:
        """Returns the newest version, and the commits in it that count."""
        version = self._changelog.version
        written = self._changelog.commits(version)
        # After the version, so that a commit is known whose rows are in it.
        known = assignment.store.counted_commits(assignment.options.group_id)
        counted = CommitIds(one for one in written if one in known)
        self._check_offsets(assignment, version, counted)
        return version, counted

    def _check_offsets(self, assignment: EpochAssignment, version: int, counted: CommitIds) -> None:
        """Makes sure that all changes that count are of records that are committed."""
        for tp, owned in assignment.owned.items():
            origin = self._origin(assignment, tp)
            changes = self._changelog.changes(origin, version, owned.ranges, above=owned.stable)
            old = self._changelog.snapshots.rows(origin, owned.ranges)
            old = old.filter(pc.greater_equal(old.column("_offset"), owned.stable))
            ids, offsets = changes.column("_commit").to_pylist(), changes.column("_offset")
            found = [
                offset
                for commit, offset in zip(ids, offsets.to_pylist(), strict=True)
                if commit in counted
            ]
            for offset in (*found, *old.column("_offset").to_pylist()):
                if offset not in owned.committed:
                    raise StateAhead(hidden(self.path), *tp, offset)

    def _forget_snapshots(self, assignment: EpochAssignment) -> None:
        """Trims nothing by a snapshot before offsets were set back: the same offsets come again."""
        kept = {}
        for tp, owned in assignment.owned.items():
            origin = self._origin(assignment, tp)
            last = self._snapshots.get(origin)
            if last is not None and last[1] <= owned.stable:
                kept[origin] = last
        self._snapshots = kept

    def _origin(self, assignment: EpochAssignment, tp: TopicPartition) -> Origin:
        topic_id = assignment.topic_ids.get(tp[0])
        if not topic_id:
            raise StateNotReadable(
                hidden(self.path), f"the broker gives no id of topic {tp[0]!r}, so it is too old"
            )
        return Origin(topic_id, tp[1])

    def is_in_doubt(self, epoch: Epoch) -> bool:
        """Returns whether changes of an epoch that `begin` looks at may still come to count.

        So it is if the commit of changes was not answered before the job was to begin again.
        """
        with self._lock:
            assignment = self._assignment
            return assignment is not None and assignment.epoch == epoch and bool(self._open)

    def close(self) -> None:
        """Makes no snapshots any more; harmless when repeated."""
        self._over.set()

    # -- changes

    def append(self, assignment: EpochAssignment, outputs: Outputs) -> None:
        """Writes changes, before their commit and as the last part of it.

        Args:
            assignment: The epoch of the records.
            outputs: The changes.

        Raises:
            OutputNotWritten: They are not written, or the epoch is over. What is written of them
                never counts.
        """
        with self._lock:
            self._check(assignment)
            self._appending[outputs.commit_id] = self._version
        try:
            before, version = self._changelog.append(
                outputs.table(self.schema.rows, with_hash=True)
            )
        except BaseException:
            with self._lock:
                del self._appending[outputs.commit_id]
            raise
        with self._lock:
            del self._appending[outputs.commit_id]
            self._check(assignment)
            self._open[outputs.commit_id] = before
            self._counted.add(outputs.commit_id)
            self._version = max(self._version, version)

    def _check(self, assignment: EpochAssignment) -> None:
        if self._assignment is not assignment:
            raise OutputNotWritten("changes of the state", hidden(self.path), "the epoch is over")

    def committed(self, assignment: EpochAssignment, commit_id: str) -> None:
        """A commit was answered. If it changed nothing, its changes do not count.

        Args:
            assignment: The epoch of the commit.
            commit_id: Its id.
        """
        # Its answer does not show it: a repeat is a duplicate, whatever the first one changed.
        counts = assignment.store.has_counted(assignment.options.group_id, commit_id)
        with self._lock:
            if self._assignment is assignment:
                self._open.pop(commit_id, None)
                if not counts:
                    self._counted.discard(commit_id)

    def spec(self, ranges: Mapping[int, Mapping[TopicPartition, tuple[Range, ...]]]) -> StateSpec:
        """Returns what the slots of a batch need to know.

        Args:
            ranges: Of each slot, its key ranges by topic and partition.
        """
        with self._lock:
            return StateSpec(
                # Workers have another current folder than the program.
                path=self.path if "://" in self.path else str(Path(self.path).absolute()),
                folder=os.environ.get(FOLDER, ""),
                schema=self.schema,
                topic_ids=self._topic_ids,
                decided=min([*self._open.values(), *self._appending.values(), self._version]),
                version=self._version,
                counted=self._counted.copy(),
                lifetime=self._lifetime,
                ranges=ranges,
                has_ordering_keys=self._has_ordering_keys,
            )

    def value(self, topic: str, key: bytes) -> Any:
        """Returns the value of a key as its committed records left it; None if it has none.

        Raises:
            StateNotReadable: The state cannot be read, or the job has not begun.
            commits.CommitLogUnavailable: The commit log cannot be read.
        """
        assignment = self._assignment
        if assignment is None:
            raise StateNotReadable(hidden(self.path), "the job has no key ranges yet")
        counted = assignment.store.counted_commits(assignment.options.group_id)
        topic_id = assignment.topic_ids.get(topic, "")
        found = (
            self._changelog.value(origin, key, counted.__contains__)
            for origin in self._changelog.origins()
            if origin.topic_id == topic_id
        )
        return next((value for value in found if value is not None), None)

    # -- snapshots

    def _keep(self, assignment: EpochAssignment, over: threading.Event) -> None:
        """Makes snapshots of partitions with many changes. In a thread of its own."""
        while not over.wait(_LOOK_EVERY):
            try:
                self._move_on()
                for tp, owned in list(assignment.owned.items()):
                    if owned.owns_first and not over.is_set():
                        self._snapshot_if_due(assignment, tp)
            except FencedMember:
                return  # The epoch is over; the next owner makes it.
            except Exception as error:  # noqa: BLE001 - the next look may do
                log.warning("the state has no new snapshot for now: %s", error)

    def _move_on(self) -> None:
        """Follows the newest version, as files of old ones do not stay for ever."""
        version = self._changelog.version
        with self._lock:
            if not self._open and not self._appending:
                self._version = max(self._version, version)

    def _check_owner(self, assignment: EpochAssignment, tp: TopicPartition) -> None:
        """Makes sure that this member makes the snapshots of a partition."""
        # By the log, not by an earlier look: after the epoch, offsets and state may be set back.
        assignment.proof.check(within=0)
        owned = assignment.owned.get(tp)
        if owned is None or not owned.owns_first:
            raise OutputNotWritten("a snapshot", hidden(self.path), "its owner is another member")

    def _snapshot_if_due(self, assignment: EpochAssignment, tp: TopicPartition) -> None:
        is_due = self._has_history if self._history else self._has_removable
        if is_due(assignment, tp):
            self.snapshot(assignment, tp)

    def _has_history(self, assignment: EpochAssignment, tp: TopicPartition) -> bool:
        """Returns whether there are as many new changes as are to be kept."""
        origin, version = self._origin(assignment, tp), self._changelog.version
        last, made_at, keys = self._snapshots.get(origin), 0, 0
        for one in self._changelog.snapshots.of(origin)[-1:]:
            made_at, keys = one.made_at, one.keys
        if last is None:
            # Another process made the last snapshot: what is older is no new change.
            rows, files, _ = self._changelog.size(origin, version, since=made_at)
        else:
            rows, files, _ = self._changelog.size(origin, version)
            rows, files = rows - last[2], files - last[3]
        # A snapshot costs by its keys, so it waits for as many changes.
        return rows >= max(self._history, keys, _LEAST_ROWS) or files >= SNAPSHOT_FILES

    def _has_removable(self, assignment: EpochAssignment, tp: TopicPartition) -> bool:
        """Returns whether the changes that a snapshot would remove are as large as the last one.

        By bytes and not by rows, as small commits leave small files.
        """
        origin = self._origin(assignment, tp)
        last = self._snapshots.get(origin)
        commits = assignment.store.state(assignment.options.group_id).get(tp)
        if commits is None or (last is not None and last[1] == commits.stable_offset):
            return False  # All changes below it are removed.
        version, below = self._changelog.version, commits.stable_offset
        found = self._changelog.size(origin, version, below=below)
        snapshots = self._changelog.snapshots.of(origin)
        enough = max(_LEAST_BYTES, snapshots[-1].size if snapshots else 0)
        return found.size >= enough or found.files >= SNAPSHOT_FILES

    def snapshot(self, assignment: EpochAssignment, tp: TopicPartition) -> None:
        """Writes a snapshot of a partition, and removes changes.

        With a history these are the changes that the snapshot before has, which is kept. Without
        one they are those of the new snapshot, and the one before is removed.

        Raises:
            OutputNotWritten: It cannot be written, and the last one remains; or changes cannot be
                removed.
            StateNotReadable: The changelog cannot be read.
            commits.CommitLogUnavailable: The commit log cannot be read.
            commits.FencedMember: The epoch is over.
        """
        origin, group = self._origin(assignment, tp), assignment.options.group_id
        keeps_last = self._history > 0
        check = partial(self._check_owner, assignment, tp)
        # In this order: all changes below the stable offset are in the version, and all commits
        # of the version that count are known.
        stable = assignment.store.state(group)[tp].stable_offset
        version = (
            self._changelog.version
            if keeps_last
            else self._changelog.version_for_snapshot(origin, check)
        )
        counted = assignment.store.counted_commits(group)
        keys = self._changelog.write_snapshot(
            origin, version, counted.__contains__, commits=assignment.store.version(),
            keeps_last=keeps_last, check=check,
        )  # fmt: skip
        if keys is None:  # It may lack what would be removed.
            check()
            raise OutputNotWritten("a snapshot", hidden(self.path), "there is a newer one")
        last = self._snapshots.get(origin) if keeps_last else (version, stable)
        # Changes that were written meanwhile are new ones.
        size = self._changelog.size(origin, version)
        removed, fewer = 0, 0
        if last is not None:
            complete, below, *_ = last
            removed, fewer = self._changelog.trim(origin, below, complete, check=check)
        self._snapshots[origin] = (version, stable, size.rows - removed, size.files - fewer)

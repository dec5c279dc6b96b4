"""The state of a job on the driver: writes its changes, and knows which of them count.

The changes of a record are written before its commit. Until a commit is in the log, slots take its
changes from the changelog for each batch; afterwards their local stores keep them.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from commits.secrets import hidden
from coopconsume.errors import CoopConsumeError, StateAhead
from coopconsume.state.changelog import Changelog, Origin
from coopconsume.state.slot import StateSpec
from coopconsume.state.store import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import TopicPartition
    from coopconsume.sinks.base import Outputs
    from coopconsume.state.changelog import Range
    from coopconsume.state.schema import StateSchema


log = logging.getLogger(__name__)

#: Changes of a partition from which on it gets a snapshot, unless it has more keys.
SNAPSHOT_ROWS: Final = 200_000
_SNAPSHOTS_EVERY: Final = 10.0


class StateLog:
    """Writes the changes of a job's state, and says up to where slots may keep them.

    Its methods may be called from any thread.

    Args:
        path: The folder or URI of the state.
        schema: The schema of the values.
        lifetime: Seconds after which a value is gone that a handler sets; None: it stays.

    Raises:
        TableUnusable: There is a state of another schema at the path, or something else.
    """

    def __init__(self, path: str, schema: StateSchema, lifetime: float | None = None) -> None:
        self.schema = schema
        self._lifetime = lifetime
        self.path = path
        self._changelog = Changelog(path, schema)
        self._lock = threading.Lock()
        self._version = -1
        #: Of each commit that is written and not in the log, a version before it.
        self._open: dict[str, int] = {}
        self._refused: frozenset[str] = frozenset()
        self._topic_ids: Mapping[str, str] = {}
        #: Of the last snapshot of a partition by this process: the version that it was made of,
        #: and the stable offset before that.
        self._snapshots: dict[Origin, tuple[int, int]] = {}
        self._keys: dict[Origin, int] = {}
        self._over = threading.Event()
        self._holding: EpochAssignment | None = None
        self._keeper: threading.Thread | None = None

    def begin(self, holding: EpochAssignment) -> None:
        """Finds out which changes count; for each epoch, before its first batch.

        All rows of the key ranges that are owned are decided by then: those of earlier owners by
        the epoch, our own as nothing of the epoch before is committed any more.

        Raises:
            StateAhead: The group's offsets were set back, the state was not.
            StateNotReadable: The changelog cannot be read.
            commits.CommitLogUnavailable: The commit log cannot be read.
        """
        version = self._changelog.version
        written = self._changelog.commits(version)
        # After the version, so that a commit is known whose rows are in it.
        counted = holding.store.counted_commits(holding.options.group_id)
        refused = frozenset(one for one in written if one not in counted)
        with self._lock:
            self._version = version
            self._open = {}
            self._refused = refused
            self._topic_ids = dict(holding.topic_ids)
        self._check_offsets(holding, version)
        self._holding = holding
        if self._keeper is None:
            self._keeper = threading.Thread(
                target=self._keep, name="coopconsume-state", daemon=True
            )
            self._keeper.start()

    def close(self) -> None:
        """Makes no snapshots any more; harmless when repeated."""
        self._over.set()

    def _keep(self) -> None:
        """Makes snapshots of partitions with many changes. In a thread of its own."""
        while not self._over.wait(_SNAPSHOTS_EVERY):
            holding = self._holding
            if holding is None:
                continue
            try:
                for tp in self._due(holding):
                    self.snapshot(holding, tp)
            except CoopConsumeError as error:
                log.warning("the state has no new snapshot for now: %s", error)

    def _due(self, holding: EpochAssignment) -> list[TopicPartition]:
        """Returns the partitions that are ours to compact, and have enough changes."""
        version = self._changelog.version
        found = []
        for tp, owned in holding.owned.items():
            origin = Origin(holding.topic_ids.get(tp[0], ""), tp[1])
            is_ours = any(one.first == 0 for one in owned.ranges)
            # A snapshot costs by its keys, so it waits for as many changes.
            enough = max(SNAPSHOT_ROWS, self._keys.get(origin, 0))
            if is_ours and self._changelog.rows_of(origin, version) >= enough:
                found.append(tp)
        return found

    def snapshot(self, holding: EpochAssignment, tp: TopicPartition) -> None:
        """Replaces the snapshot of a partition, and removes the changes that the last one has.

        Raises:
            OutputNotWritten: It cannot be written; the last one remains.
            StateNotReadable: The changelog cannot be read.
            commits.CommitLogUnavailable: The commit log cannot be read.
        """
        origin, group = Origin(holding.topic_ids.get(tp[0], ""), tp[1]), holding.options.group_id
        # In this order: all changes below the stable offset are in the version, and all commits
        # of the version that count are known.
        stable = holding.store.state(group)[tp].stable_offset
        version = self._changelog.version
        counted = holding.store.counted_commits(group)
        self._keys[origin] = self._changelog.write_snapshot(origin, version, counted.__contains__)
        last = self._snapshots.get(origin)
        if last is not None:
            complete, below = last
            self._changelog.trim(origin, below, complete)
        self._snapshots[origin] = version, stable

    def _check_offsets(self, holding: EpochAssignment, version: int) -> None:
        """Makes sure that all changes that count are of records that are committed."""
        for tp, owned in holding.owned.items():
            origin = Origin(holding.topic_ids.get(tp[0], ""), tp[1])
            ranges = [(one.first, one.last) for one in owned.ranges]
            rows = self._changelog.changes(origin, version, ranges, above=owned.stable)
            for commit, offset in zip(
                rows.column("_commit").to_pylist(), rows.column("_offset").to_pylist(), strict=True
            ):
                if commit not in self._refused and offset not in owned.committed:
                    raise StateAhead(hidden(self.path), *tp, offset)

    def value(self, topic: str, key: bytes) -> Any:
        """Returns the value of a key as its committed records left it; None if it has none.

        Raises:
            StateNotReadable: The state cannot be read.
            commits.CommitLogUnavailable: The commit log cannot be read.
        """
        holding = self._holding
        if holding is None:
            return None
        counted = holding.store.counted_commits(holding.options.group_id)
        topic_id = holding.topic_ids.get(topic, "")
        found = (
            self._changelog.value(origin, key, counted.__contains__)
            for _, origin in self._changelog.origins()
            if origin.topic_id == topic_id
        )
        return next((value for value in found if value is not None), None)

    def append(self, outputs: Outputs) -> None:
        """Writes changes, before their commit.

        Raises:
            OutputNotWritten: They are not written; perhaps part of them is, and is refused.
        """
        rows = outputs.table(self.schema.rows, with_hash=True)
        try:
            before, version = self._changelog.append(rows)
        except BaseException:
            with self._lock:
                self._refused |= {outputs.commit_id}
            raise
        with self._lock:
            self._open[outputs.commit_id] = before
            self._version = max(self._version, version)

    def committed(self, commit_id: str) -> None:
        """A commit is in the log, and counts."""
        with self._lock:
            self._open.pop(commit_id, None)

    def spec(self, ranges: Mapping[int, Mapping[TopicPartition, tuple[Range, ...]]]) -> StateSpec:
        """Returns what the slots of a batch need to know.

        Args:
            ranges: Of each slot, its key ranges by topic and partition.
        """
        with self._lock:
            return StateSpec(
                path=self.path,
                folder=os.environ.get(FOLDER, ""),
                schema=self.schema,
                topic_ids=self._topic_ids,
                decided=min([*self._open.values(), self._version]),
                version=self._version,
                written=frozenset(self._open),
                refused=self._refused,
                lifetime=self._lifetime,
                ranges=ranges,
            )

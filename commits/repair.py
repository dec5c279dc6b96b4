"""Looks for damage in a commit table, and puts a readable state in the place of an unreadable one.

A repair never restores the table: it writes a state as a new snapshot, under a new store nonce and
with epoch numbers above any that the table can have seen. Nobody who worked before can commit on
top of it, and every open store sees it at its next call.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits.engine import AppendConflict, TailGone
from commits.errors import (
    CommitLogUnavailable,
    CommitStoreError,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    RepairRefused,
)
from commits.fold import LogState
from commits.group import PartitionState
from commits.offsets import OffsetRanges
from commits.partition import PartitionCommits
from commits.rows import decode, encode
from commits.secrets import hidden
from commits.snapshot import newest_snapshot, snapshot_events
from commits.table import open_table, opened_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from commits.engine import LogEngine
    from commits.model import TopicPartition

__all__ = [
    "PartitionPlan",
    "StableOffset",
    "TableCheck",
    "TableRepair",
    "check_table",
    "move_table",
    "repair_table",
]

QUIET_SECONDS = 60.0
"""A table to which somebody appended so recently is not repaired: members may be active."""

_OLD_VERSIONS = 50  # that are tried if the newest one cannot be opened


@dataclass(frozen=True, slots=True)
class StableOffset:
    """Where a partition is to go on, as Kafka holds it for a group.

    Attributes:
        offset: The group's offset in Kafka: all below is done.
        topic_id: The id of the topic; empty if it is not known.
    """

    offset: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What is wrong with a commit table, and what of it can be read.

    Attributes:
        target: The table.
        problem: What is wrong, in a sentence; empty if nothing is.
        version: Its newest version; -1 if there is none that can be opened.
        store: The nonce of the store; empty if it is not known.
        readable_version: The newest version of which the whole state can be read; -1 for none.
        snapshot_version: The version of which the newest readable snapshot tells; -1 for none.
        is_missing: Whether there is no table at all.
        groups: The groups that the newest readable state knows: Kafka cluster and group id.
    """

    target: str
    problem: str = ""
    version: int = -1
    store: str = ""
    readable_version: int = -1
    snapshot_version: int = -1
    is_missing: bool = False
    groups: tuple[tuple[str, str], ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every commit that counts can be read."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What a repair says of one partition.

    Attributes:
        cluster: The id of the Kafka cluster.
        group: The group.
        topic: The topic.
        partition: The partition.
        stable_offset: The first offset that is not done.
        committed_above: How many are done above it.
        pending: How many records are known to be tried again.
    """

    cluster: str
    group: str
    topic: str
    partition: int
    stable_offset: int
    committed_above: int
    pending: int


@dataclass(frozen=True, slots=True)
class TableRepair:
    """What a repair comes to.

    Attributes:
        target: The table that is written.
        source: `version=<n>`, `snapshot=<n>` or `kafka`: where the state comes from.
        state: The state, before its epochs are ended.
        version: The version that brought it; None for a dry run.
        store: The new nonce; empty for a dry run.
    """

    target: str
    source: str
    state: LogState = field(repr=False)
    version: int | None = None
    store: str = ""

    def partitions(self) -> Iterator[PartitionPlan]:
        """The partitions, in order."""
        for (cluster, group), one in sorted(self.state.groups.items()):
            for (topic, number), at in sorted(one.partitions.items()):
                yield PartitionPlan(
                    cluster, group, topic, number,
                    at.commits.stable_offset, len(at.commits.ranges), len(at.pending),
                )  # fmt: skip


def check_table(
    target: str | os.PathLike[str],
    *,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> TableCheck:
    """Reads a commit table as a new store would, and says what is wrong with it.

    Args:
        target: As for `CommitStore.open`.
        spark: As for `CommitStore.open`.
        storage_options: As for `CommitStore.open`.

    Raises:
        CommitTableFormat: If it is no commit table, or of another format.
        UnsupportedTarget, CommitLogUnavailable: As for `CommitStore.open`.
    """
    return _Patient.open(target, spark, storage_options).check


def repair_table(
    target: str | os.PathLike[str],
    *,
    version: int | None = None,
    offsets: Mapping[tuple[str, str], Mapping[TopicPartition, StableOffset]] | None = None,
    into: str | os.PathLike[str] | None = None,
    dry_run: bool = True,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
    quiet_seconds: float = QUIET_SECONDS,
) -> TableRepair:
    """Puts a readable state in the place of what a commit table says now.

    What was committed and is not in that state will be done again.

    Args:
        target: The table, as for `CommitStore.open`; where there is none, one is made.
        version: The version of the table to take the state of.
        offsets: Instead, for each Kafka cluster and group, stable offsets as Kafka holds them;
            other groups are taken from the newest readable state. If neither is given, the newest
            readable snapshot is taken.
        into: A new table to write it to instead; needed if the old one cannot be opened.
        dry_run: Whether only to say what would be done.
        spark: As for `CommitStore.open`.
        storage_options: As for `CommitStore.open`.
        quiet_seconds: How long nothing must have been appended to the table.

    Raises:
        RepairRefused: If members are active, if the state cannot be read, or if the table cannot
            be written in place.
        CommitTableFormat, UnsupportedTarget, CommitLogUnavailable: As for `CommitStore.open`.
        ValueError: If both a version and offsets are given.
    """
    if version is not None and offsets is not None:
        raise ValueError("give a version or offsets, not both")
    patient = _Patient.open(target, spark, storage_options)
    if version is not None:
        source, state = f"version={version}", patient.state_of(version)
    elif offsets is not None:
        source, state = "kafka", patient.state_from(offsets)
    else:
        state = patient.newest_snapshot()
        source = f"snapshot={state.version}"
    if into is None and patient.engine is None and not patient.check.is_missing:
        raise RepairRefused(
            patient.check.target, "it cannot be opened to be written; give a new table (into)"
        )
    written = patient.check.target if into is None else hidden(str(into))
    if dry_run:
        return TableRepair(written, source, state)
    patient.check_quiet(quiet_seconds)
    engine = patient.engine if into is None else None
    if engine is None:
        engine = open_table(into or target, storage_options, 1000, spark=spark)
        if engine.version > 0:
            raise RepairRefused(engine.target, "it is there already; give another new table")
    return _write(engine, source, state, patient)


def move_table(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
    quiet_seconds: float = QUIET_SECONDS,
) -> TableRepair:
    """Writes all that a commit table says to a new one, such as from a path to a catalog.

    Nothing of what is committed, pending, counted or set is lost. Epochs and claims end, as members
    have to be stopped first. The old table is left as it is: do not use it any more.

    Args:
        source: The old table.
        target: The new one.
        spark: For the name of a table in a catalog.
        storage_options: For an object store.
        quiet_seconds: How long nothing must have been appended to the old table.

    Raises:
        RepairRefused: If members are active, or the new table is there already.
        CorruptCommitLog: If the old one is damaged.
    """
    check = check_table(source, spark=spark, storage_options=storage_options)
    if not check.is_sound:
        raise CorruptCommitLog(check.target, check.problem)
    return repair_table(
        source, version=check.version, into=target, dry_run=False, spark=spark,
        storage_options=storage_options, quiet_seconds=quiet_seconds,
    )  # fmt: skip


def _write(engine: LogEngine, source: str, state: LogState, patient: _Patient) -> TableRepair:
    at = engine.refresh()
    # Every version since may have opened an epoch that cannot be read any more.
    unread = max(0, max(at, patient.check.version) - state.version)
    new = _ended(state, at, patient.highest(), unread)
    segment = at // int(engine.properties["coopconsume.segment.versions"])
    try:
        rows = encode(snapshot_events(new, uuid.uuid4().hex, repair=True), segment)
        version = engine.replace(rows, at=at, closed=None)
    except AppendConflict as error:
        raise RepairRefused(engine.target, "somebody appended to it; stop all members") from error
    return TableRepair(engine.target, source, state, version, new.store)


def _ended(
    state: LogState, at: int, highest: Mapping[tuple[str, str], int], unread: int
) -> LogState:
    """The state with no epoch in force and all numbers of epochs taken that may have been."""
    groups = {}
    for key, group in state.groups.items():
        group.end_all()
        group.highest = max(group.highest, highest.get(key, 0)) + unread
        groups[key] = group
    return LogState(at, groups, state.settings, uuid.uuid4().hex)


class _Patient:
    """A table of which perhaps not all can be read.

    Attributes:
        check: What is known of it.
        engine: To write to it; None if it cannot be opened.
    """

    def __init__(
        self, check: TableCheck, engine: LogEngine | None, readers: list[LogEngine]
    ) -> None:
        self.check = check
        self.engine = engine
        self._readers = readers

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str],
        spark: Any,
        storage_options: Mapping[str, str] | None,
    ) -> _Patient:
        try:
            engine = open_table(target, storage_options, 1000, spark=spark, create=False)
        except CommitTableNotFound as error:
            problem = "there is no table"
            return cls(TableCheck(error.target, problem, is_missing=True), None, [])
        except CorruptCommitLog as error:
            old = opened_at(target, storage_options, spark, _OLD_VERSIONS)
            if old is None:
                return cls(TableCheck(error.target, error.problem), None, [])
            return cls(_checked(old, error.problem), None, [old])
        return cls(_checked(engine, ""), engine, [engine])

    def state_of(self, version: int) -> LogState:
        """The state that the table had at a version."""
        for engine in self._readers:
            try:
                return state_at(engine, version)
            except CommitLogUnavailable:
                raise
            except CommitStoreError as error:
                raise RepairRefused(
                    self.check.target, f"version {version} cannot be read: {_problem(error)}"
                ) from error
        raise RepairRefused(self.check.target, f"no version of it can be read, nor {version}")

    def newest_snapshot(self) -> LogState:
        """The state of the newest readable snapshot."""
        for engine in self._readers:
            found = next(_snapshots(engine), None)
            if found is not None:
                return found
        raise RepairRefused(
            self.check.target,
            "no snapshot of it can be read; name a version, or take the offsets in Kafka",
        )

    def state_from(
        self, offsets: Mapping[tuple[str, str], Mapping[TopicPartition, StableOffset]]
    ) -> LogState:
        """The newest readable state, with some groups at their offsets in Kafka."""
        state = LogState()
        if self.check.readable_version >= 0:
            state = self.state_of(self.check.readable_version)
        for (cluster, name), partitions in offsets.items():
            group = state.group(cluster, name)
            group.partitions = {
                at: PartitionState(
                    one.topic_id,
                    PartitionCommits(one.offset, OffsetRanges(), max_ranges=None),
                )
                for at, one in partitions.items()
            }
            state.groups[cluster, name] = group
        return state

    def highest(self) -> dict[tuple[str, str], int]:
        """The highest epoch number of each group in the newest readable state."""
        if self.check.readable_version < 0:
            return {}
        groups = self.state_of(self.check.readable_version).groups
        return {key: group.highest for key, group in groups.items()}

    def check_quiet(self, seconds: float) -> None:
        """Refuses if somebody has appended recently."""
        for engine in self._readers:
            last_ms = engine.last_append_ms()
            ago = time.time() - last_ms / 1000 if last_ms is not None else None
            if ago is not None and ago < seconds:
                raise RepairRefused(
                    self.check.target,
                    f"somebody appended to it {max(0.0, ago):.0f} s ago: stop all members, and "
                    f"wait until nothing was appended for {seconds:.0f} s",
                )


def state_at(engine: LogEngine, version: int) -> LogState:
    """The state that a table had at one of its versions.

    Raises:
        CorruptCommitLog: If it cannot be read.
        CommitTableFormat: If there are rows of another format.
    """
    if not 0 <= version <= engine.version:
        raise CorruptCommitLog(
            engine.target, f"it has the versions 0 to {engine.version}, not {version}"
        )
    try:
        bases: list[LogState] = [s for s in _snapshots(engine) if s.version <= version][:1]
        state = bases[0] if bases else LogState()
        tail = engine.tail(state.version, version)
    except TailGone as error:
        raise CorruptCommitLog(engine.target, f"rows are missing: {error}") from error
    if tail.repair_of > state.version:
        raise CorruptCommitLog(engine.target, "the snapshot of a repair is missing")
    try:
        list(state.fold(event for _, event in decode(tail.rows, engine.target)))
    except CommitStoreError:
        raise
    except Exception as error:
        raise CorruptCommitLog(engine.target, f"a row makes no sense: {error!r}") from error
    state.version = version
    return state


def _snapshots(engine: LogEngine) -> Iterator[LogState]:
    """The readable snapshots, the newest first."""
    for version in (*engine.compactions(), None):
        try:
            rows = engine.snapshots(version)
            found = newest_snapshot(event for _, event in decode(rows, engine.target))
        except CommitLogUnavailable:
            raise
        except (TailGone, CommitStoreError, KeyError, TypeError, ValueError):
            continue
        if found is not None:
            yield found


def _checked(engine: LogEngine, problem: str) -> TableCheck:
    newest = engine.refresh()
    snapshot = next(_snapshots(engine), None)
    readable, found = newest, None
    try:
        found = state_at(engine, newest)
    except (CommitLogUnavailable, CommitTableFormat):
        raise
    except CommitStoreError as error:
        problem = problem or _problem(error)
        readable, found = _newest_readable(engine, snapshot, newest)
    return TableCheck(
        target=engine.target,
        problem=problem,
        version=newest,
        store=(found.store if found else "") or engine.properties["coopconsume.store"],
        readable_version=readable,
        snapshot_version=snapshot.version if snapshot else -1,
        groups=tuple(sorted(found.groups)) if found else (),
    )


def _newest_readable(
    engine: LogEngine, snapshot: LogState | None, newest: int
) -> tuple[int, LogState | None]:
    """The newest version of which the state can be read, by halving."""
    low, high = (snapshot.version if snapshot else 0), newest
    best, found = -1, None
    while low < high:
        middle = (low + high) // 2
        try:
            best, found = middle, state_at(engine, middle)
            low = middle + 1
        except CommitLogUnavailable:
            raise
        except CommitStoreError:
            high = middle
    return best, found


def _problem(error: CommitStoreError) -> str:
    return str(getattr(error, "problem", error))

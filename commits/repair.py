"""Checks commit tables for damage and repairs them from a readable state.

A repair never restores the table. It writes a state as a new snapshot, with a new store nonce and
with epoch numbers above all numbers that the table may contain. Earlier members cannot commit on
top of it, and every open store sees it at its next call.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits.engine import AppendConflict, TailGone, reading
from commits.errors import (
    CommitLogUnavailable,
    CommitStoreError,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    RepairRefused,
)
from commits.fold import LogState, PartitionState
from commits.grant_rules import end_all
from commits.offsets import OffsetRanges
from commits.partition_commits import PartitionCommits
from commits.rows import decode, encode
from commits.secrets import hidden
from commits.snapshot import newest_snapshot, snapshot_events
from commits.table import open_table, opened_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from commits.engine import LogEngine
    from commits.model import TopicPartition


QUIET_SECONDS = 60.0
"""The time without an append before a repair: after a recent append members may be active."""

_OLD_VERSIONS = 50  # older versions to try if the newest one cannot be opened


@dataclass(frozen=True, slots=True)
class StableOffset:
    """A group's committed offset of a partition in Kafka, from which a repair continues.

    Attributes:
        offset: The group's offset in Kafka; all offsets below it are done.
        topic_id: The id of the topic; empty if it is not known.
    """

    offset: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of a check of a commit table.

    Attributes:
        target: The table.
        problem: What is wrong, in a sentence; empty if the table is sound.
        version: Its newest version; -1 if it cannot be opened.
        store: The nonce of the store; empty if it is not known.
        readable_version: The newest version whose whole state can be read; -1 for none.
        snapshot_version: The version of the state in the newest readable snapshot; -1 for none.
        is_missing: Whether the table does not exist.
        groups: The groups of the newest readable state: Kafka cluster and group id.
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
    """The state of one partition after a repair.

    Attributes:
        cluster: The id of the Kafka cluster.
        group: The group.
        topic: The topic.
        partition: The partition.
        stable_offset: The first offset that is not done.
        committed_above: The number of committed offsets above it.
        pending: The number of pending records.
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
    """The result of a repair.

    Attributes:
        target: The written table.
        source: The source of the state: `version=<n>`, `snapshot=<n>` or `kafka`.
        state: The state, before its epochs are ended.
        version: The version with the state; None for a dry run.
        store: The new nonce; empty for a dry run.
    """

    target: str
    source: str
    state: LogState = field(repr=False)
    version: int | None = None
    store: str = ""

    def partitions(self) -> Iterator[PartitionPlan]:
        """Yield the partitions in order."""
        for (cluster, group), one in sorted(self.state.groups.items()):
            for (topic, number), at in sorted(one.partitions.items()):
                yield PartitionPlan(
                    cluster,
                    group,
                    topic=topic,
                    partition=number,
                    stable_offset=at.commits.stable_offset,
                    committed_above=len(at.commits.ranges),
                    pending=len(at.pending),
                )


def check_table(
    target: str | os.PathLike[str],
    *,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> TableCheck:
    """Read a commit table as a new store would, and return what is wrong with it.

    Args:
        target: As for `CommitStore.open`.
        spark: As for `CommitStore.open`.
        storage_options: As for `CommitStore.open`.

    Raises:
        CommitTableFormat: If it is not a commit table, or has another format.
        UnsupportedTarget, CommitLogUnavailable: As for `CommitStore.open`.
    """
    return _DamagedTable.open(target, spark, storage_options).check


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
    """Replace the state of a commit table by a readable one.

    Records whose commits are not in that state are processed again.

    Args:
        target: The table, as for `CommitStore.open`; it is created if it does not exist.
        version: The version of the table whose state to use.
        offsets: As an alternative, the stable offsets in Kafka for each Kafka cluster and group;
            other groups keep the newest readable state. Without `version` and `offsets` the newest
            readable snapshot is used.
        into: A new table to write to; required if the old one cannot be opened.
        dry_run: Whether to return the result without writing.
        spark: As for `CommitStore.open`.
        storage_options: As for `CommitStore.open`.
        quiet_seconds: The time without an append to the table before a repair.

    Raises:
        RepairRefused: If members are active, if the state cannot be read, or if the table cannot
            be written in place.
        CommitTableFormat, UnsupportedTarget, CommitLogUnavailable: As for `CommitStore.open`.
        ValueError: If both a version and offsets are given.
    """
    if version is not None and offsets is not None:
        raise ValueError("give a version or offsets, not both")
    table = _DamagedTable.open(target, spark, storage_options, is_written=into is None)
    if version is not None:
        source, state = f"version={version}", table.state_of(version)
    elif offsets is not None:
        source, state = "kafka", table.state_from(offsets)
    else:
        state = table.newest_snapshot()
        source = f"snapshot={state.version}"
    if into is None and table.engine is None and not table.check.is_missing:
        raise RepairRefused(
            table.check.target, "it cannot be opened to be written; give a new table (into)"
        )
    written = table.check.target if into is None else hidden(str(into))
    if dry_run:
        return TableRepair(written, source, state)
    table.check_quiet(quiet_seconds)
    engine = table.engine if into is None else None
    if engine is None:
        engine = open_table(into or target, storage_options, 1000, spark=spark)
        if engine.version > 0:
            raise RepairRefused(engine.target, "it is there already; give another new table")
    return _write(engine, source, state, table)


def move_table(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
    quiet_seconds: float = QUIET_SECONDS,
) -> TableRepair:
    """Copy a commit table to a new one, for example from a path to a catalog.

    All commits, pending records, commit ids and settings are kept. Epochs and claims end, because
    all members must be stopped first. The old table is not changed; do not use it afterwards. It
    may have features for which `CommitStore.open` refuses it.

    Args:
        source: The old table.
        target: The new one.
        spark: The session, for the name of a table in a catalog.
        storage_options: Options of an object store.
        quiet_seconds: The time without an append to the old table before the move.

    Raises:
        RepairRefused: If members are active, or the new table exists already.
        CorruptCommitLog: If the old table is damaged.
    """
    check = _DamagedTable.open(source, spark, storage_options, is_written=False).check
    if not check.is_sound:
        raise CorruptCommitLog(check.target, check.problem)
    return repair_table(
        source,
        version=check.version,
        into=target,
        dry_run=False,
        spark=spark,
        storage_options=storage_options,
        quiet_seconds=quiet_seconds,
    )


def _write(engine: LogEngine, source: str, state: LogState, table: _DamagedTable) -> TableRepair:
    at = engine.refresh()
    # Every later version may have opened an epoch that cannot be read.
    unread = max(0, max(at, table.check.version) - state.version)
    new = _ended(state, at, table.highest(), unread)
    segment = at // int(engine.properties["coopconsume.segment.versions"])
    try:
        rows = encode(snapshot_events(new, uuid.uuid4().hex, repair=True), segment)
        version = engine.replace(rows, at=at, closed=None)
    except AppendConflict as error:
        raise RepairRefused(engine.target, "it has a new append; stop all members") from error
    return TableRepair(engine.target, source, state, version, new.store)


def _ended(
    state: LogState, at: int, highest: Mapping[tuple[str, str], int], unread: int
) -> LogState:
    """Return the state without an epoch in force and above all epoch numbers that may exist."""
    groups = {}
    for key, group in state.groups.items():
        end_all(group)
        group.highest = max(group.highest, highest.get(key, 0)) + unread
        groups[key] = group
    return LogState(at, groups, state.settings, uuid.uuid4().hex)


class _DamagedTable:
    """A table that may be damaged.

    Attributes:
        check: The result of its check.
        engine: The engine that writes to it; None if it cannot be opened, or is only read.
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
        *,
        is_written: bool = True,
    ) -> _DamagedTable:
        try:
            engine = open_table(
                target, storage_options, 1000, spark=spark, create=False, is_written=is_written
            )
        except CommitTableNotFound as error:
            problem = "the table does not exist"
            return cls(TableCheck(error.target, problem, is_missing=True), None, [])
        except CorruptCommitLog as error:
            old = opened_at(target, storage_options, spark, _OLD_VERSIONS)
            if old is None:
                return cls(TableCheck(error.target, error.problem), None, [])
            return cls(_checked(old, error.problem), None, [old])
        return cls(_checked(engine, ""), engine if is_written else None, [engine])

    def state_of(self, version: int) -> LogState:
        """Return the state of the table at a version."""
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
        """Return the state of the newest readable snapshot."""
        for engine in self._readers:
            found = next(_snapshots(engine), None)
            if found is not None:
                return found
        raise RepairRefused(
            self.check.target,
            "no snapshot of it can be read; give a version, or use the offsets in Kafka",
        )

    def state_from(
        self, offsets: Mapping[tuple[str, str], Mapping[TopicPartition, StableOffset]]
    ) -> LogState:
        """Return the newest readable state, with the given groups at their offsets in Kafka."""
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
        """Return the highest epoch number of each group in the newest readable state."""
        if self.check.readable_version < 0:
            return {}
        groups = self.state_of(self.check.readable_version).groups
        return {key: group.highest for key, group in groups.items()}

    def check_quiet(self, seconds: float) -> None:
        """Raise `RepairRefused` after a recent append."""
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
    """Return the state of a table at one of its versions.

    Raises:
        CorruptCommitLog: If it cannot be read.
        CommitTableFormat: If a row has another format.
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
        with reading(engine.target):
            list(state.fold(event for _, event in decode(tail.rows, engine.target)))
    except CommitStoreError:
        raise
    except Exception as error:
        raise CorruptCommitLog(engine.target, f"a row is not valid: {error!r}") from error
    state.version = version
    return state


def _snapshots(engine: LogEngine) -> Iterator[LogState]:
    """Yield the readable snapshots, newest first."""
    for version in (*engine.compactions(), None):
        try:
            rows = engine.snapshots(version)
            with reading(engine.target):
                found = newest_snapshot(event for _, event in decode(rows, engine.target))
        except CommitLogUnavailable:
            raise
        except (TailGone, CommitStoreError, KeyError, TypeError, ValueError):
            continue
        if found is not None:
            yield found


def _checked(engine: LogEngine, problem: str, tries: int = 3) -> TableCheck:
    newest = engine.refresh()
    snapshot = next(_snapshots(engine), None)
    readable, found = newest, None
    try:
        found = state_at(engine, newest)
    except (CommitLogUnavailable, CommitTableFormat):
        raise
    except CommitStoreError as error:
        # Others may have removed old entries meanwhile.
        if tries > 1 and engine.refresh(reopen=True) != newest:
            return _checked(engine, problem, tries - 1)
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
    """Find the newest version whose state can be read, by bisection."""
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

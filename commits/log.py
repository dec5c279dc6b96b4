"""The commit log and its folded state: append, catch up, recover, compact."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from commits.engine import AppendConflict, TailGone, reading
from commits.errors import CommitLogUnavailable, CommitStoreBusy, CorruptCommitLog
from commits.fold import LogState
from commits.growth import Removable, Since
from commits.other_groups import OtherGroups
from commits.recovery import folding, newest_seen
from commits.rows import decode, encode
from commits.silence import Silence
from commits.snapshot import snapshot_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commits.engine import LogEngine, Tail
    from commits.fold import GroupState
    from commits.model import Doubt
    from commits.partition_commits import Answer
    from commits.rows import Event


log = logging.getLogger(__name__)

_TRIES = 20
"""The number of attempts to write a row or a snapshot despite concurrent compactions."""

_PAUSE = 50
"""The number of commits after which a failed automatic snapshot is retried."""

_PORTION = 16
"""The entries of other groups whose rows are folded together: a call waits for one portion."""

VACUUM_SEGMENTS = 20
"""Automatic snapshots vacuum the table once in this number of segments."""


class CommitLog:
    """A table and its folded state.

    Args:
        engine: The table.
        segment_versions: How many versions of the table share a segment.

    Attributes:
        silence: For how long the table has not answered.
        is_left_to_others: Whether another process wrote the newest snapshot while this one read on.

    Raises:
        CorruptCommitLog: If the log cannot be read.
        CommitTableFormat: If it holds rows of another format.
    """

    def __init__(self, engine: LogEngine, segment_versions: int) -> None:
        self._engine = engine
        self._segment_versions = segment_versions
        self.silence = Silence(engine.target)
        self.is_left_to_others = False
        self._looks = threading.local()
        self._changed_at = self._snapshot_at = self._disturbed_at = -1
        self._base = -1  # the version of the snapshot that the state began with
        self._sizes: deque[tuple[int, int]] = deque()  # versions of appends, and their bytes
        self._size = self._not_before = 0
        self._removable: Removable | None = None
        self._others = OtherGroups()
        self._state = LogState()
        self._state = self._recovered(reopen=False)

    @property
    def state(self) -> LogState:
        """The state of all groups, as far as the log was read."""
        self._complete()
        return self._state

    @property
    def settings(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        """The settings of `LogState`, as far as the log was read."""
        return self._state.settings

    @property
    def store(self) -> str:
        """The nonce of the store since its last repair; empty without a repair."""
        return self._state.store

    def group(self, cluster: str, name: str) -> GroupState:
        """Return the state of a group, as far as the log was read.

        From now on, rows of the group are folded as they are read.
        """
        if self._others.has((cluster, name)):
            self._complete()
        self._others.follow((cluster, name))
        return self._state.group(cluster, name)

    @property
    def since(self) -> Since:
        """The appends of all writers since the last snapshot; sizes are those of Arrow."""
        while self._sizes and self._sizes[0][0] <= self._snapshot_at:
            self._size -= self._sizes.popleft()[1]
        return Since(len(self._sizes), self._size)

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Within it, `refresh` looks at the table once in this thread, and again after an append.

        For calls that follow each other at once: a look takes as long as the storage answers.
        """
        outer, self._looks.is_over = self._is_looked_at, False
        try:
            yield
        finally:
            self._looks.is_over = outer

    @property
    def _is_looked_at(self) -> bool | None:
        """Whether the look of `one_look` is over; None outside of it."""
        return getattr(self._looks, "is_over", None)

    def refresh(self) -> int:
        """Read the appends of other writers and return the newest version."""
        if self._is_looked_at and self._state.version >= 0:
            return self._state.version
        with self.silence.awaited():
            self._catch_up(self._engine.refresh())
        if self._is_looked_at is not None:
            self._looks.is_over = True
        return self._state.version

    def append(self, event: Event) -> Answer:
        """Append an event and fold the log up to it.

        Returns and errors are those of `append_together`.
        """
        return self.append_together([event])[0]

    def append_together(
        self, events: Sequence[Event], *, maintain: bool = True, is_synced: bool = True
    ) -> list[Answer]:
        """Append events as one version of the table, and fold the log up to it.

        Within a version, events count in the order of their ids.

        Args:
            events: The events.
            maintain: Whether the engine is maintained after it.
            is_synced: Whether they outlast a loss of power.

        Returns:
            The answer to each event at its position in the log.

        Raises:
            CommitStoreBusy: If concurrent compactions failed every attempt; nothing was written.
            CorruptCommitLog: If the log cannot be read back.
        """
        if self._is_looked_at is not None:
            self._looks.is_over = False
        for event in events:
            self.group(event.cluster, event.group)
        for _ in range(_TRIES):
            # This is never a closed segment: an append that did not know of the last compaction
            # fails, and after it the newest version lies behind it.
            segment = self._engine.version // self._segment_versions
            with self.silence.awaited():
                try:
                    version = self._engine.append(encode(events, segment), is_synced=is_synced)
                except AppendConflict:
                    # To open the table again would take all its writers' time at each snapshot.
                    self._engine.refresh()
                    continue
                try:
                    answers = self._answers_to(events, version)
                except CommitLogUnavailable as error:  # They were written: a repeat counts once.
                    problem = error.problem
                    raise CommitLogUnavailable(error.target, "append", problem) from error
            if maintain:
                self._engine.maintain()
            return answers
        raise CommitStoreBusy(self._engine.target, "append", _TRIES)

    def fold_some(self) -> bool:
        """Fold the oldest rows that were set aside; return whether others are left.

        All of them at once would have other calls wait for seconds.

        Raises:
            CorruptCommitLog: A row is not valid.
        """
        if not self._others:
            return False
        target = self._engine.target
        with reading(target):
            if not self._others.fold_oldest(self._state, _PORTION, target):
                self._state = self._recovered()
        return bool(self._others)

    def compact_if_due(self, commits: int, size: int) -> bool:
        """Write a snapshot if a limit is reached or if another tool removed rows.

        Errors are logged and the snapshot is retried later, because the commit has succeeded. Call
        `remove_old` later.

        Args:
            commits: The limit of appends since the last snapshot; 0 for no limit.
            size: The limit of bytes since the last snapshot; 0 for no limit.

        Returns:
            Whether to call it again: it has folded some of the rows that were set aside, and a
            snapshot needs all.
        """
        if self._state.version < self._not_before or not self._is_due(commits, size):
            return False
        try:
            if self.fold_some():
                return True
            before = max(0, self._closed(self._snapshot_at))
            if self.compact(lambda: self._is_due(commits, size)) is None:
                return False
            closed = self._closed(self._snapshot_at)
            if closed // VACUUM_SEGMENTS > before // VACUUM_SEGMENTS:
                assert self._removable is not None
                self._removable = self._removable._replace(has_files=True)
        except Exception as error:  # noqa: BLE001 - the commit before it has succeeded
            self._not_before = self._state.version + _PAUSE
            log.warning("the snapshot of %s failed: %s", self._engine.target, error)
        return False

    def remove_old(self) -> None:
        """Remove what the last snapshot has made removable.

        It takes longer the more versions the table has. Other calls may run at the same time: it
        uses handles of its own. Errors are logged, because nothing depends on it.
        """
        old, self._removable = self._removable, None
        if old is None:
            return
        try:
            if old.upto >= 0:
                self._engine.tidy(old.upto)
            if old.has_files:
                self._engine.vacuum()
        except Exception as error:  # noqa: BLE001 - the next snapshot tries again
            log.warning("old files of %s were not removed: %s", self._engine.target, error)

    def compact_if_disturbed(self) -> None:
        """Write a snapshot if another tool removed files since the last one.

        Raises:
            CommitStoreError: The snapshot could not be written.
        """
        if self._disturbed_at > self._snapshot_at:
            self.compact()

    def _is_due(self, commits: int, size: int) -> bool:
        since = self.since
        return (
            self._disturbed_at > self._snapshot_at
            or 0 < commits <= since.commits
            or 0 < size <= since.size
        )

    def _closed(self, version: int) -> int:
        """Return the last closed segment at a version; below 0 for none."""
        size = self._segment_versions
        return (version - size // 2) // size - 1

    def compact(self, wanted: Callable[[], bool] | None = None) -> int | None:
        """Write a snapshot of all groups and remove the closed segments. Call `remove_old` later.

        A segment is closed when the table is half a segment past its end. Open handles may still
        append to younger segments.

        Args:
            wanted: Called before each attempt, because another writer may have been faster.

        Returns:
            The version with the snapshot; None if nothing changed since the last one.

        Raises:
            CommitStoreBusy: If every attempt met new rows in the segments to remove.
            CorruptCommitLog: If the log cannot be read.
        """
        size = self._segment_versions
        for _ in range(_TRIES):
            self.refresh()
            is_old = max(self._changed_at, self._disturbed_at) <= self._snapshot_at
            if is_old or not (wanted is None or wanted()):
                return None
            state = self.state
            at = state.version
            events = snapshot_events(state, uuid.uuid4().hex)
            closed = self._closed(at)
            try:
                if closed < 0:
                    version = self._engine.append(encode(events, at // size), snapshot_of=at)
                else:
                    version = self._engine.replace(encode(events, closed), at=at, closed=closed)
            except AppendConflict:
                self._engine.refresh(reopen=True)
                continue
            before = self._snapshot_at
            self._catch_up(version)
            self._snapshot_at, self.is_left_to_others = at, False
            self._engine.maintain()
            # The snapshot before it stays readable, in case a file of this one is lost.
            self._removable = Removable(before, has_files=False)
            return version
        raise CommitStoreBusy(self._engine.target, "compact", _TRIES)

    def history(self) -> list[tuple[int, Event, Answer, tuple[Doubt, ...]]]:
        """Return the events in log order, as far as files are kept.

        Each has its answer and, if it gave shares to members, the shares in doubt after it.
        """
        state, events = self._kept()
        with reading(self._engine.target):
            answers = [
                (answer, state.doubts_after(event))
                for event, answer in state.fold(event for _, event in events)
            ]
        changes = [(at, event) for at, event in events if event.kind != "snapshot"]
        return [(at, event, *found) for (at, event), found in zip(changes, answers, strict=True)]

    def state_at(self, at: int | datetime | str) -> LogState | None:
        """Return the state at a place of the log; None if files of that place are not kept.

        Args:
            at: A version of the table, the id of an event, or a time by the writers' clocks: the
                place before the first event with a later time.
        """
        state, events = self._kept()
        version = self._engine.version
        if isinstance(at, datetime):
            later = next((v for v, e in events if e.written_at and e.written_at > at), None)
            if state.version >= 0 and (not events or later == events[0][0]):
                return None  # The time may be before that of the snapshot, which has none.
            version = version if later is None else later - 1
        elif isinstance(at, str):
            version = next((v for v, event in events if event.id == at), -2)
        else:
            version = min(version, at)
        if version < state.version:
            return None
        with reading(self._engine.target):
            for _ in state.fold(event for v, event in events if v <= version):
                pass
        state.version = version
        return state

    def _kept(self) -> tuple[LogState, list[tuple[int, Event]]]:
        """Return the oldest state that can be read, and the events after it with versions."""
        version = self._engine.refresh()
        state = LogState()
        with reading(self._engine.target):
            try:
                tail = self._engine.tail(-1, version)
            except TailGone:
                tail = None
            if tail is None or tail.repair_of >= 0:
                _, state, tail = newest_seen(self._engine)
            return state, list(decode(tail.rows, self._engine.target))

    def _answers_to(self, events: Sequence[Event], version: int) -> list[Answer]:
        """Fold the log up to written events and return their answers."""
        answers: dict[str, Answer] = {}
        for upto in (version, None):
            folded = self._catch_up(self._engine.refresh() if upto is None else upto)
            found = {(one.cluster, one.group, one.id): answer for one, answer in folded}
            for event in events:
                answer = found.get((event.cluster, event.group, event.id))
                if answer is None and event.id not in answers:
                    answer = self._answer_of_snapshot(event, version)
                if answer is not None:
                    answers[event.id] = answer
            if len(answers) == len(events):
                return [answers[event.id] for event in events]
        lost = [event.id for event in events if event.id not in answers]
        raise CorruptCommitLog(
            self._engine.target, f"row {lost[0]!r} was written, and version {version} is without it"
        )

    def _answer_of_snapshot(self, event: Event, version: int) -> Answer | None:
        """Return the answer to an event that a snapshot contains; None if none contains it."""
        if self._state.knows(event):  # its id gets the first answer
            return next(answer for _, answer in self._state.fold([event]))
        # The snapshot no longer has its id; ids of settings are not kept at all.
        if self._base >= version or event.kind == "setting":
            return self._state.answer_later(event)
        return None

    def _catch_up(self, upto: int) -> list[tuple[Event, Answer]]:
        with reading(self._engine.target):
            for is_aside in (self._others.is_aside, None):
                if upto <= self._state.version:
                    break
                try:
                    tail = self._engine.tail(self._state.version, upto, is_aside)
                except TailGone:
                    tail = None
                if tail is None or tail.repair_of >= 0:
                    self._state = self._recovered()
                    break
                read = decode(tail.rows, self._engine.target)
                events = [(at, event) for at, event in read if event.kind != "snapshot"]
                if not self._others.concern((event for _, event in events), tail.aside):
                    return self._fold(events, tail, upto)
                # Between these rows are others of their groups, which were set aside.
                for _, event in events:
                    self._others.follow((event.cluster, event.group))
                self._complete()
        return []

    def _recovered(self, *, reopen: bool = True) -> LogState:
        """Return the state from the newest snapshot and later appends."""
        target = self._engine.target
        with reading(target):
            version, state, tail = newest_seen(self._engine, reopen=reopen)
            base, events = state.version, list(decode(tail.rows, target))
            with folding(target, version):
                for _ in state.fold(event for _, event in events):
                    pass
            state.version = version
            self._others.drop()
            self._base = self._changed_at = self._snapshot_at = base
            self._disturbed_at = -1
            self._sizes.clear()
            self._size = 0
            self._count(tail, events)
            self._state = state
            self._others.clear()
        return state

    def _complete(self) -> None:
        """Fold the rows of all groups that were set aside."""
        while self.fold_some():
            pass

    def _fold(
        self, events: Sequence[tuple[int, Event]], tail: Tail, upto: int
    ) -> list[tuple[Event, Answer]]:
        """Fold the events of a tail up to a version, and keep what was set aside in it."""
        try:
            self._others.keep(tail.aside)
            with folding(self._engine.target, upto):
                folded = list(self._state.fold(event for _, event in events))
            self._state.version = upto
        except BaseException:
            # A partly folded state must not be used: the next call starts from the beginning. This
            # includes interrupts, because a signal can arrive between any two steps.
            self._others.drop()
            self._state = LogState()
            raise
        self.is_left_to_others |= tail.snapshot_of > self._snapshot_at
        self._count(tail, events)
        while self._others.are_too_many:
            if self._others.are_in_snapshot(self._snapshot_at):
                # A call that needs them reads the snapshot. To fold them would cost each process of
                # the table as much as the one that writes its snapshots.
                self._others.drop()
                break
            # Damage in them concerns their groups: who needs these reads the table again.
            with suppress(CorruptCommitLog):
                if not self._others.fold_oldest(self._state, _PORTION, self._engine.target):
                    self._others.drop()
        return folded

    def _count(self, tail: Tail, events: Sequence[tuple[int, Event]]) -> None:
        changes = {version for version, event in events if event.kind != "snapshot"}
        self._snapshot_at = max(self._snapshot_at, tail.snapshot_of)
        self._disturbed_at = max(self._disturbed_at, tail.disturbed_at)
        each = tail.rows.get_total_buffer_size() // len(changes) if changes else 0
        sizes = dict.fromkeys(changes, each) | {v: one.size for v, one in tail.aside.items()}
        if sizes:
            self._changed_at = max(sizes)
            self._sizes += sorted(sizes.items())
            self._size += sum(sizes.values())

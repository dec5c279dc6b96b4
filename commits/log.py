"""The commit log and its folded state: append, catch up, recover, compact."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from commits.engine import AppendConflict, TailGone, reading
from commits.errors import CommitStoreBusy, CorruptCommitLog
from commits.fold import LogState
from commits.rows import decode, encode
from commits.silence import Silence
from commits.snapshot import newest_snapshot, snapshot_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commits.engine import LogEngine, Tail
    from commits.fold import Answer
    from commits.model import Doubt
    from commits.rows import Event


log = logging.getLogger(__name__)

_TRIES = 20
"""The number of attempts to write a row or a snapshot despite concurrent compactions."""

_LOOKS = 3
"""The number of attempts to read a table whose old entries go away meanwhile."""

_PAUSE = 50
"""The number of commits after which a failed automatic snapshot is retried."""

VACUUM_SEGMENTS = 20
"""Automatic snapshots vacuum the table once in this number of segments."""


class Since(NamedTuple):
    """The number and size of appends since the last snapshot."""

    commits: int
    size: int


class Removable(NamedTuple):
    """What a snapshot has made removable.

    Attributes:
        upto: The version up to which entries of the table's log may go.
        has_files: Whether files of removed rows are removed as well.
    """

    upto: int
    has_files: bool


class CommitLog:
    """A table and its folded state.

    Args:
        engine: The table.
        segment_versions: How many versions of the table share a segment.

    Attributes:
        silence: For how long the table has not answered.

    Raises:
        CorruptCommitLog: If the log cannot be read.
        CommitTableFormat: If it holds rows of another format.
    """

    def __init__(self, engine: LogEngine, segment_versions: int) -> None:
        self._engine = engine
        self._segment_versions = segment_versions
        self.silence = Silence(engine.target)
        self._looks = threading.local()
        self._changed_at = self._snapshot_at = self._disturbed_at = -1
        self._base = -1  # the version of the snapshot that the state began with
        self._sizes: deque[tuple[int, int]] = deque()  # versions of appends, and their bytes
        self._size = self._not_before = 0
        self._removable: Removable | None = None
        self.state = self._recovered(reopen=False)

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

    def refresh(self) -> LogState:
        """Fold the appends of other writers and return the state."""
        if self._is_looked_at and self.state.version >= 0:
            return self.state
        with self.silence.awaited():
            self._catch_up(self._engine.refresh())
        if self._is_looked_at is not None:
            self._looks.is_over = True
        return self.state

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
        for _ in range(_TRIES):
            # This is never a closed segment: an append through a handle older than the last
            # compaction fails, and a newer handle has a version after it.
            segment = self._engine.version // self._segment_versions
            with self.silence.awaited():
                try:
                    version = self._engine.append(encode(events, segment), is_synced=is_synced)
                except AppendConflict:
                    self._engine.refresh(reopen=True)
                    continue
                answers = self._answers_to(events, version)
            if maintain:
                self._engine.maintain()
            return answers
        raise CommitStoreBusy(self._engine.target, "append", _TRIES)

    def compact_if_due(self, commits: int, size: int) -> None:
        """Write a snapshot if a limit is reached or if another tool removed rows.

        Errors are logged and the snapshot is retried later, because the commit has succeeded. Call
        `remove_old` later.

        Args:
            commits: The limit of appends since the last snapshot; 0 for no limit.
            size: The limit of bytes since the last snapshot; 0 for no limit.
        """
        if self.state.version < self._not_before or not self._is_due(commits, size):
            return
        try:
            before = max(0, self._closed(self._snapshot_at))
            if self.compact(lambda: self._is_due(commits, size)) is None:
                return
            closed = self._closed(self._snapshot_at)
            if closed // VACUUM_SEGMENTS > before // VACUUM_SEGMENTS:
                assert self._removable is not None
                self._removable = self._removable._replace(has_files=True)
        except Exception as error:  # noqa: BLE001 - the commit before it has succeeded
            self._not_before = self.state.version + _PAUSE
            log.warning("the snapshot of %s failed: %s", self._engine.target, error)

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
            at = self.refresh().version
            is_old = max(self._changed_at, self._disturbed_at) <= self._snapshot_at
            if is_old or not (wanted is None or wanted()):
                return None
            events = snapshot_events(self.state, uuid.uuid4().hex)
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
            self._snapshot_at = at
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
                _, state, tail = self._newest_seen()
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
        if self.state.knows(event):  # its id gets the first answer
            return next(answer for _, answer in self.state.fold([event]))
        if self._base >= version:  # the snapshot no longer has its id
            return self.state.answer_later(event)
        return None

    def _catch_up(self, upto: int) -> list[tuple[Event, Answer]]:
        if upto <= self.state.version:
            return []
        with reading(self._engine.target):
            try:
                tail = self._engine.tail(self.state.version, upto)
            except TailGone:
                tail = None
            if tail is None or tail.repair_of >= 0:
                self.state = self._recovered()
                return []
            return self._fold(self.state, tail, upto)

    def _recovered(self, *, reopen: bool = True) -> LogState:
        """Return the state from the newest snapshot and later appends."""
        with reading(self._engine.target):
            version, state, tail = self._newest_seen(reopen=reopen)
            self._base = self._changed_at = self._snapshot_at = state.version
            self._disturbed_at = -1
            self._sizes.clear()
            self._size = 0
            self._fold(state, tail, version)
        return state

    def _newest_seen(self, *, reopen: bool = True) -> tuple[int, LogState, Tail]:
        """Return the newest version, and its `_newest`."""
        for look in range(_LOOKS):
            reopen = reopen or look > 0
            version = self._engine.refresh(reopen=True) if reopen else self._engine.version
            try:
                return version, *self._newest(version)
            except CorruptCommitLog:
                # Others may have removed old entries or files while this process was frozen.
                if self._engine.refresh(reopen=True) == version:
                    raise
        version = self._engine.version
        return version, *self._newest(version)

    def _newest(self, version: int) -> tuple[LogState, Tail]:
        """Return the state of the newest readable snapshot, and the appends after it."""
        state = LogState()
        try:
            state = self._snapshot() or state
            tail = self._engine.tail(state.version, version)
        except TailGone as error:
            problem = f"rows are missing: {error}"
        except CorruptCommitLog as error:
            problem = error.problem
        else:
            if tail.repair_of <= state.version:
                return state, tail
            problem = "the snapshot of a repair is missing"
        # Its file may be lost, or the table restored to a version without the newest snapshot.
        for at in self._engine.compactions():
            with suppress(TailGone, CorruptCommitLog):
                found = self._snapshot(at)
                if found is not None and found.version > state.version:
                    tail = self._engine.tail(found.version, version)
                    if tail.repair_of <= found.version:
                        return found, tail
        raise CorruptCommitLog(self._engine.target, problem)

    def _snapshot(self, version: int | None = None) -> LogState | None:
        target = self._engine.target
        try:
            rows = self._engine.snapshots(version)
        except TailGone as error:
            raise CorruptCommitLog(target, f"snapshots cannot be read: {error}") from error
        events = [event for _, event in decode(rows, target)]
        try:
            return newest_snapshot(events)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCommitLog(target, f"a snapshot is not valid: {error!r}") from error

    def _fold(self, state: LogState, tail: Tail, upto: int) -> list[tuple[Event, Answer]]:
        events = list(decode(tail.rows, self._engine.target))
        try:
            folded = list(state.fold(event for _, event in events))
            state.version = upto
        except BaseException as error:
            # A partly folded state must not be used: the next call starts from the beginning. This
            # includes interrupts, because a signal can arrive between any two steps.
            self.state = LogState()
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                raise
            last = max(version for version, _ in events)
            raise CorruptCommitLog(
                self._engine.target, f"a row up to version {last} is not valid: {error!r}"
            ) from error
        self._count(tail, sorted({v for v, event in events if event.kind != "snapshot"}))
        return folded

    def _count(self, tail: Tail, changes: list[int]) -> None:
        self._snapshot_at = max(self._snapshot_at, tail.snapshot_of)
        self._disturbed_at = max(self._disturbed_at, tail.disturbed_at)
        if changes:
            self._changed_at = changes[-1]
            each = tail.rows.get_total_buffer_size() // len(changes)
            self._sizes += [(version, each) for version in changes]
            self._size += each * len(changes)

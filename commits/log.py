"""The log and its folded state: append, catch up, recover, compact."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from commits.engine import AppendConflict, TailGone
from commits.errors import CommitStoreBusy, CorruptCommitLog
from commits.fold import LogState
from commits.rows import decode, encode
from commits.snapshot import newest_snapshot, snapshot_events

if TYPE_CHECKING:
    import pyarrow as pa

    from commits.engine import LogEngine
    from commits.group import Answer
    from commits.rows import Event

__all__ = ["CommitLog"]

_TRIES = 20
"""How often a row or a snapshot is written again because a compaction landed in between."""


class CommitLog:
    """An engine's table together with what it says.

    Args:
        engine: The table.
        segment_versions: How many versions of the table share a segment.

    Raises:
        CorruptCommitLog: If the log cannot be read.
        CommitTableFormat: If it holds rows of another format.
    """

    def __init__(self, engine: LogEngine, segment_versions: int) -> None:
        self._engine = engine
        self._segment_versions = segment_versions
        self._changed_at = self._snapshot_at = -1
        self.state = self._recovered()

    def refresh(self) -> LogState:
        """Folds what others have appended meanwhile and returns the state."""
        self._catch_up(self._engine.refresh())
        return self.state

    def append(self, event: Event) -> Answer:
        """Appends an event and folds the log up to it.

        Returns:
            What the event came to at its place in the log.

        Raises:
            CommitStoreBusy: If compactions kept landing in between; nothing was written.
            CorruptCommitLog: If the log cannot be read back.
        """
        for _ in range(_TRIES):
            # Never a closed segment: an append through a handle older than the last compaction
            # fails, and with a newer one this is the segment of a version after it.
            segment = self._engine.version // self._segment_versions
            try:
                version = self._engine.append(encode([event], segment))
            except AppendConflict:
                self._engine.refresh(reopen=True)
                continue
            return self._answer_to(event, version)
        raise CommitStoreBusy(self._engine.target, "append", _TRIES)

    def compact(self) -> int | None:
        """Writes a snapshot of all groups and removes the closed segments.

        A segment is closed once the table is half a segment past its end, as open handles may
        still append to a younger one.

        Returns:
            The version of the table that has the snapshot; None if nothing happened since the last.

        Raises:
            CommitStoreBusy: If rows kept arriving in the segments to be removed.
            CorruptCommitLog: If the log cannot be read.
        """
        size = self._segment_versions
        for _ in range(_TRIES):
            at = self.refresh().version
            if self._changed_at <= self._snapshot_at:
                return None
            events = snapshot_events(self.state, uuid.uuid4().hex)
            closed = (at - size // 2) // size - 1
            try:
                if closed < 0:
                    version = self._engine.append(encode(events, at // size))
                else:
                    version = self._engine.replace(encode(events, closed), at=at, closed=closed)
            except AppendConflict:
                self._engine.refresh(reopen=True)
                continue
            self._catch_up(version)
            self._snapshot_at = at
            self._engine.tidy()
            return version
        raise CommitStoreBusy(self._engine.target, "compact", _TRIES)

    def history(self) -> list[tuple[int, Event, Answer]]:
        """What happened, in the order of the log, as far back as its files are still there."""
        version = self._engine.refresh()
        state = LogState()
        try:
            events = list(decode(self._engine.tail(-1, version), self._engine.target))
        except TailGone:
            state = self._snapshot() or state
            events = list(decode(self._tail(state.version, version), self._engine.target))
        answers = [answer for _, answer in state.fold(event for _, event in events)]
        told = [(at, event) for at, event in events if event.kind != "snapshot"]
        return [(at, event, answer) for (at, event), answer in zip(told, answers, strict=True)]

    def _answer_to(self, event: Event, version: int) -> Answer:
        """Folds the log up to an event that was written, and takes its answer."""
        key = event.cluster, event.group, event.id
        for upto in (version, None):
            folded = self._catch_up(self._engine.refresh() if upto is None else upto)
            for one, answer in folded:
                if (one.cluster, one.group, one.id) == key:
                    return answer
            if self.state.knows(event):  # from a snapshot: its id gets the first answer
                return next(answer for _, answer in self.state.fold([event]))
        raise CorruptCommitLog(
            self._engine.target,
            f"row {event.id!r} was written, and version {version} is without it",
        )

    def _catch_up(self, upto: int) -> list[tuple[Event, Answer]]:
        if upto <= self.state.version:
            return []
        try:
            rows = self._engine.tail(self.state.version, upto)
        except TailGone:
            self.state = self._recovered()
            return []
        return self._fold(self.state, rows, upto)

    def _recovered(self) -> LogState:
        """The state from the newest snapshot and what was appended after it."""
        version = self._engine.refresh(reopen=True)
        state = self._snapshot() or LogState()
        self._changed_at = self._snapshot_at = state.version
        self._fold(state, self._tail(state.version, version), version)
        return state

    def _tail(self, after: int, upto: int) -> pa.Table:
        try:
            return self._engine.tail(after, upto)
        except TailGone as error:
            raise CorruptCommitLog(self._engine.target, f"rows are missing: {error}") from error

    def _snapshot(self) -> LogState | None:
        target = self._engine.target
        try:
            rows = self._engine.snapshots()
        except TailGone as error:
            raise CorruptCommitLog(target, f"snapshots cannot be read: {error}") from error
        events = [event for _, event in decode(rows, target)]
        try:
            return newest_snapshot(events)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCommitLog(target, f"a snapshot makes no sense: {error!r}") from error

    def _fold(self, state: LogState, rows: pa.Table, upto: int) -> list[tuple[Event, Answer]]:
        events = list(decode(rows, self._engine.target))
        try:
            folded = list(state.fold(event for _, event in events))
        except Exception as error:
            # What was folded halfway must not be used: the next call starts from the beginning.
            self.state = LogState()
            last = max(version for version, _ in events)
            raise CorruptCommitLog(
                self._engine.target, f"a row up to version {last} makes no sense: {error!r}"
            ) from error
        state.version = upto
        for version, event in events:
            if event.kind != "snapshot":
                self._changed_at = version
            elif "version" in event.detail:
                self._snapshot_at = event.detail["version"]
        return folded

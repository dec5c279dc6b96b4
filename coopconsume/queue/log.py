"""The rows of a replica's log in their order, also if a snapshot has replaced its start. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from coopconsume.errors.queue import QueueLogFormat
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.rows import ReplicaRow, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


#: A row at its position, or the state of the replica, whatever was read before.
ReplayStep: TypeAlias = "ReplicaState | tuple[int, ReplicaRow]"


class LogRows:
    """Reads the records of a replica's log.

    A log whose first record is gone has a snapshot. The records before the snapshot are kept until
    it is read; it says from which offset on they count.

    Args:
        place: The log, for errors.
        queue: The key of its rows: the group and the topic.
        known: Rows by their bytes that need not be decoded.
    """

    def __init__(
        self, place: str, queue: str, known: Mapping[bytes | None, ReplicaRow] | None = None
    ) -> None:
        self._place = place
        self._queue = queue
        self._known = {} if known is None else known
        self._early: list[tuple[int, ReplicaRow]] = []
        self._first = 0
        #: The first position that no snapshot replaces.
        self.start = 0
        #: The number of rows since the last snapshot, or since the start.
        self.length = 0
        self.next_offset = 0
        self.passed_over = 0

    @property
    def is_whole(self) -> bool:
        """Whether the state at the start of the log is known."""
        return self._first == 0

    def begin(self, start: int) -> ReplicaState:
        """Begin at the first offset of the log; returns the state there."""
        self._first = self.start = self.next_offset = start
        self.length = 0
        self._early = []
        return ReplicaState()

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> Iterator[ReplayStep]:
        """Take the next record; yields what it means.

        Raises:
            QueueLogFormat: A newer version wrote it, or it belongs to another queue.
        """
        self.next_offset = offset + 1
        row = self._known.get(value) or decode(value, self._place)
        if row is None:
            self.passed_over += 1
            return
        self.length += 1
        found = (key or b"").decode(errors="replace")
        if found != self._queue:
            raise QueueLogFormat(
                self._place, f"rows of the queue {found!r}", f"rows of {self._queue!r}"
            )
        if row.kind == "snapshot":
            yield from self._snapshot(row)
        elif self.is_whole:
            yield offset, row
        else:
            self._early.append((offset, row))

    def check(self) -> None:
        """Check that the start of the log is known, once its end was read.

        Raises:
            QueueLogFormat: Records were deleted that no snapshot replaces.
        """
        if not self.is_whole:
            raise QueueLogFormat(self._place, "lost its start", "a log or a snapshot of it")

    def _snapshot(self, row: ReplicaRow) -> Iterator[ReplayStep]:
        (upto,) = row.positions or (0,)
        if row.state is None:
            return
        if upto >= self.start:
            self.start, self.length = upto, 0
        if self.is_whole or upto < self._first:
            return
        try:
            state = ReplicaState.restore(row.state)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.passed_over += 1
            return
        early, self._early, self._first = self._early, [], 0
        yield state
        yield from ((offset, row) for offset, row in early if offset >= upto)

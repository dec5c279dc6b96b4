"""The lines of handlers that the driver shows: what they are, and how many pass. Task-side code."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from coopconsume.record import Record, shown_key
from coopconsume.texts import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable

#: Lines of one report of a slot, at most.
REPORT_LINES: Final = 200


@dataclass(frozen=True)
class CallPlace:
    """What a handler call is given, as its lines name it.

    Attributes:
        topic: The topic. ``partition``: the partition.
        offset: Of the record, or of the first one of the frame.
        last_offset: Of the record, or of the last one of the frame.
        key: The key as text, at most 64 characters; None: it is null, or the call has a frame.
        attempt: The attempt; None: the call has a frame.
    """

    topic: str
    partition: int
    offset: int
    last_offset: int
    key: str | None = None
    attempt: int | None = None

    @classmethod
    def of(cls, given: Any) -> CallPlace:
        """Returns the place of a call, by its record or its frame."""
        if isinstance(given, Record):
            offset, key = given.offset, shown_key(given.key)
            return cls(given.topic, given.partition, offset, offset, key, given.attempt)
        topic, partition, first = (
            column_of(given[:1], name)[0] for name in ("topic", "partition", "offset")
        )
        (last,) = column_of(given[-1:], "offset")
        return cls(topic, int(partition), int(first), int(last))

    def __str__(self) -> str:
        text = f"{self.topic}-{self.partition}@{self.offset}"
        if self.attempt is None:
            more = "" if self.last_offset == self.offset else f" to {self.last_offset}"
        else:
            more = f" key={self.key} attempt={self.attempt}"
        return text + more


@dataclass(frozen=True)
class HandlerLine:
    """A line that a handler has logged or printed, or how many lines were left out.

    As text it is what the driver shows.

    Attributes:
        text: The line, at most 500 characters. One that was logged begins with its level and its
            logger.
        place: The record or the frame of the call: ``topic``, ``partition``, ``offset``,
            ``last_offset``, ``key`` and ``attempt``. None: it says how many lines were left out.
    """

    text: str
    place: CallPlace | None = None

    def __str__(self) -> str:
        text = self.text if self.place is None else f"{self.place}: {self.text}"
        return printable(text, kept="\t")


def note_of(left_out: int) -> HandlerLine:
    """Returns the line that says how many lines were left out."""
    return HandlerLine(f"… {counted(left_out, 'more line')} not shown")


@dataclass(frozen=True)
class SlotLines:
    """The lines of one report.

    Attributes:
        lines: In the order in which they came.
        left_out: How many more there were.
    """

    lines: tuple[HandlerLine, ...] = ()
    left_out: int = 0


class LineLimit:
    """Lets so many lines pass in each second.

    Args:
        most: How many.
        clock: Seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._second = -1
        self._passed = 0

    def passes(self) -> bool:
        """Whether one more line may pass now; it counts as passed then."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._passed = second, 0
        if self._passed >= self._most:
            return False
        self._passed += 1
        return True


class LineBuffer:
    """The lines of a slot that no report has yet. Any thread may add to it, and none waits.

    It has no lock: a handler that forks, or that logs while Python frees an object, would find the
    lock held. So a few lines more may pass where threads meet. All that do not pass are counted.

    Args:
        most: Lines that pass in a second.
        clock: Seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = LineLimit(most, clock)
        self._lines: deque[HandlerLine] = deque()
        #: Counts the lines that are left out, and the calls of `take`: one step is atomic.
        self._left_out = count()
        self._counted = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, text: str, place: CallPlace | None) -> None:
        """Takes a text, line by line."""
        for line in text.splitlines() or [""]:
            if len(self._lines) < REPORT_LINES and self._limit.passes():
                self._lines.append(HandlerLine(line, place))
            else:
                next(self._left_out)

    def take(self) -> SlotLines | None:
        """Returns what has come since the last call; None: nothing."""
        lines: list[HandlerLine] = []
        with suppress(IndexError):
            while len(lines) < REPORT_LINES:
                lines.append(self._lines.popleft())
        now = next(self._left_out)
        left_out, self._counted = now - self._counted, now + 1
        return SlotLines(tuple(lines), left_out) if lines or left_out else None


def column_of(frame: Any, name: str) -> list[Any]:
    """Returns the values of a column of Arrow or of pandas."""
    column = frame[name]
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)

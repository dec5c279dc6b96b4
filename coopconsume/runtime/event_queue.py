"""The queue of events between a job's threads and its loop."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.runtime.events import JobEvent


class Work(Protocol):
    """Work that events come from.

    Attributes:
        is_over: Whether it has ended, and its events do not count any more.
    """

    is_over: bool


class EventQueue:
    """Events that the loop has not handled yet, in the order in which they came.

    Any thread puts events in; the loop takes them out.
    """

    def __init__(self) -> None:
        self._events: queue.Queue[tuple[JobEvent, Work | None]] = queue.Queue()

    def post(self, event: JobEvent, work: Work | None = None) -> None:
        """Puts an event in.

        Args:
            event: The event.
            work: What it comes from: the event counts only until that is over. None: it always
                counts.
        """
        self._events.put((event, work))

    def take(self, timeout: float) -> Iterator[JobEvent]:
        """Yields the events that are there, and waits for the first one.

        Events whose work is over by the time at which it is their turn are dropped.

        Args:
            timeout: Seconds to wait.
        """
        try:
            event, work = self._events.get(timeout=timeout)
            while True:
                if work is None or not work.is_over:
                    yield event
                event, work = self._events.get_nowait()
        except queue.Empty:
            pass

    @property
    def is_empty(self) -> bool:
        """Whether there is no event."""
        return self._events.empty()

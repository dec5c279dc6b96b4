"""Background threads that read the status of groups for the live page, and keep its course."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coopconsume.closing import Closing
from coopconsume.errors.base import sentence_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from commits.model import TopicPartition
    from coopconsume.admin.overview.reader import GroupReader, GroupReading

log = logging.getLogger(__name__)

#: Samples that are kept of a group: half an hour, if there is one every two seconds.
_KEPT: Final = 900
#: Groups that are watched at once; others are refused until one was not asked for for a while.
_MOST: Final = 20
#: Seconds after which a group is no longer watched if no page asks for it.
_FORGOTTEN: Final = 600.0
#: Seconds that the first request for a group waits for its status.
_FIRST: Final = 5.0
#: Seconds for which the end of all waits for readings.
_LAST_READING: Final = 5.0


@dataclass(frozen=True)
class Sample:
    """The work of a group at one moment.

    Attributes:
        at: The time, in seconds since the epoch.
        lag: Uncommitted offsets.
        done_rate: Offsets that were committed in a second since the sample before it.
        new_rate: Offsets that the topics grew by in a second since then.
        pending: Failed records, parked ones included.
    """

    at: float
    lag: int
    done_rate: float
    new_rate: float
    pending: int


@dataclass(frozen=True)
class View:
    """What is known of a watched group.

    Attributes:
        reading: Its newest status; None before the first one.
        at: When that was read, in seconds since the epoch.
        samples: The samples, the oldest first.
        error: Why it cannot be read now; empty if it can.
        error_since: When the first reading that failed began, in seconds since the epoch.
    """

    reading: GroupReading | None = None
    at: float = 0.0
    samples: tuple[Sample, ...] = ()
    error: str = ""
    error_since: float = 0.0


@dataclass
class _Course:
    """Makes samples of readings."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _before: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def add(self, reading: GroupReading, at: float) -> None:
        now = {
            (one.topic, one.partition): (
                one.end_offset - (one.lag or 0) if one.end_offset is not None else 0,
                one.end_offset or 0,
            )
            for one in reading.statuses
        }
        span = max(at - self.samples[-1].at, 1e-3) if self.samples else 1.0
        # A partition that is new, or whose offsets were moved back, has no rate in this sample.
        both = [(self._before[tp], found) for tp, found in now.items() if tp in self._before]
        done = sum(max(0, found[0] - before[0]) for before, found in both)
        new = sum(max(0, found[1] - before[1]) for before, found in both)
        pending = sum(len(one.pending) for one in reading.statuses)
        self._before = now
        self.samples.append(
            Sample(at, reading.overview.lag, round(done / span, 1), round(new / span, 1), pending)
        )


class GroupWatch(Closing):
    """Reads the status of one group every few seconds, in a thread of its own.

    If it cannot be read, it connects again each time, and the last status stays.

    Args:
        connect: Opens a reader.
        group: The group id.
        interval: Seconds between two readings.
    """

    def __init__(self, connect: Callable[[str], GroupReader], group: str, interval: float) -> None:
        self._connect = connect
        self._group = group
        self._interval = interval
        self._course = _Course()
        self._view = View()
        self._answered = threading.Event()
        self._closed = threading.Event()
        self.asked_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"coopconsume-ui-{group}", daemon=True
        )
        self._thread.start()

    def view(self) -> View:
        """Returns what is known; the first call waits for some seconds."""
        self.asked_at = time.monotonic()
        self._answered.wait(_FIRST)
        return self._view

    @property
    def is_empty(self) -> bool:
        """Whether the group was never read."""
        return self._view.reading is None

    def close(self) -> None:
        """Ends the thread after its reading; returns at once."""
        self._closed.set()

    def join(self, timeout: float) -> None:
        """Waits until the thread has ended, for at most so many seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        reader: GroupReader | None = None
        try:
            while not self._closed.is_set():
                began, since = time.monotonic(), time.time()
                try:
                    reader = reader or self._connect(self._group)
                    reading, at = reader.read(), time.time()
                    self._course.add(reading, at)
                    self._view = View(reading, at, tuple(self._course.samples))
                except Exception as error:
                    log.debug("group %s cannot be read", self._group, exc_info=True)
                    known = self._view
                    since = known.error_since if known.error else since
                    self._view = View(
                        known.reading, known.at, known.samples, sentence_of(error), since
                    )
                    if reader is not None:
                        reader.close()
                        reader = None
                self._answered.set()
                took = time.monotonic() - began
                # A store that is slow to read is read for at most half of the time.
                self._closed.wait(max(self._interval - took, min(took, 30.0), 0.1))
        finally:
            if reader is not None:
                reader.close()


class Watches(Closing):
    """The groups that pages look at.

    Args:
        connect: Opens a reader.
        interval: Seconds between two readings of a group.
        always: A group that is watched also if no page asks for it.
    """

    def __init__(
        self, connect: Callable[[str], GroupReader], interval: float, always: str | None
    ) -> None:
        self._connect = connect
        self._interval = interval
        self._always = always
        self._lock = threading.Lock()
        self._watches: dict[str, GroupWatch] = {}
        if always is not None:
            self.of(always)

    def of(self, group: str) -> GroupWatch | None:
        """Returns the watch of a group; None if too many are watched."""
        with self._lock:
            self._forget()
            found = self._watches.get(group)
            if found is None and len(self._watches) < _MOST:
                found = GroupWatch(self._connect, group, self._interval)
                self._watches[group] = found
            return found

    def _forget(self) -> None:
        now = time.monotonic()
        for group, watch in list(self._watches.items()):
            # A name that is no group keeps its place for a moment only.
            patience = 2 * _FIRST if watch.is_empty else _FORGOTTEN
            if group != self._always and watch.asked_at + patience < now:
                watch.close()
                del self._watches[group]

    def close(self) -> None:
        """Ends all threads, and waits some seconds for readings that have begun.

        A process that ends while one of its threads is in the Rust or C++ code that reads a commit
        table would crash.
        """
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
        until = time.monotonic() + _LAST_READING
        for watch in watches:
            watch.join(max(0.0, until - time.monotonic()))

"""Background threads that read the status of groups again and again, and keep its course."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from commits import (
    CommitLogUnavailable,
    CommitStoreBusy,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
)
from coopconsume.closing import Closing
from coopconsume.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    GroupNotFound,
    NotAuthorized,
    TopicNotFound,
)
from coopconsume.errors.base import sentence_of
from coopconsume.monitoring.pace import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coopconsume.admin.overview.reader import GroupReader, GroupReading
    from coopconsume.monitoring.pace import Sample

log = logging.getLogger(__name__)

#: Groups that are watched at once; others are refused until one was not asked for for a while.
_MOST: Final = 20
#: Seconds after which a group is no longer watched if no page asks for it.
_FORGOTTEN: Final = 600.0
#: Seconds that the first request for a group waits for its status.
_FIRST: Final = 5.0
#: Seconds for which the end of all waits for readings.
_LAST_READING: Final = 5.0
#: Errors that say that the commit table does not answer, or cannot be read by anybody.
_NO_TABLE: Final = (
    CommitLogUnavailable, CommitStoreBusy, CommitTableFormat, CommitTableNotFound,
    CorruptCommitLog,
)  # fmt: skip


@dataclass(frozen=True)
class Sources:
    """Whether Kafka and a commit table have answered the last time that they were asked.

    Attributes:
        kafka, commit_table: Whether it has; None: it was not asked yet.
    """

    kafka: bool | None = None
    commit_table: bool | None = None

    def after(self, error: BaseException) -> Sources:
        """Returns what is known after a reading that has failed; the table is read after Kafka.

        An error of one group, such as a missing right, is no sign of a source that does not answer.
        """
        from kafka.errors import BrokerResponseError

        if isinstance(error, _NO_TABLE):
            return replace(self, kafka=True, commit_table=False)
        if isinstance(error, GroupNotFound):
            return ANSWERED
        if _says_nobody_answers(error):
            return replace(self, kafka=False)
        has_answered = isinstance(error, NotAuthorized | TopicNotFound | BrokerResponseError)
        return replace(self, kafka=True) if has_answered else self


def _says_nobody_answers(error: BaseException) -> bool:
    """Whether an error says that Kafka does not answer, or that nobody may connect to it."""
    from kafka import errors

    if isinstance(error, errors.BrokerResponseError):
        # Brokers answer so if another one that they need does not.
        away = errors.RequestTimedOutError, errors.NetworkExceptionError
        return isinstance(error, (*away, errors.BrokerNotAvailableError))
    return isinstance(error, BrokerUnreachable | AuthenticationFailed | errors.RetriableError)


#: Both have answered.
ANSWERED: Final = Sources(kafka=True, commit_table=True)


class Readability:
    """Warns of each new reason why something cannot be read, and when it is read again.

    Args:
        what: What is read.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._reason = ""

    def failed(self, error: BaseException) -> None:
        """Warns if the reason is another one than before; with its trace if debug is logged."""
        reason = sentence_of(error)
        if reason != self._reason:
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            log.warning("%s cannot be read: %s", self._what, reason, exc_info=trace)
            self._reason = reason

    def succeeded(self) -> None:
        """Says that it is read again, if it was not."""
        if self._reason:
            log.warning("%s is read again", self._what)
            self._reason = ""


@dataclass(frozen=True)
class View:
    """What is known of a watched group.

    Attributes:
        reading: Its newest status; None before the first one.
        at: When that was read, in seconds since the epoch; 0 before.
        samples: The samples, the oldest first.
        error: Why it cannot be read now; empty if it can.
        error_since: When the first reading that failed began, in seconds since the epoch.
        sources: Whether Kafka and the commit table have answered the last time that they were
            asked, as far as they were.
        since: When the first reading began, in seconds since the epoch.
    """

    reading: GroupReading | None = None
    at: float = 0.0
    samples: tuple[Sample, ...] = ()
    error: str = ""
    error_since: float = 0.0
    sources: Sources = field(default_factory=Sources)
    since: float = 0.0


def add_reading(course: Course, reading: GroupReading, at: float) -> None:
    """Adds a sample of a reading to the course of its group."""
    offsets = {
        (one.topic, one.partition): (
            one.end_offset - (one.lag or 0) if one.end_offset is not None else 0,
            one.end_offset or 0,
        )
        for one in reading.statuses
    }
    pending = sum(len(one.pending) for one in reading.statuses)
    course.add(at, offsets, reading.overview.lag, pending)


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
        self._course = Course()
        self._readability = Readability(f"group {group}")
        self._view = View(since=time.time())
        self._answered = threading.Event()
        self._closed = threading.Event()
        self.asked_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"coopconsume-watch-{group}", daemon=True
        )
        self._thread.start()

    def view(self) -> View:
        """Returns what is known; the first call waits for some seconds."""
        self.asked_at = time.monotonic()
        self._answered.wait(_FIRST)
        return self._view

    @property
    def known(self) -> View:
        """What is known; it waits for nothing and is no sign of somebody who looks."""
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
                    add_reading(self._course, reading, at)
                    samples = tuple(self._course.samples)
                    self._view = View(
                        reading, at, samples, sources=ANSWERED, since=self._view.since
                    )  # fmt: skip
                    self._readability.succeeded()
                # A panic of Rust code is no Exception; the thread would end, and nobody would know.
                except BaseException as error:  # noqa: BLE001 - the next reading tries again
                    self._readability.failed(error)
                    known = self._view
                    since = known.error_since if known.error else since
                    self._view = replace(
                        known, error=sentence_of(error), error_since=since,
                        sources=known.sources.after(error),
                    )  # fmt: skip
                    if reader is not None:
                        with suppress(Exception):
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
        always: Groups that are watched also if no page asks for them.
    """

    def __init__(
        self, connect: Callable[[str], GroupReader], interval: float, always: Collection[str]
    ) -> None:
        self._connect = connect
        #: Seconds between two readings of a group.
        self.interval = interval
        self._always: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._is_closed = False
        self._watches: dict[str, GroupWatch] = {}
        self.follow(always)

    def follow(self, groups: Collection[str]) -> None:
        """Watches these groups also if no page asks for them, and no others for that reason."""
        with self._lock:
            self._always = frozenset(groups)
            self._forget()
            for group in sorted(self._always - self._watches.keys()):
                if not self._is_closed:
                    self._watches[group] = GroupWatch(self._connect, group, self.interval)

    def watched(self) -> dict[str, GroupWatch]:
        """Returns the watches of all groups that are watched."""
        with self._lock:
            return dict(self._watches)

    def of(self, group: str) -> GroupWatch | None:
        """Returns the watch of a group; None if too many are watched."""
        with self._lock:
            self._forget()
            found = self._watches.get(group)
            if found is None and len(self._watches) < _MOST:
                found = GroupWatch(self._connect, group, self.interval)
                self._watches[group] = found
            return found

    def _forget(self) -> None:
        now = time.monotonic()
        for group, watch in list(self._watches.items()):
            # A name that is no group keeps its place for a moment only.
            patience = 2 * _FIRST if watch.is_empty else _FORGOTTEN
            if group not in self._always and watch.asked_at + patience < now:
                watch.close()
                del self._watches[group]

    def close(self) -> None:
        """Ends all threads, and waits some seconds for readings that have begun.

        A process that ends while one of its threads is in the Rust or C++ code that reads a commit
        table would crash.
        """
        with self._lock:
            self._is_closed = True
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
        until = time.monotonic() + _LAST_READING
        for watch in watches:
            watch.join(max(0.0, until - time.monotonic()))

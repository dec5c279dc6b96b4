"""The assignment that a consumer has now, and the worker that works on it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from coopconsume.errors import AlreadyClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.group.callbacks import Worker
    from coopconsume.group.epoch_assignment import EpochAssignment

log = logging.getLogger(__name__)

#: Seconds of joining after which a warning says so; then it is repeated.
_FIRST_WARNING = 3.0
_PATIENCE = 10.0


class CurrentAssignment:
    """Keeps what a consumer is assigned, until it ends, is refused by the log, or fails.

    A worker is attached: it begins with each assignment. Threads of the group, of the worker and of
    the user change and read all this; changes are made under one lock.

    Args:
        worker: Works on the assignment while no other worker is attached.

    Attributes:
        lock: Is held while anything here changes; the same thread may acquire it again.
        leaving: Is set when the consumer leaves: then no assignment begins any more.
        worker: Works on the assignment now.
        held: The assignment; None between a group's epochs, and with a claim before it is made.
        latest: The one that began last, also if it has ended.
        awaited_since: When the wait for the next one began, on the monotonic clock.
    """

    def __init__(self, worker: Worker) -> None:
        self.lock = threading.RLock()
        self.leaving = threading.Event()
        self._changed = threading.Condition(self.lock)
        self._idle_worker = self.worker = worker
        self.held: EpochAssignment | None = None
        self.latest: EpochAssignment | None = None
        self.awaited_since = time.monotonic()
        self._refused: EpochAssignment | None = None
        self._error: BaseException | None = None

    # -- reading

    def get(self) -> EpochAssignment | None:
        """Returns the assignment; None between a group's epochs.

        Raises:
            CoopConsumeError: The member has left the group permanently.
        """
        with self.lock:
            self._raise_error()
            return self.held

    def wait(self, timeout: float | None = None) -> EpochAssignment | None:
        """Returns the assignment; between epochs it waits for the next one.

        Args:
            timeout: Seconds; then None is returned, as after `leave`.

        Raises:
            CoopConsumeError: The member has left the group permanently.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.held or self._error or self.leaving.is_set(), timeout
            )
            self._raise_error()
            return self.held

    def wait_for_first(self, waiting: Callable[[], str]) -> None:
        """Waits for the first assignment of a group that the consumer begins to join.

        Args:
            waiting: Returns why it has not come yet, for people; it is logged from time to time.

        Raises:
            AlreadyClosed: Another thread closed the consumer meanwhile.
            CoopConsumeError: The group does not take the member.
        """
        self.awaited_since = time.monotonic()
        due = self.awaited_since + _FIRST_WARNING
        with self._changed:
            while self.held is None:
                self._raise_error()
                self.check_open()
                self._changed.wait(0.2)
                if time.monotonic() > due:
                    log.warning("%s", waiting())
                    due = time.monotonic() + _PATIENCE

    def check_open(self) -> None:
        """Makes sure that the consumer is not leaving.

        Raises:
            AlreadyClosed: It is.
        """
        if self.leaving.is_set():
            raise AlreadyClosed("the consumer")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- the worker

    def attach(self, worker: Worker) -> None:
        """Has another worker work on the assignment from now on."""
        with self.lock:
            self.worker = worker
            if self.held is not None:
                worker.begin(self.held)
            if self._error is not None:
                worker.fail(self._error)

    def detach(self) -> None:
        """Has the first worker work on the assignment again."""
        with self.lock:
            self.worker = self._idle_worker
            if self.held is not None:
                self.worker.begin(self.held)

    # -- changes

    def begin(self, assignment: EpochAssignment) -> bool:
        """Begins the work on an assignment; returns false if the consumer is leaving."""
        with self._changed:
            is_open = not self.leaving.is_set()
            if is_open:
                self.held = self.latest = assignment
                self.worker.begin(assignment)
                self._changed.notify_all()
        return is_open

    def end(self) -> EpochAssignment | None:
        """Ends the assignment, and returns it."""
        with self.lock:
            ended, self.held = self.held, None
            self.awaited_since = time.monotonic()
            return ended

    def refuse(self) -> EpochAssignment | None:
        """Ends the assignment, which the log refuses, and returns it; see `take_refused`."""
        with self.lock:
            refused = self.end()
            self._refused = refused or self._refused
        return refused

    def take_refused(self) -> EpochAssignment | None:
        """Returns the assignment that was refused since the last call, if there is one."""
        with self.lock:
            refused, self._refused = self._refused, None
        return refused

    def fail(self, error: BaseException) -> None:
        """Ends it permanently: the worker gets the error, and so do all calls that read it."""
        with self._changed:
            self._error, self.held = error, None
            self._changed.notify_all()
            self.worker.fail(error)

    def leave(self) -> None:
        """Begins nothing any more, and ends the waits for an assignment."""
        with self._changed:
            self.leaving.set()
            self._changed.notify_all()

"""The time box of a slot: how long handlers may start, and when the worker ends. Task-side code."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from coopconsume.worker.crash_journal import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from coopconsume.worker.crash_journal import CrashJournal
    from coopconsume.worker.fail_stop import FailStop
    from coopconsume.worker.report import BatchSpec

#: Exit status of a worker that is ended because a handler ran too long, or would start too late.
#: Its task fails, and the driver plans its records again.
OUTLIVED = 70
#: Seconds behind a time limit after which the process ends although no thread of it has ended it:
#: native code keeps the interpreter lock. A loaded host may start a thread so late.
_SPARE = 2.0


class TimeBox:
    """Limits the time in which a slot may start handlers, and ends the worker if one runs too long.

    A worker that runs no handler then, and is only late to report, is not ended: what it has done
    would be lost.

    Attributes:
        is_over: Nothing more may start. A flag, since it is read for each record, and reading the
            clock costs more.
        is_closed: Also the time of running handlers is over. If it is set once a record is entered
            in the journal, `refuse` takes the place of the handler.
        stopped: Why not even a first record may start (`SlotEnd.stopped`); empty: it may.
        may_start: Whether the slot's lease holds at an instant. A thread sets `is_over` when the
            lease ends. If the process was frozen, `SerialRunner` may come to it first: it looks
            itself where much time has passed between two reads of the clock.
        culprits: Returns the seats whose handlers keep the others from ending; None: no handler
            does, and each that runs too long does so by itself.
        fail_stop: Ends the process where no thread of it can; None: nothing does.

    Args:
        spec: The batch.
        journal: Names the running records if the worker has to be ended.
        end: Ends this process at once, with an exit status.
    """

    def __init__(
        self, spec: BatchSpec, journal: CrashJournal, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._time = spec.batch_time
        self._grace = spec.handler_timeout
        self._end_process = end
        self._deadline: float | None = None
        self._ended = threading.Event()
        #: Set as the slot is halted, and as it ends.
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._halted_at: float | None = None
        self._on_halt: list[Callable[[], None]] = []
        self.journal = journal
        self.is_over = False
        self.is_closed = False
        self.stopped = ""
        self.started = 0.0
        self.may_start: Callable[[float], bool] = lambda _now: True
        self.culprits: Callable[[], Sequence[int] | None] = lambda: None
        self.fail_stop: FailStop | None = None

    def begin(self) -> float:
        """Starts the time box at the first record; later calls only return its end.

        Returns:
            The instant after which nothing starts, on this process's monotonic clock.
        """
        if self._deadline is None:
            with self._lock:  # The reader of rows and a runner may begin at the same time.
                if self._deadline is None:
                    self._deadline = self._begin(time.monotonic())
        return self._deadline

    def _begin(self, now: float) -> float:
        self.started, deadline = now, now + self._time
        self.is_over = self.is_over or self._time <= 0
        if not (self.stopped or self._ended.is_set()):  # Otherwise nothing needs watching.
            self._end_by(Deadline.SLOT, deadline + self._grace)
            threading.Thread(target=self._watch, name="coopconsume-time-box", daemon=True).start()
        return deadline

    def _watch(self) -> None:
        """In a thread of its own."""
        self._woken.wait(self._time)
        self.is_over = True
        over = time.monotonic() if self._halted_at is None else self._halted_at
        if self._ended.wait(max(0.0, over + self._grace - time.monotonic())):
            return
        self.halt("time", time.monotonic())
        # In this order: a handler that starts meanwhile is either seen here or refused.
        self.is_closed = True
        # A thread cannot be stopped, so only the end of the process ends a handler for certain.
        if self.journal.is_at_work:
            self.end_worker(self.culprits())
        self._end_by(Deadline.SLOT, math.inf)

    def halt(self, why: str, since: float) -> None:
        """Starts nothing more; called from any thread.

        Args:
            why: The reason, as in `SlotEnd.stopped`.
            since: When that began, on the monotonic clock. Running handlers have the handler
                timeout from then on.
        """
        with self._lock:
            if self._halted_at is not None:
                return
            self._halted_at = since
            self.stopped = self.stopped or why
            self.is_over = True
            calls = list(self._on_halt)
            if self._deadline is not None:
                self._end_by(Deadline.SLOT, since + self._grace)
        self._woken.set()
        for call in calls:
            call()

    def give_back(self) -> None:
        """Starts nothing more; running handlers keep their time limit."""
        # In this order: a thread that sees is_over must see the reason.
        self.stopped = self.stopped or "relief"
        self.is_over = True

    def on_halt(self, call: Callable[[], None]) -> None:
        """Calls a function once the slot is halted; immediately if it is halted already."""
        with self._lock:
            self._on_halt.append(call)
            is_halted = self._halted_at is not None
        if is_halted:
            call()

    def check_lease(self) -> None:
        """Sets `is_over` if the lease has ended."""
        if not self.may_start(time.monotonic()):
            self.stopped = self.stopped or "lease"
            self.is_over = True

    def end_worker(self, seats: Iterable[int] | None = None) -> None:
        """Ends the worker process, since the handlers of some seats, or of all, ran too long."""
        for seat in [None] if seats is None else seats:
            self.journal.mark_overdue(seat)
        self._end_process(OUTLIVED)

    def limit_calls(self, until: float) -> None:
        """Has the process end if the running handler calls outlast an instant.

        Args:
            until: When a thread would end it, on the monotonic clock; infinity: never.
        """
        self._end_by(Deadline.CALL, until)

    def _end_by(self, of: Deadline, until: float) -> None:
        if self.fail_stop is not None:
            self.fail_stop.end_in(of, max(0.0, until - time.monotonic()) + _SPARE)

    def enter(self, seat: int, part: int, offset: int) -> None:
        """A handler starts with a record."""
        self.enter_all([(part, offset)], seat)

    def enter_all(self, rows: Sequence[tuple[int, int]], first: int = 0) -> None:
        """A handler starts with several records: (part, offset)."""
        for seat, (part, offset) in enumerate(rows, first):
            self.journal.enter(seat, part, offset)
        if self.is_closed:
            self.refuse()

    def refuse(self) -> None:
        """Ends the worker process before a handler starts after its time; no record is charged."""
        self.journal.leave_all()
        self._end_process(OUTLIVED)

    def end(self) -> None:
        """The slot has finished: no handler is watched any more."""
        self._ended.set()
        self._woken.set()
        if self.fail_stop is not None:
            self.fail_stop.close()

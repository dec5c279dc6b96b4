"""The deadlines at which a worker's process ends, whatever its threads do. Task-side code."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from coopconsume.worker.crash_journal import Deadline
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from coopconsume.worker.crash_journal import CrashJournal
    from coopconsume.worker.process_timer import ProcessTimer


class FailStop:
    """Ends this process at the earliest of several deadlines; each can be moved.

    The journal has them, so that the second attempt of the task knows which one has ended the
    worker. A deadline in the journal is never later than that of the timer.

    Args:
        journal: Of the worker.
        timer: Ends the process.
    """

    def __init__(self, journal: CrashJournal, timer: ProcessTimer) -> None:
        self._journal = journal
        self._timer = timer
        self._lock = threading.Lock()
        self._deadlines = dict.fromkeys(Deadline, math.inf)
        self._is_closed = False

    def end_at(self, of: Deadline, at: float) -> None:
        """Moves a deadline; one that has been in force so far does not count any more.

        Args:
            of: The deadline.
            at: On `coopconsume.worker.process_timer.clock`; infinity: it never comes.
        """
        with self._lock:
            if self._is_closed:
                return
            is_earlier, self._deadlines[of] = at < self._deadlines[of], at
            if is_earlier:
                self._journal.note_deadline(of, at)
            self._timer.set(min(self._deadlines.values()))
            if not is_earlier:
                self._journal.note_deadline(of, at)

    def end_in(self, of: Deadline, seconds: float) -> None:
        """Moves a deadline to some seconds from now."""
        self.end_at(of, clock() + seconds)

    def python_runs(self) -> None:
        """Notes that Python code of the worker runs."""
        self._journal.note_seen(clock())

    def close(self) -> None:
        """Removes all deadlines; harmless when repeated."""
        with self._lock:
            self._is_closed = True
            with suppress(OSError):
                self._timer.close()

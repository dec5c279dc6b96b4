"""Mutants of the timer that ends a worker whatever its threads do, and of what its death costs."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TIMER = "tests/unit/worker/test_process_timer.py::"
_AT_LIMIT = _TIMER + "test_a_call_that_keeps_the_interpreter_lock_is_ended_at_its_time_limit"
_WITH_SLOT = (
    _TIMER + "test_a_call_that_keeps_the_interpreter_lock_is_ended_with_the_time_of_its_slot"
)
_EARLIEST = _TIMER + "test_the_earliest_deadline_ends_the_process_and_the_journal_names_it"
_SOURCE = "coopconsume/worker/process_timer.py"
_STOP = "coopconsume/worker/fail_stop.py"
_BOX = "coopconsume/worker/time_box.py"
_JOURNAL = "coopconsume/worker/crash_journal.py"

FAIL_STOP = [
    Mutant(
        "passed-instant-never-comes",
        "An instant that has passed ends the process at once.",
        _SOURCE,
        "nanos = max(1, int(at * 1e9))",
        "nanos = max(0, int(at * 1e9))",
        (_TIMER + "test_an_instant_that_has_passed_ends_the_process_at_once",),
    ),
    Mutant(
        "no-timer-elsewhere",
        "Where the kernel has no such timer, faulthandler ends the process.",
        _SOURCE,
        "faulthandler.dump_traceback_later(left, exit=True, file=_STDERR)",
        "faulthandler.dump_traceback_later(left, file=_STDERR)",
        (_TIMER + "test_without_timers_of_the_kernel_faulthandler_ends_the_process",),
    ),
    Mutant(
        "last-deadline-ends-the-process",
        "The earliest of a worker's deadlines ends it.",
        _STOP,
        "self._timer.set(min(self._deadlines.values()))",
        "self._timer.set(max(self._deadlines.values()))",
        (_EARLIEST,),
    ),
    Mutant(
        "call-outlasts-its-thread",
        "A call that keeps the interpreter lock is ended at its time limit, on threads.",
        "coopconsume/worker/thread_runner.py",
        "            self._time_box.limit_calls(oldest + 2 * timeout)\n",
        "",
        (_AT_LIMIT,),
    ),
    Mutant(
        "call-outlasts-its-loop",
        "A call that keeps the interpreter lock is ended at its time limit, as a coroutine.",
        "coopconsume/worker/async_runner.py",
        "            self._time_box.limit_calls(self._tick_at + 2 * self._timeout)\n",
        "            pass\n",
        (_AT_LIMIT,),
    ),
    Mutant(
        "call-outlasts-its-frame",
        "A call that keeps the interpreter lock is ended at its time limit, with frames.",
        "coopconsume/worker/frame_runner.py",
        "        time_box.limit_calls(time.monotonic() + timer.interval)\n",
        "",
        (_AT_LIMIT,),
    ),
    Mutant(
        "call-outlasts-its-slot",
        "A call that keeps the interpreter lock is ended with the time of its slot.",
        _BOX,
        "            self._end_by(Deadline.SLOT, deadline + self._grace)\n",
        "",
        (_WITH_SLOT,),
    ),
    Mutant(
        "one-of-several-is-charged",
        "Of several calls nobody knows which one has kept the lock, so none is charged.",
        _JOURNAL,
        "return self.overdue or (self.running if len(self.running) == 1 else [])",
        "return self.overdue or (self.running[:1] if self.deadline is not None or len(self.running) == 1 else [])",
        (_TIMER + "test_of_several_calls_none_is_charged_as_one_keeps_the_lock",),
    ),
    Mutant(
        "any-death-is-by-the-timer",
        "A worker that ended before its deadline was not ended by it.",
        _JOURNAL,
        "return (of, at) if at <= now else (None, now)",
        "return of, at",
        (_TIMER + "test_a_worker_that_ended_before_its_deadline_was_not_ended_by_it",),
    ),
]

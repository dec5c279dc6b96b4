"""Mutants of workers that end, are damaged, or run hostile handlers."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHANNEL_ERROR = (
    "tests/unit/worker/test_slot_channel.py::test_an_error_in_the_channel_ends_the_worker"
)

_CRASHES = "tests/unit/worker/test_crashes.py::"
_ODD = "tests/unit/worker/test_odd_answers.py::"
_FAILED = "tests/unit/runtime/test_failed_records.py::"
_REAL_TIME = "tests/model/test_real_time_model.py::"
_CHARGED = _REAL_TIME + (
    "test_a_record_that_ends_the_worker_of_a_real_time_slot_is_charged_as_in_batches"
)
_OPEN = "tests/unit/worker/test_open_handlers.py::"
_STATES = "tests/unit/worker/test_slot_states.py::"
_FAILING = "tests/model/test_failing_slots.py::"
_HOSTILE = "tests/unit/worker/test_hostile.py::test_a_hostile_handler_costs_what_the_table_says"
_SLOT = "coopconsume/worker/slot.py"
_OUTCOME = "coopconsume/worker/outcome.py"
_REPORTER = "coopconsume/worker/reporter.py"
_ASYNC = "coopconsume/worker/async_runner.py"
_DOCTOR = "tests/unit/doctor/test_doctor.py::"

WORKERS = [
    Mutant(
        "workers-draw-the-same-numbers",
        "Workers that are forked from one process draw other random numbers.",
        "coopconsume/worker/daemon.py",
        'sys.modules["numpy"].random.seed()',
        'sys.modules["numpy"].random.get_state()',
        (
            "tests/spark/test_session.py::test_workers_share_what_was_loaded_before_they_were_forked",
        ),
    ),
    Mutant(
        "forks-of-workers-are-seeded",
        "What a handler forks keeps the random numbers of its worker.",
        "coopconsume/worker/daemon.py",
        "os.getppid() == daemon and ",
        "",
        (
            "tests/spark/test_session.py::test_workers_share_what_was_loaded_before_they_were_forked",
        ),
    ),
    Mutant(
        "a-thread-before-the-fork",
        "The process that workers are forked from has one thread.",
        "coopconsume/worker/daemon.py",
        '"background_thread:false"',
        '""',
        (
            "tests/spark/test_session.py::test_workers_share_what_was_loaded_before_they_were_forked",
        ),
    ),
    Mutant(
        "pyspark-of-another-folder",
        "Workers have the PySpark of their Spark.",
        "coopconsume/worker/daemon.py",
        " and Path(found.origin).parent.resolve() == home.resolve()",
        "",
        (
            "tests/unit/worker/test_daemon.py::test_the_archive_of_pyspark_is_left_for_the_same_pyspark_alone",
        ),
    ),
    Mutant(
        "delay-since-the-last-call",
        "A record that is charged without a call waits for its delay from then on.",
        "coopconsume/worker/key_scheduler.py",
        "outcome.streak.number, self._now = self._settled, now",
        "outcome.streak.number = self._settled",
        (
            "tests/unit/worker/test_crashes.py::test_a_record_that_is_charged_without_a_call_waits_its_delay_from_then_on",
        ),
    ),
    Mutant(
        "time-box-begins-twice",
        "The time box of a slot begins once.",
        "coopconsume/worker/time_box.py",
        "            with self._lock:  # The reader of rows and a runner may begin at the same time.\n"
        "                if",
        "            if True:\n                if",
        ("tests/unit/worker/test_time_box.py::test_two_threads_that_begin_at_once_have_one_end",),
    ),
    Mutant(
        "time-box-after-its-end",
        "A time box that begins after its end ends no process.",
        "coopconsume/worker/time_box.py",
        "if not (self.stopped or self._ended.is_set()):",
        "if not self.stopped:",
        (
            "tests/unit/worker/test_time_box.py::test_a_time_box_that_begins_after_its_end_ends_nothing",
        ),
    ),
    Mutant(
        "crash-not-counted",
        "A record that ends its worker is charged an attempt.",
        "coopconsume/worker/record_history.py",
        "return at in self._given_up or at in self._ended_with or self._is_spent(attempt)",
        "return at in self._given_up or self._is_spent(attempt)",
        (_CRASHES + "test_a_call_that_ended_its_worker_counts_once_without_another_call",),
    ),
    Mutant(
        "crash-counted-again-and-again",
        "The end of a worker counts once.",
        "coopconsume/runtime/plan/failed_records.py",
        "        self.ended.pop(record.offset, None)\n        self._last[record.offset]",
        "        self._last[record.offset]",
        (_FAILED + "test_a_crash_counts_as_a_failure_with_the_next_batch",),
    ),
    Mutant(
        "crash-no-failure-of-the-breaker",
        "A call that ended its worker counts for the circuit breaker.",
        _OUTCOME,
        "            self.streak.count_before_calls(error_text(ended))\n",
        "",
        (_CRASHES + "test_calls_that_ended_their_workers_count_for_the_circuit_breaker",),
    ),
    Mutant(
        "begun-record-of-a-crash-unknown",
        "The record that ended a real-time worker is charged, also if the driver had not heard of it.",
        "coopconsume/runtime/plan/supply.py",
        "                cursor.had_begun(last)",
        "                pass",
        (_CHARGED,),
    ),
    Mutant(
        "real-time-crash-is-a-loss",
        "What batches know of a crash holds in real time.",
        "coopconsume/runtime/dispatch/reports.py",
        "run.partitions[part].slots.has_read(task.slot, outcome, now)",
        "run.partitions[part].ledger.wake()",
        (_CHARGED,),
    ),
    Mutant(
        "failed-slot-looked-at-all",
        "What a failed slot does not name is left to do.",
        _OUTCOME,
        "        if self.error:\n            self.resume_from_start()\n",
        "",
        (_ODD + "test_an_error_of_the_slot_itself_ends_its_task_at_once",),
    ),
    Mutant(
        "error-in-a-runner-waits",
        "An error in a runner's own thread ends the slot.",
        "coopconsume/worker/thread_runner.py",
        "            self._outcome.fail(error)\n",
        "",
        (_ODD + "test_an_error_of_the_slot_itself_ends_its_task_at_once",),
    ),
    Mutant(
        "unsent-records-are-holes",
        "A slot whose channel has failed names what it has not handled: none of that is a hole.",
        "coopconsume/worker/slot.py",
        "        outcome.fail(channel.failure)",
        "        pass",
        (_CHANNEL_ERROR,),
    ),
    Mutant(
        "failure-of-a-channel-known-late",
        "A slot knows that its channel has failed before the thread of the channel has ended.",
        "coopconsume/worker/channel/client.py",
        "                self.failure = error\n                raise",
        "                raise",
        (
            "tests/unit/worker/test_slot_channel.py::test_an_error_in_the_channel_is_known_before_its_thread_has_ended",
        ),
    ),
    Mutant(
        "unsent-report-is-lost",
        "What was cut for a report that cannot be sent comes with the final report.",
        "coopconsume/worker/channel/client.py",
        "                self._unacknowledged.append((report, 0))\n                payload = encode_report(report)",
        "                payload = encode_report(report)\n                self._unacknowledged.append((report, 0))",
        (_CHANNEL_ERROR,),
    ),
    Mutant(
        "damaged-worker-goes-on",
        "A worker in which the library's own code has failed ends itself.",
        _SLOT,
        "            if not report.end.error:\n                return self._answer(slot, report)",
        "            return self._answer(slot, report)",
        (_CRASHES + "test_a_worker_whose_own_code_fails_leaves_its_report_and_ends",),
    ),
    Mutant(
        "error-of-a-slot-not-counted",
        "Slots that fail in four batches in a row end the job.",
        "coopconsume/runtime/dispatch/batch.py",
        "        if end.error is None and not run.failure:",
        "        if end.error is None:",
        (_FAILING + "test_slots_that_fail_in_four_batches_in_a_row_end_the_job_with_the_reason",),
    ),
    Mutant(
        "failing-slot-not-paused",
        "A slot that has failed waits before its next batch.",
        "coopconsume/runtime/dispatch/job_slots.py",
        "now + _PAUSE * _LONGER**earlier, why",
        "now, why",
        (_FAILING + "test_slots_that_fail_in_four_batches_in_a_row_end_the_job_with_the_reason",),
    ),
    Mutant(
        "handler-opened-in-each-batch",
        "A handler that is open in a worker is kept over batches.",
        "coopconsume/worker/open_handlers.py",
        "        self._open[spec.run] = found\n",
        "",
        (_OPEN + "test_a_handler_is_opened_once_and_kept_over_batches",),
    ),
    Mutant(
        "ended-query-keeps-its-handler",
        "A handler is closed when its query has ended.",
        "coopconsume/worker/open_handlers.py",
        "is_over = one.has_query_ended or not one.is_usable",
        "is_over = not one.is_usable",
        (_OPEN + "test_a_handler_whose_query_has_ended_is_closed",),
    ),
    Mutant(
        "failed-open-without-end",
        "A handler that cannot be opened four times in a row ends the job.",
        "coopconsume/runtime/dispatch/job_slots.py",
        "        if slot.unopened >= MOST_FAILURES:\n            raise HandlerNotOpened(",
        "        if slot.unopened == -1:\n            raise HandlerNotOpened(",
        (_FAILING + "test_a_handler_that_cannot_be_opened_four_times_in_a_row_ends_the_job",),
    ),
    Mutant(
        "slot-that-never-began-is-lost",
        "A slot whose task fails before it begins leaves nothing in doubt.",
        "coopconsume/runtime/dispatch/reports.py",
        "        if end.unknown and self._cannot_have_begun(run, task):",
        "        if False:",
        (_FAILING + "test_a_task_that_fails_before_its_slot_begins_leaves_nothing_in_doubt",),
    ),
    Mutant(
        "stopped-loop-stays-stopped",
        "A handler that stops its event loop stops no other.",
        _ASYNC,
        "            loop.run_forever()\n        except (SystemExit",
        "            loop.run_forever()\n            return\n        except (SystemExit",
        (_HOSTILE + "[stops its loop-coroutines]",),
    ),
    Mutant(
        "cancelled-seat-ends",
        "A coroutine that cancels all tasks of its loop reaches handlers alone.",
        _ASYNC,
        "                    if self._is_given_up:\n                        return\n                    await _stay(task)\n                continue",
        "                    return\n                continue",
        (
            "tests/unit/worker/test_concurrency.py::test_a_coroutine_that_cancels_all_tasks_of_its_loop_ends_no_seat",
        ),
    ),
    Mutant(
        "all-calls-of-a-blocked-loop-charged",
        "Of a loop that is blocked, only the call that blocks it is charged.",
        _ASYNC,
        "        return [] if seat is None else [seat]",
        "        return None",
        (
            "tests/unit/worker/test_crashes.py::test_a_coroutine_that_blocks_its_loop_is_charged_alone",
        ),
    ),
    Mutant(
        "blocked-time-charged-to-all",
        "Time in which another handler blocked the loop does not count for a call's limit.",
        _ASYNC,
        "                self._began[seat] = at\n",
        "                at -= blocked  # noqa: PLW2901\n",
        (
            "tests/unit/worker/test_concurrency.py::test_time_in_which_another_blocked_the_loop_is_not_charged",
        ),
    ),
    Mutant(
        "blocked-loop-not-watched",
        "A coroutine that blocks its loop has its worker ended after twice its time limit.",
        _ASYNC,
        "                self._time_box.end_worker(self._culprits())",
        "                pass",
        (_CRASHES + "test_a_coroutine_that_blocks_its_loop_is_charged_alone",),
    ),
    Mutant(
        "left-reports-stay",
        "The report of a cancelled job is removed by a later worker.",
        "coopconsume/worker/slot.py",
        "        remove_old_reports()\n",
        "",
        (
            "tests/unit/worker/test_crashes.py::test_reports_of_cancelled_jobs_are_removed_by_a_later_worker",
        ),
    ),
    Mutant(
        "left-report-removed-early",
        "A report that a second attempt may take stays.",
        "coopconsume/worker/left_report.py",
        " and time.time() - found.st_mtime > _KEPT:",
        ":",
        (
            "tests/unit/worker/test_crashes.py::test_reports_of_cancelled_jobs_are_removed_by_a_later_worker",
        ),
    ),
    Mutant(
        "record-in-two-states-accepted",
        "A record of a slot in two states is refused by the check that models call.",
        _REPORTER,
        "assert at not in found, ",
        "assert state, ",
        (_STATES + "test_a_record_in_two_states_or_in_none_is_refused",),
    ),
    Mutant(
        "record-in-no-state-accepted",
        "A record of a slot that was read and is in no state is refused.",
        _REPORTER,
        "is_known or offset > read.get(part, -1)",
        "is_known or part in read",
        (_STATES + "test_a_record_in_two_states_or_in_none_is_refused",),
    ),
    Mutant(
        "draft-shares-its-lists-with-a-report",
        "A report does not change after it is made.",
        "coopconsume/worker/report_draft.py",
        "        self.done, self.filtered, self.failed = [], [], []\n",
        "        self.done, self.filtered = [], []\n",
        (_STATES + "test_a_report_does_not_change_after_it_is_made",),
    ),
    Mutant(
        "other-sources-are-the-drivers",
        "Workers with other sources than the driver's are named.",
        "coopconsume/worker/look.py",
        'total.update(name.encode() + b"\\0" + one.read_bytes())',
        "total.update(name.encode())",
        (_DOCTOR + "test_sources_are_the_same_in_a_folder_and_in_an_archive",),
    ),
    Mutant(
        "one-worker-is-enough",
        "What one worker lacks is said, however many others have it.",
        "coopconsume/doctor/workers.py",
        'if one["driver"]["why"]:',
        'if all(other["driver"]["why"] for other in found):',
        (_DOCTOR + "test_what_one_worker_lacks_is_said_with_a_remedy",),
    ),
    Mutant(
        "free-slot-waits-for-batches-at-work",
        "A free slot does not wait for batches that are at work.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "sum(run.is_young(now) for run in batches)",
        "sum(run.first_report is None for run in batches)",
        (
            "tests/unit/runtime/test_slot_reports.py::test_a_free_slot_waits_for_young_batches_not_for_those_at_work",
        ),
    ),
    Mutant(
        "slots-out-of-time-go-on-alone",
        "Slots whose time is over share the next batch.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "run.first_timeout or run.first_report",
        "run.first_report",
        (
            "tests/unit/runtime/test_slot_reports.py::test_slots_whose_time_is_over_are_waited_for_however_long_ago_others_came_back",
        ),
    ),
]

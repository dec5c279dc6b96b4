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
_END = "tests/unit/worker/test_lease_end.py::"
_SOCKETS = "tests/unit/worker/test_channel.py::"
_PROOFS = "tests/unit/group/test_proofs.py::"
_BATCHES = (
    "tests/model/test_job_model.py::"
    "test_batches_whose_workers_ended_for_their_driver_do_not_end_a_job"
)
_LEASED = "tests/model/test_channel_model.py::test_no_slot_starts_longer_than_a_lease_after_the_last_renewal"
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
    Mutant(
        "life-counts-from-its-answer",
        "The end of a slot's process counts from its request, however late the answer comes.",
        "coopconsume/worker/channel/lease.py",
        "at = self._asked.get(stamp)\n",
        "at = max(self._asked.values(), default=None)\n",
        (_LEASED,),
    ),
    Mutant(
        "renewal-sets-nothing-forward",
        "Each renewal sets the end of a slot's process forward.",
        "coopconsume/worker/channel/client.py",
        "            self._life.granted(stamp, life)\n            self._keep_alive()\n",
        "            self._life.granted(stamp, life)\n",
        (_SOCKETS + "test_a_stopped_slot_lives_on_as_long_as_its_driver_is_sure",),
    ),
    Mutant(
        "slot-outlives-its-epoch",
        "A worker that does not hear of its epoch ends.",
        "coopconsume/worker/channel/client.py",
        "time_box.fail_stop.end_at(Deadline.LEASE, self._life.until)",
        "time_box.fail_stop.python_runs()",
        (_END + "test_a_worker_that_does_not_hear_of_its_epoch_ends_and_nothing_is_charged",),
    ),
    Mutant(
        "cut-slot-stays-alone",
        "A slot that has lost its connection connects again.",
        "coopconsume/worker/channel/client.py",
        "            if self._error:\n                return\n",
        "            return\n",
        (_SOCKETS + "test_a_slot_whose_connection_is_cut_connects_again_and_lives_on",),
    ),
    Mutant(
        "stopped-slot-has-no-time",
        "A slot that was asked to end lives on until its handlers' own time is over.",
        "coopconsume/worker/channel/server.py",
        "if until > now and (left > 0 or self._grants.has_granted(at)):",
        "if until > now and left > 0:",
        (_SOCKETS + "test_a_stopped_slot_lives_on_as_long_as_its_driver_is_sure",),
    ),
    Mutant(
        "lonely-death-is-charged",
        "A worker that ends for its driver charges no record.",
        "coopconsume/worker/slot.py",
        "            culprits = []\n",
        "",
        (_END + "test_a_worker_that_does_not_hear_of_its_epoch_ends_and_nothing_is_charged",),
    ),
    Mutant(
        "kept-lock-is-never-suspected",
        "A call that keeps its slot from its driver is suspected.",
        "coopconsume/worker/slot.py",
        "words.running if words.stood_still > lease else []",
        "[]",
        (_END + "test_a_call_that_keeps_the_interpreter_lock_beyond_the_grace_is_suspected",),
    ),
    Mutant(
        "lonely-death-suspects-who-ran",
        "A handler beside which Python ran until the end is not suspected.",
        "coopconsume/worker/slot.py",
        "words.running if words.stood_still > lease else []",
        "words.running",
        (_END + "test_a_worker_that_does_not_hear_of_its_epoch_ends_and_nothing_is_charged",),
    ),
    Mutant(
        "heartbeat-counts-from-its-answer",
        "A heartbeat proves its epoch at the moment when it was sent.",
        "coopconsume/kafka/kafka_python_compat.py",
        "            answer = await send()\n",
        "            answer, sent = await send(), clock()\n",
        (
            _PROOFS
            + "test_a_heartbeat_counts_from_when_it_was_sent_in_the_generation_of_that_moment",
        ),
    ),
    Mutant(
        "heartbeat-of-a-rebalance-counts-not",
        "A heartbeat is accepted while the group rebalances.",
        "coopconsume/kafka/kafka_python_compat.py",
        "        except RebalanceInProgressError:\n            accepted(generation, sent)\n",
        "        except RebalanceInProgressError:\n",
        (_PROOFS + "test_a_heartbeat_is_accepted_while_the_group_rebalances",),
    ),
    Mutant(
        "heartbeat-of-any-generation-counts",
        "A heartbeat proves the epoch of its generation alone.",
        "coopconsume/group/heartbeats.py",
        "sent if under == epoch and generation == accepted_in else -math.inf",
        "sent if under == epoch else -math.inf",
        (_PROOFS + "test_a_heartbeat_proves_the_epoch_of_its_generation_alone",),
    ),
    Mutant(
        "log-alone-proves-an-epoch",
        "Kafka proves an epoch while the log is away.",
        "coopconsume/group/epoch_proof.py",
        "return max(self._seen, self._heard(grant.epoch), released)",
        "return max(self._seen, released)",
        (_PROOFS + "test_the_log_or_kafka_proves_that_an_epoch_is_in_force",),
    ),
    Mutant(
        "kafka-alone-proves-an-epoch",
        "The log proves an epoch while Kafka is away.",
        "coopconsume/group/epoch_proof.py",
        "return max(self._seen, self._heard(grant.epoch), released)",
        "return max(self._heard(grant.epoch), released)",
        (_PROOFS + "test_the_log_or_kafka_proves_that_an_epoch_is_in_force",),
    ),
    Mutant(
        "refused-release-gives-time",
        "Handlers have their time only if the log has named them to the next owners.",
        "coopconsume/group/epoch_assignment.py",
        "if counts and shares is None and not self.options.uses_chunks:",
        "if shares is None and not self.options.uses_chunks:",
        (_PROOFS + "test_what_runs_has_no_time_unless_the_log_has_named_all_of_it",),
    ),
    Mutant(
        "time-of-a-release-has-no-end",
        "The last word to a slot that was given up ends before its time does.",
        "coopconsume/group/epoch_proof.py",
        "released = min(clock(), self._runs_on_until - grant.life_ms / 1000)",
        "released = min(clock(), self._runs_on_until)",
        (_PROOFS + "test_what_runs_as_all_is_released_has_its_time",),
    ),
    Mutant(
        "claim-has-a-timer",
        "With a claim no slot ends without its driver.",
        "coopconsume/group/epoch_assignment.py",
        "return self._grant.generation >= 0",
        "return True",
        (_PROOFS + "test_slots_of_a_claim_do_not_end_without_their_driver",),
    ),
    Mutant(
        "successor-waits-for-the-handler-timeout",
        "After a crash the next owner waits for lease + leaseGrace.",
        "coopconsume/group/work_life.py",
        "        if self._fails_stop:\n            return int",
        "        if self._fails_stop and self._lease < 0:\n            return int",
        (_PROOFS + "test_a_member_says_that_its_slots_end_without_it",),
    ),
    Mutant(
        "grace-beyond-the-handler-timeout",
        "A handler has handlerTimeout at most, so its next owner waits no longer.",
        "coopconsume/group/settings.py",
        "return lease + min(options.lease_grace, options.handler_timeout)",
        "return lease + options.lease_grace",
        (_PROOFS + "test_a_member_says_that_its_slots_end_without_it",),
    ),
    Mutant(
        "lonely-deaths-end-the-job",
        "Workers that end for their driver are not among the four failed batches that end a job.",
        "coopconsume/runtime/dispatch/batch.py",
        "has_lost or deserted",
        "has_lost",
        (_BATCHES,),
    ),
    Mutant(
        "session-too-short-for-a-catalog",
        "A session is long enough for a leader to open an epoch in a table of a catalog.",
        "coopconsume/group/settings.py",
        "_SESSION_MS_IN_CATALOG if is_named(options.commit_table) else _SESSION_MS",
        "_SESSION_MS",
        (_PROOFS + "test_the_session_is_longer_where_a_look_at_the_log_takes_a_job",),
    ),
    Mutant(
        "silent-connection-is-kept",
        "A slot that hears nothing on an open connection connects again.",
        "coopconsume/worker/channel/client.py",
        "if self._lease.is_lost(now) and now - heard_at > _SILENT * self._spec.lease:",
        "if now < 0:",
        (_SOCKETS + "test_a_slot_that_hears_nothing_on_an_open_connection_connects_again",),
    ),
    Mutant(
        "short-freeze-excuses-repeats",
        "A driver that stood still for no longer than a lease excuses no repeat.",
        "tests/chaos/watcher.py",
        "now - since <= 1e9 * LEASE",
        "now < since",
        (
            "tests/unit/testing/test_watcher.py::test_a_driver_that_stood_still_is_an_excuse_beyond_its_lease_alone",
        ),
    ),
]

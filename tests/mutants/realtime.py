"""Mutants of jobs in real time."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_UNIT = "tests/unit/runtime/test_real_time.py::"
_MODEL = "tests/model/test_real_time_model.py::"
_READER = "coopconsume/worker/realtime/reader.py"
_SLOT = "coopconsume/worker/realtime/slot.py"
_MODE = "coopconsume/runtime/realtime/mode.py"
_RUNS = "coopconsume/runtime/realtime/runs.py"
_CURSOR = "coopconsume/runtime/plan/cursor.py"
_PARTITION = "coopconsume/runtime/plan/partition.py"
_SHARED = _UNIT + "test_slots_share_the_records_and_find_every_hole"
_CACHE = "coopconsume/worker/realtime/record_cache.py"
_VALUES = "coopconsume/worker/realtime/value_reader.py"
_VALUES_MODEL = "tests/model/test_value_reader_model.py::"
_SERVER_MODEL = "tests/model/test_fetch_server_model.py::"
_SERVED = _SERVER_MODEL + "test_each_slot_gets_its_records_once_whatever_becomes_of_the_server"
_MOVES = "tests/model/test_real_time_moves.py::"
_STAY = _MOVES + "test_keys_that_stay_go_on_in_the_same_run_while_others_are_given_up[high]"
_RUNNER = "coopconsume/worker/thread_runner.py"
_QUICK = (
    "tests/unit/worker/test_concurrency.py::"
    "test_handlers_that_were_quick_run_side_by_side_once_they_are_not"
)
_ONE_BY_ONE = (
    "tests/unit/worker/test_concurrency.py::"
    "test_records_that_came_one_by_one_are_followed_by_eight_calls_at_once"
)
_EXTENDS = _UNIT + "test_a_slot_that_reads_on_extends_what_is_in_flight"

_PLAN = "tests/unit/runtime/test_plan_rules.py::"
_WAITS = "tests/unit/runtime/test_waiting.py::"
_IDLE = _WAITS + "test_an_idle_real_time_run_waits_for_new_records"
_RETRY = _WAITS + "test_a_record_that_its_slot_tries_again_waits_as_in_batches"

REALTIME = [
    Mutant(
        "idle-slot-at-work",
        "A real-time slot that has nothing to do leaves its partition drained.",
        _CURSOR,
        "bool(self.dispatched) if self.is_real_time else self.dispatched is not None",
        "self.dispatched is not None",
        (_IDLE,),
    ),
    Mutant(
        "retry-in-flight",
        "A record that waits in its real-time slot for its next attempt is shown as failed.",
        "coopconsume/runtime/plan/blocker.py",
        "if slot is not None and failed is not None and failed.is_between_attempts(now):",
        "if False:",
        (_RETRY,),
    ),
    Mutant(
        "late-attempt-waits",
        "A record whose next attempt is due is in flight, and its slot may be at work.",
        "coopconsume/runtime/plan/waiting_record.py",
        "return self.due > now",
        "return True",
        (_RETRY,),
    ),
    Mutant(
        "retry-is-silence",
        "A real-time slot that waits for the next attempt of a record is not silent.",
        "coopconsume/runtime/dispatch/run.py",
        "attempts_in(partition, slot, now) for partition in own",
        "False for partition in own",
        (_RETRY,),
    ),
    Mutant(
        "long-call-beside-a-retry",
        "A slot with a retry and a long call waits for the call.",
        "coopconsume/runtime/dispatch/run.py",
        "if not self.is_real_time or task.call is not None:",
        "if not self.is_real_time:",
        (_WAITS + "test_a_slot_with_a_retry_and_a_long_call_waits_for_the_call",),
    ),
    Mutant(
        "retry-beside-a-run",
        "A record that waits for a batch while a real-time run lasts has a due time.",
        "coopconsume/runtime/plan/attempts.py",
        "if not cursor.is_at_work or cursor.is_real_time:",
        "if not cursor.is_real_time:",
        (_WAITS + "test_a_record_that_waits_for_a_batch_beside_a_real_time_run_has_its_time",),
    ),
    Mutant(
        "retry-not-pending",
        "A failed record is pending until it is done, also while its slot tries it again.",
        "coopconsume/runtime/plan/supply.py",
        "            for one in self._lanes.failed.all\n",
        "            for one in ()\n",
        (_PLAN + "test_a_record_that_is_tried_again_is_pending_until_it_is_done",),
    ),
    Mutant(
        "stopped-server-of-an-earlier-run",
        "A silent fetch server that an earlier run of the process has started is ended.",
        "coopconsume/worker/realtime/host_link.py",
        "self._server, self._heard_at = known, time.monotonic()",
        "pass",
        (
            "tests/broker/test_fetch_server.py::test_a_server_that_stops_as_its_run_ends_is_ended_by_the_next_run",
        ),
    ),
    Mutant(
        "watch-of-a-quick-handler-never-ends",
        "If a handler call takes long, another thread takes the next record.",
        _RUNNER,
        "self._is_quick and now < alarm and scheduler.running > 0",
        "self._is_quick and scheduler.running > 0",
        (_QUICK,),
    ),
    Mutant(
        "collections-go-through-a-whole-worker",
        "While a real-time slot runs, no collection goes through what its worker had before.",
        _SLOT,
        "        gc.freeze()\n",
        "",
        (_MODEL + "test_no_collection_goes_through_what_a_worker_had_before_its_run",),
    ),
    Mutant(
        "no-thread-after-quick-calls",
        "If there is no thread that could watch a quick handler, one is started.",
        _RUNNER,
        "elif self._scheduler.ready and len(self._threads) < self._most:",
        "elif False:",
        (_ONE_BY_ONE,),
    ),
    Mutant(
        "quick-handler-not-watched",
        "A thread whose handler calls are quick is watched by another one.",
        _RUNNER,
        "is_watched = self._is_quick and self._alarm <= now + QUICK",
        "is_watched = self._is_quick",
        (_QUICK,),
    ),
    Mutant(
        "slot-handles-records-of-others",
        "A real-time slot handles the records of its key ranges alone.",
        _READER,
        "if position.owns(hashed):",
        "if position.ranges:",
        (_SHARED,),
    ),
    Mutant(
        "record-read-twice-handled-twice",
        "A record that a source returns twice is handled once.",
        _READER,
        "if offset != wanted.first:",
        "if offset > wanted.first:",
        (_UNIT + "test_a_record_that_comes_twice_counts_once",),
    ),
    Mutant(
        "end-of-the-log-no-position",
        "What lies below an end that the brokers named was returned, or is a hole.",
        _READER,
        "if end > position.wanted.first or end > position.next:",
        "if end > position.next + 1_000_000:",
        (_SHARED,),
    ),
    Mutant(
        "hole-of-a-real-time-slot-too-long",
        "A hole ends before the next record.",
        _READER,
        "position.wanted.take(0, offset)",
        "position.wanted.take(0, offset + 1)",
        (_SHARED,),
    ),
    Mutant(
        "begun-records-not-reported",
        "The driver knows which records a real-time slot has started: they are no holes.",
        _SLOT,
        "outcome.draft.reading.advance(rows, taken",
        "outcome.draft.reading.advance(rows.slice(0, 0), taken",
        (_MODEL + "test_a_handler_that_hangs_beside_free_ones_ends_no_run",),
    ),
    Mutant(
        "begun-records-not-to-do",
        "What a real-time slot has read is in flight until it is done.",
        _CURSOR,
        "            self.dispatched |= offsets\n            self.todo |= offsets\n",
        "            self.dispatched |= offsets\n",
        (_EXTENDS,),
    ),
    Mutant(
        "position-of-a-lost-slot-not-kept",
        "A lost slot's records are read again from its last report on.",
        _CURSOR,
        "self.position = self.next_position = max(self.position, position)",
        "self.position = max(self.position, position + 1)",
        (_EXTENDS, _UNIT + "test_what_a_lost_slot_had_read_is_to_do_again_and_the_rest_is_new"),
    ),
    Mutant(
        "attempts-in-a-slot-forgotten",
        "The attempts of a record that is tried again in its slot are known if the slot is lost.",
        "coopconsume/runtime/plan/slot_work.py",
        "if failure.offset in cursor.dispatched:",
        "if failure.offset < 0:",
        (_MODEL + "test_a_record_that_is_tried_again_in_its_slot_is_seen_and_keeps_its_attempts",),
    ),
    Mutant(
        "lost-slot-ends-the-run",
        "If a slot of a real-time run ends, the others read on.",
        "coopconsume/runtime/realtime/runs.py",
        "            self._failed(run, [report.slot], why, time.monotonic())\n",
        '            self.end(run, run.active, Ending("a slot has ended", True), 0.0)\n',
        (_MODEL + "test_other_slots_read_on_while_one_gets_a_batch",),
    ),
    Mutant(
        "slots-begin-together",
        "A slot reads by itself although another one is in a batch.",
        _RUNS,
        "for slot, one in why_not.items() if not one]",
        "for slot in why_not if len(why_not) == 2 and not why]",
        (_MODEL + "test_a_slot_reads_by_itself_although_another_one_is_in_a_batch",),
    ),
    Mutant(
        "live-slots-keep-their-cores",
        "Slots that read by themselves end if others get no core for their batches.",
        "coopconsume/runtime/realtime/runs.py",
        "return not all(self._leases.has_met(run.at(task)) for task in tasks)",
        "return False",
        (_MODEL + "test_slots_end_if_another_one_gets_no_core_for_its_batch",),
    ),
    Mutant(
        "key-ranges-wait-for-live-slots",
        "Key ranges that are to be dealt do not wait until the last slot ends its run.",
        _RUNS,
        "if is_undealt and not _with_key_ranges(epoch_state.ours) <= set(live):",
        "if False:",
        (_MOVES + "test_once_a_slot_has_ended_what_is_left_is_shared_before_any_reads_on",),
    ),
    Mutant(
        "ranges-below-the-position-count",
        "Only the ranges above the position of a slot keep it from reading by itself.",
        _MODE,
        "done.clip(cursor.position, last).range_count > _MOST_RANGES",
        "done.range_count > _MOST_RANGES",
        (_UNIT + "test_a_slot_begins_with_few_ranges_above_its_position",),
    ),
    Mutant(
        "epoch-of-the-run-for-later-positions",
        "A position is checked in a leader epoch in which the log reached it.",
        "coopconsume/worker/realtime/log_reach.py",
        "is_reached = known is not None and offset <= known.offset",
        "is_reached = known is not None",
        (
            "tests/unit/worker/test_read_starts.py::test_a_position_has_the_epoch_in_which_it_was_reached",
        ),
    ),
    Mutant(
        "worker-ends-as-its-source-opens",
        "An error with which a source opens does not end the worker of a slot.",
        "coopconsume/worker/realtime/errors.py",
        "    except Exception as error:\n",
        "    except ZeroDivisionError as error:\n",
        (_MODEL + "test_a_source_that_cannot_be_opened_does_not_end_its_worker",),
    ),
    Mutant(
        "run-goes-on-with-a-retry-due",
        "A failed record that no slot holds is tried again by a batch.",
        _MODE,
        "    if any(_is_due(cursor, now)):\n",
        "    if any(_is_due(cursor, now - 1_000.0)):\n",
        (_UNIT + "test_a_failed_record_lets_a_run_begin_until_it_is_due",),
    ),
    Mutant(
        "run-begins-with-gaps",
        "A run begins once there are no gaps that a batch must read.",
        _MODE,
        "    if cursor.todo:\n",
        "    if cursor.todo and cursor.is_real_time:\n",
        (_UNIT + "test_batches_catch_up_before_a_run",),
    ),
    Mutant(
        "slot-that-stopped-reading-not-noticed",
        "A slot that does not read although there are records ends the run.",
        _MODE,
        "now) <= STALLED",
        "now) <= 1_000 * STALLED",
        (_UNIT + "test_a_slot_that_does_not_read_ends_the_run",),
    ),
    Mutant(
        "failed-run-begins-at-once",
        "After a run that failed the next one waits, longer each time.",
        "coopconsume/backoff.py",
        "self.not_before = now + self.pause",
        "self.not_before = now",
        (_MODEL + "test_a_slot_that_fails_at_once_does_not_begin_again_at_once",),
    ),
    Mutant(
        "held-up-slot-keeps-its-records",
        "A slot without a free handler gives its records back.",
        "coopconsume/worker/realtime/slot_reading.py",
        "elif now - self._moved_at > HELD_UP:",
        "elif now - self._moved_at > HELD_UP + 1_000:",
        (_MODEL + "test_a_slot_without_a_free_handler_gives_its_records_back",),
    ),
    Mutant(
        "real-time-slot-ignores-denied-keys",
        "A real-time slot evaluates the filter as Spark does.",
        "coopconsume/filters.py",
        "if self.deny and self.deny.has(key):",
        "if self.deny and self.deny.has(None):",
        (
            _UNIT + "test_a_slot_marks_what_does_not_pass",
            _MODEL + "test_filtered_records_are_done_without_a_handler",
        ),
    ),
    Mutant(
        "drain-of-a-run-loses-what-was-read",
        "A stop that drains handles what real-time slots have read.",
        "coopconsume/runtime/completion.py",
        "            self._dispatcher.drain(epoch_state)\n",
        "            self._dispatcher.stop(epoch_state)\n",
        (_MODEL + "test_a_stop_that_drains_handles_what_slots_have_read",),
    ),
    Mutant(
        "portion-of-other-slots",
        "The fetch server returns the records of the slot's key ranges alone.",
        _CACHE,
        "        return rows.filter(wanted)\n",
        "        return rows\n",
        (_SERVED,),
    ),
    Mutant(
        "portion-read-twice",
        "What a slot has read itself meanwhile is left out of a portion that comes late.",
        _READER,
        "    return [rows.filter(keep)]\n",
        "    return [rows]\n",
        (_SERVER_MODEL + "test_a_late_answer_brings_what_the_slot_has_not_read_meanwhile",),
    ),
    Mutant(
        "evicted-records-left-out",
        "A fetch of an offset that is in memory no more is a miss.",
        _CACHE,
        "if ask.offset < one.start:",
        "if ask.offset < 0:",
        (_SERVER_MODEL + "test_a_slow_slot_does_not_hold_records_beyond_the_limit",),
    ),
    Mutant(
        "cache-without-limit",
        "The fetch server keeps no more than its limit.",
        _CACHE,
        "while self._size > self._limit and",
        "while self._size > 1_000 * self._limit and",
        (_SERVER_MODEL + "test_a_slow_slot_does_not_hold_records_beyond_the_limit",),
    ),
    Mutant(
        "passed-records-stay",
        "Records leave the fetch server once all slots have them.",
        _CACHE,
        "while not one.joining and one.chunks and",
        "while one.joining and one.chunks and",
        (_SERVER_MODEL + "test_what_is_read_at_once_leaves_in_pieces",),
    ),
    Mutant(
        "records-leave-before-slots-catch-up",
        "Records stay in the fetch server while a slot catches up.",
        _CACHE,
        "        one.joining.add(slot)\n",
        "",
        (_SERVER_MODEL + "test_records_stay_while_a_slot_catches_up",),
    ),
    Mutant(
        "fetch-server-reads-without-end",
        "The fetch server pauses if no slot takes what it reads.",
        _CACHE,
        "one.is_full = ahead > (",
        "one.is_full = ahead > 1_000 + 1_000 * (",
        (_SERVER_MODEL + "test_no_more_is_read_than_half_of_the_limit_ahead_of_the_fastest_slot",),
    ),
    Mutant(
        "slot-waits-for-a-lost-server",
        "Without a fetch server a slot reads for itself.",
        "coopconsume/worker/realtime/fetch_state.py",
        "self._ask_from = dict.fromkeys(self._wanted, 0)",
        "self._ask_from = {}",
        (_SERVER_MODEL + "test_without_a_server_a_slot_reads_for_itself",),
    ),
    Mutant(
        "holes-of-a-portion-lost",
        "The fetch server names the offsets at which there is no record.",
        _CACHE,
        "and last >= ask.offset\n",
        "and last < ask.offset\n",
        (_SERVED,),
    ),
    Mutant(
        "values-of-others-passed-on",
        "A slot that reads values by offset stops if a record is not there any more.",
        _VALUES,
        "raise ReadFailed(self._missing(portion, wanted[len(values)]))",
        "break",
        (_VALUES_MODEL + "test_a_record_that_is_gone_ends_the_reading",),
    ),
    Mutant(
        "portion-passed-before-its-values",
        "The position of a slot passes a record once its value is read.",
        _VALUES,
        "following = portion.next if is_all else offsets[count]",
        "following = portion.next",
        (_VALUES_MODEL + "test_portions_come_complete_and_in_order",),
    ),
    Mutant(
        "records-that-a-run-gave-up-counted-as-holes",
        "Offsets of keys that a member has given up are no holes to it.",
        "coopconsume/runtime/plan/partition.py",
        "        self.ledger.is_whole = False\n",
        "        pass\n",
        (_STAY,),
    ),
    Mutant(
        "holes-of-a-partition-unknown-once-part-of-it-is-given-up",
        "The slot with hash 0 reports holes, also while its member has the whole partition.",
        "coopconsume/runtime/realtime/run_job.py",
        "if slot in slots and any(key_range",
        "if not partition.whole and any(key_range",
        (_UNIT + "test_the_slot_with_hash_0_reports_holes_until_it_ends_or_gives_it_up",),
    ),
    Mutant(
        "slots-of-a-run-start-keys-that-leave",
        "A real-time slot starts no record of a key that is given up.",
        "coopconsume/worker/channel/client.py",
        "        if self._reporter is None:\n            return  # It has no records yet.",
        "        if self._reporter is None or (self._reading and kind == Frame.WITHHOLD):\n"
        "            return",
        (_STAY,),
    ),
    Mutant(
        "queued-record-of-a-given-up-key-started",
        "A record that was read before its key was given up is not started any more.",
        "coopconsume/worker/key_scheduler.py",
        "            if self._blocked.is_withheld(row.part, row.key_hash):\n                for",
        "            if False:\n                for",
        (_MOVES + "test_queued_records_of_keys_that_are_given_up_are_not_started",),
    ),
    Mutant(
        "rows-of-given-up-keys-begun",
        "What comes of given-up keys is not the slot's own.",
        _SLOT,
        "rows = outcome.lanes.without_withheld(rows)",
        "rows = rows.slice(0)",
        (_MOVES + "test_records_of_keys_that_were_given_up_are_read_as_those_of_other_slots",),
    ),
    Mutant(
        "filtered-records-of-given-up-keys-settled",
        "A record that does not pass the filter counts as done for the owner of its key alone.",
        "coopconsume/worker/outcome.py",
        "            dropped = self.lanes.without_withheld(dropped)\n",
        "",
        (_MOVES + "test_records_that_do_not_pass_the_filter_are_their_next_owners",),
    ),
    Mutant(
        "given-up-records-stay-in-flight",
        "A record of a given-up key that was not started is nothing to do any more.",
        "coopconsume/runtime/plan/slot_work.py",
        "    cursor.forget(OffsetRanges.from_offsets(gone))\n",
        "    pass\n",
        (_UNIT + "test_what_a_slot_has_read_of_keys_that_are_given_up_is_forgotten",),
    ),
    Mutant(
        "retry-of-a-key-that-leaves-ends-the-run",
        "A failed record of a key that is about to be given up ends no run.",
        _MODE,
        "for w in lowest if not leaving.has(w.key_hash)]",
        "for w in lowest]",
        (_UNIT + "test_what_a_slot_has_read_of_keys_that_are_given_up_is_forgotten",),
    ),
    Mutant(
        "run-goes-on-without-gained-key-ranges",
        "Key ranges that come end a run: batches read what is left of them.",
        _MODE,
        "if any(gain.until <= now for gain in partition.dealer.gains):",
        "if any(gain.until < 0 for gain in partition.dealer.gains):",
        (_UNIT + "test_key_ranges_that_come_end_the_run_once_they_may_start",),
    ),
    Mutant(
        "stalled-slot-begins-again-at-once",
        "A slot that does not read although there are records begins again after a pause.",
        _MODE,
        "Ending(stalled, is_failure=True)",
        "Ending(stalled)",
        ("tests/unit/runtime/test_real_time.py::test_a_slot_that_does_not_read_ends_the_run",),
    ),
    Mutant(
        "run-without-key-ranges-goes-on",
        "A run ends once its member has given up all key ranges.",
        "coopconsume/runtime/realtime/runs.py",
        "        if not epoch_state.ours:\n",
        "        if epoch_state.ours is None:\n",
        (_MOVES + "test_a_run_ends_once_all_key_ranges_are_given_up",),
    ),
    Mutant(
        "slots-of-a-run-asked-for-their-keys",
        "The slots of a run keep their key ranges until it ends.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "        if epoch_state.undealt and not self._live(epoch_state, now):\n",
        "        if epoch_state.undealt:\n",
        (_MOVES + "test_the_next_run_shares_what_is_left_among_all_slots",),
    ),
]

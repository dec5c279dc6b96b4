"""Mutants of retries, dead letters and outputs."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HEADERS = "tests/unit/worker/test_retry_headers.py::"
_CONCURRENCY = "tests/unit/worker/test_concurrency.py::"
_LANES = "tests/model/test_lanes_model.py::test_any_slot_keeps_the_order_and_settles_every_row"
_HISTOGRAM = "tests/unit/worker/test_histogram.py::"
_LATENCY = "tests/unit/runtime/test_latency.py::"
_LOOP = "tests/model/test_loop_model.py::test_any_run_keeps_the_order_and_settles_every_record"
_PLAN = "tests/unit/runtime/test_plan_rules.py::"
_OUTPUTS = "tests/model/test_job_outputs.py::"
_REPLAY = "tests/model/test_replay.py::"
_POLLING = "tests/model/test_polling_model.py::"
_PUBLISHING = "tests/unit/sinks/test_publishing.py::"
_COMMITTER = "tests/unit/runtime/test_committer.py::"
_DELIVERIES = "tests/model/test_deliveries_model.py::"

RETRIES = [
    Mutant(
        "parked-without-its-note",
        "A record that is parked is pending once its dead letter is written.",
        "coopconsume/runtime/commit/log_calls.py",
        "            reported.setdefault(tp, []).extend(records)",
        "            pass",
        (_OUTPUTS + "test_a_parked_record_is_noted_with_its_dead_letter",),
    ),
    Mutant(
        "refusal-is-an-outage",
        "A destination that refuses a record is there for others.",
        "coopconsume/runtime/commit/deliveries.py",
        "            self._answered()\n            halves",
        "            halves",
        (
            "tests/model/test_deliveries_model.py::test_a_destination_that_refuses_a_record_is_there",
        ),
    ),
    Mutant(
        "running-call-counted",
        "A handler call is counted once it has ended.",
        "coopconsume/worker/slot.py",
        "self._count_calls(starts, self.started[blocks.stop : blocks.stop + 1])",
        "self._count_calls(pa.array(self.started[blocks.start : blocks.stop + 1]), self.started[blocks.stop : blocks.stop + 1])",
        (_HISTOGRAM + "test_calls_of_a_plain_handler_last_until_the_next_one",),
    ),
    Mutant(
        "block-counted-as-one-call",
        "Each call of a block that is timed as a whole counts.",
        "coopconsume/worker/slot.py",
        "calls.counts[0] += (self._block - 1) * len(begun)",
        "pass",
        (_HISTOGRAM + "test_calls_that_take_microseconds_are_timed_in_blocks",),
    ),
    Mutant(
        "slow-calls-timed-in-blocks",
        "Only calls that take microseconds are timed in blocks.",
        "coopconsume/worker/slot.py",
        "time.time() - self.started[0] < rows * _FAST",
        "True",
        (_HISTOGRAM + "test_calls_that_take_microseconds_are_timed_in_blocks",),
    ),
    Mutant(
        "calls-in-two-reports",
        "A handler call is in one report.",
        "coopconsume/worker/outcome.py",
        "calls, self.report.stats.calls = self.report.stats.calls, Histogram()",
        "calls = self.report.stats.calls",
        (_HISTOGRAM + "test_calls_of_a_plain_handler_last_until_the_next_one",),
    ),
    Mutant(
        "concurrent-calls-not-timed",
        "Calls that run side by side are timed, too.",
        "coopconsume/worker/key_scheduler.py",
        "self._outcome.report.stats.calls.add_all(pa.array(self._calls))",
        "pass",
        (_HISTOGRAM + "test_a_slot_counts_the_time_of_each_handler_call",),
    ),
    Mutant(
        "limit-of-failed-records-alone",
        "The limit on pending records counts those that wait behind them.",
        "coopconsume/runtime/plan/slot_work.py",
        "self._supply.held_back >= limits.max_pending",
        "self._supply.pending >= limits.max_pending",
        (
            "tests/unit/runtime/test_plan_rules.py::test_pending_records_are_those_of_the_commit_log_and_the_limit_counts_what_waits_behind",
        ),
    ),
    Mutant(
        "added-headers-not-kept",
        "Headers that a handler adds are those of later attempts, too.",
        "coopconsume/worker/outcome.py",
        "            verdict.headers,\n        )\n",
        "            (),\n        )\n",
        (_HEADERS + "test_the_next_attempt_sees_the_headers_of_all_earlier_ones",),
    ),
    Mutant(
        "added-headers-unbounded",
        "Headers that several attempts add are limited together.",
        "coopconsume/worker/handler_answers.py",
        "added = checked_headers(with_added(added, checked_headers(error.headers)))",
        "added = with_added(added, checked_headers(error.headers))",
        (_HEADERS + "test_no_more_than_the_limit_is_kept_of_all_attempts_together",),
    ),
    Mutant(
        "own-class-of-added-headers",
        "What a handler gives to the driver has no class of the handler's.",
        "coopconsume/record.py",
        'return plain, None if value is None else b"".join((value,))',
        "return name, value",
        (_HEADERS + "test_added_headers_replace_those_of_their_names_and_keep_their_order",),
    ),
    Mutant(
        "replayed-without-its-headers",
        "A parked record that is replayed keeps the headers that were added.",
        "coopconsume/runtime/plan/failed_records.py",
        "self._last = {o: one for o, one in self._last.items() if o not in offsets}",
        "self._last = {o: one for o, one in self._last.items() if o in self.attempts}",
        (_PLAN + "test_headers_that_were_added_to_a_record_go_with_its_next_attempt",),
    ),
    Mutant(
        "headers-of-the-first-row-alone",
        "The commit log keeps added headers in all rows of an event.",
        "commits/rows.py",
        "        detail[_HEADERS] = headers\n",
        "        detail |= {_HEADERS: headers} if number == 0 else {}\n",
        (
            "tests/unit/commits/test_commit_store.py::test_headers_of_pending_records_live_in_the_log",
        ),
    ),
    Mutant(
        "polled-without-its-headers",
        "Polling keeps the headers that were added to a record.",
        "coopconsume/runtime/poll/retry_buffer.py",
        "self._add(replace(record))",
        "self._add(replace(record, headers=()))",
        (
            "tests/unit/runtime/test_retry_buffer.py::test_polled_records_come_in_the_order_of_their_keys_until_done",
        ),
    ),
    Mutant(
        "texts-in-the-trace",
        "A trace contains no texts of users.",
        "coopconsume/runtime/trace.py",
        "found = value if name in _NAMES else bool(value)",
        "found = value",
        (_REPLAY + "test_a_trace_has_no_keys_values_or_texts_and_only_its_owner_reads_it",),
    ),
    Mutant(
        "events-not-traced",
        "A trace contains each event that the loop handles.",
        "coopconsume/runtime/loop.py",
        "        self._trace.write(event)\n        match event:",
        "        match event:",
        (_REPLAY + "test_a_failing_job_decides_the_same_when_it_is_replayed",),
    ),
    Mutant(
        "due-ignored",
        "A failed record starts again when it is due, not before.",
        "coopconsume/runtime/plan/cursor.py",
        "while waiting is not None and waiting.due <= now:",
        "while waiting is not None:",
        (_PLAN + "test_a_failed_record_waits_until_it_is_due_and_its_key_with_it",),
    ),
    Mutant(
        "one-attempt-too-many",
        "A record is given up with its last attempt.",
        "coopconsume/record.py",
        "attempt >= self.max_attempts",
        "attempt > self.max_attempts",
        (
            "tests/unit/worker/test_concurrency.py::test_max_attempts_hold_for_every_kind_of_failure",
        ),
    ),
    Mutant(
        "attempt-not-counted",
        "Each failure counts as an attempt.",
        "coopconsume/runtime/plan/failed_records.py",
        "self.attempts[record.offset] = record.attempts",
        "self.attempts[record.offset] = 0",
        (_LOOP,),
    ),
    Mutant(
        "second-run-handles",
        "A slot that may still run elsewhere is not dead.",
        "coopconsume/worker/slot.py",
        "if words is None:\n            return SlotReport(batch=spec.batch, slot=slot, end=SlotEnd(unknown=True))",
        "if words is None:\n            return SlotReport(batch=spec.batch, slot=slot)",
        ("tests/unit/worker/test_crashes.py::test_without_a_box_nothing_is_known",),
    ),
    Mutant(
        "jitter-subtracted",
        "A record waits at least for its backoff.",
        "coopconsume/record.py",
        "(1 + self.jitter * random.random())",
        "(1 - self.jitter * random.random())",
        ("tests/unit/worker/test_odd_answers.py::test_jitter_is_added_and_never_subtracted",),
    ),
    Mutant(
        "due-times-trusted",
        "A due time that another host wrote is never waited for longer than was asked for.",
        "commits/model.py",
        "(left if self.delay_ms is None else min(left, self.delay_ms))",
        "left",
        (
            "tests/unit/test_clocks.py::test_a_wait_read_by_another_host_is_never_longer_than_asked_for",
        ),
    ),
    Mutant(
        "lost-answer-ends-the-job",
        "A call of the commit table is repeated while the table does not answer.",
        "coopconsume/group/repeating.py",
        "if over.is_set() or took + pause > limit:",
        "if True:",
        ("tests/unit/group/test_repeating.py::test_the_first_answer_is_taken",),
    ),
]

OUTPUTS = [
    Mutant(
        "a-topic-that-is-created-must-exist",
        "A job starts without the topic that `deadLetterPartitions` creates.",
        "coopconsume/sinks/base.py",
        "(None if options.dead_letter_partitions else dead_letter, output)",
        "(dead_letter, output)",
        ("tests/unit/sinks/test_sinks.py::test_topics_that_a_job_creates_need_not_exist",),
    ),
    Mutant(
        "commit-before-letter",
        "Dead letters and output rows are written before the commit that they count with.",
        "coopconsume/runtime/commit/outbox.py",
        "write(self._job_spec, self._assignment, parcel, commit_id)",
        "self._assignment.commit(parcel.offsets, commit_id=commit_id); write(self._job_spec, self._assignment, parcel, commit_id)",
        (
            _OUTPUTS + "test_a_dead_letter_is_there_before_its_record_counts_as_done",
            _OUTPUTS + "test_an_output_row_is_there_before_its_record_counts_as_done",
        ),
    ),
    Mutant(
        "commit-waits-for-destination",
        "A destination that does not answer stops no commit.",
        "coopconsume/runtime/commit/committer.py",
        "linger or self.outbox.is_young",
        "linger or self.outbox.has_any",
        (_OUTPUTS + "test_a_destination_that_does_not_answer_stops_no_commit",),
    ),
    Mutant(
        "undelivered-key-goes-on",
        "The key of a record whose letter or rows are not written waits for that.",
        "coopconsume/runtime/plan/lanes.py",
        "        self.wait(self.failed.add(record))\n",
        "        self.failed.add(record)\n",
        (
            _DELIVERIES + "test_a_lane_waits_for_all_its_rows_and_then_goes_on",
            _OUTPUTS + "test_a_destination_that_does_not_answer_stops_no_commit",
        ),
    ),
    Mutant(
        "undelivered-is-committed",
        "A record is committed with its letter or rows, never before.",
        "coopconsume/runtime/plan/ledger.py",
        "self.undelivered |= offsets",
        "self.undelivered |= OffsetRanges()",
        (_DELIVERIES + "test_a_lane_waits_for_all_its_rows_and_then_goes_on",),
    ),
    Mutant(
        "refused-holds-others",
        "A record that a destination never takes does not hold back the records beside it.",
        "coopconsume/runtime/commit/deliveries.py",
        "if len(halves) > 1:",
        "if len(halves) > 999:",
        (
            _DELIVERIES + "test_only_what_is_never_taken_stays",
            _OUTPUTS + "test_what_is_never_taken_is_parked_and_ends_a_job_that_is_to_end",
        ),
    ),
    Mutant(
        "publishing-trouble-ends-the-job",
        "An error of publishing is one of its partition alone, and passes.",
        "coopconsume/sinks/publishing.py",
        "except _PASSING as error:",
        "except ZeroDivisionError as error:",
        (
            _PUBLISHING + "test_a_partition_in_trouble_is_tried_again_and_holds_no_other_back",
            _PUBLISHING + "test_a_missing_right_is_an_error_of_its_partition_alone",
        ),
    ),
    Mutant(
        "publishing-without-pauses",
        "A partition whose outputs cannot be published is tried again after a pause.",
        "coopconsume/sinks/publishing.py",
        "if trouble is not None and time.monotonic() < trouble.backoff.not_before:",
        "if False:",
        (_PUBLISHING + "test_a_partition_in_trouble_is_tried_again_and_holds_no_other_back",),
    ),
    Mutant(
        "publishing-blocks-commits",
        "Outputs are published beside the commits.",
        "coopconsume/runtime/commit/committer.py",
        "if self.is_busy or self._looks_at_decisions():",
        "if self.is_busy or self._mirror.is_busy or self._looks_at_decisions():",
        (_COMMITTER + "test_commits_go_on_while_a_topic_does_not_take_outputs",),
    ),
    Mutant(
        "end-waits-for-publishing",
        "The end of a job does not wait for a topic that does not take outputs.",
        "coopconsume/runtime/commit/committer.py",
        "moves = self.outbox.is_moving or primary.is_publishing",
        "moves = self.outbox.is_moving or primary.has_unpublished",
        (_COMMITTER + "test_commits_go_on_while_a_topic_does_not_take_outputs",),
    ),
    Mutant(
        "end-leaves-what-is-published",
        "A job waits for outputs that are about to be published.",
        "coopconsume/runtime/commit/committer.py",
        "moves = self.outbox.is_moving or primary.is_publishing",
        "moves = self.outbox.is_moving",
        (_COMMITTER + "test_all_is_committed_once_it_is_published",),
    ),
    Mutant(
        "unpublished-outputs-not-bounded",
        "Outputs that their topic does not take count for maxOutputsWaiting.",
        "coopconsume/runtime/plan/ledger.py",
        "behind = self.stable - self.unpublished[0] if self.unpublished else 0",
        "behind = 0",
        (
            "tests/model/test_limits_model.py::test_outputs_that_their_topic_does_not_take_keep_news_away",
        ),
    ),
    Mutant(
        "reject-blocks-other-calls",
        "Calls of other threads go on while a polling member writes dead letters.",
        "coopconsume/runtime/poll/poller.py",
        "        with self.session.in_use():\n            writer.write(",
        "        with self._calls:\n            writer.write(",
        (
            _POLLING
            + "test_while_dead_letters_wait_for_their_place_others_commit_and_the_call_ends",
        ),
    ),
    Mutant(
        "rejected-after-another-answer",
        "A record that was answered for while its dead letter was written is not given up.",
        "coopconsume/runtime/poll/answers.py",
        "done = session.check_open(assignment, named)",
        "done = {tp: OffsetRanges.from_offsets(of) for tp, of in named.items()}",
        (_POLLING + "test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost",),
    ),
    Mutant(
        "abandoned-letter-written-later",
        "A dead letter that nobody waits for any more is not written after an earlier one.",
        "coopconsume/runtime/poll/letter_writer.py",
        "        finally:\n            answer.cancel()\n",
        "        finally:\n            pass\n",
        (
            _POLLING
            + "test_while_dead_letters_wait_for_their_place_others_commit_and_the_call_ends",
        ),
    ),
    Mutant(
        "purgatory-by-the-clock",
        "Of two commits of a record the later one is published, whatever clocks say.",
        "coopconsume/sinks/purgatory.py",
        "self._last = max(int(time.time() * 1_000_000), self._last + 1)",
        "self._last = int(time.time() * 1_000_000)",
        (_PUBLISHING + "test_the_newest_rows_are_taken_whatever_clocks_say",),
    ),
    Mutant(
        "purgatory-knows-its-own-rows-alone",
        "A new owner's rows are newer than those of earlier owners.",
        "coopconsume/sinks/purgatory.py",
        "self._last = max(self._last, self._newest_time())",
        "self._last = 0",
        (_PUBLISHING + "test_the_newest_rows_are_taken_whatever_clocks_say",),
    ),
    Mutant(
        "conflict-fails-merges",
        "A merge that conflicts with another one is repeated.",
        "commits/conflicts.py",
        "for conflicts in range(1, MOST_TRIES):",
        "for conflicts in range(1, 1):",
        (
            "tests/unit/sinks/test_sinks.py::test_a_merge_that_conflicts_with_another_one_is_repeated",
        ),
    ),
    Mutant(
        "uri-shows-secrets",
        "Errors hide the secrets of URIs.",
        "coopconsume/errors/base.py",
        "super().__setattr__(name, hidden_in(value))",
        "super().__setattr__(name, value)",
        ("tests/unit/kafka/test_secrets.py::test_no_error_shows_a_secret",),
    ),
    Mutant(
        "uncounted-row-read",
        "An output row counts only if the commit log counts its commit.",
        "coopconsume/sinks/reading.py",
        "alive = [commit for commit in written if any(commit in one for one in counted)]",
        "alive = [commit for commit in written]",
        ("tests/unit/sinks/test_sinks.py::test_appended_rows_count_with_their_commit",),
    ),
    Mutant(
        "refused-part-read",
        "A row does not count in a partition in which its commit was refused.",
        "coopconsume/sinks/reading.py",
        "for at in sorted(parts))",
        "for at in ())",
        ("tests/unit/sinks/test_sinks.py::test_appended_rows_count_with_their_commit",),
    ),
]

DENIED = [
    Mutant(
        "denied-is-an-outage",
        "A destination that denies a right is not tried again and again.",
        "coopconsume/backoff.py",
        "self.longest if is_denied else pause",
        "pause",
        (_DELIVERIES + "test_only_what_is_never_taken_stays",),
    ),
    Mutant(
        "denied-is-reported-each-time",
        "A missing right at a destination is reported once.",
        "coopconsume/runtime/commit/outbox.py",
        "elif self._denied.get(deliveries.what) != text:",
        "else:",
        (_OUTPUTS + "test_a_missing_right_is_reported_once_and_holds_back_its_own_records",),
    ),
    Mutant(
        "denied-keeps-a-job-that-is-to-end",
        "A job that is to end gives up a destination that denies a right.",
        "coopconsume/backoff.py",
        "return self._is_denied or (",
        "return (",
        (_OUTPUTS + "test_a_missing_right_ends_a_job_that_is_to_end",),
    ),
    Mutant(
        "reader-woken-for-each-row",
        "A reader that waits for space in a slot's queue is not woken for each row.",
        "coopconsume/worker/key_scheduler.py",
        "return has_left or lanes.ready < _FEW_ROWS or self._pace is not None",
        "return True",
        (_CONCURRENCY + "test_a_reader_that_waits_for_space_is_not_woken_for_each_row",),
    ),
    Mutant(
        "reader-not-woken-where-few-may-start",
        "If one key has most rows of a full queue, each one that leaves makes space for others.",
        "coopconsume/worker/key_scheduler.py",
        "has_left or lanes.ready < _FEW_ROWS or",
        "has_left or",
        (
            _CONCURRENCY + "test_a_full_queue_takes_a_row_at_once_if_others_cannot_start",
            _LANES,
        ),
    ),
    Mutant(
        "reader-not-woken-where-retries-wait",
        "Retries that wait in a full queue make space for other rows.",
        "coopconsume/worker/key_scheduler.py",
        "return bool(self._retries)",
        "return False",
        (
            _CONCURRENCY + "test_a_full_queue_takes_a_row_at_once_if_others_cannot_start",
            _LANES,
        ),
    ),
    Mutant(
        "reader-not-woken-where-a-rate-holds-rows-back",
        "Rows that may start take the places of those that have left, though a rate holds back all others.",
        "coopconsume/worker/key_scheduler.py",
        "lanes.ready < _FEW_ROWS or self._pace is not None",
        "lanes.ready < _FEW_ROWS",
        (
            _CONCURRENCY + "test_a_full_queue_takes_a_row_at_once_if_a_rate_holds_back_the_others",
            _LANES,
        ),
    ),
    Mutant(
        "reader-not-woken-where-rows-leave-unstarted",
        "Rows of keys that leave make space for other rows once they are left to their next owner.",
        "coopconsume/worker/async_runner.py",
        "if scheduler.wants_rows:",
        "if found is not None and scheduler.wants_rows:",
        (_CONCURRENCY + "test_a_full_queue_takes_a_row_at_once_if_others_cannot_start",),
    ),
    Mutant(
        "retries-count-as-starts",
        "The time to the handler counts once for a record: at its first attempt.",
        "coopconsume/worker/key_scheduler.py",
        "if attempt == 1 and timestamp >= 0:",
        "if timestamp >= 0:",
        (_HISTOGRAM + "test_a_slot_counts_the_starts_of_first_attempts",),
    ),
    Mutant(
        "blocked-rows-count-as-starts",
        "A record that waits behind an earlier one of its key has not started.",
        "coopconsume/worker/slot.py",
        "            self.started[number // self._block] = math.nan\n",
        "            pass\n",
        (_HISTOGRAM + "test_a_slot_counts_the_starts_of_first_attempts",),
    ),
    Mutant(
        "held-back-records-count-early",
        "The time to the commit of a record ends with the commit that has its offset.",
        "coopconsume/runtime/status/latency.py",
        "rows[:, inside & (rows[1] >= 0)]",
        "rows[:, rows[1] >= 0]",
        (_LATENCY + "test_a_record_counts_once_when_it_is_committed",),
    ),
    Mutant(
        "samples-count-once",
        "Of a report with many records every n-th counts n times.",
        "coopconsume/runtime/status/latency.py",
        "counts = np.full(len(times), every)",
        "counts = np.full(len(times), 1)",
        (_LATENCY + "test_of_a_large_report_each_nth_record_counts_n_times",),
    ),
    Mutant(
        "lost-records-count-twice",
        "What a member does not commit any more is not counted by its later commits.",
        "coopconsume/runtime/status/latency.py",
        "        self._open = kept",
        "        self._open |= kept",
        (_LATENCY + "test_an_epoch_keeps_what_it_takes_along",),
    ),
    Mutant(
        "buckets-do-not-add-up",
        "A bucket of Prometheus counts all times up to its bound.",
        "coopconsume/monitoring/prometheus.py",
        "zip(bounds, accumulate(counted.counts), strict=True)",
        "zip(bounds, counted.counts, strict=True)",
        ("tests/unit/monitoring/test_monitoring.py::test_prometheus_reports_the_same_numbers",),
    ),
]

"""Mutants of assignors, clocks, the history checker, and what a user is shown."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHECKER = "tests/model/test_checker.py::test_each_fault_is_found_with_its_witness"
_JOB = "tests/model/test_job_model.py::"
_SLOTS = "tests/model/test_job_slots.py::"
_CLOCKS = "tests/unit/test_clocks.py::"
_INTERRUPTS = "tests/unit/test_interrupts.py::"

ASSIGNORS = [
    Mutant(
        "ranges-overlap",
        "No two members have the same key hash.",
        "assignors/ranges.py",
        "KeyRange(a, b - 1) for a, b in pairwise(cuts)",
        "KeyRange(a, min(b, self.last)) for a, b in pairwise(cuts)",
        ("tests/unit/assignors/test_ranges.py::test_any_range_is_cut_evenly",),
    ),
    Mutant(
        "ranges-leave-a-hole",
        "Every key hash has an owner.",
        "assignors/sharing.py",
        "FULL.size * end // total - 1)",
        "FULL.size * end // total - 1 - (end < total))",
        ("tests/unit/assignors/test_assignors.py::test_kip_x_round_robin",),
    ),
    Mutant(
        "parts-without-consent",
        "Only members that allow it get a part of a partition.",
        "assignors/sharing.py",
        "[member for member in members if member.allow_key_share]",
        "list(members)",
        (
            "tests/unit/assignors/test_assignors.py::test_members_that_did_not_opt_in_get_whole_partitions",
        ),
    ),
    Mutant(
        "conflict-not-seen",
        "A member refuses an assignment with a hole or an overlap.",
        "coopconsume/group/core.py",
        "if found.overlaps or (found.holes and (topic, partition) not in held):",
        "if found.holes and found.overlaps:",
        (
            "tests/unit/group/test_group_rules.py::test_an_assignment_with_a_hole_or_an_overlap_is_refused",
        ),
    ),
]

CLOCKS = [
    Mutant(
        "in-doubt-by-wall-clock",
        "What is in doubt waits by the monotonic clock.",
        "coopconsume/group/epoch_assignment.py",
        "now = time.monotonic()\n        found = [",
        "now = time.time()\n        found = [",
        (_CLOCKS + "test_what_is_in_doubt_waits_its_time_by_the_monotonic_clock",),
    ),
    Mutant(
        "lost-slot-by-wall-clock",
        "A lost slot waits by the monotonic clock.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "self._lost(running, slot, time.monotonic())",
        "self._lost(running, slot, time.time())",
        (_CLOCKS + "test_the_wall_clock_is_read_only_where_it_must_be",),
    ),
    Mutant(
        "longer-than-asked-for",
        "No reader waits longer for a failed record than its writer asked for.",
        "commits/model.py",
        "min(left, self.delay_ms)",
        "left",
        (_CLOCKS + "test_a_wait_read_by_another_host_is_never_longer_than_asked_for",),
    ),
    Mutant(
        "snapshot-forgets-waits",
        "A snapshot keeps how long a failed record was to wait.",
        "commits/snapshot.py",
        '"delays": _delays_to_plain(group.partitions),',
        '"delays": [],',
        (_CLOCKS + "test_a_due_time_holds_although_its_writer_had_another_clock",),
    ),
]

CHECKER = [
    Mutant(
        "any-disturbance-excuses",
        "A repeat is excused only if the process of its own earlier call was disturbed.",
        "coopconsume/testing/history/rules.py",
        "mine = np.isin(self._pid[earlier], [*one.pids])",
        "mine = np.ones(len(earlier), np.bool_)",
        (_CHECKER,),
    ),
    Mutant(
        "committed-is-excused",
        "Nothing excuses the repeat of a record that was committed before.",
        "coopconsume/testing/history/rules.py",
        "committed_before |= self._committed_at[record] <= self._start[call]",
        "pass",
        (_CHECKER,),
    ),
    Mutant(
        "deletion-excuses-what-was-counted",
        "A deletion does not excuse a record that was counted as done before it without a call.",
        "coopconsume/testing/history/rules.py",
        "~handled & (self._committed_at > self._deleted_at)",
        "~handled",
        (_CHECKER,),
    ),
    Mutant(
        "deletion-excuses-its-neighbour",
        "A deletion excuses the records below its offset alone.",
        "coopconsume/testing/history/rules.py",
        "[(0, below - 1)]",
        "[(0, below)]",
        (_CHECKER,),
    ),
    Mutant(
        "deleted-record-not-waited-for",
        "The successors of a deleted record wait for the end of its call.",
        "coopconsume/testing/history/rules.py",
        "np.maximum.at(gone, self._rec[is_deleted], self._end[is_deleted])",
        "pass",
        (_CHECKER,),
    ),
]

SHOWN = [
    Mutant(
        "key-commands-a-terminal",
        "What a record brings is shown without control characters.",
        "coopconsume/admin/cells.py",
        "    if text.isprintable():",
        "    if text:",
        (
            "tests/unit/admin/test_overview.py::test_values_in_tables",
            "tests/unit/admin/test_overview.py::test_a_key_cannot_command_a_terminal",
            "tests/unit/test_cli.py::test_what_a_record_brings_cannot_command_a_terminal",
        ),
    ),
    Mutant(
        "times-without-zone",
        "A time in a table has its zone.",
        "coopconsume/admin/cells.py",
        "%H:%M:%S %Z}",
        "%H:%M:%S}",
        ("tests/unit/admin/test_overview.py::test_values_in_tables",),
    ),
    Mutant(
        "group-id-warned-of-at-each-read",
        "Spark's warning of kafka.group.id does not come with each read of a consumer.",
        "coopconsume/consumer.py",
        "        quiet_group_warning(self.spark)\n",
        "",
        (
            "tests/spark/test_quiet_source.py::test_the_warning_of_the_group_id_comes_only_where_the_user_has_asked_for_it",
        ),
    ),
    Mutant(
        "every-failure-logged",
        "Of each type of error at most one line is logged in ten seconds.",
        "coopconsume/runtime/settle/failure_log.py",
        "if now - kind.logged_at < _EVERY:",
        "if now < kind.logged_at:",
        (
            "tests/unit/runtime/test_failure_log.py::test_one_type_of_error_has_a_line_in_ten_seconds",
        ),
    ),
    Mutant(
        "youngest-blocker-shown",
        "The status line shows the blocker that blocks for the longest time.",
        "coopconsume/cli/run.py",
        "held_by(max(blocked",
        "held_by(min(blocked",
        ("tests/unit/runtime/test_failure_log.py::test_the_status_line_shows_the_oldest_blocker",),
    ),
    Mutant(
        "quiet-job-without-a-reason",
        "A job that commits nothing says what it waits for.",
        "coopconsume/runtime/loop.py",
        "if is_paused or self._meter.is_quiet:",
        "if is_paused:",
        (_SLOTS + "test_a_batch_that_has_not_begun_is_ended_by_a_pause_and_is_in_nobodys_way",),
    ),
    Mutant(
        "poll-waits-for-one-record-of-a-key",
        "A key comes again when the last of its records is due.",
        "coopconsume/runtime/poll/retry_buffer.py",
        "due[record.key_hash] = max(due.get(record.key_hash, 0.0), record.due)",
        "due.setdefault(record.key_hash, record.due)",
        (
            "tests/unit/runtime/test_waiting.py::test_a_poll_waits_for_the_key_that_comes_again_first",
        ),
    ),
    Mutant(
        "answers-not-waited-for",
        "Between two polls the status says that a hand-over waits for answers.",
        "coopconsume/runtime/poll/session.py",
        "self._is_handing_over and is_out and not self._is_polling",
        "False",
        ("tests/unit/runtime/test_waiting.py::test_what_polling_knows_is_counted",),
    ),
    Mutant(
        "holes-behind-the-end",
        "A commit of polled records looks for holes up to the end of a log only.",
        "coopconsume/runtime/poll/poller.py",
        "position = min(place.position, assignment.logs.seen_end(tp))",
        "position = place.position",
        (
            "tests/model/test_polling_model.py::test_a_commit_is_answered_whatever_becomes_of_the_look_for_holes",
        ),
    ),
    Mutant(
        "start-is-no-call",
        "While a query starts, maxPollInterval does not count.",
        "coopconsume/query.py",
        "with self._consumer.in_use():",
        "if self._consumer.in_use():",
        ("tests/spark/test_poll.py::test_a_query_that_takes_long_to_start_keeps_its_group",),
    ),
    Mutant(
        "query-waits-for-itself",
        "A listener of a query cannot wait for it.",
        "coopconsume/query.py",
        "if self.is_in_its_thread:",
        "if self._job.error is not None:",
        ("tests/unit/runtime/test_waiting.py::test_a_query_does_not_wait_for_itself",),
    ),
    Mutant(
        "recreated-topic-ends-a-job-that-begins",
        "A job that begins takes up a topic that was created again, if nothing of the old is lost.",
        "coopconsume/runtime/loop.py",
        "return lossy if assignment is None else assignment.logs.can_recover_from(error)",
        "return lossy",
        (_JOB + "test_a_topic_that_is_created_again_before_a_job_begins_is_taken_up_alike",),
    ),
    Mutant(
        "poll-ends-with-an-outage",
        "A poll goes on once the brokers or the commit table are back.",
        "coopconsume/runtime/poll/poller.py",
        "if not isinstance(error, BrokerUnreachable | CommitLogUnavailable):",
        "if not isinstance(error, CommitLogUnavailable):",
        ("tests/model/test_polling_model.py::test_a_poll_goes_on_once_what_was_away_is_back",),
    ),
    Mutant(
        "wakeup-stays",
        "A wakeup ends one poll.",
        "coopconsume/runtime/poll/session.py",
        "is_woken, self._is_woken = self._is_woken, False",
        "is_woken = self._is_woken",
        ("tests/unit/runtime/test_polling.py::test_a_wakeup_ends_one_poll",),
    ),
    Mutant(
        "deleted-blocker-looks-open",
        "A blocker that retention has deleted is shown as deleted.",
        "coopconsume/admin/offsets/status.py",
        "if self.log_start is not None and offset < self.log_start:",
        "if self.log_start is None:",
        (
            "tests/unit/admin/test_offset_moves.py::test_gaps_have_the_age_of_the_first_commit_above_them",
            "tests/unit/admin/test_overview.py::test_a_blocker_is_reported_and_drawn",
        ),
    ),
    Mutant(
        "metric-renamed",
        "The dashboard and the alert rules use metrics that the exporter emits.",
        "coopconsume/monitoring/prometheus.py",
        'return f"{name}_seconds" if number.unit == "s" else name',
        "return name",
        ("tests/unit/monitoring/test_monitoring.py::test_prometheus_reports_the_same_numbers",),
    ),
    Mutant(
        "first-missing-option-alone",
        "All missing options are named at once.",
        "coopconsume/options.py",
        "raise MissingOption(*missing)",
        "raise MissingOption(missing[0])",
        ("tests/unit/test_cli.py::test_all_missing_options_are_named_at_once",),
    ),
    Mutant(
        "plain-error-among-json",
        "With JSON logs the error that ends the command is JSON, too.",
        "coopconsume/cli/exit_codes.py",
        'as_json=kwargs.get("log_format") == "json"',
        "as_json=False",
        ("tests/unit/test_cli.py::test_json_logs_stay_json",),
    ),
    Mutant(
        "timeout-is-two-interrupts",
        "Signals that come together interrupt a command once.",
        "coopconsume/interrupts.py",
        "if now - self._raised_at < _TOGETHER:",
        "if now < self._raised_at:",
        (
            "tests/unit/test_cli.py::test_signals_that_come_together_interrupt_a_command_once",
            _INTERRUPTS + "test_signals_together_do_not_interrupt_what_a_program_does_at_its_end",
        ),
    ),
    Mutant(
        "ctrl-c-cancels-spark-jobs",
        "Ctrl-C in a program lets running handlers end, also in a session of the program's own.",
        "coopconsume/interrupts.py",
        'startswith("pyspark.")',
        'startswith("spark.")',
        (_INTERRUPTS + "test_a_signal_interrupts_a_wait",),
    ),
    Mutant(
        "handlers-of-the-program-replaced",
        "A handler of a signal that the program has set stays.",
        "coopconsume/interrupts.py",
        "            if _is_default(number):\n",
        "            if number:\n",
        (_INTERRUPTS + "test_what_the_program_has_set_stays",),
    ),
    Mutant(
        "any-name-is-suggested",
        "An unknown option names a known one only if it is alike.",
        "coopconsume/kafka/settings.py",
        "cutoff: float = 0.7",
        "cutoff: float = 0.5",
        ("tests/unit/test_options.py::test_a_name_that_is_unlike_all_options_names_none",),
    ),
    Mutant(
        "unstarted-slots-look-busy",
        "Slots that Spark does not start are distinguished from handlers that run.",
        "coopconsume/runtime/status/waiting.py",
        "if started or oldest.started is None:",
        "if slots:",
        ("tests/unit/runtime/test_waiting.py::test_each_wait_has_a_reason_and_a_sentence",),
    ),
    Mutant(
        "newer-spark-gets-delta",
        "A Spark that is newer than all known ones is never given the Delta of another version.",
        "coopconsume/spark_versions.py",
        "SparkMinor(wanted, newest.connector, None,",
        "SparkMinor(wanted, newest.connector, SUPPORTED[-2].delta,",
        ("tests/unit/testing/test_jars.py::test_a_newer_spark_is_a_warning",),
    ),
]

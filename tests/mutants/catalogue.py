"""All mutants, by what they break. A new one is five lines; `Mutant` says what they mean."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOP = "tests/model/test_loop_model.py::test_any_run_keeps_the_order_and_settles_every_record"
_GROUP = "tests/model/test_group_model.py::TestGroup::runTest"
_FOLD = "tests/model/test_commits_fold.py::test_the_fold_agrees_with_a_naive_model"
_STORE = "tests/unit/test_commit_store.py::"
_RULES = "tests/model/test_ownership_rules.py::"
_PLAN = "tests/unit/test_plan_rules.py::"
_EVENTS = "tests/unit/test_fold_rules.py::"
_CHECKER = "tests/model/test_checker.py::test_each_fault_is_found_with_its_witness"
_JOB = "tests/model/test_job_model.py::"
_ODD = "tests/unit/test_odd_answers.py::"
_CLOCKS = "tests/unit/test_clocks.py::"
_DELIVERIES = "tests/model/test_deliveries_model.py::"

ORDER = [
    Mutant(
        "first-blocked-hash-dropped",
        "A batch carries the lowest pending offset of every key that waits.",
        "coopconsume/plan/partition.py",
        "for lane, waiting in share.waiting.items()}",
        "for lane, waiting in [*share.waiting.items()][1:]}",
        (_PLAN + "test_every_key_with_a_waiting_record_is_blocked_in_the_next_batch",),
    ),
    Mutant(
        "failed-key-not-blocked",
        "A failed record holds back the later records of its key.",
        "coopconsume/task/ledger.py",
        'if self.spec.ordering != "none":',
        'if self.spec.ordering == "partition":',
        ("tests/unit/test_slot.py::test_a_failed_record_blocks_its_key_alone", _LOOP),
    ),
    Mutant(
        "lane-starts-two",
        "Of a key at most one record is at work.",
        "coopconsume/task/ledger.py",
        'return row.key_hash if ordering == "key"',
        'return ~row.offset if ordering == "key"',
        ("tests/model/test_lanes_model.py::test_any_slot_keeps_the_order_and_settles_every_row",),
    ),
    Mutant(
        "higher-pending-first",
        "Of two pending records of a key the lower one goes first.",
        "coopconsume/plan/share.py",
        "higher.offset < failed.offset",
        "higher.offset > failed.offset",
        (_PLAN + "test_of_two_pending_records_of_a_key_the_lower_one_goes_first",),
    ),
    Mutant(
        "gaps-not-read-first",
        "After a start all gaps are read before anything new.",
        "coopconsume/plan/share.py",
        "self.position < scope.goal and not self._is_cut(scope)",
        "self.position < scope.goal",
        (_PLAN + "test_gaps_come_before_anything_new",),
    ),
    Mutant(
        "behind-forgotten",
        "What waits behind a failed record is done after it.",
        "coopconsume/plan/share.py",
        "from_offsets(first.behind)",
        "from_offsets([])",
        (_LOOP,),
    ),
    Mutant(
        "blocked-pending-never-tries",
        "A pending record, and lower ones of its key, start although its key is blocked.",
        "coopconsume/task/ledger.py",
        "row.offset > self.blocked[row.part].get(self.lane(row), row.offset)",
        "self.lane(row) in self.blocked[row.part]",
        (
            "tests/unit/test_crashes.py::test_a_pending_record_and_lower_ones_may_start_while_their_key_is_blocked",
        ),
    ),
    Mutant(
        "pending-before-lower-undone",
        "A pending record above all that is done waits until the offsets below it were read.",
        "coopconsume/plan/partition.py",
        "if share.position <= offset:",
        "if offset < 0:",
        (
            "tests/model/test_loop_model.py::test_a_pending_record_above_all_that_is_done_waits_for_lower_ones_of_its_key",
        ),
    ),
    Mutant(
        "parked-record-forgotten",
        "A lower record of a parked key that fails keeps the parked record parked.",
        "coopconsume/plan/share.py",
        "failed.next = higher",
        "failed.next = None",
        (
            "tests/model/test_loop_model.py::test_lower_records_of_a_parked_key_are_handled_and_it_stays_parked",
        ),
    ),
    Mutant(
        "limit-stops-the-stable-offset",
        "At the limit of ranges a member reads on up to what others have committed.",
        "coopconsume/plan/partition.py",
        "max(done + 1, self.log_last + 1, *(",
        "max(done + 1, *(",
        (
            "tests/model/test_limits_model.py::test_a_limit_does_not_stop_the_member_that_has_the_stable_offset",
        ),
    ),
    Mutant(
        "leftovers-below-the-log-start",
        "What was in flight below a new log start is not planned again.",
        "coopconsume/plan/partition.py",
        "share.forget_below(self.stable)\n        if self.attempts:",
        "if self.attempts:",
        (
            "tests/unit/test_reads.py::test_what_is_in_flight_below_a_new_log_start_is_not_planned_again",
        ),
    ),
    Mutant(
        "log-start-of-another-member-ignored",
        "A stable offset that another member moves drops what is left below it.",
        "coopconsume/plan/partition.py",
        "share.forget_below(stable)",
        "share.position = max(share.position, stable)",
        ("tests/unit/test_reads.py::test_a_log_start_that_another_member_found_counts_for_all",),
    ),
]

GROUP = [
    Mutant(
        "commits-under-any-epoch",
        "A commit counts only under the epoch in force.",
        "commits/group.py",
        'return "its epoch is not in force" if tenure is None else',
        'return "" if tenure is None else',
        (_STORE + "test_a_fenced_zombie_writes_but_never_counts", _FOLD),
    ),
    Mutant(
        "previous-not-checked",
        "An epoch counts only if the one that its leader noted is in force.",
        "commits/group.py",
        "if event.previous != in_force:",
        "if event.previous is False:",
        (_EVENTS + "test_an_epoch_counts_only_if_the_one_its_leader_noted_is_in_force",),
    ),
    Mutant(
        "number-used-twice",
        "The number of an epoch is above all that were seen.",
        "commits/group.py",
        "event.epoch.number > self.highest",
        "event.epoch.number >= self.highest",
        (_FOLD,),
    ),
    Mutant(
        "replaced-member-counts",
        "A member id that was taken over does not commit.",
        "commits/group.py",
        'tenure.fenced[replaced] = f"taken over by {event.member!r}"',
        "pass",
        (_STORE + "test_a_static_member_is_taken_over_by_its_new_process",),
    ),
    Mutant(
        "released-member-counts",
        "A member that released its shares does not commit.",
        "commits/group.py",
        "tenure.fenced[event.member] = RELEASED",
        "pass",
        (_STORE + "test_a_member_that_released_may_not_commit",),
    ),
    Mutant(
        "claim-not-exclusive",
        "A claim does not overlap a live one.",
        "commits/group.py",
        'if in_the_way and not event.detail.get("takeover"):\n            return Answer(counted=False, reason="a share is held"',
        'if in_the_way is False:\n            return Answer(counted=False, reason="a share is held"',
        (_STORE + "test_claims_exclude_each_other",),
    ),
    Mutant(
        "nothing-in-doubt",
        "What a member did not hand over is in doubt for its next owner.",
        "commits/group.py",
        "self.loose = sorted({*self.loose, *tenure.left_behind()})",
        "pass",
        (_STORE + "test_what_was_not_handed_over_is_in_doubt", _GROUP),
    ),
    Mutant(
        "nobody-waits",
        "The owner of a share in doubt waits for it.",
        "coopconsume/group/core.py",
        "if first <= last:\n                key_range",
        "if first < first:\n                key_range",
        (_GROUP,),
    ),
]

DRAIN = [
    Mutant(
        "hand-over-without-drain",
        "A hand-over waits for the handlers that run.",
        "coopconsume/job/loop.py",
        "if out and not hand_over.is_late and time.monotonic() < hand_over.until:\n            return",
        "if False:\n            return",
        (_JOB + "test_a_hand_over_waits_for_running_handlers_and_commits_them",),
    ),
    Mutant(
        "starts-while-draining",
        "A hand-over starts no new handler.",
        "coopconsume/job/loop.py",
        "self._hand_back(shift, self._hand_over)\n            else:\n                self",
        "self._hand_back(shift, self._hand_over)\n            if True:\n                self",
        (_JOB + "test_a_hand_over_waits_for_running_handlers_and_commits_them",),
    ),
    Mutant(
        "hand-over-hides-what-runs",
        "A hand-over names the shares that are still being worked on.",
        "coopconsume/job/loop.py",
        "hand_over.running = self._left_of(shift)\n            if out:",
        "hand_over.running = []\n            if out:",
        (_JOB + "test_what_a_hand_over_gives_up_is_in_doubt_and_done_again",),
    ),
    Mutant(
        "nobody-waits-in-the-loop",
        "No handler starts on a share that is in doubt.",
        "coopconsume/job/shift.py",
        "share.barred_until = now + wait if wait > 0 else 0.0",
        "share.barred_until = 0.0",
        (_JOB + "test_the_next_owner_waits_for_the_life_of_a_batch",),
    ),
    Mutant(
        "slot-in-doubt-planned",
        "A slot whose earlier owner may be at work is not planned.",
        "coopconsume/plan/share.py",
        "if self.barred_until > now:\n            return True",
        "",
        (_PLAN + "test_a_slot_waits_for_an_earlier_owner_alone",),
    ),
    Mutant(
        "claim-does-not-wait",
        "A claim waits for what its former holder may be at work on.",
        "coopconsume/group/membership.py",
        "for d in (row.doubts if row else ())",
        "for d in ()",
        (_JOB + "test_the_next_owner_waits_for_the_life_of_a_batch",),
    ),
]

COMMITS = [
    Mutant(
        "lost-task-counts-as-done",
        "What a lost task was given counts as done by nobody.",
        "coopconsume/job/dispatch.py",
        "elif error is None and slot not in rows:",
        "elif slot not in rows:",
        (_JOB + "test_work_of_a_lost_task_is_done_again_and_nothing_counts_without_a_handler",),
    ),
    Mutant(
        "unknown-outcome-forgotten",
        "Where an outcome is not known all of it is done again.",
        "coopconsume/plan/share.py",
        "self.todo |= self.flying\n            self.position",
        "self.position",
        (_PLAN + "test_a_slot_whose_outcome_is_unknown_has_all_of_its_part_to_do_again",),
    ),
    Mutant(
        "unknown-outcome-counts",
        "Where an outcome is not known nothing counts.",
        "coopconsume/plan/partition.py",
        "self.shares[slot].give_up()",
        "self.unsaved |= self.shares[slot].flying or OffsetRanges()",
        (_PLAN + "test_a_slot_whose_outcome_is_unknown_has_all_of_its_part_to_do_again", _LOOP),
    ),
    Mutant(
        "retention-ends-the-job",
        "A batch whose records retention deleted does not count as a failure.",
        "coopconsume/job/dispatch.py",
        "running.handled > 0 or has_lost",
        "running.handled > 0",
        (_JOB + "test_retention_that_outruns_batches_does_not_end_a_job_that_may_lose_records",),
    ),
    Mutant(
        "deleted-topic-read-from-the-cache",
        "Reads change their group id with a topic id.",
        "coopconsume/cluster/identity.py",
        "self._changes += bool(known)",
        "pass",
        (
            "tests/unit/test_identity.py::test_the_group_id_for_reads_changes_with_a_topic_id_and_a_leader_epoch",
        ),
    ),
    Mutant(
        "cut-log-read-from-the-cache",
        "Reads change their group id with a leader epoch.",
        "coopconsume/cluster/identity.py",
        "self._changes += 1",
        "pass",
        (
            "tests/unit/test_identity.py::test_the_group_id_for_reads_changes_with_a_topic_id_and_a_leader_epoch",
        ),
    ),
    Mutant(
        "short-reads-under-the-users-group",
        "All reads are made under the group id for reads.",
        "coopconsume/reading/source.py",
        "group = LOG_IDENTITIES.read_group(fetching[_GROUP])",
        "group = fetching[_GROUP]",
        ("tests/unit/test_identity.py::test_every_read_is_made_under_that_group_id",),
    ),
    Mutant(
        "holes-in-a-part",
        "Part of a partition proves no hole.",
        "coopconsume/plan/partition.py",
        "if not self.whole or first >= position:",
        "if first >= position:",
        (_PLAN + "test_part_of_a_partition_proves_no_hole",),
    ),
    Mutant(
        "beyond-the-end",
        "Nothing beyond the end of the log is planned.",
        "coopconsume/plan/partition.py",
        "if not crowded:\n            return min(self.end, most)",
        "if not crowded:\n            return most",
        (_PLAN + "test_nothing_beyond_the_end_of_the_log_is_planned",),
    ),
    Mutant(
        "stable-offset-one-too-high",
        "The stable offset is the first that is not committed.",
        "commits/partition.py",
        "return end + 1, ranges.clip(end + 1, MAX_OFFSET)",
        "return end + 2, ranges.clip(end + 2, MAX_OFFSET)",
        ("tests/model/test_commits_partition.py::test_every_step_agrees_with_a_naive_model",),
    ),
    Mutant(
        "too-old-taken",
        "A commit wholly below the stable offset is too old.",
        "commits/partition.py",
        "if offered.last < self._stable_offset:",
        "if offered.last < 0:",
        (
            "tests/unit/test_partition_commits.py::test_wholly_below_the_stable_offset_is_too_old",
            _STORE + "test_too_old_is_raised_once_with_all_answers",
        ),
    ),
    Mutant(
        "limit-refuses-everything",
        "A limit takes what does not raise the number of ranges.",
        "commits/partition.py",
        "count > limit and count > self._ranges.range_count",
        "count > limit",
        (
            "tests/unit/test_partition_commits.py::test_the_limit_refuses_only_what_raises_the_number_of_ranges",
        ),
    ),
    Mutant(
        "repeated-commit-counts-again",
        "A commit that is repeated with its id counts once.",
        "commits/group.py",
        "known = self.answers.get(event.id)",
        "known = None",
        (_STORE + "test_a_repeated_commit_gets_its_first_answer",),
    ),
    Mutant(
        "forgotten-answer-counts-as-done",
        "A repeat is refused where the first commit was, also once its answer is forgotten.",
        "commits/group.py",
        "if not answer.counted or at in refused:",
        "if not answer.counted:",
        (
            "tests/unit/test_commit_growth.py::test_a_refused_partition_is_refused_again_once_the_answer_is_forgotten",
        ),
    ),
    Mutant(
        "unchanged-commit-forgotten",
        "The repeat of a commit that changed nothing changes nothing while its epoch is in force.",
        "commits/group.py",
        "tenure.note_unchanged(event.member, event.id)",
        "pass",
        ("tests/unit/test_commit_growth.py::test_a_commit_that_changed_nothing_never_does_later",),
    ),
    Mutant(
        "snapshot-carries-all-answers",
        "A snapshot carries some answers of partitions, and no more.",
        "commits/group.py",
        "if self._kept_results > KEPT_RESULTS:",
        "if False:",
        ("tests/unit/test_commit_growth.py::test_a_snapshot_does_not_carry_old_answers",),
    ),
    Mutant(
        "new-end-wakes-nobody",
        "A partition with nothing to do is looked at again once its end moves.",
        "coopconsume/plan/partition.py",
        "self._end, self.is_quiet = end, False",
        "self._end = end",
        ("tests/unit/test_idle.py::test_a_turn_visits_a_partition_that_changed",),
    ),
    Mutant(
        "truncation-keeps-the-end",
        "What lay beyond the end of a truncated log is forgotten.",
        "commits/partition.py",
        "self._settle(min(self._stable_offset, end), self._ranges.clip(0, end - 1))",
        "self._settle(min(self._stable_offset, end), self._ranges)",
        ("tests/unit/test_partition_commits.py::test_a_truncated_log_forgets_what_lay_beyond",),
    ),
    Mutant(
        "unread-is-a-hole",
        "Only what every share has passed may be a hole.",
        "coopconsume/plan/partition.py",
        "if share.position <= last:",
        "if share.position < 0:",
        (_PLAN + "test_what_a_share_has_not_read_is_no_hole",),
    ),
]

SNAPSHOTS = [
    Mutant(
        "torn-snapshot-counts",
        "A snapshot counts only if all of its rows are there.",
        "commits/snapshot.py",
        'if 0 in found and len(parts) == parts[0].detail["groups"] + 1:',
        "if 0 in found:",
        (_EVENTS + "test_a_snapshot_of_which_rows_are_missing_does_not_count",),
    ),
    Mutant(
        "snapshot-forgets-epochs",
        "A snapshot carries the highest epoch, so that none comes back.",
        "commits/snapshot.py",
        '"highest": group.highest,',
        '"highest": 0,',
        (_EVENTS + "test_a_snapshot_carries_what_later_rows_are_judged_by",),
    ),
    Mutant(
        "snapshot-forgets-doubts",
        "A snapshot carries what is in doubt.",
        "commits/snapshot.py",
        '"loose": group.loose,',
        '"loose": [],',
        (_EVENTS + "test_a_snapshot_carries_what_later_rows_are_judged_by",),
    ),
]

RETRIES = [
    Mutant(
        "due-ignored",
        "A failed record starts again when it is due, not before.",
        "coopconsume/plan/share.py",
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
        ("tests/unit/test_concurrency.py::test_max_attempts_hold_for_every_kind_of_failure",),
    ),
    Mutant(
        "attempt-not-counted",
        "Each failure counts as an attempt.",
        "coopconsume/plan/partition.py",
        "self.attempts[failure.offset] = failure.attempts",
        "self.attempts[failure.offset] = 0",
        (_LOOP,),
    ),
    Mutant(
        "crash-not-counted",
        "A record that ends its worker is charged an attempt.",
        "coopconsume/task/ledger.py",
        "if at not in culprits:",
        "if at in culprits:",
        (
            "tests/unit/test_crashes.py::test_the_record_that_killed_its_worker_is_charged_an_attempt",
        ),
    ),
    Mutant(
        "second-run-handles",
        "A slot that may still run elsewhere is not taken for dead.",
        "coopconsume/task/slot.py",
        "if words is None:\n            return SlotReport(batch=spec.batch, slot=slot, unknown=True, pid=os.getpid())",
        "if words is None:\n            return SlotReport(batch=spec.batch, slot=slot, pid=os.getpid())",
        ("tests/unit/test_crashes.py::test_without_a_box_nothing_is_known",),
    ),
    Mutant(
        "jitter-subtracted",
        "A record waits at least for its backoff.",
        "coopconsume/record.py",
        "(1 + self.jitter * random.random())",
        "(1 - self.jitter * random.random())",
        ("tests/unit/test_odd_answers.py::test_jitter_is_added_and_never_subtracted",),
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
        ("tests/unit/test_repeating.py::test_the_first_answer_is_taken",),
    ),
]

OUTPUTS = [
    Mutant(
        "commit-before-letter",
        "Dead letters and output rows are written before the commit that they count with.",
        "coopconsume/job/outbox.py",
        "write(self._work, self._holding.topic_ids, fit, commit_id)",
        "self._holding.commit(fit.offsets, commit_id=commit_id); write(self._work, self._holding.topic_ids, fit, commit_id)",
        (
            _JOB + "test_a_dead_letter_is_there_before_its_record_counts_as_done",
            _JOB + "test_an_output_row_is_there_before_its_record_counts_as_done",
        ),
    ),
    Mutant(
        "commit-waits-for-destination",
        "A destination that does not answer stops no commit.",
        "coopconsume/job/saving.py",
        "linger or self.outbox.is_young or",
        "linger or self.outbox.has_any or",
        (_JOB + "test_a_destination_that_does_not_answer_stops_no_commit",),
    ),
    Mutant(
        "undelivered-key-goes-on",
        "The key of a record whose letter or rows are not written waits for that.",
        "coopconsume/plan/partition.py",
        "share.wait(self.lane(record.key_hash, record.offset), record)",
        "pass",
        (
            _DELIVERIES + "test_a_lane_waits_for_all_its_rows_and_then_goes_on",
            _JOB + "test_a_destination_that_does_not_answer_stops_no_commit",
        ),
    ),
    Mutant(
        "undelivered-is-committed",
        "A record is committed with its letter or rows, never before.",
        "coopconsume/plan/partition.py",
        "self.undelivered |= offsets",
        "self.undelivered |= OffsetRanges()",
        (_DELIVERIES + "test_a_lane_waits_for_all_its_rows_and_then_goes_on",),
    ),
    Mutant(
        "refused-holds-others",
        "A record that a destination never takes does not hold back the records beside it.",
        "coopconsume/job/deliveries.py",
        "if len(halves) > 1:",
        "if len(halves) > 999:",
        (
            _DELIVERIES + "test_only_what_is_never_taken_stays",
            _JOB + "test_what_is_never_taken_is_parked_and_ends_a_job_that_is_to_end",
        ),
    ),
    Mutant(
        "clean-up-fails-appends",
        "An append that conflicts with a clean-up of published rows is repeated.",
        "coopconsume/sinks/table.py",
        "if tries == MOST_TRIES:",
        "if tries:",
        ("tests/unit/test_publishing.py::test_a_clean_up_does_not_fail_what_others_append",),
    ),
    Mutant(
        "uri-shows-secrets",
        "Errors hide the secrets of URIs.",
        "coopconsume/errors/base.py",
        "super().__setattr__(name, _shown(value))",
        "super().__setattr__(name, value)",
        ("tests/unit/test_secrets.py::test_no_error_shows_a_secret",),
    ),
    Mutant(
        "uncounted-row-read",
        "An output row counts only if the commit log counts its commit.",
        "coopconsume/sinks/reading.py",
        "alive = [commit for commit in written if any(commit in counted for counted, _ in logged)]",
        "alive = [commit for commit in written]",
        ("tests/unit/test_sinks.py::test_appended_rows_count_with_their_commit",),
    ),
    Mutant(
        "refused-part-read",
        "A row does not count in a partition in which its commit was refused.",
        "coopconsume/sinks/reading.py",
        "for place in sorted(parts.get(commit, ()))",
        "for place in ()",
        ("tests/unit/test_sinks.py::test_appended_rows_count_with_their_commit",),
    ),
]

LIMITS = [
    Mutant(
        "crowded-reads-on",
        "Nothing new is read of a partition near its limit of ranges.",
        "coopconsume/plan/partition.py",
        "return self.ranges >= crowded_at(self.max_ranges) or self.has_outputs_enough",
        "return False",
        ("tests/model/test_limits_model.py::test_outputs_that_wait_keep_news_away_and_are_told",),
    ),
    Mutant(
        "limit-exceeded",
        "What would exceed the limit of ranges waits in the job.",
        "coopconsume/plan/crowding.py",
        "fits[np.flatnonzero(~fits)[:room]] = True",
        "fits[:] = True",
        (
            "tests/model/test_limits_model.py::test_what_is_affordable_is_never_refused_and_no_more_would_fit",
        ),
    ),
]

POLLING = [
    Mutant(
        "answer-for-anything",
        "Only what a frame contained may be answered for.",
        "coopconsume/polling/handout.py",
        "    if strange:\n        first, last",
        "    if False:\n        first, last",
        (
            "tests/model/test_polling_model.py::test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost",
            "tests/model/test_polling_model.py::test_a_range_over_a_waiting_key_is_refused",
        ),
    ),
    Mutant(
        "key-waits-too-short",
        "A polled key comes again when its last held record is due.",
        "coopconsume/polling/held.py",
        "max(due.get(record.key_hash, 0.0), at)",
        "min(due.get(record.key_hash, record.due), record.due)",
        ("tests/unit/test_held.py::test_a_key_waits_for_the_record_that_is_due_last",),
    ),
]

ANSWERS = [
    Mutant(
        "error-text-raises",
        "An error whose text raises costs its own record alone.",
        "coopconsume/task/answers.py",
        "said = _safely(lambda: str(error))",
        "said = str(error)",
        (_ODD + "test_an_odd_error_costs_its_record_alone",),
    ),
    Mutant(
        "trace-raises",
        "An error whose trace raises costs its own record alone.",
        "coopconsume/task/answers.py",
        "lines = _safely(lambda: traceback.format_exception(error))",
        "lines = traceback.format_exception(error)",
        (_ODD + "test_an_odd_error_makes_a_dead_letter",),
    ),
    Mutant(
        "surrogates-kept",
        "The text of a failure is one that UTF-8 can hold.",
        "coopconsume/task/answers.py",
        'str.encode(begin, "utf-8", "backslashreplace").decode()[:most]',
        "str(begin)",
        (_ODD + "test_an_odd_error_costs_its_record_alone",),
    ),
    Mutant(
        "any-retry-after",
        "A wait is checked where the answer is settled.",
        "coopconsume/task/answers.py",
        "asked = usable_seconds(after)",
        "asked = after if isinstance(after, float) else usable_seconds(after)",
        (_ODD + "test_a_retry_that_was_changed_waits_as_the_policy_says",),
    ),
    Mutant(
        "endless-wait",
        "No record waits longer than 365 days.",
        "coopconsume/record.py",
        "return seconds if 0 <= seconds <= MAX_WAIT else None",
        "return seconds if seconds >= 0 else None",
        (_ODD + "test_a_retry_that_cannot_be_waited_for_is_refused",),
    ),
    Mutant(
        "answer-not-ignored",
        "Without an output, what a handler returns is ignored.",
        "coopconsume/task/answers.py",
        "    if not wanted:\n",
        "    if not wanted and isgenerator(answer):\n",
        (_ODD + "test_without_an_output_what_is_returned_is_ignored",),
    ),
    Mutant(
        "generator-not-run",
        "A handler that is a generator runs to its end.",
        "coopconsume/task/answers.py",
        "if isgenerator(answer) or isinstance(answer, list | tuple):",
        "if isinstance(answer, list | tuple):",
        (_ODD + "test_a_generator_that_raises_half_way_fails_its_record",),
    ),
    Mutant(
        "coroutine-taken-for-done",
        "What nobody awaits is not done.",
        "coopconsume/task/answers.py",
        "    if iscoroutine(answer):\n        answer.close()\n        raise",
        "    if iscoroutine(answer):\n        answer.close()\n        return\n        raise",
        (_ODD + "test_what_nobody_awaits_fails_its_record",),
    ),
    Mutant(
        "misfit-row-kept",
        "A row that does not fit the output schema fails its record.",
        "coopconsume/task/rows.py",
        "raise self._misfit(row, error) from error",
        "arrays = [pa.nulls(1, field.type) for field in self.schema]",
        (_ODD + "test_with_an_output_what_does_not_fit_fails_its_record",),
    ),
    Mutant(
        "odd-outcome-is-done",
        "An outcome of a batch handler that says nothing is not done.",
        "coopconsume/task/answers.py",
        '    return TypeError(\n        f"the batch',
        '    return None and TypeError(\n        f"the batch',
        (_ODD + "test_a_row_of_a_frame_with_an_odd_outcome_fails_alone",),
    ),
    Mutant(
        "dropped-without-a-letter",
        "Nothing is given up without a place for dead letters.",
        "coopconsume/task/ledger.py",
        "elif verdict.is_given_up and self.dead_letters:",
        "elif verdict.is_given_up:",
        (_ODD + "test_nothing_is_given_up_without_a_place_for_it",),
    ),
    Mutant(
        "cancellation-spreads",
        "A handler that cancels itself costs its own record alone.",
        "coopconsume/task/coroutines.py",
        "if task.cancelling():\n                if",
        "if False:\n                if",
        (_ODD + "test_a_handler_that_cancels_itself_costs_its_record_alone",),
    ),
    Mutant(
        "jitter-shortens",
        "Jitter is added to a backoff, never subtracted.",
        "coopconsume/record.py",
        "wait * (1 + self.jitter",
        "wait * (1 - self.jitter",
        (_ODD + "test_jitter_is_added_and_never_subtracted",),
    ),
    Mutant(
        "signature-not-looked-at",
        "A handler that cannot be called with one argument is refused at foreach.",
        "coopconsume/query.py",
        "found.bind(object())",
        "found.bind_partial()",
        (_ODD + "test_a_handler_that_cannot_be_called_with_a_record_is_refused",),
    ),
]

CLOCKS = [
    Mutant(
        "in-doubt-by-wall-clock",
        "What is in doubt waits by the monotonic clock.",
        "coopconsume/job/shift.py",
        "now = time.monotonic()\n        partitions = []",
        "now = time.time()\n        partitions = []",
        (_CLOCKS + "test_what_is_in_doubt_waits_its_time_by_the_monotonic_clock",),
    ),
    Mutant(
        "lost-slot-by-wall-clock",
        "A lost slot waits by the monotonic clock.",
        "coopconsume/job/dispatch.py",
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

FENCED = [
    Mutant(
        "expectation-not-checked",
        "An append on a condition checks it.",
        "coopconsume/fenced/core.py",
        "return None if self.by is None or self.value == actual else (self.value, actual)",
        "return None",
        ("tests/unit/test_fenced_log.py::test_each_record_may_expect_its_number",),
    ),
    Mutant(
        "older-epoch-counts",
        "A batch of a former owner does not count.",
        "coopconsume/fenced/fold.py",
        "fenced = stamp.epoch != self.epoch or self.tag not in (None, stamp.tag)",
        "fenced = False",
        ("tests/unit/test_fenced_log.py::test_nobody_who_writes_into_a_log_stops_it",),
    ),
    Mutant(
        "batch-id-not-remembered",
        "A batch is in its log once.",
        "coopconsume/fenced/fold.py",
        "if known is not None and (not self._compacted or known.first_offset != first_offset):",
        "if False:",
        ("tests/unit/test_fenced_log.py::test_nobody_who_writes_into_a_log_stops_it",),
    ),
    Mutant(
        "late-batch-counts",
        "A batch that is not where it expected to be does not count.",
        "coopconsume/fenced/fold.py",
        "if raw.offset != stamp.expected + stamp.i or (filtered and self._compacted):",
        "if filtered and self._compacted:",
        ("tests/unit/test_fenced_log.py::test_nobody_who_writes_into_a_log_stops_it",),
    ),
    Mutant(
        "gap-not-seen",
        "The sequence numbers of the batches that count follow each other.",
        "coopconsume/fenced/fold.py",
        "if not self._compacted and self.next_seq not in (None, stamp.seq):",
        "if False:",
        ("tests/unit/test_fenced_log.py::test_a_batch_that_is_gone_is_a_gap",),
    ),
    Mutant(
        "part-of-a-batch-counts",
        "A batch counts once its last record is there.",
        "coopconsume/fenced/fold.py",
        "complete = len(self._partial) == self._open_batch[0].n",
        "complete = True",
        ("tests/unit/test_fenced_log.py::test_a_batch_without_its_end_does_not_count",),
    ),
]

ASSIGNORS = [
    Mutant(
        "ranges-overlap",
        "No two members have the same key hash.",
        "assignors/ranges.py",
        "KeyRange(a, b - 1) for a, b in pairwise(cuts)",
        "KeyRange(a, min(b, self.last)) for a, b in pairwise(cuts)",
        ("tests/unit/test_ranges.py::test_any_range_is_cut_evenly",),
    ),
    Mutant(
        "ranges-leave-a-hole",
        "Every key hash has an owner.",
        "assignors/sharing.py",
        "FULL.size * end // total - 1)",
        "FULL.size * end // total - 1 - (end < total))",
        ("tests/unit/test_assignors.py::test_kip_x_round_robin",),
    ),
    Mutant(
        "parts-without-consent",
        "Only members that allow it get a part of a partition.",
        "assignors/sharing.py",
        "[member for member in members if member.allow_key_share]",
        "list(members)",
        ("tests/unit/test_assignors.py::test_whoever_did_not_opt_in_gets_whole_partitions",),
    ),
    Mutant(
        "conflict-not-seen",
        "A member refuses an assignment with a hole or an overlap.",
        "coopconsume/group/core.py",
        "if found.overlaps or (found.holes and (topic, partition) not in held):",
        "if found.holes and found.overlaps:",
        (
            "tests/unit/test_group_rules.py::test_an_assignment_with_a_hole_or_an_overlap_is_refused",
        ),
    ),
]

OWNERS = [
    Mutant(
        "lower-generation-owns",
        "A claim of a lower generation than the owner's is stale.",
        "coopconsume/fenced/ownership/rules.py",
        "if current > generation > 0:",
        "if generation < 0:",
        (_RULES + "test_the_wikis_table_is_total",),
    ),
    Mutant(
        "live-owner-expires",
        "An owner that gave a sign of life since is not taken for dead.",
        "coopconsume/fenced/ownership/rules.py",
        "if held is None or held.heartbeat != heartbeat:",
        "if held is None:",
        (_RULES + "TestRules::runTest",),
    ),
    Mutant(
        "queue-stands-still",
        "Whoever waits longest comes next.",
        "coopconsume/fenced/ownership/rules.py",
        "while row.is_free and row.waiters:",
        "while False:",
        (_RULES + "test_an_operator_s_word_evicts_all_that_have_it_and_promotes_the_next",),
    ),
]

CHECKER = [
    Mutant(
        "any-disturbance-excuses",
        "A repeat is excused only if the process of its own earlier call was disturbed.",
        "coopconsume/history/rules.py",
        "mine = np.isin(self._pid[earlier], [*one.pids])",
        "mine = np.ones(len(earlier), np.bool_)",
        (_CHECKER,),
    ),
    Mutant(
        "committed-is-excused",
        "Nothing excuses the repeat of a record that was committed before.",
        "coopconsume/history/rules.py",
        "committed_before |= self._committed_at[record] <= self._start[call]",
        "pass",
        (_CHECKER,),
    ),
]

MUTANTS = [
    *ORDER,
    *DRAIN,
    *GROUP,
    *COMMITS,
    *SNAPSHOTS,
    *OUTPUTS,
    *LIMITS,
    *POLLING,
    *RETRIES,
    *ANSWERS,
    *CLOCKS,
    *FENCED,
    *ASSIGNORS,
    *OWNERS,
    *CHECKER,
]

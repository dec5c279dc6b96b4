"""Mutants of the group: epochs, hand-overs, topics, and consumers that poll."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_GROUP = "tests/model/test_group_model.py::TestGroup::runTest"
_FOLD = "tests/model/test_commits_fold.py::test_the_fold_agrees_with_a_naive_model"
_STORE = "tests/unit/commits/test_commit_store.py::"
_PLAN = "tests/unit/runtime/test_plan_rules.py::"
_EVENTS = "tests/unit/commits/test_fold_rules.py::"
_JUDGE = "tests/model/test_judge.py::"
_HAND_OVER = "tests/model/test_job_hand_over.py::"
_JOB = "tests/model/test_job_model.py::"
_POLLING = "tests/model/test_polling_model.py::"
_CORE = "tests/unit/group/test_group_core.py::"
_MEMBER = "tests/unit/group/test_group_member.py::"
_STOP = "tests/model/test_stop_without_broker.py::"

GROUP = [
    Mutant(
        "whole-partition-refused-for-its-parts",
        "A member that goes on with a part may get the whole partition.",
        "coopconsume/group/core.py",
        "return next((share for share in parts if without([share], kept)), None)",
        "return next((one for one in without(shares, kept) if not one.key_range.is_full), None)",
        (_CORE + "test_a_member_that_goes_on_with_a_part_may_get_the_whole_partition",),
    ),
    Mutant(
        "open-transaction-not-waited-for",
        "A partition starts from an offset that no open transaction can change.",
        "coopconsume/group/loading.py",
        "in_kafka = cluster.primary({*owned, *dealt} - stable.keys())",
        "in_kafka = cluster.primary()",
        (
            "tests/broker/test_moved_offsets.py::test_a_transaction_that_commits_offsets_is_waited_for",
        ),
    ),
    Mutant(
        "commits-under-any-epoch",
        "A commit counts only under the epoch in force.",
        "commits/fold.py",
        'return "its epoch is not in force" if grant is None else',
        'return "" if grant is None else',
        (_STORE + "test_a_fenced_zombie_writes_but_never_counts", _FOLD),
    ),
    Mutant(
        "previous-not-checked",
        "An epoch counts only if the one that its leader noted is in force.",
        "commits/grant_rules.py",
        "if event.previous != in_force:",
        "if event.previous is False:",
        (_EVENTS + "test_an_epoch_counts_only_if_the_one_its_leader_noted_is_in_force",),
    ),
    Mutant(
        "number-used-twice",
        "The number of an epoch is above all that were seen.",
        "commits/grant_rules.py",
        "event.epoch.number > group.highest",
        "event.epoch.number >= group.highest",
        (_FOLD,),
    ),
    Mutant(
        "replaced-member-counts",
        "A member id that was taken over does not commit.",
        "commits/grant_rules.py",
        'grant.fenced[replaced] = f"taken over by {event.member!r}"',
        "pass",
        (_STORE + "test_a_static_member_is_taken_over_by_its_new_process",),
    ),
    Mutant(
        "released-member-counts",
        "A member that released its shares does not commit.",
        "commits/grant_rules.py",
        "grant.fenced[event.member] = RELEASED",
        "pass",
        (_STORE + "test_a_member_that_released_may_not_commit",),
    ),
    Mutant(
        "claimed-share-given-away",
        "A group works around what is claimed by hand.",
        "coopconsume/group/dealing.py",
        "    if rebalance.claimed:\n        shares = {",
        "    if False:\n        shares = {",
        (_GROUP,),
    ),
    Mutant(
        "claim-is-a-gap",
        "What is claimed by hand is no gap in what the leader has assigned.",
        "coopconsume/group/core.py",
        "(found.holes and (topic, partition) not in held)",
        "found.holes",
        (_GROUP,),
    ),
    Mutant(
        "claimed-work-not-in-doubt",
        "A claim waits for the work of the member of the group that had its share.",
        "commits/grant_rules.py",
        "_loosen(group, grant, member, grant.doubts_of(member, left))",
        "pass",
        (_GROUP,),
    ),
    Mutant(
        "claim-not-exclusive",
        "A claim does not overlap a live one.",
        "commits/grant_rules.py",
        'if in_the_way and not event.detail.get("takeover"):\n        return Answer(counted=False, reason="a share is held"',
        'if in_the_way is False:\n        return Answer(counted=False, reason="a share is held"',
        (_STORE + "test_claims_exclude_each_other",),
    ),
    Mutant(
        "nothing-in-doubt",
        "What a member did not hand over is in doubt for its next owner.",
        "commits/grant_rules.py",
        "left = grant.doubts if grant.uses_chunks else grant.left_behind()",
        "left = grant.doubts",
        (_STORE + "test_what_was_not_handed_over_is_in_doubt", _GROUP),
    ),
    Mutant(
        "nobody-waits",
        "The owner of a share in doubt waits for it.",
        "coopconsume/group/core.py",
        "for part, life_ms in inside(row.doubts, shares)",
        "for part, life_ms in ()",
        (_GROUP,),
    ),
]

DRAIN = [
    Mutant(
        "stopping-loop-looks-at-logs",
        "A job that stops makes no call to Kafka that it does not need.",
        "coopconsume/runtime/loop.py",
        "        if not is_stopping:\n            self._look_at_logs(epoch_state)",
        "        self._look_at_logs(epoch_state)",
        (_STOP + "test_a_job_stops_and_commits_while_no_broker_answers[at work]",),
    ),
    Mutant(
        "stop-waits-for-a-broker",
        "A stop gives up the call to Kafka in which the loop waits.",
        "coopconsume/runtime/loop.py",
        "        self._kafka_limit.set(_LAST_ANSWER)\n",
        "",
        (_STOP + "test_a_job_stops_and_commits_while_no_broker_answers[idle]",),
    ),
    Mutant(
        "hand-over-outlives-a-stop",
        "A hand-over waits for handlers no longer than a stop of the job does.",
        "coopconsume/runtime/rebalance.py",
        "self.hand_over.until = min(self.hand_over.until, instant)",
        "pass",
        ("tests/unit/runtime/test_completion.py::test_a_hand_over_waits_no_longer_than_a_stop",),
    ),
    Mutant(
        "stop-writes-offsets-to-no-broker",
        "A job that stops does not write the group's offsets if no broker has just answered.",
        "coopconsume/runtime/current_epoch.py",
        "within = 0.0 if is_away else _LAST_WRITE",
        "within = _LAST_WRITE",
        (_STOP + "test_a_job_stops_and_commits_while_no_broker_answers[idle]",),
    ),
    Mutant(
        "stop-waits-for-the-plan-of-a-batch",
        "A batch whose slots were stopped before they could start is not waited for.",
        "coopconsume/runtime/dispatch/active_runs.py",
        "any(not run.is_withdrawn for run in self.of(epoch_state))",
        "bool(self.of(epoch_state))",
        (_STOP + "test_a_batch_that_spark_plans_is_not_waited_for[stop]",),
    ),
    Mutant(
        "leaving-waits-for-a-connection",
        "A member that leaves does not wait for its connection longer than its limit.",
        "coopconsume/group/member.py",
        "None if left == math.inf else max(_LEAST_WAIT, left)",
        "None",
        (_MEMBER + "test_a_member_whose_brokers_do_not_answer_leaves_within_its_limit",),
    ),
    Mutant(
        "hand-over-without-a-wait",
        "A hand-over waits for the handlers that run.",
        "coopconsume/runtime/rebalance.py",
        "if out and not hand_over.is_late and time.monotonic() < hand_over.until:\n            return False",
        "if False:\n            return False",
        (
            _HAND_OVER + "test_a_hand_over_waits_for_running_handlers_and_commits_them",
            _JUDGE + "test_a_hand_over_is_seen_to_repeat_nothing",
        ),
    ),
    Mutant(
        "hand-over-prolonged-by-late-handlers",
        "A hand-over does not wait for handlers that end after its time limit.",
        "coopconsume/runtime/rebalance.py",
        "return self.hand_over is not None and self.hand_over.is_late",
        "return False",
        (_HAND_OVER + "test_a_hand_over_waits_for_no_handler_that_ends_after_its_time",),
    ),
    Mutant(
        "starts-while-handing-over",
        "A hand-over starts no new handler.",
        "coopconsume/runtime/loop.py",
        "self._hand_back(epoch_state, asked.hand_over)\n        else:\n            self",
        "self._hand_back(epoch_state, asked.hand_over)\n        if True:\n            self",
        (_HAND_OVER + "test_a_hand_over_waits_for_running_handlers_and_commits_them",),
    ),
    Mutant(
        "hand-over-hides-what-runs",
        "A hand-over names the shares that are still being worked on.",
        "coopconsume/runtime/rebalance.py",
        "hand_over.answer.value = self.left_of(epoch_state)\n            if out:",
        "hand_over.answer.value = []\n            if out:",
        (_HAND_OVER + "test_what_a_hand_over_gives_up_is_in_doubt_and_done_again",),
    ),
    Mutant(
        "nobody-waits-in-the-loop",
        "No handler starts on a share that is in doubt.",
        "coopconsume/runtime/plan/partition_maker.py",
        "later = [gain for gain in self.gains(owned) if gain.until]",
        "later = []",
        (
            _JOB + "test_the_next_owner_waits_for_the_life_of_a_batch",
            _JUDGE + "test_a_handler_that_outlives_its_member_is_seen_to_be_waited_for",
        ),
    ),
    Mutant(
        "slot-in-doubt-planned",
        "A slot whose earlier owner may be at work is not planned.",
        "coopconsume/runtime/plan/cursor.py",
        "return self.barred_until > now",
        "return False",
        (_PLAN + "test_a_slot_waits_for_an_earlier_owner_alone",),
    ),
    Mutant(
        "claim-does-not-wait",
        "A claim waits for what its former holder may be at work on.",
        "coopconsume/group/claiming.py",
        "for part, life_ms in (row.doubts if row else ())",
        "for part, life_ms in ()",
        (_JOB + "test_the_next_owner_waits_for_the_life_of_a_batch",),
    ),
]

TOPICS = [
    Mutant(
        "topic-left-behind",
        "A topic that is deleted before its records are done is a loss across a rebalance, too.",
        "coopconsume/group/rebalance_handler.py",
        "            self._check_left_behind()\n",
        "",
        (
            "tests/broker/test_listeners.py::test_a_topic_that_is_deleted_before_a_rebalance_is_a_loss",
        ),
    ),
    Mutant(
        "refused-member-reports",
        "Reports of a refused member change nothing in what is assigned.",
        "coopconsume/group/dealing.py",
        "_with_reports(accepted.values(), rebalance)",
        "_with_reports(_read(rebalance.joined)[0].values(), rebalance)",
        (_CORE + "test_a_refused_member_reports_no_topics",),
    ),
    Mutant(
        "stalled-leader-notes-later",
        "A leader decides by the epoch that it noted when Kafka asked it.",
        "coopconsume/group/core.py",
        "rebalance, assignor, group=self.group",
        "type(rebalance)(**vars(rebalance) | {'noted': self.noted}), assignor, group=self.group",
        (_CORE + "test_a_stalled_leader_decides_by_what_it_noted_when_it_was_asked",),
    ),
    Mutant(
        "leaving-consumer-begins",
        "A consumer that leaves begins with no assignment that comes meanwhile.",
        "coopconsume/group/current_assignment.py",
        "is_open = not self.leaving.is_set()",
        "is_open = True",
        (
            "tests/unit/group/test_current_assignment.py::test_a_consumer_that_leaves_begins_nothing_and_keeps_nobody_waiting",
        ),
    ),
    Mutant(
        "second-refusal-hides-the-first",
        "A listener hears of lost key ranges also if the log refuses the member once more.",
        "coopconsume/group/current_assignment.py",
        "self._refused = refused or self._refused",
        "self._refused = refused",
        ("tests/unit/group/test_current_assignment.py::test_what_the_log_refused_is_said_once",),
    ),
    Mutant(
        "close-revokes-nothing",
        "A consumer that closes calls on_revoked for what it holds, once.",
        "coopconsume/group/membership.py",
        "if is_due and assignment is not None:",
        "if is_due and assignment is None:",
        ("tests/unit/group/test_group_member.py::test_closing_revokes_what_was_assigned_once",),
    ),
    Mutant(
        "replaced-topic-loses-records",
        "A job goes on with a topic that was created again only if all of the old one is done.",
        "coopconsume/group/assigned_logs.py",
        "return not self.losses_of(error.topic, uncommitted or {})",
        "return True",
        (_JOB + "test_a_topic_that_is_created_again_is_taken_up_where_nothing_is_lost",),
    ),
    Mutant(
        "regrown-log-is-taken-for-the-old-one",
        "A log that was cut and grew again while nobody had it is noticed.",
        "coopconsume/group/assigned_logs.py",
        "if tp in known and end < known[tp].offset}",
        "if tp not in known}",
        (
            _JOB + "test_a_log_that_was_cut_and_has_grown_while_nobody_had_it_is_noticed",
            "tests/broker/test_log_ends.py::test_new_records_under_old_offsets_are_not_considered_done",
        ),
    ),
    Mutant(
        "followed-cut-is-a-new-one",
        "A cut that the commit log has followed is no other cut.",
        "commits/partition_rules.py",
        "        state.reached = None\n        return",
        "        return",
        (
            _JOB + "test_a_log_that_was_cut_and_has_grown_while_nobody_had_it_is_noticed",
            _FOLD,
        ),
    ),
    Mutant(
        "reached-beyond-what-is-done",
        "A commit vouches for the log only as far as what it says is done.",
        "coopconsume/group/assigned_logs.py",
        "OffsetAndEpoch(min(end.offset, done.last + 1), end.leader_epoch)",
        "OffsetAndEpoch(end.offset, end.leader_epoch)",
        (_JOB + "test_a_log_that_was_cut_and_has_grown_while_nobody_had_it_is_noticed",),
    ),
    Mutant(
        "snapshot-forgets-leader-epochs",
        "Snapshots contain how far logs had reached.",
        "commits/snapshot.py",
        "            if state.reached is not None\n",
        "            if state.reached is state\n",
        (_FOLD,),
    ),
    Mutant(
        "last-leader-epoch-wins",
        "Of two ends of a log the higher one is kept, with its leader epoch.",
        "commits/fold.py",
        "(state.reached, reached.get(part.topic_partition))",
        "(reached.get(part.topic_partition),)",
        (_FOLD,),
    ),
]

POLLING = [
    Mutant(
        "poll-of-a-replaced-topic",
        "A poll looks whether a topic was created again before it hands out records.",
        "coopconsume/runtime/poll/poller.py",
        "if repeated(lambda: self._leaves_deleted(membership, assignment), what, left, over):",
        "if False:",
        (_POLLING + "test_no_record_of_a_topic_that_was_created_again_is_handed_out",),
    ),
    Mutant(
        "ends-of-a-replaced-topic",
        "A poll that waits believes the new end of a log only if the topic is the same.",
        "coopconsume/runtime/poll/poller.py",
        "if assignment.logs.has_changed(found) and",
        "if False and",
        (_POLLING + "test_a_topic_that_is_created_again_while_a_poll_waits_is_noticed",),
    ),
    Mutant(
        "letter-of-a-replaced-topic",
        "No dead letter is written of a record of a topic that was created again.",
        "coopconsume/runtime/poll/poller.py",
        "letters = self._letters_of(assignment, reasons)\n            assignment.logs.check_topics()",
        "letters = self._letters_of(assignment, reasons)\n           ",
        (_POLLING + "test_no_record_of_a_topic_that_was_created_again_is_handed_out",),
    ),
    Mutant(
        "pause-lost-at-a-rebalance",
        "A paused partition that stays assigned stays paused.",
        "coopconsume/runtime/poll/session.py",
        "self._paused |= {",
        "_ = {",
        (_POLLING + "test_what_is_paused_stays_so_where_it_stays_ours",),
    ),
    Mutant(
        "poll-commit-all-or-nothing",
        "A commit of polled records at the limit takes what fits.",
        "coopconsume/runtime/poll/answers.py",
        "assignment.affordable(named, filtered), OffsetRanges()",
        "dict(named), OffsetRanges()",
        (_POLLING + "test_at_the_limit_a_commit_takes_what_fits_and_says_what_is_left",),
    ),
    Mutant(
        "poll-reads-on-at-the-limit",
        "From 80 % of the limit of ranges on a poll hands out gaps alone.",
        "coopconsume/runtime/poll/positions.py",
        "return has_many and not",
        "return False and not",
        (_POLLING + "test_at_80_percent_of_the_limit_a_poll_hands_out_gaps_alone_and_says_why",),
    ),
    Mutant(
        "record-that-waits-stuck-at-the-limit",
        "What lies below a record that waits is handed out at the limit, too.",
        "coopconsume/runtime/poll/positions.py",
        "return has_many and not self.retries.has_from(self.frontier)",
        "return has_many",
        (_POLLING + "test_records_that_wait_come_again_at_the_limit",),
    ),
    Mutant(
        "answer-for-anything",
        "Only what a frame contained may be answered for.",
        "coopconsume/runtime/poll/session.py",
        "    if strange:\n        first, last",
        "    if False:\n        first, last",
        (
            _POLLING + "test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost",
            _POLLING + "test_a_range_over_a_waiting_key_is_refused",
        ),
    ),
    Mutant(
        "key-waits-too-short",
        "A polled key comes again when its last held record is due.",
        "coopconsume/runtime/poll/retry_buffer.py",
        "max(due.get(record.key_hash, 0.0), at)",
        "min(due.get(record.key_hash, record.due), record.due)",
        (
            "tests/unit/runtime/test_retry_buffer.py::test_a_key_waits_for_the_record_that_is_due_last",
        ),
    ),
]

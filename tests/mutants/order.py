"""Mutants of what a batch reads, what runs side by side, and its limits."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOP = "tests/model/test_loop_model.py::test_any_run_keeps_the_order_and_settles_every_record"
_PLAN = "tests/unit/runtime/test_plan_rules.py::"
_JUDGE = "tests/model/test_judge.py::"
_LIMITS = "tests/model/test_limits_model.py::"

ORDER = [
    Mutant(
        "first-blocked-hash-dropped",
        "A batch carries the lowest pending offset of every key that waits.",
        "coopconsume/runtime/plan/lanes.py",
        "for lane, waiting in cursor.waiting.lowest.items()}",
        "for lane, waiting in [*cursor.waiting.lowest.items()][1:]}",
        (
            _PLAN + "test_every_key_with_a_waiting_record_is_blocked_in_the_next_batch",
            _JUDGE + "test_what_comes_while_a_record_waits_for_its_next_attempt_is_seen_to_wait",
        ),
    ),
    Mutant(
        "failed-key-not-blocked",
        "A failed record holds back the later records of its key.",
        "coopconsume/worker/blocked_lanes.py",
        'if self._ordering != "none":',
        'if self._ordering == "partition":',
        ("tests/unit/worker/test_slot.py::test_a_failed_record_blocks_its_key_alone", _LOOP),
    ),
    Mutant(
        "lane-starts-two",
        "Of a key at most one record is at work.",
        "coopconsume/worker/blocked_lanes.py",
        'return row.key_hash if ordering == "key"',
        'return ~row.offset if ordering == "key"',
        ("tests/model/test_lanes_model.py::test_any_slot_keeps_the_order_and_settles_every_row",),
    ),
    Mutant(
        "higher-pending-first",
        "Of two pending records of a key the lower one goes first.",
        "coopconsume/runtime/plan/waiting_records.py",
        "higher.offset < failed.offset",
        "higher.offset > failed.offset",
        (_PLAN + "test_of_two_pending_records_of_a_key_the_lower_one_goes_first",),
    ),
    Mutant(
        "gaps-not-read-first",
        "After a start all gaps are read before anything new.",
        "coopconsume/runtime/plan/cursor.py",
        "self.position < scope.goal and not scope.cuts(self.todo)",
        "self.position < scope.goal",
        (_PLAN + "test_gaps_come_before_anything_new",),
    ),
    Mutant(
        "behind-forgotten",
        "What waits behind a failed record is done after it.",
        "coopconsume/runtime/plan/waiting_records.py",
        "released += first.behind",
        "pass",
        (_LOOP,),
    ),
    Mutant(
        "blocked-pending-never-tries",
        "A pending record, and lower ones of its key, start although its key is blocked.",
        "coopconsume/worker/blocked_lanes.py",
        "row.offset > self.blocked[row.part].get(self.lane(row), row.offset)",
        "self.lane(row) in self.blocked[row.part]",
        (
            "tests/unit/worker/test_crashes.py::test_a_pending_record_and_lower_ones_may_start_while_their_key_is_blocked",
        ),
    ),
    Mutant(
        "pending-before-lower-undone",
        "A pending record above all that is done waits until the offsets below it were read.",
        "coopconsume/runtime/plan/lanes.py",
        "if cursor.position <= offset:",
        "if offset < 0:",
        (
            "tests/model/test_loop_model.py::test_a_pending_record_above_all_that_is_done_waits_for_lower_ones_of_its_key",
        ),
    ),
    Mutant(
        "parked-record-forgotten",
        "A lower record of a parked key that fails keeps the parked record parked.",
        "coopconsume/runtime/plan/waiting_records.py",
        "failed.next = higher",
        "failed.next = None",
        (
            "tests/model/test_loop_model.py::test_lower_records_of_a_parked_key_are_handled_and_it_stays_parked",
        ),
    ),
    Mutant(
        "limit-stops-the-stable-offset",
        "At the limit of ranges a member reads on up to what others have committed.",
        "coopconsume/runtime/plan/slot_work.py",
        "max(done + 1, ledger.log_last + 1, *positions)",
        "max(done + 1, *positions)",
        (
            "tests/model/test_limits_model.py::test_a_limit_does_not_stop_the_member_that_has_the_stable_offset",
        ),
    ),
    Mutant(
        "reported-early-and-done-again",
        "What a slot reported while it worked is not done again if the slot is lost.",
        "coopconsume/runtime/plan/slot_work.py",
        "        report = self._take(cursor, report, cursor.dispatched, now)\n",
        "        pass\n",
        (_PLAN + "test_what_a_slot_reported_while_it_worked_is_not_done_again",),
    ),
    Mutant(
        "charged-although-done",
        "A record that was reported as done is not charged for the end of its worker.",
        "coopconsume/runtime/plan/slot_work.py",
        "[failure for failure in report.failed if failure.offset in wanted]",
        "[*report.failed]",
        (_PLAN + "test_what_a_slot_reported_while_it_worked_is_not_done_again",),
    ),
    Mutant(
        "leftovers-below-the-log-start",
        "What was in flight below a new log start is not planned again.",
        "coopconsume/runtime/plan/slot_work.py",
        "# The stable offset may have passed what was dispatched: retention deletes records.\n        cursor.forget_below(self._ledger.stable)",
        "pass",
        (
            "tests/unit/runtime/test_reads.py::test_what_is_in_flight_below_a_new_log_start_is_not_planned_again",
        ),
    ),
    Mutant(
        "log-start-of-another-member-ignored",
        "A stable offset that another member moves drops what is left below it.",
        "coopconsume/runtime/plan/lanes.py",
        "cursor.forget_below(stable)",
        "cursor.position = max(cursor.position, stable)",
        (
            "tests/unit/runtime/test_reads.py::test_a_log_start_that_another_member_found_counts_for_all",
        ),
    ),
]

LIMITS = [
    Mutant(
        "partition-at-its-limit-reads-on",
        "Nothing new is read of a partition near its limit of ranges.",
        "coopconsume/runtime/plan/ledger.py",
        "return self.ranges >= read_limit(self.max_ranges) or self.has_outputs_enough",
        "return False",
        (
            "tests/model/test_limits_model.py::test_waiting_outputs_stop_new_reads_and_are_reported",
            _LIMITS + "test_a_share_that_fell_behind_goes_on_in_a_partition_at_its_limit",
        ),
    ),
    Mutant(
        "reads-up-to-the-limit",
        "Nothing new is read from 80 % of the limit of ranges on.",
        "coopconsume/runtime/plan/range_limit.py",
        "max_ranges * 8 // 10",
        "max_ranges",
        (_LIMITS + "test_a_share_that_fell_behind_goes_on_in_a_partition_at_its_limit",),
    ),
    Mutant(
        "real-time-reads-on-at-the-limit",
        "A slot that reads by itself stops at 80 % of the ranges of a partition.",
        "coopconsume/runtime/realtime/mode.py",
        "        if partition.ledger.is_at_limit:\n",
        "        if False:\n",
        (
            "tests/unit/runtime/test_real_time.py::test_a_slot_reads_no_more_of_a_partition_with_80_percent_of_its_ranges",
        ),
    ),
    Mutant(
        "handled-records-refused-at-the-limit",
        "What was read and handled is committed, however many ranges there are.",
        "coopconsume/group/epoch_assignment.py",
        "limited=False,",
        "limited=True,",
        (
            "tests/unit/runtime/test_committer.py::test_what_a_job_has_handled_is_committed_at_once_however_many_ranges_there_are",
        ),
    ),
    Mutant(
        "ends-without-the-last-commit",
        "A share is not handed over before what is done is committed, also if a destination is away.",
        "coopconsume/runtime/commit/committer.py",
        " or moves or self._next.has_any:",
        " or moves or self._next.since:",
        (
            "tests/unit/runtime/test_committer.py::test_commits_go_on_while_a_topic_does_not_take_outputs",
        ),
    ),
    Mutant(
        "rebalance-asked-for-below-the-limit",
        "A rebalance is asked for only from the limit of ranges on.",
        "coopconsume/runtime/plan/range_limit.py",
        "if partition.ledger.ranges >= partition.ledger.max_ranges:",
        "if partition.ledger.is_at_limit:",
        (_LIMITS + "test_a_rebalance_is_asked_for_once_in_a_while_and_only_if_nothing_moves",),
    ),
    Mutant(
        "parked-record-at-the-limit-is-a-decision",
        "A job that reads nothing because of its limit says so, also where records are parked.",
        "coopconsume/runtime/status/waiting.py",
        "if p.ledger.is_at_limit and p.supply.parked and p.supply.left]",
        "if False]",
        (
            "tests/unit/runtime/test_waiting.py::test_a_parked_record_at_the_limit_says_that_nothing_more_is_read",
        ),
    ),
    Mutant(
        "limit-exceeded",
        "A commit of a user's does not exceed the limit of ranges.",
        "commits/affordable.py",
        "fits[np.flatnonzero(~fits)[:allowed]] = True",
        "fits[:] = True",
        (
            "tests/model/test_limits_model.py::test_what_is_affordable_is_never_refused_and_no_more_would_fit",
        ),
    ),
]

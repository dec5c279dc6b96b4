"""Mutants of decisions on failed records."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DECISIONS = "tests/unit/runtime/test_decisions.py::"
_LOOP = "tests/model/test_loop_model.py::"
_CHUNKS = "tests/model/test_cooperative_job.py::"
_GIVEN_UP = "tests/unit/worker/test_given_up.py::"

DECISIONS = [
    Mutant(
        "chunk-decision-waits-for-the-back-off",
        "A decision on a failed record of a cooperative epoch has a member acquire it at once.",
        "coopconsume/runtime/plan/acquiring.py",
        "(now if decided.makes_due(one) else one.due, one.offset)",
        "(one.due, one.offset)",
        (_CHUNKS + "test_failed_chunks_are_decided_on_while_members_work",),
    ),
    Mutant(
        "decision-ends-a-doubt",
        "A decision starts no record while a handler of a lost slot may be at work on it.",
        "coopconsume/runtime/plan/decided_records.py",
        " or record.may_run_until > now",
        "",
        (_DECISIONS + "test_a_record_waits_on_while_a_handler_may_be_at_work_on_it",),
    ),
    Mutant(
        "uncounted-retry-keeps-its-decision",
        "A call that does not count is the outcome of a decision to retry.",
        "coopconsume/runtime/decisions.py",
        "return attempts != self.attempts or not is_same",
        "return attempts != self.attempts",
        (_DECISIONS + "test_a_call_that_does_not_count_is_a_retry",),
    ),
    Mutant(
        "parked-is-skipped",
        "A record that is parked by a decision is not done.",
        "coopconsume/worker/outcome.py",
        "        if not given_up.park:\n",
        "        if True:\n",
        (_GIVEN_UP + "test_a_record_is_given_up_without_a_call",),
    ),
    Mutant(
        "replaced-decision-comes-back",
        "A decision that another one has replaced is not applied after it.",
        "coopconsume/runtime/decisions.py",
        '        elif status == "open":\n',
        "        else:\n",
        (_DECISIONS + "test_the_last_decision_on_a_record_counts",),
    ),
    Mutant(
        "decision-kept-from-the-slot",
        "A record that is to be given up is not handled once more.",
        "coopconsume/runtime/plan/decided_records.py",
        'if decision.action != "retry" and offset in offsets',
        'if decision.action == "park" and offset in offsets',
        (_LOOP + "test_a_decision_on_a_record_that_waits_is_carried_out_at_once",),
    ),
]

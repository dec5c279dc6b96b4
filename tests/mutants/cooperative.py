"""Mutants of jobs that share partitions by chunks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHUNKS = "tests/unit/runtime/test_chunks.py::"
_JOB = "tests/model/test_cooperative_job.py::"
_MODEL = "tests/model/test_stock_model.py::test_members_together_settle_every_record_once"
_CORE = "tests/unit/group/test_group_core.py::"
_PARTITION = "coopconsume/runtime/plan/partition.py"

COOPERATIVE_JOBS = [
    Mutant(
        "chunk-started-twice",
        "What is acquired again while it is worked on is not started again.",
        _PARTITION,
        "claimed |= share.claimed()",
        "pass",
        (_CHUNKS + "test_what_is_acquired_again_while_it_is_worked_on_is_not_started_again",),
    ),
    Mutant(
        "chunk-lost-and-started",
        "What has gone to other members is not started.",
        _PARTITION,
        "share.todo &= self.stock.acquired  # The rest",
        "share.todo &= share.todo  # The rest",
        (_CHUNKS + "test_what_is_acquired_again_while_it_is_worked_on_is_not_started_again",),
    ),
    Mutant(
        "chunk-undealt-is-a-hole",
        "Only what a slot was given and did not get is a hole.",
        _PARTITION,
        "self.stock.acquired - self.stock.undealt - self.done",
        "self.stock.acquired - self.done",
        (_MODEL,),
    ),
    Mutant(
        "chunk-failing-started",
        "A failure that is not in the commit log is not tried again.",
        _PARTITION,
        "self.done | self.undelivered | self.stock.failing",
        "self.done | self.undelivered",
        (_CHUNKS + "test_a_failure_that_is_not_in_the_commit_log_is_not_tried_again",),
    ),
    Mutant(
        "chunk-not-held-is-done",
        "What did not count in a commit is not done.",
        _PARTITION,
        "self.done -= offsets.clip(self.stable, MAX_OFFSET)",
        "pass",
        (_CHUNKS + "test_what_another_member_has_acquired_is_not_done",),
    ),
    Mutant(
        "chunk-asked-for-twice",
        "Between two looks at the log no offset is asked for twice.",
        "coopconsume/runtime/acquiring.py",
        "self._asked.get(tp, 0) + wanted.count - len(wanted.due)",
        "0",
        (_CHUNKS + "test_a_request_asks_for_what_is_missing_and_no_offset_twice",),
    ),
    Mutant(
        "chunk-new-at-the-limit",
        "At the limits on ranges and pending records nothing new is acquired.",
        "coopconsume/runtime/acquiring.py",
        "last = -1 if is_full else partition.end - 1",
        "last = partition.end - 1",
        (_CHUNKS + "test_a_full_partition_gives_what_was_returned_and_nothing_new",),
    ),
    Mutant(
        "chunk-batch-of-leftovers",
        "A batch waits for the chunks that its slots are about to get.",
        "coopconsume/runtime/dispatch.py",
        "if epoch_state.committer.awaits_chunks:",
        "if False:",
        (_JOB + "test_a_batch_waits_for_the_chunks_that_its_slots_are_about_to_get",),
    ),
    Mutant(
        "chunk-parked-keeps-from-the-end",
        "Parked records do not keep a job from its end.",
        _PARTITION,
        "stuck += [waiting.offset for waiting in self.stock.parked]",
        "pass",
        (_CHUNKS + "test_parked_records_do_not_keep_a_job_from_its_end",),
    ),
    Mutant(
        "chunk-parked-is-acquired",
        "A parked record is acquired by nobody.",
        "commits/group.py",
        "for o, p in state.pending.items() if p.is_parked)",
        "for o in ())",
        ("tests/unit/commits/test_acquisitions.py::test_a_parked_record_is_acquired_by_nobody",),
    ),
    Mutant(
        "chunk-parked-is-not-shown",
        "Progress shows the records that are parked, by whichever member.",
        "coopconsume/runtime/committer.py",
        "self._meter.parked([p for",
        "str([p for",
        (_JOB + "test_parked_records_hold_back_no_other_and_wait_for_a_decision",),
    ),
    Mutant(
        "chunk-of-the-living-expires",
        "Chunks of members of the epoch do not expire.",
        "coopconsume/group/chunks.py",
        "if chunk.member not in members]",
        "if chunk.member != member]",
        (_JOB + "test_chunks_of_a_member_that_is_gone_come_back_after_its_handlers_have_ended",),
    ),
    Mutant(
        "chunk-kept-by-a-stopped-job",
        "A job that ends returns what it has not done.",
        "coopconsume/runtime/loop.py",
        "epoch_state.assignment.return_chunks(self._left_of(epoch_state))",
        "pass",
        (_JOB + "test_a_job_that_stops_returns_what_it_has_not_started",),
    ),
    Mutant(
        "chunk-slices-shared",
        "Slots read for themselves only if no slice lies in another one.",
        "coopconsume/runtime/reading/source.py",
        "if is_same and one.last >= other.first:",
        "if is_same and one.last < one.first:",
        (_CHUNKS + "test_slots_with_a_span_each_read_for_themselves",),
    ),
    Mutant(
        "chunk-barred-slot-gets-some",
        "A slot that may not start anything gets no slice.",
        "coopconsume/runtime/plan/slices.py",
        "if share.is_free(now) and partition.stock is not None:",
        "if partition.stock is not None:",
        (_CHUNKS + "test_a_slot_that_must_not_start_anything_else_gets_no_slice",),
    ),
    Mutant(
        "chunk-newcomer-rules",
        "A member that joins a group at work is refused, and not the group.",
        "coopconsume/group/core.py",
        "(at_work[one], setups[one], one == mine)",
        "(setups[one], one == mine)",
        (_CORE + "test_only_the_newcomer_is_refused_if_it_shares_in_another_way",),
    ),
    Mutant(
        "chunk-part-of-a-partition",
        "A partition is, if part of it is claimed, nobody's in a cooperative epoch.",
        "coopconsume/group/core.py",
        "splits = () if self.sharing == COOPERATIVE else shareable",
        "splits = shareable",
        (_CORE + "test_members_of_a_cooperative_epoch_have_all_partitions",),
    ),
]

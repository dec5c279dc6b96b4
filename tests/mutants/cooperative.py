"""Mutants of jobs that share partitions by chunks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHUNKS = "tests/unit/runtime/test_chunks.py::"
_JOB = "tests/model/test_cooperative_job.py::"
_MODEL = "tests/model/test_stock_model.py::test_members_together_settle_every_record_once"
_LIVE = "tests/model/test_cooperative_real_time.py::"
_CHANNEL = "tests/unit/worker/test_channel.py::"
_SERVER = (
    "tests/model/test_fetch_server_model.py::"
    "test_each_slot_gets_its_chunks_once_whatever_becomes_of_the_server"
)
_CORE = "tests/unit/group/test_group_core.py::"
_PARTITION = "coopconsume/runtime/plan/partition.py"

_DISPATCHER = "coopconsume/runtime/dispatch/dispatcher.py"

_SIZES = "coopconsume/runtime/plan/chunk_sizes.py"

COOPERATIVE_JOBS = [
    Mutant(
        "chunk-tail-beyond-the-limit",
        "A tail does not exceed the limit on the offsets of a batch.",
        _SIZES,
        "self._is_limited or there <= total",
        "there <= total",
        (_CHUNKS + "test_a_tail_goes_with_the_slices_before_it",),
    ),
    Mutant(
        "chunk-of-an-only-member-is-kept",
        "What an only member holds and does not handle soon goes to those that join.",
        _DISPATCHER,
        "return 0 < most < epoch_state.committer.acquired",
        "return False",
        (_JOB + "test_what_only_one_member_wanted_goes_to_those_that_join",),
    ),
    Mutant(
        "chunk-of-an-only-member-is-small",
        "An only member begins with what a batch may span.",
        _DISPATCHER,
        "self.window.offsets if epoch_state.committer.is_only_member else 0",
        "0",
        (_JOB + "test_what_only_one_member_wanted_goes_to_those_that_join",),
    ),
    Mutant(
        "chunk-started-twice",
        "What is acquired again while it is worked on is not started again.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "ledger.undelivered | self.failing | lanes.claimed()",
        "ledger.undelivered | self.failing",
        (_CHUNKS + "test_what_is_acquired_again_while_it_is_worked_on_is_not_started_again",),
    ),
    Mutant(
        "chunk-lost-and-started",
        "What has gone to other members is not started.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "return offsets & self.acquired",
        "return offsets",
        (_CHUNKS + "test_what_is_acquired_again_while_it_is_worked_on_is_not_started_again",),
    ),
    Mutant(
        "chunk-undealt-is-a-hole",
        "Only what a slot was given and did not get is a hole.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "return self.acquired - self.undealt - known",
        "return self.acquired - known",
        (_MODEL,),
    ),
    Mutant(
        "chunk-failing-started",
        "A failure that is not in the commit log is not tried again.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "ledger.undelivered | self.failing | lanes.claimed()",
        "ledger.undelivered | lanes.claimed()",
        (_CHUNKS + "test_a_failure_that_is_not_in_the_commit_log_is_not_tried_again",),
    ),
    Mutant(
        "chunk-not-held-is-done",
        "What did not count in a commit is not done.",
        "coopconsume/runtime/plan/ledger.py",
        "self.done -= offsets.clip(self.stable, MAX_OFFSET)",
        "pass",
        (_CHUNKS + "test_what_another_member_has_acquired_is_not_done",),
    ),
    Mutant(
        "chunk-asked-for-twice",
        "Between two looks at the log no offset is asked for twice.",
        "coopconsume/runtime/plan/acquiring.py",
        "self._asked.get(tp, 0) + wanted.count - len(wanted.due)",
        "0",
        (_CHUNKS + "test_a_request_asks_for_what_is_missing_and_no_offset_twice",),
    ),
    Mutant(
        "chunk-new-at-the-limit",
        "At the limits on ranges and pending records nothing new is acquired.",
        "coopconsume/runtime/plan/acquiring.py",
        "last = -1 if is_full else partition.ledger.end - 1",
        "last = partition.ledger.end - 1",
        (_CHUNKS + "test_a_full_partition_gives_what_was_returned_and_nothing_new",),
    ),
    Mutant(
        "chunk-batch-of-leftovers",
        "A batch waits for the chunks that its slots are about to get.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "if epoch_state.committer.awaits_chunks:",
        "if False:",
        (_JOB + "test_a_batch_waits_for_the_chunks_that_its_slots_are_about_to_get",),
    ),
    Mutant(
        "chunk-parked-keeps-from-the-end",
        "Parked records do not keep a job from its end.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "self._ledger.first_open(self._lanes.stuck() | parked)",
        "self._ledger.first_open(self._lanes.stuck())",
        (_CHUNKS + "test_parked_records_do_not_keep_a_job_from_its_end",),
    ),
    Mutant(
        "chunk-parked-is-acquired",
        "A parked record is acquired by nobody.",
        "commits/fold.py",
        "for o, p in state.pending.items() if p.is_parked)",
        "for o in ())",
        ("tests/unit/commits/test_acquisitions.py::test_a_parked_record_is_acquired_by_nobody",),
    ),
    Mutant(
        "chunk-parked-is-not-shown",
        "Progress shows the records that are parked, by whichever member.",
        "coopconsume/runtime/commit/committer.py",
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
        "epoch_state.assignment.return_chunks(self._rebalance.left_of(epoch_state))",
        "pass",
        (_JOB + "test_a_job_that_stops_returns_what_it_has_not_started",),
    ),
    Mutant(
        "chunk-slices-shared",
        "Slots read for themselves only if no slice lies in another one.",
        "coopconsume/runtime/read/offset_frames.py",
        "if is_same and one.last >= other.first:",
        "if is_same and one.last < one.first:",
        (_CHUNKS + "test_slots_with_a_span_each_read_for_themselves",),
    ),
    Mutant(
        "chunk-barred-slot-gets-some",
        "A slot that may not start anything gets no slice.",
        "coopconsume/runtime/plan/slices.py",
        "            if cursor.takes_chunks(now):\n",
        "            if True:\n",
        (_CHUNKS + "test_a_slot_that_must_not_start_anything_else_gets_no_slice",),
    ),
    Mutant(
        "live-chunk-not-named-is-a-hole",
        "What a slot that reads by itself has not named is left to do: it may not have got it.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "return cursor.dispatched or OffsetRanges() if cursor.is_real_time else left",
        "return left",
        (_CHUNKS + "test_what_a_slot_has_not_named_is_left_and_no_hole",),
    ),
    Mutant(
        "live-hole-of-another-slot",
        "A slot that reads by itself finds holes in its own chunks alone.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "(holes - self._ledger.done) & (cursor.dispatched or OffsetRanges())",
        "holes - self._ledger.done",
        (_CHUNKS + "test_a_slot_that_reads_by_itself_gets_chunks_while_it_works",),
    ),
    Mutant(
        "live-attempts-lost",
        "A record that failed before goes on with its attempts, whichever slot gets it.",
        "coopconsume/runtime/plan/slot_work.py",
        "return self._work_of(cursor, new) if new else None",
        "return PartitionWork(tuple(new.pairs())) if new else None",
        (_CHUNKS + "test_a_failed_record_that_is_due_goes_to_a_slot_with_its_attempts",),
    ),
    Mutant(
        "live-chunk-handed-out-twice",
        "A chunk is handed out once.",
        "coopconsume/runtime/plan/chunk_supply.py",
        "new = cursor.todo - cursor.dispatched",
        "new = cursor.todo",
        (_LIVE + "test_slots_handle_each_new_record_once",),
    ),
    Mutant(
        "live-lost-chunks-started",
        "A run ends if chunks have gone to other members.",
        "coopconsume/runtime/realtime/mode.py",
        "if partition.supply.has_lost:",
        "if False:",
        (_CHUNKS + "test_a_run_ends_if_chunks_are_lost_or_not_read",),
    ),
    Mutant(
        "live-stuck-slot-gets-more",
        "A slot that is stuck gets no more of what others could handle.",
        "coopconsume/runtime/plan/chunk_sizes.py",
        "if now - self._moved_at.setdefault(slot, now) > _WINDOW:",
        "if self._moved_at.setdefault(slot, now) > now:",
        (_CHUNKS + "test_sizes_follow_the_speed_of_slots_that_read_by_themselves",),
    ),
    Mutant(
        "ahead-given-back-stays",
        "A batch reads no further than the log goes, whatever a run before it has left.",
        "coopconsume/runtime/plan/slices.py",
        "    _take_back(partitions, slots, now)\n",
        "",
        (_CHUNKS + "test_a_batch_reads_no_further_than_the_log_goes",),
    ),
    Mutant(
        "ahead-dealt-to-a-batch",
        "A batch gets no offsets that the log does not reach.",
        "coopconsume/runtime/plan/slices.py",
        "partition.chunks.take(count, partition.ledger.end)",
        "partition.chunks.take(count)",
        (_CHUNKS + "test_a_batch_reads_no_further_than_the_log_goes",),
    ),
    Mutant(
        "ahead-hides-what-nobody-has",
        "What is acquired beyond the end of a log does not hide offsets that nobody has.",
        "coopconsume/runtime/plan/acquiring.py",
        "len(chunks.held.clip(0, partition.ledger.end - 1))",
        "len(chunks.held)",
        (_CHUNKS + "test_offsets_beyond_the_log_do_not_hide_those_that_nobody_has",),
    ),
    Mutant(
        "ahead-asked-for-in-vain",
        "A request that got nothing is repeated only after the next look at the log.",
        "coopconsume/runtime/plan/acquiring.py",
        "0 if is_full or tp in self._barren else",
        "0 if is_full else",
        (_CHUNKS + "test_a_request_asks_ahead_of_the_log",),
    ),
    Mutant(
        "ahead-read-by-a-server",
        "A fetch server begins no read beyond the end of the log.",
        "coopconsume/worker/realtime/fetch_messages.py",
        "self.end - NEAR <= self.offset <= self.end",
        "self.end - NEAR <= self.offset",
        (_SERVER,),
    ),
    Mutant(
        "chunk-before-a-slot-begins-lost",
        "A slot gets the chunks that came before it had begun.",
        "coopconsume/worker/channel/client.py",
        "for work in self._early:",
        "for work in ():",
        (_CHANNEL + "test_chunks_that_come_before_a_slot_begins_are_not_lost",),
    ),
    Mutant(
        "chunk-portion-too-far",
        "A portion ends with the chunk that was asked for.",
        "coopconsume/worker/realtime/record_cache.py",
        "following = min(chunk.next, ask.last + 1)",
        "following = chunk.next",
        (_SERVER,),
    ),
    Mutant(
        "chunk-newcomer-rules",
        "A member that joins a group at work is refused, and not the group.",
        "coopconsume/group/agreement.py",
        "(working[one], counts[one], one == values.get(me))",
        "(counts[one], one == values.get(me))",
        (_CORE + "test_only_the_newcomer_is_refused_if_it_shares_in_another_way",),
    ),
    Mutant(
        "chunk-part-of-a-partition",
        "A partition is, if part of it is claimed, nobody's in a cooperative epoch.",
        "coopconsume/group/core.py",
        "splits = () if shares_chunks else shareable",
        "splits = shareable",
        (_CORE + "test_members_of_a_cooperative_epoch_have_all_partitions",),
    ),
]

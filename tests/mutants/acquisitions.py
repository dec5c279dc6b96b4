"""Mutants of cooperative fetch: what a request gets, late commits, expiry, snapshots."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RULES = "tests/unit/commits/test_acquisitions.py::"
_SINKS = "tests/unit/sinks/test_sinks.py::"
_MODEL = "tests/model/test_acquisitions_model.py::test_any_schedule_keeps_the_promises"
_CHUNKS = "commits/acquisitions.py"

ACQUISITIONS = [
    Mutant(
        "chunk-marker-stays",
        "A request moves the marker past the new offsets that it gets.",
        _CHUNKS,
        "self.marker = new.last + 1",
        "pass",
        (_RULES + "test_requests_get_consecutive_chunks",),
    ),
    Mutant(
        "chunk-pending-is-returned",
        "Pending records are acquired by name alone.",
        _CHUNKS,
        "returned = commits.uncommitted(0, start - 1) - held - waiting",
        "returned = commits.uncommitted(0, start - 1) - held",
        (_RULES + "test_pending_records_are_acquired_by_name",),
    ),
    Mutant(
        "chunk-held-is-returned",
        "What somebody holds is not returned.",
        _CHUNKS,
        "returned = commits.uncommitted(0, start - 1) - held - waiting",
        "returned = commits.uncommitted(0, start - 1) - waiting",
        (_RULES + "test_chunks_outlive_a_cooperative_epoch",),
    ),
    Mutant(
        "chunk-late-commit-counts",
        "A commit does not count for what another member holds.",
        _CHUNKS,
        "if holder != member)",
        "if not holder)",
        (_RULES + "test_a_late_commit_counts_for_what_nobody_else_has", _MODEL),
    ),
    Mutant(
        "chunk-counts-twice",
        "What another member has committed does not count again under a later commit's id.",
        "commits/fold.py",
        "not_held=taken | before)",
        "not_held=taken)",
        (_RULES + "test_a_late_commit_counts_for_what_nobody_else_has", _MODEL),
    ),
    Mutant(
        "chunk-keeps-pending",
        "A record that is reported as pending leaves its chunk.",
        "commits/fold.py",
        "from_offsets([one.offset for one in pending])",
        "from_offsets([])",
        (_RULES + "test_pending_records_are_acquired_by_name",),
    ),
    Mutant(
        "chunk-expires-in-spite-of-a-renewal",
        "A renewal after a watcher has seen a chunk keeps it.",
        _CHUNKS,
        "chunk.renewals != renewals",
        "renewals < 0",
        (_RULES + "test_a_renewed_chunk_does_not_expire", _MODEL),
    ),
    Mutant(
        "chunk-renewed-by-another",
        "A member renews its own chunks alone.",
        _CHUNKS,
        "chunk.member != member",
        "not member",
        (_RULES + "test_a_renewed_chunk_does_not_expire",),
    ),
    Mutant(
        "chunk-watched-too-short",
        "A watch counts a chunk's time from when it saw it.",
        "commits/chunk_watch.py",
        "now - self._seen[chunk] >= self._timeout",
        "now - self._seen[chunk] >= self._timeout / 2",
        (_RULES + "test_a_watch_counts_from_when_it_saw_a_chunk", _MODEL),
    ),
    Mutant(
        "chunk-request-forgotten",
        "A repeated request is known as long as its chunk is held.",
        "commits/fold.py",
        "return bool(self.acquired(event.id))",
        "return False",
        (_RULES + "test_a_repeated_request_gets_the_same_chunk",),
    ),
    Mutant(
        "chunk-survives-key-ranges",
        "Chunks end with an epoch that shares by key range, and leave doubts.",
        "commits/fold.py",
        "        if not new.uses_chunks:\n",
        "        if new.uses_chunks is None:\n",
        (_RULES + "test_key_ranges_take_over_what_is_committed",),
    ),
    Mutant(
        "chunk-returned-while-at-work",
        "A member that may still be at work on a partition does not return its chunks there.",
        "commits/fold.py",
        "if at not in at_work and (",
        "if (",
        (_RULES + "test_a_member_that_leaves_returns_its_chunks",),
    ),
    Mutant(
        "chunk-below-the-log-start",
        "Retention takes offsets out of chunks.",
        "commits/fold.py",
        "state.acquisitions.clip(state.commits.stable_offset, MAX_OFFSET)",
        "pass",
        (_RULES + "test_ends_of_logs_bound_chunks",),
    ),
    Mutant(
        "chunk-not-in-snapshots",
        "A snapshot has the chunks and the marker.",
        "commits/snapshot.py",
        "**_acquisitions_to_plain(group.partitions),",
        "",
        (_RULES + "test_a_snapshot_has_chunks_and_what_does_not_count",),
    ),
    Mutant(
        "chunk-expires-after-the-request",
        "In one append, overdue chunks are returned before the request acquires.",
        "commits/validation.py",
        'id=f"{request.id}/{kind}"',
        'id=f"{request.id}/s{kind}"',
        (_RULES + "test_overdue_chunks_are_returned_by_a_request",),
    ),
    Mutant(
        "chunk-late-rows-count",
        "Rows of records that do not count in their commit do not count.",
        "coopconsume/sinks/reading.py",
        "for at, offsets in places.items() for pair in offsets",
        "for at, offsets in places.items() for pair in offsets if not offsets",
        (_SINKS + "test_rows_of_records_that_another_member_acquired_do_not_count",),
    ),
]

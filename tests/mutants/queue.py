"""Mutants of work queues: the fold of a replica, the protocol of a consumer, its time limits."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_REPLICA = "coopconsume/queue/replica.py"
_MEMBER = "coopconsume/queue/member.py"
_TIMING = "coopconsume/queue/timing.py"
_LOG = "coopconsume/queue/log.py"
_TABLE = "coopconsume/queue/table_log.py"
_CONSUMER = "coopconsume/queue/consumer.py"
_COMMIT = "tests/unit/queue/test_queue_commit.py::"
_BROKER = "tests/broker/test_queue.py::"
_TABLES = "tests/unit/queue/test_table_log.py::"
_SETTINGS = "tests/unit/queue/test_queue_settings.py::"
_RULES = "tests/unit/queue/test_queue_rules.py::"
_MODEL = "tests/model/test_queue_model.py::test_any_schedule_keeps_the_promises"

QUEUE = [
    Mutant(
        "reader-skips-deleted-rows",
        "A reader of confluent-kafka whose next records were deleted begins again.",
        "coopconsume/queue/log_client.py",
        "elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):",
        "elif False:",
        (
            "tests/broker/test_queue.py::test_a_reader_begins_again_if_its_next_records_were_deleted",
        ),
    ),
    Mutant(
        "queue-letters-hold-back-acknowledgements",
        "Acknowledgements count while dead letters cannot be written.",
        _CONSUMER,
        "        self._settle(session, ACCEPT, RELEASE, RENEW)\n        problem: ",
        "        self._write_letters()\n        self._settle(session, ACCEPT, RELEASE, RENEW)\n        problem: ",
        (_COMMIT + "test_what_is_done_counts_while_dead_letters_cannot_be_written",),
    ),
    Mutant(
        "queue-acquisition-outlasts-its-hold",
        "An acquisition ends with its hold, so that the call that waits for it gets its result.",
        _MEMBER,
        "found.deadline = min(found.until, now + self.limit.seconds)",
        "found.deadline = now + self.limit.seconds",
        (_RULES + "test_an_acquisition_ends_with_its_hold",),
    ),
    Mutant(
        "queue-hold-is-granted-twice",
        "A replica refuses offsets that another consumer holds.",
        _REPLICA,
        "others = fresh & partition.held\n            if others:\n                others -= _union",
        "others = fresh - fresh\n            if others:\n                others -= _union",
        (_RULES + "test_a_replica_decides_by_the_table_for_each_offset", _MODEL),
    ),
    Mutant(
        "queue-old-acquire-moves-a-newer-hold",
        "A repeated old request leaves a newer hold of the same consumer.",
        _REPLICA,
        "and hold.request > row.request",
        "and hold.request < row.request",
        (_RULES + "test_rows_that_come_late_or_twice_do_no_harm",),
    ),
    Mutant(
        "queue-old-row-ends-a-newer-hold",
        "A row of a holder ends holds of its request and earlier ones alone.",
        _REPLICA,
        "if hold.request <= row.request]",
        "if hold.request]",
        (
            _RULES + "test_rows_that_come_late_or_twice_do_no_harm",
            _RULES + "test_an_old_acknowledgement_leaves_a_newer_hold_of_its_consumer",
            _RULES + "test_a_tombstone_on_a_minority_takes_nothing_from_a_majority",
        ),
    ),
    Mutant(
        "queue-late-acknowledgement-always-counts",
        "An acknowledgement is refused for offsets that another consumer holds.",
        _REPLICA,
        "others = fresh & (partition.held - free)",
        "others = fresh & (partition.held - fresh)",
        (_RULES + "test_a_late_acknowledgement_counts_for_what_nobody_else_holds",),
    ),
    Mutant(
        "queue-tombstone-ends-the-hold-of-another",
        "A tombstone leaves the offsets that another consumer holds.",
        _REPLICA,
        """        if row.kind in ("accept", "reject", "tombstone"):
            return self._accept(row)
""",
        """        if row.kind in ("accept", "reject"):
            return self._accept(row)
        if row.kind == "tombstone":
            begun = {p: found for p, found in row.offsets.items() if p in self._partitions}
            self._finish(begun, [*self.holds.values()])
""",
        (
            _RULES + "test_a_tombstone_leaves_the_offsets_that_another_consumer_holds",
            _RULES + "test_a_tombstone_on_a_minority_takes_nothing_from_a_majority",
        ),
    ),
    Mutant(
        "queue-lost-replica-votes",
        "A replica grants nothing in a partition that has not begun there.",
        _REPLICA,
        "                answer.nok[p] = wanted\n                continue",
        "                partition = self._partitions[p] = _ReplicaPartition(PartitionCommits(max_ranges=None))",
        (_RULES + "test_a_partition_grants_nothing_before_it_begins_and_begins_once",),
    ),
    Mutant(
        "queue-withdrawal-counts-as-delivery",
        "Only a delivery raises the delivery count.",
        _REPLICA,
        "self._free(released, delivered=row.delivered)",
        "self._free(released, delivered=True)",
        (_RULES + "test_deliveries_are_counted_until_the_offset_is_done",),
    ),
    Mutant(
        "queue-delay-is-no-hold",
        "Nobody gets released offsets before their delay is over.",
        _REPLICA,
        "if row.seconds > 0:",
        "if row.seconds > 60:",
        (_RULES + "test_released_offsets_are_free_after_their_delay",),
    ),
    Mutant(
        "queue-minority-grants",
        "A consumer gets what a majority of the replicas granted.",
        _MEMBER,
        "self._majority = replicas // 2 + 1",
        "self._majority = 1",
        (_RULES + "test_a_majority_grants_and_a_minority_does_not", _MODEL),
    ),
    Mutant(
        "queue-tombstone-of-one-replica-ignored",
        "What one replica reports as done is not handed out.",
        _MEMBER,
        "granted = minus(granted, answer.tomb)",
        "pass",
        (_RULES + "test_a_done_offset_on_any_replica_is_not_handed_out",),
    ),
    Mutant(
        "queue-late-answer-grants",
        "An answer after the end of the hold grants nothing.",
        _MEMBER,
        "if found.is_local and now < found.until:",
        "if found.is_local:",
        (_RULES + "test_an_answer_after_the_hold_grants_nothing",),
    ),
    Mutant(
        "queue-acknowledged-while-it-is-acquired",
        "Acknowledged offsets are withdrawn from the acquisition in flight.",
        _MEMBER,
        "self._acquisition.asked = minus(self._acquisition.asked, offsets)",
        "pass",
        (_RULES + "test_a_late_acknowledgement_withdraws_its_offsets_from_an_acquisition", _MODEL),
    ),
    Mutant(
        "queue-local-answer-restores-withdrawn-offsets",
        "The answer of the local replica does not bring back what was withdrawn.",
        _MEMBER,
        "found.asked = common(answer.ok, found.asked)",
        "found.asked = answer.ok",
        (_RULES + "test_a_late_acknowledgement_withdraws_its_offsets_from_an_acquisition",),
    ),
    Mutant(
        "queue-acknowledged-before-its-grant-is-used",
        "Acknowledged offsets are withdrawn from grants that were not used.",
        _MEMBER,
        "Granted(minus(found.offsets, offsets), found.until) for found in self._granted",
        "Granted(found.offsets, found.until) for found in self._granted",
        (_RULES + "test_a_late_acknowledgement_withdraws_its_offsets_from_a_grant",),
    ),
    Mutant(
        "queue-acquisition-takes-a-later-number",
        "All rows of an acquisition have one number.",
        _MEMBER,
        "self._acquire_row(found.request, found.asked)",
        "self._acquire_row(self._request, found.asked)",
        (_RULES + "test_a_late_acknowledgement_withdraws_its_offsets_from_an_acquisition",),
    ),
    Mutant(
        "queue-late-renewal-counts",
        "A renewal counts only before its hold would have ended.",
        _MEMBER,
        'return self.settled.kind == "renew" and now >= self.settled.until',
        "return False",
        (_RULES + "test_a_renewal_that_takes_longer_than_its_hold_is_refused",),
    ),
    Mutant(
        "queue-lost-replica-learns-from-a-minority",
        "A replica that lost its log learns what is done from a majority of the others.",
        _MEMBER,
        "if known and len(read) < self._majority and len(readable) < len(self.states):",
        "if known and not read:",
        (_RULES + "test_a_replica_without_its_log_does_not_learn_from_a_minority",),
    ),
    Mutant(
        "queue-minority-keeps-its-grant",
        "What has no majority is released.",
        _MEMBER,
        "return [AppendRow(replica, row) for replica in found.replicas]",
        "return []",
        (_RULES + "test_a_majority_grants_and_a_minority_does_not",),
    ),
    Mutant(
        "queue-own-records-acquired-again",
        "A consumer does not ask for what it has.",
        _MEMBER,
        "for until, offsets in (*self._waiting, *self._mine):",
        "for until, offsets in self._waiting:",
        (_RULES + "test_a_consumer_does_not_acquire_what_it_has_when_its_local_replica_changes",),
    ),
    Mutant(
        "queue-own-hold-extended-without-a-count",
        "What a consumer had, and acquires again, was delivered before.",
        _MEMBER,
        "        rows = self._end_mine(now)\n        local = self._first()",
        "        rows: list[AppendRow] = []\n        local = self._first()",
        (_RULES + "test_what_a_consumer_had_and_acquires_again_is_its_second_delivery",),
    ),
    Mutant(
        "queue-own-hold-ends-early",
        "A consumer does not acquire again what others may not have yet.",
        _MEMBER,
        "self._mine.append((found.until + self._hold * MARGIN, granted))",
        "self._mine.append((found.until, granted))",
        (_RULES + "test_what_a_consumer_had_and_acquires_again_is_its_second_delivery",),
    ),
    Mutant(
        "queue-own-end-taken-for-an-answer",
        "Each acknowledgement is answered, by an answer to it.",
        _MEMBER,
        "        self._request += 1  # its answers are no answers to an acknowledgement\n",
        "",
        (_RULES + "test_the_end_of_an_own_hold_is_no_answer_to_an_acknowledgement",),
    ),
    Mutant(
        "queue-own-end-ends-a-renewed-hold",
        "A consumer does not end a hold that it has renewed.",
        _MEMBER,
        "        later += [settling.settled.offsets for settling in self._settling.values()]\n",
        "",
        (_RULES + "test_a_renewed_hold_outlives_the_end_of_the_first_one",),
    ),
    Mutant(
        "queue-failed-offsets-first",
        "After a failure other offsets come first.",
        _MEMBER,
        "for until, offsets in (*self._waiting, *self._mine):",
        "for until, offsets in self._mine:",
        (_RULES + "test_other_offsets_are_asked_for_after_a_failure",),
    ),
    Mutant(
        "queue-expires-early",
        "A hold expires once it was watched for its whole duration.",
        _MEMBER,
        "self._watched[replica][position] = now + hold.seconds\n",
        "self._watched[replica][position] = now + hold.seconds / 2\n",
        (_RULES + "test_a_hold_ends_once_somebody_has_watched_it_for_its_duration", _MODEL),
    ),
    Mutant(
        "queue-acknowledgement-not-repeated",
        "An acknowledgement is repeated until a majority has it.",
        _MEMBER,
        "rows += [self._send(replica, settling.row, now) for replica in silent]",
        "pass",
        (_RULES + "test_an_acknowledgement_needs_a_majority",),
    ),
    Mutant(
        "queue-lacking-tombstones-not-written",
        "A replica that was away gets the tombstones that it lacks.",
        _MEMBER,
        "if lasting:",
        "if lasting and not missing:",
        (_RULES + "test_replicas_that_lack_tombstones_get_them",),
    ),
    Mutant(
        "queue-lost-replica-begins-empty",
        "A replica that lost its log learns what is done before it grants.",
        _MEMBER,
        "offsets[partition] = self._done(known, partition, 0)",
        "offsets[partition] = _below(start)",
        (_RULES + "test_a_replica_without_its_log_learns_what_is_done_before_it_grants",),
    ),
    Mutant(
        "queue-silent-replica-stays-first",
        "The next replica is asked first while the local one is silent.",
        _MEMBER,
        "self._silent.update(r for r in found.replicas if r not in found.answers)",
        "pass",
        (
            _RULES + "test_the_next_replica_is_asked_first_while_the_local_one_is_silent",
            _RULES + "test_the_rest_is_asked_if_a_majority_does_not_answer_in_time",
        ),
    ),
    Mutant(
        "queue-rest-is-never-asked",
        "All replicas are asked before a majority is given up.",
        _MEMBER,
        "rows += more or self._decide(found, now)",
        "rows += self._decide(found, now)",
        (_RULES + "test_the_rest_is_asked_if_a_majority_does_not_answer_in_time",),
    ),
    Mutant(
        "queue-refusal-ends-an-acquisition",
        "All replicas are asked before one that refuses decides.",
        _MEMBER,
        "rows += self._ask(found, len(self.states), now) or self._decide(found, now)",
        "rows += self._decide(found, now)",
        (_RULES + "test_the_rest_is_asked_if_a_majority_does_not_grant",),
    ),
    Mutant(
        "queue-reader-never-at-the-end-behind-a-marker",
        "Offsets without a record at the end of a replica stop nobody.",
        "coopconsume/queue/log_client.py",
        '"enable.partition.eof": True,',
        '"enable.partition.eof": False,',
        (_BROKER + "test_a_foreign_transaction_at_the_end_of_a_replica_stops_nobody",),
    ),
    Mutant(
        "queue-row-overtakes-one-that-waits",
        "Rows of a consumer stay in their order.",
        "coopconsume/queue/replica_log.py",
        "self._queued != self._finished or not",
        "not",
        (_BROKER + "test_a_row_does_not_overtake_one_that_waits",),
    ),
    Mutant(
        "queue-table-created-again-while-its-disk-is-away",
        "A running consumer does not create the table of a replica that is no longer there.",
        _TABLE,
        "create=create and not self._was_there",
        "create=create",
        (_TABLES + "test_a_table_is_neither_created_again_nor_taken_from_others",),
    ),
    Mutant(
        "queue-snapshot-removes-rows-that-it-lacks",
        "A snapshot replaces only rows of versions that it contains.",
        _TABLE,
        "engine.replace(rows, at=at, closed=closed)",
        "engine.replace(rows, at=engine.refresh(), closed=closed + 2)",
        (
            _TABLES + "test_a_reader_of_a_table_begins_with_the_newest_snapshot",
            _TABLES + "test_writers_and_snapshots_at_once_lose_no_row",
        ),
    ),
    Mutant(
        "queue-table-read-from-an-old-snapshot",
        "A reader of a table begins with its newest snapshot.",
        _TABLE,
        "row.positions[0] - 1 > newest[0]",
        "row.positions[0] - 1 < newest[0]",
        (_TABLES + "test_a_reader_of_a_table_begins_with_the_newest_snapshot",),
    ),
    Mutant(
        "queue-table-rows-without-their-order",
        "Rows of one version count in the order in which they were written.",
        _TABLE,
        "(at << _PLACES) + number",
        "(at << _PLACES) - number",
        (_TABLES + "test_a_reader_of_a_table_begins_with_the_newest_snapshot",),
    ),
    Mutant(
        "queue-log-deleted-before-its-snapshot",
        "The start of a replica's log is deleted only once its snapshot can be read.",
        "coopconsume/queue/session.py",
        "if written is not None and rows.start >= written:",
        "if written is not None:",
        (_BROKER + "test_the_start_of_a_log_is_deleted_once_its_snapshot_can_be_read",),
    ),
    Mutant(
        "queue-rows-below-a-snapshot-count-twice",
        "A snapshot replaces the rows below its offset.",
        _LOG,
        "if offset >= upto)",
        "if offset >= 0)",
        (_SETTINGS + "test_a_shortened_log_folds_to_the_same_state",),
    ),
    Mutant(
        "queue-lost-start-passes",
        "A log without its start and without a snapshot is refused.",
        _LOG,
        """        if not self.is_whole:
            raise""",
        """        if self._first < 0:
            raise""",
        (_SETTINGS + "test_a_log_that_lost_its_start_is_refused",),
    ),
    Mutant(
        "queue-rows-of-another-queue-count",
        "A log has rows of one queue alone.",
        _LOG,
        "if found != self._queue:",
        "if not found:",
        (_SETTINGS + "test_a_log_of_another_queue_is_refused",),
    ),
    Mutant(
        "queue-limit-is-the-median",
        "The quorum time limit is the 99th percentile of the recent answers.",
        _TIMING,
        "_PERCENTILE = 0.99",
        "_PERCENTILE = 0.5",
        (_RULES + "test_the_quorum_time_limit_follows_recent_answers",),
    ),
    Mutant(
        "back-off-without-end",
        "The back-off has a bound.",
        "coopconsume/backoff.py",
        "min(self.longest, self.first * 2.0 ** min(60, self.failures))",
        "self.first * 2.0 ** min(60, self.failures)",
        (_RULES + "test_back_off_doubles_with_jitter_and_starts_again",),
    ),
]

"""Mutants of the identity of logs: topic ids and leader epochs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVED = "tests/broker/test_fetch_server.py::"
_RECREATED = _SERVED + "test_a_topic_that_is_created_again_is_another_log"
_JOB = "tests/model/test_job_model.py::"
_LONGER = _JOB + "test_no_record_is_read_of_a_topic_that_is_created_again_with_a_longer_log"
_DELETED = _JOB + "test_a_deleted_topic_whose_log_seems_cut_ends_no_job"
_REPORTED = (
    "tests/model/test_real_time_model.py::"
    "test_what_slots_report_above_the_end_of_the_log_does_not_count"
)
_READER = (
    "tests/unit/runtime/test_real_time.py::"
    "test_a_reader_notes_how_far_its_records_show_that_the_log_reached"
)
_SERVER_MODEL = (
    "tests/model/test_fetch_server_model.py::"
    "test_an_answer_says_how_far_the_log_reached_as_its_records_were_read"
)

_PATHS = "tests/unit/worker/test_read_starts.py::test_a_server_of_another_log_has_another_path"
_CONFIRMED = "tests/unit/worker/test_confirmed_reads.py::"

IDENTITY = [
    Mutant(
        "fetch-server-of-any-topic-id",
        "A fetch server serves the topics whose ids its run knows.",
        "coopconsume/worker/realtime/fetch_server.py",
        "[[one.topic_id, one.leader_epoch] for one in self.logs]",
        '[["", one.leader_epoch] for one in self.logs]',
        (f"{_RECREATED}[by-a-server]",),
    ),
    Mutant(
        "fetch-server-of-any-leader-epoch",
        "A fetch server that has read a log before it was cut serves no run after that.",
        "coopconsume/worker/realtime/fetch_server.py",
        "[[one.topic_id, one.leader_epoch] for one in self.logs]",
        "[[one.topic_id, None] for one in self.logs]",
        (_PATHS,),
    ),
    Mutant(
        "slots-read-on-in-another-topic",
        "What a consumer has read counts only if the topic still has its id after that.",
        "coopconsume/worker/realtime/topic_check.py",
        "if is_other_topic(self._ids[name], topic_id):",
        "if is_other_topic(name, name):",
        (f"{_RECREATED}[without-a-server]",),
    ),
    Mutant(
        "records-without-a-look",
        "Records are returned after a look at their topics that began after their read.",
        "coopconsume/worker/realtime/confirmed_reads.py",
        "                    self._topics.look(_topics_of(self._unconfirmed))\n",
        "                    self._topics.look(())\n",
        (_CONFIRMED + "test_records_are_returned_after_a_look_that_began_after_their_read",),
    ),
    Mutant(
        "looks-without-a-pause",
        "Looks at the topics take half of the time at most.",
        "coopconsume/worker/realtime/topic_check.py",
        "self.next_at = now + min(_LOOK, now - self._begun_at)",
        "self.next_at = now",
        (_CONFIRMED + "test_the_pause_after_a_look_is_as_long_as_the_look",),
    ),
    Mutant(
        "ends-of-a-log-of-any-topic",
        "Where logs end counts only if their topics still have their ids after that.",
        "coopconsume/runtime/log_watch.py",
        "        self._check_topics()\n        found = {tp",
        "        found = {tp",
        (_LONGER, _DELETED),
    ),
    Mutant(
        "unknown-topic-ids-differ",
        "A topic id that is not known is not another one.",
        "coopconsume/kafka/identity.py",
        "return bool(noted and found and noted != found)",
        "return noted != found",
        (
            "tests/unit/kafka/test_identity.py::test_a_topic_is_another_one_only_if_both_ids_are_known",
        ),
    ),
    Mutant(
        "reports-above-the-end-of-a-log",
        "A log must reach at the next look as far as slots have reported to have read it.",
        "coopconsume/group/assigned_logs.py",
        "if reached.offset > self.seen_end(tp):",
        "if reached.offset < 0:",
        (f"{_REPORTED}[True]", f"{_REPORTED}[False]"),
    ),
    Mutant(
        "read-under-the-leader-epoch-of-the-look",
        "How far a slot has read counts in the leader epoch of the record that shows it.",
        "coopconsume/worker/realtime/reader.py",
        "found[part] = OffsetAndEpoch(offset + 1, epoch)",
        "found[part] = OffsetAndEpoch(offset + 1, 0)",
        (_READER,),
    ),
    Mutant(
        "fetch-server-forgets-leader-epochs",
        "What a fetch server has read says how far the log reached in which leader epoch.",
        "coopconsume/worker/realtime/record_cache.py",
        "reached = chunk.reached or reached",
        "reached = None",
        (_SERVER_MODEL,),
    ),
    Mutant(
        "value-of-another-record",
        "The value of a record is that of the log in which its key was read.",
        "coopconsume/worker/realtime/value_reader.py",
        "if _is_newer(record.leader_epoch(), portion):",
        "if False:",
        (
            "tests/model/test_value_reader_model.py::test_the_value_of_another_record_at_the_offset_is_not_taken",
        ),
    ),
    Mutant(
        "status-of-a-former-topic",
        "What is noted of a former topic is neither shown nor moved to the one of its name.",
        "coopconsume/admin/offsets/reading.py",
        "for tp in former & known.keys():",
        "for tp in set():",
        (
            "tests/broker/test_offsets_cli.py::test_what_is_noted_of_a_former_topic_is_not_moved_to_the_one_that_has_its_name",
        ),
    ),
]

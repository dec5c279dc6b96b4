"""Mutants of ordering keys."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_UNIT = "tests/unit/test_ordering_key.py::"
_SPARK = "tests/spark/test_ordering_key.py::"
_KEYS = "tests/model/test_blocker_keys.py::"
_POLLED = (
    "tests/model/test_polling_model.py::"
    "test_the_commit_log_has_the_ordering_keys_of_records_that_were_polled"
)

ORDERING_KEYS = [
    Mutant(
        "ordering-key-not-dealt-by",
        "Records are dealt by their ordering keys.",
        "coopconsume/runtime/read/expressions.py",
        'return "key" if options.ordering_key is None else ORDERING_COLUMN',
        'return "key"',
        (
            _UNIT + "test_without_the_option_records_are_dealt_by_their_keys_as_ever",
            _SPARK + "test_frames_are_dealt_by_customer",
        ),
    ),
    Mutant(
        "state-by-the-record-key",
        "State belongs to the ordering key.",
        "coopconsume/state/slot_state.py",
        "key = ordering_key_of(record.headers)",
        "pass",
        (_UNIT + "test_state_belongs_to_the_ordering_key",),
    ),
    Mutant(
        "letter-with-the-hash-of-another-record",
        "A dead letter has the hash that its record is dealt by.",
        "coopconsume/runtime/commit/parcels.py",
        "letter.offset, letter.key_hash, letter.key_for_people",
        "letter.offset, 0, letter.key_for_people",
        (_UNIT + "test_failures_are_shown_by_ordering_key_and_letters_keep_key_and_hash",),
    ),
    Mutant(
        "retry-changes-the-ordering-key",
        "Headers that a handler adds do not change the ordering key.",
        "coopconsume/record.py",
        "    headers = without_ordering_key(headers)\n",
        "",
        (_UNIT + "test_retry_does_not_change_the_ordering_key",),
    ),
    Mutant(
        "replayed-with-the-ordering-key",
        "A record that is replayed has the headers of the record alone.",
        "coopconsume/admin/dead_letters/actions.py",
        "*without_ordering_key(headers), (REPLAY_OF",
        "*headers, (REPLAY_OF",
        (_UNIT + "test_a_replayed_record_has_no_old_ordering_key",),
    ),
    Mutant(
        "failure-shown-by-the-record-key",
        "A blocker is shown by its ordering key.",
        "coopconsume/worker/outcome.py",
        "ordering_key_of(row.headers) if self.spec.has_ordering_keys else row.key",
        "row.key",
        (
            _UNIT + "test_failures_are_shown_by_ordering_key_and_letters_keep_key_and_hash",
            "tests/model/test_ordering_key_job.py::test_a_parked_record_holds_the_records_of_its_ordering_key",
        ),
    ),
    Mutant(
        "ordering-key-not-in-the-log",
        "The commit log has the ordering key of a failed record, for displays without Spark.",
        "coopconsume/worker/outcome.py",
        "return with_shown_ordering_key(verdict.headers, ordering_key_of(row.headers))",
        "return verdict.headers",
        (_UNIT + "test_failures_are_shown_by_ordering_key_and_letters_keep_key_and_hash",),
    ),
    Mutant(
        "shown-ordering-key-replaces-the-header",
        "The ordering key in the log is cut, and is for people only.",
        "coopconsume/record.py",
        "    added = without_ordering_key(added)\n",
        "",
        (_UNIT + "test_the_ordering_key_in_the_log_is_for_people_only",),
    ),
    Mutant(
        "blocker-by-the-record-key",
        "A display says which key it shows, and shows the ordering key where it is known.",
        "coopconsume/admin/offsets/status.py",
        "if not (self.has_ordering_key or self.knows_ordering_key):",
        "if True:",
        (_UNIT + "test_a_failed_blocker_is_shown_by_its_ordering_key_without_spark",),
    ),
    Mutant(
        "ordering-key-of-a-retry-not-in-the-log",
        "The commit log has the ordering key of a polled record that is to come again.",
        "coopconsume/runtime/poll/answers.py",
        "added = {at: with_shown_ordering_key(added[at], key) for at, key in keys}",
        "added = {at: added[at] for at, key in keys}",
        (_POLLED, _SPARK + "test_frames_are_dealt_by_customer"),
    ),
    Mutant(
        "ordering-key-of-a-parked-letter-not-in-the-log",
        "The commit log has the ordering key of a polled record that is parked.",
        "coopconsume/runtime/poll/answers.py",
        "more = with_shown_ordering_key(more, ordering_key_of(own))",
        "more = tuple(more)",
        (_POLLED,),
    ),
    Mutant(
        "ordering-key-lost-by-a-replay-of-a-polled-record",
        "A polled record that is replayed keeps its ordering key for people.",
        "coopconsume/runtime/poll/retry_buffer.py",
        "self.attempt(offset), due, error, headers)",
        "self.attempt(offset), due, error, without_ordering_key(headers))",
        (_POLLED,),
    ),
    Mutant(
        "key-of-a-blocker-not-read",
        "A job shows the key of a record that failed before it began.",
        "coopconsume/runtime/status/blocker_keys.py",
        "                failed.key = key\n",
        "                pass\n",
        (_KEYS + "test_the_key_of_a_record_that_failed_before_is_read_once",),
    ),
    Mutant(
        "key-of-a-blocker-read-again-and-again",
        "The record of a blocker is read once, also if it has no key.",
        "coopconsume/runtime/status/blocker_keys.py",
        "self._known |= event.keys",
        "self._known |= {tp: one for tp, one in event.keys.items() if one[1] is not None}",
        (_KEYS + "test_a_blocker_without_a_key_is_read_once",),
    ),
    Mutant(
        "blockers-read-side-by-side",
        "One read of blockers is under way at a time.",
        "coopconsume/runtime/status/blocker_keys.py",
        "            self._is_reading = True\n",
        "",
        (_KEYS + "test_nothing_waits_for_the_record_of_a_blocker",),
    ),
    Mutant(
        "blocker-read-by-the-loop",
        "Nothing waits for the record of a blocker.",
        "coopconsume/runtime/status/blocker_keys.py",
        "read.start()",
        "read.run()",
        (_KEYS + "test_nothing_waits_for_the_record_of_a_blocker",),
    ),
    Mutant(
        "failed-read-of-a-blocker-ends-the-looks",
        "A record of a blocker that could not be read is read later.",
        "coopconsume/runtime/status/blocker_keys.py",
        "        except Exception as error:  # noqa: BLE001 - the job does not depend on it\n",
        "        except KeyError as error:\n",
        (_KEYS + "test_a_record_that_cannot_be_read_is_tried_again",),
    ),
    Mutant(
        "record-key-for-the-ordering-key",
        "In a group with an ordering key no record key is shown in its place.",
        "coopconsume/runtime/status/blocker_keys.py",
        " or self._options.ordering_key is not None",
        "",
        (_KEYS + "test_with_an_ordering_key_no_record_is_read",),
    ),
]

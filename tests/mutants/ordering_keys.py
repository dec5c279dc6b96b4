"""Mutants of ordering keys."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_UNIT = "tests/unit/test_ordering_key.py::"
_SPARK = "tests/spark/test_ordering_key.py::"
_KEYS = "tests/model/test_blocker_keys.py::"
_POLLED = (
    "tests/model/test_polling_model.py::"
    "test_the_commit_log_has_the_keys_of_records_that_were_polled"
)
_CLI = "tests/broker/test_offsets_cli.py::"
_ROW = _KEYS + "test_the_row_of_a_record_that_fails_has_its_key_if_it_may"
_COMMITS = "tests/unit/commits/test_commit_store.py::test_keys_of_pending_records_live_in_the_log"

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
        "letter.offset,\n                    letter.key_hash,",
        "letter.offset,\n                    0,",
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
        "blocker-by-the-record-key",
        "A display says which key it shows, and shows the ordering key where it is known.",
        "coopconsume/admin/offsets/status.py",
        "if not self.has_ordering_key:",
        "if True:",
        (_UNIT + "test_a_failed_blocker_is_shown_by_its_ordering_key_without_spark",),
    ),
    Mutant(
        "key-of-a-failed-record-not-in-the-log",
        "The row of a failed record has its key.",
        "coopconsume/runtime/commit/outbox.py",
        "headers=failure.headers, key=shown_key(failure.key),",
        "headers=failure.headers,",
        (_ROW,),
    ),
    Mutant(
        "key-in-the-log-whatever-the-option-says",
        "With keepFailedKeys=false the rows of a member have no keys.",
        "coopconsume/group/epoch_assignment.py",
        "to_keep(self.options, pending) if pending else None",
        "dict(pending) if pending else None",
        (_ROW,),
    ),
    Mutant(
        "key-moved-whatever-the-option-says",
        "With keepFailedKeys=false what an operator writes has no keys.",
        "coopconsume/admin/offsets/admin.py",
        "pending=to_keep(self.options, {tp: m.pending for tp, m in changed.items()})",
        "pending={tp: m.pending for tp, m in changed.items()}",
        (_CLI + "test_a_key_in_the_commit_table_is_shown_and_moves_with_its_record",),
    ),
    Mutant(
        "key-of-a-retry-not-in-the-log",
        "The commit log has the key of a polled record that is to come again.",
        "coopconsume/runtime/poll/answers.py",
        "headers=added[offset], key=shown_key(keys[offset]),",
        "headers=added[offset],",
        (_POLLED,),
    ),
    Mutant(
        "key-of-a-parked-letter-by-its-record",
        "The commit log has the ordering key of a polled record that is parked.",
        "coopconsume/runtime/poll/answers.py",
        "ordering_key_of(own) if has_ordering_keys else key,",
        "key,",
        (_POLLED,),
    ),
    Mutant(
        "key-lost-by-a-replay",
        "A record that is replayed keeps its key.",
        "coopconsume/runtime/decisions.py",
        "headers=record.headers, key=record.key,",
        "headers=record.headers,",
        (_POLLED,),
    ),
    Mutant(
        "ordering-key-of-a-former-row-lost",
        "Rows of earlier versions have an ordering key as a header.",
        "coopconsume/group/owned.py",
        "return shown_key(ordering_key_of(pending.headers))",
        "return None",
        (_UNIT + "test_a_job_that_begins_shows_the_ordering_keys_of_records_that_failed_before",),
    ),
    Mutant(
        "long-key-not-marked",
        "A key that is cut is marked.",
        "coopconsume/record.py",
        'return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"',
        "return text[:_SHOWN]",
        ("tests/unit/test_options.py::test_a_long_key_is_cut_and_marked",),
    ),
    Mutant(
        "keys-lost-by-a-snapshot",
        "Rows and snapshots have the keys of their pending records.",
        "commits/rows.py",
        "        detail[_KEYS] = keys\n",
        "        pass\n",
        (_COMMITS,),
    ),
    Mutant(
        "keys-as-the-detail-of-a-commit",
        "The keys of a row belong to its pending records.",
        "commits/rows.py",
        "for name in (_HEADERS, _KEYS):",
        "for name in (_HEADERS,):",
        (_COMMITS,),
    ),
    Mutant(
        "key-of-any-length",
        "A row has a key of 65 characters at most.",
        "commits/validation.py",
        "len(pending.key) > MAX_SHORT_KEY",
        "len(pending.key) > 2 * MAX_SHORT_KEY",
        (_COMMITS,),
    ),
    Mutant(
        "key-read-that-the-log-has",
        "Kafka is read only for a key that the commit log does not have.",
        "coopconsume/group/owned.py",
        "return key is not None or key_hash in {None, offset_hash(offset)}",
        "return key_hash in {None, offset_hash(offset)}",
        (_KEYS + "test_nothing_is_read_for_what_the_commit_log_says",),
    ),
    Mutant(
        "record-without-a-key-read",
        "A record that is dealt by its offset has no key to read.",
        "coopconsume/group/owned.py",
        "return key is not None or key_hash in {None, offset_hash(offset)}",
        "return key is not None",
        (_KEYS + "test_nothing_is_read_for_what_the_commit_log_says",),
    ),
    Mutant(
        "blocker-read-that-the-log-has",
        "A display reads Kafka only for a key that the commit log does not have.",
        "coopconsume/admin/offsets/status.py",
        "        if self._key_at(offset)[1]:\n            return None\n",
        "",
        (_UNIT + "test_a_display_reads_only_keys_that_the_log_does_not_have",),
    ),
    Mutant(
        "key-of-a-blocker-read-again-and-again",
        "The record of a blocker is read once, also if it is not there any more.",
        "coopconsume/runtime/status/blocker_keys.py",
        "self._known |= event.keys",
        "self._known |= {tp: one for tp, one in event.keys.items() if one[1] is not None}",
        (_KEYS + "test_a_blocker_that_was_compacted_away_is_read_once",),
    ),
    Mutant(
        "key-of-a-blocker-not-read",
        "A job shows the key of a record that failed before it began.",
        "coopconsume/runtime/status/blocker_keys.py",
        "                failed.key = shown_key(key)\n",
        "                pass\n",
        (_KEYS + "test_the_key_of_a_record_that_failed_before_is_read_once",),
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

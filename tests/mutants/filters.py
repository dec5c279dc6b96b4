"""Mutants of filters."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOP = "tests/model/test_loop_model.py::test_any_run_keeps_the_order_and_settles_every_record"
_POLL = "tests/model/test_polling_model.py::test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost"
_FILTERS = "tests/unit/test_filters.py::"
_SPARK = "tests/spark/test_filters.py::test_frames_have_what_passes_and_the_rest_is_done"

FILTERS = [
    Mutant(
        "filtered-record-handled",
        "No handler sees a record that does not pass the filter.",
        "coopconsume/worker/outcome.py",
        "return batch.filter(pc.invert(marks))",
        "return batch",
        (_LOOP, _FILTERS + "test_no_handler_sees_a_record_that_is_filtered"),
    ),
    Mutant(
        "passed-record-dropped",
        "A record that passes the filter is handled.",
        "coopconsume/worker/outcome.py",
        "dropped = wanted_rows(batch.filter(marks), self.work)",
        "dropped = wanted_rows(batch, self.work)",
        (_LOOP, _FILTERS + "test_no_handler_sees_a_record_that_is_filtered"),
    ),
    Mutant(
        "filtered-record-held-undone",
        "A filtered record counts as done.",
        "coopconsume/runtime/plan/partition.py",
        "return done | _filtered_of(report) if report.filtered else done",
        "return done",
        (
            _FILTERS + "test_filtered_records_are_done_and_counted_until_they_are_saved",
            _LOOP,
        ),
    ),
    Mutant(
        "filtered-row-not-its-own-settled",
        "A slot settles only filtered records that it may start.",
        "coopconsume/worker/outcome.py",
        "dropped = wanted_rows(batch.filter(marks), self.work)",
        "dropped = batch.filter(marks)",
        (_FILTERS + "test_a_slot_of_filtered_records_alone_calls_nobody",),
    ),
    Mutant(
        "filtered-not-counted",
        "The commit log and progress count filtered records.",
        "coopconsume/runtime/plan/partition.py",
        "self.unsaved_filtered |= _filtered_of(report)",
        "self.unsaved_filtered |= _NOTHING",
        (_FILTERS + "test_filtered_records_are_done_and_counted_until_they_are_saved", _LOOP),
    ),
    Mutant(
        "filtered-counted-twice",
        "The final report counts what no progressive report has.",
        "coopconsume/worker/outcome.py",
        "self.report.filtered = 0",
        "self.report.filtered += 0",
        (_FILTERS + "test_progressive_reports_have_what_is_filtered_once",),
    ),
    Mutant(
        "filter-not-compared",
        "Members of a group have the same filter.",
        "coopconsume/group/core.py",
        "return said.store, said.cluster, said.record_filter",
        'return said.store, said.cluster, ""',
        (_FILTERS + "test_members_with_another_filter_are_refused",),
    ),
    Mutant(
        "filter-not-told",
        "A member tells the leader its filter.",
        "assignors/wire.py",
        '**({"filter": self.record_filter} if self.record_filter else {}),',
        "",
        (_FILTERS + "test_members_with_another_filter_are_refused",),
    ),
    Mutant(
        "filtered-of-a-poll-never-committed",
        "What a poll filters is committed, with the user's commit or without one.",
        "coopconsume/runtime/polling/positions.py",
        "self.filtered |= filtered or OffsetRanges()",
        "self.filtered |= OffsetRanges()",
        (_POLL,),
    ),
    Mutant(
        "filtered-alone-waits-for-a-commit",
        "A poll of filtered records alone commits them itself.",
        "coopconsume/runtime/polling/session.py",
        "if place.filtered and not (alone and place.polled)",
        "if place.filtered and not alone",
        (
            "tests/spark/test_filters.py::test_a_filter_may_change_between_starts_and_drops_pending_records",
        ),
    ),
    Mutant(
        "null-of-where-passes",
        "A record for which `where` is null does not pass.",
        "coopconsume/filters.py",
        'each.append(f"coalesce(({self.where}\\n), false)")',
        'each.append(f"coalesce(({self.where}\\n), true)")',
        (_FILTERS + "test_every_condition_is_in_words_and_in_sql", _SPARK),
    ),
    Mutant(
        "varying-where-accepted",
        "What may change between two reads of a record is no filter.",
        "coopconsume/filters.py",
        "is_varying = is_call and name in _VARYING",
        "is_varying = False",
        (_FILTERS + "test_what_may_change_between_two_reads_is_refused",),
    ),
    Mutant(
        "slow-handlers-behind-a-filter-read-little",
        "Filtered records do not shorten the window.",
        "coopconsume/runtime/window.py",
        "fraction = running.plan.fraction * handled / (handled + running.filtered)",
        "fraction = running.plan.fraction",
        (_FILTERS + "test_a_window_is_as_long_as_its_handled_records_take",),
    ),
]

"""Mutants of filters."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOP = "tests/model/test_loop_model.py::test_any_run_keeps_the_order_and_settles_every_record"
_POLL = "tests/model/test_polling_model.py::test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost"
_AUDIT = "tests/unit/runtime/test_hole_audit.py::"
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
        "coopconsume/runtime/plan/slot_work.py",
        "return done | _filtered_of(report) if report.filtered else done",
        "return done",
        (
            _FILTERS + "test_filtered_records_are_done_and_counted_until_they_are_committed",
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
        "coopconsume/runtime/plan/ledger.py",
        "self.filtered_to_commit |= filtered\n",
        "pass\n",
        (_FILTERS + "test_filtered_records_are_done_and_counted_until_they_are_committed", _LOOP),
    ),
    Mutant(
        "filtered-counted-twice",
        "The final report counts what no progressive report has.",
        "coopconsume/worker/report_draft.py",
        "self.done, self.filtered, self.failed = [], [], []",
        "self.done, self.failed = [], []",
        (_FILTERS + "test_progressive_reports_have_what_is_filtered_once",),
    ),
    Mutant(
        "filtered-of-a-poll-never-committed",
        "What a poll filters is committed, with the user's commit or without one.",
        "coopconsume/runtime/poll/positions.py",
        "self.filtered |= filtered or OffsetRanges()",
        "self.filtered |= OffsetRanges()",
        (_POLL,),
    ),
    Mutant(
        "filtered-alone-waits-for-a-commit",
        "A poll of filtered records alone commits them itself.",
        "coopconsume/runtime/poll/session.py",
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
        "coopconsume/runtime/plan/window.py",
        "return run.plan.fraction * handled / (handled + run.filtered)",
        "return run.plan.fraction",
        (_FILTERS + "test_a_window_is_as_long_as_its_handled_records_take",),
    ),
    Mutant(
        "filter-time-without-a-life",
        "The time of a slot begins with its first rows, filtered or not.",
        "coopconsume/worker/slot.py",
        "        time_box.begin()  # Others wait",
        "        # Others wait",
        (_FILTERS + "test_the_time_of_a_slot_begins_with_its_first_rows",),
    ),
    Mutant(
        "key-file-split-at-other-separators",
        "Only a line feed ends a line of a key file.",
        "coopconsume/filters.py",
        'text.split("\\n")]',
        "text.splitlines()]",
        (_FILTERS + "test_a_line_of_a_key_file_ends_with_a_line_feed_alone",),
    ),
    Mutant(
        "key-file-with-its-byte-order-mark",
        "A byte order mark is no part of a key.",
        "coopconsume/filters.py",
        '.decode("utf-8-sig")',
        '.decode("utf-8")',
        (_FILTERS + "test_a_line_of_a_key_file_ends_with_a_line_feed_alone",),
    ),
    Mutant(
        "special-time-accepted",
        "A text that Spark takes from the clock is no filter.",
        "coopconsume/filters.py",
        '(kind == "text" and _is_special(plain[i]))',
        "False",
        (_FILTERS + "test_what_may_change_between_two_reads_is_refused",),
    ),
    Mutant(
        "filtered-rows-without-a-size",
        "The size of a record is that of all records read.",
        "coopconsume/worker/outcome.py",
        "self.draft.rows += dropped.num_rows",
        "self.draft.rows += 0",
        (_FILTERS + "test_the_rows_of_a_report_include_what_is_filtered",),
    ),
    Mutant(
        "filtered-batches-stay-short",
        "The window grows while all records are filtered.",
        "coopconsume/runtime/plan/window.py",
        "fits = LARGEST_WINDOW  #",
        "pass  #",
        (_FILTERS + "test_a_window_is_as_long_as_its_handled_records_take",),
    ),
    Mutant(
        "filtered-records-are-limited",
        "What the filter drops is committed with a commit of the user's, whatever the limit lets in.",
        "coopconsume/runtime/poll/answers.py",
        "        done[tp] = done.get(tp, nothing) | some\n",
        "        done[tp] = done.get(tp, nothing)\n",
        (_FILTERS + "test_what_is_filtered_is_committed_with_what_the_user_names",),
    ),
    Mutant(
        "filtered-poll-not-woken",
        "A poll of filtered records notices a wakeup after each window.",
        "coopconsume/runtime/poll/poller.py",
        "            self.session.calls.check_woken()\n            self.session.calls.check_closed()\n",
        "            self.session.calls.check_closed()\n",
        (_FILTERS + "test_a_poll_of_filtered_records_ends_with_its_window",),
    ),
    Mutant(
        "filtered-poll-not-closed",
        "A poll of filtered records notices a close after each window.",
        "coopconsume/runtime/poll/poller.py",
        "            self.session.calls.check_woken()\n            self.session.calls.check_closed()\n",
        "            self.session.calls.check_woken()\n",
        (_FILTERS + "test_a_poll_of_filtered_records_ends_with_its_window",),
    ),
    Mutant(
        "filtered-trial-stays-short",
        "A trial that has handled nothing is followed by a longer one.",
        "coopconsume/runtime/dispatch/circuit_breaker.py",
        "self.trial_offsets *= _LONGER",
        "pass",
        (
            "tests/unit/runtime/test_breaker.py::test_a_trial_that_has_handled_nothing_is_followed_by_a_longer_one",
        ),
    ),
    Mutant(
        "poll-looks-for-no-holes",
        "A consumer that has nothing to commit commits the holes between the records of others.",
        "coopconsume/runtime/poll/poller.py",
        "        self._holes.look(assignment)\n",
        "",
        (
            "tests/model/test_polling_model.py::test_a_member_without_records_commits_the_holes_between_those_of_others",
        ),
    ),
    Mutant(
        "user-refused-beside-filtered-records",
        "What joins records that the filter drops fits, as they are committed with it.",
        "coopconsume/group/epoch_assignment.py",
        "            commits.amend(besides.get(tp, nothing))\n",
        "",
        (
            "tests/unit/runtime/test_committer.py::test_what_a_user_names_fits_where_it_joins_what_is_committed_with_it",
        ),
    ),
    Mutant(
        "holes-above-an-open-offset-use-up-ranges",
        "Where ranges get scarce, holes above an open offset are looked for.",
        "coopconsume/runtime/read/audit.py",
        "2 * owned.range_count < owned.max_ranges",
        "owned.max_ranges",
        (_AUDIT + "test_above_an_open_offset_holes_are_looked_for_where_ranges_get_scarce",),
    ),
]

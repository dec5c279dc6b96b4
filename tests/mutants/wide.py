"""Mutants of topics with many partitions or far offsets: turns, expressions, positions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TURNS = "tests/unit/runtime/test_turns.py::"
_CODE = "tests/unit/runtime/test_by_partition.py::test_all_but_the_contents_of_arrays_is_the_same"
_VALUES = "tests/spark/test_hashing.py::test_values_by_partition"
_FAR = "tests/unit/test_far_offsets.py::"
_ROWS = "tests/unit/worker/test_input_rows.py::"
_BY_PARTITION = "coopconsume/runtime/read/by_partition.py"

WIDE = [
    Mutant(
        "wide-topic-read-at-once",
        "A batch of a wide topic reads some partitions.",
        "coopconsume/runtime/plan/turns.py",
        "if len(chosen) >= most or (",
        "if (",
        (_TURNS + "test_a_batch_of_a_wide_topic_reads_some_partitions_in_turn",),
    ),
    Mutant(
        "turn-not-noted",
        "A partition waits for one round of the others.",
        "coopconsume/runtime/plan/slot_work.py",
        "        self.planned_at = now\n",
        "        pass\n",
        (_TURNS + "test_turns_are_fair_where_new_records_come_all_the_time",),
    ),
    Mutant(
        "short-reads-of-much",
        "Where much is left, each read is long.",
        "coopconsume/runtime/plan/turns.py",
        "size += min(backlogs[one.index], LONG)",
        "size += 1",
        (_TURNS + "test_where_much_is_left_each_read_is_long",),
    ),
    Mutant(
        "handlers-without-a-partition",
        "A batch has partitions for all handlers.",
        "coopconsume/runtime/plan/turns.py",
        "max(FEWEST, 4 * handlers)",
        "FEWEST",
        (_TURNS + "test_a_batch_has_partitions_for_all_handlers",),
    ),
    Mutant(
        "more-partitions-than-offsets",
        "A batch has no more offsets than its window.",
        "coopconsume/runtime/plan/turns.py",
        "min(window, max(MOST, fewest))",
        "max(MOST, fewest)",
        (_TURNS + "test_a_batch_has_no_more_offsets_than_its_window",),
    ),
    Mutant(
        "order-compiled-for-each-batch",
        "Generated code does not change with the offsets of a batch.",
        _BY_PARTITION,
        "`offset` - {number_sql(part, firsts)}",
        "`offset` - {firsts[0]}L",
        (_CODE,),
    ),
    Mutant(
        "partition-changed-with-each-record",
        "A slot handles some offsets of a partition before those of the next one.",
        _BY_PARTITION,
        "max(1, max(sizes) // RUN)",
        "max(1, max(sizes))",
        ("tests/spark/test_hashing.py::test_some_offsets_of_a_partition_come_one_after_another",),
    ),
    Mutant(
        "wanted-by-the-last-range-alone",
        "A slot starts the offsets of all ranges of its work.",
        "coopconsume/worker/input_rows.py",
        "if any(len(w.ranges) > 1 for w in work.values()):",
        "if False:",
        (_ROWS + "test_a_slot_starts_what_is_wanted_of_each_partition",),
    ),
    Mutant(
        "started-beyond-the-work",
        "A slot starts no offsets above those of its work.",
        "coopconsume/worker/input_rows.py",
        "pc.less_equal(offsets, last))",
        "True)",
        (_ROWS + "test_a_slot_starts_what_is_wanted_of_each_partition",),
    ),
    Mutant(
        "done-in-another-partition",
        "What is done is noted in its own partition.",
        "coopconsume/worker/row_progress.py",
        "found = found.take(pc.array_sort_indices(found.column(0)))",
        "pass",
        (_ROWS + "test_done_rows_are_noted_by_partition",),
    ),
    Mutant(
        "gap-behind-the-last-offset",
        "Gaps are the offsets that are not in a set.",
        "commits/offsets.py",
        "is_gap = before < ends",
        "is_gap = before <= ends",
        ("tests/unit/commits/test_offsets.py::test_gaps_are_what_is_missing",),
    ),
    Mutant(
        "all-gaps-shown",
        "Progress shows the first gaps of a partition.",
        "coopconsume/runtime/status/progress.py",
        "firsts[:_SHOWN_RANGES].tolist(), lasts[:_SHOWN_RANGES].tolist()",
        "firsts.tolist(), lasts.tolist()",
        (_FAR + "test_the_progress_of_a_job_lists_no_more_gaps_than_it_shows",),
    ),
    Mutant(
        "branch-for-each-partition",
        "Partitions with the same SQL share a branch.",
        _BY_PARTITION,
        'cases = [f"WHEN {kind} THEN {value}" for kind, value in enumerate(firsts)]',
        'cases = [f"WHEN {kind} THEN {value}" for kind, value in enumerate(values)]',
        (_CODE,),
    ),
    Mutant(
        "part-of-another-topic",
        "A row has the part of its topic.",
        _BY_PARTITION,
        "parts[starts[topic] + number] = index",
        "parts[number] = index",
        (_VALUES,),
    ),
    Mutant(
        "page-without-an-offset-kept",
        "What is read and not wanted is dropped.",
        _BY_PARTITION,
        "pages.append(_ALL if page[0] else _NONE)",
        "pages.append(_ALL)",
        (_VALUES,),
    ),
    Mutant(
        "far-offsets-not-looked-at",
        "A cursor begins no farther from the stable offset than it looks at what lies between.",
        "coopconsume/runtime/plan/cursor.py",
        "min(top + 1, stable + MOST_APART)\n    return position, done.complement(stable, position",
        "top + 1\n    return position, done.complement(stable, min(position, stable + 9)",
        (
            _FAR + "test_a_job_begins_far_below_a_record_that_is_done",
            _FAR + "test_poll_begins_far_below_a_record_that_is_done",
            _FAR + "test_key_ranges_that_come_far_above_the_stable_offset_are_looked_at_from_there",
        ),
    ),
    Mutant(
        "far-gaps-end-early",
        "All offsets between two ranges are a gap.",
        "commits/offsets.py",
        "return before[is_gap] + 1, ends[is_gap]",
        "return before[is_gap] + 2, ends[is_gap]",
        (_FAR + "test_gaps_may_hold_any_number_of_offsets",),
    ),
]

"""Rows of many partitions in one Arrow batch: which a slot may start, and which are done."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.record import RetryPolicy
from coopconsume.worker.input_rows import wanted_rows
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.report import BatchSpec, PartitionWork
from coopconsume.worker.row_progress import done_rows
from tests.unit.worker.slot_harness import NAMES, TYPES

PARTS = 4
#: Some ranges of a partition, ascending and apart.
RANGES = st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True).map(
    lambda ends: tuple((a, b) for a, b in zip(*[iter([*sorted(ends), 40])] * 2, strict=False))
)
ONE_RANGE = RANGES.map(lambda ranges: ranges[:1])
ROWS = st.lists(st.tuples(st.integers(0, PARTS - 1), st.integers(0, 40)), max_size=60)


def batch_of(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    """Rows of some (part, offset); the timestamp is the row's number."""
    columns = [
        [part for part, _ in rows], [offset for _, offset in rows], [0] * len(rows),
        [None] * len(rows), [None] * len(rows), list(range(len(rows))),
    ]  # fmt: skip
    arrays = [pa.array(column, of) for column, of in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=NAMES)


@pytest.mark.parametrize("ranges", [ONE_RANGE, RANGES], ids=["one range", "several"])
def test_a_slot_starts_what_is_wanted_of_each_partition(ranges):
    """Also where partitions of the batch are not its own."""

    @given(st.dictionaries(st.integers(0, PARTS - 1), ranges, min_size=1), ROWS)
    def check(work, rows):
        found = wanted_rows(batch_of(rows), {p: PartitionWork(of) for p, of in work.items()})
        expected = [
            n
            for n, (part, offset) in enumerate(rows)
            if any(first <= offset <= last for first, last in work.get(part, ()))
        ]
        assert found.column("timestamp").to_pylist() == expected

    check()


@given(ROWS, st.sets(st.integers(0, 59)))
def test_done_rows_are_noted_by_partition(rows, skipped):
    """In their order, with their timestamps, except those that were skipped."""
    work = {part: PartitionWork(((0, 40),)) for part in range(PARTS)}
    spec = BatchSpec(
        batch=1, partitions=tuple(("t", part) for part in range(PARTS)), slots=(0,),
        work={0: work}, ordering="key", concurrency=1, batch_time=60.0, handler_timeout=60.0,
        headers=False,
    )  # fmt: skip
    outcome = TaskOutcome(spec, 0, RetryPolicy(), None, dead_letters=False)
    done_rows(outcome.draft, batch_of(rows), sorted(n for n in skipped if n < len(rows)))
    for part, draft in outcome.draft.partitions.items():
        found = [
            row for chunk in draft.done for row in zip(*chunk.to_pydict().values(), strict=True)
        ]
        assert found == [
            (offset, n) for n, (of, offset) in enumerate(rows) if of == part and n not in skipped
        ]

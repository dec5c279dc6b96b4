"""Portions without values are completed from the log, whatever a read returns of it."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commits import OffsetAndEpoch
from coopconsume.worker.realtime.confirmed_reads import Fetched
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.fetch_messages import Portion
from coopconsume.worker.realtime.reader import row_schema
from coopconsume.worker.realtime.value_reader import ValueReader

END = 40
EPOCH = 5
PLACES = (("t", 0), ("t", 1))
SCHEMA = row_schema(headers=True, filters=True)


def value(part, offset):
    """The value of a record."""
    return None if offset % 7 == 3 else b"%d-%d" % (part, offset)


class Logs:
    """Returns records of one log from an offset on, some at a time, or none."""

    broker_bytes = 0

    def __init__(self, logs, starts, sizes):
        self._logs, self._sizes = logs, sizes
        self.assign(starts)

    def assign(self, starts):
        """Reads from there."""
        (((_, self._part), (self._at, _)),) = starts.items()

    def poll(self, _timeout, _most):
        """Returns the next records."""
        there = [o for o in self._logs[self._part] if o >= self._at][: next(self._sizes)]
        if there:
            self._at = there[-1] + 1
        return Fetched([self._message(offset) for offset in there])

    def _message(self, offset):
        found = value(self._part, offset)
        return SimpleNamespace(
            offset=lambda: offset, value=lambda: found, headers=lambda: [("n", b"%d" % offset)],
            leader_epoch=lambda: EPOCH,
        )  # fmt: skip

    def close(self):
        """Nothing is open."""


def row(part, offset, *, is_filtered):
    """A row as the server has it."""
    return (part, offset, offset, b"k", None, 1_000, None, is_filtered)


def portion(part, first, following, rows, holes, epoch=EPOCH):
    """A portion of the server."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA) if rows else None
    reached = OffsetAndEpoch(following, epoch)
    return Portion(part, first, following, batch, tuple(holes), reached)


@st.composite
def portions(draw):
    """Portions of two partitions with holes, other slots' records and filtered ones."""
    found, wanted, logs = [], [], {}
    for part in range(2):
        kinds = draw(st.lists(st.sampled_from(["own", "other", "hole", "filtered"]), max_size=END))
        logs[part] = [o for o, kind in enumerate(kinds) if kind != "hole"]
        cuts = sorted({0, len(kinds), *draw(st.lists(st.integers(0, len(kinds)), max_size=3))})
        for first, following in pairwise(cuts):
            inside = list(enumerate(kinds))[first:following]
            rows = [row(part, o, is_filtered=kind == "filtered")
                    for o, kind in inside if kind in ("own", "filtered")]  # fmt: skip
            holes = [(o, o) for o, kind in inside if kind == "hole"]
            found.append(portion(part, first, following, rows, holes))
            wanted += [(part, o, kind) for o, kind in inside if kind in ("own", "filtered")]
    return found, wanted, logs


def reader_of(logs, sizes):
    """A reader of logs whose reads return so many records."""
    return ValueReader(lambda starts: Logs(logs, starts, sizes), PLACES)


@given(portions(), st.lists(st.integers(0, 5), min_size=1, max_size=9))
@settings(deadline=None)
def test_portions_come_complete_and_in_order(drawn, sizes):
    """Values, headers, positions and holes; what does not pass the filter has no value."""
    given_, wanted, logs = drawn
    sizes = [*sizes, 3]
    endless = (sizes[n % len(sizes)] for n in range(10**9))
    reader = reader_of(logs, endless)
    reader.add(given_)
    pieces = []
    while reader.is_busy:
        pieces += reader.poll(0.0)
    rows = [r for one in pieces if one.rows is not None for r in one.rows.to_pylist()]
    assert [(r["part"], r["offset"]) for r in rows] == [(part, o) for part, o, _ in wanted]
    for found, (part, offset, kind) in zip(rows, wanted, strict=True):
        is_own = kind == "own"
        assert found["value"] == (value(part, offset) if is_own else None)
        assert found["headers"] == ([{"key": "n", "value": b"%d" % offset}] if is_own else None)
    for part in range(2):
        these = [one for one in pieces if one.part == part]
        assert all(a.next == b.first for a, b in pairwise(these))
        before = [one for one in given_ if one.part == part]
        assert (these[-1].next if these else 0) == (before[-1].next if before else 0)
        assert [h for one in these for h in one.holes] == [h for one in before for h in one.holes]
        for one in these:
            assert all(one.first <= first <= last < one.next for first, last in one.holes)
            offsets = [] if one.rows is None else one.rows.column("offset").to_pylist()
            assert all(one.first <= offset < one.next for offset in offsets)


def test_a_record_that_is_gone_ends_the_reading():
    """Retention or compaction has deleted it: batches look what is left."""
    rows = [row(0, offset, is_filtered=False) for offset in (2, 4)]
    reader = reader_of({0: [2, 5]}, iter([9] * 9))
    reader.add([portion(0, 0, 6, rows, ())])
    with pytest.raises(ReadFailed, match="t-0: the record at offset 4 could not be read"):
        reader.poll(0.0)


def test_the_value_of_another_record_at_the_offset_is_not_taken():
    """The log was cut since the server read the key, and another record has the offset now."""
    rows = [row(0, offset, is_filtered=False) for offset in (2, 4)]
    reader = reader_of({0: [2, 4]}, iter([9] * 9))
    reader.add([portion(0, 0, 6, rows, (), EPOCH - 1)])
    with pytest.raises(ReadFailed, match="t-0: the record at offset 2 could not be read"):
        reader.poll(0.0)

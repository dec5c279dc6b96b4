"""Frame handlers: what they get, what they may answer, and what becomes of each row."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.record import Reject, Retry, RetryPolicy
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import PartitionWork
from tests.unit.worker.slot_harness import done, run

ROWS = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(10)]


def batched(function, rows=ROWS, *, most=4, form="arrow", **more):
    """Run rows through a frame handler."""
    return run(FrameHandler(function, most, form), rows, **more)


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_a_frame_is_of_one_partition_in_order(form):
    """Full frames first, the rest at the end; all that Kafka has of a record is a column."""
    frames = []

    def handler(frame):
        frames.append(frame if form == "pandas" else frame.to_pandas())

    rows = [(o % 3 == 0, o, b"k") for o in range(10)]
    work = {p: PartitionWork(((0, 99),), attempts={4: 2}) for p in (0, 1)}
    report = batched(handler, [(int(p), o, k) for p, o, k in rows], form=form, work=work)
    assert (done(report, 0), done(report, 1)) == ([1, 2, 4, 5, 7, 8], [0, 3, 6, 9])
    assert sorted(list(frame["offset"]) for frame in frames) == [[0, 3, 6, 9], [1, 2, 4, 5], [7, 8]]
    frame = next(frame for frame in frames if len(frame) == 4 and frame["offset"][0] == 1)
    assert set(frame["topic"]) == {"t"}
    assert set(frame["partition"]) == {10}
    assert list(frame["attempt"]) == [1, 1, 3, 1]
    assert list(frame["value"]) == [b"v1", b"v2", b"v4", b"v5"]
    assert frame["timestamp"][0] == pd.Timestamp(1_001, unit="ms", tz="UTC")
    assert report.stats.handled == 10


def test_every_row_has_its_own_outcome():
    """Done, with an output row, tried again, rejected: as the list says, row by row."""

    def handler(frame):
        return [
            {0: None, 1: {"n": 1}, 2: Retry(after=9), 3: Reject("no"), 4: ValueError("bad")}.get(o)
            for o in frame["offset"].to_pylist()
        ]

    rows = [(0, o, b"%d" % o) for o in range(6)]
    report = batched(handler, rows, schema=pa.schema([("n", pa.int64())]))
    assert done(report) == [0, 1, 3, 5]
    failures = [(f.offset, f.delay, f.error) for f in report.partitions[0].failed]
    assert failures == [(2, 9, "retry asked for"), (4, 1_000.0, "ValueError: bad")]
    assert [(d.offset, d.reason) for d in report.dead] == [(3, "no")]
    assert pa.ipc.open_stream(report.outputs).read_all().drop("_key_hash").to_pylist() == [
        {"n": 1, "_part": 0, "_offset": 1}
    ]


def test_what_is_behind_a_failed_row_of_its_key_waits():
    """Whatever was answered for it, in this frame and in later ones; other keys go on."""
    seen = []

    def handler(frame):
        seen.extend(frame["offset"].to_pylist())
        return [Retry() if o == 1 else None for o in frame["offset"].to_pylist()]

    report = batched(handler)
    assert done(report) == [0, 2, 4, 6, 8]
    assert [f.offset for f in report.partitions[0].failed] == [1]
    assert sorted(o for o, _ in report.partitions[0].blocked) == [3, 5, 7, 9]
    assert seen == [0, 1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, "later", None]),
        pa.chunked_array([pa.array([True, False]), pa.array([True])]),
        pd.Series([True, False, True]),
        pd.Series([None, "later", None]),
        pd.Series([True, "later", True]),
        pd.Series([True, "later", float("nan")]),
        pd.Series([pd.NA, False, True], dtype="boolean"),
        np.array([True, "later", None], dtype=object),
        np.array([True, False, True]),
        pd.Series(["later", None, True], index=[1, 2, 0]),
        [pd.NA, "later", True],
        [None, "later", pd.NaT],
    ],
)
def test_a_column_says_which_rows_are_done(column):
    """Null and true are done; false and texts are tried again, with the text as the reason."""
    rows = [(0, o, b"%d" % o) for o in range(3)]
    report = batched(lambda frame: column, rows)
    assert done(report) == [0, 2]
    (failure,) = report.partitions[0].failed
    assert failure.offset == 1
    assert failure.error in ("later", "retry asked for")


def test_a_sorted_column_answers_by_its_index():
    """A handler may sort its frame: what failed is tried again, what is done is committed."""

    def handler(frame):
        frame = frame.sort_values("offset", ascending=False)
        return frame["offset"] % 5 != 1

    rows = [(0, o, b"%d" % o) for o in range(10)]
    report = batched(handler, rows, most=7, form="pandas")
    assert done(report) == [0, 2, 3, 4, 5, 7, 8, 9]
    assert [f.offset for f in report.partitions[0].failed] == [1, 6]


@pytest.mark.parametrize("labels", [[1, 2, 3, 4], [0, 0, 1, 2], list("abcd"), [0, 1, 2, 2.5]])
def test_a_column_with_another_index_says_nothing(labels):
    """It would be a guess which row it means: no row is done."""
    report = batched(lambda frame: pd.Series([True] * 4, index=labels), ROWS[:4])
    assert done(report) == []
    assert "its index, which is 0 to 3" in report.partitions[0].failed[0].error


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_a_returned_frame_is_refused_with_what_to_return(make):
    """It has a column for each field, and no outcome for each row."""
    report = batched(lambda frame: make({"n": [1, 2, 3, 4]}), ROWS[:4])
    assert done(report) == []
    assert "returned a frame of type" in report.partitions[0].failed[0].error


def test_what_it_raises_holds_for_every_row():
    """Each key's first row failed, the others wait behind it; a Reject rejects all."""

    def raises(frame):
        raise OSError("down")

    report = batched(raises, most=10)
    assert [f.offset for f in report.partitions[0].failed] == [0, 1]
    assert len(report.partitions[0].blocked) == 8

    def rejects(frame):
        raise Reject("all of it")

    assert [d.offset for d in batched(rejects, most=10).dead] == list(range(10))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([None], "answered 1 times for 4 rows"),
        (7, "not iterable"),
        ([1, None, None, None], "answered for a row 1"),
    ],
)
def test_an_answer_that_makes_no_sense_fails_the_rows(answer, text):
    """The failure says what was wrong with it."""
    report = batched(lambda frame: answer, ROWS[:4])
    assert text in report.partitions[0].failed[0].error


def test_an_async_frame_handler_is_awaited_and_has_its_time():
    """On the event loop; past its time it is cancelled and its rows fail."""

    async def handler(frame):
        await asyncio.sleep(0 if frame["offset"][0].as_py() < 4 else 600)

    report = batched(handler, policy=RetryPolicy(timeout=3.0))
    assert done(report) == [0, 1, 2, 3]
    assert [f.offset for f in report.partitions[0].failed] == [4, 5]
    assert report.partitions[0].failed[0].error.startswith("TimeoutError")


def test_past_the_time_box_no_frame_starts():
    """The first frame always does; the rest is left to a later batch."""
    report = batched(lambda frame: None, batch_time=0.0)
    assert done(report) == [0, 1, 2, 3]
    assert report.partitions[0].resume == 4
    assert report.end.timed_out


@given(
    keys=st.lists(st.integers(0, 4), max_size=40), fails=st.sets(st.integers(0, 39)),
    most=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_frames_keep_the_order_and_settle_every_row(keys, fails, most):
    """A row is done only if all rows of its key before it are; each row is in one book."""
    rows = [(0, o, b"%d" % key) for o, key in enumerate(keys)]

    def handler(frame):
        return [Retry() if o in fails else None for o in frame["offset"].to_pylist()]

    if not rows:
        return
    report = batched(handler, rows, most=most)
    by_key = defaultdict(list)
    for _, offset, key in rows:
        by_key[key].append(offset)
    expected = []
    for offsets in by_key.values():
        first = next((o for o in offsets if o in fails), 99)
        expected += [o for o in offsets if o < first]
    outcome = report.partitions[0]
    assert done(report) == sorted(expected)
    accounted = [*expected, *(f.offset for f in outcome.failed), *(o for o, _ in outcome.blocked)]
    assert sorted(accounted) == list(range(len(rows)))


def test_a_time_limit_that_cannot_be_watched_is_no_failure_of_the_records(monkeypatch):
    """Without another thread the slot fails, and its worker with it; the handler is not called."""

    def start(_self):
        raise RuntimeError("can't start new thread")

    called = []
    monkeypatch.setattr("threading.Timer.start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(FrameHandler(called.append, 4), [(0, 0, b"a")], policy=RetryPolicy(timeout=9.0))
    assert not called

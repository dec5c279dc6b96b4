"""Progressive reports: whenever they are cut, together with the final one they say what one says.

Cuts come between any two lines of the code that runs the rows, and at any moment from another
thread.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coopconsume.worker
from assignors import KeyRange
from commits.ids import CommitIds
from coopconsume.record import Reject
from coopconsume.state.changelog import Changelog
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import StateSpec
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import unpack_offsets
from tests.examples import examples
from tests.unit.worker.slot_harness import PATIENCE, WAYS, in_way, prepared, reporters_of

SCHEMA = pa.schema([("text", pa.string())])
TASK = str(Path(coopconsume.worker.__file__).parent)
#: Rows of a slot whose states are checked at each call.
_FEW = 20
#: What a handler does with a record: it is done, with so many rows, or fails, or is given up.
DOES = ["done", "done", "one row", "two rows", "fails", "rejected"]


#: With a state, also what a handler leaves; by default its offset.
DOES_WITH_STATE = [*DOES, "done, nothing left", "done, removed", "done, odd"]
LEAVES = {"done, nothing left": "nothing", "done, removed": None, "done, odd": "odd"}


class Odd(int):
    """A number that Arrow takes, and that is not known to fit before."""


def answer_for(does, offset):
    """What a handler returns for a record, or raises."""
    if does == "fails":
        return RuntimeError("planned")
    if does == "rejected":
        return Reject("bad")
    rows = {"one row": 1, "two rows": 2}.get(does, 0)
    return [{"text": f"{offset}-{i}"} for i in range(rows)] or None


class Slot:
    """One run of a slot, with cuts."""

    def __init__(self, rows, does, way, *, park=False, batch_rows=4, state=None):
        self.is_over = False
        #: By key, what the last record that has changed its state has left; and what handlers saw
        #: instead.
        self.left, self.wrong = {}, []
        self.does, self.chunks, self.running, self.cutting = does, [], set(), threading.Lock()
        handler, concurrency = self.handle, 1
        if state is not None:
            handler, concurrency = in_way(way, self.handle_state, with_state=True)
        elif way == "frames":
            handler = FrameHandler(self.handle_frame, max(3, batch_rows // 10))
        else:
            handler, concurrency = in_way(way, self.handle)
        self.runner, self.batches = prepared(
            handler, rows, None, concurrency, schema=SCHEMA, batch_rows=batch_rows
        )
        object.__setattr__(self.runner._spec, "park", park)
        object.__setattr__(self.runner._spec, "state", state)
        self.rows = [row[:2] for row in rows]
        self.outcome = self.runner._outcome(3)
        self.runner._outcome = lambda _slot: self.outcome
        #: Of the slot, once its handlers may start.
        self.reporters = reporters_of(self.runner)
        close = self.outcome.close
        self.outcome.close = lambda *end, **more: self.close(lambda: close(*end, **more))
        self.at_any_call = lambda: None
        #: Rows that handlers were called for.
        self.started = []

    def handle(self, record):
        at = (record.partition - 10, record.offset)
        self.started.append(at)
        self.running.add(at)
        self.check_states()
        self.at_any_call()
        self.running.discard(at)
        answer = answer_for(self.does[at], record.offset)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def handle_state(self, record, state):
        """Leave the offset as the state of the key, in one of several forms, or change nothing."""
        if state.get() != self.left.get(record.key):
            self.wrong.append(record)
        leaves = LEAVES.get(self.does[record.partition - 10, record.offset], record.offset)
        if leaves == "odd":
            state.set(Odd(record.offset))
        elif leaves != "nothing":
            state.set(leaves)
        if leaves == record.offset and record.offset % 3 == 0:
            state.ttl("1 day")
        answer = self.handle(record)
        if state.is_changed and not isinstance(answer, Reject):
            self.left[record.key] = state.get()
        return answer

    def handle_frame(self, frame):
        part = frame.column("partition")[0].as_py() - 10
        offsets = frame.column("offset").to_pylist()
        ats = {(part, offset) for offset in offsets}
        self.started += ats
        self.running |= ats
        self.check_states()
        self.at_any_call()
        self.running -= ats
        return [answer_for(self.does[part, offset], offset) for offset in offsets]

    def cut(self):
        """As the channel's thread does; a cut that would have to wait is left out."""
        if self.outcome.lock.locked() or not self.cutting.acquire(blocking=False):
            return
        running = self.running.copy()
        is_over = self.is_over or not self.reporters
        chunk = None if is_over else self.reporters[0].take_report(len(self.chunks) + 1)
        if chunk is not None:
            self.chunks.append((chunk, running & self.running.copy()))
        self.cutting.release()

    def want_relief(self):
        """Ask the slot to give back what it has not started."""
        if self.reporters:
            self.reporters[0].want_relief()

    def check_states(self):
        """No record is in two states or in none, at each call of a slot with few rows."""
        if len(self.rows) > _FEW or not self.cutting.acquire(blocking=False):
            return
        if not self.is_over:
            self.reporters[0].check(self.rows, [chunk for chunk, _ in self.chunks])
        self.cutting.release()

    def close(self, close):
        """As the channel is closed before the final report is made."""
        with self.cutting:
            self.is_over = True
        return close()

    def run(self):
        return self.runner.run(3, self.batches)


def rows_of(report):
    """The output rows of a report, as (partition, offset, text)."""
    if report.outputs is None:
        return []
    found = pa.ipc.open_stream(report.outputs).read_all().to_pylist()
    return [(row["_part"], row["_offset"], row["text"]) for row in found]


def changes_of(report):
    """The changes of the state in a report, as {(partition, offset): value}; none comes twice."""
    if report.changes is None:
        return {}
    rows = pa.ipc.open_stream(report.changes).read_all().to_pylist()
    found = {(row["_part"], row["_offset"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def dones(report):
    """What a report counts as done."""
    return [
        (p, o) for p, of in report.partitions.items() for o in unpack_offsets(of.done).to_pylist()
    ]


def failed(report):
    """What failed, by a report."""
    return [(p, f) for p, of in report.partitions.items() for f in of.failed]


def union(reports):
    """What reports say together, each fact as often as it is said.

    Which failure of a type comes first, and has the trace, is decided by threads.
    """
    failures = [one for report in reports for one in failed(report)]
    return {
        "done": sorted(itertools.chain.from_iterable(map(dones, reports))),
        "failed": sorted(((p, replace(one, trace="")) for p, one in failures), key=repr),
        "traced": sorted(one.error.partition(":")[0] for _, one in failures if one.trace),
        "dead": sorted([letter.offset for one in reports for letter in one.dead]),
        "outputs": sorted(itertools.chain.from_iterable(map(rows_of, reports))),
        "handled": sum(one.stats.handled for one in reports),
        "failures": sum(one.stats.failures for one in reports),
        "blocked": sorted(
            (p, b) for one in reports for p, of in one.partitions.items() for b in of.blocked
        ),
    }


def check(slot, final, alone):
    """The union is what a slot without a channel reports; each report is whole by itself."""
    reports = [chunk for chunk, _ in slot.chunks] + [final]
    together = union(reports)
    assert together == union([alone])
    assert len(set(together["done"])) == len(together["done"])
    assert [chunk.seq for chunk in reports] == [*range(1, len(reports)), 0]
    for one in reports:
        settled = set(dones(one)) | {(p, f.offset) for p, f in failed(one)}
        assert {(p, o) for p, o, _ in rows_of(one)} <= set(dones(one))
        wanted = [
            (p, o, f"{o}-{i}") for p, o in dones(one)
            for i in range({"one row": 1, "two rows": 2}.get(slot.does[p, o], 0))
        ]  # fmt: skip
        assert sorted(rows_of(one)) == sorted(wanted)
        assert {o for _, o in settled} >= {letter.offset for letter in one.dead}
        assert min(one.stats.handled, one.stats.failures) >= 0
    for chunk, running in slot.chunks:
        assert not running & set(dones(chunk)), "a record counts as done while its handler runs"


@contextmanager
def cut_between_lines(slot, chance, part=0.2):
    """Cuts at a part of the lines that the task's code comes to, in any thread that begins now."""

    def at_line(_frame, event, _arg):
        if event == "line" and chance.random() < part:
            slot.cut()
        return at_line

    def at_call(frame, _event, _arg):
        return at_line if frame.f_code.co_filename.startswith(TASK) else None

    before = sys.gettrace()
    threading.settrace(at_call)
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(None)


drawn_rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from(DOES)), max_size=14
)


@given(
    drawn=drawn_rows,
    way=st.sampled_from([*WAYS, "frames"]),
    park=st.booleans(),
    chance=st.integers(0, 10**9),
    batch_rows=st.integers(1, 6),
)
@settings(max_examples=examples(150), deadline=None)
def test_reports_say_together_what_one_says(drawn, way, park, chance, batch_rows):
    """However they are cut: no offset, letter or output row twice or missing."""
    drawn = sorted(drawn, key=lambda row: row[0])
    rows = [(part, offset, b"k%d" % key) for offset, (part, key, _) in enumerate(drawn)]
    does = {(part, offset): what for offset, (part, _, what) in enumerate(drawn)}
    alone = Slot(rows, does, way, park=park, batch_rows=batch_rows).run()
    slot, dice = Slot(rows, does, way, park=park, batch_rows=batch_rows), random.Random(chance)

    def at_any_call():
        if dice.random() < 0.3:
            slot.cut()

    slot.at_any_call = at_any_call
    with cut_between_lines(slot, dice):
        final = slot.run()
    check(slot, final, alone)


@pytest.fixture(scope="module", params=["empty", "another key's"])
def state(request, tmp_path_factory):
    """What a slot gets of a state without the keys of the test."""
    folder = tmp_path_factory.mktemp("state")
    changelog = Changelog(str(folder / "state"), StateSchema(pa.int64()))
    places = {("t", part): ((0, KeyRange().last),) for part in (10, 11)}
    changelog.create()
    if request.param != "empty":
        row = {"key": b"another", "value": 1, "_topic": "t", "_topic_id": "id", "_offset": 0}
        row |= {"_key_hash": 0, "_commit": "c"}
        found = [row | {"_partition": part} for part in (10, 11)]
        changelog.append(pa.Table.from_pylist(found, changelog.schema.changelog))
    return StateSpec(
        changelog.path, str(folder / "stores"), changelog.schema, {"t": "id"}, changelog.version,
        changelog.version, CommitIds(["c"]), ranges={3: places},
    )  # fmt: skip


@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from(DOES_WITH_STATE)),
        max_size=14,
    ),
    way=st.sampled_from(WAYS),
    chance=st.integers(0, 10**9),
    batch_rows=st.integers(1, 9),
    part=st.sampled_from([0.03, 0.2]),
)
@settings(max_examples=examples(100), deadline=None)
def test_changes_of_the_state_are_in_the_reports_of_their_records(
    state, drawn, way, chance, batch_rows, part
):
    """However they are cut; and each record sees what the one of its key before it has left."""
    drawn = sorted(drawn, key=lambda row: row[0])
    rows = [(part, o, b"%d-%d" % (part, key)) for o, (part, key, _) in enumerate(drawn)]
    does = {(part, offset): what for offset, (part, _, what) in enumerate(drawn)}
    alone = Slot(rows, does, way, batch_rows=batch_rows, state=state).run()
    slot = Slot(rows, does, way, batch_rows=batch_rows, state=state)
    dice = random.Random(chance)
    slot.at_any_call = lambda: slot.cut() if dice.random() < part else None
    with cut_between_lines(slot, dice, part):
        final = slot.run()
    check(slot, final, alone)
    assert not slot.wrong
    letters = {letter.offset for letter in alone.dead}
    for one in [chunk for chunk, _ in slot.chunks] + [final]:
        left = {at: LEAVES.get(does[at], at[1]) for at in dones(one) if at[1] not in letters}
        wanted = {at: at[1] if value == "odd" else value for at, value in left.items()}
        assert changes_of(one) == {at: v for at, v in wanted.items() if v != "nothing"}


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_cuts_of_another_thread_lose_nothing(way):
    """Many rows, and a thread that cuts as fast as it can."""
    count = 2_000
    rows = [(o // 1_000, o, b"k%d" % (o % 300)) for o in range(count)]
    kinds = ["done"] * 20 + DOES
    does = {(part, offset): kinds[offset % len(kinds)] for part, offset, _ in rows}
    alone = Slot(rows, does, way, batch_rows=500).run()
    slot = Slot(rows, does, way, batch_rows=500)

    def keep_cutting():
        while not slot.is_over:
            slot.cut()
            time.sleep(0)

    calls, give_up = itertools.count(), time.monotonic() + PATIENCE

    def at_any_call():
        while next(calls) > 20 and not slot.chunks and time.monotonic() < give_up:
            time.sleep(0.001)

    slot.at_any_call = at_any_call
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=keep_cutting)
    thread.start()
    try:
        final = slot.run()
    finally:
        sys.setswitchinterval(interval)
        slot.is_over = True
    thread.join()
    assert slot.chunks
    check(slot, final, alone)


def check_relief(slot, final):
    """What a slot has given back it never starts; what it keeps is settled later, or untouched."""
    reports = [chunk for chunk, _ in slot.chunks] + [final]
    given = [number for number, one in enumerate(reports) if one.kept is not None]
    if not given:
        return
    (number,) = given
    kept = {(part, offset) for part, offset, _ in reports[number].kept}
    before, after = (
        {at for one in some for at in dones(one)}
        | {(part, failure.offset) for one in some for part, failure in failed(one)}
        for some in (reports[: number + 1], reports[number + 1 :])
    )
    assert not before & kept
    assert after <= kept
    assert set(slot.started) <= before | kept, "a record that was given back was started"
    assert len(slot.started) == len(set(slot.started))


@given(
    drawn=drawn_rows,
    way=st.sampled_from([*WAYS, "frames"]),
    chance=st.integers(0, 10**9),
    batch_rows=st.integers(1, 6),
)
@settings(max_examples=examples(150), deadline=None)
def test_what_a_slot_gives_back_it_never_starts(drawn, way, chance, batch_rows):
    """Whenever it is asked for that, between any two lines; and nothing is in two reports."""
    drawn = sorted(drawn, key=lambda row: row[0])
    rows = [(part, offset, b"k%d" % key) for offset, (part, key, _) in enumerate(drawn)]
    does = {(part, offset): what for offset, (part, _, what) in enumerate(drawn)}
    slot, dice = Slot(rows, does, way, batch_rows=batch_rows), random.Random(chance)
    cut, cuts, number = slot.cut, itertools.count(), dice.randrange(20)

    def cut_or_relieve():
        if next(cuts) >= number and not any(one.kept is not None for one, _ in slot.chunks):
            slot.want_relief()
        cut()

    slot.cut = slot.at_any_call = cut_or_relieve
    with cut_between_lines(slot, dice):
        final = slot.run()
    check_relief(slot, final)


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_slot_that_is_relieved_by_another_thread_starts_nothing_more(way):
    """At any moment of many rows."""
    rows = [(o // 1_000, o, b"k%d" % (o % 300)) for o in range(2_000)]
    kinds = ["done"] * 20 + DOES
    does = {(part, offset): kinds[offset % len(kinds)] for part, offset, _ in rows}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for calls in range(50, 1_000, 50):
            slot = Slot(rows, does, way, batch_rows=500)

            def relieve(slot=slot, calls=calls):
                while not slot.is_over and len(slot.started) < calls:
                    time.sleep(0)
                while not slot.is_over and not any(one.kept is not None for one, _ in slot.chunks):
                    slot.want_relief()
                    slot.cut()

            thread = threading.Thread(target=relieve)
            thread.start()
            final = slot.run()
            slot.is_over = True
            thread.join()
            check_relief(slot, final)
    finally:
        sys.setswitchinterval(interval)

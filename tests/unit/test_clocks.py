"""Clocks: waits are measured by the monotonic one; the wall clock is read where a list says why."""

from __future__ import annotations

import ast
import math
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commits
import commits.rows
import coopconsume
from assignors import KeyRange, Share
from commits import CommitStore, Pending
from commits.model import PARKED_MS
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.owned import Failed, Owned
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.runtime.commit.outbox import due_ms
from coopconsume.runtime.plan.partition_maker import PartitionMaker

#: Where the wall clock is read, how often, and why it must be that one.
WALL = {
    "commits/delta_log.py": (1, "the time of an entry, which Delta's retention counts by"),
    "commits/table_files.py": (1, "ages of files"),
    "commits/repair.py": (1, "how long ago other hosts appended, by the table's own log"),
    "commits/rows.py": (1, "the time of writing, for people and for bounds of waits"),
    "coopconsume/doctor/workers.py": (1, "how far clocks of hosts are apart"),
    "coopconsume/worker/look.py": (2, "how far clocks of hosts are apart"),
    "coopconsume/cli/groups.py": (1, "ages for people"),
    "coopconsume/cli/offsets.py": (2, "ages for people"),
    "coopconsume/cli/records.py": (1, "waits for people"),
    "coopconsume/record.py": (1, "the date of a service becomes a wait, if it sends no time"),
    "coopconsume/runtime/decided_by.py": (1, "the time of a decision, for people"),
    "coopconsume/runtime/decisions.py": (1, "the time of an outcome, for people"),
    "coopconsume/monitoring/lineage.py": (1, "the time of an event, for its consumers"),
    "coopconsume/fenced/election.py": (1, "timestamps of records"),
    "coopconsume/fenced/ownership/registry.py": (1, "the time of an event, for people"),
    "coopconsume/fenced/ownership/delta_store.py": (1, "the time of writing, for people"),
    "coopconsume/demo/lost_slots.py": (
        1,
        "when a line of the log was written becomes a time of the run",
    ),
    "coopconsume/queue/table_log.py": (1, "the time of writing, for people"),
    "coopconsume/group/loading.py": (1, "due times of the log become waits"),
    "coopconsume/group/chunks.py": (2, "due times of the log become waits"),
    "coopconsume/runtime/commit/outbox.py": (1, "waits become due times of the log"),
    "coopconsume/runtime/dispatch/latest_start.py": (
        1,
        "the latest start of a batch, on the clocks of other hosts",
    ),
    "coopconsume/runtime/status/waiting.py": (1, "the end of a wait, for people"),
    "coopconsume/runtime/status/progress.py": (1, "timestamps of events"),
    "coopconsume/runtime/commit/log_calls.py": (1, "latency from the timestamps of records"),
    "coopconsume/worker/frame_runner.py": (1, "latency from the timestamps of records"),
    "coopconsume/worker/key_scheduler.py": (1, "latency from the timestamps of records"),
    "coopconsume/kafka/security/oauth.py": (3, "tokens end by the wall clock"),
    "coopconsume/sinks/letters.py": (2, "times stored with letters, for people"),
    "coopconsume/sinks/purgatory.py": (1, "times stored with rows"),
    "coopconsume/state/rows.py": (1, "when a value with a time to live is gone"),
    "coopconsume/state/slot_state.py": (1, "when a value with a time to live is gone"),
    "coopconsume/state/store.py": (3, "when a value with a time to live is gone, ages of files"),
    "coopconsume/state/value.py": (1, "when a value with a time to live is gone"),
    "coopconsume/worker/left_report.py": (1, "ages of files"),
    "coopconsume/worker/row_progress.py": (3, "latency from the timestamps of records"),
    "coopconsume/worker/slot.py": (3, "the latest start of a batch, sent by another host"),
    "coopconsume/admin/views.py": (1, "ages for people"),
    "coopconsume/admin/overview/collect.py": (1, "which waits are over, for people"),
    "coopconsume/admin/overview/data.py": (1, "which waits are over, for people"),
    "coopconsume/admin/overview/metrics.py": (1, "ages and which waits are over, for people"),
    "coopconsume/admin/overview/tables.py": (1, "ages for people"),
    "coopconsume/kafka/retention.py": (1, "the timestamps of records that retention deletes soon"),
    "coopconsume/runtime/status/verdict.py": (1, "the end of a wait, for people"),
    "coopconsume/ui/content.py": (2, "ages and which waits are over, for people"),
    "coopconsume/admin/overview/watch.py": (3, "times of what is shown, for people"),
}


def wall_clocks(source: str) -> list[str]:
    """The places of a program that read the wall clock."""
    names = {"time.time", "time.time_ns", "datetime.now", "dt.datetime.now", "datetime.utcnow",
             "datetime.datetime.now", "datetime.today", "date.today"}  # fmt: skip
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [ast.unparse(node) for node in nodes if ast.unparse(node) in names]


def test_the_wall_clock_is_read_only_where_it_must_be():
    """Everything else would end, or never end, when somebody sets the clock."""
    found = {}
    for package in (coopconsume, commits):
        folder = Path(package.__file__).parent
        for path in sorted(folder.rglob("*.py")):
            if readings := wall_clocks(path.read_text(encoding="utf-8")):
                found[f"{folder.name}/{path.relative_to(folder).as_posix()}"] = len(readings)
    assert found == {path: count for path, (count, _) in WALL.items()}


@given(
    st.integers(0, 10**9), st.integers(-(10**10), 10**10), st.integers(0, 10**9),
    st.booleans(),
)  # fmt: skip
def test_a_wait_read_by_another_host_is_never_longer_than_asked_for(delay, skew, passed, known):
    """Whatever its clock says; and where the clocks agree it is exactly what is left."""
    written = 1_700_000_000_000
    pending = Pending(5, due_ms=written + delay, delay_ms=delay if known else None)
    left = pending.wait(written + passed + skew)
    assert left >= 0
    if known:
        assert left <= delay / 1000
    if skew == 0:
        assert left == pytest.approx(max(0, delay - passed) / 1000)
    assert Pending(5, due_ms=PARKED_MS, delay_ms=0).wait(written) == math.inf


class Skewed(datetime):
    """The clock of a host that is some hours ahead."""

    hours = 0

    @classmethod
    def now(cls, tz=None):
        """Its time."""
        return datetime.now(tz) + timedelta(hours=cls.hours)


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_due_time_holds_although_its_writer_had_another_clock(tmp_path, monkeypatch, hours):
    """Read from the log, from a snapshot, and after a hand-over: at most what was asked for."""
    path = str(tmp_path / "commits")
    store = CommitStore.open(path)
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + hours * 3600)
        patch.setattr(Skewed, "hours", hours)
        patch.setattr(commits.rows, "datetime", Skewed)
        pending = [Pending(5, 1, 1, due_ms(600.0), "x"), Pending(7, 1, 1, due_ms(math.inf), "y"),
                   Pending(9, 1)]  # fmt: skip
        store.commit("g", epoch, "m", {("t", 0): [(0, 4)]}, pending={("t", 0): pending})

    def waits():
        found = CommitStore.open(path).pending("g")["t", 0]
        return [found[offset].wait(int(time.time() * 1000)) for offset in (5, 7, 9)]

    for _ in range(3):
        soon, parked, at_once = waits()
        assert (soon <= 600.0, parked, at_once) == (True, math.inf, 0.0)
        if hours > 0:
            assert soon > 599.0
        store.compact()
        store.commit("g", epoch, "m", {("t", 0): [(6, 6)]})


def test_the_log_says_when_a_record_failed_first_and_when_it_was_parked(tmp_path, monkeypatch):
    """Attempts do not change it, nor a snapshot; where it is not known there is no time."""
    path, real, hour = str(tmp_path / "commits"), time.time, 3_600
    store = CommitStore.open(path)
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)

    def write(hours, *pending):
        with monkeypatch.context() as patch:
            patch.setattr(Skewed, "hours", hours)
            patch.setattr(commits.rows, "datetime", Skewed)
            store.commit("g", epoch, "m", {}, pending={("t", 0): pending})

    def since():
        """By offset, in hours from now."""
        found = CommitStore.open(path).pending("g")["t", 0]
        times = {offset: one.since_ms for offset, one in found.items()}
        return {at: ms and round((ms / 1000 - real()) / hour) for at, ms in times.items()}

    read = Pending(3, 1)  # no call of it has failed
    write(1, read, Pending(5, 1, 1, 0, "x"), Pending(7, 1, 0, 0, "is down"))
    write(2, Pending(5, 1, 2, 0, "x"), Pending(9, 1, 1, 0, "x"))
    write(3, Pending(5, 1, 3, commits.model.PARKED_MS, "x"), Pending(9, 1, 2, 0, "y"))
    expected = {3: None, 5: 3, 7: 1, 9: 2}
    for _ in range(3):
        assert since() == expected
        store.compact()
        write(4, Pending(9, 1, 3, 0, "y"))
    write(5, Pending(5, 1, 0, 0, "x"))
    assert since() == expected | {5: 5}, "a decision has it tried again"
    own = store.pending("g")["t", 0].values()
    store.reset("g", {("t", 0): 0}, pending={("t", 0): [*own, Pending(11, 1, 4, 0, "z")]})
    assert since() == expected | {5: 5, 11: None}, "an operator brought the last one"


def test_what_is_in_doubt_waits_its_time_by_the_monotonic_clock(monkeypatch):
    """A clock that is set, forth or back, neither ends the wait nor makes it longer."""
    pending = [Failed(3, 5, 1, time.monotonic() + 40.0, "x")]
    owned = Owned("t", 0, (KeyRange(),), 0, commits.OffsetRanges(), pending)
    assignment = EpochAssignment.__new__(EpochAssignment)
    assignment.owned = {("t", 0): owned}
    maker = PartitionMaker(assignment, "key", slots=1, max_outputs_waiting=None)
    begun, real = time.monotonic(), time.time
    for step in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        assignment.in_doubt = SharesInDoubt([(Share("t", 0, KeyRange()), 72.0)])
        partition = maker.make(0, owned)
        partition.ledger.end = 10
        partition.deal_again(1, begun + 71.0)
        assert partition.slots.backlog([0], begun + 71.0) == 0
        assert partition.in_doubt(time.monotonic()) == pytest.approx(72.0, abs=30.0)
        later = time.monotonic() + 72.5
        partition.deal_again(1, later)
        assert partition.slots.backlog([0], later) > 0


def test_a_due_time_in_the_log_is_that_of_the_wall_clock():
    """For people, and for hosts that start later."""
    assert due_ms(60.0) == pytest.approx((time.time() + 60.0) * 1000, abs=30_000)
    assert due_ms(math.inf) == PARKED_MS
    assert datetime.fromtimestamp(due_ms(31_536_000.0) / 1000, UTC) > datetime.now(UTC)

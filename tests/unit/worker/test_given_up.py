"""Records that a slot gives up without a call, as an operator decided."""

from __future__ import annotations

import math

import pytest

from coopconsume.worker.channel.messages import decode_chunks, encode_chunks
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import GivenUp, PartitionWork
from tests.unit.worker.slot_harness import WAYS, done, in_way, run

ROWS = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(6)]
SKIP = {2: GivenUp("skipped by op: no such order", park=False)}
PARK = {3: GivenUp("parked by op", park=True)}


def gives_up(way, work, **more):
    """Run rows of two keys; returns the report, and the offsets whose handler was called."""
    called = []
    handler, concurrency = in_way(way, lambda record: called.append(record.offset))
    if way == "frames":
        handler = FrameHandler(lambda frame: called.extend(frame.column("offset").to_pylist()), 4)
    report = run(handler, ROWS, concurrency=concurrency, work={0: work}, **more)
    return report, sorted(called)


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_record_is_given_up_without_a_call(way):
    """A skipped one is done and its key continues; a parked one holds its key back."""
    work = PartitionWork(((0, 99),), attempts={2: 4, 3: 7}, given_up=SKIP | PARK)
    report, called = gives_up(way, work, break_after=1)
    assert called == [0, 1, 4]
    assert done(report) == [0, 1, 2, 4]
    letters = sorted((d.offset, d.value, d.attempts, d.reason, d.trace) for d in report.dead)
    assert letters == [
        (2, b"v2", 4, "skipped by op: no such order", ""), (3, b"v3", 7, "parked by op", "")
    ]  # fmt: skip
    (parked,) = report.partitions[0].failed
    assert (parked.offset, parked.attempts, parked.delay) == (3, 7, math.inf)
    assert parked.error == "parked by op"
    assert [offset for offset, _ in report.partitions[0].blocked] == [5]
    assert report.stats.failures == 0, "no handler has failed"
    assert not report.end.tripped, "nor does it open the circuit breaker"


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_without_a_place_for_letters_records_are_given_up_all_the_same(way):
    """The job goes on; a record that its handler rejects would end it."""
    work = PartitionWork(((0, 99),), given_up=SKIP | PARK)
    report, called = gives_up(way, work, dead_letters=False)
    assert (called, done(report), report.dead) == ([0, 1, 4], [0, 1, 2, 4], [])
    assert [(f.offset, f.delay) for f in report.partitions[0].failed] == [(3, math.inf)]
    assert not report.end.fatal


def test_a_record_that_waits_behind_a_lower_one_is_given_up_after_it():
    """The lower one of its key is not done: nothing of the key starts, and nothing is given up."""
    work = PartitionWork(((1, 99),), blocked={hash(b"a") & (2**63 - 1): 0}, given_up=SKIP)
    report, called = gives_up("plain", work)
    assert called == [1, 3, 5]
    assert not report.dead
    assert [offset for offset, _ in report.partitions[0].blocked] == [2, 4]


def test_a_real_time_slot_gets_what_it_is_to_give_up():
    """The message that hands out chunks has it, and it comes back as it was."""
    work = {0: PartitionWork(((0, 9),), {2: 1}, given_up=SKIP | PARK)}
    assert decode_chunks(encode_chunks(work)) == work

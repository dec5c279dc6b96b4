"""The planner and the slots' code together, over random logs: order, and each record once."""

from __future__ import annotations

import math
from collections import Counter
from unittest import mock

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assignors import KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges, PartitionCommits
from coopconsume.record import RetryPolicy
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision
from coopconsume.runtime.plan import Limits
from coopconsume.worker.report import (
    Failure,
    PartitionReport,
    pack_offsets,
)
from tests.examples import examples
from tests.model.loop_world import World, keys, worlds
from tests.partitions import make_partition


@given(worlds(), st.sampled_from([5_000, 2]), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_any_run_keeps_the_order_and_settles_every_record(world, merge_gap, data):
    """Whatever is slow, fails, is lost or restarts: key order, nothing lost, holes are holes."""
    with mock.patch("coopconsume.runtime.plan.reads.MERGE_GAP", merge_gap):
        any_run(world, data)


@given(worlds(), st.integers(1, 3), st.integers(0, 12), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_keys_that_stay_go_on_while_others_are_given_up(world, piece, when, data):
    """Nothing of those starts any more, what ran of them counts, and no record is lost."""
    assume(world.ordering != "partition")
    moved = KeyRange().split(4)[piece:]
    for _ in range(when):
        world.step(data.draw(st.sampled_from("llddpcw")), data, rough=True)
    world.leave_while_at_work(moved, data)
    before = None
    for step in range(200):
        rough = step < 8
        world.step("ldcw"[step % 4] if not rough else data.draw(st.sampled_from("ldpcw")), data,
                   rough=rough)  # fmt: skip
        if world.has_left(moved):
            before = Counter(world.calls)
            break
    assert before is not None, "they never left"
    world.most_crashes = 0  # Who starts again reads all keys.
    world.run(data, 600)
    assert not world.breaks
    for index, log in world.logs.items():
        for offset in log:
            at = (index, offset)
            if not world.owns(index, offset):
                assert world.calls[at] == before[at], "a key that is given up was handled"
            elif not world.filters:
                assert world.succeeded[at] or at in world.dead, f"{at} is lost"


@given(worlds(), st.integers(1, 3), st.integers(0, 12), st.integers(0, 6), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_keys_that_were_given_up_come_back(world, piece, when, later, data):
    """Slots may still be at work on the batches that they had before."""
    assume(world.ordering != "partition")
    moved = KeyRange().split(4)[piece:]
    for _ in range(when):
        world.step(data.draw(st.sampled_from("llddpcw")), data, rough=True)
    world.leave_while_at_work(moved, data)
    for step in range(200):
        world.hear()
        world.commit()
        if world.has_left(moved, permanently=False):
            break
        world.step("ldcw"[step % 4], data, rough=True)
    for _ in range(later):
        world.step(data.draw(st.sampled_from("lpc")), data, rough=True)
    world.extend(moved, data)
    world.most_crashes = 0  # Who starts again knows nothing of the other owner.
    world.run(data, 600)
    assert not world.breaks
    for index, log in world.logs.items():
        assert world.committed[index].stable_offset >= world.ends[index]
        for offset in log:
            at = (index, offset)
            is_done = world.succeeded[at] or at in world.dead | world.filtered
            assert is_done, f"{at} is lost"


@given(worlds(), st.integers(1, 3), st.integers(0, 12), st.booleans(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_keys_that_stay_go_on_while_others_come(world, piece, when, goes_again, data):
    """What their earlier owner did counts, what it may be at work on waits, nothing is lost."""
    assume(world.ordering != "partition")
    mine, theirs = KeyRange().split(4)[:piece], KeyRange().split(4)[piece:]
    world.shares(mine, data)
    for _ in range(when):
        world.step(data.draw(st.sampled_from("llddpcw")), data, rough=True)
    world.extend(theirs, data)
    every = [(index, offset) for index, log in world.logs.items() for offset in log]
    before = {at for at in every if world.owns(*at, theirs) and world.succeeded[at]}
    world.most_crashes = 0  # Who starts again knows nothing of the earlier owner.
    if goes_again:
        moved = theirs[-1:]
        world.step(data.draw(st.sampled_from("ldpcw")), data, rough=True)
        world.leave_while_at_work(moved, data)
        steps = ("ldcw"[step % 4] for step in range(200))
        assert any(world.step(s, data, rough=False) or world.has_left(moved) for s in steps)
    world.run(data, 600)
    assert not world.breaks
    for index, log in world.logs.items():
        if not goes_again:
            assert world.committed[index].stable_offset >= world.ends[index]
        for offset in log:
            at = (index, offset)
            is_done = world.succeeded[at] or at in world.dead | world.filtered
            assert is_done, f"{at} is lost"
            assert at not in before or not world.calls[at], f"{at} was done by its earlier owner"


def any_run(world, data):
    """Let a world come to rest, and check the outcome of its records."""
    troubled = world.run(data, 600, hasty=True)
    assert not world.breaks
    for index, log in world.logs.items():
        assert world.committed[index].stable_offset >= world.ends[index]
        for offset in log:
            at = (index, offset)
            is_done = world.succeeded[at] or at in world.dead | world.filtered
            assert is_done, f"{at} is lost"
    lossless = world.crashes == 0 and not troubled
    if lossless:
        assert max(world.succeeded.values(), default=0) <= 1
        for at, numbers in world.attempts.items():
            assert numbers == list(range(1, len(numbers) + 1)), f"attempts of {at}: {numbers}"


@given(worlds(), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_parked_keys_wait_for_a_decision_and_flow_on_in_order(world, data):
    """A job comes to rest with parked keys; decided on, at any time, they go on in order."""
    world.park, world.policy = True, RetryPolicy(max_attempts=2, backoff=1.0, jitter=0)
    for step in range(900):
        rough = step < 40
        what = data.draw(st.sampled_from("llddpcpcruwo")) if rough else "ldcw"[step % 4]
        world.step(what, data, rough=rough)
        if what == "o" and not any(p.ledger.to_commit for p in world.partitions):
            world.decide(lambda *_: data.draw(st.booleans()))
        if rough or world.seen != world.ends:
            continue
        if not all(p.is_drained and not p.ledger.to_commit for p in world.partitions):
            continue
        held = {
            (p.index, o)
            for p in world.partitions
            for s in p.cursors.values()
            for o in s.waiting.stuck()
        }
        for p in world.partitions:
            assert p.has_processed(p.ledger.end)
            for offset in world.logs[p.index]:
                at = (p.index, offset)
                is_done = world.succeeded[at] or at in world.dead | world.filtered
                assert is_done or at in held, f"{at} is lost"
        if not held and not any(p.ledger.holes_to_commit for p in world.partitions):
            break
        world.decide(lambda *_: data.draw(st.booleans()))
    else:
        raise AssertionError("the world did not come to rest")
    assert not world.breaks
    for index in world.logs:
        assert world.committed[index].stable_offset >= world.ends[index]


@given(worlds(), st.booleans(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_decisions_on_failed_records_keep_the_order_and_lose_nothing(world, park, data):
    """They come at any time: while a record waits, runs, is lost, is parked or starts again."""
    world.park = park
    troubled = data.draw(st.integers(0, 40))
    for step in range(900):
        rough = step < troubled
        what = data.draw(st.sampled_from("lldddpcpcfffkkkruwm")) if rough else "ldcwk"[step % 5]
        world.step(what, data, rough=rough)
        if rough or world.seen != world.ends:
            continue
        if not all(p.is_drained and not p.ledger.to_commit for p in world.partitions):
            continue
        if (
            not any(p.supply.parked or p.ledger.holes_to_commit for p in world.partitions)
            and step % 5 == 4
        ):
            break
        world.decide(lambda *_: data.draw(st.booleans()))
    else:
        raise AssertionError("the world did not come to rest")
    assert not world.breaks
    assert not world.decisions, "a decision has no outcome"
    for index, log in world.logs.items():
        assert world.committed[index].stable_offset >= world.ends[index]
        for offset in log:
            at = (index, offset)
            is_done = world.succeeded[at] or at in world.dead | world.filtered
            assert is_done, f"{at} is lost"
    if world.crashes == 0 and not troubled:
        assert max(world.succeeded.values(), default=0) <= 1


@given(worlds(), st.sampled_from(["retry", "skip", "park"]), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_decision_on_a_record_that_waits_is_carried_out_at_once(world, action, data):
    """Whatever its back-off; without trouble each record succeeds once, or is given up."""
    world.policy = RetryPolicy(backoff=10_000.0, max_backoff=10_000.0, jitter=0)
    world.filters = ()
    world.see_ends()
    decided = {}
    for step in range(80):
        world.step("ldck"[step % 4], data, rough=False)
        if step % 4 == 3 and all(not s.todo for p in world.partitions for s in p.cursors.values()):
            for p in world.partitions:
                for at in [
                    (p.index, w.offset) for s in p.cursors.values() for w in s.waiting.records()
                ]:
                    attempts = p.lanes.failed.attempts[at[1]]
                    if at not in decided and not any(w.offset == at[1] for w in p.supply.parked):
                        by = DecidedBy("op", at_ms=1)
                        made = Decision("t", *at, action, "", by, attempts)
                        world.decisions[at] = decided[at] = made
    calls = dict(world.calls)
    for at, decision in decided.items():
        if action == "retry":
            assert world.attempts[at][: decision.attempts + 1][-1] == decision.attempts + 1
        else:
            assert calls[at] == decision.attempts
        outcome = {"retry": {"retried", "done"}, "skip": {"done"}, "park": {"parked"}}[action]
        assert {found for one, found in world.outcomes if one is decision} <= outcome
    assert not world.breaks
    assert not world.decisions
    assert max(world.succeeded.values(), default=0) <= 1


def test_a_discarded_record_below_the_stable_offset_is_not_tried_again():
    """Its slot is at work when it is discarded, and others bring the stable offset past it."""
    low, high = KeyRange().split(2)
    p = make_partition(
        0, "t", 0, stable=0, committed=OffsetRanges(), slots=[(0, (low,)), (1, (high,))],
        ordering="key", whole=True,
    )  # fmt: skip
    p.ledger.end = 4
    limits = Limits(10, 100)
    p.slots.plan([0, 1], 0.0, limits)
    parked = Failure(1, low.first, b"k", 1, math.inf, "no")
    p.slots.reported(
        0, PartitionReport(pack_offsets(pa.array([3], pa.int64())), None, [parked]), 0.0
    )
    p.slots.reported(1, PartitionReport(pack_offsets(pa.array([0], pa.int64()))), 0.0)
    p.ledger.end = 8
    p.slots.plan([0], 1.0, limits)  # The slot of the parked key is at work on 4 to 7.
    p.discard(1, 2.0)
    p.slots.amend(OffsetRanges([(2, 2)]))
    p.commit_answered(p.ledger.to_commit, 4, p.ledger.holes_to_commit)
    p.slots.reported(0, PartitionReport(pack_offsets(pa.array([4, 5, 6, 7], pa.int64()))), 3.0)
    assert not p.slots.plan([0], 4.0, limits)


def test_a_kept_record_holds_its_lane_although_retention_deletes_it():
    """Its handler still runs; what retention took behind it is forgotten."""
    p = make_partition(
        0, "t", 0, stable=0, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
        ordering="key", whole=True,
    )  # fmt: skip
    p.ledger.end = 4
    limits, lane = Limits(100, 100), 7
    p.slots.plan([0], 0.0, limits)
    p.slots.given_back(0, PartitionReport(), [(1, lane)], 0.0)
    assert p.blocker(0.0)["state"] == "to do"
    assert p.slots.plan([0], 0.0, limits) == {0: OffsetRanges([(0, 0), (2, 3)])}
    assert p.slots.work(0).blocked == {lane: 1}
    p.slots.reported(
        0, PartitionReport(pack_offsets(pa.array([0], pa.int64())), blocked=[(2, lane)]), 0
    )
    assert (p.blocker(0.0)["state"], p.supply.pending, p.supply.held_back) == ("in flight", 0, 1)
    p.log_start(3)
    p.ledger.end = 6
    p.slots.plan([0], 0.0, limits)
    assert p.slots.work(0).blocked == {lane: 1}
    p.slots.reported(
        0, PartitionReport(pack_offsets(pa.array([4], pa.int64())), blocked=[(5, lane)]), 0
    )
    assert not p.slots.plan([0], 0.0, limits)
    assert not p.cursors[0].is_drained(6, is_full=False)
    p.slots.kept_ended(OffsetRanges([(1, 1)]), 0.0)
    assert p.slots.plan([0], 0.0, limits) == {0: OffsetRanges([(5, 5)])}


def test_unread_offsets_are_never_holes():
    """An offset that some share has not looked at yet is no hole."""
    p = make_partition(
        0, "t", 0, stable=0, committed=OffsetRanges(),
        slots=[(s, (r,)) for s, r in enumerate(KeyRange().split(2))], ordering="key", whole=True,
    )  # fmt: skip
    p.ledger.end = 10
    p.slots.plan([0], 0.0, Limits(10, 10))
    p.slots.reported(0, PartitionReport(), 0.0)
    assert not p.supply.holes()
    p.slots.plan([1], 0.0, Limits(10, 10))
    assert not p.supply.holes()
    p.slots.reported(1, PartitionReport(), 0.0)
    assert list(p.supply.holes()) == [(0, 9)]


@st.composite
def restarts(draw):
    """A world that starts from any state of the commit log: gaps, and pending records anywhere."""
    offsets = draw(st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True))
    log = {offset: draw(keys) for offset in sorted(offsets)}
    world = World(
        {0: log}, dict.fromkeys(draw(st.lists(st.tuples(st.just(0), st.sampled_from(offsets)))), 1),
        slots=draw(st.integers(1, 3)), ordering=draw(st.sampled_from(["key", "key", "partition"])),
        concurrency=draw(st.sampled_from([1, 3])), policy=RetryPolicy(backoff=1.0, jitter=0),
    )  # fmt: skip
    done = draw(st.sets(st.sampled_from(offsets)))
    world.succeeded.update((0, offset) for offset in done)
    world.committed[0] = PartitionCommits(0, OffsetRanges.from_offsets(sorted(done)))
    for offset in set(offsets) - done:
        if draw(st.integers(0, 3)) == 0:
            key = log[offset]
            hashed = offset_hash(offset) if key is None else key_hash(key)
            due = draw(st.sampled_from([0.0, 0.0, 1_030.0, math.inf]))
            world.pending[0][offset] = (offset, hashed, 1, due, "no")
    world.start()
    return world


@given(restarts(), st.integers(1, 12), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_start_from_any_commit_log_keeps_the_order(world, window, data):
    """Pending records may lie above undone lower ones of their key, or above all that is done."""
    for _ in range(400):
        world.launch(window, batch_time=data.draw(st.sampled_from([9.0, 9.0, 0.0])))
        for slot in data.draw(st.permutations(sorted(world.busy))):
            world.deliver(slot, lost=False)
        world.commit()
        world.now += 10
        world.see_ends()
        if all(p.is_drained and not p.ledger.to_commit for p in world.partitions):
            if world.committed[0].stable_offset >= world.ends[0]:
                break
            parked = [w.offset for p in world.partitions for w in p.supply.parked]
            assert parked, "nothing is left to do, and something is not done"
            assert not any(world.calls[0, offset] for offset in parked)
            world.decide(lambda *_: data.draw(st.booleans()))
    else:
        raise AssertionError("the world did not come to rest")
    assert not world.breaks
    assert max(world.succeeded.values(), default=0) <= 1


def test_a_pending_record_above_all_that_is_done_waits_for_lower_ones_of_its_key():
    """Offsets below it were made undone, or done ones did not fit into the log before a crash."""
    world = World(
        {0: {offset: b"a" if offset % 10 == 0 else b"b" for offset in range(60)}}, {},
        slots=2, ordering="key", concurrency=1, policy=RetryPolicy(),
    )  # fmt: skip
    world.pending[0] = {50: (50, key_hash(b"a"), 1, 0.0, "no")}
    world.undo(0, 5, 40)
    world.see_ends()
    while world.launch(8, batch_time=9.0):
        world.deliver(0, lost=False) if 0 in world.busy else None
        world.deliver(1, lost=False) if 1 in world.busy else None
        world.commit()
    assert not world.breaks
    assert world.committed[0].stable_offset == 60


def test_lower_records_of_a_parked_key_are_handled_and_it_stays_parked():
    """They were made undone: they need no decision, and if they fail, it waits behind them."""
    world = World(
        {0: dict.fromkeys(range(20), b"a")}, {(0, 7): 1}, slots=1, ordering="key", concurrency=1,
        policy=RetryPolicy(backoff=1.0, jitter=0),
    )  # fmt: skip
    world.pending[0] = {10: (10, key_hash(b"a"), 3, math.inf, "parked"),
                        12: (12, key_hash(b"a"), 2, 0.0, "no")}  # fmt: skip
    world.start()
    world.see_ends()
    for step in "ldcwldcwldc":
        world.step(step, None, rough=False)
    assert not world.breaks
    assert world.committed[0].stable_offset == 10
    assert [w.offset for w in world.partitions[0].supply.parked] == [10]
    assert world.partitions[0].is_drained
    world.decide(lambda *_: True)
    for step in "ldcwldc":
        world.step(step, None, rough=False)
    assert world.committed[0].stable_offset == 20
    assert world.calls[0, 10] == 0
    assert world.attempts[0, 7] == [1, 2]
    assert world.attempts[0, 12] == [3]

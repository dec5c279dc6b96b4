"""A job's loop without Kafka and Spark: hand-over, lost tasks, waits, the order of writes."""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import astuple, replace
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest

from assignors import KeyRange, Share, key_hash
from commits import CommitLogUnavailable, OffsetRanges, OwnedShare, Pending
from commits.requests import parts_of
from commits.rows import Event
from coopconsume.consumer import CooperativeConsumer
from coopconsume.errors import (
    DataLoss,
    NotAuthorized,
    OutputNotWritten,
    OutputRefused,
    TopicReplaced,
)
from coopconsume.group import GroupMember
from coopconsume.group.keeping import common
from coopconsume.group.owned import LEASE, EpochGrant
from coopconsume.query import CooperativeQuery
from coopconsume.record import Reject
from coopconsume.runtime.dispatch import Dispatcher
from coopconsume.runtime.slot_leases import SlotLeases
from coopconsume.worker.channel.server import ChannelServer
from tests.model.job_world import _PATIENCE, TP, Frame, Gate, World, until
from tests.proxy import Proxy

KEYS = {offset: b"k%d" % (offset % 5) for offset in range(20)}


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world; its jobs are ended with the test."""
    made = []

    def make(keys=KEYS, **options):
        made.append(World(monkeypatch, tmp_path, keys, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def slot_mates(offset):
    """The offsets of the slot that has an offset."""
    halves = KeyRange().split(2)
    return {o for o in KEYS for h in halves if h.contains(key_hash(KEYS[offset]))
            and h.contains(key_hash(KEYS[o]))}  # fmt: skip


def test_a_stuck_handler_holds_back_no_commit_of_what_is_done(world):
    """Its slot and all others report what is done while it runs; it comes with its own end."""
    there = world(channel=True)
    member, gate = there.claim(), there.gate(13)
    there.run(member, gate)
    behind = {o for o in slot_mates(13) if o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - behind)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_stuck_handler_costs_its_own_key(world):
    """All other keys go on, of its partition and of another one, and its own go on after it.

    So do records that come later.
    """
    there = world(channel=True, slow=0.1)
    there.kafka.partitions = 2
    member, gate, other = there.claim(), there.gate(4), there.gate()
    there.run(member, lambda record: (other if record.partition else gate)(record))

    def is_done_beside_it():
        end = there.kafka.end
        rest = {o for o in range(end) if o % 5 != 4}
        return there.done(member) == rest and there.done(member, ("t", 1)) == set(range(end))

    there.until(is_done_beside_it)
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 40)}
    there.kafka.end = 40
    there.until(is_done_beside_it)
    assert sorted(offset for offset, _ in other.calls) == list(range(40))
    assert [offset for offset, _ in gate.calls if offset % 5 == 4] == [4]
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(40)))
    calls = [offset for offset, _ in gate.calls]
    assert sorted(calls) == list(range(40))
    assert [offset for offset in calls if offset % 5 == 4] == list(range(4, 40, 5))


def test_filtered_records_are_committed_and_counted_without_a_handler(world):
    """A stuck handler does not hold them back; the log has the filter and how many it dropped."""
    there = world(channel=True, denyKeys="k1")
    member, gate = there.claim(), there.gate(4)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) >= {o for o in range(20) if o % 5 == 1})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == [o for o in range(20) if o % 5 != 1]
    there.until(lambda: job._meter.totals["done"] == 20)
    assert job._meter.totals["filtered"] == 4
    history = member.store.history("g")
    assert sum(p["filtered"] for e in history for p in e["partitions"]
               if e["kind"] == "commit") == 4  # fmt: skip
    (claim,) = [e for e in history if e["kind"] == "claim"]
    assert claim["detail"]["filter"] == "denyKeys=k1"


def test_relief_starts_no_more_handlers_at_once_than_there_are_slots(world):
    """The task that keeps the stuck record counts; the other keys of its slot have their turn."""
    there = world(
        keys={offset: b"k%d" % (offset % 20) for offset in range(200)}, channel=True, slow=0.1
    )
    member, gate = there.claim(), there.gate(4)
    running, most, lock = [0], [0], threading.Lock()

    def handler(record):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        try:
            time.sleep(0.002)
            gate(record)
        finally:
            with lock:
                running[0] -= 1

    job = there.run(member, handler)
    there.until(lambda: any(running.kept for running in job._dispatcher.running.values()))
    there.kafka.log |= {offset: b"k%d" % (offset % 20) for offset in range(200, 400)}
    there.kafka.end = 400
    there.until(lambda: there.done(member) == {o for o in range(400) if o % 20 != 4})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(400)))
    assert most[0] == 2


def test_a_record_whose_slot_is_lost_is_done_again_after_its_lease_and_holds_back_its_key_alone(
    world,
):
    """The slot has given back all else: that is not in doubt, and goes on at once."""
    there = world(channel=True, slow=0.1, handlerTimeout="0.1 seconds")
    member, gate = there.claim(), there.gate(4)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 4})
    job._dispatcher.leases._server._on_report = lambda _: None
    there.until_one_slot_works(job)
    there.dying = 1
    lost_at = time.monotonic()
    gate.opened.set()
    there.until(lambda: job._meter.totals["lostSlots"])
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 30)}
    there.kafka.end = 30
    assert not job._dispatcher.barred
    there.until(lambda: there.done(member) == set(range(30)))
    assert [offset for offset, _ in gate.calls if offset % 5 == 4] == [4, 4, 9, 14, 19, 24, 29]
    assert max(Counter(offset for offset, _ in gate.calls if offset != 4).values()) == 1
    again = max(at for offset, at in gate.calls if offset == 4)
    assert 2.0 < again - lost_at < 60


def test_one_slot_is_left_to_go_on_with(world):
    """A task that keeps a record keeps its core."""
    there = world(channel=True, slow=0.1)
    other = next(o for o in range(20) if o not in slot_mates(3))
    member, gate = there.claim(), there.gate(3, other)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work == {3, other})
    there.until(lambda: any(running.kept for running in job._dispatcher.running.values()))
    since = time.monotonic()
    there.until(lambda: time.monotonic() > since + 0.5)
    assert sum(len(running.kept) for running in job._dispatcher.running.values()) == 1
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


@pytest.mark.parametrize("does", ["fails", "is rejected", "is stopped"])
def test_a_record_that_its_slot_keeps_may_fail_or_be_the_last_one(world, does):
    """It is tried again before its key goes on; a stop waits for it and commits it."""
    there = world(channel=True, slow=0.1)
    member, gate, sink = there.claim(), there.gate(4), Unreliable()

    def handler(record):
        gate(record)
        if record.offset == 4 and does != "is stopped" and record.attempt == 1:
            raise Reject("no") if does == "is rejected" else RuntimeError("planned")

    job = there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 4})
    if does == "is stopped":
        stopping = threading.Thread(target=job.stop)
        stopping.start()
        there.until(lambda: job._stopping)
        there.turns(job)
        gate.opened.set()
        stopping.join(120)
        assert job.error is None
        assert there.done(member) == {o for o in range(20) if o % 5 != 4 or o == 4}
        return
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    calls = [offset for offset, _ in gate.calls if offset % 5 == 4]
    assert calls == [4] * (1 + (does == "fails")) + [9, 14, 19]
    assert sink.written == ([4] if does == "is rejected" else [])


def test_a_lost_slot_repeats_only_what_it_did_not_report(world):
    """What was committed while it worked is not handled again, and the rest waits for its lease."""
    there = world(channel=True, handlerTimeout="0.1 seconds")
    member, gate = there.claim(), there.gate(13)
    job = there.run(member, gate)
    behind = {o for o in slot_mates(13) if o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - behind)
    there.until_one_slot_works(job)
    there.dying = 1
    lost_at = time.monotonic()
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    counts = Counter(offset for offset, _ in gate.calls)
    assert {offset for offset, count in counts.items() if count > 1} <= behind
    assert counts[13] == 2
    again = max(at for offset, at in gate.calls if offset == 13)
    assert 2.0 < again - lost_at < 60


@pytest.mark.parametrize("how", ["stop", "trial", "pause", "drain"])
def test_a_stop_starts_nothing_more_and_commits_what_has_run(world, monkeypatch, how):
    """A pause does so, too, until it ends; where it is to drain, all that was read is handled."""
    there = world(channel=True)
    if how == "trial":  # Its slots are not asked to give records back.
        monkeypatch.setattr(
            "coopconsume.runtime.dispatch.Dispatcher._may_relieve", lambda *_: False
        )
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    if how == "pause":
        job.pause()
        there.turns(job)
    else:
        stopping = threading.Thread(target=job.stop, kwargs={"drain": how == "drain"})
        stopping.start()
        there.until(lambda: job._stopping)
        there.turns(job)
    slots = job._dispatcher.leases._server._slots
    stopped = next(iter(job._dispatcher.running.values())).stopped
    assert bool(stopped) == (how != "drain")
    until(lambda: not stopped or all(one.is_asked_to_stop for one in slots.values()))
    gate.opened.set()
    if how == "pause":
        there.until(lambda: not job._dispatcher.running)
        there.until(lambda: there.done(member) == {offset for offset, _ in gate.calls})
    else:
        stopping.join(120)
        assert job.ended.is_set()
        assert job.error is None
    called = {offset for offset, _ in gate.calls}
    assert there.done(member) == called
    assert called == set(range(20)) if how == "drain" else not slot_mates(3) <= called
    if how == "pause":
        there.until(lambda: job._meter.waiting is not None)
        assert job._meter.waiting.reason == "paused"
        assert job._meter.message == "paused by pause(): resume() continues"
        job.resume()
        there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == sorted(there.done(member))


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_stop_leaves_what_outlasts_its_timeout_in_doubt(world, how):
    """None starts, all else that is done is committed; that record comes again, after its handler.

    The stop is over while the handler still runs.
    """
    there = world(channel=True, batchTime="1 seconds")
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    if how == "stop":
        job.stop(0.2)
        waits = member.holding.waits(TP, [KeyRange()])
    else:
        consumer = object.__new__(CooperativeConsumer)
        vars(consumer).update(
            _joining=threading.Lock(), _is_closing=False, _membership=member, _poller=Mock(),
            _page=None, _query=CooperativeQuery(job, job._meter, {}, None, Mock()),
        )  # fmt: skip
        consumer.close(timeout=0.2)
        member = there.claim()
        waits = member.holding.waits(TP, [KeyRange()])
    assert waits > 0
    assert job.ended.is_set()
    assert job.error is None
    called = {offset for offset, _ in gate.calls}
    assert there.done(member) == called - {3}
    gate.opened.set()
    job._dispatcher._batches.shutdown()  # Waits for the slots.
    assert {offset for offset, _ in gate.calls} == called


def test_a_handler_call_that_takes_long_is_named_until_it_ends(world, monkeypatch):
    """In progress and among the reasons; whatever the other slot reports."""
    monkeypatch.setattr("coopconsume.worker.channel.client.SLOW_CALL", 0.0)
    there = world(channel=True)
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    meter = job._meter
    there.until(lambda: meter.waiting is not None and meter.oldest_call is not None)
    at = meter.oldest_call.topic, meter.oldest_call.partition, meter.oldest_call.offset
    assert at == (*TP, 3)
    there.until(lambda: "that of t-0@3 runs for" in meter.waiting.message)
    there.until(lambda: (meter.recent[-1]["oldestHandler"] or {}).get("offset") == 3)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    there.until(lambda: meter.oldest_call is None)


def test_a_batch_that_has_not_begun_is_ended_by_a_pause_and_is_in_nobodys_way(world):
    """None of its slots can have started a record: there is nothing to wait for."""
    there = world(channel=True)
    there.is_reading = True
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.running)
    # Slots that do not start are visible within seconds, in an event of their own.
    there.until(lambda: job._meter.waiting is not None)
    waiting = job._meter.recent[-1]["waitingFor"]
    assert waiting["reason"] == "slots"
    assert waiting["message"].startswith("waiting for Spark: none of ")
    job.pause()
    there.until(lambda: not job._dispatcher.running)
    assert not job._dispatcher.barred
    assert not job._meter.totals["lostSlots"]
    job.resume()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


@pytest.mark.parametrize("how", ["stop", "hand over", "late hand over"])
def test_a_slot_that_waits_for_a_core_is_in_nobodys_way(world, how):
    """Others of its batch are at work: it never begins, and its keys are not in doubt."""
    there = world(channel=True, drainTimeout="300 seconds")
    halves = KeyRange().split(2)
    at_work = next(slot for slot, half in enumerate(halves) if half.contains(key_hash(KEYS[3])))
    there.without_core = {1 - at_work}
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    running = next(iter(job._dispatcher.running.values()))
    ends = threading.Thread(target=job.stop if how == "stop" else member.hand_over)
    ends.start()
    until(lambda: running.kept)
    if how == "late hand over":
        job._hand_over.until = 0.0
    else:
        gate.opened.set()
    ends.join(_PATIENCE)
    assert not ends.is_alive()
    holding = member.holding or there.claim().holding
    assert holding.waits(TP, [halves[1 - at_work]]) <= 0
    assert (holding.waits(TP, [halves[at_work]]) > 0) == (how == "late hand over")
    assert {offset for offset, _ in gate.calls} <= slot_mates(3)


class Answering(Gate):
    """A gate that answers each record with a row."""

    def __call__(self, record):
        """Wait, and answer."""
        super().__call__(record)
        return {"text": str(record.offset)}


def test_a_report_that_was_not_acknowledged_counts_once(world, monkeypatch):
    """It comes again with the final report of its slot: its rows are not written again."""
    monkeypatch.setattr(SlotLeases, "taken", lambda *_: None)
    there = world(channel=True)
    member, handler = there.claim(), Answering(13)
    sink = Watching(member, there)
    there.run(member, handler, outputs=sink)
    behind = {o for o in slot_mates(13) if o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - behind)
    handler.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))


def test_a_report_that_did_not_arrive_comes_with_the_final_one(world):
    """With its rows; without it, what it reports would count as holes."""
    there = world(channel=True)
    member, handler = there.claim(), Answering(13)
    sink = Watching(member, there)
    job, lost = there.run(member, handler, outputs=sink), []
    job._dispatcher.leases._server._on_report = lost.append
    there.until(lambda: lost)
    handler.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))
    assert sorted(offset for offset, _ in handler.calls) == list(range(20))


def test_a_commit_shows_that_the_epoch_was_in_force_when_it_was_asked_for(world, monkeypatch):
    """Not when its answer came: this process may have stood still, and be fenced by then."""
    there = world()
    member = there.claim()
    asked, commit = [], member.store.commit

    def slow(*args, **how):
        asked.append(time.monotonic())
        results = commit(*args, **how)
        time.sleep(0.05)
        return results

    monkeypatch.setattr(member.store, "commit", slow)
    member.holding.commit({TP: OffsetRanges([(0, 3)])})
    assert member.holding.check(60.0) <= asked[0]


class Slow:
    """A handler that takes a moment, notes its calls, and breaks of the order rule.

    Args:
        keys: The key of each record, by offset.
    """

    def __init__(self, keys):
        self.keys = keys
        self.starts = []
        self.ended = set()
        self.at_work = set()
        self.breaks = []

    def __call__(self, record):
        """Note it."""
        self.starts.append((record.offset, time.monotonic()))
        lower = {o for o, key in self.keys.items() if key == record.key and o < record.offset}
        if record.key in self.at_work or not lower <= self.ended:
            self.breaks.append(record.offset)
        self.at_work.add(record.key)
        time.sleep(0.005)
        self.at_work.discard(record.key)
        self.ended.add(record.offset)

    def more(self, count):
        """Wait until some more calls have begun, or all records were handled."""
        enough = len(self.starts) + count
        until(lambda: len(self.starts) >= enough or len(self.ended) == len(self.keys))


MANY = {offset: b"k%d" % (offset % 7) for offset in range(400)}


def test_without_a_look_at_the_log_no_slot_starts_a_record_once_its_lease_has_passed(
    world, monkeypatch
):
    """So an owner that cannot see that it was fenced stops; with the next look it goes on."""
    keys = {offset: b"k%d" % (offset % 7) for offset in range(1_200)}
    there = world(keys, channel=True)
    member, handler = there.claim(), Slow(keys)
    job = there.run(member, handler)
    handler.more(50)
    with monkeypatch.context() as outage:
        for call in ("check", "commit"):
            outage.setattr(member.store, call, away)
        since = time.monotonic()
        until(lambda: len(job._dispatcher.leases._server.connected) == 0)
        last = handler.starts[-1][1]
        # A while for a thread that was not scheduled between the flag and the clock.
        assert last < since + LEASE + 10
        assert len(handler.ended) < len(keys)
    there.until(lambda: there.done(member) == keys.keys())
    assert sorted(offset for offset, _ in handler.starts) == sorted(keys)
    assert not handler.breaks


def test_slots_that_reach_no_driver_work_without_a_channel(world, monkeypatch):
    """The first batch finds out, and starts nothing; the job says it once, and goes on."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    there = world(channel=True)
    spec = ChannelServer.spec
    monkeypatch.setattr(ChannelServer, "spec", lambda server: replace(spec(server), port=port))
    member, gate = there.member(), there.gate()
    member.work_under_leases(LEASE)
    member.assign({TP: [KeyRange()]}, takeover=False)
    short = member.holding.life_ms
    assert short == 1000 * (LEASE + member.options.handler_timeout)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))
    # Its claim was made again, so that the next owner waits for as long as a batch may go on.
    assert member.holding.life_ms == short + 1000 * member.options.batch_time
    event = until(lambda: job._meter.recent)[-1]
    assert f"no channel to the driver at 127.0.0.1:{port}" in event["channelError"]
    assert job._dispatcher.leases.spec is None


def away(*_args, **_how):
    """The commit log does not answer."""
    raise CommitLogUnavailable("the log", "call", "no route")


@pytest.fixture
def proxies(monkeypatch):
    """Put a proxy before the driver of each job; return them, by the driver's server."""
    made, spec = {}, ChannelServer.spec

    def proxied(server):
        if server not in made:
            made[server] = Proxy(spec(server).port)
        return replace(spec(server), port=made[server].port)

    monkeypatch.setattr(ChannelServer, "spec", proxied)
    yield made
    for proxy in made.values():
        proxy.close()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_becomes_of_channels_nothing_is_lost_or_out_of_order(world, proxies, seed):
    """Only what a lost slot did not report is handled again; every second job relieves slots.

    Connections are cut, delayed, or stay open and carry nothing until the leases have ended.
    """
    there = world(
        MANY, channel=True, batchTime="1 seconds", handlerTimeout="0.1 seconds",
        slow=0.0 if seed % 2 else math.inf,
    )  # fmt: skip
    draw = random.Random(seed)
    member, handler = there.claim(), Slow(MANY)
    job = there.run(member, handler)
    events = ["cut", "cut", "delay", "half open", "pause", "pause", "hand over", "die"]
    draw.shuffle(events)
    safe = set()
    for number, event in enumerate(events):
        to_come = events[number:]
        handler.more(draw.randrange(5, 60))
        server = job._dispatcher.leases._server
        proxy = server.spec() and proxies[server]
        running = set(job._dispatcher.running)
        if event == "cut":
            proxy.cut()
        elif event == "delay":
            proxy.passes.clear()
            time.sleep(draw.uniform(0.1, 1.0))
            proxy.passes.set()
        elif event == "half open":
            proxy.passes.clear()
            until(lambda job=job, running=running: not running & set(job._dispatcher.running))
            proxy.passes.set()
        elif event == "pause":
            job.pause()
            until(lambda job=job: not job._dispatcher.running)
            job.resume()
        elif event == "hand over":
            member.hand_over()
            if "die" in to_come:  # Nothing is repeated by an orderly hand-over.
                assert there.done(member) == handler.ended
            there.end(job)
            member = there.claim()
            job = there.run(member, handler)
        else:
            safe = there.done(member)
            there.dying = 1
    there.until(lambda: there.done(member) == MANY.keys())
    assert not handler.breaks
    counts = Counter(offset for offset, _ in handler.starts)
    assert not {offset for offset, count in counts.items() if count > 1} & safe
    assert max(counts.values()) <= 2


@pytest.mark.parametrize("channel", [True, False])
def test_a_hand_over_waits_for_running_handlers_and_commits_them(world, channel):
    """Nothing starts any more, what runs ends and counts, and the next owner need not wait."""
    there = world(channel=channel, drainTimeout="300 seconds")
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    there.kafka.log |= {offset: b"new%d" % offset for offset in range(20, 50)}
    handing_over = threading.Thread(target=member.hand_over)
    handing_over.start()
    until(lambda: job._hand_over is not None or not handing_over.is_alive())
    there.kafka.end = 50
    until(lambda: not handing_over.is_alive() or job.partitions[0].end == 50)
    there.turns(job)
    gate.opened.set()
    handing_over.join(120)
    called = {offset for offset, _ in gate.calls}
    assert called == there.done(member)
    # With a channel the slot starts no further record; without one it goes on to its end.
    assert called == set(range(20)) if not channel else not slot_mates(3) <= called
    after = there.claim()
    assert after.holding.waits(TP, [KeyRange()]) <= 0


def test_what_a_hand_over_gives_up_is_in_doubt_and_done_again(world):
    """It is late: the release names the slot, its work does not count, and the next owner waits."""
    there = world(drainTimeout="0 seconds")
    member, gate = there.claim(), there.gate(3)
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    member.hand_over()
    assert 3 not in there.done(member)
    after = there.claim()
    assert after.holding.waits(TP, [KeyRange()]) > 0
    gate.opened.set()


@pytest.mark.parametrize("lost", [False, True])
def test_of_a_late_hand_over_the_running_records_alone_are_in_doubt(world, lost):
    """Their slot named them: the next owner starts all else at once, and their keys after the wait.

    So it is if the slot was lost before the hand-over.
    """
    there = world(
        channel=True, batchTime="2 seconds", handlerTimeout="0.1 seconds",
        drainTimeout="300 seconds", slow=0.1 if lost else math.inf,
    )  # fmt: skip
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)

    def has_named():
        """Whether the slot has said what it still works on."""
        return any(running.kept for running in job._dispatcher.running.copy().values())

    if lost:
        there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 3})
        there.until_one_slot_works(job)
        until(has_named)
        job._dispatcher.leases._server._on_report = lambda _: None
        there.dying = 1
        gate.opened.set()
        there.until(lambda: job._meter.totals["lostSlots"])
        gate.opened.clear()
        gate.at_work.clear()
    handing_over = threading.Thread(target=member.hand_over)
    handing_over.start()
    if not lost:
        until(has_named)
        there.until_one_slot_works(job)
        job._hand_over.until = 0.0
    handing_over.join(120)
    gate.opened.set()
    before, stuck = len(gate.calls), key_hash(KEYS[3])
    after = there.claim()
    assert after.holding.waits(TP, [KeyRange(stuck, stuck)]) > 0
    others = [KeyRange(0, stuck - 1), KeyRange(stuck + 1)]
    assert after.holding.waits(TP, others) <= 0
    until_when = dict(after.holding.doubts(TP))[KeyRange(stuck, stuck)]
    there.run(after, gate)
    there.until(lambda: there.done(after) == set(range(20)))
    again = gate.calls[before:]
    assert min(at for offset, at in again if offset % 5 == 3) >= until_when
    assert [offset for offset, _ in again if offset % 5 == 3] == [3, 8, 13, 18]
    counts = Counter(offset for offset, _ in gate.calls)
    assert {offset for offset, count in counts.items() if count > 1} == {3}


#: As long as work may go on by the options of these tests.
LIFE_MS = 1_000_000
WHOLE = Share(*TP)
LOW, HIGH = (Share(*TP, half) for half in KeyRange().split(2))


class Group:
    """The epochs of one member that joins without a hand-over, and of others."""

    def __init__(self, there):
        self.there = there
        self.member = there.member()
        self.number = 0
        self.epoch = None
        self.name = "a"

    def joins_a_group(self):
        """The member is in a group, but in none of a broker."""
        there, member = self.there, self.member
        member._group = GroupMember(there.options, member.store, there.kafka, 2, member, LIFE_MS)

    def in_doubt(self, share):
        """What of a share the epoch in force has in doubt."""
        doubts = self.member.store.assignment("g").doubts
        return common([share], [Share(*d.share[:2], KeyRange(*d.share[2:])) for d in doubts])

    def opens(self, mine, others=(), continues=None):
        """The next epoch is opened; the member does not know it yet."""
        self.number += 1
        self.epoch = self.member.store.open_epoch(
            "g", {self.name: mine, "b": others}, previous=self.epoch, generation=self.number,
            topic_ids={"t": "topic-id"}, life_ms=LIFE_MS, continues=continues,
        )  # fmt: skip
        self.mine = tuple(mine)

    def begins(self, *, continues=True, moving=(), waits=()):
        """The member gets its assignment of the epoch."""
        self.member.moved_in(
            EpochGrant(
                self.epoch, self.name, self.mine, {"t": "topic-id"}, waits, LIFE_MS, continues,
                moving,
            )
        )  # fmt: skip


@pytest.fixture
def group(world):
    """A member with the whole partition and slots that have a channel."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    group.opens([WHOLE])
    group.begins(continues=False)
    return group


def test_work_goes_on_through_a_rebalance_that_moves_none_of_it(group):
    """What is done in between counts under the next epoch; nothing is stopped or called again."""
    there, member, gate = group.there, group.member, group.there.gate(13)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    held_back = slot_mates(13)
    there.until(lambda: set(range(20)) - held_back <= there.done(member))
    holding, keys = member.holding, {KEYS[o] for o in held_back}
    for end in (40, 60):
        assert member.keep()
        group.opens([WHOLE])
        there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(end - 20, end)}
        there.kafka.end = end
        job._epoch_state.holding._seen = -math.inf
        there.turns(job, 5)
        group.begins()
        others = {o for o in range(end) if b"k%d" % (o % 5) not in keys}
        there.until(lambda others=others: others <= there.done(member))
    assert member.holding is holding
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(60)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(60))
    assert job._meter.totals["rebalances"] == 3


@pytest.mark.parametrize("pieces", [2, 4, 8])
@pytest.mark.parametrize("is_late", [False, True])
def test_keys_that_stay_go_on_while_others_are_given_up(world, pieces, is_late):
    """Running handlers of the others end and are committed; nothing is called twice.

    If one of them outlives `drainTimeout`, its record alone is in doubt.
    """
    group = Group(world(channel=True, slow=0.5, drainTimeout="300 seconds"))
    group.opens([WHOLE])
    group.begins(continues=False)
    there, member = group.there, group.member
    moved = KeyRange().split(pieces)[-1]
    goes = {o for o in range(20) if moved.contains(key_hash(KEYS[o]))}
    first = min(goes)
    key = min(o for o in range(5) if not moved.contains(key_hash(KEYS[o])))
    gate, slow = there.gate(first), there.gate(60 + key)

    def handler(record):
        gate(record)
        slow(record)

    job = there.run(member, handler)
    there.until(lambda: gate.at_work)
    holding, shares = member.holding, (Share(*TP, KeyRange(0, moved.first - 1)),)
    assert member.keep()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (Share(*TP, moved),)})
    gives_up.start()
    until(lambda: job._leaving is not None)
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 60)}
    there.kafka.end = 60
    stays = {o for o in range(80) if not moved.contains(key_hash(b"k%d" % (o % 5)))}
    there.until(lambda: {o for o in stays if o < 60} <= there.done(member))
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(60, 80)}
    there.kafka.end = 80
    there.until(lambda: slow.at_work)
    assert gives_up.is_alive()
    called = {offset for offset, _ in gate.calls}
    assert not called - stays - goes
    if is_late:
        job._leaving.until = 0.0
    else:
        gate.opened.set()
    gives_up.join(_PATIENCE)
    assert member.holding is holding
    assert holding.shares == shares
    (partition,) = job.partitions
    there.until(lambda: partition.undealt_since is None)
    assert all(share.ranges for share in partition.shares.values()), "a slot has nothing to do"
    slow.opened.set()
    there.until(lambda: stays <= there.done(member))
    doubts = {first} if is_late else set()
    assert member.keep()
    group.opens(shares, [Share(*TP, moved)], continues={"a": group.epoch.number})
    stuck = [KeyRange(h, h) for h in sorted({key_hash(KEYS[o]) for o in doubts})]
    assert [one.key_range for one in group.in_doubt(Share(*TP, moved))] == stuck
    group.begins()
    gate.opened.set()
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(80, 100)}
    there.kafka.end = 100
    stays = {o for o in range(100) if not moved.contains(key_hash(b"k%d" % (o % 5)))}
    there.until(lambda: stays <= there.done(member))
    calls = Counter(offset for offset, _ in gate.calls)
    assert set(calls) == called | stays
    assert max(calls.values()) == 1
    assert [o for o, _ in slow.calls if o % 5 == key] == list(range(key, 100, 5))
    assert called - doubts <= there.done(member) <= called | stays
    assert member.holding is holding


@pytest.mark.parametrize("doubt", ["nothing", "a key", "a range"])
def test_keys_that_stay_go_on_while_others_come(world, doubt):
    """What their earlier owner did counts, and what it may be at work on waits for that alone."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    high = [o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))]
    low = [o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))]
    theirs, failed = high[:3], high[3]
    gate = there.gate(low[0])
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    holding, (partition,) = member.holding, job.partitions
    member.store.commit(
        "g", group.epoch, "b", {TP: OffsetRanges.from_offsets(theirs)},
        pending={TP: [Pending(failed, key_hash(KEYS[failed]), 3, 0, "not yet")]}, holes={},
        commit_id="theirs",
    )  # fmt: skip
    listener = Mock()
    member._listener = listener
    assert member.keep()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    stuck = key_hash(KEYS[failed])
    share = {"nothing": [], "a key": [Share(*TP, KeyRange(stuck, stuck))], "a range": [HIGH]}[doubt]
    begun, wait = time.monotonic(), 2.0
    group.begins(waits=tuple((one, wait) for one in share))
    listener.on_assigned.assert_called_once_with({TP: [HIGH.key_range]})
    assert member.holding is holding
    assert job.partitions == [partition]
    assert holding.key_ranges == {TP: [KeyRange()]}
    key = {o for o in low if KEYS[o] == KEYS[low[0]]}
    there.until(lambda: set(range(20)) - key <= there.done(member))
    assert gate.at_work, "it was stopped"
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    calls = dict(gate.calls)
    assert sorted(o for o, _ in gate.calls) == sorted(calls.keys())
    assert set(calls) == set(range(20)) - set(theirs)
    waits = {o for o in calls if any(s.key_range.contains(key_hash(KEYS[o])) for s in share)}
    assert min((calls[o] for o in waits), default=begun + wait) >= begun + wait
    there.until(lambda: partition.is_drained)
    assert partition.whole
    listener.on_revoked.assert_not_called()


def test_a_returned_partition_starts_again(group):
    """What others did of it meanwhile counts, and nothing that was known of it before does."""
    there, member = group.there, group.member
    gate = there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    holding = member.holding
    assert member.keep()
    group.opens([WHOLE])
    group.begins(moving=(WHOLE,))
    assert (member.holding, job.partitions, member.owned) == (holding, [], {})
    assert member.keep()
    group.opens([], [WHOLE], continues={"a": group.epoch.number})
    group.begins()
    member.store.commit(
        "g", group.epoch, "b", {TP: OffsetRanges([(20, 24)])}, holes={}, commit_id="theirs"
    )
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 40)}
    there.kafka.end = 40
    assert member.keep()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    assert member.holding is holding
    there.until(lambda: there.done(member) == set(range(40)))
    calls = sorted(offset for offset, _ in gate.calls)
    assert calls == [*range(20), *range(25, 40)]
    assert holding.key_ranges == {TP: [KeyRange()]}


def test_ranges_that_cannot_be_added_restart_all(group, monkeypatch):
    """What runs ends first: nothing of it is lost or called twice."""
    there, member, gate = group.there, group.member, group.there.gate()
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    job = there.run(member, gate)
    there.until(lambda: job._epoch_state is not None)
    holding = member.holding
    assert member.keep()
    group.opens([WHOLE], continues={"a": group.epoch.number})

    def refuse(_load):
        raise CommitLogUnavailable("table", "read", "it does not answer")

    monkeypatch.setattr(job, "extend", refuse)
    group.begins()
    assert member.holding is not holding
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_what_the_log_refuses_between_two_epochs_is_committed_under_the_next(group):
    """The slot reports while the next epoch is in force and not known yet."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    gate.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.saver.refused_for > 0)
    assert job._epoch_state is not None, "it was stopped"
    assert there.done(member) == set()
    group.begins()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_what_is_written_between_two_epochs_is_committed_under_the_next(group):
    """Once: its rows carry the id of the commit, and the log would never count a refused id."""
    there, member, handler = group.there, group.member, Answering(*range(20))
    sink = Watching(member, there)
    job = there.run(member, handler, outputs=sink)
    there.until(lambda: handler.at_work)
    assert member.keep()
    group.opens([WHOLE])
    handler.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.saver.outbox.ready)
    there.turns(job, 5)
    assert job._epoch_state is not None, "it was stopped"
    assert there.done(member) == set()
    group.begins()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))
    assert sorted(offset for offset, _ in handler.calls) == list(range(20))


def test_who_asks_for_a_rebalance_begins_again(group):
    """It is to learn how long its work may go on, or that a topic is gone: it hands over."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    # It is in no group of a broker.
    member._group = GroupMember(there.options, member.store, there.kafka, 2, member, LIFE_MS)
    member.rebalance("to begin again")
    assert not member.keep()
    assert member.keep()
    # It is about to stop.
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    until(lambda: job._stopping)
    assert not member.keep()
    gate.opened.set()
    stopping.join(_PATIENCE)


@pytest.fixture
def drains_all(monkeypatch):
    """Have jobs hand over all they have, as those with real-time slots do."""
    monkeypatch.setattr(Dispatcher, "may_leave", False)


@pytest.mark.usefixtures("drains_all")
def test_what_moves_is_drained_and_released_and_the_rest_begins_again(group):
    """It is committed before it is released; the member begins again with what it keeps."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._hand_over is not None)
    there.turns(job)
    assert moves.is_alive()
    assert not member.store.assignment("g").handed
    gate.opened.set()
    moves.join(_PATIENCE)
    assert {offset for offset, _ in gate.calls} <= there.done(member)
    assert member.store.assignment("g").handed == {"a": ((*TP, *astuple(HIGH.key_range)),)}
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert sorted(offset for offset, _ in gate.calls) == sorted(there.done(member))
    # The next epoch moves nothing of this member.
    assert member.keep()
    group.opens([LOW], [HIGH])
    (doubt,) = member.store.assignment("g").doubts
    assert doubt.share == OwnedShare(*TP, *astuple(LOW.key_range))
    holding = member.holding
    group.begins()
    assert member.holding is holding


@pytest.mark.usefixtures("drains_all")
def test_a_member_that_is_refused_while_it_drains_joins_again(group):
    """It stays in no group without shares: nothing else would give it any."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    member._group = GroupMember(there.options, member.store, there.kafka, 2, member, LIFE_MS)
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._hand_over is not None)
    group.opens([], [WHOLE])
    gate.opened.set()
    moves.join(_PATIENCE)
    assert not member.holds
    assert member._group._again


@pytest.mark.usefixtures("drains_all")
def test_late_handlers_alone_are_in_doubt_of_what_moves(world):
    """And the member itself does not start their keys again before that has passed."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    high = next(o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o])))
    low = next(o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o])))
    gate = there.gate(high, low)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work == {high, low})
    assert member.keep()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._hand_over is not None)
    until(lambda: all(r.kept for r in job._dispatcher.running.values()))
    job._hand_over.until = 0.0
    moves.join(_PATIENCE)
    stuck, ours = key_hash(KEYS[high]), key_hash(KEYS[low])
    assert member.holding.waits(TP, [KeyRange(ours, ours)]) > 0
    assert member.holding.waits(TP, [KeyRange(0, ours - 1)]) <= 0
    group.opens([LOW], [HIGH])
    doubts = [d.share for d in member.store.assignment("g").doubts]
    assert OwnedShare(*TP, stuck, stuck) in doubts
    assert [s for s in doubts if s.first >= HIGH.key_range.first] == [OwnedShare(*TP, stuck, stuck)]


def test_a_member_that_loses_part_of_its_work_begins_again(group):
    """A leader that does not know that it works on: what it did is not committed any more."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    before = member.holding
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    gate.opened.set()
    assert member.holding is not before
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert there.done(member) <= low


@pytest.mark.parametrize("how", ["moves", "closed by a listener", "rejoins", "follows"])
def test_what_a_member_gains_stays_in_doubt_until_its_earlier_owner_has_ended(world, how):
    """Also if the member gives it to others before it starts it."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    job = there.run(member, there.gate())
    there.until(lambda: job._epoch_state is not None)

    class Closes:
        """A listener that closes its consumer."""

        def on_revoked(self, _ranges):
            """Close it."""
            job.stop()
            member.leave()

    assert member.keep()
    group.opens([WHOLE])  # The other member has crashed.
    assert group.in_doubt(HIGH) == (HIGH,)
    waits = ((HIGH, 1000.0),)
    if how == "closed by a listener":
        member._listener = Closes()
        group.begins(moving=(LOW,), waits=waits)
        assert job.ended.wait(_PATIENCE)
        until(lambda: member.store.assignment("g").fenced)
    elif how == "follows":
        member.follow(group.epoch, "a", waits)
        member.hand_over()
    elif how == "rejoins":
        group.joins_a_group()
        member.holding.continue_under(
            EpochGrant(group.epoch, "a", group.mine, {"t": "topic-id"}, waits, LIFE_MS)
        )
        assert member.rejoin("the log was cut", ())
    else:
        group.begins(moving=(WHOLE,), waits=waits)
        assert not member.owned
    group.opens([], [WHOLE])
    assert group.in_doubt(HIGH) == (HIGH,)


def test_what_is_done_of_key_ranges_is_committed_before_they_are_given_up(group, monkeypatch):
    """However long the commit log takes to answer."""
    there, member = group.there, group.member
    high = {o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))}
    gate = there.gate(max(high))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    commit, may_commit = member.store.commit, threading.Event()

    def late(*args, **more):
        assert may_commit.wait(_PATIENCE)
        return commit(*args, **more)

    monkeypatch.setattr(member.store, "commit", late)
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._leaving is not None)
    gate.opened.set()
    until(lambda: getattr(job._leaving, "mark", True) is not None)
    there.turns(job, 5)
    assert job._leaving is not None
    assert not member.store.assignment("g").handed
    may_commit.set()
    gives_up.join(_PATIENCE)
    assert high <= there.done(member)
    assert member.store.assignment("g").handed == {"a": ((*TP, *astuple(HIGH.key_range)),)}


def test_a_batch_that_has_not_begun_is_in_nobodys_way_as_keys_are_given_up(world):
    """A slot with some of them never begins, and nothing is in doubt."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member, gate = group.there, group.member, group.there.gate()
    there.is_reading = True
    group.opens([WHOLE])
    group.begins(continues=False)
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.running)
    assert member.keep()
    group.opens([WHOLE])
    group.begins(moving=(HIGH,))
    assert member.holding.shares == (LOW,)
    assert member.keep()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert group.in_doubt(HIGH) == ()
    (running,) = job._dispatcher.running.values()
    assert running.withdrawn
    assert running.withdrawn < running.waiting
    assert not gate.calls


@pytest.mark.parametrize("answers", ["not", "to another question"])
def test_a_slot_that_does_not_give_back_in_time_starts_nothing_more(world, monkeypatch, answers):
    """Others may work on its keys long before its lease ends."""
    ask, take = SlotLeases.withhold, Dispatcher.progressed
    answered = threading.Event()

    def ask_something_else(self, at, number, ranges):
        if answers != "not":
            ask(self, at, number + 1, ranges)

    def take_answer(self, report):
        take(self, report)
        if report.leaving is not None:
            answered.set()

    monkeypatch.setattr(SlotLeases, "withhold", ask_something_else)
    monkeypatch.setattr(Dispatcher, "progressed", take_answer)
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    high = {o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))}
    gate = there.gate(min(high))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.keep()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._leaving is not None and (answers == "not" or answered.is_set()))
    job._leaving.until = 0.0
    gives_up.join(_PATIENCE)
    called = {offset for offset, _ in gate.calls}
    assert member.keep()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert group.in_doubt(HIGH) == (HIGH,)
    gate.opened.set()
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= {offset for offset, _ in gate.calls})
    there.until(lambda: not job._dispatcher.running)
    assert {offset for offset, _ in gate.calls} == called | low


@pytest.mark.parametrize("moved", [HIGH, Share(*TP, KeyRange().split(8)[-1])])
def test_what_is_given_up_stays_in_doubt_until_its_earlier_owner_has_ended(world, moved):
    """The next owner must wait as the member that gave it up was to, and no longer."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False, waits=((HIGH, 500.0),))
    job = there.run(member, there.gate())
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert member.keep()
    group.opens([WHOLE])
    group.begins(moving=(moved,))
    assert member.holding is job._epoch_state.holding
    left = (Share(*TP, KeyRange(0, moved.key_range.first - 1)),)
    assert member.holding.shares == left
    group.opens(left, [moved])
    assert group.in_doubt(moved) == (moved,)
    doubts = member.store.assignment("g").doubts
    (wait,) = (d.life_ms for d in doubts if d.share.first >= moved.key_range.first)
    assert 0 < wait <= 500_000


@pytest.mark.parametrize("moved", [None, LOW])
def test_late_handlers_are_in_doubt_also_if_a_listener_closes_the_consumer(world, moved):
    """It gives back what the group's thread has drained, all of it or part of it."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    gate = there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)

    class Closes:
        """A listener that closes its consumer."""

        def on_revoked(self, _ranges):
            """Close it."""
            member.leave()

    member._listener = Closes()
    if moved is None:
        leaves = threading.Thread(target=member.hand_over)
    else:
        assert member.keep()
        group.opens([WHOLE])
        leaves = threading.Thread(target=group.begins, kwargs={"moving": (moved,)})
    leaves.start()
    until(lambda: job._hand_over is not None or job._leaving is not None)
    (job._hand_over or job._leaving).until = 0.0
    leaves.join(_PATIENCE)
    until(lambda: member.store.assignment("g").fenced)
    group.opens([], [WHOLE])
    stuck = key_hash(KEYS[3])
    assert group.in_doubt(Share(*TP, KeyRange(stuck, stuck)))


def test_a_member_that_closes_between_two_epochs_leaves_nothing_in_doubt(group):
    """It gives its key ranges back under the epoch in force, which it does not know yet."""
    there, member = group.there, group.member
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    group.joins_a_group()
    place = SimpleNamespace(member_id="a")
    member._group._consumer = SimpleNamespace(group_metadata=lambda: place)
    core = member._group._core
    core.taken(EpochGrant(group.epoch, "a", (WHOLE,), {"t": "topic-id"}))
    assert member.keep()
    core.hold(holds=True)
    group.opens([WHOLE], continues={"a": group.epoch.number})
    job.stop()
    member.leave()
    group.opens([], [WHOLE])
    assert not member.store.assignment("g").doubts


def test_a_member_that_keeps_under_another_id_commits_under_that(group):
    """Kafka gives one whose id it does not know any more another one."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.keep()
    group.name = "a2"
    group.opens([WHOLE])
    group.begins()
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert member.holding.member == "a2"
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_commit_is_repeated_under_the_epoch_that_it_began_under(group, monkeypatch):
    """Its row came after the next epoch's and its answer was lost: it is refused under its id."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.keep()
    commit, first = member.store.commit, []

    def lossy(name, epoch, who, offsets, **how):
        if offsets and not first:
            first.append(epoch)
            group.opens([WHOLE])
            parts = parts_of(offsets, how["pending"] or {}, how["holes"])
            row = Event("commit", how["commit_id"], "cluster", name, epoch, member=who, parts=parts)
            with member.store._lock:
                assert not member.store._append(row).counted
            group.begins()
            raise CommitLogUnavailable("t", "append", "no answer")
        return commit(name, epoch, who, offsets, **how)

    monkeypatch.setattr(member.store, "commit", lossy)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert first
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


@pytest.mark.parametrize("asked", ["to hand over", "to keep"])
def test_a_log_that_retention_shortens_between_two_epochs_hangs_no_hand_over(world, asked):
    """What the log refuses then is not waited for, if somebody waits for the end of the work."""
    group = Group(world(channel=True, drainTimeout="300 seconds", failOnDataLoss=False))
    group.opens([WHOLE])
    group.begins(continues=False)
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.keep()
    group.opens([LOW], [HIGH])
    gate.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.saver.refused_for > 0)
    there.kafka.start = 20
    job._epoch_state._starts_at = -math.inf

    def next_epoch():
        if asked == "to keep":
            assert not member.keep()
            member.hand_over()
            group.joins_a_group()
        group.begins(continues=False)

    # In a thread, as it would wait for ever.
    threading.Thread(target=next_epoch, daemon=True).start()
    there.until(
        lambda: job._epoch_state is not None and job._epoch_state.holding.epoch == group.epoch
    )
    assert job._epoch_state.holding is member.holding


@pytest.mark.parametrize("batches", [1, 2])
def test_work_of_a_lost_task_is_done_again_and_nothing_counts_without_a_handler(world, batches):
    """A batch that fails before any handler was called: its slots wait for its life, and begin."""
    there = world(batchTime="0.2 seconds", handlerTimeout="0.2 seconds")
    there.failures = [RuntimeError("executor lost")] * batches
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert {offset for offset, _ in gate.calls} == set(range(20))


def test_of_a_failed_batch_a_slot_that_has_started_waits_alone(world):
    """Its handlers may run on in a task that Spark has not ended; the other slot has begun none."""
    there = world(channel=True)
    halves = KeyRange().split(2)
    at_work = next(slot for slot, half in enumerate(halves) if half.contains(key_hash(KEYS[3])))
    there.without_core, there.fails_on = {1 - at_work}, (failed := threading.Event())
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    there.without_core = set()
    failed.set()
    there.until(lambda: there.done(member) >= set(range(20)) - slot_mates(3))
    assert job._dispatcher.barred.keys() == {at_work}
    assert Counter(offset for offset, _ in gate.calls)[3] == 1


def test_a_batch_whose_read_fails_is_planned_again_at_once(world):
    """No slot has connected: nobody waits for handlers, and no record is suspected."""
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))
    assert not any(map(job._dispatcher._crashes.concern, range(2)))


@pytest.mark.parametrize("channel", [True, False])
def test_without_a_channel_nobody_knows_whether_a_slot_of_a_failed_batch_has_started(
    world, monkeypatch, channel
):
    """Also where the job has given its channel up, and the slots of others still have it."""
    monkeypatch.setattr(SlotLeases, "spec", None)
    there = world(channel=channel)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.barred or gate.calls)
    assert job._dispatcher.barred.keys() == {0, 1}
    there.turns(job)
    assert not gate.calls


def test_a_task_that_begins_as_its_batch_fails_starts_nothing(world, monkeypatch):
    """Its records are about to be in another batch."""
    collect, take, frames = Frame.collect, Dispatcher.batch_ended, []

    def collect_late(self):
        frames.append(self)
        return collect(self)

    def take_late(self, event):
        if event.error is not None:
            frames[0]._run(0)
        take(self, event)

    monkeypatch.setattr(Frame, "collect", collect_late)
    monkeypatch.setattr(Dispatcher, "batch_ended", take_late)
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_batch_that_fails_again_is_not_planned_again_at_once(world):
    """What makes reads fail may take time to go away: no busy loop, and no early end of the job."""
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")] * 2
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.barred or gate.calls)
    assert job._dispatcher.barred.keys() == {0, 1}
    there.turns(job)
    assert not there.failures
    assert not gate.calls


def test_four_batches_in_a_row_that_fail_end_a_job(world):
    """Also if slots never started."""
    there = world(channel=True, handlerTimeout="0.1 seconds")
    there.failures = [RuntimeError(f"the read failed: {i}") for i in range(5)]
    job = there.run(there.claim(), there.gate())
    until(job.ended.is_set)
    assert str(job.error) == "the read failed: 3"
    there.end(job)


@pytest.mark.parametrize("silent", [[0], [0, 1]])
def test_a_slot_whose_report_is_lost_has_reported_no_hole(world, silent):
    """Spark returns no row for some slots: their records are done again, and holes are holes."""
    there = world(
        {o: key for o, key in KEYS.items() if o not in (7, 11)},
        batchTime="0.2 seconds", handlerTimeout="0.2 seconds",
    )  # fmt: skip
    there.silent = silent
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == sorted(set(range(20)) - {7, 11})


def test_a_batch_without_records_is_all_holes(world):
    """Spark runs no task for it, and the log has none of its records."""
    there = world()
    there.kafka.log, there.kafka.end = {}, 20
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert not gate.calls


@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_outruns_batches_does_not_end_a_job_that_may_lose_records(world, fail):
    """Each batch finds its first offsets deleted: the job goes on from where the log begins."""
    there = world(batchTime="0.1 seconds", handlerTimeout="0.1 seconds", failOnDataLoss=fail)
    there.kafka.retention = [2, 4, 6, 8, 10]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    until(lambda: there.done(member) >= set(range(20)) or job.ended.is_set())
    if fail:
        assert isinstance(job.error, DataLoss)
        assert (job.error.first, job.error.last) == (0, 1)
    else:
        assert job.error is None
        assert {offset for offset, _ in gate.calls} == set(range(10, 20))


@pytest.mark.parametrize("regrown", [False, True])
def test_a_log_that_was_cut_is_noticed_also_once_it_has_grown_again(world, monkeypatch, regrown):
    """By the end of the former leader's epoch; what is new under old offsets is not done."""
    monkeypatch.setattr("coopconsume.runtime.epoch_state._ENDS_EVERY", 0.01)
    there = world()
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    there.kafka.elect_leader(20, 20)
    there.turns(job)
    assert job.error is None
    there.kafka.elect_leader(12, 20 if regrown else 12)
    until(job.ended.is_set)
    assert isinstance(job.error, DataLoss)
    assert (job.error.first, job.error.last) == (12, 19)
    assert there.done(member) == set(range(12))


def test_a_log_that_was_cut_and_has_grown_while_nobody_had_it_is_noticed(world):
    """Also above the stable offset: commits have how far the log had reached in which epoch."""
    options = {"failOnDataLoss": "false"}
    there = world(**options)
    there.kafka.former = [0]
    member = there.claim()
    member.holding.commit({TP: OffsetRanges([(0, 2), (4, 19)])})
    member.hand_over()
    there.kafka.elect_leader(20, 30)
    there.claim().hand_over()
    assert there.done(there.claim()) == set(range(20)) - {3}, "nothing was cut"
    there.options = replace(there.options, fail_on_data_loss=True)
    there.kafka.former = [0, 12]
    with pytest.raises(DataLoss) as caught:
        there.claim(takeover=True)
    assert (caught.value.first, caught.value.last) == (12, 19)
    there.options = replace(there.options, fail_on_data_loss=False)
    member = there.claim(takeover=True)
    assert there.done(member) == set(range(12)) - {3}
    there.options = replace(there.options, fail_on_data_loss=True)
    member.holding.commit({TP: OffsetRanges([(14, 14)])})
    member = there.claim(takeover=True)  # It is not notified again.
    member.holding.commit({TP: OffsetRanges([(25, 27)])})
    there.kafka.elect_leader(29, 40)  # Nobody had done what this cuts.
    assert there.done(there.claim(takeover=True)) == {*range(12), 14, *range(25, 28)} - {3}


def test_a_former_leader_that_answers_late_has_cut_nothing(world, monkeypatch):
    """It reports the end of its own epoch; the job looks again."""
    monkeypatch.setattr("coopconsume.runtime.epoch_state._ENDS_EVERY", 0.01)
    there = world()
    there.kafka.former = [0]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    there.kafka.former = []
    there.kafka.end = 25
    there.turns(job)
    assert job.error is None
    assert job.partitions[0].end == 20
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 25)}
    there.kafka.former = [0]
    there.until(lambda: there.done(member) == set(range(25)))


def test_the_next_owner_waits_for_the_life_of_a_batch(world):
    """What its former owner did not hand over may still be at work: no handler starts before."""
    there = world(batchTime="0.3 seconds", handlerTimeout="0.3 seconds")
    first = there.claim()
    second = there.claim(takeover=True)
    wait = second.holding.waits(TP, [KeyRange()])
    claimed = second.holding._seen
    assert wait > 0
    gate = there.gate()
    job = there.run(second, gate)
    event = until(lambda: job._meter.recent)[0]
    assert 0 < event["partitions"][0]["inDoubtSeconds"] <= wait + 0.1
    assert event["waitingFor"]["reason"] == "lostMember"
    assert "it did not hand over its key ranges of" in event["waitingFor"]["message"]
    there.until(lambda: there.done(second) == set(range(20)))
    assert min(at for _, at in gate.calls) >= claimed + 0.6 + LEASE - 0.1
    first.lost("it was taken over")


class Watching:
    """A sink that looks at the commit log as it is written to."""

    topic = None
    hears_all = False
    schema = pa.schema([("text", pa.string())])

    def __init__(self, member, there):
        self.seen = []
        self._done = lambda: there.done(member)

    def append(self, letters, _topic_ids, commit_id):
        """Dead letters."""
        done = self._done()
        self.seen += [(letter.offset, letter.offset in done, commit_id) for letter in letters]

    def write(self, outputs):
        """Rows."""
        done = self._done()
        rows = outputs.table(self.schema)
        for offset in rows.column("_offset").to_pylist():
            self.seen.append((offset, offset in done, outputs.commit_id))

    def close(self):
        """Nothing is open."""


def test_a_dead_letter_is_there_before_its_record_counts_as_done(world):
    """So no kill in between loses it; and the commit that it stands with is the one that counts."""
    there = world()
    member = there.claim()
    sink = Watching(member, there)

    def handler(record):
        if record.offset % 7 == 3:
            raise Reject("no")

    there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)))
    assert {offset for offset, _, _ in sink.seen} == {3, 10, 17}
    assert not any(counted for _, counted, _ in sink.seen)
    counted = member.store.counted_commits("g")
    assert all(commit in counted for _, _, commit in sink.seen)


def test_an_output_row_is_there_before_its_record_counts_as_done(world):
    """As with dead letters: a row stands or falls with the commit that it names."""
    there = world()
    member = there.claim()
    sink = Watching(member, there)
    there.run(member, lambda record: {"text": str(record.offset)}, outputs=sink)
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))
    assert not any(done for _, done, _ in sink.seen)
    counted = member.store.counted_commits("g")
    assert all(commit in counted for _, _, commit in sink.seen)


class Unreliable:
    """A place for dead letters that hangs, is away, or never takes some of them."""

    topic = None

    def __init__(self, *, hangs=False, away=False, denied=False, never=()):
        self.back = threading.Event()
        self.hangs, self.away, self.denied, self.never = hangs, away, denied, set(never)
        self.written = []
        self.refusals = 0

    def append(self, letters, topic_ids, commit_id):
        """Take them, or not."""
        offsets = [letter.offset for letter in letters]
        if self.hangs:
            assert self.back.wait(_PATIENCE)
        elif self.away and not self.back.is_set():
            raise OutputNotWritten("dead letters", "the far place", "no route")
        if self.denied and not self.back.is_set():
            self.refusals += 1
            raise NotAuthorized("WRITE", "TOPIC", "letters", "joe")
        if self.never.intersection(offsets):
            raise OutputRefused("dead letters", "the far place", f"{offsets} are too large")
        self.written += offsets

    def close(self):
        """Nothing is open."""


class Rejecting(Gate):
    """A handler that rejects some records; it notes its calls."""

    def __init__(self, *rejected):
        super().__init__()
        self.rejected = rejected

    def __call__(self, record):
        super().__call__(record)
        if record.offset in self.rejected:
            raise Reject("no")


def pending_of(member):
    """The error of each pending record, as the commit log has it."""
    return {o: p.error for o, p in member.store.pending("g").get(TP, {}).items()}


@pytest.mark.parametrize("hangs", [True, False])
def test_a_destination_that_does_not_answer_stops_no_commit(world, hangs):
    """Its own records and their keys wait; no handler is called twice; in the end all is done."""
    there = world(batchTime="2 seconds" if hangs else "300 seconds")
    member, handler = there.claim(), Rejecting(3, 10)
    sink = Unreliable(hangs=hangs, away=not hangs)
    there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)) - {3, 10})
    there.until(lambda: set(pending_of(member)) == {3, 10})
    message = "dead letters have not been written" if hangs else "the far place (no route)"
    assert all(message in error for error in pending_of(member).values())
    # Keys k0 and k3 wait, the others go on.
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 30)}
    there.kafka.end = 30
    waiting = {20, 23, 25, 28}
    there.until(lambda: there.done(member) == set(range(30)) - {3, 10} - waiting)
    assert not waiting & {offset for offset, _ in handler.calls}
    assert not sink.written
    sink.back.set()
    there.until(lambda: there.done(member) == set(range(30)))
    assert sorted(offset for offset, _ in handler.calls) == list(range(30))
    assert sorted(sink.written) == [3, 10]
    assert not pending_of(member)


def test_a_missing_right_is_reported_once_and_holds_back_its_own_records(
    world, caplog, monkeypatch
):
    """The error is in the commit log; once the right is granted all is done."""
    monkeypatch.setattr("coopconsume.runtime.deliveries.LONGEST_PAUSE", 0.05)
    there = world()
    member, sink = there.claim(), Unreliable(denied=True)
    there.run(member, Rejecting(3), dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)) - {3})
    there.until(lambda: "joe" in pending_of(member).get(3, ""))
    there.until(lambda: sink.refusals > 2)
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    sink.back.set()
    there.until(lambda: there.done(member) == set(range(20)))


def test_a_missing_right_ends_a_job_that_is_to_end(world):
    """After everything else is done, with the error of the first attempt."""
    there = world()
    member, sink = there.claim(), Unreliable(denied=True)
    job = there.run(member, Rejecting(3), dead_letters=sink, available_now=True)
    until(job.ended.is_set)
    assert isinstance(job.error, NotAuthorized)
    assert sink.refusals == 1
    assert there.done(member) == set(range(20)) - {3}


def test_what_is_held_back_passes_to_the_next_owner(world):
    """A hand-over waits for no destination; the next owner does what was pending, and no more."""
    there = world()
    member, handler = there.claim(), Rejecting(3, 10)
    there.run(member, handler, dead_letters=Unreliable(away=True))
    there.until(lambda: set(pending_of(member)) == {3, 10})
    there.until(lambda: there.done(member) == set(range(20)) - {3, 10})
    member.hand_over()
    after, again, sink = there.claim(), Rejecting(3, 10), Unreliable()
    there.run(after, again, dead_letters=sink)
    there.until(lambda: there.done(after) == set(range(20)))
    assert sorted(offset for offset, _ in again.calls) == sorted(sink.written) == [3, 10]


def test_what_is_never_taken_is_parked_and_ends_a_job_that_is_to_end(world):
    """Found among others by halves; those are written, and the job says what is left."""
    there = world()
    member, handler = there.claim(), Rejecting(3, 6, 10, 14)
    sink = Unreliable(never=[10])
    job = there.run(member, handler, dead_letters=sink, available_now=True)
    until(job.ended.is_set)
    assert isinstance(job.error, OutputRefused)
    assert "[10] are too large" in str(job.error)
    assert there.done(member) == set(range(20)) - {10}
    assert set(sink.written) == {3, 6, 14}
    assert "[10] are too large" in pending_of(member)[10]
    assert len(handler.calls) == 20


@pytest.mark.parametrize("is_done", [True, False])
def test_a_topic_that_is_created_again_is_taken_up_where_nothing_is_lost(
    world, monkeypatch, is_done
):
    """With `onMissingTopic=wait` the member joins again; where records were open the job ends."""
    monkeypatch.setattr("coopconsume.runtime.epoch_state._STARTS_EVERY", 0.05)
    there = world(onMissingTopic="wait")
    member, gate = there.claim(), there.gate(*([] if is_done else [7]))
    reasons = []
    # A member of a group joins again; here the shares are claimed by hand.
    member.rejoin = lambda why, _running: bool(reasons.append(why)) or True
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)) if is_done else 7 in dict(gate.calls))
    there.turns(job)
    there.kafka.topic_id, there.kafka.log, there.kafka.end = "new", {}, 0
    until(lambda: reasons or job.ended.is_set())
    if is_done:
        assert "created again" in reasons[0]
        assert job.error is None
    else:
        gate.opened.set()
        until(job.ended.is_set)
        assert isinstance(job.error, TopicReplaced)
        assert not reasons


@pytest.mark.parametrize("is_done", [True, False])
def test_a_topic_that_is_created_again_before_a_job_begins_is_taken_up_alike(world, is_done):
    """Its new id is seen after the shares were dealt, and before their partitions are known."""
    there = world(onMissingTopic="wait")
    member = there.claim()
    if is_done:
        there.run(member, there.gate())
        there.until(lambda: there.done(member) == set(range(20)))
        member.hand_over()
        member = there.claim()
    reasons = []
    # A member of a group joins again; here the shares are claimed by hand.
    member.rejoin = lambda why, _running: bool(reasons.append(why)) or True
    there.kafka.topic_id, there.kafka.log, there.kafka.end = "new", {}, 0
    job = there.run(member, there.gate())
    until(lambda: reasons or job.ended.is_set())
    if is_done:
        assert [str(job.error), "created again" in "".join(reasons)] == ["None", True]
    else:
        until(job.ended.is_set)
        assert isinstance(job.error, TopicReplaced)
        assert not reasons


def test_a_deleted_topic_whose_log_seems_cut_ends_no_job(world, monkeypatch):
    """Brokers may report a lower end before they say that the topic is gone."""
    monkeypatch.setattr("coopconsume.runtime.epoch_state._ENDS_EVERY", 0.01)
    there = world(onMissingTopic="wait")
    member = there.claim()
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    there.turns(job)
    there.kafka.is_deleted, there.kafka.end = True, 0
    there.until(lambda: member.holding.owned[TP].is_deleted)
    there.turns(job)
    assert job.error is None

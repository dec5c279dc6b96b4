"""A job whose slots lose their channel, or its messages."""

from __future__ import annotations

import math
import random
import socket
import time
from collections import Counter
from dataclasses import replace

import pytest

from assignors import KeyRange
from commits import CommitLogUnavailable, OffsetRanges
from coopconsume.group.owned import LEASE
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from coopconsume.worker.channel.server import ChannelServer
from tests.model.job_group import slot_mates
from tests.model.job_sinks import Answering, Watching
from tests.model.job_world import TP, until
from tests.proxy import Proxy


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
    member.assignment.commit({TP: OffsetRanges([(0, 3)])})
    assert member.assignment.proof.check(60.0) <= asked[0]


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
    short = member.assignment.life_ms
    assert short == 1000 * (LEASE + member.options.handler_timeout)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))
    # Its claim was made again, so that the next owner waits for as long as a batch may go on.
    assert member.assignment.life_ms == short + 1000 * member.options.batch_time
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
    while made:  # A job may still make one.
        _, proxy = made.popitem()
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
        running = set(job._dispatcher.runs.by_number)
        if event == "cut":
            proxy.cut()
        elif event == "delay":
            proxy.passes.clear()
            time.sleep(draw.uniform(0.1, 1.0))
            proxy.passes.set()
        elif event == "half open":
            proxy.passes.clear()
            until(
                lambda job=job, running=running: not running & set(job._dispatcher.runs.by_number)
            )
            proxy.passes.set()
        elif event == "pause":
            job.pause()
            until(lambda job=job: not job._dispatcher.runs.by_number)
            job.resume()
        elif event == "hand over":
            member.owner.hand_over()
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

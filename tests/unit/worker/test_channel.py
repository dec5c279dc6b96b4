"""The channel between the driver and its slots, over real sockets and through a bad network."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from coopconsume.worker.channel import client as clients
from coopconsume.worker.channel import server as servers
from coopconsume.worker.channel.client import SlotChannel
from coopconsume.worker.channel.messages import encode_chunks
from coopconsume.worker.channel.server import ChannelServer
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import (
    TAKEN,
    Frame,
    Identity,
    SlotHandshake,
    encode_withhold,
    frame,
)
from coopconsume.worker.crash_journal import Deadline
from coopconsume.worker.host_locks import DriverLock, WorkerLock, this_host
from coopconsume.worker.process_timer import clock
from coopconsume.worker.report import PartitionReport, PartitionWork, SlotReport
from tests.proxy import Proxy
from tests.unit.worker.slot_harness import PATIENCE

SECRET = b"s" * 32


def until(condition, seconds=PATIENCE):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


class Slot:
    """A slot at work, as the channel sees it: parts that are ready to be reported."""

    def __init__(self):
        self.ready, self.halts = [], []
        self.size = 0
        self.fail_stop = None

    def take_report(self, seq):
        if not self.ready:
            return None
        done = PartitionReport(done=b"x" * self.size + b"%d" % self.ready.pop(0))
        return SlotReport(7, 2, seq=seq, partitions={0: done})

    def halt(self, why, since):
        self.halts.append((why, since))

    def want_relief(self):
        pass

    def oldest_call(self, _now):
        return None


class Bench:
    """A server whose calls are noted; reports are acknowledged if `takes` is set."""

    def __init__(self, lease=60.0, bind="127.0.0.1", host=None, **more):
        self.reports, self.calls, self.takes = [], [], True
        spec = ChannelSpec(host or bind, 0, SECRET, lease, report_every=0.01)
        self.server = ChannelServer(spec, bind, "r", self.report, on_call=self.call, **more)

    def call(self, *call):
        self.calls.append(call)

    def report(self, report):
        self.reports.append(report)
        if self.takes:
            self.server.send((report.batch, report.slot), Frame.TAKEN, TAKEN.pack(report.seq, 0.01))


@contextmanager
def bench(**more):
    """A server, closed at the end."""
    made = Bench(**more)
    try:
        yield made
    finally:
        made.server.close()


def connected(server, spec=None, batch=7, slot=2):
    """A slot's channel that has its lease."""
    channel = SlotChannel(spec or server.spec(), "r", batch, slot)
    until(lambda: server.renew([(batch, slot)]) or channel._ready.is_set())
    assert channel.wait() == ""
    return channel


@contextmanager
def proxied(server):
    """A proxy before a server, and the channel's spec by way of it."""
    proxy = Proxy(server.spec().port)
    try:
        yield proxy, replace(server.spec(), port=proxy.port)
    finally:
        proxy.close()


def has_ipv6():
    """Whether this machine has the loopback address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", *(["::1", "[::1]"] if has_ipv6() else [])]


@pytest.mark.parametrize("bind", HOSTS)
def test_reports_arrive_and_are_acknowledged(bind):
    """In their order, from the slot that proved itself; acknowledged ones are not kept."""
    with bench(bind=bind) as driver:
        channel, slot = connected(driver.server), Slot()
        assert driver.server.connected == {(7, 2)}
        channel.begin(slot, slot)
        slot.ready = list(range(20))
        until(lambda: len(driver.reports) == 20)
        assert [report.seq for report in driver.reports] == list(range(1, 21))
        until(lambda: not channel._unacknowledged)
        assert channel.close() == []
        until(lambda: not driver.server.connected)
        assert slot.halts == []


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"][: len(HOSTS)])
def test_a_driver_may_listen_on_all_addresses(bind):
    """Its workers reach it by the one that they are given, as in a container or a pod."""
    with bench(bind=bind, host=HOSTS[-1] if bind == "::" else HOSTS[0]) as driver:
        connected(driver.server).close()


def test_reports_that_are_not_acknowledged_come_back_at_the_end():
    """With their numbers, for the final report."""
    with bench() as driver:
        driver.takes = False
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        slot.ready = [1, 2, 3]
        until(lambda: len(driver.reports) == 3)
        driver.server.send((7, 2), Frame.TAKEN, TAKEN.pack(2, 0.01))
        until(lambda: len(channel._unacknowledged) == 1)
        assert [report.seq for report in channel.close()] == [3]


def test_a_call_that_takes_long_is_named_once_and_again_when_it_is_over():
    """Whatever reports there are; one that is short is not named."""
    with bench() as driver:
        channel, slot, calls = connected(driver.server), Slot(), [(0, 5, 0.5)]
        looks = []
        slot.oldest_call = lambda now: looks.append(now) or calls[-1]
        channel.begin(slot, slot)

        def calls_after(count):
            seen = len(looks)
            until(lambda: len(looks) > seen + 2 and len(driver.calls) >= count)
            return driver.calls[:]

        assert calls_after(0) == []
        calls.append((0, 5, 3.0))
        assert calls_after(1) == [(7, 2, (0, 5, 3.0))]
        calls.append((1, 5, 3.0))
        assert calls_after(2)[1:] == [(7, 2, (1, 5, 3.0))]
        calls.append(None)
        assert calls_after(3)[2:] == [(7, 2, None)]
        channel.close()
        assert driver.reports == []


def test_stop_reaches_a_slot_at_once_also_one_that_connects_later():
    """No lease is renewed after it."""
    with bench() as driver:
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        driver.server.stop([(7, 2), (7, 3)])
        until(lambda: slot.halts)
        assert [why for why, _ in slot.halts] == ["stop"]
        driver.server.renew([(7, 3)])
        other, later = SlotChannel(driver.server.spec(), "r", 7, 3), Slot()
        assert other.wait() == ""
        other.begin(later, later)
        assert [why for why, _ in later.halts] == ["stop"]
        for one in (channel, other):
            one.close()


class Impatient(SlotChannel):
    """A channel that waits for no lease once it is connected, however long that has taken."""

    def _talk(self, sock, session, _deadline):
        super()._talk(sock, session, time.monotonic())


def test_a_slot_waits_for_its_first_lease():
    """The server alone grants none: the loop must have said that its epoch is in force."""
    with bench() as driver:
        channel = SlotChannel(driver.server.spec(), "r", 7, 2)
        until(lambda: driver.server.connected)
        assert not channel._ready.wait(0.1)
        driver.server.renew([(7, 2)])
        assert channel.wait() == ""
        channel.close()
        assert "no lease within" in Impatient(driver.server.spec(), "r", 7, 4).wait()


def test_a_slot_whose_lease_is_not_renewed_starts_nothing_more():
    """Although its connection stands; it goes on reporting."""
    with bench(lease=0.3) as driver:
        channel, slot = connected(driver.server), Slot()
        begun = time.monotonic()
        channel.begin(slot, slot)
        until(lambda: slot.halts)
        ((why, since),) = slot.halts
        assert why == "lease"
        assert since <= begun + 0.3
        slot.ready = [1]
        until(lambda: driver.reports)
        driver.server.renew([(7, 2)])
        slot.ready = [2]
        until(lambda: len(driver.reports) == 2)
        assert len(slot.halts) == 1
        channel.close()


def test_a_renewed_slot_goes_on():
    """For many times its lease."""
    now = [1_000.0]
    with bench(lease=2.0) as driver:
        channel = SlotChannel(driver.server.spec(), "r", 7, 2, lambda: now[0])
        slot = Slot()

        def is_renewed():
            driver.server.renew([(7, 2)])
            channel._wake()
            return channel.may_start(now[0] + 1.5)

        until(is_renewed)
        channel.begin(slot, slot)
        for _ in range(8):
            now[0] += 1.0
            until(is_renewed)
        assert slot.halts == []
        channel.close()


@pytest.mark.parametrize("half", ["near", "far", "both"])
def test_a_cut_connection_stops_the_slot(half):
    """What was not acknowledged comes with the final report."""
    with bench() as driver, proxied(driver.server) as (proxy, spec):
        driver.takes = False
        channel, slot = connected(driver.server, spec), Slot()
        channel.begin(slot, slot)
        slot.ready = [1, 2]
        until(lambda: len(driver.reports) == 2)
        proxy.cut(near=half != "far", far=half != "near")
        if half == "far":
            until(lambda: not driver.server.connected)
            proxy.cut(far=False)
        until(lambda: slot.halts)
        assert [why for why, _ in slot.halts] == ["connection"]
        assert [report.seq for report in channel.close()] == [1, 2]


def test_a_connection_that_swallows_everything_stops_the_slot():
    """Half-open: it is not closed, but no renewal comes. One that comes late changes nothing."""
    with bench(lease=1.0) as driver, proxied(driver.server) as (proxy, spec):
        channel, slot = connected(driver.server, spec), Slot()
        channel.begin(slot, slot)
        proxy.passes.clear()
        certain = time.monotonic()
        while not slot.halts:
            driver.server.renew([(7, 2)])
            time.sleep(0.01)
            assert time.monotonic() < certain + PATIENCE
        ((why, since),) = slot.halts
        assert why == "lease"
        assert since <= time.monotonic()
        proxy.passes.set()
        slot.ready = [1]
        until(lambda: driver.reports)
        assert len(slot.halts) == 1
        channel.close()


def test_a_driver_that_does_not_acknowledge_gets_no_more_than_fits(monkeypatch):
    """The slot keeps the rest for its final report, and so its memory is bounded."""
    monkeypatch.setattr(clients, "UNACKNOWLEDGED_BYTES", 100_000)
    with bench() as driver:
        driver.takes = False
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        slot.size, slot.ready = 60_000, list(range(10))
        until(lambda: len(driver.reports) == 2)
        time.sleep(0.1)
        assert len(slot.ready) == 8
        driver.server.send((7, 2), Frame.TAKEN, TAKEN.pack(2, 0.01))
        until(lambda: len(driver.reports) == 4)
        assert len(channel.close()) == 2


def test_a_slow_driver_gets_a_report_for_each_that_it_takes():
    """So reports do not queue up: the next one has all that was done meanwhile."""
    with bench() as driver:
        driver.takes = False
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        slot.ready = list(range(10))
        until(lambda: len(driver.reports) == 4)
        for taken in range(1, 4):
            time.sleep(0.1)
            assert len(driver.reports) == 3 + taken
            driver.server.send((7, 2), Frame.TAKEN, TAKEN.pack(taken, 0.01))
            until(lambda count=4 + taken: len(driver.reports) == count)
        assert [report.seq for report in channel.close()] == [4, 5, 6, 7]


def test_the_driver_says_when_it_wants_the_next_report():
    """Except if the slot is about to answer to something else."""
    with bench() as driver:
        driver.takes = False
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        slot.ready = [1]
        until(lambda: len(driver.reports) == 1)
        channel._taken(1, 60.0)
        slot.ready = [2]
        time.sleep(0.1)
        assert len(driver.reports) == 1
        driver.server.send((7, 2), Frame.RELIEVE)
        until(lambda: len(driver.reports) == 2)
        channel._cut_at = 0.0
        channel._taken(2, 60.0)
        assert channel._cut_at == 0.0
        channel._cut_at = math.inf
        channel._taken(1, 60.0)
        assert channel._cut_at == math.inf, "an answer to an earlier report"
        channel.close()


def test_a_report_that_fits_no_frame_comes_at_the_end(monkeypatch):
    """And so do all after it, as the driver takes them in their order."""
    monkeypatch.setattr(clients, "FRAME_BYTES", 10_000)
    with bench() as driver:
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        slot.size, slot.ready = 20_000, [1]
        until(lambda: channel._is_too_long)
        slot.size, slot.ready = 0, [2]
        time.sleep(0.1)
        assert slot.ready == [2]
        assert driver.reports == []
        assert [report.seq for report in channel.close()] == [1]


def test_another_process_cannot_take_the_place_of_a_slot(monkeypatch):
    """The first one goes on; and a slot that lost its connection is taken by no other process."""
    with bench() as driver:
        first, slot = connected(driver.server), Slot()
        first.begin(slot, slot)
        other = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: other)
        assert "no channel" in SlotChannel(driver.server.spec(), "r", 7, 2).wait()
        slot.ready = [1]
        until(lambda: driver.reports)
        first.close()
        until(lambda: not driver.server.connected)
        assert "no channel" in SlotChannel(driver.server.spec(), "r", 7, 2).wait()


class Noted:
    """The end of a process, as a slot's channel moves it."""

    def __init__(self):
        self.ends, self.seen = [], 0

    def end_at(self, of, at):
        assert of is Deadline.LEASE
        self.ends.append(at)

    def python_runs(self):
        self.seen += 1


@pytest.mark.parametrize("half", ["near", "both"])
def test_a_slot_whose_connection_is_cut_connects_again_and_lives_on(half):
    """It starts nothing more, and what it does since then comes with its final report."""
    driver = Bench(lives_until=lambda _: clock() + 100.0, lease=1.0)
    with proxied(driver.server) as (proxy, spec):
        driver.takes = False
        channel, slot = connected(driver.server, spec), Slot()
        slot.fail_stop = Noted()
        channel.begin(slot, slot)
        slot.ready = [1]
        until(lambda: len(driver.reports) == 1)
        proxy.cut(far=half != "near")
        until(lambda: slot.halts)
        until(lambda: driver.server.connected)
        certain, slot.ready = clock() + 100.0, [2]
        until(lambda: slot.fail_stop.ends[-1] > certain)
        assert len(driver.reports) == 1
        assert [why for why, _ in slot.halts] == ["connection"]
        assert [report.seq for report in channel.close()] == [1]
        assert slot.ready == [2]
    driver.server.close()


def test_a_slot_that_hears_nothing_on_an_open_connection_connects_again():
    """The network has lost it without a word."""
    until_then = {"lives_until": lambda _: clock() + 100.0, "lease": 0.5}
    with bench(**until_then) as driver, proxied(driver.server) as (proxy, spec):
        channel, slot = connected(driver.server, spec), Slot()
        slot.fail_stop = Noted()
        channel.begin(slot, slot)
        until(lambda: slot.halts)
        lost = proxy.loses = proxy.pairs[:]
        until(lambda: proxy.pairs and proxy.pairs != lost)
        certain = clock() + 100.0
        until(lambda: slot.fail_stop.ends[-1] > certain)
        channel.close()


def test_a_stopped_slot_lives_on_as_long_as_its_driver_is_sure():
    """Its handlers are to end in their own time. Then nothing sets its end forward."""
    sure_until = [math.inf]
    with bench(lives_until=lambda _: min(clock(), sure_until[0]) + 5.0, lease=1.0) as driver:
        channel, slot = connected(driver.server), Slot()
        slot.fail_stop = Noted()
        channel.begin(slot, slot)
        driver.server.stop([(7, 2)])
        until(lambda: slot.halts)
        certain = clock() + 5.0
        until(lambda: slot.fail_stop.ends[-1] > certain)
        sure_until[0] = clock()
        seen = slot.fail_stop.seen
        until(lambda: slot.fail_stop.seen > seen + 10)
        assert slot.fail_stop.ends[-1] <= sure_until[0] + 5.0
        assert slot.fail_stop.ends == sorted(slot.fail_stop.ends)
        channel.close()


def test_a_batch_that_has_ended_is_forgotten():
    """Its connections are closed."""
    with bench() as driver:
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        other = connected(driver.server, batch=8)
        driver.server.forget(7)
        until(lambda: driver.server.connected == {(8, 2)})
        for one in (channel, other):
            one.close()


@pytest.mark.parametrize("secret", [b"", b"x" * 32])
def test_a_slot_with_another_secret_has_no_channel(secret):
    """It reports why, with the address; the driver reads nothing of it."""
    with bench() as driver:
        spec = replace(driver.server.spec(), secret=secret)
        error = SlotChannel(spec, "r", 7, 2).wait()
        assert f"no channel to the driver at 127.0.0.1:{spec.port}" in error
        assert "does not know the job's secret" in error
        assert driver.server.connected == set()


def test_a_slot_that_reaches_nobody_says_so():
    """A closed port, and a listener that says nothing."""
    with bench() as driver:
        spec = driver.server.spec()
    assert "Refused" in SlotChannel(spec, "r", 7, 2).wait()


def test_a_silent_listener_is_given_up(monkeypatch):
    """After the time for a handshake."""
    monkeypatch.setattr(clients, "CONNECT_TIME", 0.2)
    with bench() as driver, socket.create_server(("127.0.0.1", 0)) as silent:
        spec = replace(driver.server.spec(), port=silent.getsockname()[1])
        assert "no channel" in SlotChannel(spec, "r", 7, 2).wait()


def strangers(server, first):
    """A client that says something and never proves itself."""
    sock = socket.create_connection(("127.0.0.1", server.spec().port))
    sock.sendall(first)
    return sock


def is_closed_by_peer(sock):
    """Whether the other side closes a connection within the time of a test."""
    sock.settimeout(PATIENCE)
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5_000, frame(3, b"p" * 32), frame(33, b"")]
)
def test_a_client_without_proof_is_closed_at_once(said):
    """And nothing that it says is read as a report."""
    with bench() as driver:
        sock = strangers(driver.server, said)
        assert is_closed_by_peer(sock)
        assert driver.reports == []


def test_a_client_that_proves_nothing_is_closed_in_time(monkeypatch):
    """One that says nothing, one that stops after its first frame, one that dribbles."""
    monkeypatch.setattr(servers, "HANDSHAKE_TIME", 0.2)
    with bench() as driver, ExitStack() as open_ones:
        hello = SlotHandshake(b"x" * 32, Identity("r", 7, 2)).hello()
        socks = [
            open_ones.enter_context(strangers(driver.server, said))
            for said in (b"", hello, hello[:9])
        ]
        assert all(is_closed_by_peer(sock) for sock in socks)


def test_one_stranger_too_many_closes_the_oldest(monkeypatch):
    """Of those that have not named this run, if there are any."""
    monkeypatch.setattr(servers, "STRANGERS", 3)
    monkeypatch.setattr(servers, "HANDSHAKE_TIME", 2 * PATIENCE)
    with bench() as driver, ExitStack() as open_ones:
        hello = SlotHandshake(b"x" * 32, Identity("r", 7, 2)).hello()

        def named():
            return [one.handshake.has_identity for one in [*driver.server._strangers]]

        socks = [open_ones.enter_context(strangers(driver.server, hello))]
        until(lambda: named() == [True])
        socks += [open_ones.enter_context(strangers(driver.server, b"")) for _ in range(4)]
        assert all(is_closed_by_peer(sock) for sock in socks[1:3])
        until(lambda: named() == [True, False, False])
        assert socks[0].recv(1)


def test_a_flood_leaves_the_slots_unharmed():
    """Hundreds of strangers, silent or loud, while a slot works and others connect."""
    with bench() as driver, ExitStack() as open_ones:
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        quiet = threading.Event()

        def flood():
            while not quiet.is_set():
                try:
                    sock = open_ones.enter_context(strangers(driver.server, os.urandom(3)))
                    sock.sendall(secrets.token_bytes(200) if os.urandom(1)[0] % 2 else b"\0\0")
                except OSError:
                    continue

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for i in range(10):
                driver.server.renew([(7, 2)])
                slot.ready = [i]
                until(lambda i=i: len(driver.reports) == i + 1)
                connected(driver.server, batch=100 + i).close()
        finally:
            quiet.set()
            for thread in threads:
                thread.join()
        assert slot.halts == []
        assert len(driver.server._strangers) <= servers.STRANGERS
        channel.close()


def test_a_slot_that_does_not_read_loses_its_connection(monkeypatch):
    """What waits for it is bounded, and the driver waits for nobody."""
    monkeypatch.setattr(servers, "UNREAD_BYTES", 1_000)
    with bench() as driver, proxied(driver.server) as (proxy, spec):
        driver.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        channel = connected(driver.server, spec)
        proxy.passes.clear()
        end = time.monotonic() + PATIENCE
        while driver.server.connected and time.monotonic() < end:
            for seq in range(2_000):
                driver.server.send((7, 2), Frame.TAKEN, TAKEN.pack(seq, 0.01))
            time.sleep(0.01)
        assert not driver.server.connected
        proxy.passes.set()
        channel.close()


def test_one_message_to_a_slot_may_be_longer_than_what_may_wait(monkeypatch):
    """Key ranges of many partitions are more than the network takes at once."""
    monkeypatch.setattr(servers, "UNREAD_BYTES", 1_000)
    ranges = {part: [(part, part + 1)] for part in range(200_000)}
    with bench() as driver:
        driver.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        channel, slot, withheld = connected(driver.server), Slot(), []
        slot.withhold = lambda *what: withheld.append(what)
        channel.begin(slot, slot)
        for number in (1, 2):
            driver.server.send((7, 2), Frame.WITHHOLD, encode_withhold(number, ranges))
            until(lambda number=number: len(withheld) == number)
        assert withheld == [(1, ranges), (2, ranges)]
        assert slot.halts == []
        assert driver.server.connected == {(7, 2)}
        channel.close()


def test_a_slot_that_has_no_records_yet_is_drained_as_it_begins():
    """Otherwise it would read on until its time is over."""
    with bench() as driver:
        channel, slot, drained = connected(driver.server), Slot(), []
        driver.server.send((7, 2), Frame.DRAIN)
        # What a driver says arrives in its order.
        driver.server.stop([(7, 2)])
        until(lambda: channel._halted is not None)
        slot.drain = lambda: drained.append(1)
        channel.begin(slot, slot, slot)
        assert drained == [1]
        channel.close()


def test_a_closed_server_stops_its_slots():
    """As a driver that has ended does."""
    with bench() as driver:
        channel, slot = connected(driver.server), Slot()
        channel.begin(slot, slot)
        assert driver.server.is_open
        driver.server.close()
        until(lambda: slot.halts)
        assert [why for why, _ in slot.halts] == ["connection"]
        assert not driver.server.is_open
        channel.close()


def test_chunks_that_come_before_a_slot_begins_are_not_lost():
    """Those that come later follow them, in their order."""
    with bench() as driver:
        channel, slot, got = connected(driver.server), Slot(), []
        work = [{0: PartitionWork(((first, first + 4),), {first: 2})} for first in (0, 5, 10)]
        driver.server.send((7, 2), Frame.CHUNKS, encode_chunks(work[0]))
        driver.server.send((7, 2), Frame.CHUNKS, encode_chunks(work[1]))
        until(lambda: len(channel._early) == 2)
        slot.hand_out = got.append
        channel.begin(slot, slot, slot)
        assert got == work[:2]
        driver.server.send((7, 2), Frame.CHUNKS, encode_chunks(work[2]))
        until(lambda: len(got) == 3)
        assert got == work
        channel.close()


@pytest.mark.skipif(not this_host(), reason="the system does not name its boot")
def test_before_a_slot_gets_a_lease_that_its_host_does_not_know_the_driver_withdraws(
    monkeypatch, tmp_path
):
    """Of such a slot a later driver on the host could not see that it still runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock = DriverLock("g")
    with bench(driver_lock=lock) as driver:
        held = WorkerLock(driver.server.spec().workers)
        assert held.is_held
        known = SlotChannel(driver.server.spec(), "r", 7, 2, is_locked=held.is_held)
        until(lambda: driver.server.renew([(7, 2)]) or known._ready.is_set())
        assert lock.workers is not None
        leases, withdraw = [], lock.withdraw

        def withdrawn():
            driver.server.renew([(7, 3)])
            leases.append(driver.server.connected)
            withdraw()

        monkeypatch.setattr(lock, "withdraw", withdrawn)
        unknown = SlotChannel(driver.server.spec(), "r", 7, 3)
        until(lambda: driver.server.renew([(7, 3)]) or unknown._ready.is_set())
        assert leases == [{(7, 2)}], "no lease can be on its way"
        assert lock.workers is None
        assert not list(tmp_path.rglob("*.driver"))
        for channel in (known, unknown):
            channel.close()
        held.release()

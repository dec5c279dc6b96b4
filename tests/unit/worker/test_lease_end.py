"""A worker whose driver is not heard of: its process ends, and no record is charged for that.

Each test runs a slot in a child process; its driver is in this one.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

from coopconsume.worker.channel.server import ChannelServer
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.process_timer import clock
from tests.unit.worker.slot_harness import WAYS, prepared
from tests.unit.worker.test_channel import until
from tests.unit.worker.test_process_timer import in_a_child, stuck

SECRET = b"s" * 32
LEASE = 1.0
GRACE = 0.5
#: One record: of several that run at once nobody knows which one keeps the lock.
ROWS = [(0, 0, b"k")]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Journals are in the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class Driver:
    """A driver that was last sure of its epoch at an instant, and says so to its slots."""

    def __init__(self, run):
        self.sure_at, self.is_always_sure, self.grace = clock(), False, GRACE
        spec = ChannelSpec("127.0.0.1", 0, SECRET, LEASE, report_every=0.02)
        self.server = ChannelServer(
            spec, "127.0.0.1", run, lambda _: None, lives_until=self.lives_until
        )

    def lives_until(self, _at):
        if self.is_always_sure:
            self.sure_at = clock()
            self.server.renew([(0, 3)])
        return self.sure_at + LEASE + self.grace


@contextmanager
def a_driver(run):
    """A driver, closed at the end; it is sure until a test changes that."""
    driver = Driver(run)
    driver.is_always_sure = True
    driver.server.renew([(0, 3)])
    try:
        yield driver
    finally:
        driver.server.close()


@contextmanager
def on_signal(call):
    """Calls a function as the child sends SIGUSR1."""
    before = signal.signal(signal.SIGUSR1, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Run:
    """A slot in a child process whose handler has begun, and how that has ended.

    A slot of a loaded host may lose its lease before it begins; then there is another one.
    """

    def __init__(self, run, handler, lost, *, concurrency=1):
        self.status, begun, tries = 0, [], itertools.count()
        while not begun:
            name = f"{run}-{next(tries)}"
            with a_driver(name) as driver, on_signal(lambda: begun.append(lost(driver))):
                slot, batches = prepared(
                    handler, ROWS, concurrency=concurrency, channel=driver.server.spec(),
                    run_id=name,
                )  # fmt: skip
                self.status = in_a_child(partial(slot.run, 3, batches))
                until(lambda: not driver.server.connected)
                self.driver_knows = driver.server.was_deserted((0, 3))
        self.end = slot.after_a_crash(3).end


def unsure(driver):
    """The driver lives, and is not sure of its epoch any more."""
    driver.is_always_sure = False


def waits_for_ever(_):
    """A handler; its driver loses sight of its epoch as it begins."""
    os.kill(os.getppid(), signal.SIGUSR1)
    time.sleep(600)


def keeps_the_lock(_):
    """A handler in native code that keeps the interpreter lock."""
    os.kill(os.getppid(), signal.SIGUSR1)
    stuck()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "coroutines"])
def test_a_worker_that_does_not_hear_of_its_epoch_ends_and_nothing_is_charged(way):
    """Neither is any record suspected: Python ran in it until the end."""
    found = Run(f"l-{way}", waits_for_ever, unsure, concurrency=1 if way == "plain" else 4)
    assert found.status == -signal.SIGKILL
    assert (found.end.crashed, found.end.deserted) == (True, True)
    assert (found.end.culprits, found.end.suspects, found.end.overdue) == ([], [], False)
    assert found.driver_knows


def test_a_worker_whose_driver_is_gone_ends():
    """Its connection is closed, and it cannot connect again."""
    found = Run("l-gone", waits_for_ever, lambda driver: driver.server.close())
    assert found.status == -signal.SIGKILL
    assert (found.end.deserted, found.end.culprits, found.end.suspects) == (True, [], [])


def test_a_call_that_keeps_the_interpreter_lock_beyond_the_grace_is_suspected():
    """Its slot cannot answer its driver. It is not charged at once: the worker may have frozen."""
    found = Run("l-lock", keeps_the_lock, unsure)
    assert found.status == -signal.SIGKILL
    assert (found.end.deserted, found.end.culprits) == (True, [])
    assert found.end.suspects == [(0, 0)]


def test_a_worker_that_is_stopped_ends_in_its_time():
    """The kernel ends it, so no handler of it goes on beside that of the next owner."""

    def stops(_):
        os.kill(os.getppid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGSTOP)

    found = Run("l-stop", stops, lambda _driver: None)
    assert found.status == -signal.SIGKILL
    assert (found.end.deserted, found.end.culprits) == (True, [])


def test_a_driver_that_is_sure_again_within_the_grace_costs_nothing():
    """The slot starts nothing more, and its handler ends."""

    def handler(_):
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(3 * LEASE)

    def lost(driver):
        driver.grace, driver.is_always_sure = 600.0, False
        threading.Timer(2 * LEASE, setattr, (driver, "is_always_sure", True)).start()

    found = Run("l-back", handler, lost)
    assert (found.status, found.driver_knows) == (0, False)


def test_a_slot_of_a_claim_lives_without_its_driver():
    """Its process alone looks at the log: there is no timer."""

    def handler(_):
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(3 * (LEASE + GRACE))

    class Claim(Driver):
        def lives_until(self, at):
            super().lives_until(at)
            return math.inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.worker.test_lease_end.Driver", Claim)
        found = Run("l-claim", handler, lambda driver: driver.server.close())
    assert (found.status, found.driver_knows) == (0, False)

"""Hostile handlers over all kinds of runners: each costs what the table says, and nothing else."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import itertools
import math
import multiprocessing
import os
import pickle
import pkgutil
import signal
from dataclasses import replace

import pytest

import coopconsume.worker
from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.record import RetryPolicy
from coopconsume.runtime.plan import Limits, plan_batch
from coopconsume.runtime.settle.crashes import AtWork, Crashes
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.runner import Runner
from tests.partitions import make_partition
from tests.unit.worker.hostile import ATTEMPTS, HOSTILE, LIMIT, RUNNERS, Attack
from tests.unit.worker.slot_harness import prepared

#: Of the slot, by key in turn; and the hostile one.
COUNT, KEYS, BAD = 16, 4, 5
ROWS = [(0, o, b"%d" % (o % KEYS)) for o in range(COUNT)]
#: Of ``prctl``: the signal that a process gets when its parent ends.
_PDEATHSIG = 1
POLICY = RetryPolicy(max_attempts=ATTEMPTS, backoff=0.01, jitter=0)


class Driver:
    """What a driver knows of one slot: it plans batches and takes in their reports.

    A worker runs batch after batch for as long as it lives, as Spark's do.
    """

    def __init__(self, handler, concurrency, policy):
        self.partition = make_partition(
            0, "t", 10, stable=0, committed=OffsetRanges(), slots=[(3, (KeyRange(),))],
            ordering="key", whole=True,
        )  # fmt: skip
        self.partition.ledger.end = COUNT
        self.dead, self.ended, self.errors = [], 0, []
        self._handler, self._concurrency, self._policy = handler, concurrency, policy
        self._crashes = Crashes(policy.max_attempts)
        self._worker = None

    def run(self):
        """Runs batches until nothing is left to do."""
        for number in itertools.count():
            if self.partition.is_drained:
                break
            assert number < 60, "it never ends"
            self._run_batch(number)
        self._end_worker()
        assert self._worker is None

    def _run_batch(self, number):
        slot, partition = 3, self.partition
        self._crashes.drop_settled([partition])
        allowed = self._crashes.confine([partition], [slot])
        plan = plan_batch([partition], [slot], 1e9, Limits(COUNT, 1_000))
        for one, some in allowed.items():
            if plan is None or one not in plan.work:
                self._crashes.passed([partition], one, some)
        if plan is None:
            return
        given = {0: OffsetRanges(plan.work[slot][0].ranges)}
        report = self._report(number, plan.work[slot])
        if report.end.error:
            self.errors.append(report.end.error)
        if report.end.crashed:
            self._crashes.crashed([partition], slot, given, AtWork.of(report.end, [0]))
        partition.slots.reported(slot, report.partitions[0], 0.0)
        if not report.end.crashed and self._crashes.concern(slot):
            self._crashes.passed([partition], slot, given)
        self.dead += report.dead

    def _report(self, number, work):
        """Runs a batch in the worker, and a second attempt of the task if the worker ends."""
        if self._worker is None:
            here, there = multiprocessing.Pipe()
            pid = os.fork()
            if pid == 0:
                ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
                here.close()
                self._work(there)
            there.close()
            self._worker = pid, here
        pid, here = self._worker
        here.send((number, work))
        try:
            return pickle.loads(here.recv_bytes())
        except (EOFError, OSError):
            os.waitpid(pid, 0)
            self._worker = None
            self.ended += 1
            report = self._runner(number, work, None)[0].after_a_crash(3)
            assert not report.end.unknown, "nothing is in doubt"
            return report

    def _work(self, there):
        """In the worker."""
        try:
            while True:
                number, work = there.recv()
                runner, batches = self._runner(number, work, there.send_bytes)
                wanted = work[0].ranges
                runner.first_attempt(3, (one for one in batches if wanted))
        finally:
            os._exit(0)

    def _end_worker(self):
        if self._worker is not None:
            pid, here = self._worker
            here.close()
            os.waitpid(pid, 0)
            self._worker = None

    def _runner(self, number, work, send):
        runner, batches = prepared(
            self._handler, ROWS, work, self._concurrency, policy=self._policy, run_id="hostile",
            batch_time=20.0, handler_timeout=10.0, send=send,
        )  # fmt: skip
        runner._spec = replace(runner._spec, batch=number)
        return runner, batches


CASES = [(name, kind) for name, hostile in HOSTILE.items() for kind in hostile.kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_hostile_handler_costs_what_the_table_says(name, kind, tmp_path, monkeypatch):
    """All other records are done, once each if the worker lives, and none has a failure."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hostile, attack = HOSTILE[name], Attack(name, BAD, tmp_path)
    handler, concurrency = attack.of(kind), 1 if kind == "plain" else KEYS
    if kind == "frames":
        # A frame is one call: if it fails, it has failed for all of its rows.
        handler, concurrency = FrameHandler(handler, 1 if hostile.fails else KEYS), 1
    # Without a time limit one function after another is called in the task's own thread.
    limit = LIMIT if hostile.by_time or kind == "coroutines" else None
    driver = Driver(handler, concurrency, replace(POLICY, timeout=limit))
    driver.run()
    assert (
        list(driver.partition.ledger.done) == [(0, COUNT - 1)]
        or driver.partition.ledger.stable == COUNT
    )

    calls = attack.calls
    of = {o: [attempt for at, attempt, _ in calls if at == o] for o in range(COUNT)}
    # Of a worker that is lost without a word, nothing is known but that it is.
    most = 1 + driver.ended
    for offset in set(range(COUNT)) - {BAD}:
        assert set(of[offset]) <= ({1, 2} if hostile.harms else {1}), (
            "an innocent record is charged"
        )
        assert len(of[offset]) <= most + hostile.harms
    if hostile.fails:
        assert [(letter.offset, letter.attempts) for letter in driver.dead] == [(BAD, ATTEMPTS)]
        assert set(of[BAD]) == set(range(1, ATTEMPTS + 1))
    else:
        assert not driver.dead
    if hostile.by_time:
        assert len(of[BAD]) == driver.ended == ATTEMPTS, "each call costs one worker"
    elif not hostile.ends_worker:
        assert driver.ended == 0
    elif not hostile.once:
        # Where several were at work, the record is found by halving them.
        assert ATTEMPTS <= driver.ended <= ATTEMPTS * (2 + math.ceil(math.log2(KEYS)) + 1)
        assert kind != "plain" or driver.ended == ATTEMPTS
    else:
        assert driver.ended <= 1
    for key in range(KEYS):
        first = [
            next(i for i, one in enumerate(calls) if one[0] == o) for o in range(key, COUNT, KEYS)
        ]
        assert first == sorted(first), "the order of a key"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("coopconsume-")]


def test_every_runner_is_attacked():
    """A new kind of runner joins the table."""
    found = set()
    for module in pkgutil.walk_packages(coopconsume.worker.__path__, "coopconsume.worker."):
        if module.name.endswith(".daemon"):
            continue
        for name, one in vars(importlib.import_module(module.name)).items():
            is_runner = inspect.isclass(one) and issubclass(one, Runner)
            if is_runner and not inspect.isabstract(one):
                found.add(name)
    assert found == RUNNERS.keys()
    assert {kind for hostile in HOSTILE.values() for kind in hostile.kinds} == set(RUNNERS.values())

"""What the absence of a driver, of Kafka or of the commit table costs, on one real application.

The times are short ones in the proportions of the defaults: an outage outlasts lease + leaseGrace,
and a handler that runs in it lasts as long. `LEASE_TIMES=default` has the times of the defaults.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from commits import CommitStore
from coopconsume import LocalKafka
from coopconsume.demo.processes import kill_tree
from coopconsume.testing.history import Disturbance, Seen, check, read_history
from tests.chaos.watcher import runs
from tests.spark.job_with_faults import AWAY, CUT
from tests.spark.support import done_book, options, pending_book, until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
TOPIC = "t"
#: Handlers that run at once, and records of each fault.
AT_ONCE, EACH = 6, 8


class Times(NamedTuple):
    """Seconds."""

    grace: float
    handler: float
    outage: float
    short: float
    long: float


TIMES = {
    "": Times(grace=4.0, handler=9.0, outage=11.0, short=2.0, long=10.0),
    "default": Times(grace=7.0, handler=30.0, outage=60.0, short=8.0, long=20.0),
}[os.environ.get("LEASE_TIMES", "")]


class App:
    """A job with long handlers, in a process of its own."""

    def __init__(self, broker, folder, stack):
        self.broker, self.folder, self.history = broker, folder, folder / "history"
        self.count, self.disturbed, self.gone = 0, [], {}
        more = {
            # The broker's own clock runs while it is frozen: nobody is to leave.
            "kafka.session.timeout.ms": 300_000, "leaseGrace": TIMES.grace, "slots": 2,
            "batchTime": "5 minutes", "handlerTimeout": "10 minutes",
        }  # fmt: skip
        self.options = options(broker, folder, TOPIC, **more)
        config = {
            "options": self.options, "history": str(self.history), "takes": TIMES.handler,
            "folder": str(folder),
        }  # fmt: skip
        self.log = stack.enter_context((folder / "job.log").open("w"))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.job_with_faults", json.dumps(config)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        stack.callback(lambda: kill_tree(self.popen) if self.popen.poll() is None else None)

    def said(self):
        return (self.folder / "job.log").read_text()

    def calls(self):
        assert self.popen.poll() is None, self.said()[-3000:]
        return list(read_history(self.history)) if self.history.exists() else []

    @contextmanager
    def at_work(self, *, costs=False):
        """Yields as all handlers run; what they lose in this time is excused if it costs that."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers)
        for number in range(EACH):
            producer.send(TOPIC, key=b"k%d" % number).get(60)
        producer.close()
        first, self.count = self.count, self.count + EACH

        def running():
            return [c for c in self.calls() if c.end_ns is None and c.offset >= first]

        until(lambda: len(running()) >= AT_ONCE // 2)
        began = time.monotonic_ns()
        yield
        pids = self.note_ended()
        until(self.is_done)
        if costs:
            self.disturbed.append(Disturbance(began, time.monotonic_ns(), frozenset(pids)))

    def note_ended(self):
        """Notes which workers with running calls have ended; returns all that had such calls."""
        pids = {int(c.process.split("-")[0]) for c in self.calls() if c.end_ns is None}
        for pid in pids - self.gone.keys():
            if not runs(pid):
                self.gone[pid] = time.monotonic_ns()
        return pids

    def is_done(self):
        self.calls()
        return self.done().get((TOPIC, 0), []) == [(0, self.count - 1)]

    def store(self):
        clusters = CommitStore.open(self.options["commitTable"]).clusters("t-group")
        return CommitStore.open(self.options["commitTable"], cluster=clusters[0])

    def done(self):
        with suppress(Exception):  # The job makes the table.
            return done_book(self.store(), "t-group")
        return {}

    def repeats(self):
        offsets = [call.offset for call in self.calls()]
        return len(offsets) - len(set(offsets))


@contextmanager
def table_away(app):
    """The commit log does not answer the driver."""
    marker = app.folder / AWAY
    marker.touch()
    try:
        yield
    finally:
        marker.unlink()


@contextmanager
def kafka_away(app):
    """The broker is frozen."""
    app.broker.freeze()
    try:
        yield
    finally:
        app.broker.thaw()


@contextmanager
def frozen(app):
    """The driver is; its JVM and its workers are not."""
    os.kill(app.popen.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(app.popen.pid, signal.SIGCONT)


def test_what_is_away_costs_what_is_promised(tmp_path):
    """An outage of one side costs nothing, nor does a short freeze; what else is repeated is named.

    One application after another would cost a start of Spark each.
    """
    found = []
    with ExitStack() as stack:
        broker = stack.enter_context(LocalKafka())
        broker.create_topic(TOPIC, 1)
        app = App(broker, tmp_path, stack)
        for faults, seconds, costs in (
            ([table_away], TIMES.outage, False),
            ([kafka_away], TIMES.outage, False),
            ([frozen], TIMES.short, False),
            ([table_away, kafka_away], TIMES.outage, True),
            ([frozen], TIMES.long, True),
        ):
            before = app.repeats()
            with app.at_work(costs=costs), ExitStack() as faulty:
                for fault in faults:
                    faulty.enter_context(fault(app))
                time.sleep(seconds)
                app.note_ended()  # Before the driver can use other workers.
            found.append(([one.__name__ for one in faults], app.repeats() - before))
        before = app.repeats()
        with app.at_work():
            (app.folder / CUT).touch()
        found.append((["cut"], app.repeats() - before))
        app.popen.stdin.close()
        assert app.popen.wait(300) == 0, app.said()[-3000:]
    store = app.store()
    produced = {(TOPIC, 0): {o: b"k%d" % (o % EACH) for o in range(app.count)}}
    verdict = check(
        read_history(app.history), produced, done_book(store, "t-group"),
        pending_book(store, "t-group"), {}, seen=Seen(app.disturbed, [], app.gone, []),
    )  # fmt: skip
    assert verdict.ok, f"{found}: {verdict}"
    repeats = [some for _, some in found]
    assert repeats[:3] + repeats[5:] == [0, 0, 0, 0]
    assert repeats[3] > 0
    assert repeats[4] > 0
    assert "has not heard of its driver, or of its epoch" in app.said()
    # No two handlers of a key at once, although workers were ended.
    for key in {call.key for call in read_history(app.history)}:
        own = sorted(
            (c for c in read_history(app.history) if c.key == key), key=lambda c: c.start_ns
        )
        assert all(a.end_ns is None or a.end_ns <= b.start_ns for a, b in pairwise(own))

"""The ground of a chaos run: broker, topic, commit table, applications, and what is seen of them.

Everything that is judged comes from outside of the applications: the history that each handler
call wrote, the records that were produced, and the commit log as it was looked at all along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kafka import KafkaProducer

from commits import CommitStore, CommitStoreError
from coopconsume import Options, accept_range_fetch
from coopconsume.cluster.client import Cluster
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.group.owned import LEASE
from coopconsume.history import Kill, check, read_history
from tests.spark.support import done_book, pending_book

if TYPE_CHECKING:
    from types import TracebackType

    from coopconsume.history import Verdict
    from coopconsume.local.broker import LocalKafka

ROOT = Path(__file__).parents[2]
SESSION = 5.0
BATCH_TIME, HANDLER_TIMEOUT = 1.0, 2.0
#: Seconds that a member may go on for after its group has given it up: the session, the lease and
#: the life of a batch.
_UNAWARE = SESSION + LEASE + BATCH_TIME + HANDLER_TIMEOUT
#: Seconds after a disturbance within which what was in flight at it may be done again: that, and
#: what a loaded machine adds.
REACH = _UNAWARE + 10.0
_SAMPLE_EVERY = 0.25
#: What applications log when work of theirs does not count; a member may learn of it late.
_SIGNS = (
    "were not through within drainTimeout",
    "all shares are lost",
    "failed, its slots are planned again",
)


@dataclass
class App:
    """One application: a driver with its JVM and workers.

    Attributes:
        name: Its name.
        popen: Its driver.
        pids: All processes it was ever seen to have.
        paused: Whether its driver is stopped.
    """

    name: str
    popen: subprocess.Popen[str]
    pids: set[int] = field(default_factory=set)
    paused: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the driver runs, or is only stopped."""
        return self.popen.poll() is None


@dataclass(frozen=True)
class Disturbance:
    """Something that may have left work of an application uncommitted.

    Attributes:
        at: When, in seconds of `time.monotonic`.
        app: Whose.
        since: From when on it may have been so.
    """

    at: float
    app: App
    since: float


class Ground:
    """A topic of one partition, and the applications of one group on it.

    Args:
        kafka: The broker.
        topic: The topic, of one partition.
        folder: Where the tables, the history and the logs go.
        slots: Of each application.
        concurrency: Handlers at once in a slot.
        seconds: A handler takes, on average.
        fails: Whether some records fail on their first attempt.
        batch_time: Seconds after which a batch starts no further handler.
        watched: Whether the commit log is looked at all along, as a `verdict` needs it.
    """

    def __init__(
        self, kafka: LocalKafka, topic: str, folder: Path, *, slots: int = 2,
        concurrency: int = 2, seconds: float = 0.01, batch_time: float = BATCH_TIME,
        fails: bool = True, watched: bool = True,
    ) -> None:  # fmt: skip
        self.kafka = kafka
        self.topic = topic
        self.folder = folder
        self.group = f"{topic}-group"
        self.options: dict[str, Any] = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": self.group,
            "kafka.session.timeout.ms": int(1000 * SESSION),
            "kafka.heartbeat.interval.ms": 500,
            "subscribe": topic,
            "commitTable": str(folder / "commits"),
            "slots": slots,
            "batchTime": batch_time,
            "handlerTimeout": HANDLER_TIMEOUT,
            "drainTimeout": 10,
        }
        self._work = {"concurrency": concurrency, "seconds": seconds, "fails": fails}
        self.apps: list[App] = []
        self.disturbances: list[Disturbance] = []
        self.produced: dict[int, bytes | None] = {}
        self._samples: list[tuple[float, dict[Any, Any]]] = []
        self._names = iter(range(1000))
        self._closing = threading.Event()
        accept_range_fetch(self.options, [topic])
        cluster = Cluster(Options.parse(self.options))
        self.store = CommitStore.open(self.options["commitTable"], cluster=cluster.cluster_id)
        cluster.close()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        if not watched:
            self._closing.set()

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        at: TracebackType | None,
    ) -> None:  # fmt: skip
        self._closing.set()
        self._watcher.join(30)
        for app in self.apps:
            if app.is_alive:
                kill_tree(app.popen)

    # -- the topic

    def produce(self, count: int, keys: int = 60) -> None:
        """Write records, whose keys come round in turn."""
        producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap_servers, linger_ms=20)
        first = len(self.produced)
        sent = []
        for number in range(first, first + count):
            key = b"k%d" % (number * 7919 % keys)
            sent.append((key, producer.send(self.topic, key=key, value=b"", partition=0)))
        producer.flush(timeout=120)
        for key, future in sent:
            self.produced[future.get(timeout=120).offset] = key
        producer.close()

    # -- applications

    def start(self) -> App:
        """Start another application."""
        name = f"app{next(self._names)}"
        settings = self._work | {
            "name": name, "options": self.options, "history": str(self.folder / "history"),
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("w") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.app", json.dumps(settings)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.apps.append(App(name, popen))
        return self.apps[-1]

    @property
    def alive(self) -> list[App]:
        """The applications that run."""
        return [app for app in self.apps if app.is_alive]

    def kill(self, app: App, *, driver_alone: bool) -> None:
        """SIGKILL an application: its driver, or that with all it has started."""
        self._note(app)
        if driver_alone:
            app.popen.kill()
            app.popen.wait(60)
        else:
            kill_tree(app.popen)

    def pause(self, app: App) -> None:
        """SIGSTOP a driver; its JVM and workers go on."""
        self._note(app)
        app.paused = True
        os.kill(app.popen.pid, signal.SIGSTOP)

    def wake(self, app: App) -> None:
        """Let a paused driver go on."""
        app.paused = False
        os.kill(app.popen.pid, signal.SIGCONT)

    def stop(self, app: App) -> None:
        """Let an application end in order."""
        assert app.popen.stdin is not None
        app.popen.stdin.close()
        assert app.popen.wait(180) == 0, self.log_of(app)

    def log_of(self, app: App) -> str:
        """The end of what an application has logged."""
        return (self.folder / f"{app.name}.log").read_text()[-4000:]

    def _note(self, app: App) -> None:
        app.pids |= set(process_tree(app.popen.pid))
        now = time.monotonic()
        self.disturbances.append(Disturbance(now, app, now))
        self._look()

    # -- what is seen

    def _watch(self) -> None:
        while not self._closing.wait(_SAMPLE_EVERY):
            with suppress(CommitStoreError):  # the next look will do
                self._look()
            for app in self.apps:
                if app.is_alive:
                    app.pids |= set(process_tree(app.popen.pid))

    def _look(self) -> None:
        at = time.monotonic()
        self._samples.append((at, done_book(self.store, self.group)))

    @property
    def done(self) -> int:
        """Records that the log counts as done."""
        state = self.store.state(self.group).get((self.topic, 0))
        return 0 if state is None else state.stable_offset + len(state.ranges)

    def members(self) -> int:
        """Members of the epoch in force that hold something and may commit."""
        row = self.store.assignment(self.group)
        if row is None:
            return 0
        return sum(bool(shares) and m not in row.fenced for m, shares in row.members.items())

    def wait_for_members(self, count: int, timeout: float = 180.0) -> float:
        """Wait until so many members share the topic; returns the seconds it took."""
        return self._wait(lambda: self.members() == count, f"{count} members", timeout)

    def wait_for_done(self, count: int, timeout: float = 300.0, every: float = 0.05) -> float:
        """Look every so often until so many records are done; returns the seconds it took."""
        return self._wait(lambda: self.done >= count, f"{count} records done", timeout, every)

    def _wait(self, holds: Any, what: str, timeout: float, every: float = 0.05) -> float:
        begun = time.monotonic()
        while not holds():
            for app in self.apps:
                code = app.popen.poll()
                # A closed standard input, or a kill of ours, ends them otherwise.
                assert code in (None, 0, -signal.SIGKILL), f"{app.name}: {self.log_of(app)}"
            if time.monotonic() - begun > timeout:
                logs = "\n".join(f"{app.name}:\n{self.log_of(app)}" for app in self.alive)
                raise AssertionError(
                    f"no {what} after {timeout} s; {self.done} of {len(self.produced)} done, "
                    f"{self.members()} members\n{logs}"
                )
            time.sleep(every)
        return time.monotonic() - begun

    def logged(self) -> list[Disturbance]:
        """Late hand-overs and lost memberships; the applications log them."""
        clock = time.time() - time.monotonic()
        found = []
        for app in self.apps:
            for line in (self.folder / f"{app.name}.log").read_text().splitlines():
                if any(sign in line for sign in _SIGNS):
                    at = float(line.split(" ")[0]) - clock
                    found.append(Disturbance(at, app, at - _UNAWARE))
        return found

    def told(self) -> str:
        """What the applications' own loggers said, for people."""
        return "\n".join(
            f"{app.name} {line}"
            for app in self.apps
            for line in (self.folder / f"{app.name}.log").read_text().splitlines()
            if " coopconsume." in line
        )

    def verdict(self) -> Verdict:
        """The checker's word over the histories of all applications.

        A record may be done again if it was in flight in an application at a disturbance of it, and
        not committed at a look at the log soon after.
        """
        kills = []
        for disturbance in [*self.disturbances, *self.logged()]:
            pids = frozenset(disturbance.app.pids)
            for at, book in self._samples:
                if disturbance.since <= at <= disturbance.at + REACH:
                    kills.append(Kill(int(at * 1e9), book, pids))
        tp = (self.topic, 0)
        return check(
            read_history(self.folder / "history"),
            {tp: self.produced},
            done_book(self.store, self.group),
            pending_book(self.store, self.group),
            {},
            kills=kills,
        )

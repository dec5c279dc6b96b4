"""A chaos run: broker, topics, commit table, applications, and what is seen of them.

Everything that is judged comes from outside of the applications: the history that each handler
call wrote, the records that were produced, and the commit log as it was looked at all along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from commits import CommitStore, OffsetRanges
from coopconsume import Options, set_shareable
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.group.owned import LEASE
from coopconsume.kafka.cluster import Cluster
from coopconsume.state.changelog import Changelog
from coopconsume.state.reading import committed_state
from coopconsume.state.store import FOLDER
from coopconsume.testing.history import check, read_history
from coopconsume.testing.local.config import free_ports
from tests.chaos.topics import Topics
from tests.chaos.watcher import Watcher, runs
from tests.proxy import Proxy
from tests.spark.support import done_book, pending_book

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from coopconsume.testing.history import Verdict
    from coopconsume.testing.history.checker import Ordering
    from coopconsume.testing.local.broker import LocalKafka
    from tests.chaos.topics import Place, Position

ROOT = Path(__file__).parents[2]
SESSION = 6.0
BATCH_TIME, HANDLER_TIMEOUT = 1.0, 25.0
#: Seconds of a handler call that outlasts the session; it fits into `DRAIN`.
LONG = SESSION + 2.0
#: Records for each one that takes so long.
_LONG_EVERY = 149
#: Seconds between the few records that are written while a run waits.
_TRICKLE_EVERY = 0.3
DRAIN = 60.0
#: Seconds for which a batch may go on that was begun before its owner lost its shares.
LIFE = BATCH_TIME + HANDLER_TIMEOUT + LEASE
#: The topic that one application at a time claims as a whole, and the group that does so.
CLAIMED, CLAIMANTS = "claimed", "claimants"
#: The topic that may be deleted and created again.
RECREATED = "again"


@dataclass
class App:
    """One application: a driver with its JVM and workers.

    Attributes:
        name: Its name.
        popen: Its driver.
        history: Where its workers write their calls.
        port: Where its driver listens for its slots.
        network: Leads its slots there.
        instance: Its ``group.instance.id``, if it is a static member.
        claims: Whether it claims its partitions by hand.
        paused: Whether its driver is stopped.
        may_fail: Whether it may end by an error, as another has taken its claim over.
    """

    name: str
    popen: subprocess.Popen[str]
    history: Path
    port: int
    network: Proxy
    instance: str | None = None
    claims: bool = False
    paused: bool = False
    may_fail: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the driver runs, or is only stopped."""
        return self.popen.poll() is None

    @property
    def workers(self) -> frozenset[int]:
        """All processes that ever ran a handler of it."""
        return frozenset(int(file.name.split("-")[1]) for file in self.history.glob("calls-*"))


def _running(app: App) -> set[Position]:
    """The records that handlers of an application have begun and not ended."""
    calls = read_history(app.history)
    return {(call.topic, call.partition, call.offset) for call in calls if call.end_ns is None}


class Harness:
    """Topics, and the applications of one group on them.

    Args:
        kafka: The broker.
        topics: The partitions of each topic that is created for it, or the name of one topic of one
            partition that exists.
        folder: Where the tables, the history and the logs go.
        slots: Of each application.
        concurrency: Handlers at once in a slot.
        seconds: A handler takes, on average.
        batch_time: Seconds after which a batch starts no further handler.
        fails: Whether some records fail on their first attempt.
        long: Seconds that some records take; 0: none does.
        trickle: Records that are written every now and then while the run waits for something.
        handler_timeout: Seconds that handlers get beyond ``batch_time``.
        watched: Whether the commit log is looked at all along, as a `verdict` needs it.
        with_state: Whether handlers keep state per key; then every record has a key.
        real_time: Duration of real-time runs; empty: batches alone.
        sharing: How members share partitions. With ``cooperative`` handlers keep no order.
    """

    def __init__(
        self, kafka: LocalKafka, topics: str | Mapping[str, int], folder: Path, *, slots: int = 2,
        concurrency: int = 2, seconds: float = 0.01, batch_time: float = BATCH_TIME,
        fails: bool = True, long: float = 0.0, trickle: int = 0,
        handler_timeout: float = HANDLER_TIMEOUT, watched: bool = True, with_state: bool = False,
        real_time: str = "", sharing: str = "keyRanges",
    ) -> None:  # fmt: skip
        self.kafka = kafka
        self.folder = folder
        if isinstance(topics, str):
            partitions: Mapping[str, int] = {topics: 1}
        else:
            partitions = topics
            for topic, number in topics.items():
                kafka.create_topic(topic, number)
        self.topics = Topics(
            kafka, partitions, [RECREATED] if RECREATED in partitions else [],
            every_has_a_key=with_state,
        )  # fmt: skip
        self.shared = [topic for topic in partitions if topic != CLAIMED]
        self.group = f"{self.shared[0]}-group"
        self.options: dict[str, Any] = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": self.group,
            "kafka.session.timeout.ms": int(1000 * SESSION),
            "kafka.heartbeat.interval.ms": 500,
            "kafka.metadata.max.age.ms": 2000,
            "subscribe": ",".join(self.shared),
            "commitTable": str(folder / "commits"),
            "slots": slots,
            "batchTime": batch_time,
            "handlerTimeout": handler_timeout,
            "drainTimeout": DRAIN,
            "failOnDataLoss": "false",
            "sharing": sharing,
        }
        self._ordering: Ordering = "none" if sharing == "cooperative" else "key"
        self._work = {
            "concurrency": concurrency, "seconds": seconds, "fails": fails, "real_time": real_time,
            "ordering": self._ordering,
        }  # fmt: skip
        self._with_state = with_state
        self._long = long
        #: Seconds of a handler call that outlasts the session, and ends in time on a busy machine.
        self._hanging = 0.85 * handler_timeout
        self._trickle = trickle
        self._trickled = time.monotonic()
        self.apps: list[App] = []
        self._names = iter(range(1000))
        if sharing == "keyRanges":
            set_shareable(self.options, list(partitions))
        cluster = Cluster(Options.parse(self.options))
        self.store = CommitStore.open(self.options["commitTable"], cluster=cluster.cluster_id)
        cluster.close()
        #: The name of a topic that may be created again in the results, by Kafka's id.
        self._incarnations = {
            self.topics.id_of(topic): self.topics.name(topic) for topic in self.topics.incarnations
        }
        self.watcher = Watcher(lambda: list(self.apps), self._named_book)
        self._watched = watched

    def __enter__(self) -> Self:
        if self._watched:
            self.watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        at: TracebackType | None,
    ) -> None:  # fmt: skip
        self.watcher.close()
        for app in self.apps:
            app.network.close()
            if app.is_alive:
                kill_tree(app.popen)
            for pid in filter(runs, app.workers):
                os.kill(pid, signal.SIGKILL)

    def produce(self, count: int, keys: int = 12, topics: Sequence[str] = ()) -> None:
        """Write records, whose keys come round in turn."""
        self.topics.produce(count, keys, topics, seconds=self._long, every=_LONG_EVERY)

    def hang(self) -> App:
        """Have one handler of the group outlast its session; returns the member that runs it.

        All else is done before. So the other members have no handler to wait for when the session
        ends, and a member that does not wait for work in doubt begins while this handler runs.
        """
        self.wait_for_all()
        topics = [topic for topic in self.shared if topic != RECREATED]
        # One record: a member with such a handler of its own waits for it before it hands over, and
        # then a member that does not wait for work in doubt does not begin too early either.
        written = {*self.topics.produce(1, topics=topics, seconds=self._hanging)}
        found: list[App] = []

        def is_running() -> bool:
            found.extend(app for app in self.alive if written & _running(app) and not app.paused)
            return bool(found)

        self.wait(is_running, "handler that takes long", 300)
        return found[0]

    # -- applications

    def start(self, *, static: bool = False, instance: str | None = None) -> App:
        """Start another application; a static member, or one that claims what it handles."""
        number = next(self._names)
        instance = instance or (f"static-{number}" if static else None)
        more = {"kafka.group.instance.id": instance} if instance else {}
        return self._start(f"app{number}", self.options | more, instance=instance)

    def start_claimant(self) -> App:
        """Start an application that claims a topic's only partition from its owner."""
        options = self.options | {"kafka.group.id": CLAIMANTS}
        del options["subscribe"]
        return self._start(f"claimant{next(self._names)}", options, claim=[CLAIMED, 0])

    def _start(
        self, name: str, options: dict[str, Any], *, instance: str | None = None,
        claim: list[Any] | None = None,
    ) -> App:  # fmt: skip
        history = self.folder / "history" / name
        history.mkdir(parents=True)
        (port,) = free_ports(1)
        network = Proxy(port)
        settings = self._work | {
            "name": name, "options": options | {"channelPort": port}, "network": network.port,
            "history": str(history), "claim": claim,
            "state": self._state_of(options["kafka.group.id"]) if self._with_state else "",
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("w") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.app", json.dumps(settings)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                start_new_session=True, env=os.environ | {FOLDER: str(self.folder / "stores")},
            )  # fmt: skip
        self.apps.append(App(name, popen, history, port, network, instance, claim is not None))
        return self.apps[-1]

    def _state_of(self, group: str) -> str:
        """The path of a group's state."""
        return str(self.folder / "state" / group)

    @property
    def alive(self) -> list[App]:
        """The members of the group that run."""
        return [app for app in self.apps if app.is_alive and not app.claims]

    @property
    def claimant(self) -> App | None:
        """The application that claimed last, if it runs."""
        found = [app for app in self.apps if app.claims and app.is_alive]
        return found[-1] if found else None

    def kill(self, app: App, *, driver_alone: bool) -> None:
        """SIGKILL an application: its driver, or that with all it has started."""
        self.watcher.disturb(app)
        if driver_alone:
            app.popen.kill()
            app.popen.wait(60)
        else:
            kill_tree(app.popen)

    def orphan(self, app: App) -> None:
        """SIGKILL a driver with its JVM; the Python workers with handlers go on for a while."""
        self.watcher.disturb(app)
        family = [pid for pid in process_tree(app.popen.pid) if pid not in app.workers]
        # Stopped first: PySpark's daemon ends its workers when it sees the end of the JVM.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        app.popen.wait(60)

    def kill_worker(self, app: App) -> bool:
        """SIGKILL one of its Python workers; whether there was one."""
        there = sorted(filter(runs, app.workers))
        for pid in there[-1:]:
            self.watcher.disturb(frozenset({pid}))
            os.kill(pid, signal.SIGKILL)
        return bool(there)

    def freeze_worker(self, app: App) -> None:
        """SIGSTOP a Python worker of it that runs a handler, for twice its lease."""
        found: list[int] = []

        def is_at_work() -> bool:
            calls = read_history(app.history)
            busy = {int(call.process.split("-")[0]) for call in calls if call.end_ns is None}
            found[:] = filter(runs, busy)
            if not found:
                self.produce(1, topics=[self.shared[0]])
            return bool(found)

        self.wait(is_at_work, "worker with a handler", 300)
        for pid in found[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.sleep(2 * LEASE)
                os.kill(pid, signal.SIGCONT)

    def pause(self, app: App) -> None:
        """SIGSTOP a driver; its JVM and workers go on."""
        self.watcher.disturb(app)
        app.paused = True
        os.kill(app.popen.pid, signal.SIGSTOP)

    def wake(self, app: App) -> None:
        """Let a paused driver go on."""
        app.paused = False
        os.kill(app.popen.pid, signal.SIGCONT)
        self.watcher.woke(app)

    def stop(self, app: App) -> None:
        """Let an application end in order."""
        assert app.popen.stdin is not None
        app.popen.stdin.close()
        assert app.popen.wait(300) == 0, self.log_of(app)

    def log_of(self, app: App) -> str:
        """The end of what an application has logged."""
        return (self.folder / f"{app.name}.log").read_text()[-4000:]

    def delete_unhandled(self) -> None:
        """Delete records, about half of them not done yet, as retention does."""
        book, below = self.book(), {}
        for place, records in self.topics.expected().items():
            if place[0] in self.shared and place[0] != RECREATED and records:
                left = OffsetRanges.from_offsets(list(records)) - OffsetRanges(book.get(place, ()))
                if left:
                    below[place] = sorted(left.offsets().tolist())[len(left) // 2] + 1
        self.watcher.deletes({(self.topics.name(t), p): first for (t, p), first in below.items()})
        for place, first in below.items():
            self.topics.delete_below(place, first)

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.topics.recreate(topic)
        self._incarnations[self.topics.id_of(topic)] = self.topics.name(topic)

    # -- what is seen

    def book(self) -> dict[Place, list[tuple[int, int]]]:
        """What the commit log counts as done, of topics as they are now."""
        return self._look()[1]

    def _look(self) -> tuple[dict[str, str], dict[Place, list[tuple[int, int]]]]:
        """The topics' names in the results, and what the commit log counts as done of them."""
        names = {topic: self.topics.name(topic) for topic in list(self.topics.partitions)}
        before = self._known_incarnations()
        book = done_book(self.store, self.group)
        if CLAIMED in self.topics.partitions:
            book |= done_book(self.store, CLAIMANTS)
        after = self._known_incarnations()
        for topic in self.topics.incarnations:
            # Until the group has heard of a new incarnation, its log speaks of the last one.
            if not names[topic] == before[topic] == after[topic]:
                book = {place: done for place, done in book.items() if place[0] != topic}
        return names, book

    def _known_incarnations(self) -> dict[str, str | None]:
        """The incarnation of each topic that the epoch in force is about."""
        row = self.store.assignment(self.group)
        ids = row.topic_ids if row is not None else {}
        return {
            topic: self._incarnations.get(ids.get(topic, "")) for topic in self.topics.incarnations
        }

    def _named_book(self) -> dict[Place, list[tuple[int, int]]]:
        names, book = self._look()
        return {(names[t], p): done for (t, p), done in book.items()}

    @property
    def done(self) -> int:
        """Offsets that the log counts as done."""
        return sum(last - first + 1 for done in self.book().values() for first, last in done)

    def left(self) -> int:
        """Records of the topics as they are now that are not done."""
        book = self.book()
        return sum(
            len(OffsetRanges.from_offsets(list(records)) - OffsetRanges(book.get(place, ())))
            for place, records in self.topics.expected().items()
        )

    def members(self) -> int:
        """Members of the epoch in force that hold something and may commit."""
        row = self.store.assignment(self.group)
        if row is None:
            return 0
        return sum(bool(shares) and m not in row.fenced for m, shares in row.members.items())

    def epoch(self) -> int:
        """Number of the epoch in force; 0 without one."""
        row = self.store.assignment(self.group)
        return 0 if row is None else row.epoch.number

    def partitions_dealt(self) -> int:
        """Partitions that the epoch in force gives to somebody."""
        row = self.store.assignment(self.group)
        shares = [] if row is None else [s for held in row.members.values() for s in held]
        return len({(share.topic, share.partition) for share in shares})

    def wait_for_members(self, count: int, timeout: float = 300.0) -> float:
        """Wait until so many members share the topics; returns the seconds it took."""
        return self.wait(lambda: self.members() == count, f"{count} members", timeout)

    def wait_for_done(self, count: int, timeout: float = 300.0, every: float = 0.05) -> float:
        """Look every so often until so many records are done; returns the seconds it took."""
        return self.wait(lambda: self.done >= count, f"{count} records done", timeout, every)

    def wait_for_all(self, timeout: float = 600.0) -> float:
        """Wait until every record is done; returns the seconds it took."""
        self._trickle, trickle = 0, self._trickle
        took = self.wait(lambda: not self.left(), "end of the records", timeout, 0.2)
        self._trickle = trickle
        return took

    def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, "end of a sleep", seconds + 300)

    def wait(self, holds: Any, what: str, timeout: float, every: float = 0.05) -> float:
        """Wait until something holds; an application that fails meanwhile is an error."""
        begun = time.monotonic()
        while not holds():
            for app in self.apps:
                code = app.popen.poll()
                # A closed standard input, or a kill of ours, ends them otherwise.
                fine = code in (None, 0, -signal.SIGKILL) or app.may_fail
                assert fine, f"{app.name}: {self.log_of(app)}"
            if time.monotonic() - begun > timeout:
                logs = "\n".join(f"{app.name}:\n{self.log_of(app)}" for app in self.alive)
                raise AssertionError(
                    f"no {what} after {timeout} s; {self.left()} records left, "
                    f"{self.members()} members\n{logs}"
                )
            time.sleep(every)
            if self._trickle and time.monotonic() - self._trickled > _TRICKLE_EVERY:
                self._trickled = time.monotonic()
                self.topics.produce(self._trickle)
        return time.monotonic() - begun

    def report(self) -> str:
        """What the applications' own loggers said, for people."""
        return "\n".join(
            f"{app.name} {line}"
            for app in self.apps
            for line in (self.folder / f"{app.name}.log").read_text().splitlines()
            if " coopconsume." in line
        )

    def verdict(self) -> Verdict:
        """What the checker makes of the histories of all applications.

        A record may be done again if its own call ran in, or had been reported to, an application
        that was disturbed before the record was committed; nothing else excuses a repeat. Without
        an order each record is judged by its own calls.
        """
        everything = self.folder / "history" / "all"
        everything.mkdir()
        for app in self.apps:
            for file in app.history.glob("calls-*"):
                os.link(file, everything / file.name)
        done = self._named_book()
        for (topic, partition), records in self.topics.produced.items():
            # Of a topic that is gone all was done before.
            if "#" in topic and topic not in map(self.topics.name, self.topics.incarnations):
                done[topic, partition] = [(offset, offset) for offset in records]
        pending = {
            (self.topics.name(t), p): held
            for (t, p), held in pending_book(self.store, self.group).items()
        }
        return check(
            self.topics.by_incarnation(read_history(everything)), self.topics.produced, done,
            pending, {}, seen=self.watcher.seen(), ordering=self._ordering, states=self._states(),
        )  # fmt: skip

    def _states(self) -> dict[Place, dict[bytes, Any]] | None:
        """The final state by key of each partition; of deleted topics that of their keys."""
        if not self._with_state:
            return None
        states: dict[Place, dict[bytes, Any]] = {}
        for group in [self.group, CLAIMANTS]:
            path = self._state_of(group)
            if not Path(path).exists():
                continue
            rows = committed_state(path, self.options["commitTable"], group).to_pylist()
            # What the changelog has of topics that were deleted since.
            changelog, counted = Changelog(path), self.store.counted_commits(group)
            live = {self.store.topic_ids(group)[row["topic"], row["partition"]] for row in rows}
            for origin in changelog.origins():
                if origin.topic_id not in live:
                    found = changelog.counted_rows(origin, changelog.version, counted.__contains__)
                    rows += found.rename_columns(
                        {"_topic": "topic", "_partition": "partition"}
                    ).to_pylist()
            for row in rows:
                topic, key = row["topic"], row["key"]
                if topic in self.topics.incarnations:
                    topic = f"{topic}#{key.partition(b'-')[0].decode()}"
                states.setdefault((topic, row["partition"]), {})[key] = row["value"]
        return states

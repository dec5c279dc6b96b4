"""The demo's four acts: sets the stage, starts and kills the job, and shows what happens."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.cluster import Cluster
from coopconsume.demo.books import Books, Standing, make_up
from coopconsume.demo.child import JobProcess
from coopconsume.demo.errors import DemoFailed
from coopconsume.demo.flights import FLIGHTS, tail_numbers
from coopconsume.demo.job import Query, Settings
from coopconsume.demo.story import (
    Holdups,
    books_table,
    kill_line,
    slots_table,
    slow_aircraft,
    working,
)
from coopconsume.demo.topic import planned_records
from coopconsume.java import find_java
from coopconsume.local_kafka import LocalKafka
from coopconsume.options import Options
from coopconsume.screen import Rate, bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.demo.books import Planned
    from coopconsume.screen import Screen

TOPIC = "flights"
PARTITIONS = 3
SLOTS = 8
LEAST = 2_000
"""Fewer records would be through before anything could be seen of them."""

_POISON = 30  # records that fail twice, about
_HOPELESS = 6  # records that fail for good, about
_SLOW_LEGS = (7, 9)
_SMALL_WINDOW = 30_000  # a batch has a price of its own
_SLOW_SECONDS = 0.5
_KILL_AT = 0.7
_MIDDLE = 0.7  # seconds after a commit, so that handlers are at work again
_GROUP_PATIENCE = 60.0
_TOO_FAR = 0.95  # to wait longer for a sight


@dataclass(frozen=True)
class Outcome:
    """What the demo found.

    Attributes:
        books: Of the run that was killed and started again.
        seconds: That it took, the kill and the restart included.
        complaints: What does not balance, in this run or in the first; empty if all does.
    """

    books: Books
    seconds: float
    complaints: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        """The figures of the run, fit for JSON."""
        v = self.books.verdict
        return {
            "produced": v.produced,
            "done": v.done,
            "pending": v.pending,
            "dead_lettered": v.dead_lettered,
            "lost": self.books.lost,
            "order_breaks": v.order_breaks.count,
            "repeated": v.repeated.count,
            "in_flight_at_kill": sum(v.in_flight_at_kill),
            "seconds": round(self.seconds, 1),
            "records_per_second": round(v.produced / self.seconds),
            "stable_offsets": _named(self.books.standing.stable),
            "log_end_offsets": _named(self.books.ends),
        }


class Demo:
    """One performance.

    Args:
        screen: Where it is shown.
        records: How many of the year's flights, from the first; `LEAST` to `FLIGHTS`.
        servers: Bootstrap servers of another cluster; None for an embedded broker.
        keep: Keep the folder with tables, histories and logs, and the topic in another cluster.

    Raises:
        ValueError: ``records`` is out of range.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        records: int = FLIGHTS,
        servers: str | None = None,
        keep: bool = False,
    ) -> None:
        if not LEAST <= records <= FLIGHTS:
            raise ValueError(f"records={records}: give {LEAST} to {FLIGHTS}")
        self._screen = screen
        self._records = records
        self._servers = servers
        self._keep = keep
        self._address = servers or ""
        self._topic = TOPIC if servers is None else f"{TOPIC}-{secrets.token_hex(4)}"

    def play(self) -> Outcome:
        """Play the four acts, and leave nothing behind.

        Raises:
            DemoFailed: The job failed by itself.
            CoopConsumeError: There is no Java, no broker, no jars, no data.
        """
        find_java(needed_by="Spark 4", newest=21)
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="coopconsume-demo-"))
            if self._keep:
                stack.callback(lambda: self._screen.line(f"Kept: {folder}"))
            else:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            return self._play(stack, folder)

    def _play(self, stack: ExitStack, folder: Path) -> Outcome:
        began = time.monotonic()
        self._screen.status("starting Kafka and Spark", force=True)
        tails = tail_numbers(self._records)
        planned = planned_records(tails, self._topic, partitions=PARTITIONS)
        calm, stormy = self._queries(folder, planned)
        if self._servers is not None:
            # Before anything is started that would have to wait for it in vain.
            self._cluster(stack, stormy)
            if not self._keep:
                # Undone last: groups with members in them cannot be deleted.
                stack.callback(_delete, self._servers, self._topic, [calm.group, stormy.group])
        job = self._start(stack, folder, "job", (calm, stormy), load=True)
        if self._servers is None:
            kept: dict[str, Any] = {"data_dir": folder / "kafka"} if self._keep else {}
            self._address = stack.enter_context(LocalKafka(**kept)).bootstrap_servers
        job.go(self._address)
        events = job.events()
        self._await(events, "started")
        self._screen.line(
            f"{self._records:,} flights of 2013, with their tail numbers as keys, are in the "
            f"{PARTITIONS} partitions of topic {self._topic} on {self._address} "
            f"({time.monotonic() - began:.0f} s to start and load)."
        )
        self._first_act(events, calm)
        started = self._await(events, "started")
        self._second_act(events, planned, stormy)
        cluster = self._cluster(stack, stormy)
        killed = self._third_act(stack, folder, job, cluster, planned, stormy)
        seconds = time.monotonic() - started
        return self._fourth_act(stack, cluster, planned, (calm, stormy), killed, seconds)

    # -- the stage

    def _queries(self, folder: Path, planned: Planned) -> tuple[Query, Query]:
        for name in ("calm", "stormy", "scratch"):
            (folder / name).mkdir()
        mark = self._topic.removeprefix(TOPIC)
        calm = Query(
            f"calm{mark}",
            str(folder / "calm"),
            window=max(2 * _SMALL_WINDOW, self._records // 3),
            batch_time=30.0,
        )
        stormy = Query(
            f"stormy{mark}",
            str(folder / "stormy"),
            window=max(_SMALL_WINDOW, self._records // 4),
            batch_time=2.0,
            concurrency=2,
            poison_every=max(2, self._records // _POISON),
            fail_for_good_every=max(2, self._records // _HOPELESS),
            slow_seconds=_SLOW_SECONDS,
            # It will be killed, and nobody is to wait long for what is gone.
            handler_timeout=5.0,
            session_timeout=8.0,
        )
        weather = stormy.handler()
        slow = slow_aircraft(
            planned,
            _SLOW_LEGS,
            lambda p, o: weather.fails_for_good(p, o) or weather.is_poison(p, o),
        )
        return calm, replace(stormy, slow_tail=slow)

    def _start(
        self, stack: ExitStack, folder: Path, name: str, queries: tuple[Query, ...], *, load: bool
    ) -> JobProcess:
        settings = Settings(
            topic=self._topic,
            partitions=PARTITIONS,
            slots=SLOTS,
            records=self._records,
            load=load,
            scratch=str(folder / "scratch"),
            queries=queries,
        )
        job = JobProcess(settings, folder, name)
        stack.callback(job.kill)
        return job

    def _cluster(self, stack: ExitStack, query: Query) -> Cluster:
        cluster = Cluster(
            Options.parse(
                {
                    "kafka.bootstrap.servers": self._address,
                    "kafka.group.id": query.group,
                    "commitTable": query.commits,
                }
            )
        )
        stack.callback(cluster.close)
        return cluster

    def _await(self, events: Iterator[dict[str, Any]], wanted: str) -> float:
        """Show loading until an event comes; returns when it came."""
        for event in events:
            if event["event"] == wanted:
                return time.monotonic()
            if event["event"] == "loading":
                done, of = event["records"], event["all"]
                self._screen.status(f"{bar(done, of)} {done:,} of {of:,} flights loaded")
        raise DemoFailed(f"it ended before {wanted!r}")

    # -- the acts

    def _first_act(self, events: Iterator[dict[str, Any]], query: Query) -> None:
        self._screen.line(
            f"Act 1. All flights through {SLOTS} slots: {PARTITIONS} partitions, each shared by "
            "all slots by ranges of key hashes, every aircraft in order."
        )
        started = time.monotonic()
        progress = self._follow(events, 0)
        took = time.monotonic() - started
        self._screen.line(
            f"  {self._records:,} flights in {took:.1f} s, {self._records / took:,.0f} a second; "
            f"group {query.group}, one commit after another in one Delta table."
        )
        self._screen.line(f"  {slots_table(progress['slots'])}")

    def _second_act(self, events: Iterator[dict[str, Any]], planned: Planned, query: Query) -> None:
        slow = query.slow_tail or ""
        self._screen.line(
            f"Act 2. The same flights again for group {query.group}, on a bad day: about {_POISON} "
            f"of them fail twice, about {_HOPELESS} for good, and each flight of {slow} takes "
            f"{_SLOW_SECONDS:g} s. The others fly past."
        )
        holdups = Holdups(planned, slow)
        self._follow(events, 1, holdups=holdups, until=int(self._records * _KILL_AT))
        for line in holdups.lines():
            self._screen.line(f"  {line}")

    def _third_act(
        self,
        stack: ExitStack,
        folder: Path,
        job: JobProcess,
        cluster: Cluster,
        planned: Planned,
        query: Query,
    ) -> tuple[int, Standing]:
        self._screen.line("Act 3. The whole job is killed in the middle and started again.")
        time.sleep(_MIDDLE)
        processes = job.kill()
        at_ns = time.monotonic_ns()
        standing = Standing.of(query, cluster.cluster_id, list(planned))
        self._screen.line(f"  {kill_line(processes, standing, self._records)}")
        started = time.monotonic()
        patient = replace(
            query, handler_timeout=Query.handler_timeout, session_timeout=Query.session_timeout
        )
        again = self._start(stack, folder, "job-again", (patient,), load=False)
        again.go(self._address)
        events = again.events()
        self._screen.status("starting Spark again", force=True)
        self._await(events, "started")
        restarted = time.monotonic()
        progress = self._follow(events, 0, before=standing.done)
        drained = time.monotonic()
        again.kill()  # It has closed its books; what is left of it would only slow ours down.
        self._screen.line(
            f"  Up again after {restarted - started:.1f} s, it went on from the commit store, the "
            f"gaps first, and did the other {progress['totals']['done']:,} flights in "
            f"{drained - restarted:.1f} s."
        )
        return at_ns, standing

    def _fourth_act(
        self,
        stack: ExitStack,
        cluster: Cluster,
        planned: Planned,
        queries: tuple[Query, Query],
        killed: tuple[int, Standing],
        seconds: float,
    ) -> Outcome:
        self._screen.line(
            "Act 4. The books, from what each handler call wrote itself, from the tables and from "
            "Kafka."
        )
        self._screen.status("checking", force=True)
        calm, stormy = queries
        books = make_up(stormy, planned, cluster, killed)
        for line in books_table(books):
            self._screen.line(line)
        first = make_up(calm, planned, self._cluster(stack, calm))
        complaints = [f"group {calm.group}: {text}" for text in first.complaints]
        complaints += [f"group {stormy.group}: {text}" for text in books.complaints]
        v = first.verdict
        self._screen.line(
            f"  The run of act 1: {v.done:,} of {v.produced:,} done, {first.lost} lost, "
            f"{v.order_breaks.count} order breaks, {v.repeated.count} repeated."
        )
        self._screen.line(
            "  The books do not balance."
            if complaints
            else "  The books balance: nothing lost, "
            "nothing out of order, repeated only what was in flight."
        )
        return Outcome(books, seconds, tuple(complaints))

    def _follow(
        self,
        events: Iterator[dict[str, Any]],
        run: int,
        *,
        holdups: Holdups | None = None,
        until: int | None = None,
        before: int = 0,
    ) -> dict[str, Any]:
        """Show a query's progress to its end, or until so many records are done.

        Returns:
            The last progress event.
        """
        rate = Rate()
        last: dict[str, Any] = {}
        for event in events:
            if event["event"] == "ended" and event["run"] == run:
                if until is not None:
                    raise DemoFailed("it was through before it could be killed")
                return last
            if event["event"] != "progress":
                continue
            last = event["progress"]
            done = last["totals"]["done"]
            if holdups is not None:
                holdups.look(last["partitions"])
            self._screen.status(working(before + done, self._records, rate.at(done), last["slots"]))
            seen = holdups is None or holdups.lines() or done > self._records * _TOO_FAR
            if until is not None and done >= until and seen:
                return last
        raise DemoFailed("it ended in the middle")


def _delete(servers: str, topic: str, groups: list[str]) -> None:
    """Take out of another cluster what the demo put in."""
    from kafka.admin import KafkaAdminClient, MemberToRemove

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        if topic in admin.list_topics():
            admin.delete_topics([topic])
        until = time.monotonic() + _GROUP_PATIENCE
        while groups and time.monotonic() < until:
            for name, group in admin.describe_groups(groups).items():
                # A member that was killed is in its group until its session ends.
                left = [MemberToRemove(member["member_id"]) for member in group["members"]]
                admin.remove_group_members(name, left)
            answers = admin.delete_groups(groups)
            groups = [group for group, answer in answers.items() if "NonEmpty" in str(answer)]
            time.sleep(0.5 if groups else 0.0)
    finally:
        admin.close()


def _named(offsets: dict[tuple[str, int], int]) -> dict[str, int]:
    return {
        f"{topic}-{partition}": offset for (topic, partition), offset in sorted(offsets.items())
    }

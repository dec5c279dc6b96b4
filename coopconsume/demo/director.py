"""The demo's four acts: sets the stage, starts and kills the job, and shows what happens."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.demo.books import Books, Standing, make_up
from coopconsume.demo.child import JobProcess
from coopconsume.demo.errors import DemoFailed
from coopconsume.demo.flights import FLIGHTS, tail_numbers
from coopconsume.demo.job import Query, Settings
from coopconsume.demo.stage import delete_from, open_cluster
from coopconsume.demo.story import (
    Holdups,
    books_table,
    kill_line,
    slots_table,
    slow_aircraft,
    working,
)
from coopconsume.demo.topic import planned_records
from coopconsume.monitoring.screen import Rate, bar
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.demo.books import Planned
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.monitoring.screen import Screen

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
_KILL_AT = 0.8
_MIDDLE = 0.7  # seconds after a commit, so that handlers are at work again
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
        self._mark = "" if servers is None else f"-{secrets.token_hex(4)}"
        self._topic = f"{TOPIC}{self._mark}"

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
        for name in ("calm", "stormy", "scratch"):
            (folder / name).mkdir()
        if self._servers is not None:
            self._use_cluster(stack)
        job = self._start(stack, folder, "job")
        if self._servers is None:
            kept: dict[str, Any] = {"data_dir": folder / "kafka"} if self._keep else {}
            self._address = stack.enter_context(LocalKafka(**kept)).bootstrap_servers
        tails = tail_numbers(self._records)
        planned = planned_records(tails, self._topic, partitions=PARTITIONS)
        calm, stormy = self._queries(folder, planned)
        job.go(self._settings(calm, stormy, load=True))
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
        killed = self._kill(job, cluster, planned, stormy)
        # The books of the first run are made up while Spark starts again.
        clerk = stack.enter_context(ThreadPoolExecutor(1))
        first = clerk.submit(make_up, calm, planned, self._cluster(stack, calm))
        self._start_again(stack, folder, stormy, done=killed[1].done)
        seconds = time.monotonic() - started
        self._screen.status("checking", force=True)
        return self._fourth_act(make_up(stormy, planned, cluster, killed), first.result(), seconds)

    # -- the stage

    def _use_cluster(self, stack: ExitStack) -> None:
        """See that a cluster is there before anything is started that would wait for it in vain."""
        groups = [f"{name}{self._mark}" for name in ("calm", "stormy")]
        open_cluster(stack, self._address, groups[0], "unused")
        if not self._keep:
            # Undone last: groups with members in them cannot be deleted.
            stack.callback(delete_from, self._address, self._topic, groups)

    def _queries(self, folder: Path, planned: Planned) -> tuple[Query, Query]:
        calm = Query(
            f"calm{self._mark}",
            str(folder / "calm"),
            window=max(2 * _SMALL_WINDOW, self._records // 3),
            batch_time=30.0,
        )
        stormy = Query(
            f"stormy{self._mark}",
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

    def _start(self, stack: ExitStack, folder: Path, name: str) -> JobProcess:
        job = JobProcess(SLOTS, folder / "scratch", folder / f"{name}.log")
        stack.callback(job.kill)
        return job

    def _settings(self, *queries: Query, load: bool) -> Settings:
        return Settings(
            servers=self._address,
            topic=self._topic,
            partitions=PARTITIONS,
            slots=SLOTS,
            records=self._records,
            load=load,
            queries=queries,
        )

    def _cluster(self, stack: ExitStack, query: Query) -> Cluster:
        return open_cluster(stack, self._address, query.group, query.commits)

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

    def _kill(
        self, job: JobProcess, cluster: Cluster, planned: Planned, query: Query
    ) -> tuple[int, Standing]:
        self._screen.line("Act 3. The whole job is killed in the middle and started again.")
        time.sleep(_MIDDLE)
        processes = job.kill()
        at_ns = time.monotonic_ns()
        standing = Standing.of(query, cluster.cluster_id, list(planned))
        self._screen.line(f"  {kill_line(processes, standing, self._records)}")
        return at_ns, standing

    def _start_again(self, stack: ExitStack, folder: Path, query: Query, *, done: int) -> None:
        started = time.monotonic()
        patient = replace(
            query, handler_timeout=Query.handler_timeout, session_timeout=Query.session_timeout
        )
        again = self._start(stack, folder, "job-again")
        again.go(self._settings(patient, load=False))
        events = again.events()
        self._screen.status("starting Spark again", force=True)
        self._await(events, "started")
        restarted = time.monotonic()
        progress = self._follow(events, 0, before=done)
        drained = time.monotonic()
        again.kill()  # It has closed its books; what is left of it would only slow ours down.
        self._screen.line(
            f"  Up again after {restarted - started:.1f} s, it went on from the commit store, the "
            f"gaps first, and did the other {progress['totals']['done']:,} flights in "
            f"{drained - restarted:.1f} s."
        )

    def _fourth_act(self, books: Books, first: Books, seconds: float) -> Outcome:
        self._screen.line(
            "Act 4. The books, from what each handler call wrote itself, from the tables and from "
            "Kafka."
        )
        for line in books_table(books):
            self._screen.line(line)
        complaints = [f"act 1: {text}" for text in first.complaints]
        complaints += [f"acts 2 and 3: {text}" for text in books.complaints]
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


def _named(offsets: dict[tuple[str, int], int]) -> dict[str, int]:
    return {
        f"{topic}-{partition}": offset for (topic, partition), offset in sorted(offsets.items())
    }

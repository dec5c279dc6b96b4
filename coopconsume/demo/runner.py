"""Runs the four steps of the demo: starts the job, kills it, restarts it and checks the results."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coopconsume.demo.commit_snapshot import CommitSnapshot
from coopconsume.demo.flights import FLIGHTS, tail_numbers
from coopconsume.demo.folder import kept_folder, run_folder
from coopconsume.demo.job import JobSettings, Query
from coopconsume.demo.job_process import DemoFailed, JobProcess
from coopconsume.demo.report import RunReport, build_report
from coopconsume.demo.text import (
    BlockerLines,
    kill_line,
    lost_slot_lines,
    progress_line,
    report_lines,
    slots_table,
    slow_aircraft,
)
from coopconsume.demo.topic import planned_records
from coopconsume.errors.base import DeclaredError
from coopconsume.kafka.cluster import Cluster
from coopconsume.monitoring.screen import Rate, bar
from coopconsume.options import Options
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coopconsume.demo.report import Planned
    from coopconsume.monitoring.screen import Screen

TOPIC = "flights"
PARTITIONS = 3
SLOTS = 8
LEAST = 2_000
"""The minimum number of records; a run with fewer ends before the failures show."""

_POISON = 30  # approximate number of records that fail twice
_FAIL_FOR_GOOD = 6  # approximate number of records that fail on every attempt
_SLOW_LEGS = (7, 9)
_SMALL_WINDOW = 30_000  # smaller batches would spend most of their time on fixed costs
_SLOW_SECONDS = 0.5
_KILL_AT = 0.8
_KILL_DELAY = 0.7  # seconds after a commit, so that handlers run again
_GROUP_PATIENCE = 60.0
_TOO_FAR = 0.95  # the done fraction at which the kill no longer waits for a blocker to show


@dataclass(frozen=True)
class Outcome:
    """The result of the demo.

    Attributes:
        report: The report of the run that was killed and restarted.
        seconds: The duration of that run, the kill and the restart included.
        problems: The failed checks of both runs; empty if all checks pass.
    """

    report: RunReport
    seconds: float
    problems: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        """Returns the figures of the run for JSON."""
        v = self.report.verdict
        return {
            "produced": v.produced,
            "done": v.done,
            "pending": v.pending,
            "dead_lettered": v.dead_lettered,
            "lost": self.report.lost,
            "order_breaks": v.order_breaks.count,
            "repeated": v.repeated.count,
            "in_flight_at_kill": sum(v.in_flight_at_kill),
            "repeated_by_lost_slots": sum(repeated for _, repeated in self.report.lost_slots),
            "seconds": round(self.seconds, 1),
            "records_per_second": round(v.produced / self.seconds),
            "stable_offsets": _named(self.report.snapshot.stable),
            "log_end_offsets": _named(self.report.ends),
        }


class DemoCheckFailed(DeclaredError):
    """A check of the demo failed.

    Attributes:
        problems: The failed checks.
    """

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"checks of the demo failed: {'; '.join(self.problems)} "
            "(use coopconsume demo --keep to keep the tables and the history)"
        )


class Demo:
    """One run of the demo.

    Args:
        screen: The screen to write to.
        records: The number of flights, `LEAST` to `FLIGHTS`.
        servers: The bootstrap servers of another cluster; None for an embedded broker.
        keep: Whether to keep the folder with tables, histories and logs, and the topic in another
            cluster.

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

    def run(self) -> Outcome:
        """Runs the four steps and cleans up.

        Raises:
            DemoFailed: The job failed on its own.
            CoopConsumeError: Java, the broker, the jars or the data are missing.
        """
        find_java(needed_by="Spark 4", newest=21)
        with ExitStack() as stack:
            if not self._keep:
                return self._run(stack, stack.enter_context(run_folder()))
            folder = kept_folder()
            stack.callback(lambda: self._screen.line(f"Kept: {folder}"))
            return self._run(stack, folder)

    def _run(self, stack: ExitStack, folder: Path) -> Outcome:
        began = time.monotonic()
        self._screen.status("starting Kafka and Spark", force=True)
        for name in ("normal", "failing", "scratch"):
            (folder / name).mkdir()
        if self._servers is not None:
            self._use_cluster(stack)
        job = self._start(stack, folder, "job")
        if self._servers is None:
            kept: dict[str, Any] = {"data_dir": folder / "kafka"} if self._keep else {}
            self._address = stack.enter_context(LocalKafka(**kept)).bootstrap_servers
        tails = tail_numbers(self._records)
        planned = planned_records(tails, self._topic, partitions=PARTITIONS)
        normal, failing = self._queries(folder, planned)
        job.configure(self._settings(normal, failing, load=True))
        events = job.events()
        self._await(events, "started")
        self._screen.line(
            f"{self._records:,} flights of 2013, with their tail numbers as keys, are in the "
            f"{PARTITIONS} partitions of topic {self._topic} on {self._address} "
            f"({time.monotonic() - began:.0f} s to start and load)."
        )
        self._run_all_flights(events, normal)
        started = self._await(events, "started")
        self._run_with_failures(events, planned, failing)
        cluster = self._cluster(stack, failing)
        killed = self._kill(job, cluster, planned, failing)
        # The report of the first run is built while Spark starts again.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        first = pool.submit(build_report, normal, planned, self._cluster(stack, normal))
        self._start_again(stack, folder, failing, done=killed[1].done)
        seconds = time.monotonic() - started
        self._screen.status("checking", force=True)
        return self._check(build_report(failing, planned, cluster, killed), first.result(), seconds)

    # -- set-up

    def _use_cluster(self, stack: ExitStack) -> None:
        """Checks that the cluster is available before other processes start."""
        groups = [f"{name}{self._mark}" for name in ("normal", "failing")]
        _open_cluster(stack, self._address, groups[0], "unused")
        if not self._keep:
            # This callback runs last, as groups with members cannot be deleted.
            stack.callback(_delete_from, self._address, self._topic, groups)

    def _queries(self, folder: Path, planned: Planned) -> tuple[Query, Query]:
        normal = Query(
            f"normal{self._mark}",
            str(folder / "normal"),
            window=max(2 * _SMALL_WINDOW, self._records // 3),
            batch_time=30.0,
        )
        failing = Query(
            f"failing{self._mark}",
            str(folder / "failing"),
            window=max(_SMALL_WINDOW, self._records // 4),
            batch_time=2.0,
            concurrency=2,
            poison_every=max(2, self._records // _POISON),
            always_fail_every=max(2, self._records // _FAIL_FOR_GOOD),
            slow_seconds=_SLOW_SECONDS,
            # The query is killed; short timeouts keep the wait for it short.
            handler_timeout=5.0,
            session_timeout=8.0,
        )
        handler = failing.handler()
        slow = slow_aircraft(
            planned,
            _SLOW_LEGS,
            lambda p, o: handler.always_fails(p, o) or handler.is_poison(p, o),
        )
        return normal, replace(failing, slow_tail=slow)

    def _start(self, stack: ExitStack, folder: Path, name: str) -> JobProcess:
        job = JobProcess(SLOTS, folder / "scratch", folder / f"{name}.log")
        stack.callback(job.kill)
        return job

    def _settings(self, *queries: Query, load: bool) -> JobSettings:
        return JobSettings(
            servers=self._address,
            topic=self._topic,
            partitions=PARTITIONS,
            slots=SLOTS,
            records=self._records,
            load=load,
            queries=queries,
        )

    def _cluster(self, stack: ExitStack, query: Query) -> Cluster:
        return _open_cluster(stack, self._address, query.group, query.path("commits"))

    def _await(self, events: Iterator[dict[str, Any]], wanted: str) -> float:
        """Shows the loading progress until an event comes; returns its time."""
        for event in events:
            if event["event"] == wanted:
                return time.monotonic()
            if event["event"] == "loading":
                done, of = event["records"], event["all"]
                self._screen.status(f"{bar(done, of)} {done:,} of {of:,} flights loaded")
        raise DemoFailed(f"it ended before {wanted!r}")

    # -- steps

    def _run_all_flights(self, events: Iterator[dict[str, Any]], query: Query) -> None:
        self._screen.line(
            f"Step 1. Process all flights with {SLOTS} slots: {PARTITIONS} partitions, each shared "
            "by all slots by key range, every aircraft in order."
        )
        started = time.monotonic()
        progress = self._follow(events, 0)
        took = time.monotonic() - started
        self._screen.line(
            f"  {self._records:,} flights in {took:.1f} s, {self._records / took:,.0f} a second; "
            f"group {query.group}, commits in one Delta table."
        )
        self._screen.line(f"  {slots_table(progress['slots'])}")

    def _run_with_failures(
        self, events: Iterator[dict[str, Any]], planned: Planned, query: Query
    ) -> None:
        slow = query.slow_tail or ""
        self._screen.line(
            f"Step 2. Process the same flights as group {query.group}, with failures: about "
            f"{_POISON} flights fail twice, about {_FAIL_FOR_GOOD} fail on every attempt, and each "
            f"flight of {slow} takes {_SLOW_SECONDS:g} s. Other keys are not delayed."
        )
        blockers = BlockerLines(planned, slow)
        self._follow(events, 1, blockers=blockers, until=int(self._records * _KILL_AT))
        for line in blockers.lines():
            self._screen.line(f"  {line}")

    def _kill(
        self, job: JobProcess, cluster: Cluster, planned: Planned, query: Query
    ) -> tuple[int, CommitSnapshot]:
        self._screen.line("Step 3. Kill the whole job while it runs, and restart it.")
        time.sleep(_KILL_DELAY)
        processes = job.kill()
        at_ns = time.monotonic_ns()
        snapshot = CommitSnapshot.of(
            query.path("commits"), query.group, cluster.cluster_id, list(planned)
        )
        self._screen.line(f"  {kill_line(processes, snapshot, self._records)}")
        return at_ns, snapshot

    def _start_again(self, stack: ExitStack, folder: Path, query: Query, *, done: int) -> None:
        started = time.monotonic()
        restarted_query = replace(
            query, handler_timeout=Query.handler_timeout, session_timeout=Query.session_timeout
        )
        again = self._start(stack, folder, "job-again")
        again.configure(self._settings(restarted_query, load=False))
        events = again.events()
        self._screen.status("starting Spark again", force=True)
        self._await(events, "started")
        restarted = time.monotonic()
        progress = self._follow(events, 0, before=done)
        drained = time.monotonic()
        again.kill()  # Its tables are complete; its shutdown would only slow down the checks.
        # Without an event: all flights were done before the kill.
        others = progress["totals"]["done"] if progress else 0
        self._screen.line(
            f"  Restarted after {restarted - started:.1f} s, it continued from the commit store, "
            f"gaps first, and processed the other {others:,} flights in "
            f"{drained - restarted:.1f} s."
        )

    def _check(self, report: RunReport, first: RunReport, seconds: float) -> Outcome:
        self._screen.line(
            "Step 4. Check the results against the call history of the handlers, the tables and "
            "Kafka."
        )
        for line in report_lines(report):
            self._screen.line(line)
        problems = [f"step 1: {text}" for text in first.problems]
        problems += [f"steps 2 and 3: {text}" for text in report.problems]
        v = first.verdict
        self._screen.line(
            f"  The run of step 1: {v.done:,} of {v.produced:,} done, {first.lost} lost, "
            f"{v.order_breaks.count} order breaks, {v.repeated.count} repeated."
        )
        for line in lost_slot_lines(first):
            self._screen.line(line)
        self._screen.line(
            "  Some checks failed."
            if problems
            else "  All checks passed: no record lost, none out of order, only records in flight "
            "repeated."
        )
        return Outcome(report, seconds, tuple(problems))

    def _follow(
        self,
        events: Iterator[dict[str, Any]],
        run: int,
        *,
        blockers: BlockerLines | None = None,
        until: int | None = None,
        before: int = 0,
    ) -> dict[str, Any]:
        """Shows the progress of a query to its end, or until a number of records is done.

        Returns:
            The last progress event.
        """
        rate = Rate()
        last: dict[str, Any] = {}
        for event in events:
            if event["event"] == "ended" and event["run"] == run:
                if until is not None:
                    raise DemoFailed("it ended before it could be killed")
                return last
            if event["event"] != "progress":
                continue
            last = event["progress"]
            done = last["totals"]["done"]
            if blockers is not None:
                blockers.look(last["partitions"])
            self._screen.status(progress_line(last, before + done, self._records, rate.at(done)))
            seen = blockers is None or blockers.lines() or done > self._records * _TOO_FAR
            if until is not None and done >= until and seen:
                return last
        raise DemoFailed("it ended before its query")


def _open_cluster(stack: ExitStack, servers: str, group: str, commits: str) -> Cluster:
    """Connects to the cluster as a group; the stack closes the connection.

    Raises:
        BrokerUnreachable: No broker answers.
    """
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.group.id": group,
        "commitTable": commits,
    }
    cluster = Cluster(Options.parse(options))
    stack.callback(cluster.close)
    return cluster


def _delete_from(servers: str, topic: str, groups: list[str]) -> None:
    """Deletes the demo's topic and groups from a cluster."""
    from kafka.admin import KafkaAdminClient, MemberToRemove

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        if topic in admin.list_topics():
            admin.delete_topics([topic])
        until = time.monotonic() + _GROUP_PATIENCE
        while groups and time.monotonic() < until:
            for name, group in admin.describe_groups(groups).items():
                # A killed member stays in its group until its session times out.
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

"""Runs the four steps of the demo: starts the job, kills it, restarts it and checks the results."""

from __future__ import annotations

import secrets
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coopconsume.demo.commit_snapshot import CommitSnapshot
from coopconsume.demo.flights import FLIGHTS, LEAST, SHOWN, flights
from coopconsume.demo.folder import kept_folder, run_folder
from coopconsume.demo.handlers import FlightFaults
from coopconsume.demo.job import SLOTS, JobProcess, Query
from coopconsume.demo.lost_slots import LostSlot
from coopconsume.demo.report import build_report
from coopconsume.demo.text import (
    BlockerLines,
    kill_line,
    lost_slot_lines,
    progress_line,
    report_lines,
    slots_table,
    slow_aircraft,
    summary_lines,
)
from coopconsume.demo.topic import load_topic, planned_records
from coopconsume.errors.base import DeclaredError
from coopconsume.kafka.cluster import Cluster
from coopconsume.monitoring.screen import Rate
from coopconsume.options import Options
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from pathlib import Path

    from coopconsume.demo.report import Planned, RunReport
    from coopconsume.monitoring.screen import Screen

TOPIC = "flights"
PARTITIONS = 3

_POISON = 30  # approximate number of records that fail twice
_FAIL_FOR_GOOD = 5  # approximate number of records that fail on every attempt
_SLOW_LEGS = (7, 9)
_SLOW_SECONDS = 0.25
_HANDLER_SECONDS = 0.002  # with failures; without it all flights were done before the kill
_KILL_AT = 0.5
_GROUP_PATIENCE = 60.0
_TOO_FAR = 0.9  # the done fraction at which the kill no longer waits for a blocker to show


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
            "seconds_from_kill_to_next_call": round(self.report.next_call, 1),
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
        records: int = SHOWN,
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
        self._stable: dict[tuple[str, int], int] = {}
        self._lost_slots: list[LostSlot] = []

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
        planned = self._load(stack, folder)
        normal, failing = self._queries(folder, planned)
        all_done = self._process_all(stack, normal)
        first_lost, self._lost_slots = self._lost_slots, []
        started = time.monotonic()
        # The first job ends its Spark while that of the next one starts.
        job = self._start_with_failures(stack, failing)
        self._follow_failures(job, planned, failing)
        cluster = self._cluster(stack, failing)
        killed = self._kill(job, cluster, planned, failing)
        restarted = time.monotonic()
        again = self._start(stack, failing, "job-again.log")
        deque(all_done.events(), 0)  # An exit code other than 0 fails the demo.
        # The report of the first run is built while the job starts again.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        first = pool.submit(
            build_report, normal, planned, self._cluster(stack, normal), lost_slots=first_lost
        )
        self._finish(again, restarted, done=killed[1].done)
        seconds = time.monotonic() - started
        self._screen.status("checking", force=True)
        report = build_report(failing, planned, cluster, killed, self._lost_slots)
        return self._check(report, first.result(), seconds)

    # -- set-up

    def _load(self, stack: ExitStack, folder: Path) -> Planned:
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:  # The data are read while the broker starts.
            reading = pool.submit(lambda: list(flights(self._records)))
            if self._servers is not None:
                self._use_cluster(stack)
            else:
                self._start_broker(stack, folder)
            self._screen.status("loading the flights", force=True)
            pairs = reading.result()
        settings = {"kafka.bootstrap.servers": self._address}
        options = Options.parse(settings, group=False, table=False)
        load_topic(options, self._topic, pairs, partitions=PARTITIONS)
        self._screen.line(
            f"{self._records:,} flights from New York in 2013, with their tail numbers as keys, "
            f"are in the {PARTITIONS} partitions of topic {self._topic} on {self._address} "
            f"({time.monotonic() - began:.0f} s to start and load)."
        )
        return planned_records((key for key, _ in pairs), self._topic, partitions=PARTITIONS)

    def _start_broker(self, stack: ExitStack, folder: Path) -> None:
        self._screen.status("starting Kafka", force=True)
        kept: dict[str, Any] = {"data_dir": folder / "kafka"} if self._keep else {}
        broker = stack.enter_context(LocalKafka(**kept))
        # Nobody uses it any more: an orderly stop would take seconds.
        stack.callback(broker.kill)
        self._address = broker.bootstrap_servers

    def _use_cluster(self, stack: ExitStack) -> None:
        """Checks that the cluster is available before other processes start."""
        groups = [f"{name}{self._mark}" for name in ("normal", "failing")]
        _open_cluster(stack, self._address, groups[0], "unused")
        if not self._keep:
            # This callback runs last, as groups with members cannot be deleted.
            stack.callback(_delete_from, self._address, self._topic, groups)

    def _queries(self, folder: Path, planned: Planned) -> tuple[Query, Query]:
        normal = Query(f"normal{self._mark}", str(folder / "normal"))
        faults = FlightFaults(
            poison_every=max(2, self._records // _POISON),
            always_fail_every=max(2, self._records // _FAIL_FOR_GOOD),
            slow_seconds=_SLOW_SECONDS,
            seconds=_HANDLER_SECONDS,
        )
        slow = slow_aircraft(
            planned,
            _SLOW_LEGS,
            lambda p, o: faults.always_fails(p, o) or faults.is_poison(p, o),
        )
        faults = replace(faults, slow_tail=slow)
        return normal, Query(f"failing{self._mark}", str(folder / "failing"), faults)

    def _start(self, stack: ExitStack, query: Query, log_name: str = "job.log") -> JobProcess:
        self._screen.status("starting Spark", force=True)
        job = JobProcess(query, self._address, self._topic, log_name)
        stack.callback(job.kill)
        return job

    def _cluster(self, stack: ExitStack, query: Query) -> Cluster:
        return _open_cluster(stack, self._address, query.group, query.path("commits"))

    # -- steps

    def _process_all(self, stack: ExitStack, query: Query) -> JobProcess:
        self._screen.line(
            f"Step 1. Process all flights with {SLOTS} slots: {PARTITIONS} partitions, each shared "
            "by all slots by key range, every aircraft in order."
        )
        started = time.monotonic()
        job = self._start(stack, query)
        progress = self._follow(job, until=self._records)
        self._screen.line(
            f"  coopconsume run processed {self._records:,} flights within "
            f"{time.monotonic() - started:.1f} s of its start; group {query.group}, commits in one "
            "Delta table."
        )
        self._screen.line(f"  {slots_table(progress['slots'])}")
        return job

    def _start_with_failures(self, stack: ExitStack, query: Query) -> JobProcess:
        slow = query.faults.slow_tail or ""
        self._screen.line(
            f"Step 2. Process the same flights as group {query.group}, with failures: about "
            f"{_POISON} flights fail twice, about {_FAIL_FOR_GOOD} fail on every attempt, and each "
            f"flight of {slow} takes {_SLOW_SECONDS:g} s. Other keys are not delayed."
        )
        return self._start(stack, query)

    def _follow_failures(self, job: JobProcess, planned: Planned, query: Query) -> None:
        blockers = BlockerLines(planned, query.faults.slow_tail or "")
        self._follow(job, blockers=blockers, until=int(self._records * _KILL_AT))
        for line in blockers.lines():
            self._screen.line(f"  {line}")

    def _kill(
        self, job: JobProcess, cluster: Cluster, planned: Planned, query: Query
    ) -> tuple[int, CommitSnapshot]:
        self._screen.line("Step 3. Kill the whole job while it runs, and start it again.")
        processes = job.kill()
        at_ns = time.monotonic_ns()
        snapshot = CommitSnapshot.of(
            query.path("commits"), query.group, cluster.cluster_id, list(planned)
        )
        self._screen.line(f"  {kill_line(processes, snapshot, self._records)}")
        return at_ns, snapshot

    def _finish(self, job: JobProcess, started: float, *, done: int) -> None:
        progress = self._follow(job, before=done)
        # Without an event: all flights were done before the kill.
        others = progress["totals"]["done"] if progress else 0
        self._screen.line(
            f"  The same command, started again, continued from the commit table, gaps first, and "
            f"processed the other {others:,} flights; it ended after "
            f"{time.monotonic() - started:.1f} s."
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
        for line in summary_lines(report, passed=not problems):
            self._screen.line(line)
        return Outcome(report, seconds, tuple(problems))

    def _follow(
        self,
        job: JobProcess,
        *,
        blockers: BlockerLines | None = None,
        until: int | None = None,
        before: int = 0,
    ) -> dict[str, Any]:
        """Shows the progress of a job to its end, or until a number of records is done.

        Returns:
            The last progress event.
        """
        rate = Rate()
        last: dict[str, Any] = {}
        for event in job.events():
            context = event.get("context", {})
            if "lostSlot" in context:
                committed = {tp: [(0, stable - 1)] for tp, stable in self._stable.items() if stable}
                self._lost_slots.append(LostSlot.of(event, committed))
            if "progress" not in context:
                continue
            last = context["progress"]
            done = last["totals"]["done"]
            for at in last["partitions"]:
                self._stable[at["topic"], at["partition"]] = at["stableOffset"]
            if blockers is not None:
                blockers.look(last["partitions"])
            self._screen.status(progress_line(last, before + done, self._records, rate.at(done)))
            seen = blockers is None or blockers.lines() or done > self._records * _TOO_FAR
            if until is not None and done >= until and seen:
                return last
        if until is not None:
            job.fail(f"it ended before {until:,} flights were done")
        return last


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

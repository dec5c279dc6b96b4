"""Members of a group as processes of their own, on one topic and one commit table."""

from __future__ import annotations

import queue
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.admin import KafkaAdminClient, MemberToRemove

from assignors import KeyRange, coverage, wire
from commits import CommitStore
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from tests.event_process import ROOT, EventProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.testing.local.broker import LocalKafka

#: Seconds that a test waits for whatever it waits for.
PATIENCE = 100.0
#: Seconds of the session of members that live: none is missed for want of a processor.
SESSION = 60.0
#: Options of a member that a test kills or freezes: the others notice soon.
MORTAL = {"kafka.session.timeout.ms": 6_000}
HANDLER_TIMEOUT = 30.0
LIFE = 31.0 + 2.0  # batchTime and handlerTimeout below, and the lease


class Process(EventProcess):
    """A member in a process of its own."""

    def __init__(self, config: dict[str, Any], root: Path) -> None:
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        super().__init__("tests.broker.member_process", config, root)

    def _reported(self, event: dict[str, Any]) -> None:
        self._queue.put(event)

    def wait_for(self, event: str, timeout: float = PATIENCE, **facts: Any) -> dict[str, Any]:
        """The next event of a kind; earlier ones of other kinds are passed over."""
        return self._next(
            lambda found: found["event"] == event and facts.items() <= found.items(),
            f"{event} {facts}", timeout,
        )  # fmt: skip

    def wake(self) -> None:
        """Let it go on after it has stopped itself, which it does after it has said so."""
        status, deadline = Path(f"/proc/{self.popen.pid}/status"), time.monotonic() + PATIENCE
        while "State:\tT" not in status.read_text():
            assert time.monotonic() < deadline, f"it does not stop; there were {self.events}"
            time.sleep(0.01)
        self.popen.send_signal(signal.SIGCONT)

    def ask(self, command: str, *answers: str) -> dict[str, Any]:
        """Give it a command; returns the next event that is of one of some kinds."""
        self.say(command)
        return self._next(lambda found: found["event"] in answers, f"answer of {answers}")

    def _next(
        self, fits: Callable[[dict[str, Any]], bool], what: str, timeout: float = PATIENCE
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {what}; there were {self.events}") from None
            self.events.append(found)
            if fits(found):
                return found

    def wait_for_all(self, *events: str) -> list[dict[str, Any]]:
        """The next event of each kind, whichever comes first."""
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + PATIENCE
        while found.keys() != set(events):
            try:
                event = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not all of {events}; there were {self.events}") from None
            self.events.append(event)
            if event["event"] in events:
                found.setdefault(event["event"], event)
        return [found[kind] for kind in events]

    def count(self, event: str) -> int:
        """How many events of a kind there were until now."""
        while not self._queue.empty():
            self.events.append(self._queue.get())
        return sum(found["event"] == event for found in self.events)

    def say(self, command: str) -> None:
        """Give it a command."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{command}\n")
        self.popen.stdin.flush()

    def leave(self) -> None:
        """Let it leave, and wait for its end."""
        self.say("leave")
        self.popen.wait(PATIENCE)

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.popen.kill()
        self.popen.wait(PATIENCE)


class GroupHarness:
    """One topic, one commit table, and the members started on them."""

    def __init__(self, kafka: LocalKafka, topic: str, folder: Path) -> None:
        self.kafka = kafka
        self.topic = topic
        self.folder = folder
        self.options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": f"{topic}-group",
            "kafka.session.timeout.ms": int(1000 * SESSION),
            "kafka.heartbeat.interval.ms": 300,
            "subscribe": topic,
            "commitTable": str(folder / "commits"),
            "batchTime": 1,
            "handlerTimeout": 30,
            "drainTimeout": 2,
        }
        self.group = f"{topic}-group"
        cluster = Cluster(Options.parse(self.options))
        self.store = CommitStore.open(folder / "commits", cluster=cluster.cluster_id)
        cluster.close()
        self.processes: list[Process] = []

    def start(
        self,
        slots: int = 1,
        *,
        freezes_as_leader: bool = False,
        freezes_as_owner: bool = False,
        protocol: int = wire.VERSION,
        lease: float | None = None,
        keeps: bool = False,
        waits: bool = False,
        host: str = "",
        root: Path = ROOT,
        **options: Any,
    ) -> Process:
        """Start a member of some sources, on a host of its own or on one with a name."""
        return self._start(
            options, slots=slots, freezes_as_leader=freezes_as_leader,
            freezes_as_owner=freezes_as_owner, protocol=protocol, lease=lease, keeps=keeps,
            waits=waits, host=host, root=root,
        )  # fmt: skip

    def claim(self, *ranges: tuple[int, int, int], takeover: bool, **options: Any) -> Process:
        """Start a process that assigns itself ranges: partition, first and last key hash."""
        return self._start(options, assign=ranges, takeover=takeover)

    def _start(
        self, options: dict[str, Any], *, host: str = "", root: Path = ROOT, **more: Any
    ) -> Process:
        # What a host knows of its dead is in its folder for temporary files.
        folder = self.folder / (host or f"host-{len(self.processes)}")
        folder.mkdir(exist_ok=True)
        config = {"options": self.options | options, "temporary": str(folder), **more}
        self.processes.append(Process(config, root))
        return self.processes[-1]

    def forget_members(self, *besides: Process) -> None:
        """Have the broker take members for gone, as it does when their sessions are over.

        Args:
            besides: Members that stay; they have begun.
        """
        begun = (event for one in besides for event in one.events if event["event"] == "begin")
        stay = {event["member"] for event in begun}
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
        members = admin.describe_groups([self.group])[self.group]["members"]
        gone = [member["member_id"] for member in members if member["member_id"] not in stay]
        assert len(members) - len(gone) == len(besides), f"{stay} of {members}"
        admin.remove_group_members(self.group, [MemberToRemove(one) for one in gone])
        admin.close()

    def recreate_topic(self) -> None:
        """Delete the topic and create it again, empty."""
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
        admin.delete_topics([self.topic])
        deadline = time.monotonic() + PATIENCE
        while self.topic in admin.list_topics():
            assert time.monotonic() < deadline, "the topic is still there"
            time.sleep(0.05)
        admin.close()
        self.kafka.create_topic(self.topic)

    def settled(self, *members: Process) -> int:
        """The epoch under which all of some members, and they alone, have begun.

        Epochs under which others are still there, or not all of them yet, are passed over.
        """
        deadline = time.monotonic() + PATIENCE
        latest = {member: member.wait_for("begin") for member in members}
        while True:
            row = self.store.assignment(self.group)
            assert row is not None
            now = row.epoch
            behind = [m for m in members if latest[m]["epoch"] < now.number]
            live = set(row.members) - set(row.fenced)
            if not behind and live == {begin["member"] for begin in latest.values()}:
                break
            for member in behind or members:
                latest[member] = member.wait_for("begin", max(1, deadline - time.monotonic()))
        ranges: dict[tuple[str, int], list[KeyRange]] = {}
        for begin in latest.values():
            for topic, partition, first, last in begin["shares"]:
                ranges.setdefault((topic, partition), []).append(KeyRange(first, last))
        for parts in ranges.values():
            found = coverage(parts)
            assert not found.holes
            assert not found.overlaps
        return now.number

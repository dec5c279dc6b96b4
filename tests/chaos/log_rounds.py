"""Rounds of disturbances for fenced writers on one log, judged by the independent checker."""

from __future__ import annotations

import itertools
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer, TopicPartition

from coopconsume.errors import LogUnavailable
from coopconsume.fenced import audit
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.kafka_engine import Engine
from tests.chaos.frame import wait_until
from tests.event_process import EventProcess
from tests.fenced_checker import Outcomes, batches, problems
from tests.missing_markers import end_hanging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.testing.local.broker import LocalKafka

_PATIENCE = 120.0
#: What the broker says when it omits a marker because the partition has no leader (KAFKA-20734).
_OMITTED = "Couldn't find leader endpoint for partitions"
#: Kinds of rounds that disturb one log.
LOG_KINDS = ("kill", "pause", "stall", "write", "retain", "recreate")
#: All kinds of rounds; the last ones need a broker without other users.
KINDS = (*LOG_KINDS, "freeze", "restart")


class Rounds:
    """Three writers that fight for one log.

    Args:
        kafka: The broker.
        topic: The topic, of one partition.
        visibility: The visibility of the writers.
        seed: Seed of all draws.
    """

    def __init__(self, kafka: LocalKafka, topic: str, visibility: str, seed: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._visibility = visibility
        self._luck = random.Random(seed)
        self._numbers = itertools.count(1)
        self._all: list[EventProcess] = []
        self._alive = [self._start() for _ in range(3)]
        self._foreign = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, retries=20)
        self._options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self._engine = Engine(FencedSettings.parse(self._options))
        self._blocked = 0
        #: How transactions were ended whose markers Kafka omitted: "commit" or "abort".
        self.ended: list[str] = []
        #: Committed records of each topic of this name, and the offset up to which they were read.
        self._logs: list[list[Any]] = [[]]
        self._read_to = 0

    def _start(self) -> EventProcess:
        number = next(self._numbers)
        config = {
            "servers": self._kafka.bootstrap_servers, "topic": self._topic, "seed": number,
            "visibility": self._visibility, "owner": f"writer-{number}",
        }  # fmt: skip
        self._all.append(EventProcess("tests.chaos.log_process", config))
        return self._all[-1]

    def count(self, event: str) -> int:
        """Returns how many events of a kind the writers have reported."""
        return sum(e["event"] == event for writer in self._all for e in list(writer.events))

    def wait_for(self, event: str, more: int) -> None:
        """Waits for more events of a kind."""
        target = self.count(event) + more

        def has_come() -> bool:
            blocked = self._reports_of("LogBlocked")
            if blocked > self._blocked:
                self._end_hanging()
                self._blocked = blocked
            return self.count(event) >= target

        wait_until(has_come, lambda: f"no {event}: {self._last()}")

    def _reports_of(self, error: str) -> int:
        return sum(e.get("error") == error for writer in self._all for e in list(writer.events))

    def _end_hanging(self) -> None:
        """Ends transactions whose markers Kafka omitted, as its log says; others stay open."""
        path = self._kafka.log_path
        omitted = 0 if path is None else path.read_text(errors="replace").count(_OMITTED)
        if omitted > len(self.ended):
            with suppress(LogUnavailable, EngineDoubt):  # The broker may still be on its way.
                self.ended += end_hanging(self._options, self._topic)

    def _last(self) -> list[Any]:
        return [writer.events[-3:] for writer in self._alive]

    def draw(self, rounds: int, kinds: Sequence[str]) -> list[str]:
        """Draws the kinds of some rounds."""
        return self._luck.choices(kinds, k=rounds)

    def play(self, kinds: Sequence[str], report: Callable[[str], object] = lambda _: None) -> None:
        """Plays a round of each kind, and ends all writers."""
        try:
            self.wait_for("acked", 3)
            if not self.count("fenced"):  # one of them may have been alone until now
                self.wait_for("fenced", 1)
            for number, kind in enumerate(kinds, 1):
                report(f"round {number}: {kind}")
                getattr(self, f"_{kind}")()
                self.wait_for("acked", 2)
            for writer in self._alive:
                writer.finish()
        finally:
            for writer in self._alive:
                writer.popen.kill()
        self._foreign.close(timeout=5)

    def _kill(self) -> None:
        self._replace(self._luck.choice(self._alive))

    def _replace(self, writer: EventProcess) -> None:
        writer.kill()
        self._alive[self._alive.index(writer)] = self._start()

    def _pause(self) -> None:
        writer = self._luck.choice(self._alive)
        writer.popen.send_signal(signal.SIGSTOP)
        time.sleep(self._luck.uniform(0.1, 1.0))
        writer.popen.send_signal(signal.SIGCONT)

    def _stall(self) -> None:
        """A writer stops in the middle of a batch; it dies or continues after others wrote."""
        writer = self._luck.choice(self._alive)
        wait_until(lambda: bool(writer.events), lambda: f"not started: {self._last()}")
        writer.popen.send_signal(signal.SIGUSR1)
        status = Path(f"/proc/{writer.popen.pid}/status")
        wait_until(
            lambda: "State:\tT" in status.read_text(), lambda: f"no stall: {writer.events[-9:]}"
        )
        self.wait_for("acked", 1)
        if self._luck.random() < 0.5:
            self._replace(writer)
        else:
            writer.popen.send_signal(signal.SIGCONT)

    def _write(self) -> None:
        for _ in range(self._luck.randint(1, 50)):
            self._foreign.send(self._topic, b"foreign", partition=0)
        self._foreign.flush(_PATIENCE)

    def _retain(self) -> None:
        """Retention removes records, at most all that are decided."""
        self._read_on(self._engine.ends(self._topic, 0).stable)
        below = self._luck.randint(self._engine.start(self._topic, 0), self._read_to)
        with self._engine.asking(self._topic) as admin:
            admin.delete_records({TopicPartition(self._topic, 0): below})

    def _recreate(self) -> None:
        """The topic is deleted and created again while the writers stand still."""
        for writer in self._alive:
            writer.popen.send_signal(signal.SIGSTOP)
        try:
            time.sleep(0.5)  # requests of the writers that are under way arrive
            self._read_on(self._decided())
            with self._engine.asking(self._topic) as admin:
                admin.delete_topics([self._topic])
            wait_until(lambda: self._engine.topic_id(self._topic) is None, lambda: "not deleted")
            self._kafka.create_topic(self._topic, 1)
        finally:
            for writer in self._alive:
                writer.popen.send_signal(signal.SIGCONT)
        self._engine.close()
        self._logs.append([])
        self._read_to = 0

    def _freeze(self) -> None:
        self._kafka.freeze()
        time.sleep(self._luck.uniform(0.1, 3.0))
        self._kafka.thaw()

    def _restart(self) -> None:
        if self._luck.random() < 0.5:
            self._kafka.kill()
        self._kafka.restart()
        self._engine.close()  # Its connections were to the process that has ended.

    def verdict(self) -> list[str]:
        """Returns what is wrong with the log; nothing if all is well."""
        outcomes = Outcomes()
        for event in (event for writer in self._all for event in writer.events):
            batch, kind = event.get("batch", ""), event["event"]
            if kind == "trying":
                outcomes.unknown.add(batch)
            elif kind == "acked":
                outcomes.acked[batch] = tuple(event["at"])
            elif kind == "refused":
                outcomes.refused.add(batch)
                if event["error"] == "LogCorrupt":
                    return [event["text"]]
        outcomes.unknown -= outcomes.acked.keys() | outcomes.refused
        self._read_on(self._decided())
        self._engine.close()
        found: list[str] = []
        missing = set(outcomes.acked)
        for rows in self._logs:
            there = batches(rows, []).keys()
            acked = {batch: place for batch, place in outcomes.acked.items() if batch in there}
            found += problems(rows, Outcomes(acked, outcomes.refused, outcomes.unknown))
            missing -= there
        found += [f"I4: {batch} was acknowledged and is not there" for batch in missing]
        audited = audit(self._options, self._topic)[1]
        return found if audited.ok else [*found, *map(str, audited.findings)]

    def _read_on(self, end: int) -> None:
        """Keeps the committed records up to an offset, before retention or deletion."""
        for rows in self._engine.read(self._topic, 0, self._read_to, end, _PATIENCE):
            self._logs[-1] += rows
        self._read_to = end

    def _decided(self) -> int:
        """The end of the log, after the transactions of writers that were killed timed out."""

        def is_decided() -> bool:
            ends = self._engine.ends(self._topic, 0)
            if ends.stable < ends.end:
                self._end_hanging()
            return ends.stable == ends.end

        wait_until(is_decided, lambda: "a transaction stays open")
        return self._engine.ends(self._topic, 0).stable

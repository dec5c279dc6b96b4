"""Rounds of disturbances for fenced writers on one log, judged by the independent checker."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer

from coopconsume.fenced import audit
from coopconsume.fenced.kafka_engine import KafkaPythonEngine
from coopconsume.fenced.settings import Settings
from tests.fenced_checker import Told, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.testing.local.broker import LocalKafka

ROOT = Path(__file__).parents[2]
_PATIENCE = 120.0


class Writer:
    """A writer in a process of its own, and what it told."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.log_process", json.dumps(config)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):
                self.events.append(json.loads(line))

    def end(self, *, kill: bool) -> None:
        """End it, at once or after its append."""
        if kill:
            self.popen.kill()
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(_PATIENCE)
        self._reader.join(_PATIENCE)


class Rounds:
    """Three writers that fight for one log.

    Args:
        kafka: The broker.
        topic: The topic.
        visibility: Of the writers.
        seed: Of the draws.
        whole_broker: Whether the broker is theirs alone, to be frozen and restarted.
    """

    def __init__(
        self, kafka: LocalKafka, topic: str, visibility: str, seed: int, *, whole_broker: bool
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._visibility = visibility
        self._luck = random.Random(seed)
        self._numbers = itertools.count(1)
        self._whole_broker = whole_broker
        self._all: list[Writer] = []
        self._alive = [self._start() for _ in range(3)]
        self._foreign = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, retries=20)

    def _start(self) -> Writer:
        number = next(self._numbers)
        config = {
            "servers": self._kafka.bootstrap_servers, "topic": self._topic, "seed": number,
            "visibility": self._visibility, "owner": f"writer-{number}",
        }  # fmt: skip
        self._all.append(Writer(config))
        return self._all[-1]

    def count(self, event: str) -> int:
        """How often something was told."""
        return sum(e["event"] == event for writer in self._all for e in list(writer.events))

    def wait_for(self, event: str, more: int) -> None:
        """Wait until something was told so many times more."""
        until, target = time.monotonic() + _PATIENCE, self.count(event) + more
        while self.count(event) < target:
            if time.monotonic() > until:
                last = [writer.events[-3:] for writer in self._alive]
                raise AssertionError(f"no {event} in {_PATIENCE:g} s; last reports: {last}")
            time.sleep(0.02)

    def play(self, rounds: int, report: Callable[[str], object] = lambda _: None) -> None:
        """Play some rounds, and end all writers."""
        try:
            self._play(rounds, report)
            for writer in self._alive:
                writer.end(kill=False)
        finally:
            for writer in self._alive:
                writer.popen.kill()
        self._foreign.close(timeout=5)

    def _play(self, rounds: int, report: Callable[[str], object]) -> None:
        self.wait_for("acked", 3)
        if not self.count("fenced"):  # one of them may have been alone until now
            self.wait_for("fenced", 1)
        kinds = ["kill", "pause", "write"] + ["freeze", "restart"] * self._whole_broker
        for number in range(1, rounds + 1):
            kind = self._luck.choice(kinds)
            report(f"round {number}: {kind}")
            getattr(self, f"_{kind}")()
            self.wait_for("acked", 2)

    def _kill(self) -> None:
        at = self._luck.randrange(3)
        self._alive[at].end(kill=True)
        self._alive[at] = self._start()

    def _pause(self) -> None:
        writer = self._luck.choice(self._alive)
        writer.popen.send_signal(signal.SIGSTOP)
        time.sleep(self._luck.uniform(0.1, 1.0))
        writer.popen.send_signal(signal.SIGCONT)

    def _write(self) -> None:
        for _ in range(self._luck.randint(1, 50)):
            self._foreign.send(self._topic, b"foreign", partition=0)
        self._foreign.flush(_PATIENCE)

    def _freeze(self) -> None:
        self._kafka.freeze()
        time.sleep(self._luck.uniform(0.1, 3.0))
        self._kafka.thaw()

    def _restart(self) -> None:
        if self._luck.random() < 0.5:
            self._kafka.kill()
        self._kafka.restart()

    def verdict(self) -> list[str]:
        """What is wrong with the log; nothing, if all is well."""
        told = Told()
        for event in (event for writer in self._all for event in writer.events):
            batch, kind = event.get("batch"), event["event"]
            if kind == "trying":
                told.unknown.add(batch)
            elif kind == "acked":
                told.acked[batch] = tuple(event["told"])
            elif kind == "refused":
                told.refused.add(batch)
                if event["error"] == "LogCorrupt":
                    return [event["text"]]
        told.unknown -= told.acked.keys() | told.refused
        options = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers}
        engine = KafkaPythonEngine(Settings.parse(options))
        end = self._decided(engine)
        rows = [row for part in engine.read(self._topic, 0, 0, end, _PATIENCE) for row in part]
        engine.close()
        found = problems(rows, told)
        audited = audit(options, self._topic)[1]
        return found if audited.ok else [*found, *map(str, audited.findings)]

    def _decided(self, engine: KafkaPythonEngine) -> int:
        """The end of the log, after the transactions of writers that were killed timed out."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            ends = engine.ends(self._topic, 0)
            if ends.stable == ends.end:
                return ends.end
            time.sleep(0.1)
        raise AssertionError("a transaction stays open")

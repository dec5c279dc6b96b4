"""Rounds of disturbances for the consumers of a work queue, judged by the independent judge."""

from __future__ import annotations

import collections
import itertools
import random
import shutil
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from coopconsume.queue import QueueConsumer, QueueReplica, queue_status
from tests.chaos.frame import wait_until
from tests.chaos.queue_judge import Outcomes, problems
from tests.event_process import EventProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from coopconsume.testing.local.broker import LocalKafka
    from tests.chaos.queue_judge import Place

HOLD = 3.0
_PATIENCE = 240.0
_PARTITIONS = 2
_EACH = 300
_MOST_DELIVERIES = 4
#: Seconds that a consumer works on a record, on average.
_SPEEDS = (0.002, 0.01, 0.03, 0.1)
#: Kinds of rounds that disturb consumers, those that a minority of the replicas is away in, and
#: those that disturb any broker.
_CONSUMER_KINDS = ("kill", "leave", "pause", "pause_all")
_MINORITY_KINDS = ("lose", "empty")
_BROKER_KINDS = ("freeze", "restart")
#: All kinds of rounds.
KINDS = (*_CONSUMER_KINDS, *_MINORITY_KINDS, *_BROKER_KINDS)


class TablePlace:
    """A folder with the table of a replica; it can be away like a broker that is down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._away = path.with_name(f"{path.name}-away")

    def kill(self) -> None:
        """Moves the table away, once a consumer has created it."""
        wait_until(self.path.exists, lambda: f"nobody creates {self.path}", _PATIENCE)
        self.path.rename(self._away)

    def start(self) -> None:
        """Moves the table back, if it is not erased."""
        if self._away.exists():
            # As a mount does, it hides what a writer has left there meanwhile.
            shutil.rmtree(self.path, ignore_errors=True)
            self._away.rename(self.path)

    def erase(self) -> None:
        """Deletes the table that is away."""
        shutil.rmtree(self._away)


class Rounds:
    """Consumers of different speeds at one queue.

    Args:
        home: The broker of the records and of the dead letters.
        places: The place of each replica, in the order of the replicas; `home` may be one.
        topic: The name of the topic, which is created.
        seed: Seed of all draws.
        folder: Gets the logs of the consumers.
        may_disturb_home: Whether rounds may disturb the broker of the records.
    """

    def __init__(
        self, home: LocalKafka, places: Sequence[LocalKafka | TablePlace], topic: str, seed: int,
        folder: Path, *, may_disturb_home: bool = True,
    ) -> None:  # fmt: skip
        self._home = home
        self._others = [place for place in places if place is not home] if len(places) > 2 else []
        self._fragile = [place for place in self._others if not isinstance(place, TablePlace)]
        self._fragile += [home] if may_disturb_home else []
        self._topic, self._letters = topic, f"{topic}-letters"
        self._luck = random.Random(seed)
        self._folder = folder
        self._numbers = itertools.count()
        home.create_topic(topic, _PARTITIONS)
        home.create_topic(self._letters, 1)
        self._options = {
            "kafka.bootstrap.servers": home.bootstrap_servers, "kafka.group.id": f"{topic}-group",
            "deadLetter": f"kafka:{self._letters}",
        }  # fmt: skip
        self._replicas = [
            {"table": str(place.path)}
            if isinstance(place, TablePlace)
            else {
                "topic": f"{topic}-r{n}",
                "options": {"kafka.bootstrap.servers": place.bootstrap_servers},
            }
            for n, place in enumerate(places)
        ]
        self._producer = KafkaProducer(bootstrap_servers=home.bootstrap_servers, retries=20)
        #: The records, and the time before each was written.
        self._produced: dict[Place, float] = {}
        self._disturbed: list[tuple[float, float]] = []
        self._outcomes = Outcomes(HOLD)
        self._taken: collections.Counter[int] = collections.Counter()
        self._all: list[EventProcess] = []
        self._alive = [self._start(seconds) for seconds in _SPEEDS]

    def draw(self, rounds: int, kinds: Sequence[str] = KINDS) -> list[str]:
        """Draws the kinds of some rounds: each comes once before any comes again."""
        lacking = (
            *(() if self._others else _MINORITY_KINDS),
            *(() if self._fragile else _BROKER_KINDS),
        )
        usable = [kind for kind in kinds if kind not in lacking]
        drawn: list[str] = []
        while len(drawn) < rounds:
            drawn += self._luck.sample(usable, len(usable))
        return drawn[:rounds]

    def play(self, kinds: Sequence[str], report: Callable[[str], object] = lambda _: None) -> None:
        """Plays a round of each kind, works off the queue, and ends all consumers."""
        try:
            self._produce()
            self._wait_for(_EACH // 2)
            for number, kind in enumerate(kinds, 1):
                self._produce()
                self._wait_for(self._acknowledged() + 5)
                began = time.monotonic()
                report(f"round {number}: {kind}")
                getattr(self, f"_{kind}")()
                self._wait_for(0.9 * len(self._produced) - _EACH / 2)
                took = time.monotonic() - began
                self._disturbed.append((began, began + took + 2 * HOLD))
                report(f"round {number}: {took:.0f} s, {self.counts()}")
            # What comes now is undisturbed.
            time.sleep(2 * HOLD)
            self._produce()
            wait_until(self._is_done, lambda: f"not worked off: {self._status()}", _PATIENCE)
            for worker in self._alive:
                worker.finish()
        finally:
            for worker in self._alive:
                worker.popen.kill()
            self._producer.close(timeout=5)

    def _start(self, seconds: float) -> EventProcess:
        number = next(self._numbers)
        config = {
            "options": self._options, "topic": self._topic, "replicas": self._replicas,
            "hold": HOLD, "max_deliveries": _MOST_DELIVERIES, "seconds": seconds, "seed": number,
            "log": str(self._folder / f"consumer-{number}.log"),
        }  # fmt: skip
        self._all.append(EventProcess("tests.chaos.queue_process", config))
        return self._all[-1]

    def _produce(self) -> None:
        at = time.monotonic()
        sent = [
            self._producer.send(self._topic, b"", partition=number % _PARTITIONS)
            for number in range(_EACH)
        ]
        for future in sent:
            written = future.get(timeout=_PATIENCE)
            self._produced[written.partition, written.offset] = at

    # -- what is seen meanwhile

    def _look(self) -> Outcomes:
        """Takes the events that are new; returns the fate of the records so far."""
        for number, worker in enumerate(self._all):
            for event in worker.events[self._taken[number] :]:
                self._taken[number] += 1
                self._outcomes.take(number, event)
        return self._outcomes

    def _acknowledged(self) -> int:
        return len(self._look().acknowledged)

    def _wait_for(self, count: float) -> None:
        """Waits until so many records are acknowledged."""

        def is_so() -> bool:
            ended = [worker.popen.args for worker in self._alive if worker.popen.poll() is not None]
            assert not ended, f"ended by themselves: {ended}"
            return self._acknowledged() >= count

        wait_until(is_so, lambda: f"{self.counts()}, {count} expected: {self._last()}", _PATIENCE)

    def _last(self) -> list[Any]:
        return [worker.events[-3:] for worker in self._alive]

    def counts(self) -> dict[str, int]:
        """Returns how many records there are, deliveries of them, and acknowledgements."""
        found = self._look()
        given = found.deliveries.values()
        return {
            "produced": len(self._produced),
            "acknowledged": len(found.acknowledged),
            "deliveries": sum(map(len, given)),
            "again": sum(len(of_one) > 1 for of_one in given),
            "late": sum(one.is_late for of_one in given for one in of_one),
            "failed calls": sum(
                event["event"] == "failed" for worker in self._all for event in list(worker.events)
            ),
        }

    def _status(self) -> Any:
        replicas = [QueueReplica(**replica) for replica in self._replicas]
        return queue_status(self._options, self._topic, replicas)

    def _is_done(self) -> bool:
        """Whether what is done is one range on every replica, and nobody holds anything."""
        status = self._status()
        ends = {(p.partition, p.stable_offset) for p in status.partitions}
        left = any(p.done_above or p.held or p.delayed or p.free for p in status.partitions)
        return bool(ends == self._ends() and status.is_sound and not left and not status.holds)

    def _ends(self) -> set[Place]:
        return {
            (p, 1 + max(offset for at, offset in self._produced if at == p))
            for p in range(_PARTITIONS)
        }

    # -- rounds

    def _kill(self) -> None:
        self._replace(self._luck.choice(self._alive), EventProcess.kill)

    def _leave(self) -> None:
        self._replace(self._luck.choice(self._alive), EventProcess.finish)

    def _replace(self, worker: EventProcess, end: Callable[[EventProcess], None]) -> None:
        end(worker)
        at = self._alive.index(worker)
        self._alive[at] = self._start(_SPEEDS[at])

    def _pause(self) -> None:
        self._freeze_consumers([self._luck.choice(self._alive)], self._luck.uniform(0.5, 2 * HOLD))

    def _pause_all(self) -> None:
        self._freeze_consumers(self._alive, self._luck.uniform(HOLD, 2 * HOLD))

    def _freeze_consumers(self, workers: Sequence[EventProcess], seconds: float) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for worker in workers:
                worker.popen.send_signal(number)
            if number is signal.SIGSTOP:
                time.sleep(seconds)

    def _lose(self) -> None:
        """A minority of the replicas is away: the queue goes on, also if a consumer dies then."""
        place = self._luck.choice(self._others)
        place.kill()
        self._wait_for(self._acknowledged() + 50)
        if self._luck.random() < 0.5:
            self._kill()
        place.start()

    def _empty(self) -> None:
        """A replica returns without its log, after one hold, as the documentation demands."""
        place = self._luck.choice(self._others)
        place.kill()
        time.sleep(HOLD + 1.0)
        if isinstance(place, TablePlace):
            place.erase()
        else:
            assert place.log_path is not None
            shutil.rmtree(place.log_path.parent)
        place.start()
        self._kill()  # the consumer that starts creates the log

    def _freeze(self) -> None:
        broker = self._luck.choice(self._fragile)
        broker.freeze()
        time.sleep(self._luck.uniform(0.5, 2 * HOLD))
        broker.thaw()

    def _restart(self) -> None:
        broker = self._luck.choice(self._fragile)
        if self._luck.random() < 0.5:
            broker.kill()
            time.sleep(self._luck.uniform(0.0, HOLD))
        broker.restart()

    # -- the results

    def verdict(self) -> list[str]:
        """Returns what is wrong with the queue; nothing if all is well."""
        slow = [
            (event["asked"], event["at"] + 2 * HOLD)
            for worker in self._all
            for event in worker.events
            if event["event"] == "got" and event["at"] - event["asked"] > HOLD / 2
        ]
        found = problems(
            self._look(), self._produced, self._dead_letters(), _MOST_DELIVERIES,
            self._disturbed + slow,
        )  # fmt: skip
        codes = {0, -signal.SIGKILL}
        found += [
            f"consumer {n} ended with code {worker.popen.returncode}"
            for n, worker in enumerate(self._all)
            if worker.popen.returncode not in codes
        ]
        replicas = [QueueReplica(**replica) for replica in self._replicas]
        with QueueConsumer(self._options, self._topic, replicas, hold=HOLD) as last:
            more = last.poll(500, timeout=2 * HOLD)
            found += [f"{record.partition}-{record.offset} comes after the end" for record in more]
        group = self._options["kafka.group.id"]
        with closing(KafkaAdminClient(bootstrap_servers=self._home.bootstrap_servers)) as admin:
            offsets = admin.list_group_offsets({group: None})[group]
        seen = {(at.partition, int(held.offset)) for at, held in offsets.items()}
        if seen != self._ends():
            found.append(f"the group is at {sorted(seen)}, the end is {sorted(self._ends())}")
        return found

    def _dead_letters(self) -> dict[Place, int]:
        """Returns the highest attempt of each dead letter."""
        found: dict[Place, int] = {}
        at = TopicPartition(self._letters, 0)
        consumer = KafkaConsumer(bootstrap_servers=self._home.bootstrap_servers, group_id=None)
        with closing(consumer):
            consumer.assign([at])
            consumer.seek_to_beginning(at)
            end = consumer.end_offsets([at])[at]
            while consumer.position(at) < end:
                for record in consumer.poll(timeout_ms=500).get(at, []):
                    headers = dict(record.headers)
                    partition, offset, attempts = (
                        int(headers[f"coopconsume.{name}"])
                        for name in ("partition", "offset", "attempts")
                    )
                    place = partition, offset
                    found[place] = max(attempts, found.get(place, 0))
        return found

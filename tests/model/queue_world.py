"""A discrete-event simulation of consumers of one queue and its replicas, on the production core.

Messages are lost, delayed, repeated and reordered; clocks run at different rates; replicas and
consumers are cut off, frozen, killed and restarted; a consumer dies between the rows of one step,
and its successor begins from snapshots. In some worlds the topic is deleted and created again, and
brokers describe the former one for a while. In some no consumer lives as long as a hold, also once
everything is up. Everything follows from the seed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from commits import OffsetRanges
from coopconsume.queue.acknowledgements import Settled
from coopconsume.queue.incarnation import LogIncarnation
from coopconsume.queue.member import QueueMember
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import Offsets, ReplicaRow
from coopconsume.queue.source_log import SourceLog, TopicIds

HOLD = 2.0
PARTITION = 0
#: Seconds from one look of a consumer at the topic to the next.
LOOK = 0.2
#: Seconds of disturbances; then everything is up, and all records must be done soon.
TROUBLE = 8.0
BOUND = 60.0


#: The id of a topic and an offset.
Record = tuple[str, int]


@dataclass
class Log:
    """A replica: rows in the order in which they arrived."""

    rows: list[ReplicaRow] = field(default_factory=list)
    is_up: bool = True


@dataclass
class Had:
    """A consumer had a record from a time to a time, by the simulation's clock."""

    consumer: str
    record: Record
    start: float
    end: float


class Consumer:
    """A process: a core, a clock, and a user who works on what is handed out."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        draw = world.random
        self.rate, self.skew = 1 + draw.uniform(-0.04, 0.04), draw.uniform(0, 1000)
        local = draw.randrange(len(world.logs)) if world.mixed else 0
        self.core = QueueMember(name, len(world.logs), HOLD, draw, local=local)
        self.read = [0] * len(world.logs)
        self.reading: set[int] = set()
        self.cut: set[int] = set()
        self.frozen_until = 0.0
        self.is_alive = True
        self.woken: float | None = None
        self.works: dict[int, Had] = {}
        self.settling: list[tuple[str, Settled]] = []
        self.ids, self.topic = TopicIds(), world.first

    def clock(self) -> float:
        return self.skew + self.rate * self.world.now

    def real(self, clock: float) -> float:
        """The simulation's time of a time on this clock."""
        return (clock - self.skew) / self.rate

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Act after a while, unless this process was killed; a frozen one acts when it wakes."""

        def run() -> None:
            if self.is_alive and self.world.now < self.frozen_until:
                self.world.at(self.frozen_until, run)
            elif self.is_alive:
                act()

        self.world.at(self.world.now + seconds, run)

    def send(self, rows: list[AppendRow]) -> None:
        for replica, row in rows:
            if not self.world.is_calm and self.world.random.random() < self.world.fragile:
                self.world.replace(self)
                return
            self.world.send(self, replica, row)
        self.wake()

    def begin_from_snapshot(self, replica: int) -> None:
        """Read a replica's log from a snapshot of its start on."""
        rows = self.world.logs[replica].rows
        self.read[replica] = self.world.random.randrange(len(rows) + 1)
        state = ReplicaState()
        for position, row in enumerate(rows[: self.read[replica]]):
            state.fold(position, row)
        written = json.loads(json.dumps(state.snapshot()))
        self.core.restore(replica, ReplicaState.restore(written), self.clock())

    def wake(self) -> None:
        """Call the core when it has something to do."""
        due = self.core.next_due()
        at = self.world.now + 0.5 if due is None else max(self.world.now, self.real(due))
        if self.woken is None or at < self.woken - 1e-9:
            self.woken = at
            self.later(at - self.world.now + 1e-6, lambda: self.tick(at))

    def tick(self, at: float) -> None:
        if self.woken == at:
            self.woken = None
            self.send(self.core.tick(self.clock()))
            self.look()

    def take(self, replica: int) -> None:
        """Read what a replica's log has by now."""
        self.reading.discard(replica)
        log = self.world.logs[replica]
        if not log.is_up or replica in self.cut:
            return
        rows: list[AppendRow] = []
        while self.read[replica] < len(log.rows):
            position = self.read[replica]
            self.read[replica] += 1
            rows += self.core.take(replica, position, log.rows[position], self.clock())
        self.send(rows)
        self.look()

    def describe(self) -> None:
        """Look at the topic; take it up if it is another one."""
        topic = self.world.described()
        if topic and self.ids.is_current(topic, self.core.replicas.states, self.clock()):
            if topic != self.topic:
                self.topic = topic
                for had in self.works.values():
                    had.end = min(had.end, self.world.now)
                self.works.clear()
            logs = self.world.logs
            read = [n for n, log in enumerate(logs) if self.read[n] == len(log.rows) and log.is_up]
            log = {PARTITION: SourceLog(LogIncarnation(topic))}
            self.core.follow(log)
            if len(read) > len(logs) // 2:
                self.send(self.core.begin(log, read))
        self.later(LOOK, self.describe)

    def look(self) -> None:
        """Use what was granted and see what became done; ask for more."""
        if not self.is_alive:
            return
        while (granted := self.core.granted()) is not None:
            if self.topic != self.world.topic:
                continue  # seen after the records were read
            for offset in _singles(granted.offsets):
                self.world.handed_out(self, offset, self.real(granted.until))
            if granted.offsets:
                self.later(self.world.work(), self.settling_of(granted.offsets))
        for topic, settled in self.settling:
            for offset in _singles(settled.done):
                if settled.row.kind in ("accept", "reject"):
                    self.world.acknowledged.setdefault((topic, offset), self.world.now)
                elif topic != self.topic:
                    continue
                elif settled.row.kind == "renew" and offset in self.works:
                    had = self.works[offset]
                    # The renewed hold is without a gap only if the old one had not ended.
                    if self.world.now < had.end:
                        had.end = max(had.end, self.real(settled.until))
        self.settling = [(topic, one) for topic, one in self.settling if not one.is_complete]
        if not self.core.is_acquiring and self.world.random.random() < 0.7:
            limit = self.world.random.randint(1, 3)
            rows = self.core.acquire(limit, {PARTITION: self.world.records}, self.clock())
            self.send(rows)
            for _, row in rows:
                self.race(row.offsets)

    def race(self, offsets: Offsets) -> None:
        """The user may acknowledge what it still has while it is acquired again."""
        late = OffsetRanges.from_offsets([o for o in _singles(offsets) if o in self.works])
        if late and self.world.random.random() < 0.5:
            soon = self.world.random.uniform(0, 0.05)
            self.later(soon, self.settling_of({PARTITION: late}))

    def settling_of(self, offsets: Offsets) -> Callable[[], None]:
        """What a user does with records, unless the consumer drops them as of a former topic."""
        topic = self.topic
        return lambda: self.settle(offsets) if self.topic == topic else None

    def settle(self, offsets: Offsets) -> None:
        """The user acknowledges what it works on, in one of all ways, or forgets it."""
        kind = self.world.kind()
        if kind == "forget":
            return
        for offset in _singles(offsets):
            if kind in ("accept", "reject"):
                self.world.asked.add((self.topic, offset))
            if kind != "renew" and offset in self.works:
                had = self.works.pop(offset)
                had.end = min(had.end, self.world.now)
        delay = self.world.random.choice([0.0, 0.3]) if kind == "release" else 0.0
        settled, rows = self.core.settle(kind, offsets, self.clock(), delay)
        self.settling.append((self.topic, settled))
        self.send(rows)
        if kind == "renew":
            self.later(self.world.work(), self.settling_of(offsets))

    def leave(self) -> None:
        """It is closed, or only ends; another one starts."""
        if self.is_alive:
            if self.world.random.random() < 0.5:
                for replica, row in self.core.leave(self.clock()):
                    self.world.send(self, replica, row)
            self.world.replace(self)

    def kill(self) -> None:
        self.is_alive = False
        for had in self.works.values():
            had.end = min(had.end, self.world.now)


class World:
    """Logs, consumers, a clock and a network.

    Args:
        seed: Everything is drawn from it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.logs = [Log() for _ in range(self.random.choice([1, 2, 3, 3, 3, 5]))]
        self.mixed = self.random.random() < 0.5
        self.loss, self.repeats = self.random.choice([0, 0.05, 0.2]), self.random.choice([0, 0.1])
        self.slow = self.random.choice([0.0, 0.1, 0.3])
        self.records = self.random.choice([1, 2, 6])
        self.fragile = self.random.choice([0, 0, 0.02])
        self.are_brief = self.random.random() < 0.4
        self.is_calm = False
        self.history: list[Had] = []
        self.acknowledged: dict[Record, float] = {}
        self.asked: set[Record] = set()
        self.wrong: list[str] = []
        #: The ids of the topic; without ids it is that of a queue of an earlier version.
        self.topics = ["0"] if self.random.random() < 0.5 else [""]
        self.first = self.topic
        begin = ReplicaRow("begin", "setup", 0, {PARTITION: OffsetRanges()}, topic_id=self.first)
        for log in self.logs:
            log.rows.append(begin)
        self.consumers = [self.start() for _ in range(self.random.randint(2, 3))]

    @property
    def topic(self) -> str:
        """The id of the topic; empty without one."""
        return self.topics[-1]

    def described(self) -> str:
        """What a broker says; one that is behind describes the former topic."""
        if not self.is_calm and self.random.random() < 0.1:
            return self.topics[max(0, len(self.topics) - 2)]
        return self.topic

    def create_again(self) -> None:
        """Delete the topic and create it again."""
        self.topics.append(str(len(self.topics)))

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def start(self) -> Consumer:
        consumer = Consumer(self, f"c{next(self._numbers)}")
        self.at(self.now, consumer.wake)
        if self.first:
            consumer.later(self.random.uniform(0, LOOK), consumer.describe)
        for replica in range(len(self.logs)):
            if self.random.random() < 0.3:
                consumer.begin_from_snapshot(replica)
            self.deliver(consumer, replica)
        if self.are_brief:
            consumer.later(self.random.uniform(0.6, 0.9) * HOLD, consumer.leave)
        return consumer

    def replace(self, consumer: Consumer) -> None:
        """A consumer dies, and another one starts."""
        consumer.kill()
        self.consumers[self.consumers.index(consumer)] = self.start()

    def delay(self) -> float:
        draw = self.random.random()
        if not self.is_calm and draw < self.slow:
            return self.random.uniform(0, 2 * HOLD)
        return self.random.uniform(0.001, 0.03)

    def work(self) -> float:
        return self.random.choice([0.01, 0.1, 0.5, 0.2 if self.is_calm else 1.5 * HOLD])

    def kind(self) -> str:
        if self.is_calm:
            return "accept"
        kinds = ["accept", "accept", "accept", "reject", "release", "renew", "forget"]
        return self.random.choice(kinds)

    def send(self, consumer: Consumer, replica: int, row: ReplicaRow) -> None:
        """A row is on its way to a replica: it may be lost, late, or arrive twice."""
        copies = 1
        if not self.is_calm:
            copies = 0 if self.random.random() < self.loss else 1
            copies += self.random.random() < self.repeats
        for _ in range(copies):
            self.at(self.now + self.delay(), lambda: self.arrive(consumer, replica, row))

    def arrive(self, consumer: Consumer, replica: int, row: ReplicaRow) -> None:
        log = self.logs[replica]
        if log.is_up and replica not in consumer.cut:
            log.rows.append(row)
            for each in self.consumers:
                self.deliver(each, replica)

    def deliver(self, consumer: Consumer, replica: int) -> None:
        """A consumer reads a replica's log after a while."""
        if replica not in consumer.reading:
            consumer.reading.add(replica)
            consumer.later(self.delay(), lambda: consumer.take(replica))

    def handed_out(self, consumer: Consumer, offset: int, until: float) -> None:
        record = self.topic, offset
        before = self.acknowledged.get(record)
        if before is not None:
            self.wrong.append(f"{offset} was acknowledged at {before}, handed out at {self.now}")
        for had in self.history:
            if had.record == record and had.end > self.now:
                self.wrong.append(
                    f"{consumer.name} got {offset} at {self.now}, {had.consumer} had it from "
                    f"{had.start} to {had.end}"
                )
        had = Had(consumer.name, record, self.now, until)
        consumer.works[offset] = had
        self.history.append(had)

    def disturb(self) -> None:
        """Something happens to a consumer or a replica."""
        consumer, replica = (
            self.random.choice(self.consumers),
            self.random.randrange(len(self.logs)),
        )
        match self.random.randrange(7 if self.first else 6):
            case 0:
                self.replace(consumer)
            case 1:
                consumer.frozen_until = self.now + self.random.uniform(0, 2 * HOLD)
            case 2:
                consumer.cut.add(replica)
            case 3:
                consumer.cut.discard(replica)
                self.deliver(consumer, replica)
            case 4:
                self.logs[replica].is_up = False
            case 5:
                self.restore(replica)
            case 6:
                self.create_again()

    def restore(self, replica: int) -> None:
        self.logs[replica].is_up = True
        for consumer in self.consumers:
            self.deliver(consumer, replica)

    def calm(self) -> None:
        """From here on everything is up."""
        self.is_calm = True
        for consumer in self.consumers:
            consumer.cut.clear()
        for replica in range(len(self.logs)):
            self.restore(replica)

    def run(self) -> float:
        """Run the schedule.

        Returns:
            The seconds from the end of the disturbances until every record was done, and every
            acknowledgement answered.
        """
        calm_at = self.random.uniform(0.5, TROUBLE)
        for _ in range(self.random.randint(0, 8)):
            self.at(self.random.uniform(0, calm_at), self.disturb)
        self.at(calm_at, self.calm)
        look_at = calm_at + 0.1
        while self._events and not self.wrong:
            self.now, _, act = heapq.heappop(self._events)
            act()
            if self.now >= look_at:
                is_answered = not any(consumer.settling for consumer in self.consumers)
                if len(self.done()) == self.records and is_answered:
                    break
                look_at = self.now + 0.1
            if self.now > calm_at + BOUND:
                left = set(range(self.records)) - self.done()
                waiting = [one for consumer in self.consumers for _, one in consumer.settling]
                self.wrong.append(
                    f"{sorted(left)} are not done {BOUND} s after the disturbances, and these have "
                    f"no answer: {waiting}"
                )
        lost = {(self.topic, offset) for offset in self.done()} - self.asked
        if lost:
            self.wrong.append(f"{sorted(lost)} are done, and nobody acknowledged them")
        return max(0.0, self.now - calm_at)

    def done(self) -> set[int]:
        """The offsets that are done in the eyes of some consumer."""
        found: set[int] = set()
        for consumer in self.consumers:
            if consumer.topic != self.topic:
                continue
            stable, above = consumer.core.replicas.done(PARTITION)
            found |= set(range(stable)) | set(_singles({0: above}))
        return found


def _singles(offsets: Offsets) -> list[int]:
    return [int(offset) for found in offsets.values() for offset in found.offsets()]

"""A Kafka broker in memory, as far as the fenced writer sees one, that fails where the test says.

Offsets, transactions with their markers, the coordinator's epochs, requests that are lost, that are
answered too late, or that come late: also to a transaction that began after they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from coopconsume.fenced import FencedWriter, LogReader
from coopconsume.fenced.engine import EngineDoubt, LogAppend, OpenTransaction
from coopconsume.fenced.log import Consumed, Ends, LogId, Raw, Rows

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1"}
VISIBILITIES = ["read_committed", "filter"]
Fate = Literal["done", "lost", "unanswered", "late", "torn", "after a foreign one"]


@dataclass
class Transaction:
    """A transaction on the log."""

    first: int
    state: Literal["open", "committed", "aborted"] = "open"
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class Slot:
    """What is at an offset: a record, or a marker."""

    raw: Raw | None
    transaction: Transaction | None = None


@dataclass
class Identity:
    """What the coordinator knows of a transactional id."""

    epoch: int = -1
    transaction: Transaction | None = None


@dataclass
class Broker:
    """One partition and its coordinator.

    Args:
        fate: Asked for each request what becomes of it; gets its name.
        tick: Called with each request: time goes by.
        kept: The first offset that retention has left.
        committed: Offsets that were committed with transactions.
    """

    fate: Callable[[str], Fate] = lambda _: "done"
    tick: Callable[[], None] = lambda: None
    topic_id: str = "topic-id"
    slots: list[Slot] = field(default_factory=list)
    ids: dict[str, Identity] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)
    kept: int = 0
    committed: dict[tuple[str, int], int] = field(default_factory=dict)

    def ends(self) -> Ends:
        """Where the log ends."""
        opened = [i.transaction.first for i in self.ids.values() if i.transaction is not None]
        return Ends(min([len(self.slots), *opened]), len(self.slots))

    def write(self, raws: Sequence[Raw], transaction: Transaction | None) -> list[int]:
        """Append records."""
        first = len(self.slots)
        for i, raw in enumerate(raws):
            self.slots.append(Slot(raw._replace(offset=first + i), transaction))
        return list(range(first, first + len(raws)))

    def end(self, identity: Identity, *, commit: bool) -> None:
        """End a transaction: its marker takes an offset."""
        transaction, identity.transaction = identity.transaction, None
        if transaction is not None:
            transaction.state = "committed" if commit else "aborted"
            if commit:
                self.committed |= transaction.offsets
            self.slots.append(Slot(None))

    def retain(self, kept: int) -> None:
        """Retention removes all records below an offset."""
        self.kept = max(self.kept, min(kept, self.ends().stable))

    def visible(self, start: int = 0, stop: int | None = None) -> list[Raw]:
        """What a reader of committed records sees."""
        return [
            slot.raw
            for slot in self.slots[start : self.ends().stable if stop is None else stop]
            if slot.raw is not None
            and (slot.transaction is None or slot.transaction.state == "committed")
        ]

    def foreign(self) -> None:
        """A record of somebody else."""
        self.write([Raw(0, 0, None, b"foreign", [])], None)

    def deliver(self) -> None:
        """Requests that were under way arrive."""
        requests, self.late = self.late, []
        for request in requests:
            request()


class FakeEngine:
    """The writer's engine on such a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _ask(self, name: str) -> None:
        self._broker.tick()
        if self._broker.fate(name) == "lost":
            raise EngineDoubt(f"{name} was lost")

    def topic_id(self, topic: str) -> str | None:
        self._ask("metadata")
        return self._broker.topic_id

    def is_compacted(self, topic: str) -> bool:
        return False

    def start(self, topic: str, partition: int) -> int:
        self._ask("start")
        return self._broker.kept

    def ends(self, topic: str, partition: int) -> Ends:
        self._ask("ends")
        return self._broker.ends()

    def open_transactions(self, topic: str, partition: int) -> list[OpenTransaction]:
        now = datetime.now(UTC)
        return [
            OpenTransaction(number, 0, identity.transaction.first, now, name, "Ongoing", 60_000)
            for number, (name, identity) in enumerate(self._broker.ids.items())
            if identity.transaction is not None
        ]

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        self._ask("read")
        assert stop <= self._broker.ends().stable
        if start < min(stop, self._broker.kept):
            raise EngineDoubt("out of range", is_out_of_range=True)
        yield Rows.of(self._broker.visible(start, stop))

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> FakeChannel:
        return FakeChannel({log.tp: self._broker}, transactional_id)

    def close(self) -> None:
        """Nothing to close."""


class FakeChannel:
    """A producer on a broker, or on several with transactions over all of their logs.

    It is as of a client without KIP-890: its epoch stays over transactions.
    """

    def __init__(
        self, brokers: Mapping[tuple[str, int], Broker], transactional_id: str | None
    ) -> None:
        self._brokers = brokers
        self._host = next(iter(brokers.values()))
        self._identities: dict[tuple[str, int], Identity] = {}
        if transactional_id is not None:
            self._identities = {
                log: broker.ids.setdefault(transactional_id, Identity())
                for log, broker in brokers.items()
            }
        self._epoch = -1
        self._dead = False

    def _do(
        self, name: str, call: Callable[[], object], torn: Callable[[], object] = lambda: None
    ) -> object:
        assert not self._dead, "a producer was used after a doubt"
        self._host.tick()
        fate = self._host.fate(name)
        if fate == "torn" and len(self._brokers) == 1:
            fate = "done"  # see `append`
        if fate == "late":
            self._host.late.append(lambda: self._is_current() and call())
        if fate == "torn" and self._is_current():
            torn()
        if fate in ("lost", "late", "torn"):
            self._dead = True
            raise EngineDoubt(f"{name}: {fate}")
        if name != "init" and not self._is_current():
            self._dead = True
            raise EngineDoubt(f"{name}: fenced")
        answer = call()
        if fate == "unanswered":
            self._dead = True
            raise EngineDoubt(f"{name}: {fate}")
        return answer

    def _is_current(self) -> bool:
        return all(identity.epoch == self._epoch for identity in self._identities.values())

    def init(self, timeout: float) -> None:
        def do() -> int:
            for log, identity in self._identities.items():
                self._brokers[log].end(identity, commit=False)
                identity.epoch += 1
            return max(identity.epoch for identity in self._identities.values())

        epoch = self._do("init", do)
        assert isinstance(epoch, int)
        self._epoch = epoch

    def begin(self) -> None:
        """The broker learns nothing of it."""

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        fate = self._host.fate("produce") if len(self._brokers) == 1 else "done"

        def write(part: LogAppend) -> list[int]:
            broker, identity = self._brokers[part.log.tp], self._identities.get(part.log.tp)
            raws = [
                Raw(0, 0, entry.key, entry.value, [stamp, *entry.headers])
                for entry, stamp in zip(part.entries, part.headers, strict=True)
            ]
            if fate == "after a foreign one":
                broker.foreign()
            if identity is None:
                return broker.write(raws, None)
            if identity.transaction is None:
                identity.transaction = Transaction(len(broker.slots))
            if fate != "torn" or len(raws) == 1:
                return broker.write(raws, identity.transaction)
            first = broker.write(raws[:1], identity.transaction)
            broker.foreign()
            return first + broker.write(raws[1:], identity.transaction)

        answer = self._do("append", lambda: list(map(write, parts)), lambda: write(parts[0]))
        assert isinstance(answer, list)
        return answer

    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        (identity,) = self._identities.values()

        def do() -> None:
            assert identity.transaction is not None
            identity.transaction.offsets |= consumed.offsets

        self._do("offsets", do)

    def commit(self, timeout: float) -> None:
        self._end("commit", commit=True)

    def abort(self, timeout: float) -> None:
        self._end("abort", commit=False)

    def _end(self, name: str, *, commit: bool) -> None:
        def do() -> None:
            for log, identity in self._identities.items():
                self._brokers[log].end(identity, commit=commit)

        self._do(name, do)

    def drop(self) -> None:
        self._dead = True


def writer_of(broker: Broker, **how: Any) -> FencedWriter:
    """A writer of the broker's log that has not acquired it; it has all the time it needs."""
    engine: Any = FakeEngine(broker)
    return FencedWriter(OPTIONS, "t", engine=engine, **{"timeout": 600} | how)


def reader_of(broker: Broker, **how: Any) -> LogReader:
    """A reader of the broker's log."""
    engine: Any = FakeEngine(broker)
    return LogReader(OPTIONS, "t", engine=engine, **how)

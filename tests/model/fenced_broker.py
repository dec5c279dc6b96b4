"""A Kafka broker in memory, as far as the fenced writer sees one, that fails where the test says.

Offsets, transactions with their markers, the coordinator's epochs, requests that are lost, that are
answered too late, or that come late: also to a transaction that began after they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.log import Consumed, Ends, LogId, Raw, Rows

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

    fate: Callable[[str], Fate]
    tick: Callable[[], None]
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

    def open_transactions(self, topic: str, partition: int) -> dict[int, str | None]:
        ids = self._broker.ids.items()
        return {
            number: name
            for number, (name, identity) in enumerate(ids)
            if identity.transaction is not None
        }

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        self._ask("read")
        assert stop <= self._broker.ends().stable
        if start < min(stop, self._broker.kept):
            raise EngineDoubt("out of range", is_out_of_range=True)
        yield Rows.of(self._broker.visible(start, stop))

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> FakeChannel:
        return FakeChannel(self._broker, transactional_id)

    def close(self) -> None:
        """Nothing to close."""


class FakeChannel:
    """A producer on such a broker; a client without KIP-890: its epoch stays over transactions."""

    def __init__(self, broker: Broker, transactional_id: str | None) -> None:
        self._broker = broker
        self._identity = None
        self._epoch = -1
        self._dead = False
        if transactional_id is not None:
            self._identity = broker.ids.setdefault(transactional_id, Identity())

    def _do(self, name: str, call: Callable[[], object]) -> object:
        assert not self._dead, "a producer was used after a doubt"
        broker = self._broker
        broker.tick()
        fate = broker.fate(name)
        if fate == "late":
            broker.late.append(lambda: self._is_current() and call())
        if fate in ("lost", "late"):
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
        return self._identity is None or self._identity.epoch == self._epoch

    def init(self, timeout: float) -> None:
        def do() -> int:
            assert self._identity is not None
            self._broker.end(self._identity, commit=False)
            self._identity.epoch += 1
            return self._identity.epoch

        epoch = self._do("init", do)
        assert isinstance(epoch, int)
        self._epoch = epoch

    def begin(self) -> None:
        """The broker learns nothing of it."""

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        ((_, entries, headers, _),) = parts
        raws = [
            Raw(0, 0, entry.key, entry.value, [stamp, *entry.headers])
            for entry, stamp in zip(entries, headers, strict=True)
        ]
        fate = self._broker.fate("produce")
        parts = [raws[:1], raws[1:]] if fate == "torn" and self._identity is not None else [raws]

        def do() -> list[int]:
            if fate == "after a foreign one":
                self._broker.foreign()
            transaction = None
            if self._identity is not None:
                if self._identity.transaction is None:
                    self._identity.transaction = Transaction(len(self._broker.slots))
                transaction = self._identity.transaction
            offsets = []
            for part in parts:
                offsets += self._broker.write(part, transaction)
                if len(parts) > 1 and len(offsets) < len(raws):
                    self._broker.foreign()
            return offsets

        offsets = self._do("append", do)
        assert isinstance(offsets, list)
        return [offsets]

    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        identity = self._identity
        assert identity is not None

        def do() -> None:
            assert identity.transaction is not None
            identity.transaction.offsets |= consumed.offsets

        self._do("offsets", do)

    def commit(self, timeout: float) -> None:
        self._end("commit", commit=True)

    def abort(self, timeout: float) -> None:
        self._end("abort", commit=False)

    def _end(self, name: str, *, commit: bool) -> None:
        identity = self._identity
        assert identity is not None
        self._do(name, lambda: self._broker.end(identity, commit=commit))

    def drop(self) -> None:
        self._dead = True

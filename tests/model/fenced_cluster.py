"""Several logs of one Kafka cluster in memory, with transactions over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.log import MULTI, Ends, LogId, Raw, Rows
from tests.model.fenced_broker import Broker, FakeChannel, FakeEngine, Fate, Identity, Transaction


class Cluster:
    """A broker in memory for each topic, which all fail where the test says.

    Args:
        topics: The topics; each has one partition.
        fate: As for `Broker`.
        tick: As for `Broker`.
    """

    def __init__(
        self, topics: Sequence[str], fate: Callable[[str], Fate], tick: Callable[[], None]
    ) -> None:
        self.brokers = {name: Broker(self._ask, tick, f"id-{name}") for name in topics}
        self.fate, self.tick = fate, tick

    def _ask(self, request: str) -> Fate:
        return self.fate(request)

    def settle(self) -> None:
        """What is under way arrives; open transactions time out."""
        for broker in self.brokers.values():
            broker.deliver()
        for broker in self.brokers.values():
            for identity in broker.ids.values():
                broker.end(identity, commit=False)


class ClusterEngine:
    """The writer's engine on such a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._engines = {name: FakeEngine(broker) for name, broker in cluster.brokers.items()}

    def topic_id(self, topic: str) -> str | None:
        return self._engines[topic].topic_id(topic)

    def is_compacted(self, topic: str) -> bool:
        return False

    def start(self, topic: str, partition: int) -> int:
        return self._engines[topic].start(topic, partition)

    def ends(self, topic: str, partition: int) -> Ends:
        return self._engines[topic].ends(topic, partition)

    def open_transactions(self, topic: str, partition: int) -> dict[int, str | None]:
        return self._engines[topic].open_transactions(topic, partition)

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        return self._engines[topic].read(topic, partition, start, stop, timeout)

    def channel(
        self, log: LogId, transactional_id: str | None, timeout: float
    ) -> FakeChannel | ClusterChannel:
        if transactional_id is not None and transactional_id.startswith(MULTI):
            return ClusterChannel(self._cluster, transactional_id)
        return self._engines[log.topic].channel(log, transactional_id, timeout)

    def close(self) -> None:
        """Nothing to close."""


class ClusterChannel:
    """A producer whose transactions are over all logs of a cluster."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._parts = {
            name: (broker, broker.ids.setdefault(transactional_id, Identity()))
            for name, broker in cluster.brokers.items()
        }
        self._epoch = -1
        self._dead = False

    @property
    def _is_current(self) -> bool:
        return all(identity.epoch == self._epoch for _, identity in self._parts.values())

    def _do(self, name: str, call: Callable[[], object], torn: Callable[[], object]) -> object:
        assert not self._dead, "a producer was used after a doubt"
        self._cluster.tick()
        fate = self._cluster.fate(name)
        first = next(iter(self._cluster.brokers.values()))
        if fate == "late":
            first.late.append(lambda: self._is_current and call())
        if fate == "torn" and self._is_current:
            torn()
        if fate in ("lost", "late", "torn"):
            self._dead = True
            raise EngineDoubt(f"{name}: {fate}")
        if name != "init" and not self._is_current:
            self._dead = True
            raise EngineDoubt(f"{name}: fenced")
        answer = call()
        if fate == "unanswered":
            self._dead = True
            raise EngineDoubt(f"{name}: {fate}")
        return answer

    def init(self, timeout: float) -> None:
        def do() -> int:
            for broker, identity in self._parts.values():
                broker.end(identity, commit=False)
                identity.epoch += 1
            return max(identity.epoch for _, identity in self._parts.values())

        epoch = self._do("init", do, lambda: None)
        assert isinstance(epoch, int)
        self._epoch = epoch

    def begin(self) -> None:
        """The brokers learn nothing of it."""

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        def write(some: Sequence[LogAppend]) -> list[list[int]]:
            found = []
            for log, entries, headers, _ in some:
                broker, identity = self._parts[log.topic]
                if identity.transaction is None:
                    identity.transaction = Transaction(len(broker.slots))
                raws = [
                    Raw(0, 0, entry.key, entry.value, [stamp, *entry.headers])
                    for entry, stamp in zip(entries, headers, strict=True)
                ]
                found.append(broker.write(raws, identity.transaction))
            return found

        answer = self._do("append", lambda: write(parts), lambda: write(parts[:1]))
        assert isinstance(answer, list)
        return answer

    def commit(self, timeout: float) -> None:
        self._end("commit", commit=True)

    def abort(self, timeout: float) -> None:
        self._end("abort", commit=False)

    def _end(self, name: str, *, commit: bool) -> None:
        def do() -> None:
            for broker, identity in self._parts.values():
                broker.end(identity, commit=commit)

        self._do(name, do, lambda: None)

    def drop(self) -> None:
        self._dead = True

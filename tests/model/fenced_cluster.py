"""Several logs of one Kafka cluster in memory, with transactions over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from coopconsume.fenced.engine import OpenTransaction
from coopconsume.fenced.log import MULTI, Ends, LogId, Rows
from tests.model.fenced_broker import Broker, FakeChannel, FakeEngine, Fate


class Cluster:
    """A broker in memory for each log (topic and partition), which all fail where the test says."""

    def __init__(
        self,
        logs: Iterable[tuple[str, int]],
        fate: Callable[[str], Fate] = lambda _: "done",
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.brokers = {log: Broker(self._ask, tick, f"id-{log[0]}") for log in logs}
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
        self._engines = {log: FakeEngine(broker) for log, broker in cluster.brokers.items()}

    def topic_id(self, topic: str) -> str | None:
        first = next(engine for log, engine in self._engines.items() if log[0] == topic)
        return first.topic_id(topic)

    def is_compacted(self, topic: str) -> bool:
        return False

    def start(self, topic: str, partition: int) -> int:
        return self._engines[topic, partition].start(topic, partition)

    def ends(self, topic: str, partition: int) -> Ends:
        return self._engines[topic, partition].ends(topic, partition)

    def open_transactions(self, topic: str, partition: int) -> list[OpenTransaction]:
        return self._engines[topic, partition].open_transactions(topic, partition)

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        return self._engines[topic, partition].read(topic, partition, start, stop, timeout)

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> FakeChannel:
        if transactional_id is not None and transactional_id.startswith(MULTI):
            return FakeChannel(self._cluster.brokers, transactional_id)
        return self._engines[log.tp].channel(log, transactional_id, timeout)

    def close(self) -> None:
        """Nothing to close."""

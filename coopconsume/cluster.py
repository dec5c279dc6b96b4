"""The Kafka cluster as the driver sees it: topics, ends of logs, the group's primary offsets."""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coopconsume.errors import BrokerUnreachable, MissingOption, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coopconsume.options import Options

log = logging.getLogger(__name__)

Partition = tuple[str, int]
_EARLIEST, _LATEST = -2, -1
_CONNECT_MS = 10_000


@dataclass(frozen=True)
class Topic:
    """A topic: its name, its id (KIP-516, as text) and how many partitions it has."""

    name: str
    id: str
    partitions: int


@dataclass(frozen=True)
class Primary:
    """The group's offset in ``__consumer_offsets``, and who wrote it.

    Attributes:
        offset: Kafka's committed offset, the next one to read.
        ours: Whether this library wrote it.
        topic_id: Of the topic it was written for; empty if not ours.
    """

    offset: int
    ours: bool
    topic_id: str


class Cluster:
    """A thin, synchronous view of one Kafka cluster, on kafka-python's admin client.

    Args:
        options: Of the consumer.

    Raises:
        BrokerUnreachable: No broker answers within ten seconds.
    """

    def __init__(self, options: Options) -> None:
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        self._options = options
        self._servers = options.kafka["bootstrap.servers"]
        try:
            self._admin: Any = KafkaAdminClient(
                **options.client_config(), bootstrap_timeout_ms=_CONNECT_MS
            )
            self.cluster_id = str(self._admin.describe_cluster()["cluster_id"])
        except (KafkaError, OSError) as error:
            raise BrokerUnreachable(self._servers, str(error) or type(error).__name__) from None

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        self._admin.close()

    def topics(self, names: Iterable[str] | None = None, pattern: str | None = None) -> list[Topic]:
        """Topics by name, or those whose whole name matches a pattern (internal ones left out).

        Raises:
            TopicNotFound: One of the names does not exist, or nothing matches.
        """
        if names is None:
            if pattern is None:
                raise MissingOption("subscribe")
            matching = re.compile(pattern)
            listed = self._call(self._admin.list_topics)
            names = sorted(n for n in listed if matching.fullmatch(n) and not n.startswith("__"))
            if not names:
                raise TopicNotFound(pattern, self._servers)
        wanted = list(names)
        found = {t["name"]: t for t in self._call(lambda: self._admin.describe_topics(wanted))}
        topics = []
        for name in wanted:
            topic = found.get(name)
            if topic is None or topic["error_code"] or not topic["partitions"]:
                raise TopicNotFound(name, self._servers)
            topics.append(Topic(name, str(topic.get("topic_id", "")), len(topic["partitions"])))
        return topics

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where each log ends as the job's isolation level sees it: the last stable offset."""
        return self._offsets(dict.fromkeys(partitions, _LATEST))

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each log."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def _offsets(self, specs: Mapping[Partition, int]) -> dict[Partition, int]:
        from kafka import IsolationLevel, TopicPartition

        if not specs:
            return {}
        level = (
            IsolationLevel.READ_COMMITTED
            if self._options.read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        wanted = {TopicPartition(t, p): spec for (t, p), spec in specs.items()}
        found = self._call(lambda: self._admin.list_partition_offsets(wanted, level))
        return {(tp.topic, tp.partition): int(at.offset) for tp, at in found.items()}

    def starting(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where partitions that nobody has committed start, by ``startingOffsets``."""
        rule = self._options.starting_offsets
        specs: dict[Partition, int] = {}
        fixed: dict[Partition, int] = {}
        for topic, partition in partitions:
            if isinstance(rule, str):
                specs[topic, partition] = _EARLIEST if rule == "earliest" else _LATEST
                continue
            offset = rule.get(topic, {}).get(partition, _EARLIEST)
            (specs if offset < 0 else fixed)[topic, partition] = offset
        return self._offsets(specs) | fixed

    def record_bytes(self, partitions: Iterable[Partition]) -> float | None:
        """Bytes a record takes on the brokers' disks, in the partition where it takes most.

        Returns:
            None where the cluster does not tell, as without the right to describe it.
        """
        from kafka.errors import KafkaError

        wanted = list(partitions)
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        try:
            answers = self._admin.describe_log_dirs(topics)
            starts, ends = self.log_starts(wanted), self.ends(wanted)
        except KafkaError:
            return None
        sizes = {
            (topic["name"], found["partition_index"]): found["partition_size"]
            for answer in answers
            for folder in answer["log_dirs"]
            for topic in folder["topics"]
            for found in topic["partitions"]
        }
        return max(
            (size / (ends[tp] - starts[tp]) for tp, size in sizes.items() if ends[tp] > starts[tp]),
            default=None,
        )

    def primary(self) -> dict[Partition, Primary]:
        """What ``__consumer_offsets`` holds for the group."""
        group = self._options.group_id
        found = self._call(lambda: self._admin.list_group_offsets({group: None}))[group]
        primary = {}
        for tp, held in found.items():
            if held.offset < 0:
                continue
            mark = _read_mark(held.metadata)
            primary[tp.topic, tp.partition] = Primary(
                int(held.offset), mark is not None, (mark or {}).get("topic_id", "")
            )
        return primary

    def commit_primary(
        self, offsets: Mapping[Partition, int], topic_ids: Mapping[str, str], epoch: int, nonce: str
    ) -> None:
        """Write stable offsets to ``__consumer_offsets``, marked as ours.

        Raises:
            kafka.errors.KafkaError: The coordinator refused a partition.
        """
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        if not offsets:
            return
        values = {}
        for (topic, partition), offset in offsets.items():
            mark = {
                "coopconsume": 1,
                "topic_id": topic_ids.get(topic, ""),
                "epoch": epoch,
                "nonce": nonce,
            }
            text = json.dumps(mark, separators=(",", ":"))
            values[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, text, -1)

        def write() -> None:
            answers = self._admin.alter_group_offsets(self._options.group_id, values)
            for tp, error in answers.items():
                if getattr(error, "errno", 0):
                    raise error(f"primary offset of {tp.topic}-{tp.partition}")

        self._call(write)

    def _call(self, call: Callable[[], Any], patience: float = 15.0) -> Any:
        """Make a call again while the cluster says that it may work later."""
        from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

        until = time.monotonic() + patience
        while True:
            try:
                return call()
            except KafkaError as error:
                passing = error.retriable or isinstance(
                    error, KafkaConnectionError | KafkaTimeoutError
                )
                if not passing:
                    raise
                if time.monotonic() >= until:
                    raise BrokerUnreachable(self._servers, str(error)) from error
                log.debug("asking Kafka again: %s", error)
                time.sleep(0.2)


def _read_mark(metadata: str | None) -> dict[str, str] | None:
    try:
        mark = json.loads(metadata or "")
    except ValueError:
        return None
    return mark if isinstance(mark, dict) and "coopconsume" in mark else None

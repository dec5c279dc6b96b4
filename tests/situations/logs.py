"""The situations: topics of one broker, and the records that a reader of each has to see.

The broker belongs to the suite. It is stopped to cut logs and to move them to large offsets, which
takes no more than other first offsets in the files of their segments.
"""

from __future__ import annotations

import itertools
import struct
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewPartitions
from kafka.structs import TopicPartition as AdminPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from coopconsume import LocalKafka

PATIENCE = 300.0
_HEAD = struct.Struct(">qi")  # of a record batch: its first offset, and the bytes that follow
_FIRST_SEGMENT = f"{0:020d}.log"
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")

#: Milliseconds of the epoch that a producer may write: none, before 1970, microseconds by mistake.
ODD_TIMES = (-1, 0, -5, 1_700_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1)
#: Where the log of a situation begins; a few records lie on each side of a power of two.
FAR = {f"offsets_near_2_{power}": 2**power - 3 for power in (31, 36, 62)}
SITUATIONS = (
    "plain", "longest_name", "shortest_name", "odd_timestamps", *FAR, "transactions", "retention",
    "compaction", "recreated", "cut", "added_partitions", "codecs", "header_names",
)  # fmt: skip
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Headers as a handler sees them: an empty one, twice the same name, and a name that is not UTF-8.
HEADERS = (("a", b"1"), ("a", b""), ("odd \ufffd\ufffd name", b"\xff"), ("ü", b"1"))
_CONFIG: Mapping[str, Mapping[str, object]] = {
    "odd_timestamps": {"message.timestamp.after.max.ms": 2**63 - 1},
    "compaction": {
        "cleanup.policy": "compact", "segment.ms": 1, "min.cleanable.dirty.ratio": 0.01,
        "max.compaction.lag.ms": 1,
    },
}  # fmt: skip

Place = tuple[int, int]
"""Partition and offset of a record."""
Seen = tuple[int, int, bytes]
"""Partition, offset and value of a record that was given to a user."""


@dataclass
class Log:
    """A topic of one situation.

    Attributes:
        situation: The name of the situation.
        topic: The name of the topic.
        partitions: Its number of partitions.
        config: Kafka's settings of the topic.
        records: The value of each record that a reader with ``read_committed`` has to see. Where
            the log was replaced or cut, only what is in the log now.
    """

    situation: str
    topic: str
    partitions: int
    config: Mapping[str, object]
    records: dict[Place, bytes] = field(default_factory=dict)


def _log(situation: str, use: str) -> Log:
    """Return the log of a situation; topics of either use have other names."""
    topic = f"{situation}-{use}"
    if situation == "shortest_name":
        topic = use
    elif situation == "longest_name":
        topic = ("Longest_name-of.a.topic." + use).ljust(249, "x")
    partitions = 2 if situation == "plain" else 1
    config = _CONFIG.get(situation, {})
    if (situation, use) == ("codecs", "w"):
        config = {"compression.type": "snappy"}  # whatever who writes there does
    return Log(situation, topic, partitions, config)


class Logs:
    """All topics of the suite, on a broker whose data folder is known.

    Args:
        broker: The broker.
        folder: Its data folder.
        situations: The situations to have.

    Attributes:
        broker: The broker.
        to_read: The log of each situation for parts that read what is there.
        to_write: The same for parts that write what they read.
    """

    def __init__(
        self, broker: LocalKafka, folder: Path, situations: Sequence[str] = SITUATIONS
    ) -> None:
        self.broker = broker
        self._folder = folder
        self._number = 0
        self.to_read = {one: _log(one, "r") for one in situations}
        self.to_write = {one: _log(one, "w") for one in situations}

    def __iter__(self) -> Iterator[Log]:
        return itertools.chain(self.to_read.values(), self.to_write.values())

    def of(self, situation: str) -> tuple[Log, ...]:
        """Return the logs of a situation, if it is here."""
        return tuple(log for log in self if log.situation == situation)

    def begin(self) -> None:
        """Create all topics with their first records."""
        for log in self:
            self.broker.create_topic(log.topic, log.partitions, log.config)
        for log in self:
            self._WRITERS.get(log.situation, Logs._write)(self, log)
        self.broker.stop()
        for name, base in FAR.items():
            for log in self.of(name):
                self._move(log.topic, base)
                log.records = {(p, o + base): value for (p, o), value in log.records.items()}
        self.broker.start()
        for log in self.of("retention"):
            self._delete_below(log, 3)
        for log in self.of("compaction"):
            self._compact(log)

    def change(self) -> None:
        """Recreate, cut and extend topics, and write more records to those that are read."""
        recreated, added = self.of("recreated"), self.of("added_partitions")
        names = [log.topic for log in recreated]
        with closing(self._admin()) as admin:
            admin.delete_topics(names)
            until(lambda: not {*names} & {*admin.list_topics()})
            admin.create_partitions({log.topic: NewPartitions(2) for log in added})
        for log in recreated:
            self.broker.create_topic(log.topic, 1)
            log.records = {}
        for log in added:
            log.partitions = 2
        self._write(self.to_read["retention"])
        self._delete_below(self.to_read["retention"], 7)
        self.broker.stop()
        for log in self.of("cut"):
            self._cut(log.topic, 4)
            log.records = {at: value for at, value in log.records.items() if at[1] < 4}
        self.broker.start()
        self.grow()

    def grow(self) -> None:
        """Write more records to every topic that is read, as its situation has them."""
        for log in self.to_read.values():
            self._WRITERS.get(log.situation, Logs._write)(self, log)

    # -- writing

    def _write(self, log: Log, times: Iterable[int] = (0,) * 6) -> None:
        """Write records of three keys to each partition, each in a batch of its own."""
        with self._producer() as producer:
            for partition in range(log.partitions):
                for i, stamp in enumerate(times):
                    self._send(producer, log, partition, b"k%d" % (i % 3), stamp)

    def _write_odd(self, log: Log) -> None:
        self._write(log, ODD_TIMES)

    def _write_codecs(self, log: Log) -> None:
        """Write a record of each codec."""
        for number, codec in enumerate(CODECS):
            # A batch that does not become smaller is sent as it is.
            value = b"%d %s" % (self._number, bytes(2_000))
            with self._producer(**{"compression.type": codec}) as producer:
                self._send(producer, log, 0, b"k%d" % (number % 3), value=value)

    def _write_headers(self, log: Log) -> None:
        """Write records with `HEADERS` by a client that can be made to write any name."""
        servers = self.broker.bootstrap_servers
        with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
            headers = [(AnyName(name), value) for name, value in HEADERS]
            for number in range(3):
                self._number += 1
                value = b"%s %d" % (log.situation.encode(), self._number)
                sent = producer.send(log.topic, value, b"k%d" % number, headers, 0)
                log.records[0, sent.get(PATIENCE).offset] = value

    def _write_transactions(self, log: Log) -> None:
        """Write a transaction that is aborted between two that are committed."""
        self._number += 1
        with self._producer(**{"transactional.id": f"{log.topic}-{self._number}"}) as producer:
            producer.init_transactions(PATIENCE)
            for is_kept in (True, False, True):
                producer.begin_transaction()
                for i in range(3):
                    self._send(producer, log, 0, b"k%d" % i, is_kept=is_kept)
                (producer.commit_transaction if is_kept else producer.abort_transaction)(PATIENCE)

    def _send(
        self, producer: Producer, log: Log, partition: int, key: bytes, stamp: int = 0,
        *, is_kept: bool = True, value: bytes = b"",
    ) -> None:  # fmt: skip
        self._number += 1
        value, found = value or b"%s %d" % (log.situation.encode(), self._number), []
        producer.produce(
            log.topic, value, key, partition, timestamp=stamp,
            on_delivery=lambda error, message: found.append((error, message)),
        )  # fmt: skip
        producer.flush(PATIENCE)
        ((error, message),) = found
        assert error is None, error
        if is_kept:
            log.records[partition, message.offset()] = value

    _WRITERS: Mapping[str, Callable[[Logs, Log], None]] = {
        "odd_timestamps": _write_odd, "transactions": _write_transactions,
        "codecs": _write_codecs, "header_names": _write_headers,
    }  # fmt: skip

    # -- what becomes of logs

    def _delete_below(self, log: Log, offset: int) -> None:
        """Delete records as retention does."""
        with closing(self._admin()) as admin:
            admin.delete_records({AdminPartition(log.topic, 0): offset})
        log.records = {at: value for at, value in log.records.items() if at[1] >= offset}

    def _compact(self, log: Log) -> None:
        """Wait until compaction has removed a record."""
        self._write(log)
        until(lambda: len(self.left(log)) < len(log.records))

    def kept(self, log: Log) -> set[Seen]:
        """Return the records that a reader has to see; compaction goes on removing some."""
        records = log.records
        if log.situation == "compaction":
            left = self.left(log)
            records = {at: value for at, value in records.items() if at in left}
        return {(*at, value) for at, value in records.items()}

    def ends(self, log: Log) -> dict[tuple[str, int], int]:
        """Return the end of each partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "ends"}
        )
        with closing(consumer):
            return {
                (log.topic, p): consumer.get_watermark_offsets(TopicPartition(log.topic, p))[1]
                for p in range(log.partitions)
            }

    def left(self, log: Log) -> dict[Place, bytes]:
        """Return what a reader of committed records finds in a log now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers, "group.id": "left",
                "enable.auto.commit": False, "enable.partition.eof": True,
            }
        )  # fmt: skip
        with closing(consumer):
            consumer.assign([TopicPartition(log.topic, p, -2) for p in range(log.partitions)])
            found, open_ones = {}, set(range(log.partitions))
            while open_ones:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error():
                    open_ones.discard(message.partition())
                else:
                    found[message.partition(), message.offset()] = message.value()
        return found

    def _place(self, topic: str) -> Path:
        (place,) = self._folder.glob(f"**/{topic}-0")
        return place

    def _cut(self, topic: str, offset: int) -> None:
        """Take the records from an offset on away, as if they had never been replicated."""
        segment = self._place(topic) / _FIRST_SEGMENT
        data, at = segment.read_bytes(), 0
        while _HEAD.unpack_from(data, at)[0] < offset:
            at += _HEAD.size + _HEAD.unpack_from(data, at)[1]
        segment.write_bytes(data[:at])
        self._forget(topic)

    def _move(self, topic: str, base: int) -> None:
        """Give the records of a log offsets from a base on; checksums do not cover offsets."""
        place = self._place(topic)
        data, at = bytearray((place / _FIRST_SEGMENT).read_bytes()), 0
        while at < len(data):
            first, size = _HEAD.unpack_from(data, at)
            _HEAD.pack_into(data, at, first + base, size)
            at += _HEAD.size + size
        for file in place.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        (place / f"{base:020d}.log").write_bytes(data)
        self._forget(topic)

    def _forget(self, topic: str) -> None:
        """Remove what the broker has noted of a log, so that it reads the log as after a crash."""
        folder = self._place(topic).parent
        for name in _CHECKPOINTS:
            kept = [
                line
                for line in (folder / name).read_text().splitlines()[2:]
                if not line.startswith(f"{topic} 0 ")
            ]
            (folder / name).write_text("\n".join(["0", str(len(kept)), *kept, ""]))
        (folder / ".kafka_cleanshutdown").unlink(missing_ok=True)

    # -- clients

    def _producer(self, **settings: object) -> _Flushed:
        own = {"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 0}
        return _Flushed(own | settings)

    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)


class AnyName(str):
    """The name of a header; what is U+FFFD in it is written as a byte that is not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        """Return its bytes, which kafka-python writes."""
        return str(self).encode().replace("\ufffd".encode(), b"\xff")


class _Flushed(Producer):
    """A producer that is flushed at the end of its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self.flush(PATIENCE)


def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.05)

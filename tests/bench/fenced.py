"""The fenced writer beside the raw clients: own a log, append, append together, replay."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any

from coopconsume import FencedWriter
from coopconsume.fenced import LogReader, MultiLogWriter, Write
from coopconsume.fenced.engine import LogAppend
from coopconsume.fenced.stamp import Stamp, encode_batch
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.fenced.stamp import Visibility
    from tests.bench.harness import Harness

_VALUE = b"x" * 100
_LARGE = 1_000
_CALLERS = 64
_BATCH = 1 << 20
_ASKED = "bare consumer that asks for each record's fields and headers"
_VISIBILITIES: tuple[Visibility, ...] = ("read_committed", "filter")
_numbers = itertools.count(1)


def fenced(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds to own a log and to append; records a second of a replay."""
    client = _Bare(harness.broker.bootstrap_servers)
    return [part(harness, client, say) for part in (_own, _append, _together, _several, _replay)]


class _Bare:
    """The bare client, confluent-kafka, with the settings of the writer's."""

    def __init__(self, servers: str) -> None:
        self.options = {"kafka.bootstrap.servers": servers}
        self._servers = servers

    def producer(self, transactional_id: str | None) -> Any:
        """A producer; not yet initialised."""
        from confluent_kafka import Producer

        more = {} if transactional_id is None else {"transactional.id": transactional_id}
        return Producer(
            {
                "bootstrap.servers": self._servers, "retry.backoff.ms": 5, "linger.ms": 10_000,
                "batch.size": _BATCH, "batch.num.messages": 1_000_000, "acks": "all",
                "enable.idempotence": True, **more,
            }
        )  # fmt: skip

    def send(
        self, producer: Any, topic: str, count: int, stamps: Sequence[Any] | None = None
    ) -> None:
        """Send records, with headers or without, and wait until all are acknowledged."""
        offsets: list[int] = []
        for headers in stamps or itertools.repeat(None, count):
            producer.produce(
                topic, _VALUE, partition=0, headers=headers,
                on_delivery=lambda _, m: offsets.append(m.offset()),
            )  # fmt: skip
        producer.flush()
        assert len(offsets) == count

    def put(self, producer: Any, topic: str) -> None:
        """Adds a record to the producer's next batch of a topic."""
        producer.produce(topic, _VALUE, partition=0)

    def read(self, topic: str, count: int, *, fields: bool = False) -> None:
        """Read so many committed records, and ask for the fields of each, or do not."""
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as At

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers, "group.id": "none",
                "isolation.level": "read_committed", "fetch.message.max.bytes": 8 << 20,
            }
        )  # fmt: skip
        consumer.assign([At(topic, 0, 0)])
        while count > 0:
            # With more than there are it would wait for the rest of its time.
            found = consumer.consume(min(count, 128 if fields else 10_000), 0.2)
            count -= len(found)
            if fields:
                for m in found:
                    m.offset(), m.timestamp(), m.key(), m.value(), m.headers()
        consumer.close()


def _topic(harness: Harness) -> str:
    name = f"fenced-{next(_numbers)}"
    harness.broker.create_topic(name, 1)
    return name


def _writer(harness: Harness, client: _Bare, visibility: Visibility) -> FencedWriter:
    """An owner of a new log."""
    topic = _topic(harness)
    return FencedWriter(client.options, topic, visibility=visibility).acquire()


def _own(harness: Harness, client: _Bare, say: Callable[[str], None]) -> Report:
    rounds = harness.size(10, 2)
    idle, busy = _topic(harness), _topic(harness)
    ours, bare = "acquire an idle log", "bare init_transactions"
    take, bare_take = "take a log over in the middle of a transaction", "bare take-over"

    def acquire(topic: str, *, in_transaction: bool) -> float:
        before = FencedWriter(client.options, topic, fence_owner=True).acquire()
        if in_transaction:
            channel = before._session.channel
            assert channel is not None
            channel.begin()
            channel.append([LogAppend(before.log, [_entry()], [("fw", b"")])], 30)
        after = FencedWriter(client.options, topic, fence_owner=True)
        seconds = seconds_of(after.acquire)
        before.close()
        after.close()
        return seconds

    def init(name: str, topic: str, *, in_transaction: bool) -> float:
        before = client.producer(name)
        before.init_transactions()
        if in_transaction:
            before.begin_transaction()
            client.send(before, topic, 1)
        began = time.perf_counter()
        after = client.producer(name)
        after.init_transactions()
        seconds = time.perf_counter() - began
        before.purge()
        return seconds

    sides: dict[str, Callable[[int], float]] = {
        ours: lambda _: _median(rounds, lambda: acquire(idle, in_transaction=False)),
        bare: lambda _: _median(rounds, lambda: init("idle", idle, in_transaction=False)),
        take: lambda _: _median(rounds, lambda: acquire(busy, in_transaction=True)),
        bare_take: lambda _: _median(rounds, lambda: init("busy", busy, in_transaction=True)),
    }
    report = Report(
        "To own a log",
        "From making the writer to its open record being committed. The bare side makes a producer "
        f"and calls `init_transactions`. Each value is the median of {rounds}.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [
        Ratio("acquire / bare", ours, bare, at_most=3.0),
        Ratio("take over / bare", take, bare_take, at_most=3.0),
    ]
    return report


def _append(harness: Harness, client: _Bare, say: Callable[[str], None]) -> Report:
    rounds = harness.size(20, 3)
    writers = {visibility: _writer(harness, client, visibility) for visibility in _VISIBILITIES}
    transactional, plain = client.producer("bench"), client.producer(None)
    transactional.init_transactions()
    topic = _topic(harness)

    def bare(count: int, stamps: Sequence[Any] | None = None) -> None:
        transactional.begin_transaction()
        client.send(transactional, topic, count, stamps)
        transactional.commit_transaction()

    def ours(visibility: Visibility, count: int) -> None:
        writer = writers[visibility]
        writer.append([_VALUE] * count, expected_seq=writer.next_seq)

    calls: dict[str, Callable[[], None]] = {}
    ratios = []
    for count in (1, _LARGE):
        # librdkafka itself takes 1.3 to 1.8 times as long for a record with a header.
        most = 1.6 if count > 1 else 1.3
        what = f"{count:,} record{'' if count == 1 else 's'}"
        names = [f"{kind}, {what}" for kind in (
            "append", "bare transaction", "append, filter", "bare idempotent send",
        )]  # fmt: skip
        calls |= {
            names[0]: functools.partial(ours, "read_committed", count),
            names[1]: functools.partial(bare, count),
            names[2]: functools.partial(ours, "filter", count),
            names[3]: functools.partial(client.send, plain, topic, count),
        }
        ratios += [
            Ratio(f"append / bare, {what}", names[0], names[1], at_most=1.3),
            Ratio(f"filter / bare, {what}", names[2], names[3], at_most=most),
        ]
    head = Stamp("filter", "data", 1, 10**6, _LARGE, 0, "b" * 12, 10**6)
    stamps = [[header] for header in encode_batch(head)]
    floors = [f"bare {kind}, same headers, {what}" for kind in ("transaction", "idempotent send")]
    calls |= {
        floors[0]: lambda: bare(_LARGE, stamps),
        floors[1]: lambda: client.send(plain, topic, _LARGE, stamps),
    }
    ratios += [
        Ratio(f"append / bare with the same headers, {what}", names[0], floors[0]),
        Ratio(f"filter / bare with the same headers, {what}", names[2], floors[1]),
    ]

    def side(call: Callable[[], None]) -> Callable[[int], float]:
        return lambda _: _median(rounds, lambda: seconds_of(call))

    sides = {name: side(call) for name, call in calls.items()}
    report = Report(
        "Appending",
        "Records of 100 bytes to one partition, each append on the condition of its sequence "
        "number, from the call to its return. The bare sides send without headers, or with the "
        "same ones, wait for every offset, and commit; same settings. Each value is the median of "
        f"{rounds}.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = ratios
    for writer in writers.values():
        writer.close()
    for producer in (transactional, plain):
        producer.flush()
    return report


def _together(harness: Harness, client: _Bare, say: Callable[[str], None]) -> Report:
    each = harness.size(20, 2)
    sides: dict[str, Callable[[int], float]] = {}
    ratios = []
    writers = []

    def one(writer: FencedWriter) -> None:
        for _ in range(each):
            writer.append([_VALUE])

    def threads(writer: FencedWriter) -> None:
        with ThreadPoolExecutor(_CALLERS) as pool:
            for done in [pool.submit(one, writer) for _ in range(_CALLERS)]:
                done.result()

    async def coroutine(writer: FencedWriter) -> None:
        for _ in range(each):
            await writer.append_async([_VALUE])

    async def coroutines(writer: FencedWriter) -> None:
        await asyncio.gather(*(coroutine(writer) for _ in range(_CALLERS)))

    def rate(
        appends: int, run: Callable[[FencedWriter], None], writer: FencedWriter
    ) -> Callable[[int], float]:
        return lambda _: appends / seconds_of(lambda: run(writer))

    for visibility in _VISIBILITIES:
        writer = _writer(harness, client, visibility)
        writers.append(writer)
        names = [f"{who}, {visibility}" for who in (
            "one caller", f"{_CALLERS} threads", f"{_CALLERS} coroutines",
        )]  # fmt: skip
        sides |= {
            names[0]: rate(each, one, writer),
            names[1]: rate(_CALLERS * each, threads, writer),
            names[2]: rate(_CALLERS * each, lambda w: asyncio.run(coroutines(w)), writer),
        }
        ratios += [Ratio(f"{name} / one caller", name, names[0], at_least=10) for name in names[1:]]
    report = Report(
        "Appends at the same time",
        f"Records of 100 bytes, one in each append. Each caller makes {each} appends, one after "
        "another, by one writer.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "appends/s")
    report.ratios = ratios
    for writer in writers:
        writer.close()
    return report


def _several(harness: Harness, client: _Bare, say: Callable[[str], None]) -> Report:
    rounds = harness.size(20, 3)
    logs = [(_topic(harness), 0) for _ in range(3)]
    topics = [_topic(harness) for _ in logs]
    writer = MultiLogWriter(client.options, logs).acquire()
    producer = client.producer("bench-several")
    producer.init_transactions()

    def ours() -> None:
        writer.append({log: Write([_VALUE], expected_seq=writer.next_seq(*log)) for log in logs})

    def bare() -> None:
        producer.begin_transaction()
        for topic in topics:
            client.put(producer, topic)
        producer.flush()
        producer.commit_transaction()

    several, transaction = "append to three logs", "bare transaction"
    sides: dict[str, Callable[[int], float]] = {
        several: lambda _: _median(rounds, lambda: seconds_of(ours)),
        transaction: lambda _: _median(rounds, lambda: seconds_of(bare)),
    }
    report = Report(
        "One append to three logs",
        "One record of 100 bytes to each of three logs, on the condition of the sequence number of "
        f"each. The bare side sends to three topics in one transaction. Medians of {rounds}.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [Ratio("append / bare", several, transaction)]
    report.notes.append("Wanted: at most 20 ms.")
    writer.close()
    producer.flush()
    return report


def _replay(harness: Harness, client: _Bare, say: Callable[[str], None]) -> Report:
    count = harness.size(100_000, 2_000)
    topic = _topic(harness)
    with FencedWriter(client.options, topic) as writer:
        for _ in range(0, count, _LARGE):
            writer.append([_VALUE] * _LARGE)

    def ours() -> None:
        with LogReader(client.options, topic) as reader:
            assert sum(1 for _ in reader.read()) == count

    sides: dict[str, Callable[[int], float]] = {
        "LogReader": lambda _: count / seconds_of(ours),
        "bare consumer": lambda _: count / seconds_of(lambda: client.read(topic, count)),
        _ASKED: lambda _: count / seconds_of(lambda: client.read(topic, count, fields=True)),
    }
    report = Report(
        "Replay",
        f"{count:,} records of 100 bytes in batches of {_LARGE:,}, every stamp looked at; from "
        "making the reader on. The bare side reads the same log and looks at nothing.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "records/s")
    report.ratios = [
        Ratio("ours / bare", "LogReader", "bare consumer", at_least=0.6),
        Ratio("ours / bare that asks", "LogReader", _ASKED),
    ]
    return report


def _median(rounds: int, seconds: Callable[[], float]) -> float:
    """Milliseconds."""
    return 1000 * median(seconds() for _ in range(rounds))


def _entry() -> Any:
    from coopconsume.fenced import Entry

    return Entry(_VALUE)

"""Work queues on real brokers: holds, acknowledgements, killed consumers, lost replicas."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from deltalake import DeltaTable
from kafka import KafkaProducer, TopicPartition
from kafka.producer.sender import Sender

from commits import CommitLogUnavailable, CommitStore, CommitTableFormat
from coopconsume.cli import main
from coopconsume.errors import (
    BrokerUnreachable,
    InvalidOption,
    NotHeld,
    QueueLogFormat,
    QueueNotFound,
    QueueUnavailable,
)
from coopconsume.kafka.records import Taken
from coopconsume.options import Options
from coopconsume.queue import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    AsyncQueueConsumer,
    QueueConsumer,
    QueueReplica,
    queue_status,
)
from coopconsume.queue.log_client import KafkaLog
from coopconsume.queue.replica_log import ReaderEvent, RecordsRead, ReplicaLog
from coopconsume.queue.table_log import TableLog
from coopconsume.testing.local.broker import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.record import Record
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
_HOLDER = """
import sys, time
from coopconsume.queue import QueueConsumer
servers, group, topic, hold, *replicas = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "kafka.group.id": group}
consumer = QueueConsumer(options, topic, replicas or None, hold=float(hold))
print(*[record.offset for record in consumer.poll(3, timeout=60.0)], flush=True)
time.sleep(600)
"""


def options_of(kafka: LocalKafka, group: str, **more: Any) -> dict[str, Any]:
    """Options of a queue on a broker."""
    own = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group}
    return own | more


def polled(consumer: QueueConsumer, count: int) -> list[Record]:
    """Poll until there are so many records."""
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(count - len(found), timeout=1.0)
    assert len(found) == count
    return found


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def commanded(kafka: LocalKafka, *words: str) -> list[str]:
    """The output of ``coopconsume queue``."""
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    done = CliRunner().invoke(main, ["queue", *words, *servers])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def places(records: list[Record]) -> set[tuple[int, int]]:
    """Partition and offset of each record."""
    return {(record.partition, record.offset) for record in records}


def test_consumers_share_records_and_acknowledge_each(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """Accept, release, reject, renew, commit, close; the group's offset in Kafka follows."""
    from kafka.admin import KafkaAdminClient

    name, letters = topic(2), topic(1)
    for partition in (0, 1):
        produce(name, [(b"k", b"%d" % i) for i in range(20)], partition)
    options = options_of(kafka, f"{name}-group", deadLetter=f"kafka:{letters}")
    with (
        QueueConsumer(options, name) as one,
        QueueConsumer(options, name) as two,
    ):
        mine = polled(one, 10)
        others = polled(two, 25)
        assert not places(mine) & places(others)
        assert {record.attempt for record in mine + others} == {1}
        assert {record.value for record in mine} == {b"%d" % i for i in range(10)}
        released, rejected, renewed, *rest = mine
        for record in (*rest, *others):
            one_or_two = one if record in rest else two
            one_or_two.acknowledge(record, ACCEPT)
        one.acknowledge(released, RELEASE)
        one.acknowledge(rejected, REJECT, reason="half \ud83d")  # UTF-8 cannot hold it
        one.acknowledge(renewed, RENEW)
        with pytest.raises(NotHeld, match=f"offsets 0 to 0 of {name}-0 are not held"):
            two.acknowledge(released)
        with pytest.raises(InvalidOption, match="delay"):
            one.acknowledge(renewed, ACCEPT, delay=1.0)
        assert one.commit().done == 10
        assert two.commit().not_held == ()
        with pytest.raises(NotHeld):
            one.acknowledge(rejected)
        one.acknowledge(renewed)
        (again,) = polled(two, 1)
        assert (again.offset, again.attempt) == (released.offset, 2)
        two.acknowledge(again)
        assert (one.commit().done, two.commit().done) == (1, 1)
        until(lambda: one.stable_offsets()[0] == 20)
        taken = polled(one, 5)  # closed without a word: released
    with QueueConsumer(options, name) as three:
        last = polled(three, 5)
        assert places(last) == places(taken)
        assert {record.attempt for record in last} == {2}
        for record in last:
            three.acknowledge(record)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        group = f"{name}-group"
        found = admin.list_group_offsets({group: None})[group]
        assert {at.partition: int(held.offset) for at, held in found.items()} == {0: 20, 1: 20}
    finally:
        admin.close()
    assert _last_value(kafka, letters) == rejected.value
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    for words, said in (
        (("put", f"{name}-x", "late"), f"no topic '{name}-x' on "),
        (("list", name, "--group", "others"), f"no queue others/{name}: topic __queue.others"),
    ):
        wrong = CliRunner().invoke(main, ["queue", *words, *servers])
        assert (wrong.exit_code, wrong.stdout) == (1, "")
        assert wrong.stderr.startswith(f"coopconsume: {said}")
    (shown,) = commanded(kafka, "put", name, "late")
    assert shown == f"1 records written to {name}"
    place = (name, "--group", f"{name}-group")
    _, taken_row = commanded(kafka, "take", *place, "--timeout", "60")
    assert taken_row.split()[-1] == "late"
    _, zero, first = commanded(kafka, "list", *place)
    assert {*zero.split()[2:], *first.split()[2:]} == {"0", "same"}
    assert len(commanded(kafka, "holds", *place)) == 1
    assert "yes" in commanded(kafka, "audit", *place)[1]


def test_typed_records_of_a_queue(kafka: LocalKafka, topic: TopicFactory, produce: Produce) -> None:
    """What does not decode is rejected with its bytes; a record is acknowledged as it was given."""
    name, letters = topic(1), topic(1)
    produce(name, [(b"k", b'{"amount": 1}'), (b"k", b"x"), (b"k", b'{"amount": 3}')])
    options = options_of(kafka, f"{name}-group", deadLetter=f"kafka:{letters}")

    class Order(msgspec.Struct):
        """Of the program itself: no worker needs it."""

        amount: int

    with QueueConsumer(options, name, value=Order, key="text") as queue:
        records = polled(queue, 2)
        found = [(r.offset, r.key, r.value) for r in records]
        assert found == [(0, "k", Order(1)), (2, "k", Order(3))]
        for record in records:
            queue.acknowledge(record)
        queue.commit()
        assert queue.stable_offsets() == {0: 3}
    assert _last_value(kafka, letters) == b"x"


def test_a_queue_without_dead_letters_releases_what_does_not_decode(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds up no other record, and comes again once a consumer can decode it."""
    name = topic(1)
    produce(name, [(b"k", b"x"), (b"k", b"2")])
    options = options_of(kafka, f"{name}-group")

    def decode(data: bytes) -> int:
        if data == b"x":
            raise ConnectionRefusedError("registry")
        return int(data)

    with QueueConsumer(options, name, value=decode) as queue:
        assert [record.value for record in polled(queue, 1)] == [2]
    assert f"{name}-0@0 is released for 1 s: ConnectionRefusedError: registry" in caplog.text
    with QueueConsumer(options, name, value="text") as queue:
        assert {record.value for record in polled(queue, 2)} == {"x", "2"}


def test_an_old_record_far_below_the_others_holds_up_nobody(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between is not read. What is not read in time is no delivery."""
    name = topic(1)
    count = 20_000
    produce(name, [(None, b"%d" % i) for i in range(count)])
    with QueueConsumer(options_of(kafka, f"{name}-group"), name) as consumer:
        old, *others = polled(consumer, count - 100)
        for record in others:
            consumer.acknowledge(record)
        consumer.acknowledge(old, RELEASE)
        consumer.commit()
        read: list[int] = []
        assert consumer._source is not None
        source = consumer._source._reader
        assert source is not None
        take = source.read

        def counted(timeout: float, most: int) -> Taken:
            found = take(timeout, most)
            read.extend(raw.offset() for raws in found.records.values() for raw in raws)
            return found

        def nothing(*_: object) -> Taken:
            time.sleep(0.1)
            return Taken()

        monkeypatch.setattr(source, "read", counted)
        far = consumer.poll(50, timeout=PATIENCE)
        assert [record.offset for record in far] == [0, *range(count - 100, count - 51)]
        assert len(read) == 50
        with monkeypatch.context() as hasty:
            hasty.setattr("coopconsume.queue.consumer._ANSWER", 0.5)
            hasty.setattr(source, "read", nothing)
            assert consumer.poll(51, timeout=0.2) == []
        monkeypatch.setattr(source, "read", take)
        late = polled(consumer, 51)
        assert [record.offset for record in late] == [*range(count - 51, count)]
        assert {record.attempt for record in late} == {1}


@pytest.mark.parametrize("kind", ["topic", "table"])
def test_records_of_a_killed_consumer_come_again(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path, kind: str
) -> None:
    """After its hold, with a higher attempt; too many deliveries make a dead letter."""
    name, letters = topic(1), topic(1)
    produce(name, [(None, b"%d" % i) for i in range(5)])
    group = f"{name}-group"
    replicas = None if kind == "topic" else [str(tmp_path / "holds")]
    arguments = [sys.executable, "-c", _HOLDER, kafka.bootstrap_servers, group, name, "2"]
    arguments += replicas or ()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["0", "1", "2"]
        process.kill()

    async def work() -> list[Record]:
        options = options_of(kafka, group, deadLetter=f"kafka:{letters}")
        found: list[Record] = []
        async with AsyncQueueConsumer(
            options, name, replicas, hold=2.0, max_deliveries=1
        ) as consumer:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and len(found) < 2:
                for record in await consumer.poll(5):
                    found.append(record)
                    await consumer.acknowledge(record)
                await consumer.commit()
            while time.monotonic() < deadline and _last_value(kafka, letters) is None:
                assert await consumer.poll(5) == []
        return found

    assert {record.offset for record in asyncio.run(work())} == {3, 4}
    with QueueConsumer(options_of(kafka, group), name, replicas) as after:
        assert after.stable_offsets() == {0: 5}
        assert after.poll(5, timeout=0.2) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["topic", "table"])
def test_consumers_that_live_for_less_than_a_hold_get_what_has_ended(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path, kind: str
) -> None:
    """A record released with a delay, and those of a killed consumer."""
    name, group, hold = topic(1), f"{topic(1)}-group", 10.0
    produce(name, [(None, b"%d" % i) for i in range(4)])
    options = options_of(kafka, group)
    replicas = None if kind == "topic" else [str(tmp_path / "holds")]
    arguments = [sys.executable, "-c", _HOLDER, kafka.bootstrap_servers, group, name, f"{hold}"]
    with subprocess.Popen(
        [*arguments, *(replicas or ())], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["0", "1", "2"]
        process.kill()
    with QueueConsumer(options, name, replicas, hold=hold) as consumer:
        consumer.acknowledge(*polled(consumer, 1), RELEASE, delay=hold)
    found: list[Record] = []
    consumers, deadline = 0, time.monotonic() + PATIENCE
    while len(found) < 4 and time.monotonic() < deadline:
        consumers += 1
        with QueueConsumer(options, name, replicas, hold=hold) as consumer:
            for record in consumer.poll(4, timeout=2.0):
                found.append(record)
                consumer.acknowledge(record)
    assert sorted(record.offset for record in found) == [0, 1, 2, 3]
    assert {record.attempt for record in found} == {2}
    assert consumers > 1


@pytest.mark.slow
def test_the_loss_of_one_of_three_replicas_is_survived(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """It is the one that is asked first; when it returns it learns what is done."""
    name = topic(1)
    produce(name, [(None, b"%d" % i) for i in range(30)])
    replicas: list[str | QueueReplica] = [f"{name}-r1", f"{name}-r2"]
    group = f"{name}-group"
    with LocalKafka(data_dir=tmp_path / "kafka", log_file=tmp_path / "broker.log") as other:
        away = {"kafka.bootstrap.servers": other.bootstrap_servers}
        replicas.insert(0, QueueReplica(f"{name}-r0", away))
        options = options_of(kafka, group)
        with (
            QueueConsumer(options, name, replicas, hold=30.0) as one,
            QueueConsumer(options, name, replicas, hold=30.0) as two,
        ):
            before = polled(one, 10)
            for record in before:
                one.acknowledge(record)
            assert one.commit().done == 10
            other.kill()
            during = polled(one, 5) + polled(two, 5)
            assert not places(during) & places(before)
            assert len(places(during)) == 10
            for i, record in enumerate(during):
                (one if i < 5 else two).acknowledge(record)
            assert one.commit().done + two.commit().done == 10
            other.start()
            session = two._opened()

            def is_back() -> bool:
                one.poll(1, timeout=0.1)
                session.run(0.1)
                left = session.member.replicas.states[0].done(0).uncommitted(0, 29)
                return not any(offset in left for _, offset in places(before + during))

            until(is_back)
        with QueueConsumer(options, name, replicas, hold=30.0) as three:
            rest = polled(three, 10)
            assert not places(rest) & (places(before) | places(during))
    with pytest.raises(QueueLogFormat, match="rows of the queue"):
        QueueConsumer(options_of(kafka, "another"), name, [f"{name}-r1"]).poll()


def test_a_replica_in_a_table_may_be_away(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """Others go on without it; its table is not created again; it learns what is done."""
    name, table = topic(1), tmp_path / "holds" / "0"
    produce(name, [(None, b"%d" % i) for i in range(30)])
    replicas = [str(table), f"{name}-r1", str(tmp_path / "holds" / "2")]
    options, group = options_of(kafka, f"{name}-group"), f"{name}-group"
    with (
        QueueConsumer(options, name, replicas) as one,
        QueueConsumer(options, name, replicas) as two,
    ):
        before = polled(one, 10)
        assert not places(before) & places(polled(two, 5))
        table.rename(tmp_path / "away")
        for record in before:
            one.acknowledge(record)
        assert one.commit().done == 10
        words = [name, "--group", group, *(x for r in replicas for x in ("--replica", r))]
        servers = ("--bootstrap-servers", kafka.bootstrap_servers)
        during = polled(one, 5)
        for shown in ("list", "holds"):
            found = CliRunner().invoke(main, ["queue", shown, *words, *servers])
            assert (found.exit_code, found.stderr) == (0, "")
        found = CliRunner().invoke(main, ["queue", "audit", *words, *servers])
        assert (found.exit_code, found.stdout.count("does not exist")) == (1, 1)
        two.acknowledge(*polled(two, 1))
        assert two.commit().done == 1
        log = one._opened().replicas[0]._client
        with pytest.raises(CommitLogUnavailable, match="not there any longer"):
            log.prepare(create=True)
        assert not table.exists()
        (tmp_path / "away").rename(table)

        def is_audited() -> bool:
            one.poll(1, timeout=0.1)
            return CliRunner().invoke(main, ["queue", "audit", *words, *servers]).exit_code == 0

        until(is_audited)
        assert not places(during) & places(before)
    with QueueConsumer(options, name, replicas) as three:
        assert not places(polled(three, 19)) & places(before)
    CommitStore.open(tmp_path / "commits", cluster="c")
    for given, found in (
        (str(tmp_path / "commits"), r"coopconsume\.queue\.format=None"),
        (replicas[0], "rows of the queue"),
    ):
        with pytest.raises(QueueLogFormat, match=found):
            QueueConsumer(options_of(kafka, "another"), name, [given]).poll()
    with pytest.raises(CommitTableFormat, match="another Delta table"):
        CommitStore.open(table, cluster="c")
    with pytest.raises(QueueNotFound, match=f"table {tmp_path}/none does not exist"):
        queue_status(options, name, [str(tmp_path / "none")])


@pytest.mark.slow
def test_a_snapshot_replaces_the_start_of_a_table(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path, monkeypatch: Any
) -> None:
    """Consumers that are there go on; one that comes later reads what is left."""
    name, table = topic(1), str(tmp_path / "holds")
    monkeypatch.setattr(TableLog, "snapshot_every", 10)
    monkeypatch.setattr("coopconsume.queue.table_log._SEGMENT", 5)
    options = options_of(kafka, f"{name}-group")
    count = 20
    produce(name, [(None, b"%d" % i) for i in range(2 * count + 1)])
    done: set[tuple[int, int]] = set()
    with (
        QueueConsumer(options, name, [table]) as one,
        QueueConsumer(options, name, [table]) as two,
    ):
        for _ in range(count):
            for consumer in (one, two):
                (record,) = polled(consumer, 1)
                assert (record.partition, record.offset) not in done
                done.add((record.partition, record.offset))
                consumer.acknowledge(record)
                assert consumer.commit().not_held == ()
        until(lambda: one.stable_offsets() == two.stable_offsets() == {0: 2 * count})
        assert one._opened().rows[0].start > 0
    versions, rows = DeltaTable(table).version(), len(DeltaTable(table).to_pyarrow_table())
    assert versions > 4 * count, "each commit and each acquisition is a version"
    assert rows < versions / 2, "most rows are removed"
    status = queue_status(options, name, [table])
    assert (status.is_sound, status.holds, status.partitions[0].stable_offset) == (
        True,
        (),
        2 * count,
    )
    with QueueConsumer(options, name, [table]) as three:
        assert [record.offset for record in polled(three, 1)] == [2 * count]


def test_a_reader_begins_again_if_its_next_records_were_deleted(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """Others have replaced them by a snapshot; the client says so and skips nothing."""
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    produce(name, [(None, b"%d" % i) for i in range(10)])
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        admin.delete_records({TopicPartition(name, 0): 4})
    finally:
        admin.close()
    options = Options.parse(options_of(kafka, name), table=False)
    client: Any = KafkaLog(name, name, options)
    try:
        assert client.begin_reading() == (4, 10)
        client._reader.seek((name, 0), 2)
        found: Any = []
        until(lambda: (found.append(client.read(0.5)), found[-1] is None)[1])
        assert not any(found)
    finally:
        client.end_reading()


def test_the_start_of_a_log_is_deleted_once_its_snapshot_can_be_read(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that is lost on its way is written again; a new consumer reads the rest."""
    name, lost = topic(1), []
    replica = f"{name}-r"
    append = ReplicaLog.append
    rows: list[bool] = []

    def lossy(to: ReplicaLog, row: bytes) -> None:
        rows.append(b'"snapshot"' in row)
        if rows[-1] and not lost:
            lost.append(_first_offset(kafka, replica))
        else:
            append(to, row)

    monkeypatch.setattr(KafkaLog, "snapshot_every", 30)
    monkeypatch.setattr(ReplicaLog, "append", lossy)
    options = options_of(kafka, f"{name}-group")
    done = 0
    with QueueConsumer(options, name, [replica]) as consumer:
        while not (lost and _first_offset(kafka, replica)):
            produce(name, [(None, b"%d" % done)])
            consumer.acknowledge(*polled(consumer, 1))
            done += consumer.commit().done
            assert done < 1_000
    assert 2 <= sum(rows) <= len(rows) // 30, "no more often than after so many rows"
    produce(name, [(None, b"last")])
    with QueueConsumer(options, name, [replica]) as consumer:
        assert [record.offset for record in polled(consumer, 1)] == [done]


def test_a_row_does_not_overtake_one_that_waits(
    kafka: LocalKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client that cannot take it at once leaves it to the thread that writes."""
    name = topic(1)
    options = Options.parse(options_of(kafka, name), table=False)
    client, events = KafkaLog(name, name, options), queue.SimpleQueue[ReaderEvent]()
    replica = ReplicaLog(0, client, events, PATIENCE)
    replica.start()
    gate, write, write_now = threading.Event(), client.write, client.write_now
    try:
        replica.append(b"connects")
        until(lambda: client._producer is not None and replica._queued == replica._finished)  # type: ignore[attr-defined]
        monkeypatch.setattr(client, "write_now", lambda *_: False)
        monkeypatch.setattr(client, "write", lambda rows: (gate.wait(), write(rows)))
        replica.append(b"waits")
        monkeypatch.setattr(client, "write_now", write_now)
        replica.append(b"later")
        gate.set()
        values: list[bytes | None] = []
        while len(values) < 3:
            event = events.get(timeout=PATIENCE)
            values += [row[2] for row in event.records] if isinstance(event, RecordsRead) else []
    finally:
        gate.set()
        replica.close()
    assert values == [b"connects", b"waits", b"later"]


def test_a_foreign_transaction_at_the_end_of_a_replica_stops_nobody(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """Its marker takes an offset without a record, for those that read and for new ones."""
    name, replica = topic(1), topic(1)
    produce(name, [(None, b"%d" % n) for n in range(3)])
    options = options_of(kafka, f"{name}-group")
    servers = kafka.bootstrap_servers
    with QueueConsumer(options, name, [replica]) as consumer:
        consumer.acknowledge(*polled(consumer, 1))
        consumer.commit()
        foreign = Producer({"bootstrap.servers": servers, "transactional.id": name})
        foreign.init_transactions()
        foreign.begin_transaction()
        foreign.produce(replica, b"foreign")
        foreign.abort_transaction()
        consumer.acknowledge(*polled(consumer, 1))
        assert consumer.commit().done == 1
    foreign.begin_transaction()
    foreign.produce(replica, b"foreign")
    foreign.commit_transaction()
    with QueueConsumer(options, name, [replica]) as consumer:
        assert [record.offset for record in polled(consumer, 1)] == [2]


def _first_offset(kafka: LocalKafka, topic: str) -> int:
    """The first offset of a topic of one partition."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None)
    try:
        at = TopicPartition(topic, 0)
        return int(consumer.beginning_offsets([at])[at])
    finally:
        consumer.close()


def _last_value(kafka: LocalKafka, topic: str) -> bytes | None:
    """The value of the last record of a topic of one partition."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None)
    try:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        end = consumer.end_offsets([at])[at]
        found = None
        while consumer.position(at) < end:
            for record in consumer.poll(timeout_ms=500).get(at, []):
                found = record.value
        return found
    finally:
        consumer.close()


def test_a_queue_without_a_majority_says_so(
    kafka: LocalKafka,
    topic: TopicFactory,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the replicas that do not answer."""
    name = topic(1)
    monkeypatch.setattr("coopconsume.queue.consumer._OPENING", 3.0)
    nowhere = QueueReplica(f"{name}-r", {"kafka.bootstrap.servers": "127.0.0.1:1"})
    consumer = QueueConsumer(options_of(kafka, name), name, [nowhere])
    with pytest.raises(QueueUnavailable, match=r"no answer from: topic .* of 127\.0\.0\.1:1"):
        consumer.poll()
    consumer.close()


@pytest.mark.slow
def test_a_poll_keeps_to_its_time_while_the_broker_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the replica, and the end leaves no traceback and no thread of the producer."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = {*threading.enumerate()}
    with LocalKafka(data_dir=tmp_path / "kafka", log_file=tmp_path / "broker.log") as other:
        other.create_topic("tasks", 1)
        producer = KafkaProducer(bootstrap_servers=other.bootstrap_servers)
        producer.send("tasks", b"one").get(timeout=PATIENCE)
        producer.send("tasks", b"two").get(timeout=PATIENCE)
        producer.close()
        consumer = QueueConsumer(options_of(other, "workers"), "tasks", hold=60.0)
        (one,) = polled(consumer, 1)
        other.freeze()
        try:
            for _ in range(2):
                started = time.monotonic()
                assert consumer.poll(1, timeout=0.2) == []
                assert time.monotonic() - started < 9.0
            consumer._away_since = 0.0
            with pytest.raises(BrokerUnreachable):
                consumer.poll(1, timeout=0.2)
            consumer.acknowledge(one)
            with pytest.raises(QueueUnavailable, match=r"no answer from: topic __queue\.workers"):
                consumer.poll(1, timeout=0.2)
            monkeypatch.setattr(consumer, "_settings", replace(consumer._settings, hold=2.0))
            with pytest.raises(QueueUnavailable):
                consumer.close()
        finally:
            other.thaw()
    assert failed == []
    until(lambda: not any(isinstance(t, Sender) for t in {*threading.enumerate()} - before))

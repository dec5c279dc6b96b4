"""What the driver reads of Kafka with `RecordReader`, on a real broker."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from kafka.structs import TopicPartition

from coopconsume.kafka.headers import message_headers, quick_headers
from coopconsume.kafka.records import RecordReader
from tests.situations.logs import CODECS, HEADERS, AnyName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from coopconsume import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = [pytest.mark.broker]

PATIENCE = 60.0


@pytest.fixture
def reader(kafka: LocalKafka) -> Iterator[RecordReader]:
    """Return a reader of the run's broker."""
    with closing(RecordReader({"bootstrap.servers": kafka.bootstrap_servers})) as made:
        yield made


def read(reader: RecordReader, is_enough: Callable[[list[Any]], object]) -> list[Any]:
    """Read until it is enough."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while not is_enough(found):
        assert time.monotonic() < deadline, found
        for records in reader.read(0.5).records.values():
            found += records
    return found


def test_every_codec_is_read(kafka: LocalKafka, topic: TopicFactory, reader: RecordReader) -> None:
    """With what the package depends on, and nothing else."""
    name = topic(1)
    for codec in CODECS:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec}
        producer = Producer(settings)
        producer.produce(name, codec.encode() + bytes(2_000))
        assert producer.flush(PATIENCE) == 0
    reader.assign({(name, 0): 0})
    found = read(reader, lambda found: len(found) == len(CODECS))
    assert [record.value().rstrip(b"\0").decode() for record in found] == list(CODECS)


def test_headers_may_have_any_name(
    kafka: LocalKafka, topic: TopicFactory, reader: RecordReader
) -> None:
    """Twice the same, or not UTF-8; as often as they are asked for."""
    name = topic(1)
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        odd = [(AnyName(key), value) for key, value in HEADERS]
        for headers in (odd, [("plain", b"1")], []):
            producer.send(name, b"v", headers=headers, partition=0).get(PATIENCE)
    reader.assign({(name, 0): 0})
    first, *others = read(reader, lambda found: len(found) == 3)
    for _ in range(2):
        assert tuple(message_headers(first)) == HEADERS
        assert [message_headers(record) for record in others] == [[("plain", b"1")], []]


def test_headers_that_are_read_quickly_have_names(
    kafka: LocalKafka, topic: TopicFactory, reader: RecordReader
) -> None:
    """One that is not UTF-8 is an error of that call, however often others were read before."""
    name = topic(1)
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        odd, plain = [(AnyName(key), value) for key, value in HEADERS], [("plain", b"1")]
        for headers in [plain] * 200 + [odd] * 100 + [plain]:
            producer.send(name, b"v", headers=headers, partition=0)
    reader.assign({(name, 0): 0})
    found = read(reader, lambda found: len(found) == 301)
    for message in found[:200]:
        assert quick_headers([message]) == [plain]
    for message in found[200:300]:
        with pytest.raises(SystemError):
            quick_headers([message])
    assert quick_headers(found[300:]) == [plain]


def test_positions_pass_what_is_no_record(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, reader: RecordReader
) -> None:
    """The marker of a transaction at the end; a partition that is sought again is read again."""
    name = topic(2)
    at, other = (name, 0), (name, 1)
    produce(name, [(None, b"%d" % n) for n in range(3)], 0)
    foreign = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    foreign.init_transactions()
    foreign.begin_transaction()
    foreign.produce(name, b"aborted", partition=0)
    foreign.flush()
    foreign.abort_transaction()
    assert list(reader.partitions(name)) == [0, 1]
    deadline = time.monotonic() + PATIENCE
    while reader.bounds(at) != (0, 5):  # The marker comes a moment after the answer.
        assert time.monotonic() < deadline
    reader.assign({at: 0, other: 0})
    found = read(reader, lambda _: reader.positions[at] == 5)
    assert [record.offset() for record in found] == [0, 1, 2]
    reader.seek(at, 1)
    assert reader.positions == {at: 1, other: 0}
    found = read(reader, lambda _: reader.positions[at] == 5)
    assert [record.offset() for record in found] == [1, 2]
    reader.pause([at])
    reader.seek(at, 0)
    produce(name, [(None, b"other")], 1)
    reader.pause([at])
    found = read(reader, lambda _: reader.positions[other] == 1)
    assert [(record.partition(), record.offset()) for record in found] == [(1, 0)]
    reader.resume([at])
    assert len(read(reader, lambda _: reader.positions[at] == 5)) == 3


def test_offsets_that_were_deleted_are_lost(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, reader: RecordReader
) -> None:
    """They are named, and nothing is skipped in silence."""
    name = topic(1)
    produce(name, [(None, b"%d" % n) for n in range(5)])
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_records({TopicPartition(name, 0): 3})
    reader.assign({(name, 0): 1})
    deadline, lost = time.monotonic() + PATIENCE, set[tuple[str, int]]()
    while not lost:
        assert time.monotonic() < deadline
        taken = reader.read(0.5)
        assert not taken.records
        lost = taken.lost
    assert lost == {(name, 0)}
    assert reader.positions == {(name, 0): 1}
    reader.seek((name, 0), reader.bounds((name, 0))[0])
    found = read(reader, lambda _: reader.positions[name, 0] == 5)
    assert [record.offset() for record in found] == [3, 4]


def test_errors_are_those_of_kafka_python(kafka: LocalKafka, reader: RecordReader) -> None:
    """A topic that is missing; a broker that does not answer."""
    assert list(reader.partitions("missing")) == []
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.bounds(("missing", 0))
    nobody = RecordReader({"bootstrap.servers": "127.0.0.1:1"}, patience=0.5)
    with closing(nobody), pytest.raises(KafkaError):
        nobody.bounds(("t", 0))


def test_it_reads_on_where_an_error_or_an_interrupt_has_left_it(
    topic: TopicFactory, produce: Produce, reader: RecordReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client has taken, and nobody was given, is read again."""
    name = topic(2)
    at, other = (name, 0), (name, 1)
    for partition in (0, 1):
        produce(name, [(None, b"%d" % n) for n in range(10)], partition)
    reader.assign({at: 0, other: 0})
    reader.pause([other])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def is_interrupted(step: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(reader, "_raise_refusal", interrupt)
            patch.setattr(reader, "_consumer", Interrupted(reader._consumer, interrupt))
            with pytest.raises(KeyboardInterrupt):
                step()

    for step in (lambda: reader.seek(at, 3), lambda: reader.read(PATIENCE, 2)):
        reader.seek(at, 3)
        is_interrupted(step)
        assert reader.positions == {at: 3, other: 0}
        found = read(reader, lambda _: reader.positions[at] == 10)
        assert [record.offset() for record in found] == list(range(3, 10))
    assert reader.positions == {at: 10, other: 0}


class Interrupted:
    """A client that is interrupted as it begins to read at another offset."""

    def __init__(self, client: Any, interrupt: Callable[[], None]) -> None:
        self._client = client
        self.incremental_assign = lambda _: interrupt()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_refusal_is_raised_once(reader: RecordReader) -> None:
    """The client connects again by itself, as with a password that has come back."""
    reader._refusal = KafkaError("the login was refused")
    with pytest.raises(KafkaError, match="the login was refused"):
        reader.read(0.0)
    assert not reader.read(0.0).records


def test_a_loss_of_an_earlier_position_does_not_count(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, reader: RecordReader
) -> None:
    """The client may say it late."""
    name = topic(1)
    at = (name, 0)
    produce(name, [(None, b"%d" % n) for n in range(10)])
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_records({TopicPartition(name, 0): 5})
    reader.assign({at: 2})
    time.sleep(1.0)  # so that the client knows; if it does not, nothing is tested
    reader.assign({at: 7})
    found = read(reader, lambda _: reader.positions[at] == 10)
    assert [record.offset() for record in found] == [7, 8, 9]
    assert not reader.lost


def test_a_child_may_drop_a_reader(kafka: LocalKafka, topic: TopicFactory) -> None:
    """It has none of its threads, and is not ended by that."""
    code = f"""
import gc, os
from coopconsume.kafka.records import RecordReader
reader = RecordReader({{"bootstrap.servers": {kafka.bootstrap_servers!r}}})
reader.assign({{({topic(1)!r}, 0): 0}})
reader.read(1.0)
child = os.fork()
if not child:
    del reader
    gc.collect()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "0\n", run.stderr

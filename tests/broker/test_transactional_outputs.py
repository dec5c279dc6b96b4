"""Outputs in transactions on a real broker: a reader of committed records sees each one once."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from assignors import KeyRange, Share
from commits import Epoch, OffsetRanges
from coopconsume.errors import FencedMember, OutputsNotPublished
from coopconsume.fenced import kafka_channel
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.membership import Membership
from coopconsume.group.owned import EpochGrant
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.producer import ORIGIN_HEADER, Message
from coopconsume.options import Options
from coopconsume.sinks import Outputs, TransactionalTopic, publishing
from coopconsume.sinks.publishing import Publishing
from coopconsume.sinks.purgatory import Purgatory
from coopconsume.sinks.transactions import TransactionChannel
from tests.broker.member_process import ReportingWorker
from tests.model.job_world import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.broker]

COUNT = 14
SCHEMA = pa.schema([("value", pa.string()), ("key", pa.binary())])


class Killed(BaseException):
    """Stands for the end of a process: nobody catches it."""


class Process:
    """A process that has the topic's first partition, and publishes what comes of it."""

    _runs = itertools.count()

    def __init__(
        self, options: Options, topic: str, out: str, *, publishes: bool = True,
        grant: EpochGrant | None = None,
    ) -> None:  # fmt: skip
        self.tp = (topic, 0)
        self.member = Membership(options, 1, ReportingWorker())
        if grant is None:
            self.member.assign({self.tp: []}, takeover=True)
        else:
            self.member.owner.assigned(grant)
        found = self.member.assignment
        assert found is not None
        self.assignment = found
        self.sink = TransactionalTopic(out, SCHEMA, options)
        if publishes:
            self.assignment.primary.publish_by(self.sink.begin(self.assignment))
        self._ids = (f"run{next(self._runs)}-{i}" for i in itertools.count())

    def do(self, *offsets: int, rows: int = 2) -> None:
        """Do records: their rows wait, then they are committed."""
        commit_id = next(self._ids)
        self.sink.write(self.outputs(offsets, rows, commit_id))
        self.assignment.commit({self.tp: OffsetRanges.from_offsets(offsets)}, commit_id=commit_id)

    def outputs(self, offsets: tuple[int, ...], rows: int, commit_id: str) -> Outputs:
        """So many rows of each record."""
        flat = [(offset, row) for offset in offsets for row in range(rows)]
        table = pa.table(
            {
                "value": pa.array([f"{o}.{r}" for o, r in flat], pa.string()),
                "key": pa.array([b"%d" % (o % 3) for o, _ in flat], pa.binary()),
                "_part": pa.array([0] * len(flat), pa.int32()),
                "_offset": pa.array([o for o, _ in flat], pa.int64()),
            }
        )
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        parts = [((self.tp,), out.getvalue().to_pybytes())]
        return Outputs(parts, {}, self.assignment.topic_ids, commit_id)

    @property
    def undone(self) -> list[int]:
        """Offsets of records that the log does not have."""
        stable = self.assignment.owned[self.tp]
        return [o for o in range(COUNT) if o >= stable.stable and o not in stable.committed]

    def leave(self) -> None:
        """Come to an end."""
        self.sink.close()
        self.member.leave()


@pytest.fixture
def places(kafka, topic, produce, tmp_path) -> Iterator[tuple[Options, str, str]]:
    """Options of a group, a topic of some records, and one for what comes of them."""
    name, out = topic(1), topic(2)
    produce(name, [(b"%d" % i, b"") for i in range(COUNT)])
    options = Options.parse(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": f"{name}-group",
            "commitTable": str(tmp_path / "commits"),
            "purgatory": str(tmp_path / "waiting"),
        }
    )
    return options, name, out


def seen(options: Options, out: str) -> list[str]:
    """What a reader of committed records finds, up to the ends of the topic's partitions.

    A transaction's end is answered before its markers are written: these are waited for.
    """
    from kafka import KafkaConsumer, TopicPartition

    servers = options.kafka["bootstrap.servers"]
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed",
        enable_auto_commit=False, auto_offset_reset="earliest",
    )  # fmt: skip
    parts = [TopicPartition(out, p) for p in (0, 1)]
    consumer.assign(parts)
    with closing(KafkaConsumer(bootstrap_servers=servers)) as uncommitted:
        until(lambda: consumer.end_offsets(parts) == uncommitted.end_offsets(parts))
    ends = consumer.end_offsets(parts)
    found: list[Any] = []
    while any(consumer.position(tp) < ends[tp] for tp in parts):
        found += itertools.chain.from_iterable(consumer.poll(timeout_ms=200).values())
    consumer.close()
    assert all(
        dict(r.headers)[ORIGIN_HEADER].endswith(b"@" + r.value.split(b".")[0]) for r in found
    )
    found.sort(key=lambda r: (r.partition, r.offset))
    of_key: dict[bytes, list[str]] = {}
    for record in found:
        of_key.setdefault(record.key, []).append(record.value.decode())
    for values in of_key.values():
        assert values == sorted(values, key=lambda v: [int(n) for n in v.split(".")])
    return sorted((v for values in of_key.values() for v in values), key=_place)


def _place(value: str) -> list[int]:
    return [int(number) for number in value.split(".")]


def rows(*offsets: int) -> list[str]:
    """What is to be found of some records."""
    return [f"{offset}.{row}" for offset in offsets for row in range(2)]


def test_rows_wait_until_the_stable_offset_passes_them(places):
    """KIP-X's example: what is done above a gap is published once the gap is filled."""
    options, name, out = places
    process = Process(options, name, out)
    process.do(5, 6)
    process.assignment.primary.write()
    assert seen(options, out) == []
    process.do(0, 1, 2, 3)
    assert process.assignment.primary.has_unpublished
    process.assignment.primary.write()
    assert not process.assignment.primary.has_unpublished
    assert seen(options, out) == rows(0, 1, 2, 3)
    process.do(4)
    process.assignment.primary.write()
    assert seen(options, out) == rows(*range(7))
    primary = process.assignment.cluster.stable_primary(process.tp)
    assert primary is not None
    assert (primary.offset, primary.outputs) == (7, out)
    process.leave()


def work(process: Process, offset: int) -> None:
    """Do a record, and publish what can be."""
    process.do(offset)
    process.assignment.primary.write()


STEPS = [
    (Purgatory, "write"), (EpochAssignment, "commit"), (TransactionChannel, "init"),
    (TransactionChannel, "begin"), (TransactionChannel, "send"),
    (TransactionChannel, "add_offsets"), (TransactionChannel, "commit"),
]  # fmt: skip
#: What is killed, and whether before the step. Rows that are published are deleted in two steps.
KILLS = [
    *itertools.product(STEPS, (True, False)),
    ((DeltaTable, "delete"), False), ((DeltaTable, "vacuum"), False),
]  # fmt: skip


def test_a_transaction_writes_records_as_other_outputs_are_written(places):
    """Null headers stay null, and the key's hash selects the partition, as in Kafka's clients."""
    from kafka import KafkaConsumer, TopicPartition

    options, _, out = places
    cluster = Cluster(options)
    channel = TransactionChannel(options, out, "an id", 30.0, cluster.fence_producers)
    channel.init(30.0)
    channel.begin()
    headers: list[tuple[str, bytes | None]] = [("a", None), ("a", b""), ("b", b"\xff")]
    keys = [b"%d" % number for number in range(20)]
    channel.send([Message(out, key, None, headers) for key in keys], 30.0)
    channel.send([Message(out, None, None, (), 1)], 30.0)
    channel.commit(30.0)
    channel.drop()
    cluster.close()
    consumer = KafkaConsumer(
        bootstrap_servers=options.kafka["bootstrap.servers"], isolation_level="read_committed",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    consumer.assign([TopicPartition(out, p) for p in (0, 1)])
    found: list[Any] = []

    def are_read() -> bool:
        found.extend(itertools.chain.from_iterable(consumer.poll(timeout_ms=200).values()))
        return len(found) == len(keys) + 1

    until(are_read)
    consumer.close()
    assert {r.key: r.partition for r in found} == {
        None: 1, **{key: default_partition(key, 2) for key in keys}
    }  # fmt: skip
    assert all(list(r.headers) == (headers if r.key else []) for r in found)


def test_a_full_producer_is_waited_for(places, monkeypatch):
    """A transaction may have more records than the producer takes at once."""
    options, _, out = places
    made = kafka_channel.record_producer
    monkeypatch.setattr(
        kafka_channel, "record_producer",
        lambda kafka, config: made(kafka, config | {"queue.buffering.max.messages": 10}),
    )  # fmt: skip
    with closing(Cluster(options)) as cluster:
        channel = TransactionChannel(options, out, "full", 30.0, cluster.fence_producers)
        channel.init(30.0)
    channel.begin()
    channel.send([Message(out, b"%d" % n, b"v") for n in range(200)], 30.0)
    channel.commit(30.0)
    channel.drop()


def test_who_wakes_late_publishes_nothing(places):
    """Neither what it had under way when another one came, nor anything later."""
    options, name, out = places
    late = Process(options, name, out)
    late.do(0)
    late.assignment.primary.write()
    (lane,) = late.assignment.primary._publishing._lanes.values()  # type: ignore[union-attr]
    late.do(1)
    lane.channel.begin()
    lane.channel.send([Message(out, b"1", b"1.0", [(ORIGIN_HEADER, b"@1")])], 30.0)
    lane.channel.add_offsets({late.tp: (2, "")}, options.group_id, 30.0)
    heir = Process(options, name, out)
    heir.assignment.primary.write()
    with pytest.raises(EngineDoubt):
        lane.channel.commit(30.0)
    with pytest.raises(FencedMember):
        late.assignment.primary.write()
    heir.do(2)
    heir.assignment.primary.write()
    assert seen(options, out) == rows(0, 1, 2)
    plain = Process(options, name, out, publishes=False)
    plain.do(3)
    plain.assignment.primary.write()
    plain.assignment.primary.write_last()
    primary = plain.assignment.cluster.stable_primary(plain.tp)
    assert primary is not None
    assert primary.offset == 3, "what waits is passed by no plain commit"
    with pytest.raises(OutputsNotPublished, match="--to-log"):
        plain.assignment.primary.publish_by(Publishing(plain.assignment, "other", None, list))  # type: ignore[arg-type]
    for process in (late, heir, plain):
        process.leave()


def test_members_publish_in_turn_as_the_first_key_hashes_go_and_come_back(places):
    """Each row once, though both go on with what they have, and each has a producer."""
    options, name, out = places
    low, high = (Share(name, 0, half) for half in KeyRange().split(2))
    cluster = Cluster(options)
    ids = {name: cluster.topics([name])[0].id}
    cluster.close()
    store = Membership(options, 1, ReportingWorker()).store
    epochs: list[Epoch] = []

    def grant(member: str, **shares: list[Share]) -> EpochGrant:
        """What a member gets in the next epoch, which all others continue."""
        previous = epochs[-1] if epochs else None
        goes_on = dict.fromkeys(shares.keys() & {"a"}, previous.number) if previous else None
        epochs.append(
            store.open_epoch(
                options.group_id, shares, previous=previous, generation=len(epochs) + 1,
                topic_ids=ids, life_ms=1_000, continues=goes_on,
            )
        )  # fmt: skip
        return EpochGrant(epochs[-1], member, tuple(shares[member]), ids, life_ms=1_000)

    one = Process(options, name, out, grant=grant("a", a=[Share(name, 0)]))
    one.do(0, 1)
    one.assignment.primary.write()
    assert seen(options, out) == rows(0, 1)
    one.assignment.give_up([low])
    theirs = grant("b", a=[high], b=[low])
    one.assignment.continue_under(replace(theirs, member="a", shares=(high,)))
    other = Process(options, name, out, grant=theirs)
    one.do(2)
    one.assignment.primary.write()
    assert seen(options, out) == rows(0, 1), "another member is to publish it"
    other.do(3)
    other.assignment.primary.write()
    assert seen(options, out) == rows(*range(4))
    back = grant("a", a=[Share(name, 0)])
    gained = one.member.owner._load(replace(back, shares=(low,)))
    one.assignment.continue_under(back)
    one.assignment.extend(gained)
    one.sink.extend()
    one.do(4)
    one.assignment.primary.write()
    assert seen(options, out) == rows(*range(5))
    with pytest.raises(FencedMember):
        other.do(5)
    for process in (one, other):
        process.leave()


def test_a_record_that_the_topic_does_not_take_is_tried_again(places, monkeypatch):
    """Earlier outputs are there, later ones wait; commits go on until the topic takes it."""
    options, name, out = places
    process = Process(options, name, out)
    process.do(0)
    primary = process.assignment.primary
    primary.write()
    process.do(1, rows=1)
    set_largest(options, out, 100)  # A marker of a transaction has 78 bytes.
    monkeypatch.setattr(publishing, "_FIRST_PAUSE", 0.0)
    for _ in range(3):
        primary.write()
    ((first, error),) = primary.troubled.values()
    assert first == 1
    assert out in error
    assert primary.has_unpublished
    assert not primary.is_publishing
    given_up = primary.given_up(0.0)
    assert isinstance(given_up, OutputsNotPublished)
    assert given_up.retriable
    process.do(2)
    set_largest(options, out, 1_000_000)
    primary.write()
    assert primary.troubled == {}
    assert seen(options, out) == [*rows(0), "1.0", *rows(2)]
    process.leave()


def set_largest(options: Options, topic: str, size: int) -> None:
    """How large a batch of records the topic takes."""
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    admin = KafkaAdminClient(**options.client_config())
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(size)})]
    )
    admin.close()


def test_a_kill_between_any_two_steps_leaves_each_row_once(places, monkeypatch):
    """The next member goes on: nothing is lost, nothing twice, whatever was under way."""
    options, name, out = places
    monkeypatch.setattr(publishing, "_FORGET_EVERY", -1.0)
    gone = []
    for (kind, step), before in KILLS:
        original = getattr(kind, step)

        def killed(*args, original=original, before=before, **more):
            if not before:
                original(*args, **more)
            raise Killed

        process = Process(options, name, out)
        process.assignment.primary.write()
        offset = process.undone[0]
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, killed)
            if step == "init":
                process.assignment.primary.publish_by(process.sink.begin(process.assignment))
            with pytest.raises(Killed):
                work(process, offset)
        gone.append(process)
    last = Process(options, name, out)
    assert len(last.undone) == 1
    work(last, last.undone[0])
    assert seen(options, out) == rows(*range(COUNT))
    for process in [*gone, last]:
        process.leave()
    assert seen(options, out) == rows(*range(COUNT)), "those that were killed do nothing more"

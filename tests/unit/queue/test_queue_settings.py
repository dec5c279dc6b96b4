"""The settings of a queue are checked before anything is opened; its log survives snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from commits import OffsetRanges
from coopconsume import QueueConsumer
from coopconsume.cli import main
from coopconsume.cli.queue import _replica
from coopconsume.errors import (
    AlreadyClosed,
    InvalidOption,
    MissingOption,
    NotHeld,
    QueueLogFormat,
    UnknownOption,
)
from coopconsume.queue import QueueReplica
from coopconsume.queue.log import LogRows
from coopconsume.queue.log_client import KafkaLog
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.replica_log import AtEnd, Began, RecordsRead
from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import ReplicaRow, encode
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueSettings
from coopconsume.record import Record

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g"}
AWAY = QueueReplica("r1", {"kafka.bootstrap.servers": "127.0.0.1:2"})


def test_a_queue_has_one_replica_by_default_and_at_most_five():
    """A replica on another cluster has the group of the queue."""
    settings = QueueSettings.parse(OPTIONS, "orders")
    assert settings.replicas == (QueueReplica("__queue.g.orders"),)
    assert settings.name == "g/orders"
    settings = QueueSettings.parse(OPTIONS, "orders", ["r0", AWAY, QueueReplica("r2", {})])
    assert [client.place for client in settings.clients()] == [
        "topic r0 of 127.0.0.1:1", "topic r1 of 127.0.0.1:2", "topic r2 of 127.0.0.1:1",
    ]  # fmt: skip


def test_a_text_with_a_slash_is_the_path_of_a_table():
    """As a `Path` is, and as an URI; a replica of a table has the options of its store."""
    own = QueueReplica(table="s3://user:secret@bucket/holds", options={"AWS_REGION": "eu"})
    given = ["./holds/a", Path("holds/b"), own, "r1"]
    settings = QueueSettings.parse(OPTIONS, "orders", given)
    here = Path("holds").resolve()
    assert [client.place for client in settings.clients()] == [
        f"table {here}/a", f"table {here}/b", "table s3://user:***@bucket/holds",
        "topic r1 of 127.0.0.1:1",
    ]  # fmt: skip
    assert settings.replicas[2] == own
    same = [QueueReplica(table="s3://b/holds", options={"AWS_ENDPOINT_URL": u}) for u in "xyz"]
    assert len(QueueSettings.parse(OPTIONS, "orders", same).replicas) == 3


@pytest.mark.parametrize(
    ("error", "match", "options", "replicas", "more"),
    [
        (MissingOption, "group.id", {"kafka.bootstrap.servers": "x:1"}, None, {}),
        (UnknownOption, "deadLetter", {**OPTIONS, "deadLeter": "x"}, None, {}),
        (InvalidOption, "does not apply to a queue", {**OPTIONS, "slots": 3}, None, {}),
        (InvalidOption, "replicas = 6", OPTIONS, [f"r{i}" for i in range(6)], {}),
        (InvalidOption, "replicas = 0", OPTIONS, [], {}),
        (InvalidOption, "give a list", OPTIONS, "r1", {}),
        (InvalidOption, "twice", OPTIONS, ["r1", "r1"], {}),
        (InvalidOption, "twice", OPTIONS, ["./r1", QueueReplica(table="./x/../r1")], {}),
        (InvalidOption, "twice", OPTIONS, ["/a b/r1", "file:///a%20b/r1"], {}),
        (InvalidOption, "twice", OPTIONS, ["s3://lake/r1", "s3://lake/r1/"], {}),
        (InvalidOption, "two slashes", OPTIONS, ["s3:/lake/r1"], {}),
        (InvalidOption, "two slashes", OPTIONS, [QueueReplica(table="file:/r1")], {}),
        (InvalidOption, "a replica has one log", OPTIONS, [QueueReplica("r1", table="./r1")], {}),
        (InvalidOption, "twice", OPTIONS, ["/r", QueueReplica(options={"A": "b"}, table="/r")], {}),
        (InvalidOption, "zero byte", OPTIONS, ["/r\0"], {}),
        (InvalidOption, "opens no catalog", OPTIONS, [QueueReplica(table="db.holds")], {}),
        (InvalidOption, "kafka.x.*as text", OPTIONS, [QueueReplica("", {"kafka.x": ""}, "/r")], {}),
        (InvalidOption, "a = 1.*as text", OPTIONS, [QueueReplica("", {"a": 1}, "./r")], {}),
        (InvalidOption, "or a QueueReplica", OPTIONS, [1], {}),
        (InvalidOption, "the records of g/orders", OPTIONS, ["orders"], {}),
        (InvalidOption, "name that Kafka accepts", OPTIONS, ["a b"], {}),
        (InvalidOption, "hold", OPTIONS, None, {"hold": 0.5}),
        (InvalidOption, "hold", OPTIONS, None, {"hold": "long"}),
        (InvalidOption, "give 1 or more", OPTIONS, None, {"max_deliveries": 0}),
        (InvalidOption, "give deadLetter too", OPTIONS, None, {"max_deliveries": 3}),
    ],
)
def test_wrong_settings_are_refused_at_once(error, match, options, replicas, more):
    """With what was found and what to give."""
    with pytest.raises(error, match=match):
        QueueConsumer(options, "orders", replicas, **more)


def test_settings_of_clients_apply_to_the_replicas_too():
    """A request may take longer than by default; its delivery takes longer then."""
    own = {"kafka.request.timeout.ms": 40_000, "kafka.retry.backoff.ms": 7}
    (client,) = QueueSettings.parse({**OPTIONS, **own}, "orders").clients()
    assert type(client) is KafkaLog
    config = client._producer_settings
    assert (config["request.timeout.ms"], config["retry.backoff.ms"]) == (40_000, 7)
    assert config["message.timeout.ms"] > 40_000


def test_wrong_arguments_are_refused_before_anything_is_opened():
    """No broker is there."""
    consumer = QueueConsumer(OPTIONS, "orders")
    with pytest.raises(InvalidOption, match="max_records"):
        consumer.poll(0)
    record = Record("orders", 0, 5, None, b"", 0)
    with pytest.raises(InvalidOption, match="give one of accept, release, reject, renew"):
        consumer.acknowledge(record, "done")
    with pytest.raises(InvalidOption, match="with RELEASE only"):
        consumer.acknowledge(record, delay=1.0)
    with pytest.raises(NotHeld, match="offsets 5 to 5 of orders-0 are not held"):
        consumer.acknowledge(record)
    consumer.close()
    consumer.close()
    with pytest.raises(AlreadyClosed, match="g/orders"):
        consumer.poll()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["take", "orders"], "option 'kafka.group.id' is missing"),
        (["holds", "orders", "--group", "g", "--replica", "r1@"], "write it as TOPIC"),
        (["audit", "orders", "--group", "g", "--replica", "a b"], "name that Kafka accepts"),
    ],
)
def test_commands_refuse_wrong_words(words, match):
    """With exit code 2."""
    done = CliRunner().invoke(main, ["queue", *words, "--bootstrap-servers", "127.0.0.1:1"])
    assert (done.exit_code, match in done.output) == (2, True)


def test_a_replica_of_a_command_may_be_on_another_cluster():
    """A topic of the queue's cluster, one of another cluster, and a table."""
    elsewhere = QueueReplica("q", {"kafka.bootstrap.servers": "other:9092"})
    assert _replica(None, None, ("q", "q@other:9092", "./log")) == ["q", elsewhere, "./log"]


def held(*pairs):
    """Offsets of partition 0."""
    return {0: OffsetRanges(pairs)}


ROWS = [
    ReplicaRow("begin", "a", offsets={0: OffsetRanges()}),
    ReplicaRow("acquire", "a", 1, held((0, 4)), 30.0),
    ReplicaRow("accept", "a", 2, held((0, 2))),
    ReplicaRow("release", "a", 3, held((3, 3)), delivered=True),
    ReplicaRow("acquire", "b", 1, held((5, 9)), 30.0),
]


def folded(rows, records):
    """The state after some records, each an offset and a row."""
    state = ReplicaState()
    for offset, row in records:
        for step in rows.take(offset, b"g/orders", encode(row)):
            if isinstance(step, ReplicaState):
                state = step
            else:
                state.fold(*step)
    return state


def test_rows_that_are_known_are_not_decoded():
    """All others are, and a known row must be of the queue, too."""
    row, other = ROWS[1], ROWS[2]
    known = {encode(row): row}
    rows = LogRows("a log", "g/orders", known)
    rows.begin(0)
    steps = [*rows.take(0, b"g/orders", encode(row)), *rows.take(1, b"g/orders", encode(other))]
    assert steps == [(0, row), (1, other)]
    assert steps[0][1] is row
    assert steps[1][1] is not other
    with pytest.raises(QueueLogFormat):
        list(rows.take(2, b"g/others", encode(row)))


def test_a_consumer_keeps_few_of_the_rows_that_it_wrote():
    """However long it works: those that were written last, as these are read next."""
    session = QueueSession(QueueSettings.parse(OPTIONS, "orders"))
    rows = [ReplicaRow("release", "a", number) for number in range(1_000)]
    session._send(AppendRow(0, row) for row in rows)
    assert 0 < len(session._written) < 500
    assert session._written[encode(rows[-1])] is rows[-1]


def test_a_shortened_log_folds_to_the_same_state():
    """The snapshot replaces the rows below its offset, and not the ones between it and that."""
    whole = folded(LogRows("a log", "g/orders"), enumerate(ROWS))
    early = folded(LogRows("a log", "g/orders"), enumerate(ROWS[:4]))
    snapshot = ReplicaRow("snapshot", "a", positions=(4,), state=early.snapshot())
    rows = LogRows("a log", "g/orders")
    rows.begin(1)
    assert not rows.is_whole
    state = folded(rows, [*enumerate(ROWS[1:], 1), (5, snapshot)])
    assert state.snapshot() == whole.snapshot()
    rows.check()
    assert (rows.is_whole, rows.start, rows.length) == (True, 4, 0)


def test_a_log_that_lost_its_start_is_refused():
    """Whatever is done or held there is not known."""
    rows = LogRows("a log", "g/orders")
    rows.begin(2)
    folded(rows, [(2, ROWS[2])])
    with pytest.raises(QueueLogFormat, match="a log has lost its start"):
        rows.check()


def test_a_log_of_another_queue_is_refused():
    """What others write is counted and passed over."""
    rows = LogRows("a log", "g/orders")
    rows.begin(0)
    assert list(rows.take(0, None, b"text")) == []
    assert rows.passed_over == 1
    with pytest.raises(QueueLogFormat, match=r"rows of the queue 'g/others'"):
        list(rows.take(1, b"g/others", encode(ROWS[0])))


def test_a_replica_that_is_read_again_is_not_known_before_its_end():
    """After an outage of all; one that lost its log must learn from a majority that is read."""
    session = QueueSession(QueueSettings.parse(OPTIONS, "orders", ["r0", "r1", "r2"]))
    rows = [encode(row) for row in ROWS[:1]]
    for replica in range(3):
        session._take(Began(replica, 0.0, 0))
        session._take(RecordsRead(replica, 0.0, [(0, b"g/orders", rows[0])]))
        session._take(AtEnd(replica, 0.0))
    assert [session.is_read(replica) for replica in range(3)] == [True] * 3
    for replica in range(3):
        session._take(Began(replica, 1.0, 0))
    session._take(AtEnd(2, 1.0))  # it comes back empty, and is at its end first
    assert [session.is_read(replica) for replica in range(3)] == [False, False, True]
    assert not session.member.replicas.has_begun({0: 0})
    assert "r0" in str(session._unavailable("an answer", 1.0))


def test_why_rows_are_not_written_is_shown():
    """The reader may be well while the writer lacks a right."""
    session = QueueSession(QueueSettings.parse(OPTIONS, "orders"))
    session._take(Began(0, 0.0, 0))
    session._take(AtEnd(0, 0.0))
    session.replicas[0].problem = PermissionError("no right to write")
    assert "no right to write" in str(session._unavailable("an answer", 1.0))


@pytest.mark.parametrize("group", ["team/g", "a b", "g\u00e9", "g" * 300, "..", "/", "g:1"])
def test_any_group_has_a_topic_as_its_default_replica(group):
    """Its own one: a group is no path, and no option that nobody gave is refused."""
    options = OPTIONS | {"kafka.group.id": group}
    (replica,) = QueueSettings.parse(options, "orders").replicas
    assert (replica.table, replica.topic[:8]) == ("", "__queue.")
    assert QueueSettings.parse(options, "orders").replicas == (replica,)
    others = [
        (group + "_", "orders"),
        (group, "orders2"),
        (group.replace("/", "_") + ".", "orders"),
    ]
    topics = {replica.topic}
    for other, topic in others:
        settings = QueueSettings.parse(OPTIONS | {"kafka.group.id": other}, topic)
        topics.add(settings.replicas[0].topic)
    assert len(topics) == 4
    (legal,) = QueueSettings.parse(OPTIONS, "orders").replicas
    assert legal.topic == "__queue.g.orders"


def test_a_log_that_an_earlier_version_has_put_into_a_folder_is_not_forgotten(
    tmp_path, monkeypatch
):
    """The error names it, as the replica to give."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__queue.team" / "g.orders").mkdir(parents=True)
    options = OPTIONS | {"kafka.group.id": "team/g"}
    with pytest.raises(InvalidOption, match=f"{tmp_path}/__queue.team/g.orders"):
        QueueSettings.parse(options, "orders")
    (replica,) = QueueSettings.parse(options, "orders", ["__queue.team/g.orders"]).replicas
    assert replica.table == str(tmp_path / "__queue.team" / "g.orders")

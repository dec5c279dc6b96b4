"""What a session does with replicas whose logs cannot be understood, or are others than before."""

from __future__ import annotations

import pytest

from commits import OffsetRanges
from coopconsume.errors import QueueLogFormat, QueueNotFound, QueueUnavailable
from coopconsume.queue.incarnation import LogIncarnation
from coopconsume.queue.replica_log import AtEnd, Began, RecordsRead, ReplicaFailed
from coopconsume.queue.rows import ReplicaRow, encode
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueSettings
from coopconsume.queue.source_log import SourceLog

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g"}
KEY = b"g/orders"
BEGIN = ReplicaRow("begin", "a", offsets={0: OffsetRanges()}, topic_id="t")
DONE = ReplicaRow("tombstone", "a", offsets={0: OffsetRanges([(0, 9)])}, topic_id="t")


def session_of(count):
    """A session whose readers are not started."""
    found = QueueSession(QueueSettings.parse(OPTIONS, "orders", [f"r{n}" for n in range(count)]))
    found._is_started = True
    found.member.follow({0: SourceLog(LogIncarnation("t"))})
    return found


def read(session, replica, *rows, start=0):
    """What a reader puts as it reads a log."""
    records = [
        (start + n, KEY, row if isinstance(row, bytes) else encode(row))
        for n, row in enumerate(rows)
    ]
    session._events.put(Began(replica, 0.0, start))
    session._events.put(RecordsRead(replica, 0.0, records))
    session._events.put(AtEnd(replica, 0.0))


def test_a_log_with_an_error_is_not_used_until_it_is_read_again():
    """Rows behind the error are no log, and neither are the ones before it."""
    session = session_of(1)
    read(session, 0, BEGIN, b'{"format":9,"kind":"x"}')
    session._events.put(RecordsRead(0, 0.0, [(2, KEY, encode(DONE))]))
    for _ in range(2):
        with pytest.raises(QueueLogFormat, match="format 9"):
            session.run(0)
        assert session.member.replicas.done(0) == (0, OffsetRanges())
        assert session.member.replicas.states[0].partitions == []
        assert not session.is_read(0)
    assert session.replicas[0]._again.is_set()
    read(session, 0, BEGIN, DONE)
    session.run(0)
    assert session.member.replicas.done(0) == (10, OffsetRanges())
    assert session.problem(0) is None


def test_an_interrupted_call_reads_the_log_again(monkeypatch):
    """Rows that it did not take are missing."""
    session = session_of(1)
    read(session, 0, BEGIN, DONE)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.member, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(0)
    session.run(0)
    assert not session.is_read(0)
    assert session.replicas[0]._again.is_set()
    read(session, 0, BEGIN, DONE)
    session.run(0)
    assert session.is_read(0)


def test_partitions_have_begun_once_their_log_was_read_up_to_its_end():
    """Half of a log that is read again has the partition, and not what is done there."""
    session = session_of(1)
    read(session, 0, BEGIN, DONE)
    logs = {0: SourceLog(LogIncarnation("t"))}
    session.begin(logs, 0.0)
    session._events.put(Began(0, 0.0, 0))
    session._events.put(RecordsRead(0, 0.0, [(0, KEY, encode(BEGIN))]))
    with pytest.raises(QueueUnavailable, match="beginning partitions"):
        session.begin(logs, 0.0)
    assert session.member.replicas.has_begun(logs)
    session._events.put(RecordsRead(0, 0.0, [(1, KEY, encode(DONE))]))
    session._events.put(AtEnd(0, 0.0))
    session.begin(logs, 0.0)
    assert session.member.replicas.done(0) == (10, OffsetRanges())


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_broken_minority_stops_nobody(broken, caplog):
    """Its log has lost its start, belongs to another queue, or is not there; it is named once."""
    session = session_of(3)
    for replica in range(3):
        if replica != broken:
            read(session, replica, BEGIN, DONE)
    read(session, broken, DONE, start=5)
    session.open(30.0)
    assert session.member.replicas.done(0) == (10, OffsetRanges())
    assert "lost its start" in str(session.problem(broken))
    error = QueueNotFound("g/orders", "topic r")
    session._events.put(ReplicaFailed(broken, 0.0, error, is_permanent=True))
    session._events.put(ReplicaFailed(broken, 0.0, error, is_permanent=True))
    session.run(0)
    assert session.problem(broken) is error
    assert [record.message.count("is not used") for record in caplog.records] == [1, 1]
    read(session, (broken + 1) % 3, DONE, start=5)
    with pytest.raises((QueueLogFormat, QueueNotFound)):
        session.open(30.0)

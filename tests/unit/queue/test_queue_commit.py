"""What a consumer of a queue commits while the cluster of its records or letters is away."""

from __future__ import annotations

import asyncio
import math
import os
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from commits import OffsetRanges
from coopconsume import QueueConsumer
from coopconsume.errors import (
    AlreadyClosed,
    BrokerUnreachable,
    InvalidOption,
    NotHeld,
    OutputNotWritten,
)
from coopconsume.queue import REJECT, AsyncQueueConsumer
from coopconsume.queue.acknowledgements import Settled
from coopconsume.queue.acquisitions import Granted
from coopconsume.queue.group_offsets import GroupOffsets
from coopconsume.queue.record_source import RecordSource
from coopconsume.queue.replica_log import ReplicaLog
from coopconsume.queue.rows import ReplicaRow, decode
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueSettings
from coopconsume.record import Record

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "deadLetter": "kafka:letters",
}  # fmt: skip


class Session:
    """Replicas that grant four offsets and count every acknowledgement."""

    has_majority = True

    def __init__(self):
        self.acknowledged = []
        self.delivered = {}
        self.identities = {0: "a log"}
        replicas = SimpleNamespace(
            done=lambda _partition: (5, OffsetRanges()), deliveries=lambda _partition, _offset: 0
        )
        self.member = SimpleNamespace(holder="me", replicas=replicas)

    def acquire(self, _limit, _ends, _timeout):
        return Granted({0: OffsetRanges([(0, 3)])}, math.inf)

    def settle(self, kind, offsets, _delay=0.0):
        self.acknowledged.append((kind, offsets[0].offsets().tolist()))
        row = ReplicaRow(kind, "me", len(self.acknowledged), offsets)
        return Settled(row, done=offsets)

    def wait(self, settled, _timeout):
        assert all(one.is_complete for one in settled)


class Letters:
    """A topic for dead letters that is away until it is opened."""

    def __init__(self):
        self.is_open = False
        self.offsets = []
        self.reasons = []

    def append(self, letters, _topic_ids, _commit_id):
        if not self.is_open:
            raise OutputNotWritten("dead letters", "letters", "away")
        self.offsets += [letter.offset for letter in letters]
        self.reasons += [letter.reason.encode() for letter in letters]


def unreachable(_offsets, patience=15.0):
    """A cluster that does not answer."""
    assert patience == 0, "holds end while a commit waits"
    raise BrokerUnreachable("127.0.0.1:1", "away")


@pytest.fixture
def consumer(monkeypatch):
    """A consumer that is connected to all of these."""
    made = QueueConsumer(OPTIONS, "t", max_deliveries=3)
    made._session, made._letters = Session(), Letters()
    cluster = made._cluster = SimpleNamespace(
        commit_primary=lambda _offsets, **_patience: None,
        patient_for=lambda _seconds: nullcontext(),
    )
    made._source = RecordSource(made._settings, cluster)
    made._source.ends, made._source._looked_at = {0: 10}, math.inf
    made._offsets = GroupOffsets(made._settings, cluster)

    def read(session, granted, _patience):
        return [
            Record("t", 0, offset, None, b"", 0, (), session.delivered.get(offset, 1))
            for offset in granted.offsets[0].offsets().tolist()
        ]

    monkeypatch.setattr(made, "_read", read)
    return made


def test_the_result_of_an_interrupted_call_goes_to_the_next_one():
    """So that later calls are not one behind, with holds that are older than they look."""
    session = QueueSession(QueueSettings.parse(OPTIONS, "t"))
    granted = Granted({0: OffsetRanges([(0, 3)])}, math.inf)
    session.member._acquisitions._granted.append(granted)
    assert session.acquire(4, {0: 10}, 30.0) is granted


@pytest.mark.parametrize("writes", [True, False])
def test_a_consumer_that_is_closed_notes_what_it_has_watched(writes, monkeypatch):
    """Where it reads the log; one that only shows a queue writes nothing."""
    settings = QueueSettings.parse(OPTIONS, "t", ["r0", "r1"])
    session = QueueSession(settings, create=writes)
    for replica in (0, 1):
        for position, row in enumerate((
            ReplicaRow("begin", "", offsets={0: OffsetRanges()}),
            ReplicaRow("acquire", "other", 1, {0: OffsetRanges([(0, 3)])}, 30.0),
        )):  # fmt: skip
            session.member.take(replica, position, row, time.monotonic() - 7.0)
    session._read = {0}
    written = []
    monkeypatch.setattr(ReplicaLog, "append", lambda to, row: written.append((to.place, row)))
    session.close()
    assert len(written) == writes
    for place, row in written:
        assert place == session.replicas[0].place
        assert 7.0 <= decode(row, place).watched[1] < 30.0


def test_a_commit_has_its_result_while_the_groups_offset_cannot_be_written(consumer):
    """The replicas have the truth, and nobody waits for the cluster of the records."""
    consumer._cluster.commit_primary = unreachable
    for record in consumer.poll(4):
        consumer.acknowledge(record)
    assert consumer.commit().done == 4


def test_the_groups_offset_is_not_taken_from_half_of_a_log(consumer):
    """A log that is read again has no stable offset before it was read up to its end."""
    written = []
    consumer._cluster.commit_primary = lambda offsets, **_: written.append(offsets)
    for is_read in (False, True):
        consumer._session.has_majority = is_read
        for record in consumer.poll(4):
            consumer.acknowledge(record)
        assert consumer.commit().done == 4
        assert len(written) == is_read


def test_what_is_done_counts_while_dead_letters_cannot_be_written(consumer):
    """The rejected record stays held; the next commit that succeeds has the result of both."""
    rejected, *done = consumer.poll(4)
    consumer.acknowledge(rejected, REJECT)
    for record in done:
        consumer.acknowledge(record)
    with pytest.raises(OutputNotWritten):
        consumer.commit()
    assert consumer._session.acknowledged == [("accept", [1, 2, 3])]
    consumer._letters.is_open = True
    assert consumer.commit().done == 4
    assert consumer._letters.offsets == [0]
    assert consumer._session.acknowledged[1:] == [("reject", [0])]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("half \ud83d", b"half \\ud83d"),
        (ValueError("bad"), b"ValueError: bad"),
        (None, b""),
        (404, b"404"),
        ("x" * 10_000, b"x" * 500),
    ],
)
def test_the_reason_of_a_rejection_may_be_anything(consumer, reason, text):
    """As that of `Reject`; it holds up no later commit."""
    consumer._letters.is_open = True
    rejected, *_ = consumer.poll(4)
    consumer.acknowledge(rejected, REJECT, reason=reason)
    assert consumer.commit().done == 1
    assert consumer._letters.reasons == [text]


def test_records_beside_one_that_was_delivered_too_often_are_handed_out(consumer):
    """Also if its dead letter cannot be written now."""
    consumer._session.delivered[2] = 4
    assert [record.offset for record in consumer.poll(4)] == [0, 1, 3]
    with pytest.raises(OutputNotWritten):
        consumer.commit()
    consumer._letters.is_open = True
    consumer.commit()
    assert consumer._letters.offsets == [2]


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0, None, "1"])
def test_a_timeout_that_is_no_time_is_refused(consumer, timeout):
    """Not waited for forever, nor for nothing."""
    with pytest.raises(InvalidOption, match="option timeout"):
        consumer.poll(timeout=timeout)
    with pytest.raises(InvalidOption, match="option timeout"):
        consumer.commit(timeout=timeout)


def test_a_rejected_record_that_another_consumer_has_gets_no_letter(consumer):
    """Its hold has ended. The holds of the others are renewed before their letters are written."""
    mine, lost, fresh = consumer.poll(3)[:3]
    session = consumer._session
    consumer._letters.is_open = True
    for record in (mine, lost, fresh):
        consumer.acknowledge(record, REJECT)
    for record in (mine, lost):
        consumer._held._held[0, record.offset].until = 0.0
    settle = session.settle

    def settled(kind, offsets, delay=0.0, **more):
        if kind != "renew":
            return settle(kind, offsets, delay, **more)
        assert offsets[0].offsets().tolist() == [mine.offset, lost.offset]
        taken = {0: OffsetRanges([(lost.offset, lost.offset)])}
        row = ReplicaRow(kind, "me", 1, offsets)
        return Settled(row, done={0: offsets[0] - taken[0]}, refused=taken, until=math.inf)

    session.settle = settled
    result = consumer.commit()
    assert consumer._letters.offsets == [mine.offset, fresh.offset]
    assert (result.done, result.not_held) == (2, ((0, lost.offset),))


def test_a_forked_process_cannot_use_the_consumer_of_the_other_one(consumer):
    """Nor close its connections: the threads that read and write are not there."""
    consumer._pid = os.getpid()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        code = 1
        try:
            consumer.poll()
        except AlreadyClosed as error:
            consumer.close()
            code = 0 if "before a fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(consumer.poll(4)) == 4


def test_a_closed_consumer_for_asyncio_answers_as_documented(consumer):
    """A second `close` has no effect; other calls raise `AlreadyClosed`."""
    (record, *_) = consumer.poll(1)

    async def use():
        made = AsyncQueueConsumer(OPTIONS, "t")
        await made.close()
        calls = [made.close, made.poll, made.commit, made.__aenter__]
        outcomes = await asyncio.gather(
            *(call() for call in calls), made.acknowledge(record), return_exceptions=True
        )
        return [type(outcome) for outcome in outcomes]

    found = asyncio.run(use())
    assert found == [type(None), AlreadyClosed, AlreadyClosed, AlreadyClosed, NotHeld]

"""One append over several logs on a real broker."""

from __future__ import annotations

import threading

import pytest

from coopconsume.errors import OffsetMismatch, ProducerBusy, ProducerFenced
from coopconsume.fenced import FencedWriter, LogReader, MultiLogWriter, Write
from coopconsume.fenced.writer_config import WriterOptions
from coopconsume.testing.local.broker import LocalKafka
from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
_ROUNDS = 8


def test_transfers_of_several_writers_keep_the_sum(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Each moves an amount from one log to another, on condition of what it has read."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    logs = [(topic(), 0), (topic(), 0), (topic(), 0)]
    failures: list[BaseException] = []
    mismatches: list[int] = []

    def last(next_seq: int) -> int | None:
        return next_seq - 1 if next_seq else None

    def transfer(name: int) -> None:
        try:
            with MultiLogWriter(options, logs) as writer:
                for i in range(_ROUNDS):
                    while True:
                        writes = {
                            log: Write(
                                [(b"sum", b"%d" % amount)], writer.next_seq(*log),
                                expected_key_seq={b"sum": last(writer.next_seq(*log))},
                            )
                            for log, amount in zip(logs, (-1, 2, -1), strict=True)
                        }  # fmt: skip
                        try:
                            writer.append(writes, batch_id=f"{name}:{i}")
                            break
                        except OffsetMismatch:
                            mismatches.append(name)
                            writer.refresh()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=transfer, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    batches = []
    for log, amount in zip(logs, (-1, 2, -1), strict=True):
        with LogReader(options, *log) as reader:
            records = list(reader.read())
        assert [int(record.value or b"0") for record in records] == [amount] * 2 * _ROUNDS
        batches.append([record.batch_id for record in records])
    assert batches[0] == batches[1] == batches[2]

    writer = MultiLogWriter(options, logs).acquire()
    with FencedWriter(options, *logs[1]) as owner:
        with pytest.raises(ProducerFenced):
            writer.append({log: Write([b"0"]) for log in logs}, batch_id="late")
        assert owner.append([b"mine"]).first_seq == 2 * _ROUNDS
    writer.close()
    with LogReader(options, *logs[0]) as reader:
        assert "late" not in [record.batch_id for record in reader.read()]


def test_an_owner_of_several_logs(kafka: LocalKafka, topic: TopicFactory) -> None:
    """It fences the owner of one of them, and is fenced by a later one; who waits is refused."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    logs = [(topic(), 0), (topic(), 0)]
    owned: WriterOptions = {"shared": False, "fence_owner": True}
    alone = FencedWriter(options, *logs[1]).acquire()
    alone.append([b"alone"])
    first = MultiLogWriter(options, logs, session="job:1", epoch=7, **owned).acquire()
    with pytest.raises(ProducerFenced):
        alone.append([b"late"])
    for number in range(3):
        placed = first.append({log: Write([b"1"], number + log[1]) for log in logs[:1]} | {
            logs[1]: Write([b"1", b"2"], 1 + 2 * number)
        }, batch_id=f"job:{number}")  # fmt: skip
        first.refresh()
        assert [placed[log].first_seq for log in logs] == [number, 1 + 2 * number]
    second = MultiLogWriter(options, logs[:1], session="job:2", epoch=8, **owned).acquire()
    with pytest.raises(ProducerFenced):
        first.append({log: Write([b"late"]) for log in logs})
    found = second.last_batch(*logs[0], "job:")
    assert found is not None
    assert (found.batch_id, found.epoch) == ("job:2", 7)
    with pytest.raises(ProducerBusy):
        MultiLogWriter(options, logs, **(owned | {"fence_owner": False})).acquire()
    assert second.append({logs[0]: Write([b"3"])})[logs[0]].epoch == 8
    for writer in (alone, first, second):
        writer.close()

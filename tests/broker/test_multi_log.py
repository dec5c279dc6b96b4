"""One append over several logs on a real broker."""

from __future__ import annotations

import threading

import pytest

from coopconsume.errors import OffsetMismatch, ProducerFenced
from coopconsume.fenced import FencedWriter, LogReader, MultiLogWriter, Write
from coopconsume.testing.local.broker import LocalKafka
from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
_ROUNDS = 8


@pytest.mark.parametrize("engine", ["kafka-python", "confluent-kafka"])
def test_transfers_of_several_writers_keep_the_sum(
    kafka: LocalKafka, topic: TopicFactory, engine: str
) -> None:
    """Each moves an amount from one log to another, on condition of what it has read."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    logs = [(topic(), 0), (topic(), 0), (topic(), 0)]
    failures: list[BaseException] = []
    mismatches: list[int] = []

    def last(next_seq: int) -> int | None:
        return next_seq - 1 if next_seq else None

    def transfer(name: int) -> None:
        try:
            with MultiLogWriter(options, logs, engine=engine) as writer:
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

    writer = MultiLogWriter(options, logs, engine=engine).acquire()
    with FencedWriter(options, *logs[1]) as owner:
        with pytest.raises(ProducerFenced):
            writer.append({log: Write([b"0"]) for log in logs}, batch_id="late")
        assert owner.append([b"mine"]).first_seq == 2 * _ROUNDS
    writer.close()
    with LogReader(options, *logs[0]) as reader:
        assert "late" not in [record.batch_id for record in reader.read()]

"""What a consumer reads is returned once a later look has found its topics to be the same."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.worker.realtime import topic_check
from coopconsume.worker.realtime.confirmed_reads import ConfirmedReads, Fetched
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.topic_check import TopicCheck

ID, OTHER = "8b1a9953-c461-1296-a827-abf8c47804d7", "8b1a9953-c461-1296-a827-abf8c47804d8"


class Broker:
    """Answers looks at one topic when a test lets it, and has records to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[Future[Any]] = []
        self.there: list[int] = []
        monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _config: self)
        monkeypatch.setattr(topic_check, "_text", lambda topic_id: topic_id)
        self.check = TopicCheck({"bootstrap.servers": "nowhere:1"}, {"t": ID})
        self.reads = ConfirmedReads(self.read, self.check)

    def poll(self, _timeout: float) -> None:
        """Nothing is due."""

    def describe_topics(self, _topics: Any, **_more: Any) -> dict[str, Future[Any]]:
        """A look begins."""
        self.looks.append(Future())
        return {"t": self.looks[-1]}

    def read(self, _timeout: float, most: int) -> Fetched:
        """The next records."""
        found, self.there = self.there[:most], self.there[most:]
        records: list[Any] = [
            SimpleNamespace(topic=lambda: "t", offset=lambda o=offset: o) for offset in found
        ]
        return Fetched(records, {("t", 0): found[-1] + 1} if found else {})

    def answer(self, topic_id: str = ID) -> None:
        """The last look ends."""
        self.looks[-1].set_result(SimpleNamespace(topic_id=topic_id))

    def poll_reads(self, most: int = 100) -> list[int | None]:
        """What is returned now."""
        return [record.offset() for record in self.reads.poll(0.0, most).records]


def test_records_are_returned_after_a_look_that_began_after_their_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is read while a look is under way, and nobody looks if nothing was read."""
    broker = Broker(monkeypatch)
    broker.there = [0, 1]
    assert broker.poll_reads() == []
    broker.there = [2, 3, 4]
    assert broker.poll_reads() == broker.poll_reads() == []
    assert (len(broker.looks), broker.there) == (1, [2, 3, 4])
    broker.answer()
    assert broker.poll_reads() == [0, 1]
    broker.check.next_at = 0.0
    assert broker.poll_reads(2) == []
    broker.answer()
    assert broker.poll_reads() == [2, 3]
    broker.there = []
    broker.check.next_at = 0.0
    assert broker.poll_reads() == []
    assert len(broker.looks) == 2


def test_records_wait_for_a_look_that_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are not returned if the topic is another one."""
    from confluent_kafka import KafkaError, KafkaException

    broker = Broker(monkeypatch)
    broker.there = [0]
    assert broker.poll_reads() == []
    broker.there = [1]
    broker.looks[-1].set_exception(KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    assert broker.poll_reads() == []
    broker.check.next_at = 0.0
    assert broker.poll_reads() == []
    broker.answer()
    assert broker.poll_reads() == [0]
    broker.there = [2]
    broker.check.next_at = 0.0
    assert broker.poll_reads() == []
    broker.answer(OTHER)
    with pytest.raises(ReadFailed, match=f"its id is {OTHER}, and not {ID}"):
        broker.poll_reads()


def test_what_a_consumer_forgets_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is assigned again: the look that is under way says nothing of what it reads next."""
    broker = Broker(monkeypatch)
    broker.there = [0]
    assert broker.poll_reads() == []
    broker.reads.forget()
    broker.answer()
    broker.check.next_at = 0.0
    broker.there = [7]
    assert broker.poll_reads() == []
    assert len(broker.looks) == 2
    broker.answer()
    assert broker.poll_reads() == [7]


def test_the_pause_after_a_look_is_as_long_as_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a topic with many partitions costs the brokers and the slot no more than that."""
    broker = Broker(monkeypatch)
    broker.there = [0]
    assert broker.poll_reads() == []
    broker.check._begun_at = time.monotonic() - 0.5
    broker.answer()
    assert 0.4 < broker.check.next_at - time.monotonic() <= 0.6
    assert broker.poll_reads() == [0]
    broker.there = [1]
    assert broker.poll_reads() == []
    assert len(broker.looks) == 1


def test_topics_whose_ids_are_not_known_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of them is returned at once."""
    broker = Broker(monkeypatch)
    broker.reads = ConfirmedReads(broker.read, TopicCheck({"bootstrap.servers": "n:1"}, {"t": ""}))
    broker.there = [0, 1]
    found = broker.reads.poll(1.0, 100)
    assert [record.offset() for record in found.records] == [0, 1]
    assert not broker.looks

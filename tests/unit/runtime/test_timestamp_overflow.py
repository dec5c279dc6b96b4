"""Records that Spark's Kafka source cannot read: how they are found, kept and read around."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.options import Options
from coopconsume.runtime.read import timestamp_overflow
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import (
    LAST_MS,
    TimestampOverflows,
    around,
    retried,
)

OPTIONS = Options.parse({
    "kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "commitTable": "/none",
})  # fmt: skip


def record(offset: int, timestamp: int) -> SimpleNamespace:
    """A record as confluent-kafka returns it."""
    return SimpleNamespace(
        key=lambda: b"k", value=lambda: b"v", topic=lambda: "t", partition=lambda: 0,
        offset=lambda: offset, timestamp=lambda: (1, timestamp), headers=list,
    )  # fmt: skip


def rows(*offsets: int) -> list[Any]:
    """Records of one partition."""
    return [timestamp_overflow._row(record(offset, 2**62)) for offset in offsets]


def test_reads_go_around_records_that_spark_cannot_read() -> None:
    """What is left of the spans has all other offsets once."""
    spans = [Span("t", 0, 0, 9), Span("t", 0, 20, 20), Span("t", 1, 0, 9)]
    assert around(spans, rows(0, 4, 5, 9, 20)) == [
        Span("t", 0, 1, 3), Span("t", 0, 6, 8), Span("t", 1, 0, 9)
    ]  # fmt: skip
    assert [row.timestamp for row in rows(1)] == [LAST_MS]


def test_nothing_is_read_where_all_records_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of transaction markers and compacted records are no pieces of their own."""
    records = [record(offset, (0, 2**62)[offset % 4 == 0]) for offset in range(2, 200, 2)]
    monkeypatch.setattr(timestamp_overflow, "_records", lambda *_: iter(records))
    found = timestamp_overflow._overflow_rows(OPTIONS, [Span("t", 0, 0, 199)])
    assert [row.offset for row in found] == list(range(2, 200, 2))
    assert around([Span("t", 0, 0, 199)], found) == [Span("t", 0, 199, 199)]
    assert around([Span("t", 0, 50, 99)], found[24:49]) == [Span("t", 0, 99, 99)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is known in an otherwise empty process: the changes of logs, and what a look finds."""
    made = SimpleNamespace(known=TimestampOverflows(), changes=0, looks=0, found=rows(3, 7))

    def look(*_: object) -> list[Any]:
        made.looks += 1
        return made.found

    monkeypatch.setattr(timestamp_overflow, "TIMESTAMP_OVERFLOWS", made.known)
    monkeypatch.setattr(timestamp_overflow, "LOG_IDENTITIES", made)
    monkeypatch.setattr(timestamp_overflow, "_overflow_rows", look)
    return made


def test_they_are_known_until_the_log_may_be_another_one(world: SimpleNamespace) -> None:
    """Only an overflow has them looked for, and a failed read is repeated once they are known."""
    known, reads = world.known, []

    def read() -> str:
        reads.append(known.within(OPTIONS, spans))
        if not reads[-1]:
            raise ValueError(error)
        return "read"

    spans, error = [Span("t", 0, 0, 5)], "gone"
    with pytest.raises(ValueError, match="gone"):
        retried(OPTIONS, spans, read)
    assert world.looks == 0
    error = "java.lang.ArithmeticException: long overflow"
    assert retried(OPTIONS, spans, read) == "read"
    assert [row.offset for row in reads[-1]] == [3]
    assert [row.offset for row in known.within(OPTIONS, [Span("t", 0, 4, 9)])] == [7]
    assert known.within(OPTIONS, [Span("t", 1, 0, 9)]) == []
    assert not known.learn(OPTIONS, ValueError(error), spans), "nothing else is found"
    world.changes += 1
    assert known.within(OPTIONS, spans) == []


def test_each_isolation_level_has_its_own(world: SimpleNamespace) -> None:
    """Who reads committed records gets no aborted one, and who reads all gets each."""
    spans, error = [Span("t", 0, 0, 9)], ValueError("long overflow")
    settings = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "commitTable": "/none"}
    of_all = Options.parse(settings | {"kafka.isolation.level": "read_uncommitted"})
    assert world.known.learn(of_all, error, spans)
    assert world.known.within(OPTIONS, spans) == []
    world.found = rows(7)
    assert world.known.learn(OPTIONS, error, spans)
    assert [row.offset for row in world.known.within(OPTIONS, spans)] == [7]
    assert [row.offset for row in world.known.within(of_all, spans)] == [3, 7]


def test_memory_has_a_bound_beyond_what_one_read_needs(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were found last stay, however many they are; others are found again."""
    monkeypatch.setattr(timestamp_overflow, "_MOST_BYTES", rows(0)[0].size)
    spans = [Span("t", 0, 0, 29)]
    assert world.known.learn(OPTIONS, ValueError("long overflow"), spans)
    assert len(world.known.within(OPTIONS, spans)) == 2
    world.found = rows(20, 21, 22)
    assert world.known.learn(OPTIONS, ValueError("long overflow"), spans)
    assert [row.offset for row in world.known.within(OPTIONS, spans)] == [20, 21, 22]

"""Records that Spark's Kafka source cannot read: how they are found, kept and read around."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.fenced.inspection import _moment
from coopconsume.options import Options
from coopconsume.runtime.reading import odd_times
from coopconsume.runtime.reading.odd_times import LAST_MS, OddTimes, around, retried
from coopconsume.runtime.reading.spans import Span

OPTIONS = Options.parse({
    "kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "commitTable": "/none",
})  # fmt: skip


def rows(*offsets: int) -> list[Any]:
    """Records of one partition."""
    return [
        odd_times._row(SimpleNamespace(
            key=b"k", value=b"v", topic="t", partition=0, offset=offset, timestamp=2**62,
            timestamp_type=0, headers=(),
        ))
        for offset in offsets
    ]  # fmt: skip


def test_reads_go_around_records_that_spark_cannot_read() -> None:
    """What is left of the spans has all other offsets once."""
    spans = [Span("t", 0, 0, 9), Span("t", 0, 20, 20), Span("t", 1, 0, 9)]
    assert around(spans, rows(0, 4, 5, 9, 20)) == [
        Span("t", 0, 1, 3), Span("t", 0, 6, 8), Span("t", 1, 0, 9)
    ]  # fmt: skip
    assert [row.timestamp for row in rows(1)] == [LAST_MS]


def test_they_are_known_until_the_log_may_be_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an overflow has them looked for, and a failed read is repeated once they are known."""
    known, looks, reads = OddTimes(), [], []
    group = ["a"]
    monkeypatch.setattr(odd_times, "ODD_TIMES", known)
    monkeypatch.setattr(odd_times, "LOG_IDENTITIES", SimpleNamespace(read_group=lambda _: group[0]))
    monkeypatch.setattr(odd_times, "_odd_rows", lambda *_: looks.append(1) or rows(3, 7))

    def read() -> str:
        reads.append(known.within(OPTIONS, spans))
        if not reads[-1]:
            raise ValueError(error)
        return "read"

    spans, error = [Span("t", 0, 0, 5)], "gone"
    with pytest.raises(ValueError, match="gone"):
        retried(OPTIONS, spans, read)
    assert looks == []
    error = "java.lang.ArithmeticException: long overflow"
    assert retried(OPTIONS, spans, read) == "read"
    assert [row.offset for row in reads[-1]] == [3]
    assert [row.offset for row in known.within(OPTIONS, [Span("t", 0, 4, 9)])] == [7]
    assert known.within(OPTIONS, [Span("t", 1, 0, 9)]) == []
    assert not known.learn(OPTIONS, ValueError(error), spans), "nothing else is found"
    group[0] = "b"
    assert known.within(OPTIONS, spans) == []


def test_the_time_of_a_transaction_may_be_any_number() -> None:
    """It is the timestamp of a record."""
    assert _moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert _moment(2**62) == datetime.max.replace(tzinfo=UTC)
    assert _moment(-(2**62)) == datetime.min.replace(tzinfo=UTC)

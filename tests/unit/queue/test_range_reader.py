"""What is read of acquired offsets, from a broker that answers in parts, late or not at all."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from commits import OffsetRanges
from coopconsume.kafka.records import Taken
from coopconsume.queue.range_reader import RangeReader

LONG = 60.0


class Source:
    """Partitions of a topic, each with some offsets and the first one of its log.

    Every read of a partition takes `cost` seconds of a clock that nobody waits for.
    """

    def __init__(self, logs, *, away=(), most=10**9):
        self.logs, self.away, self.most = logs, {*away}, most
        self.start = dict.fromkeys(logs, 0)
        self.positions = {("t", p): 0 for p in logs}
        self.lost = set()
        self.paused = set()
        self.returned, self.seeks = [], []
        self.now, self.cost = 0.0, 0.0

    def pause(self, places):
        self.paused |= {p for _, p in places}

    def resume(self, places):
        self.paused -= {p for _, p in places}

    def seek(self, at, offset):
        self.seeks.append((at[1], offset))
        self.positions[at] = offset
        self.lost.discard(at)

    def read(self, timeout, most):
        self.now += self.cost
        for p, log in self.logs.items():
            at, first = ("t", p), self.positions["t", p]
            if p in self.paused or p in self.away or at in self.lost:
                continue
            if first < self.start[p]:
                self.lost.add(at)
                return Taken(lost={at})
            skipped = max(0, -(-(first - log.start) // log.step))
            offsets = log[skipped : skipped + min(most, self.most)]
            if offsets:
                self.positions[at] = offsets[-1] + 1
                self.returned += [(p, offset) for offset in offsets]
                return Taken({at: [raw(p, offset) for offset in offsets]})
            self.positions[at] = max(first, log.stop)
        self.now += timeout
        return Taken()


def raw(partition, offset):
    """A record as confluent-kafka returns it."""
    return SimpleNamespace(partition=lambda: partition, offset=lambda: offset)


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: Clock.source.now)


class Clock:
    """The time of the source that is read."""

    source: Source


def read(source, wanted, seconds=LONG):
    """Read offsets of partitions."""
    Clock.source = source
    wanted = {p: OffsetRanges(pairs) for p, pairs in wanted.items()}
    return RangeReader(source, "t").read(wanted, source.now + seconds)


def places(found):
    """Partition and offset of each record."""
    return [(raw.partition(), raw.offset()) for raw in found.records]


def test_what_lies_between_distant_ranges_is_not_read():
    """Nor is anything behind the last one; near ranges are read at once."""
    source = Source({0: range(10**6)}, most=50)
    found = read(source, {0: [(0, 0), (500_000, 500_009), (500_020, 500_029)]})
    assert [o for _, o in places(found)] == [0, *range(500_000, 500_010), *range(500_020, 500_030)]
    assert (found.missing, found.late) == ({}, {})
    assert source.seeks == [(0, 500_000)]
    assert len(source.returned) == 31


def test_a_partition_that_does_not_answer_holds_up_no_other():
    """Its offsets are late, and what there is of the others is returned in time."""
    source = Source({0: range(100), 1: range(100), 2: range(100)}, away=[0])
    found = read(source, {0: [(0, 9)], 1: [(5, 9)], 2: [(90, 99)]}, 3.0)
    assert places(found) == [(1, o) for o in range(5, 10)] + [(2, o) for o in range(90, 100)]
    assert found.late == {0: OffsetRanges([(0, 9)])}
    assert 3.0 <= source.now < 3.3


def test_what_was_read_in_time_is_returned():
    """The rest is late."""
    source = Source({0: range(10**6)}, most=10)
    source.cost = 1.0
    found = read(source, {0: [(0, 499)]}, 3.0)
    assert places(found) == [(0, o) for o in range(30)]
    assert found.late == {0: OffsetRanges([(30, 499)])}


def test_offsets_without_a_record_are_known_once_they_are_passed():
    """Compacted ones, and those of a transaction at the end of the log."""
    source = Source({0: range(0, 2_000, 2)})
    found = read(source, {0: [(0, 9), (1_990, 1_999)]})
    assert [o for _, o in places(found)] == [0, 2, 4, 6, 8, 1990, 1992, 1994, 1996, 1998]
    assert found.missing == {0: OffsetRanges.from_offsets([1, 3, 5, 7, 9, 1991, 1993, 1995, 1997,
                                                           1999])}  # fmt: skip
    assert found.late == {}
    far = Source({0: range(5_000, 5_001)})
    found = read(far, {0: [(0, 9), (1_000, 1_009), (5_000, 5_000)]})
    assert places(found) == [(0, 5_000)]
    assert found.missing == {0: OffsetRanges([(0, 9), (1_000, 1_009)])}


def test_ranges_that_the_broker_has_deleted_hold_up_no_other():
    """They are late, and it is known why."""
    source = Source({0: range(10**6), 1: range(10)})
    source.start[0] = 400_000
    found = read(source, {0: [(0, 9), (1_000, 1_009), (500_000, 500_001)], 1: [(0, 1)]})
    assert sorted(places(found)) == [(0, 500_000), (0, 500_001), (1, 0), (1, 1)]
    assert found.late == {0: OffsetRanges([(0, 9), (1_000, 1_009)])}
    assert found.is_deleted
    for _ in range(2):
        found = read(source, {0: [(0, 9)]})
        assert (found.records, found.late) == ([], {0: OffsetRanges([(0, 9)])})
        assert found.is_deleted

"""What is kept of the failed records of a partition."""

from __future__ import annotations

from commits import OffsetRanges
from coopconsume.runtime.plan.failed_records import FailedRecords
from coopconsume.runtime.plan.waiting_record import Waiting

ADDED = (("tried", b"1"),)


def waiting(offset: int, attempts: int, *, is_logged: bool = False) -> Waiting:
    """A record that has failed."""
    return Waiting(offset, 7, attempts, 1.0, "no", ADDED, is_logged=is_logged)


def test_the_last_failure_of_a_record_counts_until_it_is_done():
    """Its attempts and headers go to its slot; others of its partition stay."""
    records = FailedRecords()
    records.add(waiting(3, 1))
    last = records.add(waiting(3, 2, is_logged=True))
    records.add(waiting(5, 1))
    assert records.last(3) is last
    assert list(records.logged) == [3]
    some = OffsetRanges([(0, 4)])
    assert records.attempts_of(some) == {3: 2}
    assert records.headers_of(some) == {3: ADDED}
    records.remove_all(some)
    assert records.last(3) is None
    assert records.attempts == {5: 1}
    records.remove(5)
    assert (records.attempts, records.last(5)) == ({}, None)


def test_a_crash_is_an_attempt_without_a_failure():
    """A record that is replayed has its attempts again, and keeps its headers."""
    records = FailedRecords()
    records.charge(4)
    records.charge(4)
    assert records.last(4) is None
    assert records.attempts_of(OffsetRanges([(4, 4)])) == {4: 2}
    records.add(waiting(4, 3))
    records.restart(4)
    assert records.attempts == {}
    assert records.headers_of(OffsetRanges([(4, 4)])) == {4: ADDED}

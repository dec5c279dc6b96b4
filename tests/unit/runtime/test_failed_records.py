"""What is kept of the failed records of a partition."""

from __future__ import annotations

from commits import OffsetRanges
from coopconsume.runtime.plan.failed_records import FailedRecords
from coopconsume.runtime.plan.waiting_record import Waiting

ADDED = (("tried", b"1"),)


def waiting(offset: int, attempts: int) -> Waiting:
    """A record that has failed."""
    return Waiting(offset, 7, attempts, 1.0, "no", ADDED)


def test_the_last_failure_of_a_record_counts_until_it_is_done():
    """Its attempts and headers go to its slot; others of its partition stay."""
    records = FailedRecords()
    records.add(waiting(3, 1))
    last = records.add(waiting(3, 2))
    other = records.add(waiting(5, 1))
    assert records.last(3) is last
    assert list(records.all) == [last, other]
    some = OffsetRanges([(0, 4)])
    assert records.attempts_of(some) == {3: 2}
    assert records.headers_of(some) == {3: ADDED}
    records.remove_all(some)
    assert records.last(3) is None
    assert records.attempts == {5: 1}
    records.remove(5)
    assert (records.attempts, records.last(5)) == ({}, None)


def test_a_crash_counts_as_a_failure_with_the_next_batch():
    """Until then it has no attempt; a record that is done or has failed has no crash to count."""
    records = FailedRecords()
    records.ended |= {4: "it died", 5: "it died", 6: "it died"}
    assert records.attempts == {}
    assert records.ended_of(OffsetRanges([(4, 5)])) == {4: "it died", 5: "it died"}
    records.add(waiting(4, 1))
    records.remove(5)
    records.remove_all(OffsetRanges([(6, 6)]))
    assert records.ended == {}


def test_a_record_that_is_replayed_has_its_attempts_again_and_keeps_its_headers():
    """As an operator asks for it."""
    records = FailedRecords()
    records.add(waiting(4, 3))
    records.restart(4)
    assert records.attempts == {}
    assert records.headers_of(OffsetRanges([(4, 4)])) == {4: ADDED}

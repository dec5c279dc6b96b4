"""Times from the timestamps of records to their commits."""

from __future__ import annotations

import pyarrow as pa

from commits import OffsetRanges
from coopconsume.runtime.status.latency import CommitLatency
from coopconsume.worker.report import PartitionReport, pack_done, pack_offsets, pack_times, sampling

TP = ("orders", 0)


def report(times):
    """The report of records that are done, with their timestamps in milliseconds."""
    offsets, stamps = sorted(times), [times[offset] for offset in sorted(times)]
    return PartitionReport(
        done=pack_offsets(pa.array(offsets, pa.int64())), times=pack_times(pa.array(stamps))
    )


def committed(latency, pairs, stable, at):
    """Commits; returns how many records counted, and the sum of their seconds."""
    latency.committed(TP, OffsetRanges(pairs), stable, at)
    found = latency.take()
    return found.count, round(found.seconds, 3)


def test_a_record_counts_once_when_it_is_committed():
    """At the time of the answer, whenever it was reported."""
    latency = CommitLatency()
    latency.done(TP, report({3: 1_000, 4: 2_000, 7: 9_500}))
    latency.done(TP, report({5: 9_000}))
    assert committed(latency, [(3, 5)], 6, 10.0) == (3, 9.0 + 8.0 + 1.0)
    assert committed(latency, [(3, 5)], 6, 20.0) == (0, 0.0)
    assert committed(latency, [(7, 7)], 6, 12.0) == (1, 2.5), "it was held back"


def test_holes_filtered_records_and_unknown_timestamps_do_not_count():
    """No handler has seen the former; the latter say nothing."""
    latency = CommitLatency()
    latency.done(TP, PartitionReport(filtered=pack_offsets(pa.array([1, 2], pa.int64()))))
    latency.done(TP, report({3: -1, 4: 4_000}))
    assert committed(latency, [(0, 9)], 10, 5.0) == (1, 1.0)


def test_what_another_commit_has_passed_is_forgotten():
    """It never comes in a commit of this member any more."""
    latency = CommitLatency()
    latency.done(TP, report({3: 0, 9: 0}))
    assert committed(latency, [(5, 5)], 6, 1.0) == (0, 0.0)
    assert committed(latency, [(3, 3), (9, 9)], 10, 1.0) == (1, 1.0)


def test_an_epoch_keeps_what_it_takes_along():
    """The rest is handled again, and reported again."""
    latency = CommitLatency()
    latency.done(TP, report({3: 0, 4: 0}))
    latency.done(("other", 1), report({3: 0}))
    latency.retain({TP: OffsetRanges([(4, 4)])})
    latency.done(TP, report({3: 1_000}))
    assert committed(latency, [(3, 4)], 5, 2.0) == (2, 1.0 + 2.0)
    latency.committed(("other", 1), OffsetRanges([(3, 3)]), 4, 2.0)
    assert latency.take().count == 0


def test_of_a_large_report_each_nth_record_counts_n_times():
    """The count is that of all records, also where the last one stands for fewer."""
    count = 10_001
    step = sampling(count)
    latency = CommitLatency()
    offsets = pa.array(range(count), pa.int64())
    times = pa.array([1_000 * (n < count // 2) for n in range(0, count, step)], pa.int64())
    latency.done(TP, PartitionReport(done=pack_offsets(offsets), times=pack_times(times)))
    seen, seconds = committed(latency, [(0, count)], count, 2.0)
    assert step == 10
    assert seen == count
    assert abs(seconds - 1.5 * count) < 2 * step


def test_a_slot_samples_the_reports_that_it_packs():
    """Reports of few and of many records, in chunks that overlap."""
    for count in (2, 4_096, 4_097, 20_001):
        columns = [pa.array(range(count), pa.int64()), pa.array([1_000] * count, pa.int64())]
        rows = pa.RecordBatch.from_arrays(columns, names=["offset", "timestamp"])
        odd, even = (rows.take(pa.array(range(n, count, 2))) for n in (1, 0))
        done, times = pack_done([odd, even])
        latency = CommitLatency()
        latency.done(TP, PartitionReport(done=done, times=times))
        assert committed(latency, [(0, count)], count, 2.0) == (count, float(count))

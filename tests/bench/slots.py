"""The slots' code alone, in one process without Spark: what it costs a record."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume import RetryPolicy
from coopconsume.worker.input_rows import InputRow
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.report import BatchSpec, PartitionWork
from coopconsume.worker.slot import SlotRunner
from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume import Record
    from tests.bench.harness import Harness

_ROWS_AT_ONCE = 10_000
_KEYS = 10_000
_PENDING = 100_000
_PLAIN, _COROUTINES = "plain handler", "async handler, 100 at once"
_PLAIN_LIMIT, _ASYNC_LIMIT = "limit of a plain one", "limit of an async one"


async def coroutine(record: Record) -> None:
    """Do nothing, asynchronously."""


def slots(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Processor time a record of empty handlers, and the memory of many pending records."""
    records = harness.size(200_000, 20_000)
    batches = batches_of([b"%0100d" % number for number in range(records)])

    def side(function: Any, concurrency: int) -> Callable[[int], float]:
        return lambda _: cost(function, batches, concurrency)

    report = Report(
        "Own cost of a slot",
        f"{records:,} records of 100 bytes, {_KEYS:,} keys, empty handlers, in one process without "
        "Spark: processor time from Arrow batches to the report.",
    )
    sides: dict[str, Callable[[int], float]] = {
        _PLAIN: side(handler, 1),
        "plain handler, 100 threads": side(handler, 100),
        _COROUTINES: side(coroutine, 100),
        "async handler, 1,000 at once": side(coroutine, 1_000),
    }
    report.add_all(take_turns(sides, harness.turns, say=say), "µs/record")
    report.add(_PLAIN_LIMIT, [4.0], "µs/record")
    report.add(_ASYNC_LIMIT, [20.0], "µs/record")
    report.ratios = [
        Ratio("plain / its limit", _PLAIN, _PLAIN_LIMIT, at_most=1.0),
        Ratio("async / its limit", _COROUTINES, _ASYNC_LIMIT, at_most=1.0),
    ]
    return [report, _memory()]


def _memory() -> Report:
    """What the rows take that wait behind one that does not end."""
    report = Report(
        "Memory of pending records",
        f"{_PENDING:,} records of 100 bytes that wait in a slot behind one of their key, rows, "
        "lanes and report, as tracemalloc counts.",
    )
    report.add("pending records", [_pending_megabytes()], "MB")
    report.add("limit", [200.0], "MB")
    report.ratios = [Ratio("pending / limit", "pending records", "limit", at_most=1.0)]
    return report


def _pending_megabytes() -> float:
    gc.collect()
    tracemalloc.start()
    outcome = TaskOutcome(_spec(_PENDING, 100), 0, RetryPolicy(), None, dead_letters=False)
    scheduler = KeyScheduler(outcome, 0.0)
    scheduler.admit(InputRow(0, 0, 0, b"hot", b"", 0, ()))
    started = scheduler.take(0.0)
    assert started is not None
    for offset in range(1, _PENDING + 1):
        scheduler.admit(InputRow(0, offset, 0, b"key-%d" % offset, b"%0100d" % offset, 0, ()))
    lane, row, record = started
    scheduler.is_closed = True
    scheduler.settle(lane, row, record, RuntimeError("not yet"), 0.0, 0.0)
    scheduler.close(0.0)
    held = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    assert len(outcome.draft.partitions[0].blocked) == _PENDING
    return held


def _spec(records: int, concurrency: int, **more: Any) -> BatchSpec:
    return BatchSpec(
        batch=0, partitions=(("t", 0),), slots=(0,),
        work={0: {0: PartitionWork(((0, records),))}}, ordering="key", concurrency=concurrency,
        batch_time=600.0, handler_timeout=600.0, headers=False, **more,
    )  # fmt: skip


def batches_of(values: list[bytes]) -> list[pa.RecordBatch]:
    """Returns the Arrow batches of a slot with records of these values, in one partition."""
    batches = []
    for first in range(0, len(values), _ROWS_AT_ONCE):
        offsets = range(first, min(len(values), first + _ROWS_AT_ONCE))
        columns = {
            "part": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key_hash": pa.array([o % _KEYS * 7919 for o in offsets], pa.int64()),
            "key": pa.array([b"key-%d" % (o % _KEYS) for o in offsets], pa.binary()),
            "value": pa.array([values[o] for o in offsets], pa.binary()),
            "timestamp": pa.array(offsets, pa.int64()),
        }
        batches.append(pa.RecordBatch.from_pydict(columns))
    return batches


def cost(function: Any, batches: list[pa.RecordBatch], concurrency: int = 1, **more: Any) -> float:
    """Returns the processor time of a slot, from Arrow batches to its report, in µs a record.

    Args:
        function: The handler.
        batches: What `batches_of` returns.
        concurrency: As for `foreach`.
        more: What else its `BatchSpec` says.
    """
    records: int = sum(batch.num_rows for batch in batches)
    spec = _spec(records, concurrency, **more)
    runner = SlotRunner(spec, function, RetryPolicy(), None, dead_letters=False, send=None)
    began = time.process_time()
    report = runner.run(0, batches)
    took = time.process_time() - began
    if report.stats.handled != records:
        raise AssertionError(f"{records} records were to be handled, not {report.stats.handled}")
    return took * 1e6 / records

"""Runs rows through a slot's code in this process."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time

import pyarrow as pa

from coopconsume.record import RetryPolicy
from coopconsume.worker.rate_limit import Rates
from coopconsume.worker.report import FILTERED, BatchSpec, PartitionWork, QueryIds, unpack_offsets
from coopconsume.worker.runner import Runner
from coopconsume.worker.slot import SlotRunner

#: How handlers run: in the task's thread, on threads, as coroutines.
WAYS = ["plain", "threads", "coroutines"]

#: Seconds after which a test gives up waiting for its own threads.
PATIENCE = float(os.environ.get("COOPCONSUME_TEST_PATIENCE", "120"))

#: A record that fails is not tried again in the run of its slot, however long the run takes.
RETRIES_LATER = RetryPolicy(backoff=1_000.0, max_backoff=1_000.0, jitter=0)

NAMES = ["part", "offset", "key_hash", "key", "value", "timestamp"]
TYPES = [pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int64()]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Together:
    """Has handlers wait until so many of them are at work at once; then lets all pass.

    Args:
        count: How many.
    """

    def __init__(self, count):
        self._most = count
        self._there = threading.Event()
        self._give_up = time.monotonic() + PATIENCE

    def wait(self, at_work):
        """For threads: so many are at work now."""
        if at_work >= self._most:
            self._there.set()
        self._there.wait(max(0.0, self._give_up - time.monotonic()))

    async def awaited(self, at_work):
        """For coroutines."""
        if at_work >= self._most:
            self._there.set()
        while not self._there.is_set() and time.monotonic() < self._give_up:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def in_way(way, handler, *, with_state=False):
    """A handler, and how many at once, for one of the ways."""
    if way != "coroutines":
        return handler, 1 if way == "plain" else 4

    async def coroutine(record):
        await asyncio.sleep(0)
        return handler(record)

    async def coroutine_with_state(record, state):
        await asyncio.sleep(0)
        return handler(record, state)

    return coroutine_with_state if with_state else coroutine, 4


def held_up(way, handler, event):
    """A handler for threads or coroutines; its call for offset 0 waits for an event, then ends."""

    async def coroutine(record):
        while record.offset == 0 and not event.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        handler(record)

    def plain(record):
        if record.offset == 0:
            assert event.wait(PATIENCE)
        handler(record)

    return coroutine if way == "coroutines" else plain


def run(handler, rows, *, work=None, concurrency=1, ordering="key", way=None, **more):
    """Run rows (partition, offset, key) of slot 3 through a handler.

    The rows at the places `filtered` do not pass the filter; without it all rows pass. `headers`
    are those of each row; without it rows have no column of headers. `values` are their values.
    """
    if way is not None:
        handler, concurrency = in_way(way, handler)
    slot, batches = prepared(handler, rows, work, concurrency, ordering, **more)
    return slot.run(3, batches)


def prepared(handler, rows, work=None, concurrency=1, ordering="key", **more):
    """The runner of slot 3 and its rows, as a task has them."""
    parts = sorted({row[0] for row in rows}) or [0]
    work = work or {p: PartitionWork(((0, 10**6),)) for p in parts}
    spec = BatchSpec(
        batch=0, partitions=(("t", 10), ("t", 11)), slots=(3,), work={3: work}, ordering=ordering,
        concurrency=concurrency, batch_time=more.pop("batch_time", 300.0),
        handler_timeout=more.pop("handler_timeout", 300.0),
        headers=more.get("headers") is not None, run=more.pop("run_id", ""),
        rates=more.pop("rates", Rates()),
        break_after=more.pop("break_after", 0), streaks=more.pop("streaks", {}),
        gates=more.pop("gates", {}), latest_start=more.pop("latest_start", math.inf),
        channel=more.pop("channel", None),
        has_ordering_keys=more.pop("has_ordering_keys", False),
        filters=more.get("filtered") is not None, decoding=more.pop("decoding", None),
        state=more.pop("state", None), log_lines=more.pop("log_lines", 0),
        shown_lines=more.pop("shown_lines", 0),
        has_spans=more.pop("has_spans", False), query=more.pop("query", QueryIds()),
    )  # fmt: skip
    columns = [
        [r[0] for r in rows], [r[1] for r in rows],
        [hash(r[2]) & (2**63 - 1) if r[2] is not None else r[1] for r in rows],
        [r[2] for r in rows], more.pop("values", None) or [b"v%d" % r[1] for r in rows],
        [1_000 + r[1] for r in rows],
    ]  # fmt: skip
    arrays = [pa.array(c, t) for c, t in zip(columns, TYPES, strict=True)]
    filtered, names = more.pop("filtered", None), NAMES
    headers = more.pop("headers", None)
    if headers is not None:
        pairs = [[{"key": name, "value": value} for name, value in own] for own in headers]
        arrays.append(pa.array(pairs, HEADERS))
        names = [*names, "headers"]
    if filtered is not None:
        arrays.append(pa.array([row[:2] in filtered for row in rows], pa.bool_()))
        names = [*names, FILTERED]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    options = {"dead_letters": True, "send": None} | more
    schema, size = options.pop("schema", None), options.pop("batch_rows", 4)
    runner = SlotRunner(spec, handler, options.pop("policy", RETRIES_LATER), schema, **options)
    return runner, [batch.slice(i, size) for i in range(0, batch.num_rows, size)]


def reporters_of(slot):
    """A list that gets the reporter of a slot once its handlers may start."""
    found, begin = [], slot._begin

    def begin_and_note(*arguments):
        found.append(arguments[-1])
        return begin(*arguments)

    slot._begin = begin_and_note
    return found


class Scheduled(Runner):
    """The runner of a scheduler that a test works by itself."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def run(self, batches):
        """The test does that."""

    def flush(self):
        self.scheduler.flush()

    def at_work(self):
        return self.scheduler.at_work()

    def queued(self):
        return self.scheduler.queued()

    def give_back(self):
        self.scheduler.give_back(0.0)

    def leave_withheld(self, now):
        self.scheduler.leave_withheld(now)


def done(report, part=0):
    """Offsets that a report counts as done."""
    if part not in report.partitions:
        return []  # It reports only what runs, or where the slot is.
    return unpack_offsets(report.partitions[part].done).to_pylist()
